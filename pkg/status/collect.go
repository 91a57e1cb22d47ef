package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Sources are whom a Collector asks.
type Sources struct {
	Node       string // as volume.ShortNode gives it
	Owner      string
	KubeletDir string
	LVM        LVM
	Health     Examiner
	Mounts     func(ctx context.Context) ([]volume.Mount, error)
	Resolve    func(path string) (string, error)
	Journal    func() (records []journal.Record, problems []string, err error)
	Live       func(ctx context.Context) (*Live, error)
	// Holders finds who keeps a device in use. Nil: nobody is looked for, since it takes its time.
	Holders func(ctx context.Context, d volume.Device, target string) ([]volume.Holder, error)
}

// LVM is what is asked of LVM. Neither runs an LVM command where nothing has changed since it was asked last.
type LVM interface {
	List(ctx context.Context) ([]volume.LV, error)
	StorageFacts(ctx context.Context) volume.StorageFacts
}

// Examiner tells of the health of volumes. Implemented by health.Checker.
type Examiner interface {
	Examine(ctx context.Context, lvs []volume.LV, table []volume.Mount) []health.Exam
}

// Collector makes reports. Safe for use by several goroutines.
type Collector struct {
	from Sources
	open ask.Open
}

// New gives a Collector. Nothing is asked yet.
func New(s Sources) *Collector { return &Collector{from: s} }

// mostSearched is of how many pending teardowns the holders are looked for: each search may take two seconds.
const mostSearched = 8

// Collect asks everybody. It does not hang: each question has a bound (pkg/ask), and what was not answered is in Unknown. It changes
// nothing.
func (c *Collector) Collect(ctx context.Context) *Report {
	s := c.from
	r := &Report{Time: time.Now(), Node: s.Node, Owner: s.Owner, Groups: []Group{}, Volumes: []Volume{}}
	storage := ask1(ctx, c, r, "the volume groups", func(ctx context.Context) (volume.StorageFacts, error) { return s.LVM.StorageFacts(ctx), nil })
	r.Groups, r.Storage = groups(storage), conditions(health.OfStorage(storage))
	lvs := ask1(ctx, c, r, theVolumes, s.LVM.List)
	r.Mounts = ask1(ctx, c, r, "the mount table", s.Mounts)
	r.Driver = c.live(ctx, r)
	records := ask1(ctx, c, r, "the journal", func(context.Context) (records, error) {
		all, problems, err := s.Journal()
		return records{all, problems}, err
	})
	r.Problems, r.Pending = records.problems, pending(records.all, r.Driver)
	c.volumes(ctx, r, lvs, records.all)
	c.holders(ctx, r)
	return r
}

// theVolumes is the question without whose answer a report has no volumes.
const theVolumes = "the logical volumes"

// Blind reports whether that question was not answered: an empty list of volumes tells nothing then.
func (r *Report) Blind() bool {
	return slices.ContainsFunc(r.Unknown, func(u string) bool { return strings.HasPrefix(u, theVolumes) })
}

type records struct {
	all      []journal.Record
	problems []string
}

// ask1 asks one question, and takes note where it is not answered.
func ask1[T any](ctx context.Context, c *Collector, r *Report, what string, do func(context.Context) (T, error)) T {
	answer, err := ask.Ask(ctx, &c.open, what, func() (T, error) { return do(context.WithoutCancel(ctx)) })
	if err != nil {
		r.Unknown = append(r.Unknown, what+": "+strings.TrimPrefix(err.Error(), what+": "))
	}
	return answer
}

// live asks the running driver. That none runs is no failed question.
func (c *Collector) live(ctx context.Context, r *Report) *Live {
	l, err := ask.Ask(ctx, &c.open, "the running driver", func() (*Live, error) { return c.from.Live(context.WithoutCancel(ctx)) })
	if err != nil && !errors.Is(err, ErrNotRunning) {
		r.DriverUnknown = err.Error()
	}
	return l
}

func groups(s volume.StorageFacts) []Group {
	out := []Group{}
	for _, g := range s.Groups {
		row := Group{Name: g.Group.Name, SizeBytes: g.Group.SizeBytes, FreeBytes: g.Group.FreeBytes, Disks: len(g.Group.PVs), Missing: g.Group.MissingPVs}
		for _, p := range g.Group.Pools {
			pool := Pool{Name: p.Name, SizeBytes: p.SizeBytes, VirtualBytes: p.VirtualBytes}
			device := volume.DMName(volume.Ref{VG: g.Group.Name, LV: p.Name})
			for _, st := range g.Devices.Pools {
				if strings.TrimSuffix(st.Device, "-tpool") == device && !st.Failed {
					pool.Data, pool.Metadata = share(st.UsedData, st.Data), share(st.UsedMetadata, st.Metadata)
				}
			}
			row.Pools = append(row.Pools, pool)
		}
		out = append(out, row)
	}
	return out
}

func share(used, of int64) *float64 {
	if of <= 0 {
		return nil
	}
	s := float64(used) / float64(of)
	return &s
}

// pending lays what the journal intends beside what the driver tells of it.
func pending(all []journal.Record, l *Live) (out []Pending) {
	tried := map[string]Unfinished{}
	if l != nil {
		for _, u := range l.Unfinished {
			tried[u.VolumeID] = u
		}
	}
	for _, rec := range all {
		if rec.Intent == journal.Publish {
			continue
		}
		p := Pending{VolumeID: rec.VolumeID, Kind: rec.Kind, VG: rec.VG, LV: rec.LV, Intent: rec.Intent, Since: rec.Since}
		for _, path := range rec.Paths {
			p.Paths = append(p.Paths, path.Path)
		}
		u := tried[rec.VolumeID]
		p.Tries, p.Next, p.Error, p.Busy = u.Tries, u.Next, u.Error, u.Busy
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b Pending) int { return a.Since.Compare(b.Since) })
	return out
}

func (c *Collector) volumes(ctx context.Context, r *Report, lvs []volume.LV, all []journal.Record) {
	mounts := r.MountsByDevice()
	intents := map[volume.Ref]journal.Intent{}
	for _, rec := range all {
		intents[rec.Ref()] = rec.Intent
	}
	kubelet := c.kubelet(ctx, r)
	for _, e := range c.from.Health.Examine(ctx, lvs, r.Mounts) {
		if errors.Is(e.Err, volume.ErrNotFound) {
			continue // deleted meanwhile
		}
		v := c.volume(e)
		if v.Active {
			v.mounted(kubelet, mounts[v.Device])
		}
		v.Boundary = boundary(v, intents[v.Ref()])
		r.Volumes = append(r.Volumes, v)
	}
}

// kubelet gives kubelet's folder as the mount table shows it. Where there is none, it has no links either.
func (c *Collector) kubelet(ctx context.Context, r *Report) string {
	below, err := ask.Ask(ctx, &c.open, "kubelet's folder", func() (string, error) { return c.from.Resolve(filepath.Join(c.from.KubeletDir, "any")) })
	switch {
	case err == nil:
		return filepath.Dir(below)
	case errors.Is(err, ask.ErrHung):
		r.Unknown = append(r.Unknown, err.Error())
	}
	return c.from.KubeletDir
}

func (c *Collector) volume(e health.Exam) Volume {
	lv, f := e.LV, e.Seen.Facts
	v := Volume{
		ID: ID(c.from.Node, lv), Name: lv.Name(), Kind: lv.Tags.Kind, VG: lv.VG, LV: lv.LV, UUID: lv.UUID, SizeBytes: lv.SizeBytes,
		Type: cmp.Or(string(lv.Type), "other"), Pool: lv.Pool, Origin: lv.Origin, State: lv.Tags.State, Partial: lv.Partial, PodUID: lv.Tags.PodUID,
		Active: f.Active, Open: f.Open, Suspended: len(f.Suspended) != 0, Conditions: conditions(e.Conditions),
	}
	if a, err := lv.Tags.Attachment(); err == nil {
		v.Attached = a.Node
	}
	if f.Active {
		v.Device = Number(f.Major, f.Minor)
	}
	for _, fs := range e.Seen.Filesystems {
		if u := fs.Usage; u.Bytes != 0 {
			v.UsedBytes, v.FSBytes = &u.UsedBytes, &u.Bytes
		}
	}
	v.Sync = sync(f.Raids)
	if e.Err != nil {
		v.Unknown = e.Err.Error()
	}
	return v
}

// sync tells of the device that is behind the others. One whose legs have been compared to the end is in step, and so is one that waits for nothing.
func sync(raids []volume.RaidStatus) (out *Sync) {
	for _, r := range raids {
		if done := share(r.Synced, r.Total); done != nil && *done < 1 && (out == nil || *done < out.Done) {
			out = &Sync{r.Action, *done}
		}
	}
	return out
}

// ID gives the id by which the CO knows a logical volume.
func ID(node string, lv volume.LV) string {
	if lv.Tags.Kind == volume.Inline {
		return lv.Name()
	}
	return volume.ID{Node: node, Ref: lv.Ref}.String()
}

// Number names a device as in /proc/self/mountinfo.
func Number(major, minor uint32) string { return fmt.Sprintf("%d:%d", major, minor) }

func (v *Volume) mounted(kubelet string, at []volume.Mount) {
	for _, m := range at {
		role, pod := roleOf(kubelet, m.Target)
		v.Mounts = append(v.Mounts, Mount{Path: m.Target, Role: role, PodUID: pod, ReadOnly: m.ReadOnly})
		if !m.Block {
			v.FS = m.FS
		}
	}
}

// roleOf tells by its path what a mount is for, and of which pod it is (kubernetes pkg/volume/csi: csi_mounter.go, csi_block.go,
// csi_util.go; pkg/volume/util/subpath).
func roleOf(kubelet, path string) (role Role, pod string) {
	below, ok := strings.CutPrefix(path, kubelet+"/")
	if !ok {
		return OtherRole, ""
	}
	part := append(strings.Split(below, "/"), make([]string, 8)...)
	switch {
	case part[0] == "pods" && part[2] == "volumes" && part[3] == "kubernetes.io~csi" && part[5] == "mount":
		return TargetRole, part[1]
	case part[0] == "pods":
		return KubeletRole, part[1]
	case !strings.HasPrefix(below, "plugins/kubernetes.io/csi/"):
		return OtherRole, ""
	case part[3] == "volumeDevices" && part[4] == "publish":
		return TargetRole, part[6]
	case part[3] == "volumeDevices" && part[4] != "staging":
		return KubeletRole, part[6]
	default:
		return StagingRole, ""
	}
}

func boundary(v Volume, intent journal.Intent) Boundary {
	has := func(roles ...Role) bool {
		return slices.ContainsFunc(v.Mounts, func(m Mount) bool { return slices.Contains(roles, m.Role) })
	}
	switch {
	case intent == journal.Reclaim:
		return InTeardown
	case intent == journal.Create, v.State != "":
		return Creating
	case has(TargetRole, OtherRole):
		return Published
	case has(StagingRole):
		return Staged
	}
	return Provisioned
}

// holders looks for who keeps pending teardowns from ending.
func (c *Collector) holders(ctx context.Context, r *Report) {
	if c.from.Holders == nil {
		return
	}
	var stuck []*Pending
	for i := range r.Pending {
		if p := &r.Pending[i]; p.Intent == journal.Reclaim && len(stuck) < mostSearched {
			stuck = append(stuck, p)
		}
	}
	ask.Each(stuck, mostSearched, func(p *Pending) {
		i := slices.IndexFunc(r.Volumes, func(v Volume) bool { return v.Ref() == p.Ref() })
		if i < 0 || r.Volumes[i].Open == 0 {
			return
		}
		p.Holders = c.Held(ctx, r.Volumes[i], slices.Concat(p.Paths, []string{""})[0])
	})
}

// Held names who keeps a volume in use, as far as it is found out; target is what is to be unmounted, and may be empty.
func (c *Collector) Held(ctx context.Context, v Volume, target string) (out []string) {
	var d volume.Device
	if _, err := fmt.Sscanf(v.Device, "%d:%d", &d.Major, &d.Minor); err != nil || c.from.Holders == nil {
		return nil
	}
	d.Path = fmt.Sprintf("/dev/dm-%d", d.Minor)
	found, err := c.from.Holders(ctx, d, target)
	if err != nil {
		return nil
	}
	for _, h := range found {
		out = append(out, h.String())
	}
	return out
}
