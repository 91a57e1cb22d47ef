package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Create makes the logical volume of a persistent volume, or finds the one that an equal earlier call made.
//
//  1. An earlier create of this name that was cut off left something that may hold old signatures or be half made, and
//     that nobody was given: it is removed.
//  2. A whole volume of this name is the answer if it is what is asked for; else ErrExists.
//  3. The intent is journalled, the logical volume made, filled if its content is to be copied from a source, the intent forgotten.
//
// An error that is final to the CO (anything but ErrPending and ErrBusy) leaves nothing. A kill in the middle leaves a record
// with intent Create, and the next call, or after a grace time the driver by itself, removes what it names.
func (l *Lifecycle) Create(ctx context.Context, s volume.Spec) (volume.LV, error) {
	return l.create(ctx, s, l.fromSource)
}

// create is Create for each kind. complete gives the spec what it needs and only the volume's surroundings know; it is asked
// where there is no logical volume of the name yet.
func (l *Lifecycle) create(ctx context.Context, s volume.Spec, complete func(context.Context, volume.Spec) (volume.Spec, error)) (volume.LV, error) {
	id := l.id(s.Ref)
	defer l.settle(id)
	rec, ok, err := l.Journal.Get(id)
	if err != nil {
		return volume.LV{}, err
	}
	if ok && rec.Intent == journal.Create { // 1
		if err := l.undoCreate(ctx, rec); err != nil {
			return volume.LV{}, fmt.Errorf("%w: an earlier create of logical volume %s was cut off, and what it left could not be removed: %v",
				volume.ErrPending, s.Ref, err) //nolint:errorlint // its class is not the answer
		}
	}
	lv, err := l.find(ctx, s) // 2
	switch {
	case err == nil:
		return lv, errors.Join(l.sameVolume(s, lv), handOut(lv, l.Journal.Sync(ctx)))
	case errors.Is(err, volume.ErrPrecondition):
		return volume.LV{}, fmt.Errorf("%w: %v; rename it, or use another name", volume.ErrExists, err) //nolint:errorlint // its class is not the answer
	case !errors.Is(err, volume.ErrNotFound):
		return volume.LV{}, err
	}
	if s, err = complete(ctx, s); err != nil {
		return volume.LV{}, err
	}
	rec = journal.Record{VolumeID: id, Kind: s.Kind, VG: s.VG, LV: s.LV, Intent: journal.Create, Since: time.Now()}
	defer func() { // a panic is answered Internal, which is final
		if p := recover(); p != nil {
			_ = l.afterFailedCreate(ctx, rec, nil) // carried on where it fails; the panic is the answer
			panic(p)
		}
	}()
	if err := l.Journal.Put(ctx, rec); err != nil { // 3; without it, a kill would leave an LV of which nobody knows whether it is whole
		return volume.LV{}, errors.Join(err, l.Journal.Forget(ctx, id))
	}
	lv, err = l.LVM.Create(ctx, s)
	if err == nil && s.Unfinished() {
		lv, err = l.restore(ctx, s, lv)
		var cancel context.CancelFunc
		ctx, cancel = l.anew(ctx)
		defer cancel()
	}
	if err == nil && len(s.Mutable) != 0 {
		err = l.LVM.Tune(ctx, lv.Ref, s.Kind, nil, nil, s.Mutable)
	}
	if err != nil {
		return volume.LV{}, l.afterFailedCreate(ctx, rec, err)
	}
	return lv, handOut(lv, l.Journal.Erase(ctx, id))
}

// handOut is nil where the record of the create is durably gone. Unlike elsewhere it must be: one that came back after a
// power cut would call a volume nobody's that was handed out.
func handOut(lv volume.LV, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: logical volume %s is made, but that cannot be recorded: %v", volume.ErrPending, lv.Ref, err) //nolint:errorlint // its class is not the answer
}

// find looks for a logical volume of the name, in every volume group that is there: the name alone decides. That another
// group is lost must not stop this one. What nobody can have been given is removed, and so not found.
func (l *Lifecycle) find(ctx context.Context, s volume.Spec) (volume.LV, error) {
	r := s.Ref
	lv, err := l.LVM.Lookup(ctx, volume.Ref{LV: r.LV})
	if err == nil && lv.Tags.Kind == s.Kind {
		left, err := l.cutOff(lv)
		if err != nil {
			return lv, err
		}
		if left {
			return l.findAnew(ctx, s, lv)
		}
	}
	if err == nil || volume.NotOurs(err) {
		return lv, err
	}
	return l.LVM.Lookup(ctx, r)
}

// findAnew is find without what a create that was cut off has left.
func (l *Lifecycle) findAnew(ctx context.Context, s volume.Spec, left volume.LV) (volume.LV, error) {
	err := l.undoCreate(ctx, journal.Record{VolumeID: l.id(left.Ref), Kind: s.Kind, VG: left.VG, LV: left.LV})
	if err != nil {
		return left, fmt.Errorf("%w: an earlier create of logical volume %s was cut off, and what it left could not be removed: %v",
			volume.ErrPending, left.Ref, err) //nolint:errorlint // its class is not the answer
	}
	return l.LVM.Lookup(ctx, volume.Ref{LV: s.LV})
}

// cutOff reports whether a logical volume that no call is at was surely given to nobody: the record of its create is there, as where the
// default volume group was another one then; or that was lost, and it is not whole.
func (l *Lifecycle) cutOff(lv volume.LV) (bool, error) {
	rec, recorded, err := l.Journal.Get(l.id(lv.Ref))
	return recorded && rec.Intent == journal.Create ||
		lv.Tags.State == volume.Copying || lv.Tags.Kind == volume.Snapshot && lv.Tags.State == "" && lv.Whole() != nil, err
}

func (l *Lifecycle) sameVolume(s volume.Spec, lv volume.LV) error {
	if s.Kind == volume.Snapshot { // in the group of its origin, which it names
		return s.Matches(lv)
	}
	if lv.VG != s.VG && !s.AnyVG {
		return fmt.Errorf("%w: a volume of this name is in volume group %s, asked for is %s; use another name", volume.ErrExists, lv.VG, s.VG)
	}
	return errors.Join(lv.Whole(), s.Matches(lv))
}

// afterFailedCreate removes what a failed lvcreate left. Where that fails too the answer is not final: the CO keeps
// asking, and so keeps the volume in mind.
func (l *Lifecycle) afterFailedCreate(ctx context.Context, rec journal.Record, cause error) error {
	ctx, cancel := l.anew(ctx)
	defer cancel()
	if err := l.undoCreate(ctx, rec); err != nil {
		l.schedule(rec.VolumeID, err, onlyBusy(err))
		return fmt.Errorf("%w: %v; what it left could not be removed: %v; %s", volume.ErrPending, cause, err, l.outlook(rec.VolumeID)) //nolint:errorlint // their classes are not the answer
	}
	return cause
}

// undoCreate removes the logical volume of a record with intent Create, if there is one and it is ours, and forgets the
// record. A logical volume of that name that is not ours was there before, and stays.
func (l *Lifecycle) undoCreate(ctx context.Context, rec journal.Record) error {
	var err error
	if rec.Kind == volume.Together {
		err = l.dropGroup(ctx, rec.Ref())
	} else {
		err = l.remove(ctx, rec.Ref(), rec.Kind)
	}
	if err != nil && !errors.Is(err, volume.ErrPrecondition) {
		return fmt.Errorf("remove logical volume %s: %w", rec.Ref(), err)
	}
	if err := l.Journal.Forget(ctx, rec.VolumeID); err != nil {
		return err
	}
	l.finished(rec.VolumeID)
	return nil
}

// remove removes a logical volume, and before it what is left of a copy onto it.
func (l *Lifecycle) remove(ctx context.Context, r volume.Ref, k volume.Kind) error {
	if err := l.unrestore(ctx, r); err != nil {
		return err
	}
	return l.removeLV(ctx, r, k)
}

// removeLV removes a logical volume that nobody has open. Where LVM finds it open all the same, it was opened after it was looked at; who
// only looks, as the driver itself does for its health, is waited for, and it is tried once more.
func (l *Lifecycle) removeLV(ctx context.Context, r volume.Ref, k volume.Kind) error {
	err := l.LVM.Remove(ctx, r, k)
	if !errors.Is(err, volume.ErrBusy) {
		return err
	}
	if _, e := l.waitClosed(ctx, r, true); e != nil {
		return err
	}
	return l.LVM.Remove(ctx, r, k)
}

// Delete removes the logical volume of a persistent volume. nil where it is gone already and the volume group was read
// well. A volume that is mounted, open, or the origin of thick snapshots is ErrPrecondition and unaltered (CSI spec,
// DeleteVolume: FAILED_PRECONDITION). A kill in the middle leaves the volume or leaves nothing; the CO repeats the call.
func (l *Lifecycle) Delete(ctx context.Context, r volume.Ref) error {
	return l.delete(ctx, r, volume.Persistent)
}

func (l *Lifecycle) delete(ctx context.Context, r volume.Ref, k volume.Kind) error {
	id := l.id(r)
	rec, ok, err := l.Journal.Get(id)
	if err != nil {
		return err
	}
	if ok && rec.Intent == journal.Reclaim && len(rec.Paths) != 0 {
		return fmt.Errorf("%w: an unpublish of this volume is unfinished; %s", volume.ErrPending, l.outlook(id))
	}
	if err := l.unused(ctx, r); err != nil {
		return err
	}
	if err := l.detached(ctx, r); err != nil {
		return err
	}
	err = l.remove(ctx, r, k)
	if errors.Is(err, volume.ErrBusy) {
		return fmt.Errorf("%w: remove logical volume %s: %v; unpublish it, or end what uses it", volume.ErrPrecondition, r, err) //nolint:errorlint // busy is no pending work here
	}
	if err != nil {
		return err
	}
	if ok {
		l.forget(ctx, rec)
	}
	return nil
}

// unused is nil where the logical volume is mounted nowhere here, and open nowhere at all.
func (l *Lifecycle) unused(ctx context.Context, r volume.Ref) error {
	if err := l.unmounted(ctx, r); err != nil {
		return err
	}
	if _, err := l.closed(ctx, r, "remove logical volume "+r.String(), true); errors.Is(err, volume.ErrBusy) {
		return fmt.Errorf("%w: %v; end what uses it first", volume.ErrPrecondition, err) //nolint:errorlint // busy is no pending work here
	} else if err != nil {
		return err
	}
	return nil
}
