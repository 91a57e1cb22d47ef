package controller

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// GetCapacity implements csi.ControllerServer: for the volumes that CreateVolume would make of the same parameters. What
// is well formed and cannot be had here has no capacity: another node's topology, a group or pool that is not there,
// capabilities of several nodes.
func (c *Controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	p, fs, err := c.wanted(req)
	if errors.Is(err, request.ErrUnsupported) {
		return capacity(0, 0, 0), nil
	}
	if err != nil {
		return nil, err
	}
	if t := req.GetAccessibleTopology(); len(t.GetSegments()) != 0 && !c.here.Is(t) {
		return capacity(0, 0, 0), nil
	}
	g, ok, err := c.group(ctx, p.VG)
	if err != nil {
		return nil, err
	}
	if !ok {
		return capacity(0, 0, 0), nil
	}
	available, most := volume.Available(g, p.Layout, c.cfg.Overcommit)
	return capacity(available, most, p.Layout.SmallestBytes(g.ExtentBytes, fs)), nil
}

// wanted reads what kind of volume the question is about.
func (c *Controller) wanted(req *csi.GetCapacityRequest) (volume.Parameters, volume.FS, error) {
	p, err := c.parameters(req.GetParameters())
	if err != nil || len(req.GetVolumeCapabilities()) == 0 {
		return p, p.FS, err
	}
	caps, err := request.Capabilities(req.GetVolumeCapabilities())
	if err != nil {
		return p, "", err
	}
	f, err := request.Format(caps, p)
	return p, f.FS, err
}

// capacity is the reply. Where not even the smallest volume fits, nothing is available: what is left is of no use.
func capacity(available, most, least int64) *csi.GetCapacityResponse {
	if most < least {
		available, most = 0, 0
	}
	out := &csi.GetCapacityResponse{AvailableCapacity: available, MaximumVolumeSize: wrapperspb.Int64(most)}
	if least != 0 {
		out.MinimumVolumeSize = wrapperspb.Int64(least)
	}
	return out
}
