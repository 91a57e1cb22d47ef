package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ListVolumes implements csi.ControllerServer: the persistent volumes of this node, by id.
//
// The token for the next page is the last id of this one. A list that goes on after an id needs no memory of the driver,
// survives its restart, and does not mind that the volume of the id is deleted meanwhile.
func (c *Controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	after, most := req.GetStartingToken(), int(req.GetMaxEntries())
	if err := c.checkPage(after, most); err != nil {
		return nil, err
	}
	lvs, err := c.volumes.List(ctx)
	if err != nil {
		return nil, err
	}
	var entries []*csi.ListVolumesResponse_Entry
	for _, lv := range lvs {
		if lv.Tags.Kind == volume.Persistent && lv.Tags.State == "" && c.id(lv) > after {
			e := &csi.ListVolumesResponse_Entry{Volume: c.volume(lv)}
			if c.cfg.Attach {
				e.Status = &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: c.publishedNodes(lv)}
			}
			entries = append(entries, e)
		}
	}
	out := &csi.ListVolumesResponse{}
	out.Entries, out.NextToken = page(entries, most, func(e *csi.ListVolumesResponse_Entry) string { return e.GetVolume().GetVolumeId() })
	return out, nil
}

// checkPage checks what a request for a page of a list says: after which id it begins, and how many entries it may have.
func (c *Controller) checkPage(after string, most int) error {
	if most < 0 {
		return volume.Invalid("max_entries", strconv.Itoa(most), "must not be negative; 0 is no bound")
	}
	if id, err := volume.ParseID(after); after != "" && (err != nil || id.Node != c.cfg.Node) {
		return fmt.Errorf("%w: starting_token %.200q was not given out by this driver; start again without one", volume.ErrToken, strings.ToValidUTF8(after, "?"))
	}
	return nil
}

// page sorts the entries by id and keeps at most so many; 0 is no bound. There is a token only where something is left.
func page[E any](entries []E, most int, id func(E) string) (kept []E, token string) {
	slices.SortFunc(entries, func(a, b E) int { return strings.Compare(id(a), id(b)) })
	if most == 0 || len(entries) <= most {
		return entries, ""
	}
	return entries[:most], id(entries[most-1])
}

// ControllerGetVolume implements csi.ControllerServer.
func (c *Controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	lv, err := c.lookup(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{Volume: c.volume(lv), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: c.publishedNodes(lv)}}, nil
}
