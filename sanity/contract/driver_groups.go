package contract

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var groupTests = []driverTest{
	{"Groups", driverGroups},
	{"GroupsRefused", driverGroupsRefused},
	{"GroupIsOneMoment", driverGroupMoment},
}

func (c caller) createGroup(name string, sources ...string) (*csi.VolumeGroupSnapshot, error) {
	r, err := c.Group().CreateVolumeGroupSnapshot(c.t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: sources})
	return r.GetGroupSnapshot(), err
}

func (c caller) group(name string, sources ...string) (g *csi.VolumeGroupSnapshot) {
	c.t.Helper()
	c.ok(c.repeat(func() (err error) { g, err = c.createGroup(name, sources...); return err }))
	return g
}

func idsOf(g *csi.VolumeGroupSnapshot) (ids []string) {
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return ids
}

func (c caller) deleteGroup(id string, snapshots ...string) error {
	_, err := c.Group().DeleteVolumeGroupSnapshot(c.t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snapshots})
	return err
}

func (c caller) getGroup(id string, snapshots ...string) (*csi.VolumeGroupSnapshot, error) {
	r, err := c.Group().GetVolumeGroupSnapshot(c.t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snapshots})
	return r.GetGroupSnapshot(), err
}

// members makes a thin and a thick volume, staged, for a group.
func (c caller) members() (a, b pv) {
	c.t.Helper()
	a = c.create("member-a", 16<<20, mountCapability(""), layout(c, "thin"))
	b = c.create("member-b", 16<<20, mountCapability(""), layout(c, "linear"))
	c.ok(a.stage())
	c.ok(b.stage())
	return a, b
}

// A group of a thin and a thick volume in use: made once, told the same whoever asks, of use for restores, and gone as a whole.
func driverGroups(t *testing.T, h Harness) {
	c, _ := started(t, h)
	c.create("warm", 4<<20, blockCapability(), layout(c, "thin")).end()
	clean := c.World(t)
	a, b := c.members()
	c.ok(c.WriteFile(a.staging+"/data", "before"))
	c.ok(c.WriteFile(b.staging+"/data", "before"))
	before := c.World(t)
	g := c.group("group", a.id, b.id)
	if len(g.GetSnapshots()) != 2 || !g.GetReadyToUse() || !g.GetCreationTime().IsValid() {
		t.Fatalf("the group is %v", g)
	}
	for _, s := range g.GetSnapshots() {
		if s.GetGroupSnapshotId() != g.GetGroupSnapshotId() || !proto.Equal(s.GetCreationTime(), g.GetCreationTime()) || s.GetSizeBytes() != 16<<20 || !s.GetReadyToUse() {
			t.Errorf("a snapshot of group %s is %v", g.GetGroupSnapshotId(), s)
		}
	}
	if c.IsSuspended(t, a.ref()) || c.IsSuspended(t, b.ref()) {
		t.Error("a member is still suspended")
	}
	c.ok(c.WriteFile(a.staging+"/data", "after"))
	c.ok(c.WriteFile(b.staging+"/data", "after"))
	c.Kill(t)
	c.Start(t)
	if again := c.group("group", b.id, a.id); !proto.Equal(again, g) {
		t.Errorf("the second answer is %v, the first was %v", again, g)
	}
	got, err := c.getGroup(g.GetGroupSnapshotId(), idsOf(g)...)
	if c.ok(err); !proto.Equal(got, g) {
		t.Errorf("GetVolumeGroupSnapshot says %v, CreateVolumeGroupSnapshot %v", got, g)
	}
	c.wantSnapshots(&csi.ListSnapshotsRequest{}, idsOf(g)...)
	for i, s := range g.GetSnapshots() {
		made := c.restore(fmt.Sprint("of-member-", i), 0, mountCapability(""), layout(c, "thin"), ofSnapshot(s.GetSnapshotId()))
		c.ok(made.stage())
		made.wantData("before")
		made.end()
	}
	c.ok(c.deleteGroup(g.GetGroupSnapshotId(), idsOf(g)...))
	c.ok(c.deleteGroup(g.GetGroupSnapshotId(), idsOf(g)...))
	_, err = c.getGroup(g.GetGroupSnapshotId())
	c.code(err, codes.NotFound)
	wantWorld(t, c, before, "after the group was deleted")
	a.end()
	b.end()
	wantWorld(t, c, clean, "in the end")
}

func driverGroupsRefused(t *testing.T, h Harness) {
	c, _ := started(t, h)
	a, b := c.members()
	before := c.World(t)
	gone := volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: "gone"}}.String()
	refused := func(want codes.Code, name string, sources ...string) {
		t.Helper()
		_, err := c.createGroup(name, sources...)
		c.code(err, want)
	}
	refused(codes.InvalidArgument, "", a.id)
	refused(codes.InvalidArgument, "g")
	refused(codes.InvalidArgument, "g", a.id, "")
	refused(codes.InvalidArgument, "g", a.id, a.id)
	refused(codes.NotFound, "g", a.id, gone)
	refused(codes.NotFound, "g", a.id, "nonsense")
	wantWorld(t, c, before, "after refusals")
	g := c.group("g", a.id, b.id)
	ids := idsOf(g)
	refused(codes.AlreadyExists, "g", a.id)
	c.code(c.deleteSnapshot(ids[0]), codes.InvalidArgument, "together")
	c.code(c.deleteGroup(g.GetGroupSnapshotId(), ids[0]), codes.InvalidArgument, ids[1])
	alone := c.snapshot("alone", a.id)
	c.code(c.deleteGroup(g.GetGroupSnapshotId(), append(ids, alone.GetSnapshotId())...), codes.InvalidArgument, alone.GetSnapshotId())
	c.ok(c.deleteSnapshot(alone.GetSnapshotId()))
	c.code(c.deleteGroup(""), codes.InvalidArgument)
	c.ok(c.deleteGroup("nonsense"))
	c.ok(c.deleteGroup(gone))
	for _, id := range []string{"nonsense", gone, ids[0]} {
		_, err := c.getGroup(id)
		c.code(err, codes.NotFound)
	}
	_, err := c.getGroup(g.GetGroupSnapshotId(), ids[0])
	c.code(err, codes.InvalidArgument)
	_, err = c.getGroup("")
	c.code(err, codes.InvalidArgument)
	c.ok(c.deleteGroup(g.GetGroupSnapshotId()))
	wantWorld(t, c, before, "after the group was deleted")
	a.end()
	b.end()
}

// Somebody writes one number after the other, each into the first volume and then into the second, and makes each durable before
// the next. In the snapshots the second is never ahead of the first, and at most one behind: that is how it was at each moment.
func driverGroupMoment(t *testing.T, h Harness) {
	c, _ := started(t, h)
	a, b := c.members()
	sync := func(string) error { return nil }
	if s, ok := c.Harness.(interface{ Sync(path string) error }); ok {
		sync = s.Sync
	}
	var written atomic.Int64
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 1; ; n++ {
			for _, v := range []pv{a, b} {
				path := v.staging + "/data"
				err := c.WriteFile(path, strconv.Itoa(n))
				if err == nil {
					err = sync(path)
				}
				if err != nil && !strings.Contains(err.Error(), "suspended") { // the machine in memory does not make one wait
					ended <- err
					return
				}
				if err != nil {
					break
				}
			}
			written.Store(int64(n))
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
		}
	}()
	for round := range some(1, 0, 1, 2) {
		at := written.Load()
		until(func() bool { return written.Load() > at+3 })
		g := c.group("moment", a.id, b.id)
		var numbers []int
		for _, source := range []string{a.id, b.id} {
			for _, s := range g.GetSnapshots() {
				if s.GetSourceVolumeId() != source {
					continue
				}
				made := c.restore(fmt.Sprint("moment-", round, len(numbers)), 0, mountCapability(""), layout(c, "thin"), ofSnapshot(s.GetSnapshotId()))
				c.ok(made.stage())
				text, err := c.ReadFile(made.staging + "/data")
				c.ok(err)
				n, err := strconv.Atoi(text)
				c.ok(err)
				numbers = append(numbers, n)
				made.end()
			}
		}
		if first, second := numbers[0], numbers[1]; second > first || first-second > 1 || int64(first) < at {
			t.Errorf("the first volume holds %d, the second %d, and %d were written before", first, second, at)
		}
		c.ok(c.deleteGroup(g.GetGroupSnapshotId()))
	}
	close(stop)
	c.ok(<-ended)
	a.end()
	b.end()
}

// grouping is the scenario of a CreateVolumeGroupSnapshot.
func grouping(c caller) act {
	a, b := c.members()
	c.ok(c.WriteFile(a.staging+"/data", written))
	c.ok(c.WriteFile(b.staging+"/data", written))
	id := volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: volume.LVName(volume.Together, "swept")}}.String()
	return act{
		call: func() error { _, err := c.createGroup("swept", a.id, b.id); return err },
		verify: func() error {
			_, err := c.getGroup(id)
			return err
		},
		undo: func() error {
			if err := c.deleteGroup(id); err != nil {
				return err
			}
			return takeBackAll(c, true, a, b)
		},
	}
}

func takeBackAll(c caller, filled bool, volumes ...pv) error {
	for _, v := range volumes {
		if err := (swept{pv: v, filled: filled, target: c.Target(c.t, "swept")}).takeBack(); err != nil {
			return err
		}
	}
	return nil
}

func deletingGroup(c caller) act {
	a, b := c.members()
	g := c.group("swept", a.id, b.id)
	remove := func() error { return c.deleteGroup(g.GetGroupSnapshotId(), idsOf(g)...) }
	return act{
		call: remove,
		verify: func() error {
			if ids, _ := c.listSnapshots(&csi.ListSnapshotsRequest{}); len(ids) != 0 {
				return fmt.Errorf("there are %v", ids)
			}
			return nil
		},
		undo: func() error {
			if err := remove(); err != nil {
				return err
			}
			return takeBackAll(c, false, a, b)
		},
	}
}
