package copy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// memory is a device in memory. It refuses what O_DIRECT would: offsets and lengths that are no whole sectors.
type memory struct {
	data []byte
	// unit and chunk make it thin: a write into a chunk that has none of its own yet shows old bytes in the rest of it,
	// unless unit says that the pool zeroes.
	unit, chunk int64
	meet        func(op string, off int64) error // before each access; nil: nothing

	mu      sync.Mutex
	mapped  map[int64]bool // by chunk
	written int64
	closed  int
	synced  int
	busy    atomic.Int64
	most    atomic.Int64
}

const sector = 512

func (m *memory) access(op string, off, n int64) error {
	now := m.busy.Add(1)
	defer m.busy.Add(-1)
	for {
		most := m.most.Load()
		if now <= most || m.most.CompareAndSwap(most, now) {
			break
		}
	}
	switch {
	case off%sector != 0 || n%sector != 0:
		return fmt.Errorf("%s of %d bytes at %d is not aligned", op, n, off)
	case off+n > int64(len(m.data)):
		return io.ErrUnexpectedEOF
	case m.meet != nil:
		return m.meet(op, off)
	}
	return nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if err := m.access("read", off, int64(len(p))); err != nil {
		return 0, err
	}
	return copy(p, m.data[off:]), nil
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if err := m.access("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.provision(off, int64(len(p)))
	m.written += int64(len(p))
	return copy(m.data[off:], p), nil
}

// provision gives the chunks of a range extents of their own.
func (m *memory) provision(off, n int64) {
	for c := off / max(1, m.chunk); m.chunk > 0 && c*m.chunk < off+n; c++ {
		if !m.mapped[c] && m.unit >= m.chunk {
			rest := m.data[c*m.chunk : min((c+1)*m.chunk, int64(len(m.data)))]
			fill(rest)
		}
		m.mapped[c] = true
	}
}

func (m *memory) Sync() error {
	m.synced++
	return m.access("sync", 0, 0)
}

func (m *memory) Close() error {
	m.closed++
	return m.access("close", 0, 0)
}

// fill writes what a former volume left.
func fill(p []byte) {
	for len(p) > 0 {
		p = p[copy(p, former):]
	}
}

var former = bytes.Repeat([]byte{0xa5}, 1<<20)

func thick(bytes int64) *memory {
	m := &memory{data: make([]byte, bytes)}
	fill(m.data)
	return m
}

func thin(bytes, chunk int64, zeroes bool) *memory {
	unit := chunk
	if zeroes {
		unit = sector
	}
	return &memory{data: make([]byte, bytes), unit: unit, chunk: chunk, mapped: map[int64]bool{}}
}

// source gives a device with runs of data and of zeros, of any length in bytes.
func source(rnd *rand.Rand, bytes int64) *memory {
	m := &memory{data: make([]byte, bytes)}
	for at := 0; at < len(m.data); {
		n := min(1+rnd.IntN(1<<(1+rnd.IntN(22))), len(m.data)-at)
		if rnd.IntN(2) == 0 {
			fill(m.data[at : at+n])
			m.data[at+rnd.IntN(n)] = 0
		}
		at += n
	}
	return m
}

// bench is a Copier between two devices in memory.
type bench struct {
	*Copier
	src, dst *memory
}

func newBench(src, dst *memory, effects effect.Seam) *bench {
	b := &bench{src: src, dst: dst}
	b.Copier = New(Config{Effects: effects, Unwritten: func(volume.Device) (int64, error) { return dst.unit, nil }})
	b.open = func(d volume.Device, write bool) (device, error) {
		m := map[uint32]*memory{1: src, 2: dst}[d.Minor]
		if write != (m == dst) {
			return nil, fmt.Errorf("%s is opened to write: %t", d, write)
		}
		if err := m.access("open", 0, 0); err != nil {
			return nil, err
		}
		return m, nil
	}
	return b
}

func (b *bench) from() volume.Device {
	return volume.Device{Minor: 1, Path: "/dev/dm-1", SizeBytes: int64(len(b.src.data))}
}

func (b *bench) to() volume.Device {
	return volume.Device{Minor: 2, Path: "/dev/dm-2", SizeBytes: int64(len(b.dst.data))}
}

// wantCopied checks that the destination begins with the source, and that the rest is as it was; in a pool that does not zero,
// what is in the same chunk as the last byte of the source is not.
func (b *bench) wantCopied(t *testing.T, before []byte) {
	t.Helper()
	n := len(b.src.data)
	if !bytes.Equal(b.dst.data[:n], b.src.data) {
		for i := range n {
			if b.dst.data[i] != b.src.data[i] {
				t.Fatalf("byte %d is %#x, in the source %#x", i, b.dst.data[i], b.src.data[i])
			}
		}
	}
	if unit := int(b.dst.unit); unit > 0 {
		n = min((n+unit-1)/unit*unit, len(before))
	}
	if !bytes.Equal(b.dst.data[n:], before[n:]) {
		t.Fatal("what lies beyond the source was changed")
	}
}
