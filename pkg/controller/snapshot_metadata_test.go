package controller

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// scripted tells of so many ranges, and keeps the question.
type scripted struct {
	n     int
	after error // what is met after them
	asked lifecycle.BlockQuery
}

func (s *scripted) Blocks(_ context.Context, q lifecycle.BlockQuery, emit func(volume.Range) error) error {
	s.asked = q
	for i := range s.n {
		if err := emit(volume.Range{Offset: int64(2 * i), Bytes: 1}); err != nil {
			return err
		}
	}
	return s.after
}

// sink takes messages until it fails.
type sink struct {
	grpc.ServerStream
	ctx   context.Context
	fails error // when sent to
	sizes []int
}

func (s *sink) Context() context.Context { return s.ctx }
func (s *sink) Send(m *csi.GetMetadataAllocatedResponse) error {
	s.sizes = append(s.sizes, len(m.GetBlockMetadata()))
	return s.fails
}

func newSnapshotMetadata(n int) (*SnapshotMetadata, *scripted) {
	c, v := newController()
	v.lvs = append(v.lvs, volume.LV{
		Ref: volume.Ref{VG: "vg0", LV: "s"}, UUID: "u", SizeBytes: 64 * mi, Type: volume.Thin, Pool: "pool", ThinID: 7,
		Tags: volume.Tags{Owner: driverName, Kind: volume.Snapshot, Origin: "vg0/v", Created: 1},
	})
	b := &scripted{n: n}
	return NewSnapshotMetadata(c, b), b
}

func TestMessagesOfAStream(t *testing.T) {
	for _, c := range []struct {
		ranges int
		most   int32
		want   []int
	}{
		{0, 0, []int{0}}, // the capacity is told in any case
		{0, 5, []int{0}},
		{3, 0, []int{3}},
		{3, 2, []int{2, 1}},
		{4, 2, []int{2, 2}},
		{pageMost + 1, 0, []int{pageMost, 1}},
		{pageMost + 1, 1 << 30, []int{pageMost, 1}},
	} {
		s, b := newSnapshotMetadata(c.ranges)
		out := &sink{ctx: bg}
		err := s.GetMetadataAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "node-1/vg0/s", MaxResults: c.most, StartingOffset: mi}, out)
		if err != nil || len(out.sizes) != len(c.want) {
			t.Fatalf("%d ranges by %d: messages of %v, %v", c.ranges, c.most, out.sizes, err)
		}
		for i := range c.want {
			if out.sizes[i] != c.want[i] {
				t.Errorf("%d ranges by %d: messages of %v", c.ranges, c.most, out.sizes)
			}
		}
		if b.asked.Target.ThinID != 7 || b.asked.Base.UUID != "" || b.asked.Within != (volume.Range{Offset: mi, Bytes: 63 * mi}) {
			t.Errorf("asked %+v", b.asked)
		}
	}
}

// The end of a stream says that all was told: whatever goes wrong ends it with an error.
func TestStreamsThatFail(t *testing.T) {
	fault := errors.New("broken pipe")
	ended, cancel := context.WithCancel(bg)
	cancel()
	for name, c := range map[string]struct {
		after, fails error
		ctx          context.Context
		want         error
		messages     int
	}{
		"in the middle":       {after: fault, ctx: bg, want: fault, messages: 1},
		"a message not taken": {fails: fault, ctx: bg, want: fault, messages: 1},
		"nobody waits":        {ctx: ended, want: context.Canceled},
	} {
		s, b := newSnapshotMetadata(3)
		b.after = c.after
		out := &sink{ctx: c.ctx, fails: c.fails}
		err := s.GetMetadataAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "node-1/vg0/s", MaxResults: 2}, out)
		if !errors.Is(err, c.want) || len(out.sizes) != c.messages {
			t.Errorf("%s: %v after %d messages", name, err, len(out.sizes))
		}
	}
}

// The clock was set back between two snapshots: which is the older one does not depend on it.
func TestOrderOfSnapshots(t *testing.T) {
	s, _ := newSnapshotMetadata(1)
	v := s.controller.volumes.(*volumes)
	later := v.lvs[len(v.lvs)-1]
	later.LV, later.UUID, later.ThinID, later.Tags.Created = "later", "w", 9, 0
	v.lvs = append(v.lvs, later)
	ask := func(base, target string) error {
		return s.GetMetadataDelta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: "node-1/vg0/" + base, TargetSnapshotId: "node-1/vg0/" + target}, &deltaSink{sink{ctx: bg}})
	}
	want(t, ask("s", "later"), nil)
	want(t, ask("later", "s"), volume.ErrInvalid)
}

type deltaSink struct{ sink }

func (s *deltaSink) Send(*csi.GetMetadataDeltaResponse) error { return nil }
