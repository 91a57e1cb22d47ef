package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// NodeExpandVolume makes the file system of a mounted volume as large as the volume; where the node expands (Config.Expands) it
// makes the logical volume larger first (CSI spec, NodeExpandVolume). kubelet takes every error of it for final.
func (s *Server) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	v, err := s.known(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := checkVolumePath(v.ID, req.GetVolumePath()); err != nil {
		return nil, err
	}
	if path := req.GetStagingTargetPath(); path != "" {
		if err := volume.CheckPath("staging_target_path", path); err != nil {
			return nil, err
		}
	}
	capability, err := request.Optional(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	required, limit, err := request.Range(req.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	bytes, err := s.lifecycle.ExpandNode(ctx, lifecycle.ExpandRequest{
		Volume: v, Path: req.GetVolumePath(), Capability: capability, RequiredBytes: required, LimitBytes: limit, Extend: s.Expands,
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: bytes}, nil
}
