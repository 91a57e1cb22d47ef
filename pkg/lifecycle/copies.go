package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Copier copies what is on devices. Implemented by pkg/copy, and by pkg/fake for tests.
type Copier interface {
	// Copy makes the destination hold what the source holds, from its first byte to the last one of the source; on a larger one the rest is
	// not touched. nil: it is done, and would outlive a power cut. After an error, or a kill, the destination is of no use. progress is
	// called with the number of bytes of each part that is done, from several goroutines. ErrNoSpace: the destination's thin pool is
	// full. ErrBusy: the destination is open. Where ctx has ended, its cause (context.Cause).
	Copy(ctx context.Context, from, to volume.Device, progress func(bytes int64)) error
}

// Copy is a copy under way.
type Copy struct {
	From, To volume.Ref
	Done, Of int64 // bytes; both are 0 while it waits for its turn
	Since    time.Time
}

// copiesPerGroup is how many copies onto a volume group run at a time; others wait for their turn. That bounds memory, and more at
// a time would end no sooner. By group, so that a disk that hangs stops the copies onto its own group only.
const copiesPerGroup = 4

// copies are the copies under way.
type copies struct {
	mu      sync.Mutex
	stopped bool
	running map[*running]bool
	turns   map[string]chan struct{} // by volume group: full while as many run as may
}

// running is one copy.
type running struct {
	Copy
	done, of atomic.Int64
	cancel   context.CancelCauseFunc
}

var (
	errDeleted  = fmt.Errorf("%w: it is given up, because the volume is to be deleted", volume.ErrPending)
	errStopping = fmt.Errorf("%w: the driver is being stopped; it is begun anew when it is asked for again", volume.ErrPending)
)

// copyOnto copies the content of a logical volume onto a new one, with no regard to the deadline of ctx: a copy takes as long as
// it takes. CancelCopy and StopCopies end it, and then it is an ErrPending. The caller holds the lock of the new one.
func (l *Lifecycle) copyOnto(ctx context.Context, from, to volume.Ref) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	r := &running{Copy: Copy{From: from, To: to, Since: time.Now()}, cancel: cancel}
	turn, err := l.copies.begin(r)
	if err != nil {
		return err
	}
	defer l.copies.end(r)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
	}
	if err := l.copies.givenUp(ctx); err != nil {
		return fmt.Errorf("copy logical volume %s to %s: %w", from, to, err)
	}
	src, err := l.activeDevice(ctx, from)
	if err != nil {
		return err
	}
	dst, err := l.activeDevice(ctx, to)
	if err != nil {
		return err
	}
	r.of.Store(src.SizeBytes)
	return l.logged(r, func(progress func(int64)) error { return l.Copier.Copy(ctx, src, dst, progress) })
}

// logged tells of the begin of a copy, of each tenth of it, and of its end.
func (l *Lifecycle) logged(r *running, do func(progress func(int64)) error) error {
	start, of := time.Now(), r.of.Load()
	perSecond := func(bytes int64) string {
		return fmt.Sprintf("%.0f MiB/s", float64(bytes)/(1<<20)/max(time.Since(start).Seconds(), 1e-3))
	}
	l.Log("copying a volume", "from", r.From.String(), "to", r.To.String(), "bytes", of)
	err := do(func(bytes int64) {
		done := r.done.Add(bytes)
		if tenth := done * 10 / of; tenth > (done-bytes)*10/of && tenth < 10 {
			l.Log("copying a volume", "to", r.To.String(), "done", fmt.Sprintf("%d %%", tenth*10), "rate", perSecond(done))
		}
	})
	done := r.done.Load()
	if err != nil {
		l.Log("a copy has failed", "to", r.To.String(), "bytes", done, "of", of, "err", err)
		return fmt.Errorf("copy logical volume %s to %s: %w", r.From, r.To, err)
	}
	l.Log("copied a volume", "from", r.From.String(), "to", r.To.String(), "bytes", done, "after", time.Since(start).Round(time.Millisecond), "rate", perSecond(done))
	return nil
}

// begin takes note of a copy, and gives what it must fill for its turn.
func (c *copies) begin(r *running) (turn chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fmt.Errorf("copy logical volume %s to %s: %w", r.From, r.To, errStopping)
	}
	if c.running == nil {
		c.running, c.turns = map[*running]bool{}, map[string]chan struct{}{}
	}
	if c.turns[r.To.VG] == nil {
		c.turns[r.To.VG] = make(chan struct{}, copiesPerGroup)
	}
	c.running[r] = true
	return c.turns[r.To.VG], nil
}

// givenUp gives why a copy is to be given up; nil: it is not. A stop that is at it is waited for: it ends all copies at one moment, and the turn
// of one that it has ended is nobody's.
func (c *copies) givenUp(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return context.Cause(ctx)
}

func (c *copies) end(r *running) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, r)
}

// cancel ends copies between two of their blocks, and reports whether there was one.
func (c *copies) cancel(cause error, which func(Copy) bool) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.running {
		if which(r.Copy) {
			r.cancel(cause)
			any = true
		}
	}
	return any
}

// StopCopies ends all copies, and lets none begin any more. The calls that wait for them are answered then, as a stop waits for them.
func (l *Lifecycle) StopCopies() {
	l.copies.mu.Lock()
	l.copies.stopped = true
	l.copies.mu.Unlock()
	l.copies.cancel(errStopping, func(Copy) bool { return true })
}

// CancelCopy ends a copy onto the volume, and reports whether there is one. It does not wait for its end. A DeleteVolume does this: it finds
// the lock of the volume taken by the CreateVolume that copies. That lock is one by name (volume.LockKey); a volume of the same name in
// another volume group, or on another node, is another one.
func (l *Lifecycle) CancelCopy(volumeID string) bool {
	return l.copies.cancel(errDeleted, func(c Copy) bool { return l.id(c.To) == volumeID })
}

// Copies gives the copies under way, the oldest first.
func (l *Lifecycle) Copies() []Copy {
	l.copies.mu.Lock()
	defer l.copies.mu.Unlock()
	out := make([]Copy, 0, len(l.copies.running))
	for r := range l.copies.running {
		c := r.Copy
		c.Done, c.Of = r.done.Load(), r.of.Load()
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Copy) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.To.String(), b.To.String()))
	})
	return out
}
