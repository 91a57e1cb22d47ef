package rpc

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// policies is the whole lock policy. A method without a row is not served, so that whoever adds one must think of it.
//
// Calls that change something hold the lock of their volume: the sweep and every other call that changes the volume
// are kept out, and told Aborted, until the handler has ended. Calls on different volumes never wait for each other.
// Calls that only ask hold no lock, for the reason beside them.
var policies = map[string]policy{
	// The id is not known yet; the name of the LV, which is the key of all other calls too, follows from the name.
	csi.Controller_CreateVolume_FullMethodName: {writes: true, key: byName},
	csi.Controller_DeleteVolume_FullMethodName: {writes: true, key: byVolume, interrupts: true},
	// A snapshot is a thing of its own. Its source is not locked: LVM takes the snapshot at one moment, whatever else happens to
	// the source, and removes no origin of a thick one.
	csi.Controller_CreateSnapshot_FullMethodName:         {writes: true, key: bySnapshotName},
	csi.Controller_DeleteSnapshot_FullMethodName:         {writes: true, key: bySnapshot},
	csi.Controller_ControllerModifyVolume_FullMethodName: {writes: true, key: byVolume},
	// The group is a thing of its own; its snapshots are changed by these calls only.
	csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName: {writes: true, key: byGroupName},
	csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName: {writes: true, key: byGroup},
	// Unimplemented without --attach.
	csi.Controller_ControllerPublishVolume_FullMethodName:   {writes: true, key: byVolume},
	csi.Controller_ControllerUnpublishVolume_FullMethodName: {writes: true, key: byVolume},

	csi.Node_NodeStageVolume_FullMethodName:     {writes: true, key: byVolume},
	csi.Node_NodeUnstageVolume_FullMethodName:   {writes: true, key: byVolume},
	csi.Node_NodePublishVolume_FullMethodName:   {writes: true, key: byVolume},
	csi.Node_NodeUnpublishVolume_FullMethodName: {writes: true, key: byVolume},

	csi.Controller_ControllerExpandVolume_FullMethodName: {writes: true, key: byVolume},
	csi.Node_NodeExpandVolume_FullMethodName:             {writes: true, key: byVolume},

	// Unlocked: these read the inventory at one moment. With a lock they would refuse to tell of a volume exactly
	// while something happens to it, and the answer would be as old when it arrives.
	csi.Controller_ValidateVolumeCapabilities_FullMethodName:          {many: 32},
	csi.Controller_ListVolumes_FullMethodName:                         {many: 32},
	csi.Controller_ControllerGetVolume_FullMethodName:                 {many: 32},
	csi.Controller_GetCapacity_FullMethodName:                         {many: 32},
	csi.Controller_ListSnapshots_FullMethodName:                       {many: 32},
	csi.GroupController_GetVolumeGroupSnapshot_FullMethodName:         {many: 32},
	csi.GroupController_GroupControllerGetCapabilities_FullMethodName: {many: 32, chatter: true},
	csi.Controller_GetSnapshot_FullMethodName:                         {many: 32},
	// Unlocked: a busy unpublish that holds the lock must not stop the figures of the volume. kubelet asks each
	// minute; statfs of a hung file system never returns, so each path has at most one asker.
	csi.Node_NodeGetVolumeStats_FullMethodName: {key: byPath, many: 1, chatter: true},
	// Unlocked: a snapshot does not change. Calls on one thin pool come one after the other (pkg/lifecycle, Blocks); a slow
	// caller takes his time with what was read, so each may stay for long.
	csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName: {many: 32},
	csi.SnapshotMetadata_GetMetadataDelta_FullMethodName:     {many: 32},
	// Unlocked, as ListVolumes: that an operation on a volume hangs must not hide why. They do not hang themselves, and
	// each device has at most one asker (pkg/ask).
	csi.Controller_ControllerGetVolumeHealth_FullMethodName:  {many: 32, chatter: true},
	csi.Controller_ControllerListVolumeHealth_FullMethodName: {many: 4, chatter: true},
	csi.Node_NodeGetVolumeHealth_FullMethodName:              {many: 32, chatter: true},
	csi.Node_NodeGetStorageHealth_FullMethodName:             {many: 4, chatter: true},
	// Unlocked: these tell what the driver is, not what a volume is.
	csi.Controller_ControllerGetCapabilities_FullMethodName: {many: 32, chatter: true},
	csi.Node_NodeGetCapabilities_FullMethodName:             {many: 32, chatter: true},
	csi.Node_NodeGetInfo_FullMethodName:                     {many: 32, chatter: true},
	csi.Identity_GetPluginInfo_FullMethodName:               {many: 32, chatter: true},
	csi.Identity_GetPluginCapabilities_FullMethodName:       {many: 32, chatter: true},
	csi.Identity_Probe_FullMethodName:                       {many: 32, chatter: true},
}

// policy is how the calls of one method are kept apart.
type policy struct {
	writes bool // changes something: holds the lock of key, and runs to its end
	// key names what the call is about; "" is nothing. Such a request is wrong, and the handler says so without a lock.
	key func(req any) string
	// interrupts: where the lock is taken by a call that copies onto the volume, the copy is given up. It may take hours, and be for nothing.
	interrupts bool
	many       int  // reads: how many may run for one key at a time; hung ones count until they end
	chatter    bool // asked all the time; logged at a higher verbosity
}

func byName(req any) string         { return named(req, volume.Persistent) }
func bySnapshotName(req any) string { return named(req, volume.Snapshot) }

func byGroupName(req any) string { return named(req, volume.Together) }

func named(req any, k volume.Kind) string {
	r, ok := req.(interface{ GetName() string })
	if !ok || r.GetName() == "" {
		return ""
	}
	return volume.LVName(k, r.GetName())
}

func byVolume(req any) string {
	r, ok := req.(interface{ GetVolumeId() string })
	if !ok || r.GetVolumeId() == "" {
		return ""
	}
	return volume.LockKey(r.GetVolumeId())
}

func byGroup(req any) string {
	r, ok := req.(interface{ GetGroupSnapshotId() string })
	if !ok || r.GetGroupSnapshotId() == "" {
		return ""
	}
	return volume.LockKey(r.GetGroupSnapshotId())
}

func bySnapshot(req any) string {
	r, ok := req.(interface{ GetSnapshotId() string })
	if !ok || r.GetSnapshotId() == "" {
		return ""
	}
	return volume.LockKey(r.GetSnapshotId())
}

func byPath(req any) string {
	r, ok := req.(interface{ GetVolumePath() string })
	if !ok {
		return ""
	}
	return r.GetVolumePath()
}
