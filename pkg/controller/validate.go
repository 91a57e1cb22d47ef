package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ValidateVolumeCapabilities implements csi.ControllerServer. The volume must be there; that it is not what is asked for
// is an answer, not an error.
func (c *Controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	q, err := readQuestion(req)
	if err != nil {
		return nil, err
	}
	lv, err := c.lookup(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if why := q.differs(lv); why != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      req.GetVolumeContext(),
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
		MutableParameters:  req.GetMutableParameters(),
	}}, nil
}

// question is what a volume is compared with.
type question struct {
	unsupported string // why no volume can be it; "" where one can
	block       bool
	fs          volume.FS          // "" where nothing is said
	parameters  *volume.Parameters // nil where the request has none
	mutable     volume.Mutable     // could be given to it
	mkfs        []string           // of the volume_context; empty where it says nothing
}

func readQuestion(req *csi.ValidateVolumeCapabilitiesRequest) (q question, err error) {
	if err := volume.CheckAnyID(req.GetVolumeId()); err != nil {
		return q, err
	}
	p, err := volume.ParseParameters(req.GetParameters())
	if err != nil {
		return q, err
	}
	if len(req.GetParameters()) != 0 {
		q.parameters = &p
	}
	vc, err := volume.ParseContext(req.GetVolumeContext())
	if err != nil {
		return q, err
	}
	q.mkfs, q.fs = vc.MkfsOptions, p.FS
	if q.mutable, err = volume.ParseMutable(req.GetMutableParameters()); err != nil {
		q.unsupported = err.Error()
	}
	return q, q.readCapabilities(req.GetVolumeCapabilities(), p)
}

func (q *question) readCapabilities(list []*csi.VolumeCapability, p volume.Parameters) error {
	caps, err := request.Capabilities(list)
	if errors.Is(err, request.ErrUnsupported) {
		q.unsupported = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := request.Format(caps, p); err != nil {
		return err
	}
	q.block = caps[0].Block
	for _, c := range caps {
		if c.FS != "" {
			q.fs = c.FS
		}
	}
	return nil
}

// differs tells in words where the volume is not what is asked for; "" where it is. Tags say what it was made as. An LV
// that was not made by the driver but adopted has none of that, and then nothing speaks against it but its type.
func (q question) differs(lv volume.LV) string {
	if q.unsupported != "" {
		return q.unsupported
	}
	if err := q.mutable.Check(lv.Type); err != nil {
		return err.Error()
	}
	f, known := lv.Tags.Format()
	switch {
	case known && f.FS == "" && !q.block:
		return "the volume is a block volume, without a file system of the driver's"
	case known && f.FS != "" && q.block:
		return fmt.Sprintf("the volume carries a file system, %s; it is no block volume", f.FS)
	case known && q.fs != "" && !q.block && q.fs != f.FS:
		return fmt.Sprintf("the volume carries %s, not %s", f.FS, q.fs)
	case len(q.mkfs) != 0 && strings.Join(q.mkfs, " ") != lv.Tags.Mkfs:
		return fmt.Sprintf("volume_context[%s]: the volume was made with %q", volume.KeyMkfsOptions, lv.Tags.Mkfs)
	case q.parameters != nil:
		return differsFrom(*q.parameters, lv)
	}
	return ""
}

func differsFrom(p volume.Parameters, lv volume.LV) string {
	layout := lv.Tags.Layout()
	adopted := layout == ""
	switch {
	case p.VG != "" && p.VG != lv.VG:
		return fmt.Sprintf("parameters: the volume is in volume group %s, not %s", lv.VG, p.VG)
	case adopted && (lv.Type != p.Layout.Type || lv.Pool != p.Layout.Pool):
		return fmt.Sprintf("parameters: the volume has type %q in pool %q, not %s", lv.Type, lv.Pool, p.Layout)
	case !adopted && layout != p.Layout.String():
		return fmt.Sprintf("parameters: the volume has %s, not %s", layout, p.Layout)
	case !adopted && strings.Join(p.MkfsOptions, " ") != lv.Tags.Mkfs:
		return fmt.Sprintf("parameters[%s]: the volume was made with %q", volume.KeyMkfsOptions, lv.Tags.Mkfs)
	}
	return ""
}
