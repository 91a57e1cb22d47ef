package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const owner = "local-lvm.csi.internal"

// bench is a machine in memory with what a Collector asks besides.
type bench struct {
	t       *testing.T
	m       *fake.Machine
	tools   fake.Tools
	records []journal.Record
	live    *Live
}

func newBench(t *testing.T) *bench {
	m := fake.New()
	m.AddGroup("data", 4<<20, 1<<30, 1<<30)
	m.AddPool("data", "pool", 256<<20)
	return &bench{t: t, m: m, tools: m.Connect(fake.Config{Owner: owner, Groups: []string{"data"}})}
}

func (b *bench) sources() Sources {
	return Sources{
		Node: "node-1", Owner: owner, KubeletDir: "/var/lib/kubelet", LVM: b.tools.LVM,
		Health: health.New(b.tools.LVM, b.tools.Mounts, b.tools.Paths.Resolve), Mounts: b.tools.Mounts.List, Resolve: b.tools.Paths.Resolve,
		Journal: func() ([]journal.Record, []string, error) { return b.records, []string{"torn"}, nil },
		Live: func(context.Context) (*Live, error) {
			if b.live == nil {
				return nil, ErrNotRunning
			}
			return b.live, nil
		},
		Holders: b.tools.Mounts.Holders,
	}
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// volume makes a volume, with a file system where it is mounted at paths.
func (b *bench) volume(kind volume.Kind, name string, paths ...string) volume.Ref {
	r := volume.Ref{VG: "data", LV: name}
	b.m.AddLV(r, volume.Layout{Type: volume.Linear}, 64<<20, volume.OwnerTag(owner), volume.KindTag(kind))
	b.m.EditLV(r, func(s *fake.State) { s.Active = true })
	d, err := b.tools.LVM.Device(b.t.Context(), r)
	b.must(err)
	for i, path := range paths {
		if i == 0 {
			b.must(b.tools.Filesystems.Format(b.t.Context(), d, volume.Format{FS: volume.Ext4}))
		}
		parent := ""
		for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			parent += "/" + part
			if f, err := b.m.Lstat(parent); err != nil || f.Kind == 0 {
				b.must(b.m.Mkdir(parent))
			}
		}
		b.must(b.tools.Mounts.Mount(b.t.Context(), d, path, volume.MountOptions{FS: volume.Ext4}))
	}
	return r
}

const (
	pods    = "/var/lib/kubelet/pods/"
	staging = "/var/lib/kubelet/plugins/kubernetes.io/csi/local-lvm.csi.internal/0123/globalmount"
)

func TestCollect(t *testing.T) {
	b := newBench(t)
	b.volume(volume.Persistent, "free")
	b.volume(volume.Persistent, "staged", staging)
	b.volume(volume.Persistent, "used", pods+"uid-1/volumes/kubernetes.io~csi/pv/mount")
	going := b.volume(volume.Inline, "csi-1", pods+"uid-2/volumes/kubernetes.io~csi/data/mount")
	next := time.Now()
	b.records = []journal.Record{
		{VolumeID: "csi-1", Kind: volume.Inline, VG: "data", LV: "csi-1", Intent: journal.Reclaim, Paths: []journal.Path{{Path: pods + "uid-2/volumes/kubernetes.io~csi/data/mount"}}},
		{VolumeID: "csi-2", Kind: volume.Inline, VG: "data", LV: "csi-2", Intent: journal.Publish},
	}
	b.live = &Live{Version: "v1", Unfinished: []Unfinished{{VolumeID: "csi-1", Tries: 4, Next: &next, Error: "in use", Busy: true}}}
	_, release := b.m.Hold("file", pods+"uid-2/volumes/kubernetes.io~csi/data/mount")
	defer release()

	r := New(b.sources()).Collect(t.Context())
	if len(r.Unknown) != 0 || r.Driver.Version != "v1" || !slices.Equal(r.Problems, []string{"torn"}) {
		t.Errorf("%+v", r)
	}
	if g := r.Groups[0]; g.Name != "data" || g.SizeBytes != 2<<30 || g.FreeBytes >= g.SizeBytes || g.Disks != 2 || g.Pools[0].Name != "pool" {
		t.Errorf("%+v", g)
	}
	want := []struct {
		id       string
		boundary Boundary
		role     Role
		pod      string
	}{
		{"csi-1", InTeardown, TargetRole, "uid-2"},
		{"node-1/data/free", Provisioned, "", ""},
		{"node-1/data/staged", Staged, StagingRole, ""},
		{"node-1/data/used", Published, TargetRole, "uid-1"},
	}
	for i, w := range want {
		v := r.Volumes[i]
		if v.ID != w.id || v.Boundary != w.boundary || !v.Active || v.UUID == "" || v.SizeBytes != 64<<20 || v.Type != "linear" {
			t.Errorf("%d: %+v", i, v)
		}
		if w.role != "" && (v.Mounts[0].Role != w.role || v.Mounts[0].PodUID != w.pod || v.FS != "ext4" || v.UsedBytes == nil) {
			t.Errorf("%d: %+v", i, v)
		}
	}
	if len(r.Pending) != 1 {
		t.Fatalf("%+v", r.Pending)
	}
	if p := r.Pending[0]; p.VolumeID != "csi-1" || p.Tries != 4 || p.Next != &next || !p.Busy || len(p.Paths) != 1 || len(p.Holders) == 0 {
		t.Errorf("%+v", p)
	}
	_ = going
}

// What cannot be found out is told as that, what can is told all the same, and nobody waits.
func TestCollectWithoutAnswers(t *testing.T) {
	b := newBench(t)
	b.volume(volume.Persistent, "a")
	hang := make(chan struct{})
	defer close(hang)
	s := b.sources()
	s.Mounts = func(context.Context) ([]volume.Mount, error) { <-hang; return nil, nil }
	s.Journal = func() ([]journal.Record, []string, error) { return nil, nil, errors.New("I/O error") }
	s.Live = func(context.Context) (*Live, error) { return nil, errors.New("no answer") }
	s.Resolve = func(string) (string, error) { <-hang; return "", nil }
	c := New(s)
	c.open.Bound = time.Second // long enough for those who answer, on a busy machine
	r := c.Collect(t.Context())
	if len(r.Volumes) != 1 || len(r.Groups) != 1 || r.Driver != nil || !strings.Contains(r.DriverUnknown, "no answer") || r.Blind() {
		t.Errorf("%+v", r)
	}
	if all := strings.Join(r.Unknown, "\n"); len(r.Unknown) != 3 || !strings.Contains(all, "the mount table: no answer in time") || !strings.Contains(all, "kubelet's folder: no answer in time") || !strings.Contains(all, "the journal: I/O error") {
		t.Errorf("%q", r.Unknown)
	}
	b.m.FailReads("data", errors.New("I/O error"))
	r = c.Collect(t.Context())
	if len(r.Volumes) != 0 || !r.Blind() || !slices.ContainsFunc(r.Storage, func(c Condition) bool { return c.Reason == "GroupUnreadable" }) {
		t.Errorf("%+v", r)
	}
}

func TestRoles(t *testing.T) {
	const csi = "/k/plugins/kubernetes.io/csi/"
	for path, want := range map[string]struct {
		role Role
		pod  string
	}{
		"/k/pods/u/volumes/kubernetes.io~csi/pv/mount":        {TargetRole, "u"},
		"/k/pods/u/volume-subpaths/pv/app/0":                  {KubeletRole, "u"},
		csi + "driver/hash/globalmount":                       {StagingRole, ""},
		csi + "pv/name/globalmount":                           {StagingRole, ""},
		csi + "volumeDevices/staging/pv/csi-local-lvm-device": {StagingRole, ""},
		csi + "volumeDevices/publish/pv/u":                    {TargetRole, "u"},
		csi + "volumeDevices/pv/dev/u":                        {KubeletRole, "u"},
		"/k/other":                                            {OtherRole, ""},
		"/mnt":                                                {OtherRole, ""},
		"/k":                                                  {OtherRole, ""},
	} {
		if role, pod := roleOf("/k", path); role != want.role || pod != want.pod {
			t.Errorf("%s: %s %q", path, role, pod)
		}
	}
}

func TestStanding(t *testing.T) {
	bad := func(uuid string, reasons ...string) *Report {
		r := &Report{}
		v := Volume{UUID: uuid}
		for _, reason := range reasons {
			v.Conditions = append(v.Conditions, Condition{Reason: reason, Message: time.Now().String()})
		}
		r.Volumes = []Volume{v}
		return r
	}
	blind := bad("a")
	blind.Unknown = []string{"the logical volumes"}
	stored := bad("a")
	stored.Storage = []Condition{{Reason: "X"}}
	var s Standing
	for i, step := range []struct {
		r    *Report
		want string
	}{
		{bad("a"), ""},
		{bad("a", "X"), "+X"},
		{bad("a", "X"), ""},
		{bad("a", "X", "Y"), "+Y"},
		{blind, ""},
		{bad("a", "X", "Y"), ""},
		{bad("a", "Y"), "-X"},
		{bad("b", "Y"), "+Y -Y"},
		{stored, "+X -Y"},
		{bad("a", "X"), "+X -X"},
		{bad("a"), "-X"},
	} {
		var got []string
		for _, c := range s.Next(step.r) {
			sign := "-"
			if c.Begins {
				sign = "+"
			}
			got = append(got, sign+c.Reason)
		}
		if strings.Join(got, " ") != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// Of the devices of a volume the one that is farthest behind is told of; of those that are in step none is.
func TestSync(t *testing.T) {
	for _, c := range []struct {
		raids []volume.RaidStatus
		want  string
	}{
		{nil, "<nil>"},
		{[]volume.RaidStatus{{Synced: 100, Total: 100, Action: "idle"}}, "<nil>"},
		{[]volume.RaidStatus{{Synced: 75, Total: 100, Action: "resync"}, {Synced: 1, Total: 4, Action: "check"}, {Synced: 4, Total: 4, Action: "idle"}}, "&{check 0.25}"},
		{[]volume.RaidStatus{{Action: "idle"}}, "<nil>"},
	} {
		if got := fmt.Sprint(sync(c.raids)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.raids, got, c.want)
		}
	}
}
