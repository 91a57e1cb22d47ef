// Package node answers the CSI Node calls: a request is checked, becomes one call of the lifecycle, and is answered.
// Errors are plain; pkg/rpc makes codes of them.
package node

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Lifecycle is what the node service asks to be done. Implemented by pkg/lifecycle.
type Lifecycle interface {
	Stage(ctx context.Context, q lifecycle.StageRequest) error
	Unstage(ctx context.Context, v lifecycle.Volume, staging string) error
	Publish(ctx context.Context, q lifecycle.PublishRequest) error
	PublishInline(ctx context.Context, q lifecycle.InlineRequest) error
	Unpublish(ctx context.Context, v lifecycle.Volume, target string) error
	ExpandNode(ctx context.Context, q lifecycle.ExpandRequest) (bytes int64, err error)
}

// Facts is what the node service asks about the node.
type Facts interface {
	// Groups gives the volume groups of the driver, the default first.
	Groups(ctx context.Context) ([]volume.Group, error)
	// Visible gives the mount of the volume at a path. ErrNotFound: it is not there.
	Visible(ctx context.Context, v lifecycle.Volume, path string) (volume.Mount, error)
	// Usage tells how full what is visible at a path is; no program is run.
	Usage(ctx context.Context, path string, block bool) (volume.Usage, error)
}

// Config says who this node is.
type Config struct {
	NodeName     string // the Kubernetes node's name, the node_id
	ShortNode    string // as it stands in volume ids, volume.ShortNode
	TopologyKey  string
	VolumeGroups volume.Patterns // --volume-groups
	MaxVolumes   int64           // how many volumes the CO may place here; 0: it decides
	Expands      bool            // NodeExpandVolume makes logical volumes larger too
}

// Server is the CSI Node service.
type Server struct {
	csi.UnimplementedNodeServer
	Config
	lifecycle Lifecycle
	facts     Facts
	health    Health
}

// New returns the service.
func New(c Config, l Lifecycle, f Facts, h Health) *Server {
	return &Server{Config: c, lifecycle: l, facts: f, health: h}
}

// NodeGetInfo tells where this node is (CSI spec, NodeGetInfo).
func (s *Server) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId:             s.NodeName,
		MaxVolumesPerNode:  s.MaxVolumes,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{s.TopologyKey: s.ShortNode}},
	}, nil
}

// NodeGetCapabilities tells what this service does.
func (s *Server) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}

// known gives the persistent volume of an id that must be one of this node's: for stage and publish.
func (s *Server) known(id string) (lifecycle.Volume, error) {
	if err := volume.CheckAnyID(id); err != nil {
		return lifecycle.Volume{}, err
	}
	parsed, err := volume.ParseID(id)
	switch {
	case err != nil:
		return lifecycle.Volume{}, fmt.Errorf("%w: no volume of this driver has the id: %v", volume.ErrNotFound, err) //nolint:errorlint // its class is not the answer
	case parsed.Node != s.ShortNode:
		return lifecycle.Volume{}, fmt.Errorf("%w: volume %s is on node %s, this is %s; send the call to that node", volume.ErrNotFound, id, parsed.Node, s.ShortNode)
	}
	return lifecycle.Volume{ID: id, Kind: volume.Persistent, Ref: parsed.Ref}, nil
}

// any gives the volume of whatever id a teardown may name: a persistent one of this node, an inline one, whose VG is
// not known yet, or one that cannot have anything here.
func (s *Server) any(id string) (lifecycle.Volume, error) {
	if err := volume.CheckAnyID(id); err != nil {
		return lifecycle.Volume{}, err
	}
	parsed, err := volume.ParseID(id)
	switch {
	case err != nil:
		return lifecycle.Volume{ID: id, Kind: volume.Inline, Ref: volume.Ref{LV: volume.LVName(volume.Inline, id)}}, nil //nolint:nilerr // not one of our persistent ids
	case parsed.Node != s.ShortNode: // a logical volume of that name on this node is another one
		return lifecycle.Volume{ID: id, Kind: volume.Persistent}, nil
	}
	return lifecycle.Volume{ID: id, Kind: volume.Persistent, Ref: parsed.Ref}, nil
}
