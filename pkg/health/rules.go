package health

import (
	"fmt"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// nearlyFull is from how many percent on something is nearly full. lvm.conf's thin_pool_autoextend_threshold is usually below,
// so that where pools are extended by themselves it tells that this did not happen.
const nearlyFull = 85

// Seen is what is known of one volume.
type Seen struct {
	volume.Facts
	Filesystems []volume.FilesystemFacts
	// Strangers are topmost mounts at paths where the volume should be, of devices that are no more or are not its own.
	Strangers []volume.Mount
}

// OfVolume gives the conditions of a volume: pure rules, no questions.
func OfVolume(s Seen) []Condition {
	var l list
	f := s.Facts
	own := volume.DMName(f.Ref)
	redundant := len(f.Raids) != 0 || f.LV.Type.Redundant()

	l.unknown(f)
	l.gone(s)
	if f.LV.Partial {
		l.add(ifElse(redundant, Degraded, Inaccessible), DiskMissing, "a disk of the volume is missing")
	}
	l.devices(f.DeviceFacts, redundant)
	for _, d := range f.Empty {
		if d == own || !redundant {
			l.add(Inaccessible, DeviceGone, "device "+d+" fails every access")
		}
	}
	for _, r := range f.Raids {
		l.raid(r)
	}
	if f.ThinFailed {
		l.add(Inaccessible, ThinVolumeFailed, "its thin pool has lost track of the volume")
	}
	for _, p := range f.Pools {
		l.pool(p, Inaccessible)
	}
	for _, n := range f.Snapshots {
		if n.Device == own { // and its siblings are no matter of it
			l.snapshot(n, "the snapshot", DataLoss)
			return l.filesystems(s).conditions()
		}
	}
	for _, n := range f.Snapshots {
		l.snapshot(n, "its snapshot "+n.Device, Degraded)
	}
	return l.filesystems(s).conditions()
}

// OfStorage gives the conditions of the storage of the node.
func OfStorage(s volume.StorageFacts) []Condition {
	var l list
	if s.Unknown != nil {
		l.add(Inaccessible, GroupUnreadable, s.Unknown.Error())
	}
	for _, vg := range s.Missing {
		l.add(Inaccessible, GroupMissing, "volume group "+vg+" is not there")
	}
	for _, g := range s.Groups {
		if n := g.Group.MissingPVs; n != 0 {
			l.add(Degraded, DiskMissing, fmt.Sprintf("volume group %s: %d of %d disks are missing", g.Group.Name, n, len(g.Group.PVs)))
		}
		l.devices(g.Devices, true)
		for _, p := range g.Devices.Pools {
			l.pool(p, Degraded)
		}
		for _, n := range g.Devices.Snapshots {
			l.snapshot(n, "snapshot "+n.Device, Degraded)
		}
	}
	return l.conditions()
}

// unknown is about what LVM does not tell. Where a device hangs it was not asked, and that is the condition.
func (l *list) unknown(f volume.Facts) {
	if f.Unknown != nil && !f.Hangs() {
		works := f.Active && len(f.Failed) == 0
		l.add(ifElse(works, Degraded, Inaccessible), GroupUnreadable, f.Unknown.Error())
	}
}

func (l *list) gone(s Seen) {
	switch {
	case s.Gone:
		l.add(DataLoss, VolumeGone, "LVM has no such logical volume any more, but it is in use")
	case s.Active && s.LV.UUID != "" && !strings.HasSuffix(s.UUID, strings.ReplaceAll(s.LV.UUID, "-", "")):
		l.add(DataLoss, VolumeGone, "the device of its name is of another logical volume, which LVM has no more")
	}
	for _, m := range s.Strangers {
		l.add(Inaccessible, DeviceGone, fmt.Sprintf("device %d:%d at a path of the volume is not its device", m.Major, m.Minor))
	}
}

func (l *list) devices(f volume.DeviceFacts, redundant bool) {
	for _, d := range f.Suspended {
		l.add(Inaccessible, DeviceSuspended, "device "+d+" is suspended, each access hangs")
	}
	for _, d := range f.Hung {
		l.add(Inaccessible, DeviceHung, "device "+d.Device+" does not answer")
	}
	for _, d := range f.Failed {
		if d.Disk {
			l.add(ifElse(redundant, Degraded, Inaccessible), DiskUnreadable, "disk "+d.Device+": "+d.Text)
		} else {
			l.add(Inaccessible, DeviceUnreadable, "device "+d.Device+": "+d.Text)
		}
	}
	for _, d := range f.Erring {
		l.add(Degraded, DiskErrors, "disk "+d.Device+": "+d.Text)
	}
}

func (l *list) raid(r volume.RaidStatus) {
	dead := strings.Count(r.Legs, "D") + strings.Count(r.Legs, "-")
	switch {
	case dead == 0:
	case survives(r):
		l.add(Degraded, RaidDegraded, fmt.Sprintf("%s: %d of %d legs have failed (%s)", r.Device, dead, len(r.Legs), r.Legs))
	default:
		l.add(Inaccessible, RaidFailed, fmt.Sprintf("%s: %d of %d legs have failed (%s), too many", r.Device, dead, len(r.Legs), r.Legs))
	}
	switch {
	case r.Synced >= r.Total, r.Action == "check": // a check shows its progress in the same place
	case dead != 0 && (r.Action == "idle" || r.Action == "frozen"): // it waits for a leg
	default:
		l.add(Degraded, RaidResyncing, fmt.Sprintf("%s: %s, %d %% in sync", r.Device, r.Action, percent(r.Synced, r.Total)))
	}
	if r.Mismatches != 0 {
		l.add(Degraded, RaidMismatch, fmt.Sprintf("%s: its copies differ in %d sectors", r.Device, r.Mismatches))
	}
}

// survives reports whether enough legs are left (lvmraid(7)). LVM's raid10 keeps two copies, on neighbours.
func survives(r volume.RaidStatus) bool {
	isDead := func(i int) bool { return r.Legs[i] == 'D' || r.Legs[i] == '-' }
	dead := strings.Count(r.Legs, "D") + strings.Count(r.Legs, "-")
	switch {
	case r.Type == "raid1":
		return dead < len(r.Legs)
	case strings.HasPrefix(r.Type, "raid10") && len(r.Legs)%2 == 0:
		for i := 0; i < len(r.Legs); i += 2 {
			if isDead(i) && isDead(i+1) {
				return false
			}
		}
		return true
	case strings.HasPrefix(r.Type, "raid6"):
		return dead <= 2
	case strings.HasPrefix(r.Type, "raid0"):
		return dead == 0
	}
	return dead <= 1
}

// pool: worst is the status where writes fail.
func (l *list) pool(p volume.PoolStatus, worst Status) {
	name := strings.TrimSuffix(p.Device, "-tpool")
	data, metadata := percent(p.UsedData, p.Data), percent(p.UsedMetadata, p.Metadata)
	if p.Failed {
		l.add(Inaccessible, ThinPoolFailed, "thin pool "+name+" has failed")
		return
	}
	switch {
	case p.OutOfSpace:
		l.add(worst, ThinPoolFull, "thin pool "+name+" is full, writes hang or fail")
	case data >= 100: // what is written already can be written again
		l.add(Degraded, ThinPoolFull, "thin pool "+name+" is full")
	case data >= nearlyFull:
		l.add(Degraded, ThinPoolNearlyFull, fmt.Sprintf("thin pool %s is %d %% full", name, data))
	}
	if p.ReadOnly {
		l.add(worst, ThinPoolReadOnly, "thin pool "+name+" is read-only")
	}
	if metadata >= nearlyFull {
		l.add(Degraded, ThinPoolMetadataNearlyFull, fmt.Sprintf("metadata of thin pool %s is %d %% full", name, metadata))
	}
	if p.NeedsCheck {
		l.add(Degraded, ThinPoolNeedsCheck, "thin pool "+name+" needs a check")
	}
}

func (l *list) snapshot(s volume.SnapshotStatus, what string, lost Status) {
	switch full := percent(s.Used, s.Total); {
	case s.Lost != "":
		l.add(lost, SnapshotLost, what+" is lost ("+s.Lost+")")
	case full >= nearlyFull:
		l.add(Degraded, SnapshotNearlyFull, fmt.Sprintf("%s is %d %% full", what, full))
	}
}

func (l list) filesystems(s Seen) list {
	for _, f := range s.Filesystems {
		fs := f.Mount.FS
		if f.Hung {
			l.add(Inaccessible, FilesystemHung, fs+": its root folder cannot be opened in time")
		}
		if f.ShutDown != "" {
			l.add(Inaccessible, FilesystemShutdown, fs+" has shut itself down")
		} else if f.ReadOnly {
			l.add(Inaccessible, FilesystemReadOnly, fs+" has gone read-only")
		}
		switch {
		case f.Damages != 0:
			l.add(DataLoss, FilesystemDamaged, fmt.Sprintf("%s: %d blocks were not what was written", fs, f.Damages))
		case f.Errors != 0:
			l.add(Degraded, FilesystemErrors, fmt.Sprintf("%s has recorded %d errors", fs, f.Errors))
		}
	}
	return l
}

func percent(used, total int64) int64 {
	if total <= 0 {
		return 0
	}
	return int64(100 * (float64(used) / float64(total)))
}

func ifElse(is bool, yes, no Status) Status {
	if is {
		return yes
	}
	return no
}
