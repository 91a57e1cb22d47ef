package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// NodeGetVolumeStats tells how full a volume is: bytes and inodes of a file system, the size of a block device (CSI
// spec, NodeGetVolumeStats). No LVM command is run.
func (s *Server) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := s.any(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := volume.CheckPath("volume_path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	m, err := s.facts.Visible(ctx, v, req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	u, err := s.facts.Usage(ctx, m.Target, m.Block)
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage(u, m.Block)}, nil
}

func usage(u volume.Usage, block bool) []*csi.VolumeUsage {
	out := []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: u.Bytes, Used: u.UsedBytes, Available: u.AvailableBytes}}
	if !block && u.Inodes != 0 { // btrfs has no bound on them
		out = append(out, &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: u.Inodes, Used: u.UsedInodes, Available: u.AvailableInodes})
	}
	return out
}
