package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// holdBound is how long writers may be held for the snapshots of a group. Then all are released, and the call fails.
const holdBound = 10 * time.Second

// CreateTogether implements lifecycle.LVM: snapshots that show all their origins at one moment.
//
//  1. The origins are activated where they are not, so that they can be held.
//  2. For each thin one an empty thin volume is made, which LVM skips at activation, with the state Cutting.
//  3. All origins are suspended, one after the other: file systems on them are frozen, who writes waits. When the last one is, that
//     is the moment that all snapshots show.
//  4. Thin ones are cut by two messages to the pool: the number that the empty volume has in the pool is given back, and taken again
//     for a snapshot of the origin. LVM's own metadata is right before and after. "lvcreate -s" cannot do it: of a thin origin that is
//     suspended already, LVM 2.03 does not send the pool its messages, and the pool is out of step with the metadata from then on. Of
//     a thick one that is, it makes the snapshot as of any other, and resumes it.
//  5. Each origin is resumed when its snapshot is cut. That is early for the first of them, and does no harm: those that come after it
//     are still held.
//  6. The state is taken away.
//
// A kill in between leaves origins suspended, which Resume finds at the next start; and snapshots with the state Cutting, or not all
// of the group.
func (l *LVM) CreateTogether(ctx context.Context, specs []volume.Spec) ([]volume.LV, error) {
	specs = slices.Clone(specs)
	for _, s := range specs {
		if err := l.check(s.Ref, createVGField, createLVField, false); err != nil {
			return nil, err
		}
	}
	for _, s := range specs {
		_, err := l.dm.status(volume.DMName(s.Origin.Ref))
		if errors.Is(err, volume.ErrNotFound) {
			err = l.Activate(ctx, s.Origin.Ref)
		}
		if err != nil {
			return nil, err
		}
	}
	out, err := l.together(ctx, specs)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	for i, lv := range out {
		if !specs[i].Held {
			err = l.durable(ctx, lv.VG)
		} else {
			out[i].Tags.State = ""
			add, remove := lv.Tags.Changes(out[i].Tags)
			err = l.Retag(ctx, lv.Ref, volume.Snapshot, add, remove)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// together is steps 2 to 5, when it is the turn of changes of all these groups. It marks the specs of thin snapshots.
func (l *LVM) together(ctx context.Context, specs []volume.Spec) ([]volume.LV, error) {
	var groups []string
	for _, s := range specs {
		groups = append(groups, s.VG)
	}
	slices.Sort(groups)
	for _, vg := range slices.Compact(groups) { // in one order, whoever waits
		done, err := l.queue(ctx, vg)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	out := make([]volume.LV, len(specs))
	for i := range specs {
		if specs[i].Held = specs[i].Origin.Type == volume.Thin; specs[i].Held {
			var err error
			if out[i], err = l.createNow(ctx, specs[i]); err != nil {
				return nil, err
			}
		}
	}
	ctx = context.WithoutCancel(ctx)
	h := &hold{dm: l.dm, held: map[string]bool{}}
	defer h.release(ctx)
	for _, s := range specs {
		if err := h.take(ctx, volume.DMName(s.Origin.Ref)); err != nil {
			return nil, fmt.Errorf("hold logical volume %s: %w", s.Origin.Ref, err)
		}
	}
	for _, thin := range []bool{true, false} { // the fast ones first
		for i, s := range specs {
			if s.Held != thin {
				continue
			}
			if err := h.late(); err != nil {
				return nil, err
			}
			var err error
			if thin {
				err = l.cut(ctx, s, out[i])
			} else {
				out[i], err = l.createNow(ctx, s)
			}
			if err != nil {
				return nil, fmt.Errorf("snapshot of logical volume %s: %w", s.Origin.Ref, err)
			}
			if thin {
				h.letGo(ctx, volume.DMName(s.Origin.Ref))
			}
		}
	}
	return out, h.late()
}

// cut gives the thin device of a snapshot the content of its origin, which is suspended.
func (l *LVM) cut(ctx context.Context, s volume.Spec, made volume.LV) error {
	origin := s.Origin
	if made.ThinID == 0 || origin.ThinID == 0 || made.Pool != origin.Pool {
		return fmt.Errorf("the numbers of %s and %s in their pool are not known", made.Ref, origin.Ref)
	}
	pool := volume.Ref{VG: made.VG, LV: made.Pool}
	if err := l.tell(ctx, pool, fmt.Sprintf("delete %d", made.ThinID)); err != nil {
		return err
	}
	return l.tell(ctx, pool, fmt.Sprintf("create_snap %d %d", made.ThinID, origin.ThinID))
}

// hold is devices that are kept suspended, for a bounded time.
type hold struct {
	dm deviceMapper

	mu    sync.Mutex
	held  map[string]bool
	timer *time.Timer
	over  bool // the time was over before all was done
}

// take suspends one more device. A file system that is mounted on it is frozen first: all that was written is on the device, and who
// writes now waits (dm_suspend in linux/drivers/md/dm.c). The time begins with the first. It counts as held before: what hangs, or
// panics, is resumed all the same.
func (h *hold) take(ctx context.Context, name string) error {
	h.mu.Lock()
	if h.timer == nil {
		h.timer = time.AfterFunc(holdBound, func() {
			h.mu.Lock()
			h.over = true
			h.mu.Unlock()
			h.release(ctx)
		})
	}
	h.held[name] = true
	h.mu.Unlock()
	if err := h.late(); err != nil {
		return err
	}
	return h.dm.suspend(ctx, name, dmSuspendFlag)
}

func (h *hold) late() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return fmt.Errorf("not done within %v, so nothing is made; who writes to the volumes is held no longer", holdBound)
	}
	return nil
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
