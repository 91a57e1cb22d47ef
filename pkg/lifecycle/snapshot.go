package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// CreateSnapshot makes the snapshot, or finds the one that an equal earlier call made: the same steps, and the same record, as
// Create. s names the origin by its Ref only; what it is, is asked here. LVM suspends the origin while it makes the snapshot,
// which freezes a mounted file system: the snapshot shows one moment, between two writes.
//
// ErrNotFound: there is no such persistent volume. ErrExists: the name is taken by a snapshot of another volume, or made with
// another size. An error that is final leaves nothing. A kill in the middle leaves a record with intent Create.
func (l *Lifecycle) CreateSnapshot(ctx context.Context, s volume.Spec) (volume.LV, error) {
	return l.create(ctx, s, l.snapshotOf)
}

// snapshotOf gives the spec with its origin, which must be a volume that was handed out.
func (l *Lifecycle) snapshotOf(ctx context.Context, s volume.Spec) (volume.Spec, error) {
	origin, err := l.source(ctx, s.Origin.Ref, volume.Persistent)
	if err != nil {
		return s, err
	}
	s.Origin, s.Created = origin, time.Now()
	return s, l.writeOut(ctx, origin)
}

// source finds the logical volume whose content another one is to have. Nothing is made of what is not whole, or was
// handed out to nobody.
func (l *Lifecycle) source(ctx context.Context, r volume.Ref, k volume.Kind) (volume.LV, error) {
	lv, err := l.LVM.Lookup(ctx, r)
	switch {
	case errors.Is(err, volume.ErrPrecondition): // not ours: the driver never gave out its id
		return lv, fmt.Errorf("%w: %v", volume.ErrNotFound, err) //nolint:errorlint // as said
	case err != nil:
		return lv, err
	case lv.Tags.Kind != k:
		return lv, fmt.Errorf("%w: logical volume %s is of kind %q, not %q", volume.ErrNotFound, r, lv.Tags.Kind, k)
	case lv.Partial:
		return lv, fmt.Errorf("%w: a physical volume below logical volume %s is missing", volume.ErrPrecondition, r)
	}
	return lv, errors.Join(l.handedOut(l.id(r), lv), lv.Whole())
}

// writeOut has the file systems on volumes that are about to be snapshotted write out what they hold in memory, where LVM's suspend does
// not: it freezes the file system that the kernel knows by the device (block/bdev.c, freeze_bdev), and a btrfs is known by none.
// Of a mounted btrfs a snapshot shows what it last committed; so it commits now.
// None lacks what was written before the CO asked.
func (l *Lifecycle) writeOut(ctx context.Context, origins ...volume.LV) error {
	return l.sync(ctx, slices.DeleteFunc(slices.Clone(origins), func(lv volume.LV) bool {
		f, _ := lv.Tags.Format()
		return f.FS != volume.Btrfs
	}))
}

// sync has the file systems that are mounted on volumes write out what they hold in memory.
func (l *Lifecycle) sync(ctx context.Context, volumes []volume.LV) error {
	for _, lv := range volumes {
		if f, ok := lv.Tags.Format(); !ok || f.FS == "" || lv.Tags.Kind != volume.Persistent {
			continue
		}
		at, err := l.mountedAt(ctx, lv.Ref)
		if err == nil && len(at) != 0 {
			err = l.FS.Sync(ctx, at[0])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Lifecycle) id(r volume.Ref) string { return volume.ID{Node: l.Node, Ref: r}.String() }

// DeleteSnapshot removes a snapshot; nil where it is gone already and the volume group was read well. One that is open, as while a
// volume is filled from it, is ErrPrecondition and unaltered. What was made of a thin snapshot lives on without it.
func (l *Lifecycle) DeleteSnapshot(ctx context.Context, r volume.Ref) error {
	lv, err := l.LVM.Lookup(ctx, r)
	if err != nil && !volume.NotOurs(err) {
		return err // it may be one of a group
	}
	if m, ok := lv.Tags.Membership(); ok {
		return volume.Invalid("snapshot_id", l.id(r), fmt.Sprintf("it is one of the %d snapshots of group %s, which are deleted together; delete that", m.Members, l.id(m.Ref)))
	}
	return l.delete(ctx, r, volume.Snapshot)
}
