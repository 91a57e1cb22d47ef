package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// fromSource gives the spec of a volume with what its source decides. ErrNotFound: there is no such source. ErrOutOfRange: the volume
// may not be as large.
func (l *Lifecycle) fromSource(ctx context.Context, s volume.Spec) (volume.Spec, error) {
	if s.Source == (volume.Source{}) {
		return s, nil
	}
	source, err := l.source(ctx, s.Source.Ref, s.Source.Kind)
	if err != nil {
		return s, err
	}
	if s, err = s.From(source); err != nil || s.Copying {
		return s, err
	}
	return s, l.writeOut(ctx, source)
}

// restore makes a new volume, which has the state Copying, hold what its source holds, and whole.
//
//  1. A temporary snapshot shows the source as it is at one moment, while that goes on to be used, and may even be deleted.
//  2. What it shows is copied.
//  3. It is removed.
//  4. A file system that could not be mounted beside that of the source gets an identity of its own. Where LVM made the volume of its source
//     at once, this is the first step.
//  5. The state is taken away: one commit of LVM's metadata. Until then nobody is given the volume, whatever happens to its record.
//
// An error, or a kill in the middle, leaves the volume with its state, and perhaps the temporary snapshot: never that alone, so it
// can be found through the volume (unrestore).
func (l *Lifecycle) restore(ctx context.Context, s volume.Spec, to volume.LV) (volume.LV, error) {
	if s.Copying {
		if err := l.fillFrom(ctx, s.Source, to); err != nil {
			return to, err
		}
	}
	ctx, cancel := l.anew(ctx)
	defer cancel()
	if s.Format.FS == volume.Btrfs {
		if err := l.distinguish(ctx, to); err != nil {
			return to, err
		}
	}
	whole := to.Tags
	whole.State = ""
	add, remove := to.Tags.Changes(whole)
	if err := l.LVM.Retag(ctx, to.Ref, to.Tags.Kind, add, remove); err != nil {
		return to, err
	}
	to.Tags = whole
	return to, nil
}

// fillFrom is steps 1 to 3 of restore.
func (l *Lifecycle) fillFrom(ctx context.Context, s volume.Source, to volume.LV) error {
	source, err := l.source(ctx, s.Ref, s.Kind)
	if err != nil {
		return err
	}
	from, err := l.still(ctx, source, to)
	if err != nil {
		return err
	}
	if err := l.copyOnto(ctx, from, to.Ref); err != nil {
		return err
	}
	ctx, cancel := l.anew(ctx)
	defer cancel()
	return l.dropTemporary(ctx, source.VG, to.LV)
}

// distinguish gives the file system of a volume that was made of another an identity that follows from the uuid of its logical volume.
func (l *Lifecycle) distinguish(ctx context.Context, to volume.LV) error {
	if _, err := l.activeDevice(ctx, to.Ref); err != nil {
		return err
	}
	d, err := l.closed(ctx, to.Ref, "give the file system of logical volume "+to.Ref.String()+" an identity of its own", true) // udev may look at it
	if err != nil {
		return err
	}
	return l.FS.Distinguish(ctx, d, to.UUID)
}

// anew gives time again to what comes after a copy, which may have taken longer than the deadline of ctx.
func (l *Lifecycle) anew(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), effectBound)
}

// still gives what shows the source at one moment: a thick snapshot does so itself, and LVM makes none of it; of any other a temporary
// snapshot is made. That of a thick volume has a store, to which the volume's old content goes when it is written meanwhile: large enough for all of it,
// or where there is no room for that, for a tenth. If that overflows, the copy fails.
func (l *Lifecycle) still(ctx context.Context, source, to volume.LV) (volume.Ref, error) {
	if source.Thick() {
		return source.Ref, nil
	}
	if source.Type != volume.Thin { // its snapshot has a device only while it has one itself
		if _, err := l.activeDevice(ctx, source.Ref); err != nil {
			return source.Ref, err
		}
	}
	s := volume.Spec{Ref: volume.Ref{VG: source.VG, LV: volume.TemporaryLV(to.LV)}, Kind: volume.Temporary, Name: to.LV, Origin: source, Created: time.Now()}
	if err := l.dropTemporary(ctx, s.VG, to.LV); err != nil { // what an earlier one left
		return s.Ref, err
	}
	if err := l.writeOut(ctx, source); err != nil {
		return s.Ref, err
	}
	_, err := l.LVM.Create(ctx, s)
	if noRoom(err) && source.Type != volume.Thin {
		s.CopyOnWrite.Percent = 10
		_, err = l.LVM.Create(ctx, s)
	}
	if noRoom(err) {
		return s.Ref, fmt.Errorf("%w for a temporary snapshot of %s, to copy from: %v", volume.ErrNoSpace, source.Ref, err) //nolint:errorlint // not the volume is too large
	}
	if err != nil {
		return s.Ref, fmt.Errorf("make a temporary snapshot of %s, to copy from: %w", source.Ref, err)
	}
	return s.Ref, nil
}

func noRoom(err error) bool {
	return errors.Is(err, volume.ErrNoSpace) || errors.Is(err, volume.ErrOutOfRange)
}

// unrestore removes the temporary snapshot that a volume is copied from, if it is one that is copied onto; nil where there is none. It comes
// before the removal of the volume. Where it cannot be told whether there is one, the volume is LVM's to judge, which may read the group by
// now; a temporary snapshot that stays without its volume is found by lostCopies.
func (l *Lifecycle) unrestore(ctx context.Context, r volume.Ref) error {
	lv, err := l.LVM.Lookup(ctx, r)
	if err != nil {
		return nil //nolint:nilerr // as said
	}
	source, ok := volume.ParseSource(lv.Tags.From)
	if lv.Tags.State != volume.Copying || !ok {
		return nil
	}
	return l.dropTemporary(ctx, source.VG, r.LV)
}

// dropTemporary removes the temporary snapshot for a copy onto the logical volume; no LVM command where there is none.
func (l *Lifecycle) dropTemporary(ctx context.Context, vg, lv string) error {
	r := volume.Ref{VG: vg, LV: volume.TemporaryLV(lv)}
	_, err := l.LVM.Lookup(ctx, r)
	if volume.NotOurs(err) {
		return nil
	}
	if err == nil {
		err = l.removeLV(ctx, r, volume.Temporary)
	}
	if errors.Is(err, volume.ErrPrecondition) {
		return fmt.Errorf("remove temporary snapshot %s: %v", r, err) //nolint:errorlint // the precondition is not the caller's
	}
	if err != nil {
		return fmt.Errorf("remove temporary snapshot %s: %w", r, err)
	}
	return nil
}

// lostCopies looks for what copies left of which no record tells, because the state folder was lost. A volume that is not whole gets its record
// again, and so is removed after the grace time of a create, unless the CO repeats that: nobody was given it. A temporary snapshot whose volume is gone
// is removed.
func (l *Lifecycle) lostCopies(ctx context.Context) {
	all, err := l.Inventory.List(ctx)
	if err != nil {
		return // the look for orphans tells of it
	}
	for _, lv := range all {
		switch {
		case lv.Tags.Owner != l.Owner:
		case lv.Tags.Kind == volume.Persistent && lv.Tags.State == volume.Copying:
			err = l.lostCopy(ctx, lv.Ref)
		case lv.Tags.Kind == volume.Temporary:
			err = l.lostTemporary(ctx, lv)
		}
		if err != nil && !errors.Is(err, volume.ErrPending) {
			l.Log("a copy was cut off, and what it left cannot be taken up", "lv", lv.Ref.String(), "err", err)
		}
	}
}

func (l *Lifecycle) lostCopy(ctx context.Context, r volume.Ref) error {
	id := l.id(r)
	release, err := l.Locks.Try(volume.LockKey(id), "the look for copies that were cut off")
	if err != nil {
		return err // a call is at it
	}
	defer release()
	_, recorded, err := l.Journal.Get(id)
	if err != nil || recorded {
		return err
	}
	lv, err := l.LVM.Lookup(ctx, r) // again: it may be whole by now
	if err != nil || lv.Tags.State != volume.Copying {
		return err
	}
	l.Log("a copy was cut off; what is left of it is removed unless its CreateVolume is repeated", "volume", id, "in", l.Timing.CreateGrace)
	err = l.Journal.Put(ctx, journal.Record{VolumeID: id, Kind: volume.Persistent, VG: r.VG, LV: r.LV, Intent: journal.Create, Since: time.Now()})
	if err == nil {
		l.retryIn(id, l.Timing.CreateGrace)
	}
	return err
}

// lostTemporary removes a temporary snapshot whose volume is not there, or is whole. Else it goes before the volume does.
func (l *Lifecycle) lostTemporary(ctx context.Context, lv volume.LV) error {
	release, err := l.Locks.Try(lv.Name(), "the look for copies that were cut off")
	if err != nil {
		return err // a call is at it
	}
	defer release()
	to, err := l.LVM.Lookup(ctx, volume.Ref{LV: lv.Name()})
	if err == nil && to.Tags.State == volume.Copying {
		return nil
	}
	if err != nil && !volume.NotOurs(err) {
		return err
	}
	return l.dropTemporary(ctx, lv.VG, lv.Name())
}
