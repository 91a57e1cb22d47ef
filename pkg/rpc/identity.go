package rpc

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Identity answers who the driver is, what it offers, and whether it is fit.
type Identity struct {
	csi.UnimplementedIdentityServer
	name, version string
	controller    bool
	health        health
}

// NewIdentity makes the Identity service. controller says that the Controller service is on. check asks everything
// that the driver needs; see Probe for what its errors mean.
func NewIdentity(name, version string, controller bool, check func(context.Context) error) *Identity {
	return &Identity{name: name, version: version, controller: controller, health: health{check: check, bound: probeBound}}
}

// GetPluginInfo implements csi.IdentityServer.
func (i *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name, VendorVersion: i.version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (i *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	// A logical volume is on the disks of one node.
	types := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}
	if i.controller { // a snapshot is on the same disks
		types = append(types, csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
			csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	}
	// A volume may be made larger at any time, in use or not.
	reply := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}},
	}}}
	for _, t := range types {
		reply.Capabilities = append(reply.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}},
		})
	}
	return reply, nil
}

// Probe tells whether the driver can do its work now, and always within five seconds, however long LVM hangs.
//
//   - ready: LVM answers, a volume group is there, the state folder works.
//   - OK, but not ready: something outside is missing or does not answer, and the driver will work as soon as it is there:
//     no volume group yet, a hung disk, a report that failed. The sidecars wait for that (ProbeForever in csi-lib-utils).
//   - FAILED_PRECONDITION: check says volume.ErrPrecondition: this process lacks what it will not get while it runs,
//     such as the lvm program in its image. The sidecars end, and an operator sees it.
//
// The livenessprobe sidecar makes an HTTP error of both. Killing the container mends neither a missing volume group nor a
// hung disk, and interrupts writes: use its answer to see whether the driver is ready, not to restart it. That the driver
// is alive is shown by any answer at all. Probe may be called as often as one likes: it runs no LVM command while nothing
// has changed, and no second check while one runs.
func (i *Identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	err := i.Ready(ctx)
	if errors.Is(err, volume.ErrPrecondition) {
		return nil, err
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(err == nil)}, nil
}

// Ready is Probe in plain Go: nil, or why the driver cannot do its work now. It too answers within five seconds.
func (i *Identity) Ready(ctx context.Context) error { return i.health.ask(ctx) }
