package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Groups is what the group controller asks of the snapshots on this node.
type Groups interface {
	// CreateGroup makes snapshots of the sources at one moment, all or none, or finds those that an equal earlier call made.
	CreateGroup(ctx context.Context, group volume.Ref, name string, sources []volume.Ref, store volume.CopyOnWrite) ([]volume.LV, error)
	// DeleteGroup removes the snapshots of a group; nil where there are none.
	DeleteGroup(ctx context.Context, group volume.Ref) error
	// Members gives the snapshots of a group; none where there is no such group. named are some of them, which may be gone. ErrInvalid: one
	// of these is there, and not of the group.
	Members(ctx context.Context, group volume.Ref, named ...volume.Ref) ([]volume.LV, error)
}

// GroupController implements csi.GroupControllerServer: snapshots of several volumes at one moment.
type GroupController struct {
	csi.UnimplementedGroupControllerServer
	*Controller
	groups Groups
}

var _ csi.GroupControllerServer = (*GroupController)(nil)

// NewGroupController gives the group controller beside the controller.
func NewGroupController(c *Controller, groups Groups) *GroupController {
	return &GroupController{Controller: c, groups: groups}
}

const (
	groupID     = "group_snapshot_id"
	sourceIDs   = "source_volume_ids"
	snapshotIDs = "snapshot_ids"
)

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (g *GroupController) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer. The sources may be of several volume groups; the id names that of the
// first by name.
func (g *GroupController) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if err := volume.CheckName(req.GetName()); err != nil {
		return nil, err
	}
	store, err := volume.ParseSnapshotParameters(req.GetParameters())
	if err != nil {
		return nil, err
	}
	var sources []volume.Ref
	for _, id := range req.GetSourceVolumeIds() {
		r, err := g.locateAs(sourceIDs, id)
		if err != nil {
			return nil, err
		}
		if slices.Contains(sources, r) {
			return nil, volume.Invalid(sourceIDs, id, "named twice; name each volume once")
		}
		sources = append(sources, r)
	}
	if len(sources) == 0 {
		return nil, volume.Invalid(sourceIDs, "", "missing; name at least one volume")
	}
	first := slices.MinFunc(sources, func(a, b volume.Ref) int { return strings.Compare(a.VG, b.VG) })
	group := volume.Ref{VG: first.VG, LV: volume.LVName(volume.Together, req.GetName())}
	members, err := g.groups.CreateGroup(ctx, group, req.GetName(), sources, store)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.message(group, members)}, nil
}

// message gives the message for a group of snapshots, which is not empty. They were taken at one moment.
func (g *GroupController) message(group volume.Ref, members []volume.LV) *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.id(volume.LV{Ref: group}), ReadyToUse: true}
	for _, lv := range members {
		out.Snapshots = append(out.Snapshots, g.snapshot(lv))
	}
	slices.SortFunc(out.Snapshots, func(a, b *csi.Snapshot) int { return strings.Compare(a.GetSnapshotId(), b.GetSnapshotId()) })
	out.CreationTime = out.Snapshots[0].GetCreationTime()
	return out
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (g *GroupController) GetVolumeGroupSnapshot(ctx context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	group, err := g.locateAs(groupID, req.GetGroupSnapshotId())
	if err != nil {
		return nil, err
	}
	members, err := g.members(ctx, group, req.GetSnapshotIds())
	switch {
	case err != nil:
		return nil, err
	case len(members) == 0 || volume.WholeGroup(members) != nil:
		return nil, fmt.Errorf("%w: there is no group snapshot %s", volume.ErrNotFound, req.GetGroupSnapshotId())
	}
	if err := g.matches(members, req.GetSnapshotIds()); err != nil {
		return nil, err
	}
	if len(req.GetSnapshotIds()) != 0 && len(req.GetSnapshotIds()) != len(members) {
		return nil, volume.Invalid(snapshotIDs, strings.Join(req.GetSnapshotIds(), ","), fmt.Sprintf("the group has %d snapshots; name all of them, or none", len(members)))
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.message(group, members)}, nil
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer. snapshot_ids may name snapshots that are gone, by an earlier
// call that was cut off; those that are there must be named, and be all of this group.
func (g *GroupController) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	group, err := g.locateAs(groupID, req.GetGroupSnapshotId())
	if errors.Is(err, volume.ErrNotFound) {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	members, err := g.members(ctx, group, req.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	if err := g.matches(members, req.GetSnapshotIds()); err != nil {
		return nil, err
	}
	if err := g.groups.DeleteGroup(ctx, group); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// members gives the snapshots of a group. ids are those that a call names; one that this driver never gave out is of a snapshot that is not
// there.
func (g *GroupController) members(ctx context.Context, group volume.Ref, ids []string) ([]volume.LV, error) {
	var named []volume.Ref
	for _, id := range ids {
		r, err := g.locateAs(snapshotIDs, id)
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			return nil, err
		}
		if err == nil {
			named = append(named, r)
		}
	}
	return g.groups.Members(ctx, group, named...)
}

// matches checks the snapshot_ids of a call, if it has any: each member is among them.
func (g *GroupController) matches(members []volume.LV, ids []string) error {
	for _, lv := range members {
		if len(ids) != 0 && !slices.Contains(ids, g.id(lv)) {
			return volume.Invalid(snapshotIDs, strings.Join(ids, ","), "the group has the snapshot "+g.id(lv)+", which is not named")
		}
	}
	return nil
}
