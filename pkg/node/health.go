package node

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Health is what the node service asks about health. Implemented by pkg/health; nothing of it hangs.
type Health interface {
	// Volume gives the conditions of a volume, which the CO has, or tried to have, at the paths; each may be empty.
	// ErrNotFound: there is no such volume.
	Volume(ctx context.Context, r volume.Ref, paths ...string) ([]health.Condition, error)
	// Storage gives the conditions of the node's volume groups.
	Storage(ctx context.Context) ([]health.Condition, error)
}

// NodeGetVolumeHealth tells what is wrong with a volume, published or not (CSI spec, NodeGetVolumeHealth). No LVM command
// is run where nothing has changed.
func (s *Server) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	v, err := s.any(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if v.LV == "" {
		return nil, fmt.Errorf("%w: volume %s is on another node, this is %s; send the call to that node", volume.ErrNotFound, v.ID, s.ShortNode)
	}
	for field, path := range map[string]string{"volume_publish_path": req.GetVolumePublishPath(), "staging_target_path": req.GetStagingTargetPath()} {
		if path == "" {
			continue
		}
		if err := volume.CheckPath(field, path); err != nil {
			return nil, err
		}
	}
	conditions, err := s.health.Volume(ctx, v.Ref, req.GetVolumePublishPath(), req.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: request.VolumeHealth(v.ID, conditions)}, nil
}

// NodeGetStorageHealth tells what is wrong with the volume groups of this node, their disks, thin pools and snapshots (CSI
// spec, NodeGetStorageHealth).
func (s *Server) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	conditions, err := s.health.Storage(ctx)
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetStorageHealthResponse{BackendHealth: request.StorageHealth(conditions)}, nil
}
