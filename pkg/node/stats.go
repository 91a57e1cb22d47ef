package node

import (
	"context"
	"fmt"

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
	if err := checkVolumePath(v.ID, req.GetVolumePath()); err != nil {
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
	// Usage looks at whatever lies at the path: had the volume been unmounted meanwhile, that would be the host's disk.
	if _, err := s.facts.Visible(ctx, v, req.GetVolumePath()); err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage(u, m.Block)}, nil
}

// checkVolumePath checks a path about which is asked only. At one where no volume can be, such as a relative one, this
// volume is not: that is the spec's NOT_FOUND.
func checkVolumePath(id, path string) error {
	err := volume.CheckPath("volume_path", path)
	if err == nil || path == "" {
		return err
	}
	return fmt.Errorf("%w: volume %s cannot be there: %v", volume.ErrNotFound, id, err) //nolint:errorlint // its class is not the answer
}

func usage(u volume.Usage, block bool) []*csi.VolumeUsage {
	out := []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: u.Bytes, Used: u.UsedBytes, Available: u.AvailableBytes}}
	if !block && u.Inodes != 0 { // btrfs has no bound on them
		out = append(out, &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: u.Inodes, Used: u.UsedInodes, Available: u.AvailableInodes})
	}
	return out
}
