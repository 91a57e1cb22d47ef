package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// StageRequest is a NodeStageVolume.
type StageRequest struct {
	Volume     Volume
	Path       string // staging_target_path
	Capability volume.Capability
	Format     volume.Format // zero for block
}

// Stage mounts the file system of a volume at its staging path, made first where the volume is blank, and grown
// where the volume is larger; of a block volume it shows the device there. Repeating it is OK; with another file system it is
// ErrExists. An error leaves nothing mounted that was not before. A kill in the middle leaves a volume that is blank, or
// formatted, or staged, and a repeated call goes on from there.
func (l *Lifecycle) Stage(ctx context.Context, q StageRequest) error {
	path, err := l.stagingPath(q.Path, q.Capability.Block)
	if err != nil {
		return err
	}
	lv, err := l.LVM.Lookup(ctx, q.Volume.Ref)
	if err != nil {
		return err
	}
	if err := l.stageable(q, lv); err != nil {
		return err
	}
	if _, err := l.attachedHere(lv); err != nil {
		return err
	}
	d, err := l.activeDevice(ctx, lv.Ref)
	if err != nil {
		return err
	}
	superseded, err := l.supersede(ctx, q.Volume, path)
	if err != nil {
		return err
	}
	table, err := l.mountTable(ctx)
	if err != nil {
		return err
	}
	if at := mountsAt(table, path); len(at) != 0 {
		return l.stagedAlready(ctx, q, d, at[len(at)-1])
	}
	if q.Capability.Block {
		if folder := filepath.Dir(path); len(mountsAt(table, folder)) != 0 { // the file would be made in what is mounted there
			return fmt.Errorf("%w: something is mounted at the staging path %s of a block volume; unmount it first", volume.ErrExists, folder)
		}
		return l.showDevice(ctx, q.Volume, d, journal.Path{Path: path, Role: journal.Device}, superseded, volume.MountOptions{})
	}
	return l.mountStaged(ctx, q, lv, d, path)
}

// stageable checks that the logical volume is one that was handed out, for the access type that is asked for. One that
// the driver did not make, but took over, does not tell its access type.
func (l *Lifecycle) stageable(q StageRequest, lv volume.LV) error {
	if err := l.handedOut(q.Volume.ID, lv); err != nil {
		return err
	}
	made, known := lv.Tags.Format()
	switch {
	case lv.Tags.Kind != volume.Persistent || lv.Tags.State != "":
		return fmt.Errorf("%w: logical volume %s cannot be staged (kind %q, state %q)", volume.ErrPrecondition, lv.Ref, lv.Tags.Kind, lv.Tags.State)
	case known && made.FS == "" && !q.Capability.Block:
		return fmt.Errorf("%w: logical volume %s was created as a block volume, and gets no file system; ask for block", volume.ErrPrecondition, lv.Ref)
	case known && made.FS != "" && q.Capability.Block:
		return fmt.Errorf("%w: logical volume %s was created for a file system, which use as a block volume destroys; ask for mount", volume.ErrPrecondition, lv.Ref)
	}
	return nil
}

// handedOut is nil where the logical volume is not one that a call is making, or has left behind.
func (l *Lifecycle) handedOut(volumeID string, lv volume.LV) error {
	rec, recorded, err := l.Journal.Get(volumeID)
	if err != nil {
		return err
	}
	return madeBy(rec, recorded, lv)
}

// madeBy is handedOut for a record that has been read.
func madeBy(rec journal.Record, recorded bool, lv volume.LV) error {
	if recorded && rec.Intent == journal.Create {
		return fmt.Errorf("%w: logical volume %s is being made, or left by a CreateVolume or CreateSnapshot that was cut off; repeat that one", volume.ErrPending, lv.Ref)
	}
	return nil
}

func (l *Lifecycle) stagingPath(path string, block bool) (string, error) {
	if block {
		path = filepath.Join(path, volume.StagedDevice)
	}
	return l.Paths.Resolve(path)
}

func (l *Lifecycle) stagedAlready(ctx context.Context, q StageRequest, d volume.Device, m volume.Mount) error {
	switch {
	case !d.Same(m):
		return fmt.Errorf("%w: mounted at the staging path %s is %s of device %d:%d, not logical volume %s; unmount it first",
			volume.ErrPrecondition, m.Target, m.FS, m.Major, m.Minor, q.Volume.Ref)
	case m.Block:
		return nil
	case q.Capability.FS != "" && m.FS != string(q.Capability.FS):
		return fmt.Errorf("%w: logical volume %s is staged at %s with %s, asked for is %s; unstage it first",
			volume.ErrExists, q.Volume.Ref, m.Target, m.FS, q.Capability.FS)
	}
	return l.grow(ctx, d, volume.FS(m.FS), m.Target)
}

func (l *Lifecycle) mountStaged(ctx context.Context, q StageRequest, lv volume.LV, d volume.Device, path string) error {
	format := q.Format
	if made, ok := lv.Tags.Format(); ok && q.Capability.FS == "" { // the call names none: the one it was created for
		format = made
	}
	fs, err := l.fill(ctx, lv, d, format)
	if err != nil {
		return err
	}
	made, err := l.Paths.Make(ctx, path, false)
	if err != nil {
		return err
	}
	at := begun{volume: q.Volume, path: journal.Path{Path: path, Role: journal.Staging}, made: made}
	err = l.orUndo(ctx, at, func() error { return l.Mounts.Mount(ctx, d, path, mountOptions(fs, q.Capability)) })
	if err != nil {
		return fmt.Errorf("mount logical volume %s at %s: %w", lv.Ref, path, err)
	}
	at.mounted = true
	return l.orUndo(ctx, at, func() error { return l.grow(ctx, d, fs, path) })
}

func (l *Lifecycle) grow(ctx context.Context, d volume.Device, fs volume.FS, path string) error {
	if err := l.FS.Grow(ctx, d, fs, path); err != nil {
		return fmt.Errorf("grow the %s at %s to the size of %s: %w", fs, path, d, err)
	}
	return nil
}

// showDevice binds the device node to a file. superseded as for begun.
func (l *Lifecycle) showDevice(ctx context.Context, v Volume, d volume.Device, p journal.Path, superseded bool, o volume.MountOptions) error {
	made, err := l.Paths.Make(ctx, p.Path, true)
	if err != nil {
		return err
	}
	at := begun{volume: v, path: p, made: made || superseded}
	if err := l.orUndo(ctx, at, func() error { return l.Mounts.Bind(ctx, d.Path, p.Path, o) }); err != nil {
		return fmt.Errorf("show device %s at %s: %w", d, p.Path, err)
	}
	return nil
}

// begun is what a call has begun at a path.
type begun struct {
	volume  Volume
	path    journal.Path
	made    bool // the path itself was made; or a teardown was superseded that would have removed it
	mounted bool
}

// orUndo takes the next step. If it fails, or panics, what the call has begun at the path is taken back; what was there
// before stays. If that fails too it is journalled and carried on, and the error is ErrPending.
func (l *Lifecycle) orUndo(ctx context.Context, b begun, step func() error) error {
	defer func() {
		if p := recover(); p != nil { // answered Internal, which is final
			_ = l.undo(ctx, b, fmt.Errorf("panic: %v", p))
			panic(p)
		}
	}()
	if err := step(); err != nil {
		return l.undo(ctx, b, err)
	}
	return nil
}

func (l *Lifecycle) undo(ctx context.Context, b begun, cause error) error {
	var err error
	if b.mounted {
		err = l.Mounts.Unmount(ctx, b.path.Path)
	}
	if b.made && err == nil {
		err = l.Paths.Remove(ctx, b.path.Path)
	}
	if err == nil {
		return cause
	}
	rec, recorded, unreadable := l.Journal.Get(b.volume.ID)
	if unreadable != nil { // read a moment ago, by supersede
		return errors.Join(cause, err, unreadable)
	}
	if !recorded {
		rec = journal.Record{VolumeID: b.volume.ID, Kind: b.volume.Kind, VG: b.volume.VG, LV: b.volume.LV}
	}
	rec.Intent, rec.Since = journal.Reclaim, time.Now()
	rec = rec.With(b.path)
	l.intend(ctx, rec)
	return fmt.Errorf("%w: %v; what was begun could not be taken back yet: %v", volume.ErrPending, cause, l.carryOn(rec, err)) //nolint:errorlint // their classes are not the answer
}

// supersede drops the path from a pending teardown, and tells whether there was one: a later decision of the CO wins. On an
// error the teardown stands. One that is done, but of which the state folder does not let go (see forget), may still name the
// path on disk: it must be gone before, or the next start of the driver would do it again.
func (l *Lifecycle) supersede(ctx context.Context, v Volume, path string) (was bool, err error) {
	rec, ok, err := l.Journal.Get(v.ID)
	done := ok && rec.Intent == journal.Reclaim && len(rec.Paths) == 0
	if err != nil || !ok || !rec.Has(path) && !done {
		return false, err
	}
	if done {
		if err := l.Journal.Erase(ctx, v.ID); err != nil {
			return false, err
		}
		l.finished(v.ID)
		return false, nil
	}
	if less := rec.Without(path); len(less.Paths) != 0 {
		if err = l.Journal.Put(ctx, less); err != nil {
			l.Journal.Remember(rec)
		}
		return true, err
	}
	if err := l.Journal.Erase(ctx, v.ID); err != nil { // it must not come back and undo the publish
		return true, err
	}
	l.finished(v.ID)
	return true, nil
}

// Unstage undoes Stage. nil where it is not staged. While the volume is mounted elsewhere too it is ErrBusy, journalled
// and carried on when that has ended. The staging folder is the CO's and stays.
func (l *Lifecycle) Unstage(ctx context.Context, v Volume, staging string) error {
	folder, err := l.Paths.Resolve(staging)
	if err != nil {
		return err
	}
	device := filepath.Join(folder, volume.StagedDevice)
	if err := l.takeAway(ctx, v, journal.Path{Path: folder, Role: journal.Staging}); err != nil {
		return err
	}
	return l.takeAway(ctx, v, journal.Path{Path: device, Role: journal.Device})
}

// takeAway is the one way in which a path is taken from a volume, and an inline volume from the node:
//
//  1. What is there is claimed: by the record, or where there is none by the facts. What is not the volume's is not touched.
//  2. The intent is durable from here on.
//  3. Reclaim.
//
// nil: all is gone. ErrNotFound: at the path is a mount of something else. ErrBusy: journalled, and carried on. Any
// other error is journalled and carried on too, but waiting alone will not end it.
func (l *Lifecycle) takeAway(ctx context.Context, v Volume, p journal.Path) error {
	defer l.settle(v.ID)
	rec, claimed, err := l.claim(ctx, v, p)
	if err != nil || !claimed {
		return err
	}
	if rec.Intent != journal.Reclaim || !rec.Has(p.Path) {
		rec.Intent, rec.Since = journal.Reclaim, time.Now()
		rec = rec.With(p)
	}
	l.intend(ctx, rec)
	paths := []journal.Path{p}
	if rec.Kind == volume.Inline {
		paths = rec.Paths // one volume, one target: whatever else the record names goes with it
	}
	if err := l.reclaim(ctx, rec, paths, true); err != nil {
		return l.carryOn(rec, err)
	}
	if _, more, _ := l.Journal.Get(v.ID); !more {
		l.finished(v.ID)
	}
	return nil
}

// claim finds out whether there is anything at the path, or of an inline volume anywhere, that is the volume's to take away. Where
// the journal says nothing the facts do: the journal may have been lost. An empty folder or file that was left at a
// target is removed on the spot; it announces nothing.
func (l *Lifecycle) claim(ctx context.Context, v Volume, p journal.Path) (rec journal.Record, claimed bool, err error) {
	rec, recorded, err := l.Journal.Get(v.ID)
	if err != nil {
		return rec, false, err
	}
	if recorded && rec.Has(p.Path) {
		return rec, true, nil
	}
	table, err := l.mountTable(ctx)
	if err != nil {
		return rec, false, err
	}
	at := mountsAt(table, p.Path)
	if !recorded || rec.Intent == journal.Create {
		if rec, err = l.fromFacts(ctx, v); err != nil {
			return rec, false, err
		}
	}
	switch {
	case len(at) != 0:
		if err := l.rightKind(ctx, v); err != nil {
			return rec, false, err
		}
		d, active, err := l.device(ctx, rec.Ref())
		if err != nil {
			return rec, false, err
		}
		if top := at[len(at)-1]; !active || !d.Same(top) {
			if p.Role != journal.Target {
				return rec, false, nil // the CO's folder, or one of a volume of the other access type
			}
			return rec, false, fmt.Errorf("%w: mounted at %s is %s of device %d:%d, not volume %s; it is not touched",
				volume.ErrNotFound, p.Path, top.FS, top.Major, top.Minor, v.ID)
		}
		return rec, true, nil
	case v.Kind == volume.Inline && rec.VG != "" && !recorded:
		return rec, true, nil // its logical volume is there
	case p.Role == journal.Staging, p.Role == journal.Device && len(mountsAt(table, filepath.Dir(p.Path))) != 0:
		return rec, false, nil // the CO's folder; or a name within something that is mounted on it
	}
	return rec, false, l.Paths.Remove(ctx, p.Path)
}

// fromFacts makes the record that was lost, or never needed: which logical volume the id means.
func (l *Lifecycle) fromFacts(ctx context.Context, v Volume) (journal.Record, error) {
	rec := journal.Record{VolumeID: v.ID, Kind: v.Kind, VG: v.VG, LV: v.LV}
	if v.Kind != volume.Inline {
		return rec, nil
	}
	lv, err := l.LVM.Lookup(ctx, v.Ref)
	switch {
	case err == nil && lv.Tags.Kind == volume.Inline:
		rec.VG = lv.VG
		return rec, nil
	case err == nil, volume.NotOurs(err):
		return rec, nil // there is none, or one of this name that is not an inline volume of ours
	}
	return rec, err
}
