package request

import (
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Topology is where the volumes of this node can be reached: on this node.
type Topology struct {
	Key  string // as TopologyKey gives it
	Node string // as volume.ShortNode gives it
}

// TopologyKey gives the one topology key of a driver. volume.CheckOwner keeps the driver name short enough for it:
// the prefix may have 63 bytes (CSI spec, Topology).
func TopologyKey(driverName string) string { return "topology." + driverName + "/node" }

// Message is the topology as CSI writes it.
func (t Topology) Message() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{t.Key: t.Node}}
}

// Check checks that a volume made on this node meets the requirement of CreateVolume. nil: none is stated.
//
// A volume here is reachable from exactly one topology, so it is enough that the requisite ones include it (CSI spec,
// TopologyRequirement, x <= n). Preferred ones alone do not bind: the driver may then choose among all topologies there
// are, and for this driver process there is only one. ErrNoSpace, which is the answer the spec asks for and makes
// external-provisioner choose another node: valid, but not here.
func (t Topology) Check(r *csi.TopologyRequirement) error {
	const field = "accessibility_requirements"
	if r == nil {
		return nil
	}
	if len(r.GetRequisite()) == 0 && len(r.GetPreferred()) == 0 {
		return volume.Invalid(field, "", "neither requisite nor preferred topologies; state one of them, or leave the field out")
	}
	for _, list := range [][]*csi.Topology{r.GetRequisite(), r.GetPreferred()} {
		for _, topology := range list {
			if len(topology.GetSegments()) == 0 {
				return volume.Invalid(field, "", "a topology without segments; name "+t.Key)
			}
		}
	}
	if len(r.GetRequisite()) == 0 {
		return nil
	}
	for _, topology := range r.GetRequisite() {
		if t.Is(topology) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s: none of the %d requisite topologies is %s=%s, the only one this node can serve; let the node's own driver create the volume (WaitForFirstConsumer)",
		volume.ErrNoSpace, field, len(r.GetRequisite()), t.Key, t.Node)
}

// Is reports whether the message is this topology. Keys are case-insensitive (CSI spec, Topology). Every segment must
// be ours: a volume here cannot promise a zone that the driver knows nothing of.
func (t Topology) Is(m *csi.Topology) bool {
	for key, value := range m.GetSegments() {
		if !strings.EqualFold(key, t.Key) || value != t.Node {
			return false
		}
	}
	return len(m.GetSegments()) != 0
}
