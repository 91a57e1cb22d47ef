package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// NodeStageVolume makes a volume ready on this node (CSI spec, NodeStageVolume).
func (s *Server) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	q, err := s.stageRequest(req)
	if err != nil {
		return nil, err
	}
	if err := s.lifecycle.Stage(ctx, q); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *Server) stageRequest(req *csi.NodeStageVolumeRequest) (q lifecycle.StageRequest, err error) {
	if err := volume.CheckPath("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return q, err
	}
	if q.Capability, err = request.Capability(req.GetVolumeCapability()); err != nil {
		return q, err
	}
	p, err := volume.ParseContext(req.GetVolumeContext())
	if err != nil {
		return q, err
	}
	if q.Format, err = q.Capability.Format(p); err != nil {
		return q, err
	}
	q.Path = req.GetStagingTargetPath()
	q.Volume, err = s.known(req.GetVolumeId())
	return q, err
}

// NodeUnstageVolume undoes NodeStageVolume (CSI spec, NodeUnstageVolume).
func (s *Server) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	v, err := s.any(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := volume.CheckPath("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if err := s.lifecycle.Unstage(ctx, v, req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}
