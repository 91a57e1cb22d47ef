package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Inventory is what the reaper asks of LVM besides. Implemented by pkg/lvm, and by pkg/fake for tests.
type Inventory interface {
	// List gives all logical volumes with our owner tag in our groups. No LVM command where nothing has changed.
	List(ctx context.Context) ([]volume.LV, error)
}

// OrphanPolicy is what becomes of orphans.
type OrphanPolicy string

// The policies.
const (
	RemoveOrphans OrphanPolicy = "remove"
	ReportOrphans OrphanPolicy = "report" // told once to Config.Log, and again when it ends
)

// reaper finds orphans: inline volumes that no caller will ever clean, because their pod is gone and kubelet has
// forgotten them (a crash in the middle of a publish, a node that was rebuilt, a lost state folder). They are removed on
// positive evidence only, all of which must hold at each look for the whole grace time:
//
//  1. It is an inline volume with our owner tag and the name we would give it, and lies on no missing disk; or a record of a
//     publish whose logical volume is surely not there.
//  2. Nothing says otherwise in the journal: there is no record, or one of a publish. Of a teardown the retries take care.
//  3. The pod is known, by the tag that the volume was made with and by the recorded target, and has surely no folder
//     below kubelet's. kubelet removes that folder after the volumes in it, so it will not ask for this one any more.
//  4. It is mounted nowhere here, and open nowhere at all.
//  5. No call is at it (its lock is free), and none published it meanwhile.
//
// A question that fails ends the grace time of what it is about, and so does a restart. The clock of the time is monotonic:
// setting the machine's clock changes nothing. Removal is that of an unpublish, with a record of its own. Persistent volumes are never
// touched: one that nobody claims may hold the only copy of data. Only what copies left is another matter (lostCopies).
type reaper struct {
	mu      sync.Mutex
	orphans map[string]*orphan // by volume id
	doubt   string             // why the last look saw nothing; "": it did
}

// orphan is a volume for which all evidence has held since.
type orphan struct {
	uuid     string // of its logical volume; "": there is none
	since    time.Time
	reported bool
}

// candidate is a volume that could be an orphan.
type candidate struct {
	id    string
	lv    volume.LV // no UUID: there is only a record
	twice bool      // another logical volume, in another group, is of this volume too
}

// reap looks for orphans, and for what copies left, until stop is closed: at once, and then every now and then. The looks are so close that a grace time is not
// exceeded by much, and so rare that a driver with nothing to do does next to nothing.
func (l *Lifecycle) reap(stop <-chan struct{}) {
	every := time.NewTicker(min(max(l.Timing.OrphanGrace/5, 10*time.Millisecond), time.Minute))
	defer every.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), effectBound)
		l.safely("reap", func() { l.look(ctx) })
		l.safely("lost copies", func() { l.lostCopies(ctx) })
		cancel()
		select {
		case <-stop:
			return
		case <-every.C:
		}
	}
}

// look asks all questions once, and removes or reports what has been an orphan for long enough.
func (l *Lifecycle) look(ctx context.Context) {
	candidates, err := l.candidates(ctx)
	var pods string
	if err == nil && len(candidates) != 0 {
		pods, err = l.podsFolder()
	}
	if err != nil {
		candidates = nil // don't know is never no
	}
	l.tellDoubt(err)
	for id, c := range candidates {
		if err := l.lookAt(ctx, *c, pods); err != nil {
			l.noOrphan(id, err.Error())
		}
	}
	for _, id := range l.orphanIDs() {
		if candidates[id] == nil {
			l.noOrphan(id, "it is gone, or it cannot be told")
		}
	}
}

// candidates gives, by id, the inline volumes, and the records of publishes without a logical volume.
func (l *Lifecycle) candidates(ctx context.Context) (map[string]*candidate, error) {
	all, err := l.Inventory.List(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]*candidate{}
	for _, lv := range all {
		id := lv.Name()
		switch {
		case lv.Tags.Owner != l.Owner || lv.Tags.Kind != volume.Inline:
		case found[id] != nil:
			found[id].twice = true
		default:
			found[id] = &candidate{id: id, lv: lv}
		}
	}
	for _, rec := range l.Journal.All() {
		if rec.Kind == volume.Inline && rec.Intent == journal.Publish && found[rec.VolumeID] == nil {
			found[rec.VolumeID] = &candidate{id: rec.VolumeID}
		}
	}
	return found, nil
}

// podsFolder gives the folder of kubelet's pods, as paths in the mount table and in the journal show it.
func (l *Lifecycle) podsFolder() (string, error) {
	below, err := l.Paths.Resolve(filepath.Join(l.KubeletDir, "pods", "any"))
	return filepath.Dir(below), err
}

// lookAt looks at one volume. nil: it is an orphan, and was taken note of, or removed. The error says what speaks against it.
func (l *Lifecycle) lookAt(ctx context.Context, c candidate, pods string) error {
	rec, _, err := l.Journal.Get(c.id)
	if err != nil {
		return err
	}
	untold := l.podsGone(c, rec, pods)
	if untold != nil && !errors.Is(untold, errUntold) {
		return untold // this is what is asked of a volume in use at each look: without its lock, and without any device
	}
	release, err := l.Locks.Try(volume.LockKey(c.id), "the look for orphans")
	if err != nil {
		return err
	}
	defer release()
	rec, recorded, err := l.Journal.Get(c.id) // again: it may be another one by now
	if err != nil {
		return err
	}
	if err := l.abandoned(ctx, c, rec, recorded); err != nil {
		return err
	}
	if !l.orphanFor(c, l.Timing.OrphanGrace) {
		return nil
	}
	if l.Orphans == ReportOrphans || untold != nil {
		l.report(c.id, volume.Ref{VG: c.lv.VG, LV: volume.LVName(volume.Inline, c.id)}, untold)
		return nil
	}
	return l.removeOrphan(ctx, c, rec, recorded)
}

// errUntold: of which pod the volume is cannot be told.
var errUntold = errors.New("its pod cannot be told")

// podsGone is nil where each pod that the volume names has surely no folder any more.
func (l *Lifecycle) podsGone(c candidate, rec journal.Record, pods string) error {
	var names []string
	if c.lv.Tags.PodUID != "" {
		names = append(names, c.lv.Tags.PodUID)
	}
	for _, p := range rec.Paths {
		below, ok := strings.CutPrefix(p.Path, pods+"/")
		name, _, more := strings.Cut(below, "/")
		if !ok || !more {
			return fmt.Errorf("%w: its target %s is not in a pod's folder below %s", errUntold, p.Path, pods)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return errUntold
	}
	for _, name := range names {
		gone, err := l.Paths.Lacks(pods, name)
		if err != nil {
			return fmt.Errorf("look for the folder of pod %s: %w", name, err)
		}
		if !gone {
			return fmt.Errorf("the folder of pod %s is there", name)
		}
	}
	return nil
}

// abandoned is nil where nothing on this node uses the volume, and nothing is intended for it. The lock of the volume is held.
func (l *Lifecycle) abandoned(ctx context.Context, c candidate, rec journal.Record, recorded bool) error {
	ref := c.lv.Ref
	switch {
	case recorded && (rec.Intent != journal.Publish || rec.Kind != volume.Inline):
		return fmt.Errorf("its record has intent %s", rec.Intent)
	case c.twice:
		return errors.New("two logical volumes, in two groups, are of this volume")
	case c.lv.UUID == "" && !recorded:
		return errors.New("its record is gone")
	case c.lv.UUID == "":
		ref = rec.Ref()
		if _, err := l.LVM.Lookup(ctx, ref); !errors.Is(err, volume.ErrNotFound) {
			return fmt.Errorf("its logical volume %s is there, or cannot be looked for: %w", ref, err)
		}
	case recorded && rec.Ref() != ref:
		return fmt.Errorf("its record names another logical volume, %s", rec.Ref())
	case c.lv.Partial || c.lv.Tags.State != "":
		return fmt.Errorf("logical volume %s is not whole", ref)
	case ref.LV != volume.LVName(volume.Inline, c.id):
		return fmt.Errorf("logical volume %s has not the name it was made with", ref)
	}
	d, active, err := l.device(ctx, ref)
	if err != nil || !active {
		return err
	}
	table, err := l.mountTable(ctx)
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(table, d.Same):
		return errors.New("it is mounted")
	case d.Open != 0:
		return errors.New("its device is open")
	}
	return nil
}

// orphanFor takes note of an orphan, and reports whether it has been one for so long.
func (l *Lifecycle) orphanFor(c candidate, grace time.Duration) bool {
	l.reaper.mu.Lock()
	defer l.reaper.mu.Unlock()
	o := l.reaper.orphans[c.id]
	if o == nil || o.uuid != c.lv.UUID {
		l.reaper.orphans[c.id] = &orphan{uuid: c.lv.UUID, since: time.Now()}
		return false
	}
	return time.Since(o.since) >= grace
}

// noOrphan forgets that the volume was one: its grace time begins anew if it becomes one again.
func (l *Lifecycle) noOrphan(id, why string) {
	l.reaper.mu.Lock()
	o := l.reaper.orphans[id]
	delete(l.reaper.orphans, id)
	l.reaper.mu.Unlock()
	if o != nil && o.reported {
		l.Log("an inline volume is no orphan any more", "volume", id, "why", why)
	}
}

func (l *Lifecycle) orphanIDs() []string {
	l.reaper.mu.Lock()
	defer l.reaper.mu.Unlock()
	var ids []string
	for id := range l.reaper.orphans {
		ids = append(ids, id)
	}
	return ids
}

// report tells of an orphan that is not removed; once.
func (l *Lifecycle) report(id string, r volume.Ref, untold error) {
	l.reaper.mu.Lock()
	o := l.reaper.orphans[id]
	first := o != nil && !o.reported
	if o != nil {
		o.reported = true
	}
	l.reaper.mu.Unlock()
	switch {
	case !first:
	case untold != nil:
		l.Log("an inline volume is used by nobody, but may be needed; unpublish it, or remove it, if it is not",
			"volume", id, "lv", r.String(), "why", untold)
	default:
		l.Log("an inline volume is an orphan, and is kept because of --orphan-policy=report: its pod is gone, and nothing uses it",
			"volume", id, "lv", r.String())
	}
}

// removeOrphan is an unpublish that nobody asked for: intent, reclaim, forget.
func (l *Lifecycle) removeOrphan(ctx context.Context, c candidate, rec journal.Record, recorded bool) error {
	if !recorded {
		rec = journal.Record{VolumeID: c.id, Kind: volume.Inline, VG: c.lv.VG, LV: c.lv.LV}
	}
	rec.Intent, rec.Since = journal.Reclaim, time.Now()
	l.Log("removing an orphan: its pod is gone, and nothing uses it", "volume", c.id, "lv", rec.Ref().String())
	l.noOrphan(c.id, "it is removed")
	if l.Counts.OrphanRemoved != nil {
		l.Counts.OrphanRemoved()
	}
	l.intend(ctx, rec)
	if err := l.reclaim(ctx, rec, rec.Paths, false); err != nil {
		l.schedule(c.id, err, onlyBusy(err)) // it is a teardown like any other from here on
		return nil
	}
	l.finished(c.id)
	return nil
}

// tellDoubt logs why nothing is looked for, when that changes.
func (l *Lifecycle) tellDoubt(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	l.reaper.mu.Lock()
	changed := l.reaper.doubt != text
	l.reaper.doubt = text
	l.reaper.mu.Unlock()
	if changed && err != nil {
		l.Log("orphans cannot be looked for now", "err", err)
	}
}
