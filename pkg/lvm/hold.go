package lvm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// holdBound is how long writers may be held for the snapshots of a group. Then all are released, and the call fails.
const holdBound = 10 * time.Second

// hold is devices that are kept suspended, for a bounded time.
type hold struct {
	dm    deviceMapper
	guard *companion

	mu    sync.Mutex
	held  map[string]bool
	since time.Time // of the first
	timer *time.Timer
}

// take suspends one more device. A file system that is mounted on it is frozen first: all that was written is on the device, and who
// writes now waits (dm_suspend in linux/drivers/md/dm.c). The time begins with the first. It counts as held before: what hangs, or
// panics, is resumed all the same.
func (h *hold) take(ctx context.Context, name, uuid string) error {
	switch s, err := h.dm.status(name); {
	case err != nil:
		return err
	case s.uuid != uuid:
		return fmt.Errorf("the device of that name is another one, %s", s.uuid)
	}
	h.mu.Lock()
	if h.timer == nil {
		h.since = time.Now()
		h.timer = time.AfterFunc(holdBound, func() { h.giveUp(ctx) })
	}
	h.held[name] = true
	h.mu.Unlock()
	if err := h.guard.tell(name, uuid); err != nil {
		return fmt.Errorf("the process that resumes devices where this one is killed: %w", err)
	}
	if err := h.late(); err != nil {
		return err
	}
	return h.dm.suspend(ctx, name, dmSuspendFlag)
}

// late goes by the clock, not by the timer: a process that was stopped may get to the timer later than to the next step, and its guard has
// resumed the devices by then.
func (h *hold) late() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.since) >= holdBound {
		return fmt.Errorf("not done within %v, so nothing is made; who writes to the volumes is held no longer: %w", holdBound, context.DeadlineExceeded)
	}
	return nil
}

// giveUp resumes all, each by itself: what hangs keeps back no other.
func (h *hold) giveUp(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.held {
		go h.letGo(ctx, name)
	}
}

// letGo resumes a device. Where that fails it stays held, and release tries again.
func (h *hold) letGo(ctx context.Context, name string) {
	if err := h.dm.suspend(ctx, name, 0); err == nil {
		h.mu.Lock()
		delete(h.held, name)
		h.mu.Unlock()
	}
}

// release resumes all that is held. What LVM has resumed is resumed to no effect; what cannot be is left to Resume.
func (h *hold) release(ctx context.Context) {
	h.mu.Lock()
	var names []string
	for name := range h.held {
		names = append(names, name)
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		h.letGo(ctx, name)
	}
}

// suspend suspends a device, or with 0 for the flag resumes it.
func (d deviceMapper) suspend(ctx context.Context, name string, flag uint32) error {
	op := "resume"
	if flag != 0 {
		op = "suspend"
	}
	return d.effects.Do(ctx, op, name, func() error {
		_, err := d.ioctl(dmDevSuspend, dmTarget{name: name}, flag, nil)
		return err
	})
}
