package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var crowdTests = []driverTest{{"AllServicesAtOnce", allServicesAtOnce}}

// crowd is a few names on which all calls are made at once: two volumes, two of their snapshots, two groups with both, two clones.
type crowd struct {
	caller
	sources []pv
	layouts []map[string]string
	targets []string
}

func (c caller) crowd() *crowd {
	w := &crowd{caller: c}
	for i, kind := range []string{"thin", "linear"} {
		w.layouts = append(w.layouts, layout(c, kind))
		w.sources = append(w.sources, c.create(fmt.Sprint("crowd-", i), 16<<20, mountCapability(""), w.layouts[i]))
		w.targets = append(w.targets, c.Target(c.t, fmt.Sprint("crowd-", i)))
	}
	return w
}

func (w *crowd) idOf(k volume.Kind, name string) string {
	return volume.ID{Node: w.NodeName(), Ref: volume.Ref{VG: w.VG(), LV: volume.LVName(k, name)}}.String()
}

// call makes one of the calls; what says which.
func (w *crowd) call(ctx context.Context) (what string, err error) {
	i, j := rand.N(2), rand.N(2)
	v, snap, group, clone := w.sources[i], fmt.Sprint("crowd-snap-", i), fmt.Sprint("crowd-group-", i), fmt.Sprint("crowd-clone-", i)
	snapID, groupID := w.idOf(volume.Snapshot, snap), w.idOf(volume.Together, group)
	calls := []struct {
		what string
		make func() error
	}{
		{"CreateVolume", func() error {
			return second(w.Controller().CreateVolume(ctx, w.createRequest(v.name, 16<<20, v.capability, w.layouts[i])))
		}},
		{"DeleteVolume", func() error {
			return second(w.Controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id}))
		}},
		{"ControllerExpandVolume", func() error {
			return second(w.Controller().ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: &csi.CapacityRange{RequiredBytes: int64(4+rand.N(3)) * 4 << 20}}))
		}},
		{"NodeExpandVolume", func() error {
			return second(w.Node().NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: v.staging}))
		}},
		{"ControllerModifyVolume", func() error {
			return second(w.Controller().ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: v.id, MutableParameters: map[string]string{volume.KeyReadAhead: []string{"256", "512"}[j]}}))
		}},
		{"CreateSnapshot", func() error {
			return second(w.Controller().CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: snap, SourceVolumeId: w.sources[j].id}))
		}},
		{"DeleteSnapshot", func() error {
			return second(w.Controller().DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapID}))
		}},
		{"GetSnapshot", func() error {
			return second(w.Controller().GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: snapID}))
		}},
		{"CreateVolumeGroupSnapshot", func() error {
			return second(w.Group().CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: group, SourceVolumeIds: []string{w.sources[j].id, w.sources[1-j].id}}))
		}},
		{"DeleteVolumeGroupSnapshot", func() error {
			return second(w.Group().DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: groupID}))
		}},
		{"GetVolumeGroupSnapshot", func() error {
			return second(w.Group().GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: groupID}))
		}},
		{"CreateVolume of a volume", func() error {
			return second(w.Controller().CreateVolume(ctx, w.restoreRequest(clone, 0, v.capability, w.layouts[j], ofVolume(v.id))))
		}},
		{"CreateVolume of a snapshot", func() error {
			return second(w.Controller().CreateVolume(ctx, w.restoreRequest(clone, 0, v.capability, w.layouts[j], ofSnapshot(snapID))))
		}},
		{"DeleteVolume of a clone", func() error {
			return second(w.Controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: w.idOf(volume.Persistent, clone)}))
		}},
		{"NodeStageVolume", func() error {
			return second(w.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability}))
		}},
		{"NodePublishVolume", func() error {
			return second(w.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: w.targets[i], VolumeCapability: v.capability}))
		}},
		{"NodeUnpublishVolume", func() error { return w.unpublishWithin(ctx, v.id, w.targets[i]) }},
		{"NodeUnstageVolume", func() error {
			return second(w.Node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging}))
		}},
		{"ListVolumes", func() error { return second(w.Controller().ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 1})) }},
		{"ListSnapshots", func() error {
			return second(w.Controller().ListSnapshots(ctx, &csi.ListSnapshotsRequest{SourceVolumeId: v.id}))
		}},
		{"GetMetadataAllocated", func() error {
			s, err := w.SnapshotMetadata().GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: snapID})
			for err == nil {
				_, err = s.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}},
	}
	k := calls[rand.N(len(calls))]
	return k.what, k.make()
}

func second[T any](_ T, err error) error { return err }

// due is how a call may end that meets any other: not with Internal, nor with a word on the arguments, which are right.
var dueInACrowd = []codes.Code{
	codes.OK, codes.Aborted, codes.NotFound, codes.FailedPrecondition, codes.AlreadyExists, codes.ResourceExhausted,
	codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, // given up, or cut off by a kill
}

// end takes all away that the calls may have left.
func (w *crowd) end() {
	w.t.Helper()
	for i, v := range w.sources {
		w.ok(w.repeat(func() error { return v.unpublish(w.targets[i]) }))
		w.ok(w.repeat(v.unstage))
		w.ok(w.repeat(func() error { return w.delete(w.idOf(volume.Persistent, fmt.Sprint("crowd-clone-", i))) }))
		w.ok(w.repeat(func() error { return w.deleteGroup(w.idOf(volume.Together, fmt.Sprint("crowd-group-", i))) }))
		w.ok(w.repeat(func() error { return w.deleteSnapshot(w.idOf(volume.Snapshot, fmt.Sprint("crowd-snap-", i))) }))
	}
	for _, v := range w.sources {
		w.ok(w.repeat(v.delete))
	}
}

// Every call of the data services beside every other, on the same few volumes, from callers that are patient and ones that give up; and in
// some rounds the driver is killed among them.
func allServicesAtOnce(t *testing.T, h Harness) {
	c, _ := started(t, h)
	c.create("warm", 4<<20, blockCapability(), layout(c, "thin")).end()
	clean := c.World(t)
	for round := range some(1, 0, 1, 2, 3) {
		w := c.crowd()
		if round%2 == 1 {
			h.Arm(t, Fault{N: 100 + rand.N(200), Do: KillBefore})
		}
		var all sync.WaitGroup
		for n := range 12 {
			all.Go(func() {
				for range 30 {
					ctx, cancel := t.Context(), func() {}
					if n%3 == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.N(int64(20*time.Millisecond))))
					}
					if what, err := w.call(ctx); !slices.Contains(dueInACrowd, status.Code(err)) {
						t.Errorf("%s: %v", what, err)
					}
					cancel()
				}
			})
		}
		all.Wait()
		if !h.Running() {
			h.Start(t)
		}
		h.Arm(t, Fault{})
		w.end()
		wantWorld(t, c, clean, "after the crowd")
	}
}
