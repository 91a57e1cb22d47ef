package main

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
)

// sector is the logical block size of the machine's disks, and block the physical one: what is written whole or not at
// all. That is how disks of today are; and one that tore 4 KiB would be too much for ext4, which does not mount when its
// last commit block is torn (jbd2, "journal transaction is corrupt").
const (
	sector = 512
	block  = 4096
)

// errCut is what a request meets that comes after the power was cut. No answer is sent to it.
var errCut = errors.New("the power is cut")

// Rack is the disks of one machine, which lose their power together. A disk has a volatile cache: what was written
// is read back at once, but is on the medium for sure only after a flush that came later.
type Rack struct {
	mu     sync.Mutex
	disks  map[string]*Disk
	random *rand.Rand
	left   int           // writes until the power is cut; 0 does not count
	down   chan struct{} // closed when the power is cut
}

// Disk is one of them. The file holds what the machine reads; cache holds how to get from there to what is lost.
type Disk struct {
	file  *os.File
	size  int64
	cache []write
	// told gets what is written to a disk without a cache. It is called with the rack locked.
	told func(text []byte)
}

// write is a write that no flush has followed yet.
type write struct {
	at       int64
	old, new []byte
}

// Loss is what a cut did.
type Loss struct{ Unflushed, Lost, Torn int }

func newRack(seed uint64) *Rack {
	return &Rack{disks: map[string]*Disk{}, random: rand.New(rand.NewPCG(seed, 1)), down: make(chan struct{})}
}

// add makes a blank disk, a sparse file in the folder. With told it has no cache.
func (r *Rack) add(folder, name string, size int64, told func([]byte)) error {
	f, err := os.Create(folder + "/" + name)
	if err != nil {
		return err
	}
	r.disks[name] = &Disk{file: f, size: size, told: told}
	return f.Truncate(size)
}

func (r *Rack) close() error {
	var errs []error
	for _, d := range r.disks {
		errs = append(errs, d.file.Close())
	}
	return errors.Join(errs...)
}

func (r *Rack) isDown() bool {
	select {
	case <-r.down:
		return true
	default:
		return false
	}
}

func (r *Rack) read(d *Disk, at int64, buf []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isDown() {
		return errCut
	}
	_, err := io.ReadFull(io.NewSectionReader(d.file, at, int64(len(buf))), buf)
	return err
}

func (r *Rack) write(d *Disk, at int64, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isDown() {
		return errCut
	}
	if d.told == nil {
		old := make([]byte, len(data))
		if _, err := io.ReadFull(io.NewSectionReader(d.file, at, int64(len(old))), old); err != nil {
			return err
		}
		d.cache = append(d.cache, write{at, old, bytes.Clone(data)})
	}
	if _, err := d.file.WriteAt(data, at); err != nil {
		return err
	}
	if d.told != nil {
		d.told(data)
		return nil
	}
	if r.left--; r.left == 0 {
		close(r.down)
		return errCut
	}
	return nil
}

// flush makes durable what was written before it.
func (r *Rack) flush(d *Disk) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isDown() {
		return errCut
	}
	d.cache = nil
	return nil
}

// cutAfter cuts the power at the n-th write from now on.
func (r *Rack) cutAfter(n int) { r.left = n }

// cut cuts the power now, if that has not happened.
func (r *Rack) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isDown() {
		close(r.down)
	}
}

// powerOn gives the disks as the cut left them: of what was not flushed any part may be missing. Each cut is of one
// kind: nothing of it has reached the medium, all has, some writes have, or some blocks have.
func (r *Rack) powerOn() (Loss, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l Loss
	var errs []error
	kind, kept := r.random.IntN(4), r.random.Float64()
	for _, d := range r.disks {
		l.Unflushed += len(d.cache)
		errs = append(errs, d.settle(func(parts int) []bool {
			keep := make([]bool, parts)
			some := r.random.Float64() < kept
			n := 0
			for i := range keep {
				switch kind {
				case 1:
					keep[i] = true
				case 2:
					keep[i] = some
				case 3:
					keep[i] = r.random.Float64() < kept
				}
				if keep[i] {
					n++
				}
			}
			switch n {
			case parts:
			case 0:
				l.Lost++
			default:
				l.Torn++
			}
			return keep
		}))
	}
	r.down, r.left = make(chan struct{}), 0
	return l, errors.Join(errs...)
}

// settle takes all of the cache back, the latest first, and then writes what is kept of it in the order it came.
// choose tells for each block of a write whether it is kept.
func (d *Disk) settle(choose func(blocks int) []bool) error {
	for i := len(d.cache) - 1; i >= 0; i-- {
		if _, err := d.file.WriteAt(d.cache[i].old, d.cache[i].at); err != nil {
			return err
		}
	}
	for _, w := range d.cache {
		first, end := w.at/block, w.at+int64(len(w.new))
		for i, keep := range choose(int((end-1)/block - first + 1)) {
			from := max(w.at, (first+int64(i))*block)
			to := min(end, (first+int64(i)+1)*block)
			if !keep {
				continue
			}
			if _, err := d.file.WriteAt(w.new[from-w.at:to-w.at], from); err != nil {
				return err
			}
		}
	}
	d.cache = nil
	return nil
}
