package lifecycle

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestRanges(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 1000, 200_000} {
		opened := 0
		l := &ranges{open: func() (Scratch, error) { opened++; return os.CreateTemp(t.TempDir(), "") }}
		var want []volume.Range
		var end int64
		for range n {
			r := volume.Range{Offset: end + dice.Int64N(1<<30), Bytes: 1 + dice.Int64N(1<<30)}
			end = r.End()
			want = append(want, r)
			if err := l.add(r); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			var got []volume.Range
			if err := l.each(func(r volume.Range) error { got = append(got, r); return nil }); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%d ranges: read back %d, %v", n, len(got), err)
			}
		}
		if want := min(n/200_000, 1); opened != want {
			t.Errorf("%d ranges: opened %d scratch files", n, opened)
		}
		l.close()
	}
}

// discarding is a scratch file that is somewhere else.
type discarding struct{ io.Writer }

func (discarding) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }
func (discarding) Close() error                      { return nil }

// The memory does not grow with the list.
func TestRangesAreNotInMemory(t *testing.T) {
	l := &ranges{open: func() (Scratch, error) { return discarding{io.Discard}, nil }}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range int64(2_000_000) {
		if err := l.add(volume.Range{Offset: i * 4096 * 2, Bytes: 4096}); err != nil {
			t.Fatal(err)
		}
	}
	if after := heap(); after > before+4*rangesInMemory {
		t.Errorf("%d bytes for %d ranges", after-before, 2_000_000)
	}
	if err := l.each(func(volume.Range) error { return nil }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a scratch file that cannot be read: %v", err)
	}
}

func TestRangesThatFail(t *testing.T) {
	l := &ranges{}
	for _, r := range []volume.Range{{Offset: 10, Bytes: 0}, {Offset: -1, Bytes: 1}} {
		if err := l.add(r); err == nil {
			t.Errorf("%v was taken", r)
		}
	}
	full := errors.New("no space left on device")
	for name, open := range map[string]func() (Scratch, error){
		"no place":   func() (Scratch, error) { return nil, full },
		"full place": func() (Scratch, error) { return discarding{failing{full}}, nil },
	} {
		l := &ranges{open: open}
		var err error
		for i := int64(0); err == nil && i < 1_000_000; i++ {
			err = l.add(volume.Range{Offset: i * 8192, Bytes: 4096})
		}
		if !errors.Is(err, full) {
			t.Errorf("%s: %v", name, err)
		}
		l.close()
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
