package contract

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What a volume in use answers, and that it is carried on.
var unpublishTests = []driverTest{
	{"BusyNamesTheHolder", busyNamesTheHolder},
	{"BusyNamesTheTargetsOwn", busyNamesTheTargetsOwn},
	{"BusyElsewhereKeepsTheLV", busyElsewhere},
	{"StackAtTheTarget", stackAtTarget},
	{"OverlappingUnpublish", overlappingUnpublish},
	{"NothingToUnpublish", nothingToUnpublish},
	{"GoneAlready", goneAlready},
	{"JournalLost", journalLost},
	{"ForeignMountAtTheTarget", foreignMount},
	{"AlienBindBlocksUnstage", alienBind},
	{"TargetHoldsFiles", targetHoldsFiles},
}

// case B1, case B8; trap 11
func busyNamesTheHolder(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, how := range []string{HoldFile, HoldCwd, HoldMapped, HoldLoop} {
		e := c.inline("busy-" + strings.ReplaceAll(how, " ", "-"))
		c.ok(e.publish())
		path := e.target
		if how != HoldCwd {
			path += "/f"
			c.ok(h.WriteFile(path, strings.Repeat("x", 8192)))
		}
		pid, release := h.Hold(t, how, path)
		want := []string{how, "left to do", e.target, "tries again"}
		if pid != 0 {
			want = append(want, fmt.Sprintf("pid %d", pid))
		}
		c.code(e.unpublish(), codes.Aborted, want...)
		c.mounted(e.target, 1)
		if !c.there(e.ref()) {
			t.Fatal("the logical volume went from under its holder")
		}
		release()
		c.ok(c.repeat(e.unpublish))
		if f := h.Lstat(t, e.target); f.Kind != 0 {
			t.Errorf("the target is left: %+v", f)
		}
		c.ok(e.unpublish()) // and again
	}
	wantWorld(t, c, world, "after all holders have ended")
}

// Of the users of a volume those are named who use the target that is to go, and not those of its staging path or of another
// target. case B1, case B8
func busyNamesTheTargetsOwn(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("own", 64<<20, mountCapability(""), nil)
	one, two := c.Target(t, "own-1"), c.Target(t, "own-2")
	c.ok(v.stage())
	c.ok(v.publish(one))
	c.ok(v.publish(two))
	c.ok(c.WriteFile(one+"/f", strings.Repeat("x", 8192)))
	for _, how := range some(1, HoldFile, HoldCwd) {
		var releases []func()
		pids := map[string]int{}
		for _, path := range []string{v.staging, one, two} {
			if how == HoldFile {
				path += "/f"
			}
			pid, release := h.Hold(t, how, path)
			pids[strings.TrimSuffix(path, "/f")] = pid
			releases = append(releases, release)
		}
		err := v.unpublish(one)
		c.code(err, codes.Aborted, fmt.Sprintf("pid %d", pids[one]))
		for path, pid := range pids {
			if path != one && strings.Contains(err.Error(), fmt.Sprintf("pid %d ", pid)) {
				t.Errorf("who holds %s is named for %s: %v", path, one, err)
			}
		}
		for _, release := range releases {
			release()
		}
		c.ok(v.repeat(func() error { return v.unpublish(one) }))
		c.ok(v.publish(one))
	}
	for _, target := range []string{one, two} {
		c.ok(v.repeat(func() error { return v.unpublish(target) }))
	}
	v.end()
	wantWorld(t, c, world, "after all were unpublished")
}

// The mount lives on in another namespace: ours is gone, and the logical volume must stay until it is closed. case B6, case B8
func busyElsewhere(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("elsewhere")
	c.ok(e.publish())
	_, release := h.Hold(t, HoldNamespace, e.target)
	before := h.Commands(t)
	err := e.unpublish()
	switch status.Code(err) {
	case codes.OK: // the kernel takes the mount out of the other namespace when the mount point is removed, and nothing used it there
	case codes.Aborted:
		if after := h.Commands(t); after["lvremove"] != before["lvremove"] || after["mkfs.ext4"] != before["mkfs.ext4"] {
			t.Errorf("a program was run on a device that is open: %v, before %v", after, before)
		}
		if !c.there(e.ref()) {
			t.Error("the logical volume is gone while it is open")
		}
	default:
		t.Errorf("got %v, want OK or Aborted", err)
	}
	release()
	wantWorld(t, c, world, "after the other namespace has ended")
}

// case B1 (c), case B25
func stackAtTarget(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("stack")
	c.ok(e.publish())
	h.Bind(t, e.target, e.target)
	c.mounted(e.target, 2)
	c.ok(e.unpublish())
	wantWorld(t, c, world, "after the unpublish of a stack")
}

// case B4; trap 12
func overlappingUnpublish(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("slow")
	c.ok(e.publish())
	entered, release := h.Block(t, "lvremove")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	c.code(c.unpublishWithin(ctx, e.id, e.target), codes.DeadlineExceeded)
	<-entered
	c.code(e.unpublish(), codes.Aborted, "NodeUnpublishVolume")
	release()
	c.ok(c.repeat(e.unpublish))
	c.ok(e.unpublish())
	wantWorld(t, c, world, "after the slow unpublish")
}

// case B4, case B28: what was never here is gone
func nothingToUnpublish(t *testing.T, h Harness) {
	c, _ := started(t, h)
	target := c.Target(t, "nothing")
	world := c.World(t)
	for _, id := range []string{inlineID("never"), h.NodeName() + "/" + h.VG() + "/never", "other-node/" + h.VG() + "/never", "whatever"} {
		c.ok(c.unpublish(id, target))
		h.Mkdir(t, target)
		c.ok(c.unpublish(id, target)) // an empty target is removed
		if f := h.Lstat(t, target); f.Kind != 0 {
			t.Errorf("%s: the empty target is left", id)
		}
		_, err := h.Node().NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: c.Staging(t, "nothing")})
		c.ok(err)
	}
	wantWorld(t, c, world, "after calls about nothing")
}

// case B5, case B28; trap 7
func goneAlready(t *testing.T, h Harness) {
	c, world := started(t, h)
	other := c.create("stays", 4<<20, blockCapability(), nil)
	for name, spoil := range map[string]func(v pv, target string){
		"unmounted":              func(_ pv, target string) { h.Unmount(t, target) },
		"unmounted and removed":  func(_ pv, target string) { h.Unmount(t, target); h.Remove(t, target) },
		"an empty file in place": func(_ pv, target string) { h.Unmount(t, target); h.Remove(t, target); c.ok(h.WriteFile(target, "")) },
		"destroyed": func(v pv, target string) {
			h.Unmount(t, target)
			h.Unmount(t, v.staging)
			h.DestroyLV(t, v.ref())
		},
		"inactive": func(v pv, target string) {
			h.Unmount(t, target)
			h.Unmount(t, v.staging)
			h.DeactivateLV(t, v.ref())
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := c.with(t)
			v := c.create("gone", 64<<20, mountCapability(""), nil)
			target := c.Target(t, "gone")
			c.ok(v.stage())
			c.ok(v.publish(target))
			spoil(v, target)
			c.ok(v.unpublish(target))
			if f := h.Lstat(t, target); f.Kind != 0 {
				t.Errorf("the target is left: %+v", f)
			}
			v.end()
			if c.there(v.ref()) {
				t.Error("the logical volume is left")
			}
		})
	}
	if !c.there(other.ref()) {
		t.Error("another volume was removed")
	}
	c.ok(other.delete())
	wantWorld(t, c, world, "after all that was gone already")
}

// case B5, case B19: the state folder was wiped; the facts are enough
func journalLost(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("lost")
	v := c.create("lost-pv", 64<<20, mountCapability(""), nil)
	target := c.Target(t, "lost-pv")
	c.ok(e.publish())
	c.ok(v.stage())
	c.ok(v.publish(target))
	h.Stop(t)
	c.ok(os.RemoveAll(h.Journal()))
	h.Start(t)
	c.ok(e.publish()) // it is there, as asked
	c.ok(v.publish(target))
	c.ok(e.unpublish())
	c.ok(v.unpublish(target))
	v.end()
	wantWorld(t, c, world, "after unpublish without a journal")
}

func foreignMount(t *testing.T, h Harness) {
	c, _ := started(t, h)
	mine, other := c.inline("mine"), c.inline("other")
	c.ok(other.publish())
	h.Bind(t, other.target, mine.target)
	world := c.World(t)
	c.code(mine.unpublish(), codes.NotFound, mine.target)
	c.code(mine.publish(), codes.FailedPrecondition, mine.target)
	wantWorld(t, c, world, "after calls about a target where something else is mounted")
	h.Unmount(t, mine.target)
	c.ok(mine.unpublish())
	c.ok(other.unpublish())
}

// case B10
func alienBind(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("alien", 64<<20, mountCapability(""), nil)
	target, alien := c.Target(t, "alien"), c.Target(t, "alien-bind")
	c.ok(v.stage())
	c.ok(v.publish(target))
	h.Bind(t, target, alien)
	c.ok(v.unpublish(target))
	c.code(v.unstage(), codes.Aborted, alien)
	c.code(v.delete(), codes.Aborted)
	c.mounted(v.staging, 1)
	h.Unmount(t, alien)
	h.Remove(t, alien)
	c.ok(c.repeat(v.unstage))
	c.ok(v.delete())
	wantWorld(t, c, world, "after the alien mount has gone")
}

// Nothing is removed but the empty target itself.
func targetHoldsFiles(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("files")
	c.ok(e.publish())
	h.Unmount(t, e.target)
	c.ok(h.WriteFile(e.target+"/precious", "x"))
	c.code(e.unpublish(), codes.Internal, e.target)
	if got, err := h.ReadFile(e.target + "/precious"); got != "x" || err != nil {
		t.Errorf("the file is gone: %v", err)
	}
	h.Remove(t, e.target+"/precious")
	c.ok(c.repeat(e.unpublish))
	wantWorld(t, c, world, "after the file was taken away")
}

// repeatWhileLocked calls until the answer is not that another operation is under way.
func (c caller) repeatWhileLocked(call func() error) (err error) {
	c.t.Helper()
	until(func() bool {
		err = call()
		return !strings.Contains(status.Convert(err).Message(), "under way")
	})
	return err
}
