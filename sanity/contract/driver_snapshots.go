package contract

import (
	"errors"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var snapshotTests = []driverTest{
	{"Snapshots", driverSnapshots},
	{"SnapshotsRefused", driverSnapshotsRefused},
	{"SnapshotPages", driverSnapshotPages},
	{"SnapshotOfAGrownSource", driverSnapshotGrown},
	{"SnapshotLeftByAKill", driverSnapshotKilled},
}

func (c caller) createSnapshot(name, source string, params ...string) (*csi.Snapshot, error) {
	q := &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source, Parameters: map[string]string{}}
	for i := 0; i < len(params); i += 2 {
		q.Parameters[params[i]] = params[i+1]
	}
	r, err := c.Controller().CreateSnapshot(c.t.Context(), q)
	return r.GetSnapshot(), err
}

// snapshot makes a snapshot that must succeed.
func (c caller) snapshot(name, source string, params ...string) (s *csi.Snapshot) {
	c.t.Helper()
	c.ok(c.repeat(func() (err error) { s, err = c.createSnapshot(name, source, params...); return err }))
	return s
}

func (c caller) deleteSnapshot(id string) error {
	_, err := c.Controller().DeleteSnapshot(c.t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

func (c caller) listSnapshots(q *csi.ListSnapshotsRequest) (ids []string, next string) {
	c.t.Helper()
	r, err := c.Controller().ListSnapshots(c.t.Context(), q)
	c.ok(err)
	for _, e := range r.GetEntries() {
		ids = append(ids, e.GetSnapshot().GetSnapshotId())
	}
	return ids, r.GetNextToken()
}

func (c caller) wantSnapshots(q *csi.ListSnapshotsRequest, want ...string) {
	c.t.Helper()
	if ids, _ := c.listSnapshots(q); fmt.Sprint(ids) != fmt.Sprint(want) {
		c.t.Errorf("ListSnapshots(%v) gives %v, want %v", q, ids, want)
	}
}

func refOf(t *testing.T, id string) volume.Ref {
	t.Helper()
	parsed, err := volume.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Ref
}

// A snapshot of a volume in use: made once, told the same whoever asks and whenever, and gone when it is deleted. case B47
func driverSnapshots(t *testing.T, h Harness) {
	c, _ := started(t, h)
	for _, kind := range []string{"linear", "thin"} {
		t.Run(kind, func(t *testing.T) {
			c := c.with(t)
			v := c.create("source", 16<<20, mountCapability(""), layout(c, kind))
			c.ok(v.stage())
			c.ok(c.WriteFile(v.staging+"/data", "before"))
			before := c.World(t)
			commands := c.Commands(t)
			s := c.snapshot("snap", v.id)
			c.wantRuns(commands, map[string]int{"lvcreate": 1})
			if s.GetSourceVolumeId() != v.id || s.GetSizeBytes() != v.bytes || !s.GetReadyToUse() || s.GetCreationTime().AsTime().Year() < 2020 ||
				len(s.GetAccessibleTopology()) != 1 || s.GetGroupSnapshotId() != "" {
				t.Errorf("the snapshot is %v", s)
			}
			info, err := c.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
			c.ok(err)
			here, err := c.Controller().CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: v.id,
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{info.GetAccessibleTopology()}}})
			if c.ok(err); !proto.Equal(here.GetSnapshot(), s) || !proto.Equal(s.GetAccessibleTopology()[0], info.GetAccessibleTopology()) {
				t.Errorf("the snapshot is accessible from %v, the node is %v", s.GetAccessibleTopology(), info.GetAccessibleTopology())
			}
			c.ok(c.WriteFile(v.staging+"/data", "after"))
			c.Kill(t)
			c.Start(t)
			if again := c.snapshot("snap", v.id); !proto.Equal(again, s) {
				t.Errorf("the second answer is %v, the first was %v", again, s)
			}
			got, err := c.Controller().GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: s.GetSnapshotId()})
			if c.ok(err); !proto.Equal(got.GetSnapshot(), s) {
				t.Errorf("GetSnapshot says %v, CreateSnapshot %v", got.GetSnapshot(), s)
			}
			c.wantSnapshots(&csi.ListSnapshotsRequest{}, s.GetSnapshotId())
			c.wantVolumes(v.id)
			c.ok(v.unstage())
			if kind == "linear" {
				c.code(v.delete(), codes.FailedPrecondition, "snapshots first")
			} else {
				c.ok(v.delete())
				if again := c.snapshot("snap", v.id); !proto.Equal(again, s) {
					t.Errorf("without its source the answer is %v, it was %v", again, s)
				}
			}
			commands = c.Commands(t)
			c.ok(c.deleteSnapshot(s.GetSnapshotId()))
			c.wantRuns(commands, map[string]int{"lvremove": 1})
			c.ok(c.deleteSnapshot(s.GetSnapshotId()))
			c.wantSnapshots(&csi.ListSnapshotsRequest{})
			if kind == "linear" {
				c.ok(v.stage())
				wantWorld(t, c, before, "after the snapshot was deleted")
				if got, err := c.ReadFile(v.staging + "/data"); err != nil || got != "after" {
					t.Errorf("the source holds %q, %v", got, err)
				}
				v.end()
			}
		})
	}
}

// wantRuns checks which LVM commands were run since.
func (c caller) wantRuns(since, want map[string]int) {
	c.t.Helper()
	now := c.Commands(c.t)
	for _, verb := range []string{"lvcreate", "lvremove", "lvchange", "lvextend", "lvs", "fullreport"} {
		if n := now[verb] - since[verb]; n != want[verb] {
			c.t.Errorf("%s was run %d times, want %d", verb, n, want[verb])
		}
	}
}

// wantVolumes checks what ListVolumes gives.
func (c caller) wantVolumes(want ...string) {
	c.t.Helper()
	r, err := c.Controller().ListVolumes(c.t.Context(), &csi.ListVolumesRequest{})
	c.ok(err)
	var ids []string
	for _, e := range r.GetEntries() {
		ids = append(ids, e.GetVolume().GetVolumeId())
	}
	if fmt.Sprint(ids) != fmt.Sprint(want) {
		c.t.Errorf("ListVolumes gives %v, want %v", ids, want)
	}
}

// What is refused leaves nothing.
func driverSnapshotsRefused(t *testing.T, h Harness) {
	c, clean := started(t, h)
	v := c.create("source", 16<<20, blockCapability(), nil)
	other := c.create("other", 4<<20, blockCapability(), nil)
	e := c.inline("inline")
	c.ok(e.publish())
	before := c.World(t)
	id := func(lv string) string {
		return volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: lv}}.String()
	}
	for _, r := range []struct {
		name, source string
		params       []string
		want         codes.Code
	}{
		{"", v.id, nil, codes.InvalidArgument},
		{"s", "", nil, codes.InvalidArgument},
		{"s\x00", v.id, nil, codes.InvalidArgument},
		{"s", "no-id", nil, codes.NotFound},
		{"s", id("gone"), nil, codes.NotFound},
		{"s", e.id, nil, codes.NotFound},
		{"s", id(e.id), nil, codes.NotFound}, // its logical volume
		{"s", "other-node/" + c.VG() + "/x", nil, codes.FailedPrecondition},
		{"s", c.NodeName() + "/foreign-vg/x", nil, codes.InvalidArgument},
		{"s", v.id, []string{"snapshotsize", "1Gi"}, codes.InvalidArgument},
		{"s", v.id, []string{"snapshotSize", "0"}, codes.InvalidArgument},
		{"s", v.id, []string{"snapshotSize", "0%"}, codes.InvalidArgument},
		{"s", v.id, []string{"snapshotSize", "1001%"}, codes.InvalidArgument},
		{"s", v.id, []string{"snapshotSize", "much"}, codes.InvalidArgument},
	} {
		if _, err := c.createSnapshot(r.name, r.source, r.params...); status.Code(err) != r.want {
			t.Errorf("%q of %q with %v: %v, want %s", r.name, r.source, r.params, err, r.want)
		}
	}
	elsewhere := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.id, AccessibilityRequirements: &csi.TopologyRequirement{
		Requisite: []*csi.Topology{{Segments: map[string]string{"topology.local-lvm.csi.internal/node": "another"}}},
	}}
	_, err := c.Controller().CreateSnapshot(t.Context(), elsewhere)
	c.code(err, codes.ResourceExhausted)
	wantWorld(t, c, before, "after refusals")

	s := c.snapshot("s", v.id, "snapshotSize", "50%", "csi.storage.k8s.io/volumesnapshot/name", "x")
	_, err = c.createSnapshot("s", other.id, "snapshotSize", "50%")
	c.code(err, codes.AlreadyExists, "source")
	_, err = c.createSnapshot("s", v.id, "snapshotSize", "51%")
	c.code(err, codes.AlreadyExists, "snapshotSize", "50%")
	_, err = c.createSnapshot("s2", s.GetSnapshotId())
	c.code(err, codes.NotFound)
	c.code(c.deleteSnapshot(""), codes.InvalidArgument)
	c.code(c.deleteSnapshot(v.id), codes.FailedPrecondition)
	c.code(c.delete(s.GetSnapshotId()), codes.FailedPrecondition)
	c.ok(c.deleteSnapshot("nonsense"))
	c.ok(c.deleteSnapshot(id("gone")))
	for _, q := range []string{"nonsense", v.id, id("gone")} {
		_, err := c.Controller().GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: q})
		c.code(err, codes.NotFound)
	}
	release := c.HoldLV(t, refOf(t, s.GetSnapshotId()))
	c.code(c.deleteSnapshot(s.GetSnapshotId()), codes.FailedPrecondition)
	release()
	c.ok(c.repeat(func() error { return c.deleteSnapshot(s.GetSnapshotId()) }))
	wantWorld(t, c, before, "after the snapshot was deleted")
	c.ok(e.unpublish())
	v.end()
	other.end()
	wantWorld(t, c, clean, "in the end")
}

func driverSnapshotPages(t *testing.T, h Harness) {
	c, _ := started(t, h)
	a := c.create("a", 4<<20, blockCapability(), layout(c, "thin"))
	b := c.create("b", 4<<20, blockCapability(), layout(c, "thin"))
	all := map[string]string{}
	for i := range 5 {
		all[c.snapshot(fmt.Sprint("a", i), a.id).GetSnapshotId()] = a.id
	}
	of := c.snapshot("b", b.id).GetSnapshotId()
	all[of] = b.id
	token, seen := "", map[string]bool{}
	for range 3 {
		ids, next := c.listSnapshots(&csi.ListSnapshotsRequest{MaxEntries: 2, StartingToken: token})
		for _, id := range ids {
			seen[id] = true
		}
		token = next
	}
	if token != "" || len(seen) != len(all) {
		t.Errorf("three pages of two hold %v, token %q; there are %v", seen, token, all)
	}
	c.wantSnapshots(&csi.ListSnapshotsRequest{SourceVolumeId: b.id}, of)
	c.wantSnapshots(&csi.ListSnapshotsRequest{SnapshotId: of}, of)
	c.wantSnapshots(&csi.ListSnapshotsRequest{SnapshotId: of, SourceVolumeId: a.id})
	c.wantSnapshots(&csi.ListSnapshotsRequest{SnapshotId: "nonsense"})
	if ids, _ := c.listSnapshots(&csi.ListSnapshotsRequest{SourceVolumeId: a.id}); len(ids) != 5 {
		t.Errorf("%d snapshots of a", len(ids))
	}
	_, err := c.Controller().ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "x"})
	c.code(err, codes.Aborted)
	_, err = c.Controller().ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: -1})
	c.code(err, codes.InvalidArgument)
	for id := range all {
		c.ok(c.deleteSnapshot(id))
	}
	a.end()
	b.end()
}

// The size of a snapshot is that of its source at its moment, whatever the source is later; what is restored is that large at least. case B45
func driverSnapshotGrown(t *testing.T, h Harness) {
	c, _ := started(t, h)
	v := c.create("source", 8<<20, blockCapability(), layout(c, "thin"))
	s := c.snapshot("snap", v.id)
	_, err := c.expandTo(v.id, &csi.CapacityRange{RequiredBytes: 16 << 20}, blockCapability())
	c.ok(err)
	if again := c.snapshot("snap", v.id); s.GetSizeBytes() != 8<<20 || !proto.Equal(again, s) {
		t.Errorf("after its source grew the snapshot is %v, it was %v", again, s)
	}
	later := c.snapshot("later", v.id)
	if later.GetSizeBytes() != 16<<20 {
		t.Errorf("the snapshot of the grown source is %v", later)
	}
	r, err := c.Controller().ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId()})
	if c.ok(err); len(r.GetEntries()) != 1 || !proto.Equal(r.GetEntries()[0].GetSnapshot(), s) {
		t.Errorf("ListSnapshots says %v, CreateSnapshot %v", r.GetEntries(), s)
	}
	source := ofSnapshot(s.GetSnapshotId())
	_, err = c.Controller().CreateVolume(t.Context(), c.restoreRequest("smaller", 4<<20, blockCapability(), layout(c, "thin"), source))
	c.code(err, codes.OutOfRange)
	for name, bytes := range map[string]int64{"equal": 8 << 20, "larger": 16 << 20} {
		restored := c.restore(name, bytes, blockCapability(), layout(c, "thin"), source)
		if restored.bytes != bytes {
			t.Errorf("%s was restored with %d bytes, want %d", name, restored.bytes, bytes)
		}
		restored.end()
	}
	for _, id := range []string{s.GetSnapshotId(), later.GetSnapshotId()} {
		c.ok(c.deleteSnapshot(id))
	}
	v.end()
}

// A killed lvcreate can leave the store of a thick snapshot that is tied to no origin, and its record can be lost: it is shown to
// nobody, and replaced by the repeated call.
func driverSnapshotKilled(t *testing.T, h Harness) {
	c, clean := started(t, h)
	v := c.create("source", 4<<20, blockCapability(), nil)
	tags := volume.Tags{Owner: "local-lvm.csi.internal", Kind: volume.Snapshot, Name: "s", Origin: v.ref().String(), Created: 1, Bytes: 4 << 20}
	r := volume.Ref{VG: c.VG(), LV: volume.LVName(volume.Snapshot, "s")}
	c.MakeLV(t, r, 4<<20, tags.Strings()...)
	c.wantSnapshots(&csi.ListSnapshotsRequest{})
	s := c.snapshot("s", v.id)
	if s.GetCreationTime().AsTime().Unix() < 1e9 {
		t.Errorf("what was half made is handed out: %v", s)
	}
	c.wantSnapshots(&csi.ListSnapshotsRequest{}, s.GetSnapshotId())
	c.ok(c.deleteSnapshot(s.GetSnapshotId()))
	c.MakeLV(t, r, 4<<20, tags.Strings()...)
	c.ok(c.deleteSnapshot(s.GetSnapshotId()))
	v.end()
	wantWorld(t, c, clean, "in the end")
}

// snapshotting is the scenario of a CreateSnapshot.
func snapshotting(kind string) func(c caller) act {
	return func(c caller) act {
		v := c.swept(kind, mountCapability(""))
		v.fill()
		id := volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: volume.LVName(volume.Snapshot, "swept")}}
		return act{
			call: func() error { _, err := c.createSnapshot("swept", v.id); return err },
			verify: func() error {
				if ids, _ := c.listSnapshots(&csi.ListSnapshotsRequest{SourceVolumeId: v.id}); fmt.Sprint(ids) != fmt.Sprint([]string{id.String()}) {
					return fmt.Errorf("the snapshots are %v", ids)
				}
				return nil
			},
			undo: func() error {
				if err := c.deleteSnapshot(id.String()); err != nil {
					return err
				}
				return v.takeBack()
			},
		}
	}
}

func deletingSnapshot(kind string) func(c caller) act {
	return func(c caller) act {
		v := c.swept(kind, mountCapability(""))
		v.fill()
		s := c.snapshot("swept", v.id)
		remove := func() error { return c.deleteSnapshot(s.GetSnapshotId()) }
		return act{
			call: remove,
			verify: func() error {
				if c.there(refOf(c.t, s.GetSnapshotId())) {
					return errors.New("the snapshot is there")
				}
				return nil
			},
			undo: func() error {
				if err := remove(); err != nil {
					return err
				}
				return v.takeBack()
			},
		}
	}
}
