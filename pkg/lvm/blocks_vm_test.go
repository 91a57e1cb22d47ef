//go:build vm

package lvm

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
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
	m := newMachine(t)
	for _, c := range []struct {
		chunk, size int64
		grows       bool
	}{{64 << 10, 8 << 20, true}, {256 << 10, 32 << 20, false}} {
		t.Run(strconv.FormatInt(c.chunk>>10, 10)+"k", func(t *testing.T) { blocksAgainstBytes(t, m, c.chunk, c.size, c.grows) })
	}
}

func blocksAgainstBytes(t *testing.T, m *machine, chunk, size int64, grows bool) {
	vg := m.newGroup(t, 1)
	pool := volume.Ref{VG: vg, LV: "a-pool"}
	lvm(t, "lvcreate", "-q", "-y", "--type", "thin-pool", "-c", bytesArg(chunk), "-L", "320m", "-n", pool.LV, vg)
	lvm(t, "lvcreate", "-q", "-y", "-kn", "-V", bytesArg(size), "--thinpool", pool.String(), "-n", "v")
	l, err := New(&m.runner, Config{Owner: owner, VolumeGroups: []string{vg}})
	if err != nil {
		t.Fatal(err)
	}
	w := &written{t: t, chunk: chunk, size: size, now: map[int64]int64{}, dice: rand.New(rand.NewPCG(1, uint64(chunk)))}
	open := func() {
		if w.dev, err = os.OpenFile(mapped(volume.Ref{VG: vg, LV: "v"}), os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
	}
	open()
	defer func() { _ = w.dev.Close() }()
	states := []map[int64]int64{{}}
	contents := [][]byte{make([]byte, size)}
	sizes := []int64{size}
	for i := range 4 {
		if i == 2 && grows {
			lvm(t, "lvextend", "-q", "-L", bytesArg(2*size), vg+"/v")
			w.size = 2 * size
		}
		w.change([]int{20, 6, 0, 30}[i])
		snap := volume.Ref{VG: vg, LV: fmt.Sprintf("s%d", i)}
		lvm(t, "lvcreate", "-q", "-y", "-kn", "-s", "-n", snap.LV, vg+"/v")
		lvm(t, "lvchange", "-ay", snap.String())
		content, err := os.ReadFile(mapped(snap))
		if err != nil {
			t.Fatal(err)
		}
		lvm(t, "lvchange", "-an", snap.String())
		states, contents, sizes = append(states, maps.Clone(w.now)), append(contents, content), append(sizes, w.size)
	}
	commands := m.Commands()
	if err := l.Reserve(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.change(10) // whatever is done from here on is not seen
	groups, err := l.inventory.current(t.Context(), vg)
	if err != nil {
		t.Fatal(err)
	}
	id := func(i int) int64 { return groups.groups[vg].lvs[fmt.Sprintf("s%d", i-1)].ThinID } // 0: of none
	for base := range states {
		for target := 1; target < len(states); target++ {
			if target == base {
				continue
			}
			for _, within := range []volume.Range{{Bytes: sizes[target]}, {Offset: w.dice.Int64N(sizes[target]), Bytes: 1 + w.dice.Int64N(sizes[target])}} {
				var got []volume.Range
				q := volume.BlockQuery{Pool: pool, Base: id(base), Target: id(target), Within: within}
				if err := l.Blocks(t.Context(), q, func(r volume.Range) error { got = append(got, r); return nil }); err != nil {
					t.Fatal(err)
				}
				if want := w.ranges(states[base], states[target], within); !slices.Equal(got, want) {
					t.Errorf("from %d to %d within %v: %v, want %v", base, target, within, got, want)
				}
				equalOutside(t, contents[base], contents[target], within, got)
			}
		}
	}
	if err := l.Release(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if n := m.Commands() - commands; n > 1 { // the first report
		t.Errorf("%d LVM commands", n)
	}
}

// equalOutside checks that two contents are the same wherever no range is.
func equalOutside(t *testing.T, a, b []byte, within volume.Range, ranges []volume.Range) {
	t.Helper()
	a, b = append(slices.Clone(a), make([]byte, max(0, len(b)-len(a)))...), slices.Clone(b)
	end := min(within.End(), int64(len(b)))
	for _, r := range ranges {
		clear(a[r.Offset:r.End()])
		clear(b[r.Offset:r.End()])
	}
	if !bytes.Equal(a[within.Offset:end], b[within.Offset:end]) {
		t.Errorf("bytes differ outside the ranges %v", ranges)
	}
}

// The kernel keeps one metadata snapshot for a pool, whoever reserved it, also over the end of its device.
func TestReserveOnce(t *testing.T) {
	m := newMachine(t)
	vg := m.newGroup(t, 1)
	pool := volume.Ref{VG: vg, LV: "pool"}
	m.NewPool(t, pool, 64<<20)
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
