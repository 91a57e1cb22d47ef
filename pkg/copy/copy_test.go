package copy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Whatever the source holds and wherever it goes: the destination ends up as the source, byte for byte.
func TestCopyIsTheSource(t *testing.T) {
	destinations := map[string]func(bytes int64) *memory{
		"thick":                     thick,
		"thin":                      func(n int64) *memory { return thin(n, 64<<10, true) },
		"thin, large chunks":        func(n int64) *memory { return thin(n, 512<<10, true) },
		"thin, not zeroed":          func(n int64) *memory { return thin(n, 64<<10, false) },
		"thin, not zeroed, 256 KiB": func(n int64) *memory { return thin(n, 256<<10, false) },
		"thin, not zeroed, 192 KiB": func(n int64) *memory { return thin(n, 192<<10, false) },
		"thin, not zeroed, chunk above the block": func(n int64) *memory { return thin(n, 2*blockBytes, false) },
	}
	for name, make := range destinations {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(6) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				bytes := 4096 * (1 + rnd.Int64N(2048))
				b := newBench(source(rnd, bytes), make(bytes+4096*rnd.Int64N(100)), nil)
				before := slices.Clone(b.dst.data)
				var done atomic.Int64
				if err := b.Copy(t.Context(), b.from(), b.to(), func(n int64) { done.Add(n) }); err != nil {
					t.Fatal(err)
				}
				b.wantCopied(t, before)
				if done.Load() != bytes {
					t.Errorf("progress tells of %d bytes of %d", done.Load(), bytes)
				}
				if b.dst.synced != 1 || b.dst.closed != 1 || b.src.closed != 1 {
					t.Errorf("synced %d times; closed %d and %d times", b.dst.synced, b.src.closed, b.dst.closed)
				}
			}
		})
	}
}

// Onto a thin volume only chunks are written in which there is something; onto a thick one everything is.
func TestCopyLeavesOutHoles(t *testing.T) {
	const size = 16 << 20
	src := &memory{data: make([]byte, size)}
	src.data[5<<20], src.data[9<<20+100] = 1, 1
	for _, c := range []struct {
		name    string
		dst     *memory
		written int64
	}{
		{"thin", thin(size, 64<<10, true), 2 * grainBytes},
		{"thin, not zeroed", thin(size, 256<<10, false), 2 * 256 << 10},
		{"thin, not zeroed, chunk above the block", thin(size, 4<<20, false), size},
		{"thick", thick(size), size},
	} {
		b := newBench(src, c.dst, nil)
		if err := b.Copy(t.Context(), b.from(), b.to(), nil); err != nil {
			t.Fatal(err)
		}
		if c.dst.written != c.written {
			t.Errorf("%s: %d bytes written, want %d", c.name, c.dst.written, c.written)
		}
	}
}

// Reads and writes overlap, and no more than inFlight blocks are in memory.
func TestCopyIsBounded(t *testing.T) {
	b := newBench(source(rand.New(rand.NewPCG(1, 1)), 16<<20), thick(16<<20), nil)
	full := make(chan struct{})
	var came atomic.Int64
	b.src.meet = func(op string, _ int64) error {
		if op == "read" && came.Add(1) == inFlight {
			close(full)
		}
		if op == "read" {
			<-full // until all have come
		}
		return nil
	}
	if err := b.Copy(t.Context(), b.from(), b.to(), nil); err != nil {
		t.Fatal(err)
	}
	if most := b.src.most.Load(); most != inFlight {
		t.Errorf("%d blocks were read at a time, want %d", most, inFlight)
	}
}

// Each block lies in a huge page of its own.
func TestBuffers(t *testing.T) {
	b, err := newBuffers()
	if err != nil {
		t.Fatal(err)
	}
	defer b.free()
	for n := range inFlight {
		block := b.block(n)
		if at := uintptr(unsafe.Pointer(&block[0])); len(block) != blockBytes || at%hugePage != 0 {
			t.Errorf("block %d is %d bytes at %#x", n, len(block), at)
		}
		for i := range block {
			if block[i] != 0 {
				t.Fatalf("block %d lies on another", n)
			}
			block[i] = 1
		}
	}
}

func TestCopyErrors(t *testing.T) {
	const at = 3 * blockBytes
	fail := func(op string, off int64, err error) func(string, int64) error {
		return func(o string, f int64) error {
			if o == op && f == off {
				return err
			}
			return nil
		}
	}
	for _, c := range []struct {
		name     string
		src, dst func(op string, off int64) error
		want     error
		says     string
	}{
		{"source is gone", fail("open", 0, unix.ENXIO), nil, unix.ENXIO, "open /dev/dm-1"},
		{"destination is in use", nil, fail("open", 0, unix.EBUSY), volume.ErrBusy, "open /dev/dm-2"},
		{"read", fail("read", at, unix.EIO), nil, unix.EIO, "read at byte 6291456"},
		{"end of the source", fail("read", at, io.EOF), nil, io.EOF, "read at byte 6291456"},
		{"write", nil, fail("write", at, unix.EIO), unix.EIO, "write at byte 6291456"},
		{"full pool", nil, fail("write", at, unix.ENOSPC), volume.ErrNoSpace, "write at byte 6291456"},
		{"full pool at zeros", nil, fail("write", 7*blockBytes, unix.ENOSPC), volume.ErrNoSpace, "write at byte 14680064"},
		{"flush", nil, fail("sync", 0, unix.EIO), unix.EIO, "flush /dev/dm-2"},
		{"full pool at the flush", nil, fail("sync", 0, unix.ENOSPC), volume.ErrNoSpace, "flush /dev/dm-2"},
		{"close", nil, fail("close", 0, unix.EIO), unix.EIO, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(thick(8*blockBytes), thick(8*blockBytes), nil)
			clear(b.src.data[7*blockBytes:])
			b.src.meet, b.dst.meet = c.src, c.dst
			err := b.Copy(t.Context(), b.from(), b.to(), nil)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
			}
			if b.src.busy.Load() != 0 || b.dst.busy.Load() != 0 {
				t.Error("something goes on after the end")
			}
		})
	}
}

func TestCopyOntoASmallerDeviceWritesNothing(t *testing.T) {
	b := newBench(thick(8<<20), thick(4<<20), nil)
	if err := b.Copy(t.Context(), b.from(), b.to(), nil); err == nil || b.dst.written != 0 {
		t.Errorf("got %v, %d bytes written", err, b.dst.written)
	}
}

func TestCopyThatCannotAskWritesNothing(t *testing.T) {
	b := newBench(thick(8<<20), thick(8<<20), nil)
	b.cfg.Unwritten = func(volume.Device) (int64, error) { return 0, unix.EIO }
	if err := b.Copy(t.Context(), b.from(), b.to(), nil); !errors.Is(err, unix.EIO) || b.dst.written != 0 {
		t.Errorf("got %v, %d bytes written", err, b.dst.written)
	}
}

// A copy that is cancelled begins no further block, and says why it ended.
func TestCopyIsCancelled(t *testing.T) {
	b := newBench(thick(64<<20), thick(64<<20), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("the volume was deleted")
	var blocks atomic.Int64
	err := b.Copy(ctx, b.from(), b.to(), func(int64) {
		if blocks.Add(1) == 10 {
			cancel(because)
		}
	})
	if !errors.Is(err, because) {
		t.Errorf("got %v", err)
	}
	if n := blocks.Load(); n > 10+inFlight {
		t.Errorf("%d blocks were copied", n)
	}
	if b.dst.synced != 0 {
		t.Error("half a copy was flushed as if it were done")
	}
}

// A fault of the driver's own ends the copy, and not the driver.
func TestCopySurvivesAPanic(t *testing.T) {
	b := newBench(thick(8*blockBytes), thick(8*blockBytes), nil)
	b.src.meet = func(op string, off int64) error {
		if op == "read" && off == 4*blockBytes {
			panic("oops")
		}
		return nil
	}
	if err := b.Copy(t.Context(), b.from(), b.to(), nil); err == nil || !strings.Contains(err.Error(), "oops") {
		t.Errorf("got %v", err)
	}
}

// Whoever stops the driver between two effects can stop it in the middle of a copy.
func TestCopyEffects(t *testing.T) {
	const size = 5 * blockBytes
	var seen []string
	var written []int64
	b := newBench(thick(size), thick(size), nil)
	b.cfg.Effects = func(_ context.Context, e effect.Effect, do func() error) error {
		seen = append(seen, e.Op+" "+e.Detail)
		err := do()
		written = append(written, b.dst.written)
		return err
	}
	if err := b.Copy(t.Context(), b.from(), b.to(), nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"copy /dev/dm-1 to /dev/dm-2, bytes 0 to 4194304", "copy /dev/dm-1 to /dev/dm-2, bytes 4194304 to 10485760", "fsync /dev/dm-2"}
	if !slices.Equal(seen, want) || !slices.Equal(written, []int64{2 * blockBytes, size, size}) {
		t.Errorf("effects %q with %d bytes written", seen, written)
	}

	b.cfg.Effects = func(_ context.Context, _ effect.Effect, _ func() error) error { return unix.EIO }
	b.dst.written = 0
	if err := b.Copy(t.Context(), b.from(), b.to(), nil); !errors.Is(err, unix.EIO) || b.dst.written != 0 {
		t.Errorf("refused by the seam: %v, %d bytes written", err, b.dst.written)
	}
}

// pieces against a look at each byte.
func FuzzPieces(f *testing.F) {
	f.Add([]byte{}, uint8(1))
	f.Add([]byte{0, 0, 1, 0, 0}, uint8(2))
	f.Add(bytes.Repeat([]byte{0}, 20), uint8(7))
	f.Add([]byte("\x00\x00\x00x\x00\x00\x00\x00\x00\x00\x00y"), uint8(4))
	f.Fuzz(func(t *testing.T, block []byte, size uint8) {
		grain, at := int(size)+1, 0
		var last piece
		for p := range pieces(block, grain) {
			switch {
			case p.off != at || p.end <= p.off || p.off%grain != 0 || p.end%grain != 0 && p.end != len(block):
				t.Fatalf("piece %v after byte %d", p, at)
			case at > 0 && last.zero == p.zero:
				t.Fatalf("pieces %v and %v should be one", last, p)
			}
			for off := p.off; off < p.end; off += grain {
				if zero := strings.Trim(string(block[off:min(off+grain, p.end)]), "\x00") == ""; zero != p.zero {
					t.Fatalf("piece %v, at %d zero is %t", p, off, zero)
				}
			}
			at, last = p.end, p
		}
		if at != len(block) {
			t.Fatalf("the last piece ends at %d of %d", at, len(block))
		}
	})
}

func TestPiecesCanBeLeft(t *testing.T) {
	n := 0
	for range pieces([]byte("\x00x\x00x"), 1) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Error(n)
	}
}

func BenchmarkIsZero(b *testing.B) {
	p := make([]byte, grainBytes)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if !isZero(p) {
			b.Fatal(fmt.Sprint(p[0]))
		}
	}
}
