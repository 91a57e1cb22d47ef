package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Modify changes mutable parameters of a persistent volume; those that are not named stay (CSI spec, ControllerModifyVolume).
//
//  1. What the volume cannot have, or cannot have here now, is refused, and nothing is changed.
//  2. The intent is journalled, with all parameters as they are to be.
//  3. The tag and what LVM holds are changed by one LVM command; then the I/O of the pods that have the volume is limited.
//  4. The intent is forgotten.
//
// Repeating it is OK. ErrInvalid, ErrNotFound, ErrPrecondition: nothing was changed. After any other error, and after a kill, the
// record is there, and the change is carried on.
func (l *Lifecycle) Modify(ctx context.Context, r volume.Ref, changes volume.Mutable) error {
	id := l.id(r)
	defer l.settle(id)
	rec, recorded, err := l.Journal.Get(id)
	if err != nil {
		return err
	}
	lv, err := l.LVM.Lookup(ctx, r)
	if err == nil {
		err = madeBy(rec, recorded, lv)
	}
	switch {
	case err != nil:
		return err
	case lv.Tags.Kind != volume.Persistent:
		return fmt.Errorf("%w: logical volume %s is of kind %q, and cannot be modified", volume.ErrPrecondition, r, lv.Tags.Kind)
	}
	if err := lv.Whole(); err != nil {
		return err
	}
	begun := recorded && rec.Intent == journal.Modify // by an earlier call, and carried on with this one
	has := lv.Tags.Mutable
	if begun {
		has = rec.Mutable
	}
	now, err := volume.ReadMutable(has)
	if err != nil {
		return fmt.Errorf("logical volume %s: %w", r, err)
	}
	to := now.With(changes)
	if err := to.Check(lv.Type); err != nil {
		return err
	}
	if err := l.limitable(ctx, r, to); err != nil {
		return err
	}
	own, earlier := !recorded || begun, rec // the record of a teardown stands; then the CO's repetition must do
	if own {
		rec = journal.Record{VolumeID: id, Kind: volume.Persistent, VG: r.VG, LV: r.LV, Intent: journal.Modify, Mutable: to.String(), Since: time.Now()}
		l.intend(ctx, rec)
	}
	refused, err := l.apply(ctx, lv, to)
	switch {
	case refused && begun:
		l.intend(ctx, earlier) // which is carried on without this one
	case own && (err == nil || refused):
		l.forget(ctx, rec)
		l.finished(id)
	}
	return err
}

// finishModify does what the record of a Modify says. What the volume cannot have any more is forgotten: who asks for it again is told why.
func (l *Lifecycle) finishModify(ctx context.Context, rec journal.Record) error {
	var refused bool
	lv, err := l.LVM.Lookup(ctx, rec.Ref())
	if err == nil {
		var to volume.Mutable
		if to, err = volume.ReadMutable(rec.Mutable); err == nil {
			refused, err = l.apply(ctx, lv, to)
		}
	}
	if err != nil && !refused && !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrInvalid) {
		return err
	}
	l.forget(ctx, rec)
	return nil
}

// apply is step 3 of Modify. refused: the volume cannot have them now, and nothing was changed.
func (l *Lifecycle) apply(ctx context.Context, lv volume.LV, to volume.Mutable) (refused bool, err error) {
	tags := lv.Tags
	tags.Mutable = to.String()
	add, remove := lv.Tags.Changes(tags)
	if err := l.LVM.Tune(ctx, lv.Ref, lv.Tags.Kind, add, remove, to); err != nil {
		return errors.Is(err, volume.ErrInvalid) || errors.Is(err, volume.ErrPrecondition), err
	}
	return false, l.limitPods(ctx, lv.Ref, to)
}

// limitable is nil where the I/O of all pods that have the volume can be limited. A limit of none can be had anywhere.
func (l *Lifecycle) limitable(ctx context.Context, r volume.Ref, m volume.Mutable) error {
	return l.eachPod(ctx, r, m, func(pod string, d volume.Device, _ volume.IOLimits) error {
		_, err := l.Cgroups.IOLimits(ctx, pod, d)
		return err
	})
}

// limitPods limits the I/O of all pods that have the volume. A pod without a cgroup has no process that could do any.
func (l *Lifecycle) limitPods(ctx context.Context, r volume.Ref, m volume.Mutable) error {
	return l.eachPod(ctx, r, m, func(pod string, d volume.Device, limits volume.IOLimits) error {
		return l.Cgroups.SetIOLimits(ctx, pod, d, limits)
	})
}

func (l *Lifecycle) eachPod(ctx context.Context, r volume.Ref, m volume.Mutable, do func(pod string, d volume.Device, limits volume.IOLimits) error) error {
	limits, set := m.IOLimits()
	if !set {
		return nil
	}
	d, active, err := l.device(ctx, r)
	if err != nil || !active {
		return err
	}
	table, err := l.mountTable(ctx)
	if err != nil {
		return err
	}
	var pods []string
	for _, mount := range table {
		if d.Same(mount) {
			pod, err := l.podOf(mount.Target)
			if err != nil {
				return err
			}
			pods = append(pods, pod)
		}
	}
	slices.Sort(pods)
	for _, pod := range slices.Compact(pods) {
		if pod == "" { // the staging path, or a place of somebody else's
			continue
		}
		err := do(pod, d, limits)
		none := limits == (volume.IOLimits{}) && errors.Is(err, volume.ErrPrecondition)
		if err != nil && !none && !errors.Is(err, volume.ErrNotFound) {
			return fmt.Errorf("logical volume %s is published to pod %s, whose I/O cannot be limited: %w", r, pod, err)
		}
	}
	return nil
}

// limitTarget limits the I/O of the pod that the target path belongs to, before it can do any. kubelet makes the pod's cgroup at
// about the same time as it asks for the volume, so that is waited for a moment.
func (l *Lifecycle) limitTarget(ctx context.Context, lv volume.LV, d volume.Device, target string) error {
	m, err := lv.Tags.MutableParameters()
	if err != nil {
		return fmt.Errorf("logical volume %s: %w", lv.Ref, err)
	}
	limits, set := m.IOLimits()
	if !set {
		return nil
	}
	pod, err := l.podOf(target)
	if err == nil && pod == "" && limits != (volume.IOLimits{}) {
		err = fmt.Errorf("%w: which pod the target path is of cannot be told", volume.ErrPrecondition)
	}
	if err == nil && pod != "" {
		err = poll(ctx, l.Timing.BusyWait, func() (bool, error) {
			err := l.Cgroups.SetIOLimits(ctx, pod, d, limits)
			return limits == (volume.IOLimits{}) || !errors.Is(err, volume.ErrNotFound), err
		})
	}
	missing := errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrPrecondition)
	switch {
	case err == nil, missing && limits == (volume.IOLimits{}):
		return nil
	case missing:
		return fmt.Errorf("%w: logical volume %s has I/O limits, and they cannot be set: %v", volume.ErrPrecondition, lv.Ref, err) //nolint:errorlint // "not found" is of the cgroup
	}
	return fmt.Errorf("limit the I/O on logical volume %s: %w", lv.Ref, err)
}

// podOf gives the uid of the pod whose target a path is, as kubelet makes them: <kubelet>/pods/<uid>/..., and for block volumes
// <kubelet>/plugins/kubernetes.io/csi/volumeDevices/publish/<name>/<uid>. "" for any other path.
func (l *Lifecycle) podOf(path string) (string, error) {
	pods, err := l.podsFolder()
	if err != nil {
		return "", err
	}
	if below, ok := strings.CutPrefix(path, pods+"/"); ok {
		pod, _, _ := strings.Cut(below, "/")
		return pod, nil
	}
	published := filepath.Join(filepath.Dir(pods), "plugins/kubernetes.io/csi/volumeDevices/publish") + "/"
	if below, ok := strings.CutPrefix(path, published); ok && strings.Count(below, "/") == 1 {
		return filepath.Base(below), nil
	}
	return "", nil
}

// limit sees to it, at the start and every minute, that the I/O of pods is limited as the tags say: whoever killed the driver may have
// done so before that was written, and whoever manages cgroups may have written over it.
func (l *Lifecycle) limit(stop <-chan struct{}) {
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	told := map[volume.Ref]string{}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), effectBound)
		l.safely("limit", func() { l.limitAll(ctx, told) })
		cancel()
		select {
		case <-stop:
			return
		case <-every.C:
		}
	}
}

func (l *Lifecycle) limitAll(ctx context.Context, told map[volume.Ref]string) {
	lvs, err := l.Inventory.List(ctx)
	if err != nil {
		return // those who ask for volumes are told why; the next look is in a minute
	}
	for _, lv := range lvs {
		m, err := lv.Tags.MutableParameters()
		if _, set := m.IOLimits(); err != nil || !set {
			continue
		}
		release, err := l.Locks.Try(volume.LockKey(l.id(lv.Ref)), "I/O limits")
		if err != nil { // a call is at it, and sees to them itself
			continue
		}
		err = l.limitPods(ctx, lv.Ref, m)
		release()
		if text := fmt.Sprint(err); err != nil && told[lv.Ref] != text {
			told[lv.Ref] = text
			l.Log("the I/O limits of a volume cannot be kept", "volume", l.id(lv.Ref), "err", err)
		} else if err == nil {
			delete(told, lv.Ref)
		}
	}
}
