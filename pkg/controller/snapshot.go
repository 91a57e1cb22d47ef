package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// The fields that hold ids in the calls about snapshots.
const (
	snapshotID = "snapshot_id"
	sourceID   = "source_volume_id"
)

// CreateSnapshot implements csi.ControllerServer. The snapshot is in the volume group of its source.
func (c *Controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := volume.CheckName(req.GetName()); err != nil {
		return nil, err
	}
	source, err := c.locateAs(sourceID, req.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	store, err := volume.ParseSnapshotParameters(req.GetParameters())
	if err != nil {
		return nil, err
	}
	if err := c.here.Check(req.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	lv, err := c.volumes.CreateSnapshot(ctx, volume.Spec{
		Ref:  volume.Ref{VG: source.VG, LV: volume.LVName(volume.Snapshot, req.GetName())},
		Kind: volume.Snapshot, Name: req.GetName(), Origin: volume.LV{Ref: source}, CopyOnWrite: store,
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: c.snapshot(lv)}, nil
}

// snapshot gives the message for a snapshot. All of it is in its tags, so that it does not change while the snapshot is there.
// ready_to_use: it shows what the source held from the moment on at which it is there.
func (c *Controller) snapshot(lv volume.LV) *csi.Snapshot {
	source, _ := lv.Tags.Source()
	var group string
	if m, ok := lv.Tags.Membership(); ok {
		group = c.id(volume.LV{Ref: m.Ref})
	}
	return &csi.Snapshot{
		GroupSnapshotId:    group,
		SnapshotId:         c.id(lv),
		SourceVolumeId:     c.id(volume.LV{Ref: source}),
		SizeBytes:          lv.Tags.Bytes,
		CreationTime:       timestamppb.New(time.Unix(0, lv.Tags.Created)),
		ReadyToUse:         true,
		AccessibleTopology: []*csi.Topology{c.here.Message()},
	}
}

// isSnapshot reports whether the logical volume is a snapshot that can be shown: whole, and cut.
func isSnapshot(lv volume.LV) bool {
	_, told := lv.Tags.Source()
	return lv.Tags.Kind == volume.Snapshot && told && lv.Whole() == nil
}

// DeleteSnapshot implements csi.ControllerServer. An id that this driver never gave out is a snapshot that does not exist, so
// it is OK (CSI spec, DeleteSnapshot).
func (c *Controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	ref, err := c.locateAs(snapshotID, req.GetSnapshotId())
	if err == nil {
		err = c.volumes.DeleteSnapshot(ctx, ref)
	} else if errors.Is(err, volume.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// GetSnapshot implements csi.ControllerServer.
func (c *Controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	ref, err := c.locateAs(snapshotID, req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	lv, err := c.volumes.Lookup(ctx, ref)
	if err == nil && !isSnapshot(lv) {
		err = fmt.Errorf("%w: logical volume %s is no snapshot, but of kind %q", volume.ErrNotFound, ref, lv.Tags.Kind)
	}
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: c.snapshot(lv)}, nil
}

// ListSnapshots implements csi.ControllerServer: the snapshots on this node, by id; with snapshot_id that one, with
// source_volume_id those of that volume. What is not there is an empty list. Pages are as those of ListVolumes.
func (c *Controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	after, most := req.GetStartingToken(), int(req.GetMaxEntries())
	if err := c.checkPage(after, most); err != nil {
		return nil, err
	}
	lvs, err := c.volumes.List(ctx)
	if err != nil {
		return nil, err
	}
	var entries []*csi.ListSnapshotsResponse_Entry
	for _, lv := range volume.OfWholeGroups(lvs) {
		if !isSnapshot(lv) {
			continue
		}
		s := c.snapshot(lv)
		asked := func(want, is string) bool { return want == "" || want == is }
		if s.GetSnapshotId() > after && asked(req.GetSnapshotId(), s.GetSnapshotId()) && asked(req.GetSourceVolumeId(), s.GetSourceVolumeId()) {
			entries = append(entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s})
		}
	}
	out := &csi.ListSnapshotsResponse{}
	out.Entries, out.NextToken = page(entries, most, func(e *csi.ListSnapshotsResponse_Entry) string { return e.GetSnapshot().GetSnapshotId() })
	return out, nil
}
