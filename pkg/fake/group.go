package fake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// group is a volume group.
type group struct {
	name, uuid string
	extent     int64 // bytes
	pvs        []*pv
	lvs        map[string]*lv
	forgotten  map[string]*lv // not in the metadata any more, but they have a device
	revision   int            // of the metadata
	residue    []disk         // what removed LVs left on their extents
	unreadable error          // what every command on the group meets
	lock       chan struct{}  // LVM's own lock on the group
}

// pv is a physical volume.
type pv struct {
	device      string
	size, free  int64 // in extents
	allocatable bool
	missing     bool
}

// lv is a logical volume and, while active, its device.
type lv struct {
	ref      volume.Ref
	group    *group
	uuid     string
	size     int64
	layout   volume.Type // "": none the driver makes
	shape    volume.Layout
	poolName string
	pool     bool  // it is a thin pool
	origin   *lv   // it was made of this one, which is there
	shows    int64 // a thick snapshot: the bytes of its device; its size is that of its store
	tags     []string
	skip     bool // the activation-skip flag
	areas    map[*pv]int64
	stripes  int
	active   bool
	minor    uint32
	readOnly bool // BLKROSET
	disk     disk

	suspended bool

	thinID   int64           // thin: the number of its device in the pool
	written  map[int64]int64 // thin: by chunk, what was written there: a number that no other write has
	held     bool            // of a pool: its metadata snapshot is reserved
	settings volume.Mutable  // what LVM holds of them

	sick Sickness
}

// AddGroup makes a volume group of blank disks: /dev/<name>0, /dev/<name>1, ...
func (m *Machine) AddGroup(name string, extentBytes int64, pvBytes ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := &group{name: name, uuid: m.uuid(), extent: extentBytes, lvs: map[string]*lv{}, lock: make(chan struct{}, 1)}
	for i, bytes := range pvBytes {
		g.pvs = append(g.pvs, &pv{device: fmt.Sprintf("/dev/%s%d", name, i), size: bytes / extentBytes, free: bytes / extentBytes, allocatable: true})
	}
	m.groups[name] = g
}

// DropGroup takes a volume group away with all its disks, until they are put back.
func (m *Machine) DropGroup(name string) (back func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[name]
	if g == nil {
		return func() {}
	}
	for _, v := range g.lvs {
		v.deactivate(m)
	}
	delete(m.groups, name)
	return func() { m.byHand(name, func(*group) { m.groups[name] = g }) }
}

// AddPool makes a thin pool.
func (m *Machine) AddPool(vg, name string, bytes int64) {
	m.byHand(vg, func(g *group) {
		v, err := g.create(m, name, volume.Layout{Type: volume.Linear}, bytes, nil)
		m.must(err)
		v.pool, v.layout = true, ""
	})
}

// AddLV makes an LV with these tags behind the driver's back, active, with what was on its extents before.
func (m *Machine) AddLV(r volume.Ref, l volume.Layout, bytes int64, tags ...string) {
	m.byHand(r.VG, func(g *group) {
		v, err := g.create(m, r.LV, l, bytes, tags)
		m.must(err)
		v.activate(m)
	})
}

// AddSnapshot makes a thick snapshot behind the driver's back.
func (m *Machine) AddSnapshot(origin volume.Ref, name string, bytes int64) {
	m.byHand(origin.VG, func(g *group) {
		v, err := g.create(m, name, volume.Layout{Type: volume.Linear}, bytes, nil)
		m.must(err)
		v.snapshotOf(m, g.lvs[origin.LV])
	})
}

// snapshotOf gives a new LV what its origin holds. A thick snapshot is active where its origin is.
func (v *lv) snapshotOf(m *Machine, origin *lv) {
	v.origin, v.disk = origin, origin.disk.copyFor(v)
	if v.layout == volume.Thin {
		v.written = maps.Clone(origin.written)
		return
	}
	v.shows = origin.size
	if origin.active {
		v.activate(m)
	}
}

// thick reports whether it is a copy-on-write snapshot, which depends on its origin.
func (v *lv) thick() bool { return v.origin != nil && v.layout != volume.Thin }

// deviceBytes is the size of its device.
func (v *lv) deviceBytes() int64 {
	if v.thick() {
		return v.shows
	}
	return v.size
}

// DropLV removes an LV behind the driver's back.
func (m *Machine) DropLV(r volume.Ref) {
	m.byHand(r.VG, func(g *group) { g.drop(m, g.lvs[r.LV]) })
}

// EditLV changes an LV behind the driver's back: its tags, its size, whether it is active, or suspended, and the
// activation-skip flag.
func (m *Machine) EditLV(r volume.Ref, edit func(*State)) {
	m.byHand(r.VG, func(g *group) {
		v := g.lvs[r.LV]
		if v == nil { // a driver has just removed it
			return
		}
		s := State{Tags: v.tags, SizeBytes: v.size, Active: v.active, Skip: v.skip, Suspended: v.suspended}
		edit(&s)
		v.tags, v.size, v.skip, v.suspended = s.Tags, s.SizeBytes, s.Skip, s.Suspended
		if s.Active {
			v.activate(m)
		} else {
			v.deactivate(m)
		}
	})
}

// State is what EditLV can change.
type State struct {
	Tags         []string
	SizeBytes    int64
	Active, Skip bool
	Suspended    bool
}

// Facts is what the machine's own tools tell of an LV.
type Facts struct {
	volume.LV
	Tags    []string
	Stripes int // all of them, with parity and copies; thin: 0
}

// LV tells of an LV; ok is false where there is none.
func (m *Machine) LV(r volume.Ref) (f Facts, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.volume(r)
	if v == nil {
		return f, false
	}
	return Facts{v.report(), v.tags, v.stripes}, true
}

// Settings tells what LVM holds of the mutable parameters of an LV, and the physical volumes it lies on.
func (m *Machine) Settings(r volume.Ref) (s volume.Mutable, devices []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.volume(r)
	fresh := volume.Mutable{volume.KeyReadAhead: "auto", volume.KeyMinRecoveryRate: "0", volume.KeyMaxRecoveryRate: "0", volume.KeyWriteMostly: "none"}
	return fresh.With(v.settings), v.devices()
}

// LosePV takes a disk away, not the last one: the group is partial.
func (m *Machine) LosePV(vg, device string) {
	m.byHand(vg, func(g *group) {
		for _, p := range g.pvs {
			p.missing = p.missing || p.device == device
		}
	})
}

// SetAllocatable is pvchange -x.
func (m *Machine) SetAllocatable(vg, device string, yes bool) {
	m.byHand(vg, func(g *group) {
		for _, p := range g.pvs {
			if p.device == device {
				p.allocatable = yes
			}
		}
	})
}

// FailReads lets every LVM command on the group fail with err; nil mends it.
func (m *Machine) FailReads(vg string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.groups[vg].unreadable = err
}

// Tear lets the next run of the program be killed half-way: lvcreate leaves an LV that is inactive and not wiped, or of a thick
// snapshot the store without its origin, mkfs.xfs a file system that says so, the other mkfs a blank device.
func (m *Machine) Tear(program string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tear = program
}

func (m *Machine) torn(program string) bool {
	if m.tear != program {
		return false
	}
	m.tear = ""
	return true
}

// byHand is a change behind the driver's back.
func (m *Machine) byHand(vg string, do func(*group)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do(m.groups[vg])
	if g := m.groups[vg]; g != nil {
		g.revision++
	}
}

// LockGroup takes LVM's lock on the group, as an LVM command of somebody else does, until release is called.
func (m *Machine) LockGroup(vg string) (release func()) {
	release, err := m.lockGroup(context.Background(), vg)
	m.must(err)
	return release
}

// lockGroup takes LVM's lock on the group; its error is that of ctx.
func (m *Machine) lockGroup(ctx context.Context, vg string) (unlock func(), err error) {
	m.mu.Lock()
	g := m.groups[vg]
	m.mu.Unlock()
	if g == nil {
		return func() {}, nil
	}
	select {
	case g.lock <- struct{}{}:
		return func() { <-g.lock }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *Machine) uuid() string {
	return fmt.Sprintf("fake00-0000-0000-0000-0000-0000-%06d", m.next())
}

func (m *Machine) volume(r volume.Ref) *lv {
	if g := m.groups[r.VG]; g != nil {
		return g.lvs[r.LV]
	}
	return nil
}

func (m *Machine) byMinor(minor uint32) *lv {
	for _, g := range m.groups {
		for _, lvs := range []map[string]*lv{g.lvs, g.forgotten} {
			for _, v := range lvs {
				if v.active && v.minor == minor {
					return v
				}
			}
		}
	}
	return nil
}

// state differs whenever the metadata does.
func (g *group) state() string {
	if g == nil {
		return "none"
	}
	return fmt.Sprint(g.uuid, g.revision)
}

func (g *group) missing() int {
	n := 0
	for _, p := range g.pvs {
		if p.missing {
			n++
		}
	}
	return n
}

// emptied is the report of the group as it would be with nothing in it but its pools, and these with nothing in them.
func (g *group) emptied() volume.Group {
	e := g.report()
	for i := range e.PVs {
		e.PVs[i].FreeBytes, e.PVs[i].Allocatable = e.PVs[i].SizeBytes, true
	}
	for i := range e.Pools {
		e.Pools[i].VirtualBytes = 0
	}
	return e
}

// virtual is the sum of the sizes of a pool's thin volumes.
func (g *group) virtual(pool *lv) int64 {
	var sum int64
	for _, v := range g.lvs {
		if v.layout == volume.Thin && v.poolName == pool.ref.LV {
			sum += v.size
		}
	}
	return sum
}

// dependants names the thick snapshots that LVM would drop with their origin.
func (g *group) dependants(v *lv) string {
	var names []string
	for _, o := range g.lvs {
		if o.origin == v && o.thick() {
			names = append(names, o.ref.LV)
		}
	}
	return strings.Join(names, ", ")
}

// create puts a new LV into the metadata. It is inactive, and holds what was on its extents.
func (g *group) create(m *Machine, name string, l volume.Layout, size int64, tags []string) (*lv, error) {
	if g.missing() != 0 {
		return nil, fmt.Errorf("lvcreate: cannot change volume group %s while physical volumes are missing", g.name)
	}
	areas, ok := g.allocate(l, (size+g.extent-1)/g.extent, func(p *pv) int64 { return p.free })
	if !ok {
		return nil, fmt.Errorf("%w: volume group %s has too few free extents for %d bytes of %s", volume.ErrNoSpace, g.name, size, l.Type)
	}
	v := &lv{
		ref: volume.Ref{VG: g.name, LV: name}, group: g, uuid: m.uuid(), size: size, layout: l.Type, shape: l, poolName: l.Pool, tags: tags, areas: areas,
	}
	if l.Type == volume.Thin {
		v.thinID, v.written = g.nextThinID(l.Pool), map[int64]int64{}
	}
	if v.stripes, _ = legs(l, 0); l.Type == volume.Linear {
		v.stripes = 1
	}
	for p, n := range areas {
		p.free -= n
	}
	if n := len(g.residue); n > 0 && l.Type != volume.Thin {
		v.disk, g.residue = g.residue[n-1], g.residue[:n-1]
		if v.disk.fs != nil {
			v.disk.fs.device = v
		}
	}
	g.lvs[name] = v
	g.revision++
	return v, nil
}

// extend makes an LV larger. It goes on with its layout, on the physical volumes that it lies on or others.
func (g *group) extend(v *lv, size int64) error {
	var metadata int64 // of which each image has its extent already
	switch v.layout {
	case volume.RAID1, volume.RAID5, volume.RAID6, volume.RAID10:
		metadata = 1
	}
	areas, ok := g.allocate(v.shape, (size-v.size)/g.extent, func(p *pv) int64 { return p.free + metadata })
	if !ok {
		return fmt.Errorf("%w: volume group %s has too few free extents for %d bytes more", volume.ErrNoSpace, g.name, size-v.size)
	}
	for p, n := range areas {
		n -= metadata
		p.free -= n
		v.areas[p] += n
	}
	v.size = size
	g.revision++
	return nil
}

// legs gives on how many different physical volumes a layout lies, and how many extents it takes on each.
func legs(l volume.Layout, extents int64) (count int, each int64) {
	stripes := max(1, l.Stripes)
	each = extents / int64(stripes)
	switch l.Type {
	case volume.Striped:
		return stripes, each
	case volume.RAID1, volume.RAID10:
		return stripes * (l.Mirrors + 1), each + 1 // each image has an extent of metadata
	case volume.RAID5:
		return stripes + 1, each + 1
	case volume.RAID6:
		return stripes + 2, each + 1
	default:
		return 0, extents // anywhere
	}
}

// allocate finds the extents for a layout among those that avail gives for each physical volume; ok is false where
// they are too few. Each leg is on a physical volume of its own.
func (g *group) allocate(l volume.Layout, extents int64, avail func(*pv) int64) (areas map[*pv]int64, ok bool) {
	areas = map[*pv]int64{}
	if l.Type == volume.Thin {
		return areas, true
	}
	pvs := slices.DeleteFunc(slices.Clone(g.pvs), func(p *pv) bool { return !p.allocatable || p.missing })
	slices.SortStableFunc(pvs, func(a, b *pv) int { return cmp.Compare(avail(b), avail(a)) })
	count, each := legs(l, extents)
	if count > len(pvs) {
		return nil, false
	}
	for i := range count {
		if avail(pvs[i]) < each {
			return nil, false
		}
		areas[pvs[i]] = each
	}
	for i := 0; count == 0 && i < len(pvs); i++ {
		areas[pvs[i]] = min(extents, avail(pvs[i]))
		extents -= areas[pvs[i]]
	}
	return areas, count != 0 || extents == 0
}

func (g *group) drop(m *Machine, v *lv) {
	v.deactivate(m)
	delete(g.lvs, v.ref.LV)
	for _, o := range g.lvs {
		if o.origin == v {
			o.origin = nil
		}
	}
	for p, n := range v.areas {
		p.free += n
	}
	if v.layout != volume.Thin {
		g.residue = append(g.residue, v.disk)
	}
	g.revision++
}

func (v *lv) partial() bool {
	for p := range v.areas {
		if p.missing {
			return true
		}
	}
	return false
}

// activate makes the device, with the lowest number that is free, and its node.
func (v *lv) activate(m *Machine) {
	if v.active {
		return
	}
	for v.minor = 0; m.byMinor(v.minor) != nil; v.minor++ {
	}
	v.active = true
	m.makeNode(v)
}

func (m *Machine) makeNode(v *lv) {
	if m.nodes.children[v.nodeName()] == nil {
		m.nodes.add(v.nodeName(), &inode{kind: node, minor: v.minor})
	}
}

func (v *lv) deactivate(m *Machine) {
	if v.active {
		delete(m.nodes.children, v.nodeName())
		v.active, v.suspended = false, false
		for _, p := range m.pods {
			delete(p.limits, v.minor)
		}
	}
}

func (v *lv) nodeName() string { return "dm-" + strconv.Itoa(int(v.minor)) }

func (v *lv) parsed() volume.Tags { return volume.ParseTags(v.tags) }

// tune sets what LVM holds of the parameters. was: the read-ahead was so already.
func (v *lv) tune(m volume.Mutable) (was bool) {
	before := v.settings
	v.settings = v.settings.With(nil)
	for _, key := range []string{volume.KeyReadAhead, volume.KeyMinRecoveryRate, volume.KeyMaxRecoveryRate, volume.KeyWriteMostly} {
		if value, ok := m[key]; ok {
			v.settings[key] = value
		}
	}
	value, asked := m[volume.KeyReadAhead]
	has, set := before[volume.KeyReadAhead]
	return asked && (has == value || !set && value == "auto")
}

// devices gives the physical volumes that it lies on.
func (v *lv) devices() (out []string) {
	for p, n := range v.areas {
		if n != 0 {
			out = append(out, p.device)
		}
	}
	slices.Sort(out)
	return out
}

// retag makes a new list: reports of the old one stay as they were.
func (v *lv) retag(add, remove []string) {
	tags := slices.DeleteFunc(slices.Clone(v.tags), func(t string) bool { return slices.Contains(remove, t) || slices.Contains(add, t) })
	v.tags = append(tags, add...)
}

func (v *lv) report() volume.LV {
	out := volume.LV{Ref: v.ref, UUID: v.uuid, SizeBytes: v.size, Type: v.layout, Pool: v.poolName, ThinID: v.thinID, Tags: v.parsed(), Partial: v.partial()}
	if v.origin != nil {
		out.Origin = v.origin.ref.LV
	}
	return out
}

func (g *group) report() volume.Group {
	out := volume.Group{Name: g.name, UUID: g.uuid, ExtentBytes: g.extent, MissingPVs: g.missing()}
	for _, p := range g.pvs {
		out.SizeBytes += p.size * g.extent
		out.FreeBytes += p.free * g.extent
		out.PVs = append(out.PVs, volume.PV{Device: p.device, SizeBytes: p.size * g.extent, FreeBytes: p.free * g.extent, Allocatable: p.allocatable})
	}
	for _, v := range g.lvs {
		if v.pool {
			out.Pools = append(out.Pools, volume.Pool{Name: v.ref.LV, SizeBytes: v.size, VirtualBytes: g.virtual(v)})
		}
	}
	slices.SortFunc(out.Pools, func(a, b volume.Pool) int { return strings.Compare(a.Name, b.Name) })
	return out
}
