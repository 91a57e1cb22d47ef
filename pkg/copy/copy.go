// Package copy copies the content of one block device onto another, at the speed of the disks and in little memory.
//
// Source and destination are read and written past the page cache (O_DIRECT), a block at a time, by a few workers, so
// that reads and writes overlap: while one block is read another is written. Runs of zeros are not written where the destination provably reads as zero there, and so a copy onto a
// thin volume stays thin; elsewhere they are written, for a new volume on a disk's extents holds what was there before.
//
// A copy that was cut off has written some blocks and not others, and nothing tells which: whoever finds one begins anew.
package copy

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// A copy has inFlight buffers of blockBytes each, which is 8 MiB, and no more memory, whatever the size of the device. More of them, or
// larger ones, gained nothing that could be measured.
const (
	blockBytes = hugePage
	inFlight   = 4
)

// grainBytes is the shortest run of zeros that is left out: the smallest chunk of a thin pool (lvmthin(7), "chunk size").
const grainBytes = 64 << 10

// Config is what a Copier is made of.
type Config struct {
	// Effects is passed by each half of a copy, and by the flush at its end.
	Effects effect.Seam
	// Unwritten tells what a device reads as where it was never written. unit is 0: it may read as anything. Else the whole device
	// was never written and reads as zero, and each unit of it (at an offset that is a multiple of unit) goes on to do so until it is written
	// itself, whatever is written beside it.
	Unwritten func(d volume.Device) (unit int64, err error)
	// BytesPerSecond bounds what all copies read in all; 0 is no bound.
	BytesPerSecond int64
}

// Copier copies devices. It is safe for concurrent use.
type Copier struct {
	cfg  Config
	rate rate
	open func(d volume.Device, write bool) (device, error) // openBlock; another in tests without block devices
}

// New gives a Copier.
func New(c Config) *Copier {
	return &Copier{cfg: c, rate: rate{bytesPerSecond: c.BytesPerSecond}, open: openBlock}
}

// device is a block device that is open. Offsets and lengths are multiples of its logical block size, and so are the addresses of
// buffers.
type device interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// Sync returns when what was written would outlive a power cut.
	Sync() error
	Close() error
}

// Copy makes the destination hold what the source holds, from its first byte to the last one of the source. What lies beyond on a larger
// destination is not touched. The destination must not be open anywhere, and nobody may write to the source meanwhile. nil: it is
// done, and would outlive a power cut. progress, if not nil, is called with the number of bytes of each block that is done, from several
// goroutines.
//
// ErrNoSpace: the destination is thin and its pool is full. ErrBusy: the destination is in use. The error of ctx, where it ended: that is looked at
// between blocks. After any error, and after a kill, the destination holds no use.
func (c *Copier) Copy(ctx context.Context, from, to volume.Device, progress func(bytes int64)) (err error) {
	if from.SizeBytes > to.SizeBytes {
		return fmt.Errorf("copy %s to %s: the destination is smaller, %d bytes, not %d", from, to, to.SizeBytes, from.SizeBytes)
	}
	if progress == nil {
		progress = func(int64) {}
	}
	src, err := c.open(from, false)
	if err != nil {
		return fmt.Errorf("open %s to copy it: %w", from, err)
	}
	defer src.Close() //nolint:errcheck // nothing was written
	dst, err := c.open(to, true)
	if err != nil {
		return fmt.Errorf("open %s to copy onto it: %w", to, class(err))
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	unit, err := c.cfg.Unwritten(to)
	if err != nil {
		return fmt.Errorf("ask what %s reads as: %w", to, err)
	}
	j := &job{Copier: c, from: from, to: to, src: src, dst: dst, progress: progress}
	j.grain = holes(unit)
	memory, err := newBuffers()
	if err != nil {
		return fmt.Errorf("memory to copy %s: %w", from, err)
	}
	defer memory.free()
	j.buffers = memory
	// Two halves, so that an interruption between effects is one in the middle of the copy.
	middle := from.SizeBytes / 2 / blockBytes * blockBytes
	for _, half := range [][2]int64{{0, middle}, {middle, from.SizeBytes}} {
		what := fmt.Sprintf("%s to %s, bytes %d to %d", from.Path, to.Path, half[0], half[1])
		if err := c.cfg.Effects.Do(ctx, "copy", what, func() error { return j.run(ctx, half[0], half[1]) }); err != nil {
			return err
		}
	}
	if err := c.cfg.Effects.Do(ctx, "fsync", to.Path, dst.Sync); err != nil {
		return fmt.Errorf("flush %s: %w", to, class(err))
	}
	return nil
}

// job is one copy.
type job struct {
	*Copier
	from, to volume.Device
	src, dst device
	grain    int // as holes gives it
	buffers  *buffers
	progress func(bytes int64)
}

// run copies the bytes from begin, a multiple of blockBytes, to end.
func (j *job) run(ctx context.Context, begin, end int64) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next atomic.Int64
	next.Store(begin)
	var workers sync.WaitGroup
	for n := range min(inFlight, (end-begin+blockBytes-1)/blockBytes) {
		workers.Go(func() {
			if err := j.work(ctx, j.buffers.block(int(n)), &next, end); err != nil {
				stop(err)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// work copies one block after the other through the buffer, each being whichever nobody has begun.
func (j *job) work(ctx context.Context, buffer []byte, next *atomic.Int64, end int64) (err error) {
	defer func() { // in a goroutine of its own a panic would end the driver
		if p := recover(); p != nil {
			err = fmt.Errorf("panic while copying %s to %s: %v\n%s", j.from, j.to, p, debug.Stack())
		}
	}()
	for {
		at := next.Add(blockBytes) - blockBytes
		if at >= end {
			return nil
		}
		block := buffer[:min(blockBytes, end-at)]
		if err := j.rate.wait(ctx, int64(len(block))); err != nil {
			return err
		}
		if err := j.block(block, at); err != nil {
			return err
		}
		j.progress(int64(len(block)))
	}
}

// block copies one block.
func (j *job) block(block []byte, at int64) error {
	if _, err := j.src.ReadAt(block, at); err != nil {
		return fmt.Errorf("copying %s to %s: read at byte %d: %w", j.from, j.to, at, err)
	}
	if j.grain == 0 {
		return j.write(block, at)
	}
	for p := range pieces(block, j.grain) {
		if p.zero {
			continue
		}
		if err := j.write(block[p.off:p.end], at+int64(p.off)); err != nil {
			return err
		}
	}
	return nil
}

// write writes what a block holds, zeros too. To have the disk write those by itself (fallocate(2), FALLOC_FL_ZERO_RANGE) is faster on some
// disks and slower on others, block by block.
func (j *job) write(data []byte, at int64) error {
	if _, err := j.dst.WriteAt(data, at); err != nil {
		return fmt.Errorf("copying %s to %s: write at byte %d: %w", j.from, j.to, at, class(err))
	}
	return nil
}

// class tells what an errno of the destination means.
func class(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w in its thin pool: %w", volume.ErrNoSpace, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", volume.ErrBusy, err)
	default:
		return err
	}
}
