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
	if err := l.undoGroup(ctx, group); err != nil { // 1
		return nil, err
	}
	members, err := l.namedGroup(ctx, group.LV)
	if err != nil {
		return nil, err
	}
	if len(members) != 0 && volume.WholeGroup(members) != nil {
		if err := l.wasCutOff(ctx, members, name, sources); err != nil {
			return nil, err
		}
		if err := l.dropAll(ctx, members); err != nil {
			return nil, fmt.Errorf("%w: an earlier snapshot of group %s is not whole, and could not be removed: %v", volume.ErrPending, name, err) //nolint:errorlint // its class is not the answer
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
	rec := journal.Record{VolumeID: id, Kind: volume.Together, VG: group.VG, LV: group.LV, Intent: journal.Create, Since: time.Now()}
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

// undoGroup removes what an earlier call left that was cut off, if its record is there.
func (l *Lifecycle) undoGroup(ctx context.Context, group volume.Ref) error {
	rec, ok, err := l.Journal.Get(l.id(group))
	if err != nil || !ok || rec.Intent != journal.Create {
		return err
	}
	if err := l.undoCreate(ctx, rec); err != nil {
		return fmt.Errorf("%w: an earlier snapshot of group %s was cut off, and what it left could not be removed: %v", volume.ErrPending, group, err) //nolint:errorlint // its class is not the answer
	}
	return nil
}

// namedGroup gives the snapshots of the group of that name, which is one whatever volume group it names: the name alone decides. What a call
// about other sources left that was cut off is removed, and so not among them.
func (l *Lifecycle) namedGroup(ctx context.Context, name string) ([]volume.LV, error) {
	members, err := l.membersOf(ctx, func(m volume.Membership) bool { return m.LV == name })
	if err != nil || len(members) == 0 {
		return nil, err
	}
	m, _ := members[0].Tags.Membership()
	if err := l.undoGroup(ctx, m.Ref); err != nil {
		return nil, err
	}
	return l.membersOf(ctx, func(m volume.Membership) bool { return m.LV == name })
}

// wasCutOff is nil where the snapshots of a group, of which no record tells and which are not all, are surely what a call left that was cut off: one of
// them is not whole, or those that are missing are surely not there. They may as well be in a volume group that is away.
func (l *Lifecycle) wasCutOff(ctx context.Context, members []volume.LV, name string, sources []volume.Ref) error {
	if slices.ContainsFunc(members, func(lv volume.LV) bool { return lv.Whole() != nil }) {
		return nil
	}
	m, _ := members[0].Tags.Membership()
	stray := slices.ContainsFunc(members, func(lv volume.LV) bool {
		origin, _ := lv.Tags.Source()
		return !slices.Contains(sources, origin)
	})
	if stray || m.Members != len(sources) {
		return fmt.Errorf("%w: the group snapshot of this name, %s, is of %d other volumes; delete it or use another name", volume.ErrExists, m.Ref, m.Members)
	}
	for _, r := range sources {
		member := memberOf(name, r)
		if slices.ContainsFunc(members, func(lv volume.LV) bool { return lv.Ref == member }) {
			continue
		}
		if err := l.surelyGone(ctx, member); err != nil {
			return fmt.Errorf("look for the snapshots of group %s: %w", name, err)
		}
	}
	return nil
}

// memberOf names the logical volume of the snapshot of a volume in the group of that name.
func memberOf(name string, source volume.Ref) volume.Ref {
	return volume.Ref{VG: source.VG, LV: volume.LVName(volume.Snapshot, volume.MemberName(name, source))}
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
		specs = append(specs, volume.Spec{
			Ref: memberOf(name, r), Kind: volume.Snapshot, Name: volume.MemberName(name, r),
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

// Members gives the snapshots of a group, by group and name; none where there is no such group. named are some of them, as somebody knows
// them; they may be gone. ErrInvalid: one of these is there, and not of the group. It is an error too where it cannot be told of one of
// them, or of the volume group that the group names, whether it is there.
func (l *Lifecycle) Members(ctx context.Context, group volume.Ref, named ...volume.Ref) ([]volume.LV, error) {
	members, err := l.membersOf(ctx, func(m volume.Membership) bool { return m.Ref == group })
	if err != nil {
		return nil, err
	}
	for _, r := range append(named, group) {
		if slices.ContainsFunc(members, func(lv volume.LV) bool { return lv.Ref == r }) {
			continue
		}
		switch _, err := l.LVM.Lookup(ctx, r); {
		case err == nil && r != group:
			return nil, volume.Invalid("snapshot_ids", l.id(r), "it is none of the snapshots of group "+l.id(group)+"; leave it out")
		case err != nil && !volume.NotOurs(err):
			return nil, err
		}
	}
	return members, nil
}

func (l *Lifecycle) membersOf(ctx context.Context, which func(volume.Membership) bool) ([]volume.LV, error) {
	all, err := l.Inventory.List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(lv volume.LV) bool {
		m, ok := lv.Tags.Membership()
		return !ok || !which(m) || lv.Tags.Kind != volume.Snapshot
	}), nil
}

// dropGroup removes the snapshots of a group.
func (l *Lifecycle) dropGroup(ctx context.Context, group volume.Ref) error {
	members, err := l.Members(ctx, group)
	return errors.Join(err, l.dropAll(ctx, members))
}

func (l *Lifecycle) dropAll(ctx context.Context, members []volume.LV) (err error) {
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
