//go:build vm

package lvm

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// written is a thin volume, and what is known of its chunks: the number of the last write to each.
type written struct {
	t     *testing.T
	chunk int64
	dev   *os.File
	size  int64
	now   map[int64]int64
	n     int64
	dice  *rand.Rand
}

// change writes and discards at random, in pieces of 512 bytes to some chunks, anywhere.
func (w *written) change(times int) {
	w.t.Helper()
	for range times {
		begin := w.dice.Int64N(w.size/512) * 512
		length := min((1+w.dice.Int64N(3*w.chunk/512))*512, w.size-begin)
		if w.dice.IntN(3) != 0 {
			w.put(begin, length)
		} else {
			w.discard(begin, length)
		}
	}
	if err := w.dev.Sync(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *written) put(begin, length int64) {
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(w.dice.Uint32() | 1)
	}
	if _, err := w.dev.WriteAt(data, begin); err != nil {
		w.t.Fatal(err)
	}
	if err := w.dev.Sync(); err != nil { // or a later discard could overtake it
		w.t.Fatal(err)
	}
	for c := begin / w.chunk; c*w.chunk < begin+length; c++ {
		w.n++
		w.now[c] = w.n
	}
}

// discard discards; the pool lets go of whole chunks only.
func (w *written) discard(begin, length int64) {
	span := [2]uint64{uint64(begin), uint64(length)}
	if err := blkdiscard(w.dev, &span); err != nil {
		w.t.Fatal(err)
	}
	for c := (begin + w.chunk - 1) / w.chunk; (c+1)*w.chunk <= begin+length; c++ {
		delete(w.now, c)
	}
}

// ranges gives the chunks in which two states differ, within a part, as ranges that do not touch.
func (w *written) ranges(base, target map[int64]int64, within volume.Range) (out []volume.Range) {
	all := maps.Clone(base)
	maps.Copy(all, target)
	j := joiner{within: within, emit: func(r volume.Range) error { out = append(out, r); return nil }}
	for _, c := range slices.Sorted(maps.Keys(all)) {
		if base[c] != target[c] {
			_ = j.add(volume.Range{Offset: c * w.chunk, Bytes: w.chunk})
		}
	}
	_ = j.flush()
	return out
}

// What is told of snapshots is what was done, and what the bytes say: outside the ranges that have changed not one byte
// differs, and outside those that were written all are zero.
func TestBlocksAgainstBytes(t *testing.T) {
	const chunk = 64 << 10
	m := newMachine(t)
	vg := m.newGroup(t, 1)
	pool, origin := volume.Ref{VG: vg, LV: "a-pool"}, volume.Ref{VG: vg, LV: "v"}
	w := &written{t: t, chunk: chunk, size: 8 << 20, now: map[int64]int64{}, dice: rand.New(rand.NewPCG(1, 2))}
	shell(t, []string{
		"lvcreate -q -y --type thin-pool -c 64k -L 320m -n " + pool.LV + " " + vg,
		"lvcreate -q -y -kn -V 8m --thinpool " + pool.String() + " -n " + origin.LV,
	})
	l, err := New(&m.runner, Config{Owner: owner, VolumeGroups: []string{vg}})
	if err != nil {
		t.Fatal(err)
	}
	if w.dev, err = os.OpenFile(mapped(origin), os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.dev.Close() }()
	states, contents := []map[int64]int64{{}}, [][]byte{nil} // before the first snapshot
	for i, changes := range []int{20, 6, 25} {
		if i == 2 {
			w.size *= 2
			lvm(t, "lvextend", "-q", "-L", bytesArg(w.size), origin.String())
		}
		w.change(changes)
		snap := volume.Ref{VG: vg, LV: fmt.Sprintf("s%d", i+1)}
		lvm(t, "lvcreate", "-q", "-y", "-kn", "-ay", "-s", "-n", snap.LV, origin.String())
		content, err := os.ReadFile(mapped(snap))
		if err != nil || int64(len(content)) != w.size {
			t.Fatalf("%d bytes of %s, %v", len(content), snap, err)
		}
		states, contents = append(states, maps.Clone(w.now)), append(contents, content)
	}
	if err := l.Reserve(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.change(10) // whatever is done from here on is not seen
	groups, err := l.inventory.current(t.Context(), vg)
	if err != nil {
		t.Fatal(err)
	}
	commands := m.Commands()
	for _, q := range []struct{ base, target int }{{0, 1}, {0, 3}, {1, 2}, {1, 3}, {2, 3}} {
		all := volume.Range{Bytes: int64(len(contents[q.target]))}
		some := volume.Range{Offset: w.dice.Int64N(all.Bytes)}
		some.Bytes = 1 + w.dice.Int64N(all.Bytes-some.Offset)
		within := []volume.Range{all, some}[q.base%2]
		id := func(i int) int64 { return groups.groups[vg].lvs[fmt.Sprintf("s%d", i)].ThinID } // 0: of none
		var got []volume.Range
		asked := volume.BlockQuery{Pool: pool, Base: id(q.base), Target: id(q.target), Within: within}
		if err := l.Blocks(t.Context(), asked, func(r volume.Range) error { got = append(got, r); return nil }); err != nil {
			t.Fatal(err)
		}
		if want := w.ranges(states[q.base], states[q.target], within); !slices.Equal(got, want) {
			t.Errorf("from %d to %d within %v: %v, want %v", q.base, q.target, within, got, want)
		}
		equalOutside(t, contents[q.base], contents[q.target], within, got)
	}
	if n := m.Commands() - commands; n != 0 {
		t.Errorf("%d LVM commands", n)
	}
	if err := l.Release(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

// equalOutside checks that the later content is the earlier one, and zeros behind its end, wherever no range is.
func equalOutside(t *testing.T, earlier, later []byte, within volume.Range, ranges []volume.Range) {
	t.Helper()
	a, b := make([]byte, len(later)), slices.Clone(later)
	copy(a, earlier)
	for _, r := range ranges {
		clear(a[r.Offset:r.End()])
		clear(b[r.Offset:r.End()])
	}
	if !bytes.Equal(a[within.Offset:within.End()], b[within.Offset:within.End()]) {
		t.Errorf("bytes differ outside the ranges %v", ranges)
	}
}

// The kernel keeps one metadata snapshot for a pool, whoever reserved it, also over the end of its device.
func TestReserveOnce(t *testing.T) {
	m := newMachine(t)
	vg := m.newGroup(t, 1)
	pool := volume.Ref{VG: vg, LV: "pool"}
	m.NewPool(t, pool, 64<<20)
	lvm(t, "lvcreate", "-q", "-y", "-kn", "-V", "4m", "--thinpool", pool.String(), "-n", "v") // a pool that is new has no device of its own
	lvm(t, "lvchange", "-an", vg+"/v")
	l, err := New(&m.runner, Config{Owner: owner, VolumeGroups: []string{vg}})
	if err != nil {
		t.Fatal(err)
	}
	held := func(want bool) {
		t.Helper()
		if got, err := l.Reserved(t.Context(), pool); err != nil || got != want {
			t.Fatalf("reserved: %v, %v", got, err)
		}
	}
	held(false)
	sh(t, "dmsetup", "message", volume.DMName(pool)+"-tpool", "0", "reserve_metadata_snap")
	held(true)
	if err := l.Reserve(t.Context(), pool); !isErr(err, volume.ErrBusy) {
		t.Errorf("a second time: %v", err)
	}
	lvm(t, "lvchange", "-an", pool.String())
	if _, err := l.Reserved(t.Context(), pool); !isErr(err, volume.ErrNotFound) {
		t.Errorf("an inactive pool: %v", err)
	}
	lvm(t, "lvchange", "-ay", pool.String())
	held(true)
	for range 2 {
		if err := l.Release(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		held(false)
	}
	if err := l.Reserve(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	held(true)
	if err := l.Blocks(t.Context(), volume.BlockQuery{Pool: pool, Target: 7, Within: everything}, nil); err == nil {
		t.Error("blocks of a volume that is not there")
	}
	if err := l.Release(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

func blkdiscard(f *os.File, span *[2]uint64) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = ioctlSpan(fd, unix.BLKDISCARD, span) })
	if err != nil {
		return err
	}
	return failed
}

func ioctlSpan(fd, request uintptr, span *[2]uint64) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&span[0]))); errno != 0 {
		return errno
	}
	return nil
}
