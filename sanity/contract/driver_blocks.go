package contract

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var blocksTests = []driverTest{
	{"ChangedBlocks", driverBlocks},
	{"ChangedBlocksRefused", driverBlocksRefused},
	{"ChangedBlocksReservedElsewhere", driverBlocksElsewhere},
	{"ChangedBlocksAfterAKill", driverBlocksKilled},
}

// ThinChunk is the size of a chunk of the thin pool of every Harness.
const ThinChunk = 64 << 10

// told is what a stream told.
type told struct {
	ranges   []volume.Range
	messages int
	err      error
}

// message is what both calls answer with.
type message interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// readBlocks reads a stream to its end, and checks what the CSI spec demands of each message.
func readBlocks[M message](c caller, capacity, from int64, most int32, recv func() (M, error), err error) (all told) {
	c.t.Helper()
	for last := from; err == nil; {
		var m M
		if m, err = recv(); err != nil {
			break
		}
		all.messages++
		blocks := m.GetBlockMetadata()
		if m.GetBlockMetadataType() != csi.BlockMetadataType_VARIABLE_LENGTH || m.GetVolumeCapacityBytes() != capacity || most > 0 && len(blocks) > int(most) {
			c.t.Errorf("type %v, capacity %d, %d ranges; want at most %d of a volume of %d bytes", m.GetBlockMetadataType(), m.GetVolumeCapacityBytes(), len(blocks), most, capacity)
		}
		for _, b := range blocks {
			r := volume.Range{Offset: b.GetByteOffset(), Bytes: b.GetSizeBytes()}
			if r.Bytes <= 0 || r.Offset < last || r.End() > capacity {
				c.t.Errorf("range %+v, after byte %d, of %d bytes", r, last, capacity)
			}
			last = r.End()
			all.ranges = append(all.ranges, r)
		}
	}
	if all.err = err; errors.Is(err, io.EOF) {
		all.err = nil
	}
	return all
}

func (c caller) allocated(id string, capacity, from int64, most int32) told {
	c.t.Helper()
	s, err := c.SnapshotMetadata().GetMetadataAllocated(c.t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: from, MaxResults: most})
	return readBlocks(c, capacity, from, most, func() (*csi.GetMetadataAllocatedResponse, error) { return s.Recv() }, err)
}

func (c caller) delta(base, target string, capacity, from int64, most int32) told {
	c.t.Helper()
	s, err := c.SnapshotMetadata().GetMetadataDelta(c.t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: from, MaxResults: most})
	return readBlocks(c, capacity, from, most, func() (*csi.GetMetadataDeltaResponse, error) { return s.Recv() }, err)
}

// thinVolume is a thin block volume, and what is known of its chunks: a number for each write.
type thinVolume struct {
	pv
	chunks map[int64]int
	writes int
}

func (c caller) thinVolume(name string, bytes int64) *thinVolume {
	c.t.Helper()
	return &thinVolume{pv: c.create(name, bytes, blockCapability(), layout(c, "thin")), chunks: map[int64]int{}}
}

func (v *thinVolume) write(offset, bytes int64) {
	v.t.Helper()
	v.WriteThin(v.t, v.ref(), volume.Range{Offset: offset, Bytes: bytes})
	for n := offset / ThinChunk; n*ThinChunk < offset+bytes; n++ {
		v.writes++
		v.chunks[n] = v.writes
	}
}

func (v *thinVolume) discard(offset, bytes int64) {
	v.t.Helper()
	v.DiscardThin(v.t, v.ref(), volume.Range{Offset: offset, Bytes: bytes})
	for n := (offset + ThinChunk - 1) / ThinChunk; (n+1)*ThinChunk <= offset+bytes; n++ {
		delete(v.chunks, n)
	}
}

// thinSnapshot is a snapshot, and the chunks of its volume at that time.
type thinSnapshot struct {
	id     string
	bytes  int64
	chunks map[int64]int
}

func (v *thinVolume) cut(name string) thinSnapshot {
	v.t.Helper()
	s := v.snapshot(name, v.id)
	return thinSnapshot{s.GetSnapshotId(), s.GetSizeBytes(), maps.Clone(v.chunks)}
}

// since gives the ranges in which the snapshot differs from an earlier one, from an offset on.
func (s thinSnapshot) since(base map[int64]int, from int64) (out []volume.Range) {
	all := maps.Clone(s.chunks)
	maps.Copy(all, base)
	for _, n := range slices.Sorted(maps.Keys(all)) {
		begin, end := max(n*ThinChunk, from), min((n+1)*ThinChunk, s.bytes)
		switch last := len(out) - 1; {
		case s.chunks[n] == base[n] || begin >= end:
		case last >= 0 && out[last].End() == begin:
			out[last].Bytes += end - begin
		default:
			out = append(out, volume.Range{Offset: begin, Bytes: end - begin})
		}
	}
	return out
}

func (c caller) wantTold(what string, got told, want []volume.Range, most int32) {
	c.t.Helper()
	if got.err != nil || !slices.Equal(got.ranges, want) {
		c.t.Errorf("%s: %v, %v, want %v", what, got.ranges, got.err, want)
	}
	if pages := (len(want) + int(most) - 1) / max(1, int(most)); most > 0 && got.messages != max(1, pages) {
		c.t.Errorf("%s: %d messages for %d ranges", what, got.messages, len(want))
	}
}

// Which chunks were written, and in which two snapshots differ, is told exactly: in pages of any size, from any offset, and
// also when the volume is gone. No LVM command is run for it, and nothing stays reserved.
func driverBlocks(t *testing.T, h Harness) {
	c, before := started(t, h)
	v := c.thinVolume("blocks", 16<<20)
	var cuts []thinSnapshot
	cut := func(name string) { cuts = append(cuts, v.cut(name)) }
	for _, when := range some(0, "empty", "as empty") {
		cut(when)
	}
	v.write(0, 4096)
	v.write(3*ThinChunk+512, 2*ThinChunk)
	for n := range int64(20) {
		v.write((20+3*n)*ThinChunk, ThinChunk)
	}
	v.write(v.bytes-512, 512)
	cut("first")
	v.write(0, 512)
	v.discard(20*ThinChunk-512, 5*ThinChunk)
	v.write(100*ThinChunk, 7*ThinChunk)
	cut("second")
	commands := c.Commands(t)
	dice := rand.New(rand.NewPCG(3, 4))
	for i, s := range cuts {
		for _, from := range some(1, 0, dice.Int64N(s.bytes), 1, ThinChunk, 4*ThinChunk, 20*ThinChunk-1, s.bytes-1, s.bytes) {
			c.wantAllocated(s, from, int32(dice.IntN(5)))
		}
		for _, base := range cuts[:i] {
			for _, from := range some(1, dice.Int64N(s.bytes), 0, 22*ThinChunk+1) {
				c.wantDelta(base, s, from, int32(dice.IntN(5)))
			}
		}
	}
	c.wantRuns(commands, map[string]int{})
	if c.PoolHeld(t) {
		t.Error("the pool is still reserved")
	}
	c.ok(v.delete())
	c.wantDelta(cuts[len(cuts)-2], cuts[len(cuts)-1], 0, 0)
	for _, s := range cuts {
		c.ok(c.deleteSnapshot(s.id))
	}
	wantWorld(t, c, before, "after all")
}

func (c caller) wantAllocated(s thinSnapshot, from int64, most int32) {
	c.t.Helper()
	c.wantTold(fmt.Sprintf("%s from %d on by %d", s.id, from, most), c.allocated(s.id, s.bytes, from, most), s.since(nil, from), most)
}

func (c caller) wantDelta(base, s thinSnapshot, from int64, most int32) {
	c.t.Helper()
	what := fmt.Sprintf("%s since %s from %d on by %d", s.id, base.id, from, most)
	c.wantTold(what, c.delta(base.id, s.id, s.bytes, from, most), s.since(base.chunks, from), most)
}

// What is refused, and why; nothing of it reserves anything.
func driverBlocksRefused(t *testing.T, h Harness) {
	c, before := started(t, h)
	v, other := c.thinVolume("blocks", 16<<20), c.thinVolume("other", 16<<20)
	old, young, foreign := v.cut("old"), v.cut("young"), other.cut("foreign")
	thick := c.create("thick", 16<<20, blockCapability(), layout(c, "linear"))
	cow := c.snapshot("cow", thick.id).GetSnapshotId()
	id := func(node, vg, lv string) string {
		return volume.ID{Node: node, Ref: volume.Ref{VG: vg, LV: lv}}.String()
	}
	ids := map[string]codes.Code{
		"":                                  codes.InvalidArgument,
		"no id":                             codes.NotFound,
		id(c.NodeName(), c.VG(), "nothing"): codes.NotFound,
		id(c.NodeName(), "elsewhere", "s"):  codes.NotFound,
		v.id:                                codes.NotFound,
		id("node-2", c.VG(), "s"):           codes.FailedPrecondition,
		cow:                                 codes.FailedPrecondition,
	}
	for bad, want := range ids {
		c.code(c.allocated(bad, 0, 0, 0).err, want, "")
		c.code(c.delta(bad, young.id, 0, 0, 0).err, want, "")
		c.code(c.delta(old.id, bad, 0, 0, 0).err, want, "")
	}
	c.code(c.allocated(cow, 0, 0, 0).err, codes.FailedPrecondition, "thick snapshot")
	c.code(c.delta(young.id, old.id, 0, 0, 0).err, codes.InvalidArgument, "older than base_snapshot_id")
	c.code(c.delta(old.id, old.id, 0, 0, 0).err, codes.InvalidArgument, "the same as base_snapshot_id")
	c.code(c.delta(old.id, foreign.id, 0, 0, 0).err, codes.InvalidArgument, "of volume")
	for _, from := range []int64{-1, old.bytes + 1, 1<<63 - 1} {
		c.code(c.allocated(old.id, 0, from, 0).err, codes.OutOfRange, "starting_offset")
		c.code(c.delta(old.id, young.id, 0, from, 0).err, codes.OutOfRange, "starting_offset")
	}
	c.code(c.allocated(old.id, 0, 0, -1).err, codes.InvalidArgument, "max_results")
	c.code(c.delta(old.id, young.id, 0, 0, -1).err, codes.InvalidArgument, "max_results")
	if c.PoolHeld(t) {
		t.Error("the pool is reserved")
	}
	for _, s := range []string{old.id, young.id, foreign.id, cow} {
		c.ok(c.deleteSnapshot(s))
	}
	for _, v := range []pv{v.pv, other.pv, thick} {
		c.ok(v.delete())
	}
	wantWorld(t, c, before, "after all")
}

// An administrator who looks at the pool's metadata is not disturbed, not even by a driver that was killed.
func driverBlocksElsewhere(t *testing.T, h Harness) {
	c, before := started(t, h)
	v := c.thinVolume("blocks", 16<<20)
	v.write(0, 512)
	s := v.cut("snap")
	c.HoldPool(t, true)
	c.code(c.allocated(s.id, s.bytes, 0, 0).err, codes.FailedPrecondition, "release_metadata_snap")
	c.Kill(t)
	c.Start(t)
	c.code(c.allocated(s.id, s.bytes, 0, 0).err, codes.FailedPrecondition, "not by this driver")
	c.HoldPool(t, false)
	c.wantTold("when he is done", c.allocated(s.id, s.bytes, 0, 0), s.since(nil, 0), 0)
	c.ok(c.deleteSnapshot(s.id))
	c.ok(v.delete())
	wantWorld(t, c, before, "after all")
}

// A driver that was killed while the pool was reserved releases it at its next start, without any call; also over a reboot
// after which the pool is in use by nobody.
func driverBlocksKilled(t *testing.T, h Harness) {
	c, before := started(t, h)
	v := c.thinVolume("blocks", 16<<20)
	v.write(5*ThinChunk, 512)
	s := v.cut("snap")
	c.Arm(t, Fault{})
	c.wantTold("without a fault", c.allocated(s.id, s.bytes, 0, 0), s.since(nil, 0), 0)
	reserve := 1 + slices.IndexFunc(c.Effects(t), func(e effect.Effect) bool { return e.Op == "message" })
	quiet := c.World(t)
	for _, reboot := range []bool{false, true} {
		c.Arm(t, Fault{N: reserve, Do: KillAfter})
		if err := c.allocated(s.id, s.bytes, 0, 0).err; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
			t.Errorf("a stream of a killed driver ended with %v", err)
		}
		if !c.PoolHeld(t) {
			t.Fatal("the kill came too early: the pool is not reserved")
		}
		if reboot {
			c.Reboot(t, true)
		}
		c.Start(t)
		wantWorld(t, c, quiet, "after the start")
		var got told
		until(func() bool { // the release may just be ending
			got = c.allocated(s.id, s.bytes, 0, 0)
			return status.Code(got.err) != codes.Aborted
		})
		c.wantTold("after the start", got, s.since(nil, 0), 0)
	}
	c.ok(c.deleteSnapshot(s.id))
	c.ok(v.delete())
	wantWorld(t, c, before, "after all")
}
