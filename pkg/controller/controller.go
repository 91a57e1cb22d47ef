// Package controller answers the CSI Controller calls for the volumes of one node. Each handler checks the request,
// asks or tells the lifecycle one thing, and writes the reply. What a reply says of a volume comes from LVM, never from
// the request, so that the first answer, a repeated one and a list say the same.
package controller

import (
	"context"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Volumes is what the controller asks of the volumes on this node.
type Volumes interface {
	// Create makes the volume, or finds the one that an equal earlier call made. ErrExists: the name is taken with other
	// arguments. A final error leaves nothing behind.
	Create(ctx context.Context, s volume.Spec) (volume.LV, error)
	// Delete removes a persistent volume; nil where it is gone already and the group was read well. ErrPrecondition: it
	// is mounted, open, not ours or no persistent volume; it is unaltered.
	Delete(ctx context.Context, r volume.Ref) error
	// CreateSnapshot makes the snapshot of s.Origin, or finds the one that an equal earlier call made. ErrNotFound: there is no
	// such persistent volume. ErrExists: the name is taken by a snapshot of another, or of another size.
	CreateSnapshot(ctx context.Context, s volume.Spec) (volume.LV, error)
	// DeleteSnapshot removes a snapshot; nil where it is gone already and the group was read well. ErrPrecondition: it is
	// open, or no snapshot; it is unaltered.
	DeleteSnapshot(ctx context.Context, r volume.Ref) error
	// Modify changes mutable parameters of a persistent volume. ErrInvalid: it cannot have them; nothing was changed.
	Modify(ctx context.Context, r volume.Ref, m volume.Mutable) error
	// Attach records that a persistent volume is published to a node. Detach takes that back, for one node or with "" for
	// all; nil where it is not so.
	Attach(ctx context.Context, r volume.Ref, a volume.Attachment) error
	Detach(ctx context.Context, r volume.Ref, node string) error
	// Expand makes a persistent volume larger, within the range (0 is not said); its size is the answer. ErrOutOfRange,
	// ErrNoSpace, ErrPrecondition (thick snapshots): it is unaltered.
	Expand(ctx context.Context, r volume.Ref, required, limit int64) (volume.LV, error)
	// List gives all our logical volumes, of every kind.
	List(ctx context.Context) ([]volume.LV, error)
	// Lookup finds one of our logical volumes. ErrNotFound: the group was read well and it is not there.
	Lookup(ctx context.Context, r volume.Ref) (volume.LV, error)
	// Groups gives the volume groups that are there, of those the driver uses.
	Groups(ctx context.Context) ([]volume.Group, error)
}

// Config is what the controller must know of its surroundings.
type Config struct {
	Node         string          // as volume.ShortNode gives it
	TopologyKey  string          // as request.TopologyKey gives it
	VolumeGroups volume.Patterns // --volume-groups
	Overcommit   float64         // thin: virtual size over real size of a pool
	Attach       bool            // --attach: volumes are published to nodes
	NodeName     string          // the node_id of this node
	NodeExpands  bool            // volumes are made larger by NodeExpandVolume, and not here
}

// Controller implements csi.ControllerServer. Calls whose capability it does not advertise are Unimplemented.
type Controller struct {
	csi.UnimplementedControllerServer
	cfg     Config
	here    request.Topology
	volumes Volumes
	health  Health
}

var _ csi.ControllerServer = (*Controller)(nil)

// New gives the controller of this node.
func New(cfg Config, volumes Volumes, health Health) *Controller {
	return &Controller{cfg: cfg, here: request.Topology{Key: cfg.TopologyKey, Node: cfg.Node}, volumes: volumes, health: health}
}

// volume gives the message for a logical volume. A volume has the same id and context in all answers (CSI spec, Volume):
// all of it is in the LV's name and tags.
func (c *Controller) volume(lv volume.LV) *csi.Volume {
	return &csi.Volume{
		VolumeId:           c.id(lv),
		CapacityBytes:      lv.SizeBytes,
		VolumeContext:      volume.Parameters{MkfsOptions: strings.Fields(lv.Tags.Mkfs)}.Context(),
		ContentSource:      c.contentSource(lv),
		AccessibleTopology: []*csi.Topology{c.here.Message()},
	}
}

func (c *Controller) id(lv volume.LV) string {
	return volume.ID{Node: c.cfg.Node, Ref: lv.Ref}.String()
}

// locate reads a volume_id. ErrInvalid: it is malformed, or its volume group is not the driver's. ErrNotFound: well
// formed, and no id this driver ever gives out, an inline volume's included. ErrPrecondition: the volume is another
// node's, and what is there this driver cannot know, so it is never called missing.
func (c *Controller) locate(volumeID string) (volume.Ref, error) {
	return c.locateAs("volume_id", volumeID)
}

// locateAs is locate for an id in another field.
func (c *Controller) locateAs(field, volumeID string) (volume.Ref, error) {
	if err := volume.CheckID(field, volumeID); err != nil {
		return volume.Ref{}, err
	}
	id, err := volume.ParseID(volumeID)
	switch {
	case err != nil:
		return volume.Ref{}, fmt.Errorf("%w: %s %q is none of this driver's", volume.ErrNotFound, field, volumeID)
	case id.Node != c.cfg.Node:
		return volume.Ref{}, fmt.Errorf("%w: %s %s: the volume is on node %s, and this is the driver of node %s, which cannot reach it; call the driver there",
			volume.ErrPrecondition, field, volumeID, id.Node, c.cfg.Node)
	case !c.cfg.VolumeGroups.Match(id.VG):
		return volume.Ref{}, volume.Invalid(field, volumeID, c.foreign(id.VG)+"; the logical volume, if there is one, is left alone")
	}
	return id.Ref, nil
}

func (c *Controller) foreign(vg string) string {
	return fmt.Sprintf("volume group %s is not one of this driver's, --volume-groups is %s; name it there", vg, strings.Join(c.cfg.VolumeGroups, ","))
}

// lookup finds the persistent volume of an id. The errors are locate's and Volumes.Lookup's.
func (c *Controller) lookup(ctx context.Context, volumeID string) (volume.LV, error) {
	ref, err := c.locate(volumeID)
	if err != nil {
		return volume.LV{}, err
	}
	lv, err := c.volumes.Lookup(ctx, ref)
	switch {
	case err == nil && lv.Tags.Kind != volume.Persistent:
		return volume.LV{}, fmt.Errorf("%w: logical volume %s is no persistent volume but of kind %q", volume.ErrNotFound, ref, lv.Tags.Kind)
	case err == nil && lv.Tags.State != "": // handed out to nobody
		return volume.LV{}, fmt.Errorf("%w: logical volume %s is not whole yet (%s)", volume.ErrNotFound, ref, lv.Tags.State)
	}
	return lv, err
}

// group finds the volume group that a request means; "" is the default. ok is false where it is not there.
func (c *Controller) group(ctx context.Context, name string) (g volume.Group, ok bool, err error) {
	groups, err := c.volumes.Groups(ctx)
	if err != nil {
		return g, false, err
	}
	if name == "" {
		name = c.cfg.VolumeGroups.Default(groups)
	}
	for _, g := range groups {
		if g.Name == name {
			return g, true, nil
		}
	}
	return volume.Group{Name: name}, false, nil
}

// parameters reads the parameters of CreateVolume and GetCapacity. A group that is not the driver's is refused by its
// name alone, whether or not it exists.
func (c *Controller) parameters(params map[string]string) (volume.Parameters, error) {
	p, err := volume.ParseParameters(params)
	if err == nil && p.VG != "" && !c.cfg.VolumeGroups.Match(p.VG) {
		err = volume.Invalid("parameters["+volume.KeyVolumeGroup+"]", p.VG, c.foreign(p.VG))
	}
	return p, err
}
