package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// CreateVolume implements csi.ControllerServer.
func (c *Controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	spec, err := c.spec(req)
	if err != nil {
		return nil, err
	}
	g, ok, err := c.group(ctx, spec.VG)
	if err != nil {
		return nil, err
	}
	if !ok { // not this node, perhaps another: external-provisioner asks elsewhere
		return nil, fmt.Errorf("%w: volume group %q is not on node %s; create it, or let the volume be made on a node that has it", volume.ErrNoSpace, g.Name, c.cfg.Node)
	}
	spec.AnyVG, spec.VG = req.GetParameters()[volume.KeyVolumeGroup] == "", g.Name
	lv, err := c.volumes.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: c.volume(lv)}, nil
}

// spec reads what is to be made. Its VG is "" where the request names none.
func (c *Controller) spec(req *csi.CreateVolumeRequest) (s volume.Spec, err error) {
	if err := volume.CheckName(req.GetName()); err != nil {
		return s, err
	}
	caps, err := request.Capabilities(req.GetVolumeCapabilities())
	if err != nil {
		return s, err
	}
	p, err := c.parameters(req.GetParameters())
	if err != nil {
		return s, err
	}
	if s.Format, err = request.Format(caps, p); err != nil {
		return s, err
	}
	if s.RequiredBytes, s.LimitBytes, err = request.Range(req.GetCapacityRange()); err != nil {
		return s, err
	}
	s.Kind, s.Name, s.Layout = volume.Persistent, req.GetName(), p.Layout
	s.Ref = volume.Ref{VG: p.VG, LV: volume.LVName(volume.Persistent, req.GetName())}
	if s.Source, err = c.source(req.GetVolumeContentSource()); err != nil {
		return s, err
	}
	if s.VG == "" { // where its source is, if there is one
		s.VG = s.Source.VG
	}
	s.AnyFS = !slices.ContainsFunc(caps, func(c volume.Capability) bool { return c.FS != "" }) && p.FS == ""
	if s.Mutable, err = volume.ParseMutable(req.GetMutableParameters()); err == nil {
		err = s.Mutable.Check(s.Layout.Type)
	}
	if err != nil {
		return s, err
	}
	return s, c.here.Check(req.GetAccessibilityRequirements())
}

// source reads what the volume is to be filled with. The id of a source that is none of this driver's names nothing that is there.
func (c *Controller) source(m *csi.VolumeContentSource) (s volume.Source, err error) {
	const field = "volume_content_source."
	switch m.GetType().(type) {
	case nil:
		if m != nil {
			return s, volume.Invalid("volume_content_source", "", "neither a snapshot nor a volume; name one, or leave the field out")
		}
		return s, nil
	case *csi.VolumeContentSource_Snapshot:
		s.Kind = volume.Snapshot
		s.Ref, err = c.locateAs(field+"snapshot.snapshot_id", m.GetSnapshot().GetSnapshotId())
	case *csi.VolumeContentSource_Volume:
		s.Kind = volume.Persistent
		s.Ref, err = c.locateAs(field+"volume.volume_id", m.GetVolume().GetVolumeId())
	default:
		err = volume.Invalid("volume_content_source", "", "neither a snapshot nor a volume")
	}
	return s, err
}

// contentSource gives the message for what a volume was filled with, which may be gone by now.
func (c *Controller) contentSource(lv volume.LV) *csi.VolumeContentSource {
	s, ok := volume.ParseSource(lv.Tags.From)
	id := c.id(volume.LV{Ref: s.Ref})
	switch {
	case !ok:
		return nil
	case s.Kind == volume.Snapshot:
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
	default:
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
	}
}

// DeleteVolume implements csi.ControllerServer. An id that this driver never gave out is a volume that does not exist,
// so it is OK (CSI spec, DeleteVolume); that holds for the ids of inline volumes, which are not the controller's.
func (c *Controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	ref, err := c.locate(req.GetVolumeId())
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return &csi.DeleteVolumeResponse{}, nil
	case err != nil:
		return nil, err
	}
	if err := c.volumes.Delete(ctx, ref); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}
