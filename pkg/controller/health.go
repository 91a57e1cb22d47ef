package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Health is what the controller asks about health. Implemented by pkg/health; nothing of it hangs.
type Health interface {
	// Volume gives the conditions of a logical volume of ours. ErrNotFound: it is not there.
	Volume(ctx context.Context, r volume.Ref, paths ...string) ([]health.Condition, error)
	// List gives the volumes of the kind that are not well.
	List(ctx context.Context, k volume.Kind) ([]health.Ill, error)
}

// ControllerGetVolumeHealth implements csi.ControllerServer. The controller is on the volume's node, so it tells what the node
// tells. The id of a snapshot is taken too: it is a logical volume, and CSI has no other call that would tell of its loss.
func (c *Controller) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	ref, err := c.locate(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	conditions, err := c.health.Volume(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: request.VolumeHealth(req.GetVolumeId(), conditions)}, nil
}

// ControllerListVolumeHealth implements csi.ControllerServer: the persistent volumes of this node that are not well, by id. Paged as
// ListVolumes.
func (c *Controller) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	after, most := req.GetStartingToken(), int(req.GetMaxEntries())
	if err := c.checkPage(after, most); err != nil {
		return nil, err
	}
	ill, err := c.health.List(ctx, volume.Persistent)
	if err != nil {
		return nil, err
	}
	var entries []*csi.VolumeHealth
	for _, v := range ill {
		if id := c.id(v.LV); id > after {
			entries = append(entries, request.VolumeHealth(id, v.Conditions))
		}
	}
	out := &csi.ControllerListVolumeHealthResponse{}
	out.Entries, out.NextToken = page(entries, most, (*csi.VolumeHealth).GetVolumeId)
	return out, nil
}
