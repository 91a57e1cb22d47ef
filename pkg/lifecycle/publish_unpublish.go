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

// PublishRequest is a NodePublishVolume of a persistent volume.
type PublishRequest struct {
	Volume     Volume
	Staging    string // staging_target_path
	Target     string // target_path
	Capability volume.Capability
	ReadOnly   bool
}

// Publish shows a staged volume at the target path. It runs no LVM command and writes no record: what is published
// is what the mount table says. The I/O limits of the volume are set first; where they cannot be, it is ErrPrecondition. Repeating it is OK, with other arguments ErrExists. An error leaves nothing that was not
// there before. A kill in the middle leaves at most an empty target.
func (l *Lifecycle) Publish(ctx context.Context, q PublishRequest) error {
	target, err := l.Paths.Resolve(q.Target)
	if err != nil {
		return err
	}
	staging, err := l.stagingPath(q.Staging, q.Capability.Block)
	if err != nil {
		return err
	}
	if target == staging || strings.HasPrefix(target, staging+"/") {
		return volume.Invalid("target_path", q.Target, "lies in the staging path, that is within the volume itself; name another")
	}
	if err := l.rightKind(ctx, q.Volume); err != nil {
		return err
	}
	d, active, err := l.device(ctx, q.Volume.Ref)
	if err != nil {
		return err
	}
	if !active {
		return l.notActive(ctx, q.Volume)
	}
	table, err := l.mountTable(ctx)
	if err != nil {
		return err
	}
	if err := l.staged(q.Volume, d, table, staging); err != nil {
		return err
	}
	lv, err := l.LVM.Lookup(ctx, q.Volume.Ref)
	if err != nil {
		return err
	}
	attached, err := l.attachedHere(lv)
	if err != nil {
		return err
	}
	readOnly := q.ReadOnly || q.Capability.ReadOnly() || attached.ReadOnly
	if at := mountsAt(table, target); len(at) != 0 {
		if err := publishedAlready(q.Volume.Ref, d, at[len(at)-1], q.Capability, readOnly); err != nil {
			return err
		}
		if _, err := l.supersede(ctx, q.Volume, target); err != nil {
			return err
		}
		return l.limitTarget(ctx, lv, d, target)
	}
	others := elsewhere(table, d, staging, target)
	if q.Capability.Mode == volume.SingleNodeSingleWriter && len(others) != 0 {
		return fmt.Errorf("%w: access mode %s allows one target path, and logical volume %s is published at %s; unpublish it there first",
			volume.ErrPrecondition, q.Capability.Mode, q.Volume.Ref, strings.Join(others, ", "))
	}
	if err := l.limitTarget(ctx, lv, d, target); err != nil {
		return err
	}
	superseded, err := l.supersede(ctx, q.Volume, target)
	if err != nil {
		return err
	}
	options := volume.MountOptions{Flags: q.Capability.MountFlags, ReadOnly: readOnly}
	if q.Capability.Block {
		if err := l.deviceReadOnly(ctx, d, table, others, readOnly); err != nil {
			return err
		}
		return l.showDevice(ctx, q.Volume, d, journal.Path{Path: target, Role: journal.Target}, superseded, volume.MountOptions{ReadOnly: readOnly})
	}
	return l.bindTarget(ctx, q, staging, target, superseded, options)
}

// rightKind is nil where the volume is of the kind that its id says: <node>/<vg>/csi-… would be an inline volume by the back door,
// and its target is not that id's to take away. Only where the name is one of another kind LVM is asked: an adopted volume may
// have any.
func (l *Lifecycle) rightKind(ctx context.Context, v Volume) error {
	if v.Kind != volume.Persistent || volume.KindByName(v.LV) == volume.Persistent {
		return nil
	}
	lv, err := l.LVM.Lookup(ctx, v.Ref)
	switch {
	case volume.NotOurs(err):
		return nil
	case err == nil && lv.Tags.Kind != volume.Persistent:
		return fmt.Errorf("%w: logical volume %s is of kind %s, and is not to be had by the volume id %s; its own id is %s",
			volume.ErrPrecondition, v.Ref, lv.Tags.Kind, v.ID, lv.Name())
	}
	return err
}

// notActive tells an unknown volume from one that nobody staged.
func (l *Lifecycle) notActive(ctx context.Context, v Volume) error {
	if _, err := l.LVM.Lookup(ctx, v.Ref); err != nil {
		return err
	}
	return fmt.Errorf("%w: logical volume %s is not active; call NodeStageVolume first", volume.ErrPrecondition, v.Ref)
}

// staged checks that the volume is staged at the path, and that no unstage is at work on it.
func (l *Lifecycle) staged(v Volume, d volume.Device, table []volume.Mount, staging string) error {
	at := mountsAt(table, staging)
	if len(at) == 0 || !d.Same(at[len(at)-1]) {
		return fmt.Errorf("%w: logical volume %s is not staged at %s; call NodeStageVolume first", volume.ErrPrecondition, v.Ref, staging)
	}
	rec, ok, err := l.Journal.Get(v.ID)
	if err == nil && ok && rec.Has(staging) {
		err = fmt.Errorf("%w: logical volume %s is being unstaged at %s; call NodeStageVolume first", volume.ErrPrecondition, v.Ref, staging)
	}
	return err
}

// publishedAlready answers a publish at a target where something is mounted: nil where it is what is asked for (CSI
// spec, NodePublishVolume, table of second calls).
func publishedAlready(r volume.Ref, d volume.Device, m volume.Mount, c volume.Capability, readOnly bool) error {
	differs := func(what string) error {
		return fmt.Errorf("%w: logical volume %s is published at %s %s; unpublish it first", volume.ErrExists, r, m.Target, what)
	}
	switch {
	case !d.Same(m):
		return fmt.Errorf("%w: mounted at the target path %s is %s of device %d:%d, not logical volume %s; unmount it first",
			volume.ErrPrecondition, m.Target, m.FS, m.Major, m.Minor, r)
	case m.Block != c.Block:
		return differs("with the other access type (block or mount)")
	case !c.Block && c.FS != "" && m.FS != string(c.FS):
		return differs(fmt.Sprintf("with %s, asked for is %s", m.FS, c.FS))
	case m.ReadOnly != readOnly:
		return differs(fmt.Sprintf("with readonly %t, asked for is %t", m.ReadOnly, readOnly))
	}
	return nil
}

// deviceReadOnly makes the block device read-only, or writable again. A read-only mount does not keep anybody from
// writing to a device node in it (the kernel exempts devices, path_resolution(7)), so the device itself must refuse; and
// that is for all its targets at once.
func (l *Lifecycle) deviceReadOnly(ctx context.Context, d volume.Device, table []volume.Mount, others []string, readOnly bool) error {
	for _, m := range table {
		if slices.Contains(others, m.Target) && d.Same(m) && m.ReadOnly != readOnly {
			return fmt.Errorf("%w: the block device is published at %s with readonly %t, and cannot be published with readonly %t beside it; unpublish it there first",
				volume.ErrPrecondition, m.Target, m.ReadOnly, readOnly)
		}
	}
	if d.ReadOnly == readOnly {
		return nil
	}
	return l.FS.SetReadOnly(ctx, d, readOnly)
}

func (l *Lifecycle) bindTarget(ctx context.Context, q PublishRequest, staging, target string, superseded bool, o volume.MountOptions) error {
	if group := q.Capability.Group; group != nil { // through the staging mount, which is writable whatever the target is
		if err := l.FS.SetGroup(ctx, staging, *group); err != nil {
			return fmt.Errorf("give the volume to group %d: %w", *group, err)
		}
	}
	made, err := l.Paths.Make(ctx, target, false)
	if err != nil {
		return err
	}
	at := begun{volume: q.Volume, path: journal.Path{Path: target, Role: journal.Target}, made: made || superseded}
	if err := l.orUndo(ctx, at, func() error { return l.Mounts.Bind(ctx, staging, target, o) }); err != nil {
		return fmt.Errorf("bind %s to %s: %w", staging, target, err)
	}
	return nil
}

// InlineRequest is a NodePublishVolume of an inline volume.
type InlineRequest struct {
	Volume     Volume // with its VG
	Spec       volume.Spec
	Target     string
	Capability volume.Capability
	ReadOnly   bool
}

// PublishInline makes a logical volume, its file system and its mount in one go. Repeating it is OK, with other
// arguments ErrExists, while its teardown is unfinished ErrPending.
//
// An error that is final to the CO leaves nothing, since the CO then forgets the volume. Where the rollback cannot be
// completed the answer is ErrPending, and the rollback is carried on. Where the volume was in use before this call (a
// reboot, a republish) nothing is rolled back, since it holds data, and the answer is ErrPending too: the CO must call
// NodeUnpublishVolume when it wants it gone. A kill in the middle leaves a record, and whoever calls next goes on from
// there.
func (l *Lifecycle) PublishInline(ctx context.Context, q InlineRequest) error {
	target, err := l.Paths.Resolve(q.Target)
	if err != nil {
		return err
	}
	rec, recorded, err := l.Journal.Get(q.Volume.ID)
	switch {
	case err != nil:
		return err
	case recorded && rec.Intent == journal.Reclaim:
		return fmt.Errorf("%w: the teardown of this volume is unfinished; %s", volume.ErrPending, l.outlook(q.Volume.ID))
	case recorded && !rec.Has(target):
		return fmt.Errorf("%w: an inline volume has one target path, and for this one another is recorded: %v", volume.ErrPrecondition, rec.Paths)
	}
	l.noOrphan(q.Volume.ID, "it is published")
	lv, there, err := l.findInline(ctx, q.Spec)
	if err == nil && !there && recorded { // in a group that is away it may be there, with data
		err = l.surelyGone(ctx, rec.Ref())
	}
	switch {
	case err != nil && recorded && !errors.Is(err, volume.ErrExists):
		return kept(err) // an earlier call began it, and this one cannot tell how far
	case err != nil:
		return err
	}
	if there {
		q.Spec.VG = lv.VG
	}
	if done, err := l.inlinePublished(ctx, q, target, recorded); err != nil {
		return err
	} else if done {
		return kept(l.giveToGroup(ctx, q, target)) // a call that was killed may not have got so far
	}
	defer func() { // a panic is answered Internal, which is final: what was begun must not stay
		if r := recover(); r != nil {
			if !there && rec.VolumeID != "" {
				_ = l.rollBack(ctx, rec, nil) // journalled, and carried on; the panic is the answer
			}
			panic(r)
		}
	}()
	if !recorded || rec.VG != q.Spec.VG { // the default volume group can be another one by now
		rec = journal.Record{VolumeID: q.Volume.ID, Kind: volume.Inline, VG: q.Spec.VG, LV: q.Spec.LV, Intent: journal.Publish,
			Paths: []journal.Path{{Path: target, Role: journal.Target}}, Since: time.Now()}
		if err := l.Journal.Put(ctx, rec); err != nil { // without it a kill would leave an LV that nobody comes back for
			return l.unbegun(ctx, rec, there, err)
		}
	}
	if _, err := l.Paths.Make(ctx, target, false); err != nil { // first, since what is in the way at the target is not ours to clear
		return l.unbegun(ctx, rec, there, err)
	}
	handedOut, err := l.ensureInline(ctx, q, lv, there, target)
	switch {
	case err == nil:
		return nil
	case handedOut:
		return kept(err)
	default:
		return l.rollBack(ctx, rec, err)
	}
}

// unbegun ends a publish that failed before it made anything. What was there before is kept.
func (l *Lifecycle) unbegun(ctx context.Context, rec journal.Record, there bool, cause error) error {
	if there {
		return kept(cause)
	}
	l.forget(ctx, rec)
	return cause
}

// kept is the answer where a publish fails of a volume that a pod may have written to: not final, so that the CO goes on
// asking, and unpublishes it when it is no longer wanted. nil stays nil.
func kept(cause error) error {
	if cause == nil {
		return nil
	}
	return fmt.Errorf("%w: the volume may hold data and is kept until it is unpublished: %v", volume.ErrPending, cause) //nolint:errorlint // its class is not the answer
}

// findInline looks for the logical volume, and checks that it is what is asked for.
func (l *Lifecycle) findInline(ctx context.Context, s volume.Spec) (lv volume.LV, there bool, err error) {
	lv, err = l.find(ctx, s)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return lv, false, nil
	case err != nil:
		return lv, false, err
	}
	return lv, true, l.sameVolume(s, lv)
}

// surelyGone is nil where the logical volume is not there, and its group was read well.
func (l *Lifecycle) surelyGone(ctx context.Context, r volume.Ref) error {
	_, err := l.LVM.Lookup(ctx, r)
	switch {
	case err == nil:
		return fmt.Errorf("logical volume %s is there by now", r)
	case volume.NotOurs(err):
		return nil
	}
	return err
}

// inlinePublished reports whether the volume is mounted at the target as asked. ErrPrecondition: something else is
// mounted there; or no target is recorded, and the volume is mounted at another one.
func (l *Lifecycle) inlinePublished(ctx context.Context, q InlineRequest, target string, recorded bool) (bool, error) {
	table, err := l.mountTable(ctx)
	if err != nil {
		return false, err
	}
	d, active, err := l.device(ctx, q.Spec.Ref)
	if err != nil {
		return false, err
	}
	at := mountsAt(table, target)
	switch others := elsewhere(table, d, target); {
	case len(at) != 0 && !active:
		d = volume.Device{} // what is mounted there is something else
	case len(at) != 0:
	case active && !recorded && len(others) != 0:
		return false, fmt.Errorf("%w: an inline volume has one target path, and this one is mounted at %s", volume.ErrPrecondition, strings.Join(others, ", "))
	default:
		return false, nil
	}
	return true, publishedAlready(q.Spec.Ref, d, at[len(at)-1], q.Capability, q.ReadOnly || q.Capability.ReadOnly())
}

// ensureInline makes what is missing at the target: the logical volume, its device, the file system, the mount.
// handedOut tells, after an error, whether a pod may have written to the volume before this call.
func (l *Lifecycle) ensureInline(ctx context.Context, q InlineRequest, lv volume.LV, there bool, target string) (handedOut bool, err error) {
	if !there {
		if lv, err = l.LVM.Create(ctx, q.Spec); err != nil {
			return false, err
		}
	}
	d, err := l.activeDevice(ctx, lv.Ref)
	if err != nil {
		return there, err
	}
	if there {
		c, err := l.FS.Probe(ctx, d)
		if err != nil || (!c.Blank && !c.Unfinished) {
			handedOut = true
		}
	}
	fs, err := l.fill(ctx, lv, d, q.Spec.Format)
	if err != nil {
		return handedOut, err
	}
	options := mountOptions(fs, q.Capability)
	options.ReadOnly = q.ReadOnly || q.Capability.ReadOnly()
	if err := l.Mounts.Mount(ctx, d, target, options); err != nil {
		return handedOut, fmt.Errorf("mount logical volume %s at %s: %w", lv.Ref, target, err)
	}
	return handedOut, l.giveToGroup(ctx, q, target)
}

// giveToGroup gives the mounted volume to the group that is asked for; of a read-only one there is nothing to give.
func (l *Lifecycle) giveToGroup(ctx context.Context, q InlineRequest, target string) error {
	group := q.Capability.Group
	if group == nil || q.ReadOnly || q.Capability.ReadOnly() {
		return nil
	}
	if err := l.FS.SetGroup(ctx, target, *group); err != nil {
		return fmt.Errorf("give the volume to group %d: %w", *group, err)
	}
	return nil
}

// rollBack takes away what a failed publish began, and returns its error: as it is when nothing is left, else as ErrPending.
func (l *Lifecycle) rollBack(ctx context.Context, rec journal.Record, cause error) error {
	rec.Intent = journal.Reclaim
	l.intend(ctx, rec)
	if err := l.reclaim(ctx, rec, rec.Paths, true); err != nil {
		return fmt.Errorf("%w: %v; rolling back: %v", volume.ErrPending, cause, l.carryOn(rec, err)) //nolint:errorlint // their classes are not the answer
	}
	l.finished(rec.VolumeID)
	return cause
}

// Unpublish undoes Publish and PublishInline: the target is unmounted and removed; of an inline volume the logical
// volume is removed too. See takeAway for its answers. nil where nothing is there.
func (l *Lifecycle) Unpublish(ctx context.Context, v Volume, target string) error {
	path, err := l.Paths.Resolve(target)
	if err != nil {
		return err
	}
	return l.takeAway(ctx, v, journal.Path{Path: path, Role: journal.Target})
}
