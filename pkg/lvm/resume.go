package lvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Resume implements lifecycle.LVM: it has LVM resume devices of ours that a killed LVM command left suspended.
//
//  1. sysfs tells which devices are suspended. Where none is, that is all.
//  2. The device-mapper uuid and the devices above tell to which logical volume each belongs. It must be one of ours, or a
//     thin pool that holds one.
//  3. "lvchange --refresh" brings it to what the metadata say, and resumes it. LVM's own lock on the group keeps any
//     other LVM command from being in the middle of it: one that runs is waited for, and then has resumed it itself.
//
// Pools come first: the refresh of a thin volume flushes it, which hangs while its pool is suspended. A disk below the
// volume group that somebody suspended is his to resume; it is only named.
func (l *LVM) Resume(ctx context.Context) (resumed []volume.Ref, err error) {
	suspended, err := l.dm.allSuspended()
	if err != nil || len(suspended) == 0 {
		return nil, err
	}
	s, err := l.inventory.current(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("devices are suspended (%v), and whose they are could not be found out: %w", suspended, err)
	}
	targets, err := l.refreshable(s, suspended)
	errs := []error{err}
	for _, r := range targets {
		if err := l.refresh(ctx, r); err != nil {
			errs = append(errs, fmt.Errorf("resuming logical volume %s: %w", r, err))
			continue
		}
		resumed = append(resumed, r)
	}
	return resumed, errors.Join(errs...)
}

func (l *LVM) refresh(ctx context.Context, r volume.Ref) error {
	done, err := l.queue(ctx, r.VG)
	if err != nil {
		return err
	}
	defer done()
	_, err = l.commands.write(ctx, "lvchange", "-y", "--refresh", r.String())
	return err
}

// refreshable gives the logical volumes whose refresh resumes the devices, pools first. The error names devices of ours
// that cannot be resumed so.
func (l *LVM) refreshable(s *state, suspended []string) ([]volume.Ref, error) {
	var pools, others []volume.Ref
	var errs []error
	for _, name := range suspended {
		isLVM := strings.HasPrefix(l.dm.uuid(name), dmPrefix)
		for _, lv := range l.above(s, name, 0) {
			isPool := l.holdsOurs(s, lv)
			switch {
			case lv.Tags.Owner != l.cfg.Owner && !isPool: // somebody else's
			case !isLVM && len(errs) == 0:
				errs = append(errs, fmt.Errorf("device %s below logical volume %s is suspended, and none of LVM's; end what suspended it, or: dmsetup resume %s",
					name, lv.Ref, l.dm.alias(name)))
			case !isLVM: // one is enough to be told
			case isPool:
				pools = append(pools, lv.Ref)
			case !l.wholeStackSuspended(s, name, lv):
				errs = append(errs, fmt.Errorf("device %s below logical volume %s is suspended and the devices on it are not, "+
					"which LVM does not leave so; resume it with: dmsetup resume %s", name, lv.Ref, l.dm.alias(name)))
			default:
				others = append(others, lv.Ref)
			}
		}
	}
	all := append(pools, others...)
	var once []volume.Ref
	for _, r := range all {
		if !slices.Contains(once, r) {
			once = append(once, r)
		}
	}
	return once, errors.Join(errs...)
}

// above gives the logical volume that a device belongs to; of one that is internal to others, these.
func (l *LVM) above(s *state, name string, depth int) []volume.LV {
	if lv, ok := s.owner(l.dm.uuid(name)); ok {
		return []volume.LV{lv}
	}
	var out []volume.LV
	for _, h := range l.dm.neighbours(name, "holders") {
		if depth < maxStack {
			out = append(out, l.above(s, h, depth+1)...)
		}
	}
	return out
}

// owner finds the logical volume by a device-mapper uuid: LVM-, the uuids of group and logical volume, and for devices
// beside its own a suffix ("-tpool", "-real", "-cow").
func (s *state) owner(uuid string) (volume.LV, bool) {
	for _, g := range s.groups {
		for _, lv := range g.lvs {
			if own := dmUUIDOf(g.UUID, lv.UUID); uuid == own || strings.HasPrefix(uuid, own+"-") {
				return lv, true
			}
		}
	}
	return volume.LV{}, false
}

// holdsOurs reports whether it is a thin pool with one of our volumes in it.
func (l *LVM) holdsOurs(s *state, pool volume.LV) bool {
	for _, lv := range s.groups[pool.VG].lvs {
		if lv.Pool == pool.LV && lv.Tags.Owner == l.cfg.Owner {
			return true
		}
	}
	return false
}

// wholeStackSuspended reports whether the devices of the logical volume above this one are suspended too. LVM suspends from
// the top and resumes from the bottom. Otherwise the refresh would flush the upper into the lower, and hang.
func (l *LVM) wholeStackSuspended(s *state, name string, lv volume.LV) bool {
	for _, h := range l.dm.neighbours(name, "holders") {
		owner, visible := s.owner(l.dm.uuid(h))
		if visible && owner.Ref != lv.Ref {
			continue
		}
		if is, err := l.dm.isSuspended(h); err != nil || !is || !l.wholeStackSuspended(s, h, lv) {
			return false
		}
	}
	return true
}

// allSuspended gives the device-mapper devices that are suspended now, as "dm-3".
func (d deviceMapper) allSuspended() ([]string, error) {
	folders, err := filepath.Glob(filepath.Join(d.sys, "block/dm-*"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range folders {
		name := filepath.Base(f)
		is, err := d.isSuspended(name)
		if err != nil {
			return nil, err
		}
		if is {
			out = append(out, name)
		}
	}
	return out, nil
}

// isSuspended asks sysfs, which says what DM_DEV_STATUS says (dm_attr_suspended_show in linux/drivers/md/dm-sysfs.c), and
// touches no device. What is no device-mapper device, or is gone by now, is not.
func (d deviceMapper) isSuspended(name string) (bool, error) {
	n, err := sysfs.Number(filepath.Join(d.sys, "block", name, "dm/suspended"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return n != 0, err
}

// suspendedBelow reports whether a device is suspended on which this one lies: access to it hangs as well.
func (d deviceMapper) suspendedBelow(name string, depth int) (bool, error) {
	for _, s := range d.neighbours(name, "slaves") {
		is, err := d.isSuspended(s)
		if err == nil && !is && depth < maxStack {
			is, err = d.suspendedBelow(s, depth+1)
		}
		if is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// uuid and alias give the device-mapper uuid and name; "" where it is no device-mapper device, or gone by now.
func (d deviceMapper) uuid(name string) string  { return d.attr(name, "dm/uuid") }
func (d deviceMapper) alias(name string) string { return d.attr(name, "dm/name") }

func (d deviceMapper) attr(name, attr string) string {
	text, _ := sysfs.Read(filepath.Join(d.sys, "block", name, attr))
	return text
}

// neighbours gives the devices directly above ("holders") or below ("slaves").
func (d deviceMapper) neighbours(name, which string) []string {
	entries, _ := os.ReadDir(filepath.Join(d.sys, "block", name, which))
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
