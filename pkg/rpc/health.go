package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// probeBound is how long a check may take.
const probeBound = 5 * time.Second

var errSlowCheck = errors.New("the check of LVM, the volume groups and the state folder does not end; a disk or another LVM command may hang")

// health runs a check that may hang, one at a time, for callers who may not.
type health struct {
	check func(context.Context) error
	bound time.Duration

	mu      sync.Mutex
	running *attempt // nil: none
	told    string   // the reason that was logged last, "" for fit
}

// attempt is one run of the check. err may be read when done is closed.
type attempt struct {
	done chan struct{}
	due  time.Time
	err  error
}

// ask gives the result of the check that runs, or of a new one. If the check does not end within its bound, or in time
// for the caller, that is an error too; the check then goes on by itself, and until it has ended everybody gets this
// answer at once.
func (h *health) ask(ctx context.Context) error {
	a := h.join(ctx)
	wait := time.Until(a.due)
	if d, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(d)*3/4) // the answer must arrive before the deadline, on a busy node too
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	err := errSlowCheck
	select {
	case <-a.done:
		err = a.err
	case <-late.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	h.tell(ctx, err)
	return err
}

// join gives the attempt that runs, or starts one.
func (h *health) join(ctx context.Context) *attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running != nil {
		return h.running
	}
	a := &attempt{done: make(chan struct{}), due: time.Now().Add(h.bound)}
	h.running = a
	work, cancel := context.WithDeadline(context.WithoutCancel(ctx), a.due)
	go func() {
		defer cancel()
		a.err = safely(work, func() error { return h.check(work) })
		h.mu.Lock()
		h.running = nil
		h.mu.Unlock()
		close(a.done)
	}()
	return a
}

// tell logs when the driver becomes unfit, when the reason changes, and when it is fit again; not each time it is asked.
func (h *health) tell(ctx context.Context, err error) {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case reason == h.told:
	case reason == "":
		klog.FromContext(ctx).Info("driver is ready again")
	default:
		klog.FromContext(ctx).Info("driver is not ready", "reason", reason)
	}
	h.told = reason
}
