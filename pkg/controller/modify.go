package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ControllerModifyVolume implements csi.ControllerServer. Only the keys that are named are changed.
func (c *Controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	ref, err := c.locate(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(req.GetMutableParameters()) == 0 {
		return nil, volume.Invalid("mutable_parameters", "", "missing; they are required")
	}
	m, err := volume.ParseMutable(req.GetMutableParameters())
	if err != nil {
		return nil, err
	}
	if err := c.volumes.Modify(ctx, ref, m); err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}
