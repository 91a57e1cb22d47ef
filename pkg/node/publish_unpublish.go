package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// NodePublishVolume makes a volume visible at the target path: a staged one, or an inline one that is made for it (CSI
// spec, NodePublishVolume; ephemeral inline volumes: kubernetes-csi docs, ephemeral-local-volumes).
func (s *Server) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	publish := s.publish
	switch v := req.GetVolumeContext()[volume.KeyEphemeral]; v {
	case "true":
		publish = s.publishInline
	case "", "false":
	default:
		return nil, volume.Invalid("volume_context["+volume.KeyEphemeral+"]", v, `say "true" or "false"`)
	}
	c, err := request.Capability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if err := volume.CheckPath("target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := publish(ctx, req, c); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (s *Server) publish(ctx context.Context, req *csi.NodePublishVolumeRequest, c volume.Capability) error {
	v, err := s.known(req.GetVolumeId())
	if err != nil {
		return err
	}
	if req.GetStagingTargetPath() == "" {
		return fmt.Errorf("%w: staging_target_path is missing; call NodeStageVolume first and name its path", volume.ErrPrecondition)
	}
	if err := volume.CheckPath("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return err
	}
	if _, err := volume.ParseContext(req.GetVolumeContext()); err != nil {
		return err
	}
	attachedReadOnly, err := volume.ParsePublishContext(req.GetPublishContext())
	if err != nil {
		return err
	}
	return s.lifecycle.Publish(ctx, lifecycle.PublishRequest{
		Volume: v, Staging: req.GetStagingTargetPath(), Target: req.GetTargetPath(), Capability: c, ReadOnly: req.GetReadonly() || attachedReadOnly,
	})
}

func (s *Server) publishInline(ctx context.Context, req *csi.NodePublishVolumeRequest, c volume.Capability) error {
	id := req.GetVolumeId()
	spec, err := inlineSpec(id, req.GetVolumeContext(), c)
	if err != nil {
		return err
	}
	if err := s.chooseGroup(ctx, &spec); err != nil {
		return err
	}
	return s.lifecycle.PublishInline(ctx, lifecycle.InlineRequest{
		Volume: lifecycle.Volume{ID: id, Kind: volume.Inline, Ref: spec.Ref},
		Spec:   spec, Target: req.GetTargetPath(), Capability: c, ReadOnly: req.GetReadonly(),
	})
}

// chooseGroup fills in the volume group where the pod names none. It refuses a group that is not there before anything
// is begun: what was begun in it could not be found to be gone.
func (s *Server) chooseGroup(ctx context.Context, spec *volume.Spec) error {
	spec.AnyVG = spec.VG == ""
	if !spec.AnyVG && !s.VolumeGroups.Match(spec.VG) {
		return volume.Invalid("volume_context["+volume.KeyVolumeGroup+"]", spec.VG,
			fmt.Sprintf("not one of the driver's volume groups; --volume-groups names %v", s.VolumeGroups))
	}
	groups, err := s.facts.Groups(ctx)
	if err != nil {
		return err
	}
	if spec.AnyVG {
		spec.VG = s.VolumeGroups.Default(groups)
	}
	if !slices.ContainsFunc(groups, func(g volume.Group) bool { return g.Name == spec.VG }) {
		return fmt.Errorf("%w: volume group %q is not on this node; create it, or name another", volume.ErrNoSpace, spec.VG)
	}
	return nil
}

// inlineSpec reads the attributes of an inline volume.
func inlineSpec(id string, attributes map[string]string, c volume.Capability) (s volume.Spec, err error) {
	if err := volume.CheckAnyID(id); err != nil {
		return s, err
	}
	if _, err := volume.ParseID(id); err == nil {
		return s, volume.Invalid("volume_id", id, "an id of a persistent volume; an inline volume has the id that kubelet makes")
	}
	if c.Block {
		return s, volume.Invalid("volume_capability.access_type", "block", "an inline volume has a file system; ask for mount")
	}
	p, err := volume.ParseInline(attributes)
	if err != nil {
		return s, err
	}
	s = volume.Spec{
		Ref:  volume.Ref{VG: p.VG, LV: volume.LVName(volume.Inline, id)},
		Kind: volume.Inline, Name: id, Layout: p.Layout, PodUID: attributes[volume.KeyPodUID], RequiredBytes: p.SizeBytes,
	}
	s.Format, err = c.Format(p)
	return s, err
}

// NodeUnpublishVolume undoes NodePublishVolume; of an inline volume it removes the logical volume too (CSI spec,
// NodeUnpublishVolume).
func (s *Server) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	v, err := s.any(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := volume.CheckPath("target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := s.lifecycle.Unpublish(ctx, v, req.GetTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
