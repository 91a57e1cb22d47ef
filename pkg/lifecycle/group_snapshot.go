package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// CreateGroup makes snapshots of several volumes at one moment, all or none, or finds those that an equal earlier call made. name
// is the CO's; the sources differ. The snapshots are told from others, and known to be all, by the tag "group".
//
//  1. What an earlier call left that was cut off is removed: its record says so, or that not all are there, or not all whole.
//  2. What is there is the answer if it is of the same sources; else ErrExists.
//  3. The intent is journalled, in one record for all; the snapshots are made; the intent is forgotten.
//
// A final error leaves nothing. A kill in the middle leaves the record, and perhaps devices suspended, which Resume finds.
func (l *Lifecycle) CreateGroup(ctx context.Context, group volume.Ref, name string, sources []volume.Ref, store volume.CopyOnWrite) ([]volume.LV, error) {
	id := l.id(group)
	defer l.settle(id)
	rec, ok, err := l.Journal.Get(id)
	if err != nil {
		return nil, err
	}
	if ok && rec.Intent == journal.Create { // 1
		if err := l.undoCreate(ctx, rec); err != nil {
			return nil, fmt.Errorf("%w: an earlier snapshot of group %s was cut off, and what it left could not be removed: %v", volume.ErrPending, name, err) //nolint:errorlint // its class is not the answer
		}
	}
	members, err := l.Members(ctx, group)
	if err != nil {
		return nil, err
	}
	if len(members) != 0 && volume.WholeGroup(members) != nil {
		if err := l.dropGroup(ctx, group); err != nil {
			return nil, fmt.Errorf("%w: an earlier snapshot of group %s is not whole, and could not be removed: %v", volume.ErrPending, name, err) //nolint:errorlint // as above
		}
		members = nil
	}
	if len(members) != 0 { // 2
		return members, errors.Join(sameGroup(group, members, sources, store), l.Journal.Sync(ctx))
	}
	specs, err := l.memberSpecs(ctx, group, name, sources, store)
	if err != nil {
		return nil, err
	}
	rec = journal.Record{VolumeID: id, Kind: volume.Together, VG: group.VG, LV: group.LV, Intent: journal.Create, Since: time.Now()}
	defer func() { // as in create
		if p := recover(); p != nil {
			_ = l.afterFailedCreate(ctx, rec, nil)
			panic(p)
		}
	}()
	if err := l.Journal.Put(ctx, rec); err != nil { // 3
		return nil, errors.Join(err, l.Journal.Forget(ctx, id))
	}
	members, err = l.LVM.CreateTogether(ctx, specs)
	if err != nil {
		return nil, l.afterFailedCreate(ctx, rec, err)
	}
	if err := l.Journal.Erase(ctx, id); err != nil {
		return nil, fmt.Errorf("%w: the snapshots of group %s are made, but that cannot be recorded: %v", volume.ErrPending, name, err) //nolint:errorlint // as above
	}
	return members, nil
}

func (l *Lifecycle) memberSpecs(ctx context.Context, group volume.Ref, name string, sources []volume.Ref, store volume.CopyOnWrite) ([]volume.Spec, error) {
	var specs []volume.Spec
	var origins []volume.LV
	now := time.Now()
	for _, r := range sources {
		origin, err := l.source(ctx, r, volume.Persistent)
		if err != nil {
			return nil, err
		}
		origins = append(origins, origin)
		member := volume.MemberName(name, r)
		specs = append(specs, volume.Spec{
			Ref: volume.Ref{VG: r.VG, LV: volume.LVName(volume.Snapshot, member)}, Kind: volume.Snapshot, Name: member,
			Origin: origin, Created: now, CopyOnWrite: store, Group: volume.Membership{Ref: group, Members: len(sources)},
		})
	}
	return specs, l.sync(ctx, origins) // what is written now need not be while writers are held
}

// sameGroup is nil where the snapshots are of these sources (CSI spec, CreateVolumeGroupSnapshot: ALREADY_EXISTS).
func sameGroup(group volume.Ref, members []volume.LV, sources []volume.Ref, store volume.CopyOnWrite) error {
	var has, asked []string
	for _, lv := range members {
		has = append(has, lv.Tags.Origin+" "+lv.Tags.CopyOnWrite)
	}
	for _, r := range sources {
		asked = append(asked, r.String()+" "+store.String())
	}
	slices.Sort(has)
	slices.Sort(asked)
	if slices.Equal(has, asked) {
		return nil
	}
	return fmt.Errorf("%w: the group snapshot of this name, %s, is of %s, asked for is %s; delete it or use another name",
		volume.ErrExists, group, strings.Join(has, ", "), strings.Join(asked, ", "))
}

// Members gives the snapshots of a group, by group and name; none where there is no such group.
func (l *Lifecycle) Members(ctx context.Context, group volume.Ref) ([]volume.LV, error) {
	all, err := l.Inventory.List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(lv volume.LV) bool {
		m, ok := lv.Tags.Membership()
		return !ok || m.Ref != group || lv.Tags.Kind != volume.Snapshot
	}), nil
}

// dropGroup removes the snapshots of a group.
func (l *Lifecycle) dropGroup(ctx context.Context, group volume.Ref) error {
	members, err := l.Members(ctx, group)
	for _, lv := range members {
		err = errors.Join(err, l.removeLV(ctx, lv.Ref, volume.Snapshot))
	}
	return err
}

// DeleteGroup removes the snapshots of a group; nil where there are none any more. ErrPrecondition: one of them is open, as while a volume
// is filled from it; all are unaltered then. From the first removal on the journal says that what is there is nobody's, and it is
// carried on: half a group is of no use.
func (l *Lifecycle) DeleteGroup(ctx context.Context, group volume.Ref) error {
	id := l.id(group)
	defer l.settle(id)
	_, ok, err := l.Journal.Get(id)
	if err != nil {
		return err
	}
	members, err := l.Members(ctx, group)
	if err != nil || len(members) == 0 && !ok {
		return err
	}
	for _, lv := range members {
		if err := l.unused(ctx, lv.Ref); err != nil {
			return err
		}
	}
	rec := journal.Record{VolumeID: id, Kind: volume.Together, VG: group.VG, LV: group.LV, Intent: journal.Create, Since: time.Now()}
	l.intend(ctx, rec)
	if err := l.dropGroup(ctx, group); err != nil {
		return l.carryOn(rec, err)
	}
	l.forget(ctx, rec)
	return nil
}
