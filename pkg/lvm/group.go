package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// CreateTogether implements lifecycle.LVM: snapshots that show all their origins at one moment.
//
//  1. The origins are activated where they are not, so that they can be held.
//  2. For each thin one an empty thin volume is made, which LVM skips at activation, with the state Cutting.
//  3. A guard is started beside the driver, which resumes them where the driver is killed (guard.go).
//  4. All origins are suspended, one after the other: file systems on them are frozen, who writes waits. When the last one is, that
//     is the moment that all snapshots show.
//  5. Thin ones are cut by two messages to the pool: the number that the empty volume has in the pool is given back, and taken again
//     for a snapshot of the origin. LVM's own metadata is right before and after. "lvcreate -s" cannot do it: of a thin origin that is
//     suspended already, LVM 2.03 does not send the pool its messages, and the pool is out of step with the metadata from then on. Of
//     a thick one that is, it makes the snapshot as of any other, and resumes it.
//  6. Each origin is resumed when its snapshot is cut. That is early for the first of them, and does no harm: those that come after it
//     are still held.
//  7. The state is taken away.
//
// A kill in between leaves origins suspended, which the guard resumes, or Resume at the next start; and snapshots with the state
// Cutting, or not all of the group.
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

// together is steps 2 to 6, when it is the turn of changes of all these groups. It marks the specs of thin snapshots.
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
	guard, err := l.startGuard(ctx)
	if err != nil {
		return nil, err
	}
	defer guard.end()
	h := &hold{dm: l.dm, guard: guard, held: map[string]bool{}}
	defer h.release(ctx)
	for _, s := range specs {
		if err := h.take(ctx, volume.DMName(s.Origin.Ref), dmUUIDOf(l.groupUUID(s.VG), s.Origin.UUID)); err != nil {
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
