//go:build vm

package sanity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Volumes are held for the snapshots of a group, and the driver is killed, stopped or hangs.

// held is two published volumes, and somebody who writes into both without a pause.
type held struct {
	realCo
	ids, targets []string
	written      atomic.Int64 // rounds
	stop         chan struct{}
	once         sync.Once
	ended        chan error
}

func startHeld(t *testing.T) *held {
	h := &held{realCo: startReal(t), stop: make(chan struct{}), ended: make(chan error, 1)}
	for name, params := range map[string][]string{"thin": {"type", "thin", "thinPool", realPool}, "thick": {}} {
		id, target := h.published(name, false, params...)
		h.ids, h.targets = append(h.ids, id), append(h.targets, target)
	}
	go func() { h.ended <- h.write() }()
	t.Cleanup(func() { _ = h.stopWriting() })
	return h
}

// write puts ever higher numbers into the volumes, each durable before the next.
func (h *held) write() error {
	for n := 1; ; n++ {
		for _, target := range h.targets {
			path := target + "/number"
			if err := os.WriteFile(path, []byte(strconv.Itoa(n)), 0o600); err != nil {
				return err
			}
			if err := h.h.Sync(path); err != nil {
				return err
			}
		}
		h.written.Store(int64(n))
		select {
		case <-h.stop:
			return nil
		default:
		}
	}
}

// goesOn waits until the writer has written a whole round that it began after now.
func (h *held) goesOn(within time.Duration) {
	h.t.Helper()
	was := h.written.Load()
	for end := time.Now().Add(within); h.written.Load() < was+2; <-time.Tick(time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("who writes does not go on within %s", within)
		}
	}
}

func (h *held) suspended() (n int) {
	for _, name := range []string{"thin", "thick"} {
		if h.h.suspended(h.t, volume.DMName(volume.Ref{VG: realVG, LV: name})) {
			n++
		}
	}
	return n
}

// resumed waits until no volume is held, and gives the time that took.
func (h *held) resumed(within time.Duration) time.Duration {
	h.t.Helper()
	start := time.Now()
	for h.suspended() != 0 {
		if time.Since(start) > within {
			h.t.Fatalf("%d volumes are held after %s", h.suspended(), within)
		}
		<-time.After(time.Millisecond)
	}
	return time.Since(start)
}

func (h *held) group() (*csi.VolumeGroupSnapshot, error) {
	r, err := h.Group().CreateVolumeGroupSnapshot(h.t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: h.ids})
	return r.GetGroupSnapshot(), err
}

// caught calls for a group, and waits until the gate has been reached, where so many volumes are held.
func (h *held) caught(gate <-chan struct{}, volumes int) (answer <-chan error) {
	h.t.Helper()
	h.goesOn(bound)
	out := make(chan error, 1)
	go func() {
		_, err := h.group()
		out <- err
	}()
	select {
	case <-gate:
	case err := <-out:
		h.t.Fatalf("answered at once: %v", err)
	}
	if n := h.suspended(); n != volumes {
		h.t.Errorf("%d volumes are held, not %d", n, volumes)
	}
	return out
}

// whole repeats the call: the group is complete, and shows both volumes at one moment. Then all is taken away.
func (h *held) whole(when string) {
	t := h.t
	t.Helper()
	before := h.written.Load()
	var group *csi.VolumeGroupSnapshot
	h.repeatWhileFailing(func() (err error) { group, err = h.group(); return err })
	h.goesOn(bound)
	numbers := map[string]int64{}
	for _, s := range group.GetSnapshots() {
		lv := s.GetSnapshotId()[strings.LastIndex(s.GetSnapshotId(), "/")+1:]
		lvm(t, "lvchange", "-y", "-ay", "-K", realVG+"/"+lv)
		at := t.TempDir()
		sh(t, "mount", "/dev/mapper/"+volume.DMName(volume.Ref{VG: realVG, LV: lv}), at)
		text, err := os.ReadFile(at + "/number")
		must(t, err)
		sh(t, "umount", at)
		numbers[s.GetSourceVolumeId()], err = strconv.ParseInt(string(text), 10, 64)
		must(t, err)
	}
	if first, second := numbers[h.ids[0]], numbers[h.ids[1]]; len(numbers) != 2 || second > first || first-second > 1 || first < before {
		t.Errorf("%s, the snapshots hold %v, and %d were written before", when, numbers, before)
	}
	_, err := h.Group().DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId()})
	must(t, err)
}

// stopWriting ends the writer, and gives what it failed with.
func (h *held) stopWriting() (err error) {
	h.once.Do(func() {
		close(h.stop)
		select {
		case err = <-h.ended:
		case <-time.After(bound):
			err = errors.New("who writes is held")
		}
	})
	return err
}

func (h *held) end() {
	h.t.Helper()
	must(h.t, h.stopWriting())
	for i, id := range h.ids {
		h.gone(id, h.targets[i])
	}
	h.wantNothing("in the end")
}

// guards are the processes beside the driver that resume what it holds.
func guards() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if strings.HasSuffix(string(text), "\x00"+driver.GuardCommand+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// The driver is killed while it holds volumes, and not started again: they are held for no second more. Where its guard is killed
// with it, they are held until it is started. Either way the group is complete when the call is repeated.
func TestKilledWhileVolumesAreHeld(t *testing.T) {
	h := startHeld(t)
	for _, withGuard := range []bool{false, true} {
		gate, release := h.Block(t, "message")
		answer := h.caught(gate, 2)
		pids := guards()
		if len(pids) != 1 {
			t.Fatalf("the guards are %v", pids)
		}
		if score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pids[0])); strings.TrimSpace(string(score)) != "-1000" {
			t.Errorf("the guard's oom_score_adj is %s, %v", score, err)
		}
		must(t, syscall.Kill(pids[0], syscall.SIGTERM)) // that is for the driver
		if withGuard {
			must(t, syscall.Kill(pids[0], syscall.SIGKILL))
		}
		h.Kill(t)
		h.code(<-answer, codes.Unavailable)
		if withGuard {
			if n := h.suspended(); n != 2 {
				t.Errorf("%d volumes are held, with nobody who could resume them", n)
			}
		} else {
			t.Logf("resumed %s after the driver had ended", h.resumed(time.Second))
			h.goesOn(time.Second)
		}
		release()
		h.Start(t)
		h.resumed(bound)
		h.goesOn(bound)
		h.whole(fmt.Sprintf("after a kill (with the guard: %t)", withGuard))
		if pids := guards(); len(pids) != 0 {
			t.Errorf("guards are left: %v", pids)
		}
	}
	h.end()
}

// What the driver holds volumes for does not end: they are held for ten seconds, and no longer, whoever hangs. Nothing is left of the
// group, and the repeated call makes it.
func TestVolumesAreHeldForTenSecondsAtMost(t *testing.T) {
	h := startHeld(t)
	hungLVM := func() (gate <-chan struct{}, release func()) {
		came, go_ := h.h.in("came"), h.h.in("go")
		must(t, os.RemoveAll(go_))
		mend := h.putBefore("lvcreate", fmt.Sprintf(`case " $* " in *" -s "*) touch %s; while ! test -e %s; do sleep 0.1; done;; esac`, came, go_))
		out := make(chan struct{}, 1)
		go func() {
			for end := time.Now().Add(bound); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
				if os.Remove(came) == nil {
					out <- struct{}{}
					return
				}
			}
		}()
		return out, func() { must(t, os.WriteFile(go_, nil, 0o600)); mend() }
	}
	message := func() (<-chan struct{}, func()) { return h.Block(t, "message") }
	stopped := func() (<-chan struct{}, func()) {
		gate, release := h.Block(t, "message")
		out := make(chan struct{})
		go func() {
			<-gate
			_ = h.h.proc.cmd.Process.Signal(syscall.SIGSTOP)
			close(out)
		}()
		return out, func() { release(); must(t, h.h.proc.cmd.Process.Signal(syscall.SIGCONT)) }
	}
	for _, c := range []struct {
		what  string
		hangs func() (gate <-chan struct{}, release func())
		held  int // of the two volumes; the thin one's snapshot is made first
	}{{"the driver", message, 2}, {"LVM", hungLVM, 1}, {"a driver that is stopped", stopped, 2}} {
		h.goesOn(bound)
		world := h.World(t)
		gate, release := c.hangs()
		answer := h.caught(gate, c.held)
		since := time.Now()
		h.resumed(11 * time.Second)
		if took := time.Since(since); took < 8*time.Second {
			t.Errorf("%s: held for %s only", c.what, took)
		} else {
			t.Logf("%s: held for %s", c.what, took.Round(time.Millisecond))
		}
		h.goesOn(5 * time.Second)
		release()
		h.code(<-answer, codes.DeadlineExceeded, "10s") // it is to be repeated
		h.h.wantWorld(t, world, "after "+c.what)
		h.whole("after " + c.what)
	}
	h.end()
}
