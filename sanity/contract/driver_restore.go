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

var restoreTests = []driverTest{
	{"Restore", driverRestore},
	{"RestoreBesideItsSource", driverRestoreBeside},
	{"RestoreRefused", driverRestoreRefused},
}

func ofSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func ofVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func (c caller) restoreRequest(name string, bytes int64, cap *csi.VolumeCapability, params map[string]string, source *csi.VolumeContentSource) *csi.CreateVolumeRequest {
	q := c.createRequest(name, bytes, cap, params)
	q.VolumeContentSource = source
	return q
}

// restore makes a volume of a source, twice: the second answer is the first.
func (c caller) restore(name string, bytes int64, cap *csi.VolumeCapability, params map[string]string, source *csi.VolumeContentSource) pv {
	c.t.Helper()
	q := c.restoreRequest(name, bytes, cap, params, source)
	var answers [2]*csi.Volume
	for i := range answers {
		c.ok(c.repeat(func() error {
			r, err := c.Controller().CreateVolume(c.t.Context(), q)
			answers[i] = r.GetVolume()
			return err
		}))
	}
	if !proto.Equal(answers[0], answers[1]) || !proto.Equal(answers[0].GetContentSource(), source) || answers[0].GetCapacityBytes() < bytes {
		c.t.Errorf("made %v, then %v, of %v", answers[0], answers[1], source)
	}
	v := answers[0]
	return pv{caller: c, id: v.GetVolumeId(), name: name, staging: c.Staging(c.t, "restored-"+name), capability: cap, context: v.GetVolumeContext(), bytes: v.GetCapacityBytes()}
}

// wantData checks what the staged volume holds.
func (v pv) wantData(want string) {
	v.t.Helper()
	if got, err := v.ReadFile(v.staging + "/data"); err != nil || got != want {
		v.t.Errorf("volume %s holds %q, %v; want %q", v.name, got, err, want)
	}
}

// Volumes of snapshots and of volumes, in use all the while, between the kinds of storage: each holds what its source held, beside
// it, and is independent of it. A larger one has a larger file system. case B46, case B47, case B50
func driverRestore(t *testing.T, h Harness) {
	c, _ := started(t, h)
	c.create("warm", 4<<20, blockCapability(), layout(c, "thin")).end() // the pool gets another device with its first volume
	clean := c.World(t)
	for _, from := range some(1, "thin", "linear") {
		for _, to := range []string{"thin", "linear"} {
			t.Run(from+" to "+to, func(t *testing.T) {
				c := c.with(t)
				v := c.create("source", 16<<20, mountCapability(""), layout(c, from))
				c.ok(v.stage())
				c.ok(c.WriteFile(v.staging+"/data", "before"))
				s := c.snapshot("snap", v.id)
				c.ok(c.WriteFile(v.staging+"/data", "after"))
				commands := c.Commands(t)
				restored := c.restore("restored", 16<<20, mountCapability(""), layout(c, to), ofSnapshot(s.GetSnapshotId()))
				if from == "thin" && to == "thin" {
					c.wantRuns(commands, map[string]int{"lvcreate": 1})
				}
				cloned := c.restore("cloned", 32<<20, mountCapability(""), layout(c, to), ofVolume(v.id))
				c.ok(c.WriteFile(v.staging+"/data", "later"))
				c.ok(restored.stage())
				restored.wantData("before")
				c.ok(cloned.stage())
				cloned.wantData("after")
				v.wantData("later")
				c.ok(c.WriteFile(restored.staging+"/data", "its own"))
				v.wantData("later")
				if small, large := c.bytesAt(restored.id, restored.staging), c.bytesAt(cloned.id, cloned.staging); large < small*3/2 {
					t.Errorf("a file system of %d bytes was made twice as large, and has %d", small, large)
				}
				c.wantSnapshots(&csi.ListSnapshotsRequest{}, s.GetSnapshotId())
				c.ok(c.deleteSnapshot(s.GetSnapshotId()))
				v.end()
				c.ok(restored.unstage())
				c.ok(restored.stage())
				restored.wantData("its own")
				restored.end()
				cloned.end()
				wantWorld(t, c, clean, "in the end")
			})
		}
	}
}

// Of a file system that was just being written a snapshot has a log that is not yet replayed. What is made of it is mounted beside it, and beside
// what is made of that again. case B50, case B53
func driverRestoreBeside(t *testing.T, h Harness) {
	c, _ := started(t, h)
	for _, fs := range []string{"btrfs", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			c := c.with(t)
			thin := layout(c, "thin")
			v := c.create("source", 304<<20, mountCapability(fs), thin)
			c.ok(v.stage())
			c.ok(c.WriteFile(v.staging+"/data", "before"))
			if s, ok := c.Harness.(interface{ Sync(path string) error }); ok {
				c.ok(s.Sync(v.staging + "/data"))
			}
			first := c.restore("first", 0, mountCapability(fs), thin, ofVolume(v.id))
			c.ok(first.stage())
			first.wantData("before")
			second := c.restore("second", 0, mountCapability(""), thin, ofVolume(first.id)) // the file system of its source
			c.ok(second.stage())
			second.wantData("before")
			c.ok(c.WriteFile(second.staging+"/data", "its own"))
			first.wantData("before")
			c.ok(v.unstage())
			c.ok(v.stage())
			for _, each := range []pv{second, first, v} {
				each.end()
			}
		})
	}
}

// bytesAt gives the size of the file system of a volume.
func (c caller) bytesAt(id, path string) int64 {
	c.t.Helper()
	r, err := c.Node().NodeGetVolumeStats(c.t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
	c.ok(err)
	for _, u := range r.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			return u.GetTotal()
		}
	}
	return 0
}

func driverRestoreRefused(t *testing.T, h Harness) {
	c, clean := started(t, h)
	thin := layout(c, "thin")
	v := c.create("source", 8<<20, mountCapability("ext4"), thin)
	b := c.create("raw", 8<<20, blockCapability(), thin)
	s := c.snapshot("snap", v.id)
	before := c.World(t)
	id := func(lv string) string {
		return volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: lv}}.String()
	}
	request := func(bytes int64, cap *csi.VolumeCapability, source *csi.VolumeContentSource) *csi.CreateVolumeRequest {
		return c.restoreRequest("made", bytes, cap, thin, source)
	}
	limited := request(0, mountCapability(""), ofSnapshot(s.GetSnapshotId()))
	limited.CapacityRange = &csi.CapacityRange{LimitBytes: 4 << 20}
	for _, r := range []struct {
		why  string
		q    *csi.CreateVolumeRequest
		want codes.Code
	}{
		{"no source named", request(0, mountCapability(""), &csi.VolumeContentSource{}), codes.InvalidArgument},
		{"no snapshot id", request(0, mountCapability(""), ofSnapshot("")), codes.InvalidArgument},
		{"nonsense", request(0, mountCapability(""), ofSnapshot("nonsense")), codes.NotFound},
		{"no snapshot", request(0, mountCapability(""), ofSnapshot(id("gone"))), codes.NotFound},
		{"no volume", request(0, mountCapability(""), ofVolume(id("gone"))), codes.NotFound},
		{"a snapshot as a volume", request(0, mountCapability(""), ofVolume(s.GetSnapshotId())), codes.NotFound},
		{"a volume as a snapshot", request(0, mountCapability(""), ofSnapshot(v.id)), codes.NotFound},
		{"another node", request(0, mountCapability(""), ofSnapshot("other/"+c.VG()+"/x")), codes.FailedPrecondition},
		{"a foreign group", request(0, mountCapability(""), ofSnapshot(c.NodeName()+"/foreign/x")), codes.InvalidArgument},
		{"too small", request(4<<20, mountCapability(""), ofSnapshot(s.GetSnapshotId())), codes.OutOfRange},
		{"limit too small", limited, codes.OutOfRange},
		{"another file system", request(0, mountCapability("xfs"), ofSnapshot(s.GetSnapshotId())), codes.InvalidArgument},
		{"block of a file system", request(0, blockCapability(), ofSnapshot(s.GetSnapshotId())), codes.InvalidArgument},
		{"a file system of block", request(0, mountCapability(""), ofVolume(b.id)), codes.InvalidArgument},
	} {
		if _, err := c.Controller().CreateVolume(t.Context(), r.q); status.Code(err) != r.want {
			t.Errorf("%s: %v, want %s", r.why, err, r.want)
		}
	}
	wantWorld(t, c, before, "after refusals")
	made := c.restore("made", 0, mountCapability(""), thin, ofSnapshot(s.GetSnapshotId()))
	for _, source := range []*csi.VolumeContentSource{nil, ofVolume(v.id)} {
		_, err := c.Controller().CreateVolume(t.Context(), request(0, mountCapability(""), source))
		c.code(err, codes.AlreadyExists, "content")
	}
	c.ok(c.deleteSnapshot(s.GetSnapshotId())) // and still the same answer
	r, err := c.Controller().CreateVolume(t.Context(), request(0, mountCapability(""), ofSnapshot(s.GetSnapshotId())))
	if c.ok(err); r.GetVolume().GetVolumeId() != made.id {
		t.Errorf("the answer without the source is %v", r)
	}
	made.end()
	b.end()
	v.end()
	wantWorld(t, c, clean, "in the end")
}

// restoring is the scenario of a CreateVolume with a source of one kind of storage, as another.
func restoring(from, to string, clone bool) func(c caller) act {
	return func(c caller) act {
		v := c.swept(from, mountCapability(""))
		v.fill()
		var s *csi.Snapshot
		source := ofVolume(v.id)
		if !clone {
			s = c.snapshot("swept", v.id)
			source = ofSnapshot(s.GetSnapshotId())
		}
		q := c.restoreRequest("restored", 16<<20, mountCapability(""), layout(c, to), source)
		made := swept{filled: true, target: c.Target(c.t, "restored"), pv: pv{
			caller: c, name: "restored", staging: c.Staging(c.t, "restored"), capability: mountCapability(""),
			id: volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: "restored"}}.String(),
		}}
		return act{
			call: func() error { _, err := c.Controller().CreateVolume(c.t.Context(), q); return err },
			verify: func() error {
				return errors.Join(made.stage(), made.holds(), made.unstage())
			},
			undo: func() error {
				made.filled = false
				if err := made.delete(); err != nil {
					return fmt.Errorf("delete what was made: %w", err)
				}
				if s != nil {
					if err := c.deleteSnapshot(s.GetSnapshotId()); err != nil {
						return err
					}
				}
				return v.takeBack()
			},
		}
	}
}

// restoringBtrfs is the scenario of a CreateVolume with a source that carries btrfs: what is made needs an identity of its own.
func restoringBtrfs(c caller) act {
	v := swept{pv: c.create("swept", 256<<20, mountCapability("btrfs"), layout(c, "thin")), target: c.Target(c.t, "swept")}
	v.fill()
	q := c.restoreRequest("restored", 256<<20, mountCapability("btrfs"), layout(c, "thin"), ofVolume(v.id))
	made := pv{
		caller: c, name: "restored", staging: c.Staging(c.t, "restored"), capability: mountCapability("btrfs"),
		id: volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: "restored"}}.String(),
	}
	return act{
		call: func() error { _, err := c.Controller().CreateVolume(c.t.Context(), q); return err },
		verify: func() error { // beside its source, which is mounted
			return errors.Join(made.stage(), swept{pv: made, filled: true}.holds(), made.unstage())
		},
		undo: func() error {
			if err := made.delete(); err != nil {
				return err
			}
			return v.takeBack()
		},
	}
}
