package fake

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Sickness is what ails an LV, beside what the machine shows by itself: missing disks and suspended devices.
type Sickness struct {
	Devices        volume.DeviceFacts     // added to those of the LV; of a pool, to those of its volumes too
	Filesystem     volume.FilesystemFacts // what the file system on it tells
	ForcedReadOnly bool                   // the kernel has made the file system read-only
}

// Sicken changes what ails an LV.
func (m *Machine) Sicken(r volume.Ref, change func(*Sickness)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.volume(r)
	change(&v.sick)
	if v.disk.fs != nil {
		v.disk.fs.sick = v.sick
	}
}

// FindPV brings back a disk that LosePV took away.
func (m *Machine) FindPV(vg, device string) {
	m.byHand(vg, func(g *group) {
		for _, p := range g.pvs {
			p.missing = p.missing && p.device != device
		}
	})
}

// DisksOf gives the disks that an LV lies on.
func (m *Machine) DisksOf(r volume.Ref) (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p := range m.volume(r).areas {
		out = append(out, p.device)
	}
	slices.Sort(out)
	return out
}

// Forget takes an LV out of LVM's metadata; its device stays. Remember puts it back.
func (m *Machine) Forget(r volume.Ref) {
	m.byHand(r.VG, func(g *group) {
		if g.forgotten == nil {
			g.forgotten = map[string]*lv{}
		}
		g.forgotten[r.LV] = g.lvs[r.LV]
		delete(g.lvs, r.LV)
	})
}

// Remember undoes Forget.
func (m *Machine) Remember(r volume.Ref) {
	m.byHand(r.VG, func(g *group) {
		g.lvs[r.LV] = g.forgotten[r.LV]
		delete(g.forgotten, r.LV)
	})
}

// VolumeFacts implements health.LVM.
func (c *LVM) VolumeFacts(ctx context.Context, r volume.Ref) (volume.Facts, error) {
	found, err := c.Lookup(ctx, r)
	if err == nil {
		r = found.Ref
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.volume(r)
	f := volume.Facts{Ref: r, LV: found}
	if g := c.groups[r.VG]; errors.Is(err, volume.ErrNotFound) && g != nil && g.forgotten[r.LV] != nil {
		v, f.Gone, err = g.forgotten[r.LV], true, nil
	}
	if v != nil {
		f.DeviceFacts = c.facts(v)
	}
	switch {
	case f.Hangs():
		f.LV, f.Unknown = volume.LV{}, errors.New("a device hangs")
	case err == nil:
	case volume.NotOurs(err), errors.Is(err, volume.ErrInvalid):
		return volume.Facts{}, err
	default:
		f.Unknown = err
	}
	return f, nil
}

// Look implements health.LVM.
func (c *LVM) Look() func(context.Context, volume.Ref) (volume.Facts, error) { return c.VolumeFacts }

// facts are those of the device of an LV and of what it lies on. With m.mu held.
func (m *Machine) facts(v *lv) (f volume.DeviceFacts) {
	if !v.active {
		return f
	}
	f = v.sick.Devices
	f.Active, f.Major, f.Minor, f.Open = true, dmMajor, v.minor, m.openCount(v)
	f.UUID = "LVM-" + strings.ReplaceAll(v.group.uuid+v.uuid, "-", "")
	if v.suspended {
		f.Suspended = append(slices.Clone(f.Suspended), v.nodeName())
	}
	if pool := v.group.lvs[v.poolName]; v.layout == volume.Thin && pool != nil {
		f.Pools = append(slices.Clone(f.Pools), pool.sick.Devices.Pools...)
	}
	for _, o := range v.group.lvs {
		if o.origin == v && o.thick() {
			f.Snapshots = append(slices.Clone(f.Snapshots), o.sick.Devices.Snapshots...)
		}
	}
	return f
}

// StorageFacts implements health.LVM.
func (c *LVM) StorageFacts(ctx context.Context) (f volume.StorageFacts) {
	groups, err := c.readable(ctx)
	if err != nil {
		return volume.StorageFacts{Unknown: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.names("") {
		if c.groups[name] == nil {
			f.Missing = append(f.Missing, name)
		}
	}
	for _, g := range groups {
		var d volume.DeviceFacts
		for _, v := range c.volumes() {
			if v.group != g {
				continue
			}
			d.Hung, d.Failed, d.Erring = append(d.Hung, disks(v.sick.Devices.Hung)...), append(d.Failed, disks(v.sick.Devices.Failed)...), append(d.Erring, disks(v.sick.Devices.Erring)...)
			d.Pools, d.Snapshots = append(d.Pools, v.sick.Devices.Pools...), append(d.Snapshots, v.sick.Devices.Snapshots...)
		}
		f.Groups = append(f.Groups, volume.GroupFacts{Group: g.report(), Devices: d})
	}
	return f
}

func disks(faults []volume.Fault) []volume.Fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f volume.Fault) bool { return !f.Disk })
}

// FilesystemFacts implements health.Host.
func (c *Mounts) FilesystemFacts(_ context.Context, m volume.Mount) volume.FilesystemFacts {
	c.mu.Lock()
	defer c.mu.Unlock()
	var f volume.FilesystemFacts
	if v := c.byMinor(m.Minor); v != nil && m.Major == dmMajor && v.disk.fs != nil {
		f = v.disk.fs.sick.Filesystem
		f.Usage = v.disk.fs.usage()
	}
	f.Mount, f.ReadOnly = m, m.Forced
	return f
}

// DeviceGone implements health.Host.
func (c *Mounts) DeviceGone(m volume.Mount) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return m.Major == dmMajor && c.byMinor(m.Minor) == nil
}
