package controller

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ControllerPublishVolume implements csi.ControllerServer: it records with the volume to which node it is published, and
// how. There is nothing to be moved; the record is a fence. Unimplemented without --attach.
func (c *Controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if !c.cfg.Attach {
		return c.UnimplementedControllerServer.ControllerPublishVolume(ctx, req)
	}
	if err := volume.CheckAnyID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if req.GetNodeId() == "" {
		return nil, volume.Invalid("node_id", "", "missing; it is required")
	}
	capability, err := request.Capability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if _, err := volume.ParseContext(req.GetVolumeContext()); err != nil {
		return nil, err
	}
	lv, err := c.lookup(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if why := (question{block: capability.Block, fs: capability.FS}).differs(lv); why != "" {
		return nil, volume.Invalid("volume_capability", "", why+"; ask for what it was made for")
	}
	a := volume.Attachment{Node: req.GetNodeId(), ReadOnly: req.GetReadonly(), Mode: capability.Mode}
	if err := c.volumes.Attach(ctx, lv.Ref, a); err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: a.PublishContext()}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer. An id that this driver never gave out is of a volume that is
// surely published nowhere.
func (c *Controller) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !c.cfg.Attach {
		return c.UnimplementedControllerServer.ControllerUnpublishVolume(ctx, req)
	}
	ref, err := c.locate(req.GetVolumeId())
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	case err != nil:
		return nil, err
	}
	if err := c.volumes.Detach(ctx, ref, req.GetNodeId()); err != nil {
		return nil, err
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// publishedNodes gives the node to which a volume is published. A record that is not understood names none: the next publish
// or unpublish of the volume says what is wrong with it.
func (c *Controller) publishedNodes(lv volume.LV) []string {
	a, err := lv.Tags.Attachment()
	if !c.cfg.Attach || err != nil || a.Node == "" {
		return nil
	}
	return []string{a.Node}
}
