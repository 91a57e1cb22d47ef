package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Blocks is what the SnapshotMetadata service asks of thin volumes besides.
type Blocks interface {
	// Blocks gives emit the ranges that were written, or in which two volumes differ: in order, and no two touch. Only
	// after nil were these all.
	Blocks(ctx context.Context, q lifecycle.BlockQuery, emit func(volume.Range) error) error
}

// SnapshotMetadata implements csi.SnapshotMetadataServer: which blocks of a thin snapshot were ever written, and in which
// two of one volume differ. The unit is the chunk of the thin pool (lvmthin(7)): one byte written in it makes it a changed
// one. Discarded chunks have changed too.
//
// Data ranges are of variable length: chunks that follow each other are one range. A stream that was cut off is gone on
// with by starting_offset; the ranges are cut there, so nothing is told twice.
type SnapshotMetadata struct {
	csi.UnimplementedSnapshotMetadataServer
	controller *Controller
	blocks     Blocks
}

var _ csi.SnapshotMetadataServer = (*SnapshotMetadata)(nil)

// NewSnapshotMetadata gives the service for the snapshots of a controller.
func NewSnapshotMetadata(c *Controller, b Blocks) *SnapshotMetadata {
	return &SnapshotMetadata{controller: c, blocks: b}
}

// GetMetadataAllocated implements csi.SnapshotMetadataServer.
func (s *SnapshotMetadata) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest, out csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	most, err := pageSize(req.GetMaxResults())
	if err != nil {
		return err
	}
	target, err := s.snapshot(out.Context(), snapshotID, req.GetSnapshotId())
	if err != nil {
		return err
	}
	return s.tell(out.Context(), target, volume.LV{}, req.GetStartingOffset(), pages{most: most, send: func(blocks []*csi.BlockMetadata) error {
		return out.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: target.SizeBytes, BlockMetadata: blocks,
		})
	}})
}

// GetMetadataDelta implements csi.SnapshotMetadataServer. The capacity is that of the target; where the volume was expanded
// since the base, what was written in the new part has changed.
func (s *SnapshotMetadata) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, out csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	most, err := pageSize(req.GetMaxResults())
	if err != nil {
		return err
	}
	base, err := s.snapshot(out.Context(), "base_snapshot_id", req.GetBaseSnapshotId())
	if err != nil {
		return err
	}
	target, err := s.snapshot(out.Context(), "target_snapshot_id", req.GetTargetSnapshotId())
	if err != nil {
		return err
	}
	if err := laterThan(base, target, req); err != nil {
		return err
	}
	return s.tell(out.Context(), target, base, req.GetStartingOffset(), pages{most: most, send: func(blocks []*csi.BlockMetadata) error {
		return out.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: target.SizeBytes, BlockMetadata: blocks,
		})
	}})
}

// tell sends the ranges from the offset on. One message is sent at least: it tells the capacity.
func (s *SnapshotMetadata) tell(ctx context.Context, target, base volume.LV, from int64, p pages) error {
	if from < 0 || from > target.SizeBytes {
		return fmt.Errorf("%w: starting_offset is %d, and snapshot %s has %d bytes", volume.ErrOutOfRange, from, target.Ref, target.SizeBytes)
	}
	within := volume.Range{Offset: from, Bytes: target.SizeBytes - from}
	err := s.blocks.Blocks(ctx, lifecycle.BlockQuery{Target: target, Base: base, Within: within}, func(r volume.Range) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return p.add(r)
	})
	if err != nil {
		return err
	}
	return p.end()
}

// snapshot finds a thin snapshot that can be asked. The spec has one code for an id that means nothing here, whatever is
// wrong with it: NOT_FOUND.
func (s *SnapshotMetadata) snapshot(ctx context.Context, field, id string) (volume.LV, error) {
	if id == "" {
		return volume.LV{}, volume.Invalid(field, id, "missing; it is required")
	}
	ref, err := s.controller.locateAs(field, id)
	if errors.Is(err, volume.ErrInvalid) { // malformed, or in a volume group that is not the driver's
		err = fmt.Errorf("%w: %v", volume.ErrNotFound, err) //nolint:errorlint // its class is what must not show
	}
	if err != nil {
		return volume.LV{}, err
	}
	lv, err := s.controller.volumes.Lookup(ctx, ref)
	switch {
	case err != nil:
		return volume.LV{}, err
	case lv.Tags.Kind != volume.Snapshot:
		return volume.LV{}, fmt.Errorf("%w: %s %s: logical volume %s is no snapshot but of kind %q", volume.ErrNotFound, field, id, lv.Ref, lv.Tags.Kind)
	case lv.Whole() != nil:
		return volume.LV{}, lv.Whole()
	case lv.Type != volume.Thin:
		return volume.LV{}, fmt.Errorf("%w: %s %s is a thick snapshot; its store holds what was overwritten since, and does not tell what was ever written, "+
			"or what differs from another snapshot; make a full backup, or use volumes of type thin", volume.ErrPrecondition, field, id)
	}
	return lv, nil
}

// laterThan checks that the target is a later snapshot of the base's volume (CSI spec, GetMetadataDeltaRequest).
func laterThan(base, target volume.LV, req *csi.GetMetadataDeltaRequest) error {
	const field = "target_snapshot_id"
	id := req.GetTargetSnapshotId()
	switch {
	case base.Ref == target.Ref:
		return volume.Invalid(field, id, "the same as base_snapshot_id; give a later snapshot of the same volume")
	case base.Tags.Origin != target.Tags.Origin || base.VG != target.VG || base.Pool != target.Pool:
		return volume.Invalid(field, id, fmt.Sprintf("a snapshot of volume %s in pool %s, and the base is one of %s in pool %s; give two of one volume",
			target.Tags.Origin, target.Pool, base.Tags.Origin, base.Pool))
	case base.ThinID > target.ThinID: // not by their times: clocks jump. LVM gives each thin volume a higher number than any that the pool has
		return volume.Invalid(field, id, "older than base_snapshot_id; give the older snapshot as the base")
	}
	return nil
}

// pageMost is how many ranges are sent in one message where the caller does not ask for fewer: a message of at most 100
// KiB, of the 4 MiB that gRPC's clients take.
const pageMost = 4096

func pageSize(maxResults int32) (int, error) {
	switch {
	case maxResults < 0:
		return 0, volume.Invalid("max_results", strconv.Itoa(int(maxResults)), "must not be negative; 0 leaves it to the driver")
	case maxResults == 0:
		return pageMost, nil
	}
	return min(int(maxResults), pageMost), nil
}

// pages sends ranges in messages of at most so many.
type pages struct {
	most  int
	send  func([]*csi.BlockMetadata) error
	page  []*csi.BlockMetadata
	begun bool
}

func (p *pages) add(r volume.Range) error {
	p.page = append(p.page, &csi.BlockMetadata{ByteOffset: r.Offset, SizeBytes: r.Bytes})
	if len(p.page) < p.most {
		return nil
	}
	return p.flush()
}

func (p *pages) flush() error {
	page := p.page
	p.page, p.begun = nil, true
	return p.send(page)
}

// end sends what is left.
func (p *pages) end() error {
	if len(p.page) == 0 && p.begun {
		return nil
	}
	return p.flush()
}
