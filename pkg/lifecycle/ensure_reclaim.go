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

// fill makes sure that the device holds the file system that is asked for, and returns the one it holds: what it
// holds already, or a new one where it is blank and the driver's. Anything else is left as it is: the content of a volume
// is never judged by an error, and never removed.
func (l *Lifecycle) fill(ctx context.Context, lv volume.LV, d volume.Device, f volume.Format) (volume.FS, error) {
	c, err := l.FS.Probe(ctx, d)
	if err != nil {
		return "", fmt.Errorf("find out what logical volume %s holds: %w", lv.Ref, err)
	}
	switch {
	case c.Blank || c.Unfinished:
		return f.FS, l.format(ctx, lv, f)
	case c.FS == string(f.FS):
		return f.FS, nil
	case c.Head == f.FS && l.madeFor(lv, f.FS):
		return f.FS, nil // what is found besides was there before the volume was expanded
	case c.FS == "":
		return "", fmt.Errorf("%w: logical volume %s holds data without a file system, and is not formatted; was it used as a block volume?",
			volume.ErrPrecondition, lv.Ref)
	default:
		return "", fmt.Errorf("%w: logical volume %s holds %s, asked for is %s; it is not formatted again: name that file system, or use another volume",
			volume.ErrPrecondition, lv.Ref, c.FS, f.FS)
	}
}

// madeFor reports whether the driver made the logical volume for this file system, so that nobody has used it as a block device.
func (l *Lifecycle) madeFor(lv volume.LV, fs volume.FS) bool {
	made, known := lv.Tags.Format()
	return lv.Tags.Owner == l.Owner && known && made.FS == fs
}

// format makes the file system, on a device that is the driver's and open nowhere. A kill in the middle leaves what
// Probe calls blank or unfinished: each mkfs writes its signature last, or marks it.
func (l *Lifecycle) format(ctx context.Context, lv volume.LV, f volume.Format) error {
	if lv.Tags.Owner != l.Owner || lv.Tags.State != "" {
		return fmt.Errorf("%w: logical volume %s is blank, but not this driver's to format (owner %q, state %q); format it, or adopt it",
			volume.ErrPrecondition, lv.Ref, lv.Tags.Owner, lv.Tags.State)
	}
	d, err := l.closed(ctx, lv.Ref, "make a file system on logical volume "+lv.Ref.String(), true)
	if err != nil {
		return err
	}
	if err := l.FS.Format(ctx, d, f); err != nil {
		return fmt.Errorf("make %s on logical volume %s: %w", f.FS, lv.Ref, err)
	}
	return nil
}

// closed waits a short while until nobody has the device open. The error is an ErrBusy, and if patient names the holders.
func (l *Lifecycle) closed(ctx context.Context, r volume.Ref, what string, patient bool) (d volume.Device, err error) {
	d, err = l.waitClosed(ctx, r, patient)
	switch {
	case !errors.Is(err, volume.ErrBusy):
		return d, err
	case patient:
		return d, l.inUse(ctx, what, d, "")
	default:
		return d, fmt.Errorf("%s: %w", what, volume.ErrBusy)
	}
}

// waitClosed is closed, and names nobody.
func (l *Lifecycle) waitClosed(ctx context.Context, r volume.Ref, patient bool) (d volume.Device, err error) {
	var active bool
	err = poll(ctx, l.patience(patient), func() (bool, error) {
		if d, active, err = l.device(ctx, r); err != nil {
			return true, err
		}
		return !active || d.Open == 0, nil
	})
	if err == nil && active && d.Open != 0 {
		err = volume.ErrBusy
	}
	return d, err
}

// mountOptions are those of the file system's own mount. Read-only is a matter of each publication: the file system
// itself stays writable, so that a second target is independent and a journal can be replayed.
func mountOptions(fs volume.FS, c volume.Capability) volume.MountOptions {
	flags := slices.DeleteFunc(volume.SplitFlags(c.MountFlags), func(f string) bool { return f == "ro" || f == "rw" })
	return volume.MountOptions{FS: fs, Flags: flags}
}

// reclaim takes away the given paths of the record, and when no path is left finishes it: the logical volume of an
// inline volume is removed, and the record forgotten. The record, with intent Reclaim, is in the journal when it is
// called. After an error everything that could be done is done, and the record still names all the rest; so it is
// after a kill at any point. It is repeated until it returns nil.
//
// patient is a call that somebody waits for: it waits a short while for what is in use, and then names the holders.
// A retry does neither, it will be back.
func (l *Lifecycle) reclaim(ctx context.Context, rec journal.Record, paths []journal.Path, patient bool) error {
	var errs []error
	rec = l.follow(ctx, rec)
	left := rec
	for _, p := range paths {
		if err := l.clear(ctx, rec, p, patient); err != nil {
			errs = append(errs, err)
			continue
		}
		left = left.Without(p.Path)
	}
	if len(left.Paths) != 0 {
		if len(left.Paths) != len(rec.Paths) {
			l.intend(ctx, left)
		}
		return errors.Join(errs...)
	}
	if rec.Kind == volume.Inline {
		if err := l.removeInline(ctx, rec.Ref(), patient); err != nil {
			return err
		}
	}
	l.forget(ctx, rec)
	return nil
}

// follow gives the record with the group in which the logical volume of an inline volume is now: its group may have been
// renamed (vgrename). Its name is made from the id, and so is its own alone. A persistent volume has its group in its id.
func (l *Lifecycle) follow(ctx context.Context, rec journal.Record) journal.Record {
	if rec.Kind != volume.Inline {
		return rec
	}
	if _, active, err := l.device(ctx, rec.Ref()); active || err != nil && !errors.Is(err, volume.ErrInvalid) { // invalid: none of --volume-groups
		return rec
	}
	lv, err := l.LVM.Lookup(ctx, volume.Ref{LV: rec.LV})
	if err == nil && lv.Tags.Kind == volume.Inline && lv.VG != rec.VG && rec.LV == volume.LVName(volume.Inline, rec.VolumeID) {
		l.Log("an inline volume is not in the group that is recorded", "volume", rec.VolumeID, "recorded", rec.VG, "found", lv.VG)
		rec.VG = lv.VG
	}
	return rec
}

// forget forgets the record of what is done. Where the state folder does not let go of it, being read-only or failing, nobody
// waits for that: what is left is a file which announces what will be found done, and it is tried again.
func (l *Lifecycle) forget(ctx context.Context, rec journal.Record) {
	if err := l.Journal.Forget(ctx, rec.VolumeID); err != nil {
		rec.Intent, rec.Paths = journal.Reclaim, nil
		l.Journal.Remember(rec)
		l.schedule(rec.VolumeID, err, false)
	}
}

// intend makes durable that the record's paths are to go. Where the state folder takes no record, being full or
// read-only, the teardown goes on without: freeing space must not need space.
func (l *Lifecycle) intend(ctx context.Context, rec journal.Record) {
	l.Journal.Remember(rec) // first: whatever becomes of the write, this driver carries it on
	if err := l.Journal.Put(ctx, rec); err != nil {
		l.Log("work goes on without a durable record; a restart would forget it", "volume", rec.VolumeID, "err", err)
	}
}

// clear unmounts everything of the volume at the path and removes it, as far as its role says.
func (l *Lifecycle) clear(ctx context.Context, rec journal.Record, p journal.Path, patient bool) error {
	var step string
	err := poll(ctx, l.patience(patient), func() (done bool, err error) {
		step, err = l.clearOnce(ctx, rec, p)
		return !errors.Is(err, volume.ErrBusy) || errors.Is(err, errElsewhere), err
	})
	switch {
	case err == nil:
		return nil
	case !patient || !errors.Is(err, volume.ErrBusy) || errors.Is(err, errElsewhere):
		return fmt.Errorf("%s: %w", step, err)
	}
	d, _, deviceErr := l.device(ctx, rec.Ref())
	if deviceErr != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return l.inUse(ctx, step, d, p.Path)
}

func (l *Lifecycle) patience(patient bool) time.Duration {
	if patient {
		return l.Timing.BusyWait
	}
	return 0
}

// errElsewhere is a volume that is mounted at another place too. It is busy, but its holders are known without a
// search, and a short wait does not end it.
var errElsewhere = fmt.Errorf("%w elsewhere", volume.ErrBusy)

// clearOnce is one try of clear; step says what it was at when it returned.
func (l *Lifecycle) clearOnce(ctx context.Context, rec journal.Record, p journal.Path) (step string, err error) {
	step = "unmount " + p.Path
	for {
		table, err := l.mountTable(ctx)
		if err != nil {
			return step, err
		}
		stack := mountsAt(table, p.Path)
		if len(stack) == 0 {
			break
		}
		d, active, err := l.device(ctx, rec.Ref())
		if err != nil && !errors.Is(err, volume.ErrInvalid) {
			return step, err
		}
		top := stack[len(stack)-1]
		switch {
		case !active:
			return step, fmt.Errorf("mounted there is %s of device %d:%d, and logical volume %s has no device; if its volume group was renamed, "+
				"or taken out of --volume-groups, take that back (vgrename), else unmount it by hand if it is not needed", top.FS, top.Major, top.Minor, rec.Ref())
		case !d.Same(top):
			return step, fmt.Errorf("mounted there is %s of device %d:%d, not logical volume %s; unmount it by hand if it is not needed",
				top.FS, top.Major, top.Minor, rec.Ref())
		}
		if p.Role != journal.Target {
			if others := elsewhere(table, d, stagings(rec)...); len(others) != 0 {
				return step, fmt.Errorf("%w: logical volume %s is also mounted at %s", errElsewhere, rec.Ref(), strings.Join(others, ", "))
			}
		}
		// The table is read again afterwards: one unmount takes away one mount of a stack.
		if err := l.Mounts.Unmount(ctx, p.Path); err != nil {
			return step, err
		}
	}
	if p.Role == journal.Staging {
		return step, nil
	}
	step = "remove " + p.Path
	return step, l.Paths.Remove(ctx, p.Path)
}

// stagings gives the paths of the record at which the volume was staged. Two of them must not wait for each other.
func stagings(rec journal.Record) []string {
	var out []string
	for _, p := range rec.Paths {
		if p.Role != journal.Target {
			out = append(out, p.Path)
		}
	}
	return out
}

// removeInline removes the logical volume of an inline volume: only when it is open nowhere, since a mount may live
// on in another mount namespace after ours is gone.
func (l *Lifecycle) removeInline(ctx context.Context, r volume.Ref, patient bool) error {
	if r.VG == "" {
		return nil // it was looked for in every volume group and is in none
	}
	what := "remove logical volume " + r.String()
	d, err := l.closed(ctx, r, what, patient)
	if err != nil {
		return err
	}
	err = l.removeLV(ctx, r, volume.Inline)
	if patient && errors.Is(err, volume.ErrBusy) { // opened between the look and the removal
		return l.inUse(ctx, what, d, "")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// teardownError is what an unfinished teardown answers. Of what caused it only busy shows through, for that has an
// answer of its own in a teardown; anything else is answered Internal, whatever it would mean to another call.
type teardownError struct {
	text string
	busy bool
}

func (e *teardownError) Error() string        { return e.text }
func (e *teardownError) Is(target error) bool { return e.busy && target == volume.ErrBusy }

// carryOn reports an unfinished teardown, and sees to it that it is tried again.
func (l *Lifecycle) carryOn(rec journal.Record, err error) error {
	busy := onlyBusy(err)
	l.schedule(rec.VolumeID, err, busy)
	return &teardownError{busy: busy, text: fmt.Sprintf("%v; %s", err, l.outlook(rec.VolumeID))}
}

// onlyBusy reports whether waiting alone will end the error: each of the joined errors is busy, or a device that is
// about to be resumed.
func onlyBusy(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !onlyBusy(e) })
	}
	return errors.Is(err, volume.ErrBusy) || errors.Is(err, errSuspended)
}

// outlook says what is left to do, and when the driver tries it next.
func (l *Lifecycle) outlook(volumeID string) string {
	when := "now"
	if wait := l.nextTry(volumeID); wait > 0 {
		when = "in " + wait.Round(time.Millisecond).String()
	}
	return fmt.Sprintf("left to do: %s; the driver tries again by itself %s", l.left(volumeID), when)
}

// left says in words what the record of a volume still wants done.
func (l *Lifecycle) left(volumeID string) string {
	rec, ok, err := l.Journal.Get(volumeID)
	if err != nil || !ok {
		return "nothing that is known"
	}
	var steps []string
	for _, p := range rec.Paths {
		verb := "unmount and remove "
		if p.Role == journal.Staging {
			verb = "unmount "
		}
		steps = append(steps, verb+p.Path)
	}
	if rec.Intent == journal.Reserve {
		steps = append(steps, "release the metadata snapshot of thin pool "+rec.Ref().String())
	}
	if rec.Kind == volume.Inline || rec.Intent == journal.Create {
		steps = append(steps, "remove logical volume "+rec.Ref().String())
	}
	return strings.Join(steps, ", ")
}
