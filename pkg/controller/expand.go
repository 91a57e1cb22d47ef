package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ControllerExpandVolume implements csi.ControllerServer: the logical volume is made larger, in use or not. A file system in it
// is the node's to grow; a block volume is done with. An id that this driver never gives out, an inline volume's included, is
// not found. Where the node expands (Config.NodeExpands) it is not served, so that nobody relies on what is not advertised.
func (c *Controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if c.cfg.NodeExpands {
		return c.UnimplementedControllerServer.ControllerExpandVolume(ctx, req)
	}
	if err := volume.CheckAnyID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if req.GetCapacityRange() == nil {
		return nil, volume.Invalid("capacity_range", "", "missing; it is required")
	}
	required, limit, err := request.Range(req.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	asked, err := request.Optional(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	lv, err := c.lookup(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	made, known := lv.Tags.Format()
	block := known && made.FS == ""
	switch {
	case known && asked != nil && asked.Block != block:
		return nil, volume.Invalid("volume_capability.access_type", "", "the volume has the other one; a volume is either a block device or carries a file system")
	case !known && asked != nil: // of one that was taken over only the call tells
		block = asked.Block
	}
	if lv, err = c.volumes.Expand(ctx, lv.Ref, required, limit); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: lv.SizeBytes, NodeExpansionRequired: !block}, nil
}
