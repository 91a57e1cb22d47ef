package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// watcher gathers facts about devices. Each of its questions may hang, and is asked as pkg/ask does: by its device.
type watcher struct {
	dm     deviceMapper
	open   ask.Open
	errors diskErrors
	settle time.Duration // how long LVM may keep a device suspended while it changes it
}

// settleTime is well above what LVM needs between suspend and resume.
const settleTime = 2 * time.Second

// VolumeFacts tells what can be known of the health of one of our logical volumes; with an empty group, in any of them. No
// LVM command where nothing has changed; nothing is changed; and it does not hang on what hangs.
//
// The devices come first. Where one of them hangs, so would LVM, and it is not asked: Unknown says so.
// ErrNotFound: the group was read well and there is neither a logical volume nor a device of the name. ErrPrecondition: it
// is there without our owner tag. What else keeps LVM from an answer is in Unknown, not in the error.
func (l *LVM) VolumeFacts(ctx context.Context, r volume.Ref) (volume.Facts, error) {
	return l.Look()(ctx, r)
}

// Look gives a VolumeFacts for one look at many volumes. What they have in common, as the metadata of their group, the disks and
// a pool below them, is asked once, by the first who needs it, and told to all; so it is as old as the look.
func (l *LVM) Look() func(context.Context, volume.Ref) (volume.Facts, error) {
	sight := &sight{watcher: &l.watcher}
	metadata := once[string, metadataAnswer]{}
	return func(ctx context.Context, r volume.Ref) (volume.Facts, error) {
		find := func(r volume.Ref) (volume.LV, error) {
			m := metadata.ask(r.VG, func() (m metadataAnswer) {
				m.state, m.err = l.look(ctx, r.VG)
				return m
			})
			if m.err != nil {
				return volume.LV{}, m.err
			}
			return l.find(m.state, r)
		}
		return l.facts(ctx, r, sight, find)
	}
}

type metadataAnswer struct {
	state *state
	err   error
}

func (l *LVM) facts(ctx context.Context, r volume.Ref, sight *sight, find func(volume.Ref) (volume.LV, error)) (volume.Facts, error) {
	if err := l.check(r, idField, idField, true); err != nil {
		return volume.Facts{}, err
	}
	if r.VG == "" {
		lv, err := find(r)
		switch {
		case volume.NotOurs(err):
			return volume.Facts{}, err
		case err != nil:
			return volume.Facts{Ref: r, Unknown: err}, nil //nolint:nilerr // it is a fact
		}
		r = lv.Ref
	}
	f := volume.Facts{Ref: r, DeviceFacts: sight.device(ctx, volume.DMName(r))}
	if f.Hangs() {
		f.Unknown = errHang
		return f, nil
	}
	lv, err := find(r)
	f.LV = lv
	f.Gone = errors.Is(err, volume.ErrNotFound) && f.Active && strings.HasPrefix(f.UUID, dmPrefix)
	switch {
	case err == nil || f.Gone:
		return f, nil
	case volume.NotOurs(err):
		return volume.Facts{}, err
	}
	f.Unknown = err
	return f, nil
}

// lookBound ends an LVM command that was run for the sake of health.
const lookBound = time.Minute

// look is inventory.current, and does not hang.
func (l *LVM) look(ctx context.Context, vg string) (*state, error) {
	return ask.Ask(ctx, &l.watcher.open, strings.TrimSpace("LVM's report of the volume group "+vg), func() (*state, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookBound)
		defer cancel()
		return l.inventory.current(ctx, vg)
	})
}

// StorageFacts tells what can be known of the health of our volume groups. As VolumeFacts: it runs no LVM command where
// nothing has changed, does not hang, and where a disk hangs LVM is not asked.
func (l *LVM) StorageFacts(ctx context.Context) volume.StorageFacts {
	known := l.inventory.state.Load()
	groups, hang := l.groupFacts(ctx, known)
	if hang {
		return volume.StorageFacts{Groups: groups, Unknown: errHang}
	}
	s, err := l.look(ctx, "")
	if err != nil {
		return volume.StorageFacts{Groups: groups, Unknown: err}
	}
	if s != known {
		groups, _ = l.groupFacts(ctx, s)
	}
	f := volume.StorageFacts{Groups: groups}
	for _, p := range l.cfg.VolumeGroups {
		if !isGlob(p) && s.groups[p] == nil {
			f.Missing = append(f.Missing, p)
		}
	}
	return f
}

var errHang = errors.New("LVM was not asked, since a device hangs")

func (l *LVM) groupFacts(ctx context.Context, s *state) (out []volume.GroupFacts, hang bool) {
	if s == nil {
		return nil, false
	}
	sight := &sight{watcher: &l.watcher}
	for _, g := range l.ordered(s) {
		f := volume.GroupFacts{Group: g.Group, Devices: sight.group(ctx, g.Group)}
		hang = hang || f.Devices.Hangs()
		out = append(out, f)
	}
	return out, hang
}

// sight is one look at many devices. What several of them lie on is asked once, by the first who needs it.
type sight struct {
	*watcher
	uuids once[string, string]
	names once[string, string]
	below once[string, []string]
	parts once[string, volume.DeviceFacts]
	stand once[place, bool]
}

// place is a device in a stack.
type place struct {
	name string
	disk bool
}

// once has the answers of one look.
type once[K comparable, T any] struct {
	mu      sync.Mutex
	answers map[K]func() T
}

// know takes note of an answer, so that nobody need ask.
func (o *once[K, T]) know(key K, answer T) { o.ask(key, func() T { return answer }) }

// ask gives the answer to the question of the key. Only the first do is called, and the others wait for it.
func (o *once[K, T]) ask(key K, do func() T) T {
	o.mu.Lock()
	if o.answers == nil {
		o.answers = map[K]func() T{}
	}
	answer, ok := o.answers[key]
	if !ok {
		answer = sync.OnceValue(do)
		o.answers[key] = answer
	}
	o.mu.Unlock()
	return answer()
}

func (s *sight) uuid(name string) string {
	return s.uuids.ask(name, func() string { return s.dm.uuid(name) })
}

// alias gives the device-mapper name.
func (s *sight) alias(name string) string {
	return s.names.ask(name, func() string { return s.dm.alias(name) })
}

func (s *sight) slaves(name string) []string {
	return s.below.ask(name, func() []string { return s.dm.neighbours(name, "slaves") })
}

// device gathers the facts of a device and of all below it.
func (s *sight) device(ctx context.Context, name string) volume.DeviceFacts {
	st, err := ask.Ask(ctx, &s.open, "device "+name, func() (dmStatus, error) { return s.dm.status(name) })
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return volume.DeviceFacts{}
	case err != nil:
		var f volume.DeviceFacts
		fault(ctx, &f, name, false, err)
		return f
	}
	kernel := fmt.Sprintf("dm-%d", st.minor)
	s.uuids.know(kernel, st.uuid)
	s.names.know(kernel, name)
	if !st.suspended {
		s.stand.know(place{kernel, false}, false)
	}
	layers, disks := s.stack(kernel)
	f := s.gather(ctx, layers, disks)
	f.Active, f.Major, f.Minor, f.Open, f.UUID = true, st.major, st.minor, st.open, st.uuid
	if !f.Hangs() {
		s.read(ctx, &f, kernel, false) // only where nothing below hangs: so a hung disk costs one read, not one for each volume on it
	}
	return f
}

// group gathers the facts of a group's disks, and of its pools and snapshots whoever uses them.
func (s *sight) group(ctx context.Context, g volume.Group) volume.DeviceFacts {
	var disks, layers []string
	for _, p := range g.PVs {
		if name := s.dm.nameOf(p.Device); name != "" {
			disks = append(disks, name)
		}
	}
	names, err := ask.Ask(ctx, &s.open, "list of devices", s.dm.listed)
	for alias, name := range names {
		_, isSnapshot := names[alias+"-cow"] // a thick snapshot lies on its store (lvm2 lib/activate/dev_manager.c)
		if (isSnapshot || strings.HasSuffix(alias, "-tpool")) && strings.HasPrefix(s.uuid(name), dmPrefix+strings.ReplaceAll(g.UUID, "-", "")) {
			layers = append(layers, name)
		}
	}
	f := s.gather(ctx, layers, disks)
	fault(ctx, &f, "device-mapper", false, err)
	f.Raids, f.Empty = nil, nil // of single volumes
	return f
}

// gather asks all layers and disks. The time it takes is bounded, however many hang.
func (s *sight) gather(ctx context.Context, layers, disks []string) (f volume.DeviceFacts) {
	f.Suspended = s.suspended(ctx, layers, disks)
	var mu sync.Mutex
	merge := func(part volume.DeviceFacts) {
		mu.Lock()
		defer mu.Unlock()
		f.Hung, f.Failed, f.Erring, f.Empty = append(f.Hung, part.Hung...), append(f.Failed, part.Failed...), append(f.Erring, part.Erring...), append(f.Empty, part.Empty...)
		f.Raids, f.Pools, f.Snapshots = append(f.Raids, part.Raids...), append(f.Pools, part.Pools...), append(f.Snapshots, part.Snapshots...)
		f.ThinFailed = f.ThinFailed || part.ThinFailed
	}
	ask.Each(disks, atOnce, func(name string) {
		merge(s.parts.ask(name, func() volume.DeviceFacts { return s.disk(ctx, name, slices.Contains(f.Suspended, name)) }))
	})
	ask.Each(layers, atOnce, func(name string) {
		merge(s.parts.ask(name, func() volume.DeviceFacts { return s.layer(ctx, name) }))
	})
	inOrder(&f)
	return f
}

func (w *watcher) disk(ctx context.Context, name string, suspended bool) (f volume.DeviceFacts) {
	if !suspended {
		w.read(ctx, &f, name, true)
	}
	if text := w.errors.recent(w.dm.sys, name); text != "" {
		f.Erring = append(f.Erring, volume.Fault{Device: name, Disk: true, Text: text})
	}
	return f
}

func (s *sight) layer(ctx context.Context, name string) (f volume.DeviceFacts) {
	alias := s.alias(name)
	targets, err := ask.Ask(ctx, &s.open, "status of device "+alias, func() ([]target, error) { return s.dm.told(alias) })
	switch {
	case errors.Is(err, volume.ErrNotFound): // it has gone meanwhile
	case err == nil:
		err = addTargets(&f, alias, targets)
		fallthrough
	default:
		fault(ctx, &f, alias, false, err)
	}
	return f
}

// inOrder sorts what was gathered at the same time.
func inOrder(f *volume.DeviceFacts) {
	byDevice := func(a, b volume.Fault) int { return cmp.Compare(a.Device, b.Device) }
	slices.SortFunc(f.Hung, byDevice)
	slices.SortFunc(f.Failed, byDevice)
	slices.SortFunc(f.Erring, byDevice)
	slices.Sort(f.Empty)
	slices.SortFunc(f.Raids, func(a, b volume.RaidStatus) int { return cmp.Compare(a.Device, b.Device) })
	slices.SortFunc(f.Pools, func(a, b volume.PoolStatus) int { return cmp.Compare(a.Device, b.Device) })
	slices.SortFunc(f.Snapshots, func(a, b volume.SnapshotStatus) int { return cmp.Compare(a.Device, b.Device) })
}

// atOnce bounds how many devices are asked at a time.
const atOnce = 16

// suspended gives those that are suspended for longer than LVM keeps a device so while it changes it; a disk too where it
// lies on one that is.
func (s *sight) suspended(ctx context.Context, layers, disks []string) (out []string) {
	var all []place
	for _, name := range layers {
		all = append(all, place{name, false})
	}
	for _, name := range disks {
		all = append(all, place{name, true})
	}
	var mu sync.Mutex
	suspended := map[place]bool{}
	ask.Each(all, atOnce, func(p place) {
		if s.stand.ask(p, func() bool { return s.stands(ctx, p.name, p.disk) }) {
			mu.Lock()
			defer mu.Unlock()
			suspended[p] = true
		}
	})
	for _, p := range all {
		if suspended[p] {
			out = append(out, p.name)
		}
	}
	return out
}

// stands reports whether a device is suspended, or with below one that it lies on, and stays so.
func (w *watcher) stands(ctx context.Context, name string, below bool) bool {
	for end := time.Now().Add(w.settle); ; {
		is, err := w.dm.isSuspended(name)
		if err == nil && !is && below {
			is, err = w.dm.suspendedBelow(name, 0)
		}
		switch {
		case err != nil || !is:
			return false
		case !time.Now().Before(end):
			return true
		}
		select {
		case <-ctx.Done():
			return true
		case <-time.After(w.settle / 20):
		}
	}
}

// read reads the first block of a device.
func (w *watcher) read(ctx context.Context, f *volume.DeviceFacts, name string, disk bool) {
	_, err := ask.Ask(ctx, &w.open, "read of device "+name, func() (struct{}, error) {
		return openAndRead(filepath.Join(w.dm.dev, name), func(f io.ReaderAt) (none struct{}, err error) {
			_, err = f.ReadAt(make([]byte, block), 0)
			return none, err
		})
	})
	if err == nil {
		return
	}
	_, gone := os.Stat(filepath.Join(w.dm.sys, "class/block", name))
	switch {
	case errors.Is(gone, fs.ErrNotExist) && disk:
		f.Failed = append(f.Failed, volume.Fault{Device: name, Disk: true, Text: "the kernel has it no more"})
	case errors.Is(gone, fs.ErrNotExist), errors.Is(err, fs.ErrNotExist): // no node in /dev tells nothing about the device
	default:
		fault(ctx, f, name, disk, err)
	}
}

// fault files an error of a question. A caller that has left learns nothing from it.
func fault(ctx context.Context, f *volume.DeviceFacts, device string, disk bool, err error) {
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.Is(err, ask.ErrHung):
		f.Hung = append(f.Hung, volume.Fault{Device: device, Disk: disk, Text: err.Error()})
	case errors.Is(err, errStatus):
		klog.FromContext(ctx).Info("a device says what is not understood", "device", device, "err", err)
	default:
		f.Failed = append(f.Failed, volume.Fault{Device: device, Disk: disk, Text: err.Error()})
	}
}

// stack gives the device and those of LVM below it, and the disks below these, that is what LVM calls physical volumes.
func (s *sight) stack(name string) (layers, disks []string) {
	layers = []string{name}
	for i := 0; i < len(layers); i++ {
		for _, below := range s.slaves(layers[i]) {
			list := &disks
			if strings.HasPrefix(s.uuid(below), dmPrefix) {
				list = &layers
			}
			if !slices.Contains(*list, below) {
				*list = append(*list, below)
			}
		}
		// A thick snapshot and its origin share a device below: the snapshots of this volume are above that.
		if strings.HasSuffix(s.uuid(layers[i]), "-real") {
			for _, above := range s.dm.neighbours(layers[i], "holders") {
				if !slices.Contains(layers, above) {
					layers = append(layers, above)
				}
			}
		}
	}
	return layers, disks
}

// nameOf gives the kernel's name for the device of a node; "" where there is none. A node in /dev/mapper need not be a
// link.
func (d deviceMapper) nameOf(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	to, err := os.Readlink(filepath.Join(d.sys, "dev/block", devNumbers(st.Rdev)))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// diskErrors remembers how many errors each disk had. The kernel counts them from its start (SCSI: ioerr_cnt), and counts
// harmless ones too, so only a count that grows tells of something, and only for a while.
type diskErrors struct {
	now  func() time.Time
	mu   sync.Mutex
	seen map[string]errorCount
}

type errorCount struct {
	count int64
	grew  time.Time
}

// recentErrors is for how long errors of a disk are told.
const recentErrors = 10 * time.Minute

// recent tells of errors that the disk has had lately; "": none are known.
func (e *diskErrors) recent(sys, name string) string {
	path, err := filepath.EvalSymlinks(filepath.Join(sys, "class/block", name))
	if err != nil {
		return ""
	}
	if _, err := os.Stat(filepath.Join(path, "partition")); err == nil {
		path = filepath.Dir(path)
	}
	count, err := sysfs.Number(filepath.Join(path, "device/ioerr_cnt"))
	if err != nil {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == nil {
		e.seen = map[string]errorCount{}
	}
	was, known := e.seen[path]
	is := errorCount{count, was.grew}
	if known && count > was.count {
		is.grew = e.now()
	}
	e.seen[path] = is
	if since := e.now().Sub(is.grew); since < recentErrors {
		return fmt.Sprintf("%d errors since the machine's start, the last less than %s ago", count, recentErrors)
	}
	return ""
}
