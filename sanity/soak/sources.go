package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// A source is a volume or a snapshot, of which volumes are made. Content is what it held when that was asked for.
type source struct {
	id      string
	exists  bool
	class   class
	bytes   int64
	filled  bool
	content string
}

func (v *persistent) source() source {
	return source{v.id, v.exists, v.class, v.bytes, v.filled, v.content}
}

// snapshot is what is known of a snapshot.
type snapshot struct {
	name string
	ref  volume.Ref

	source             // what it shows
	of     *persistent // where there is one
	thick  bool        // so its origin cannot be deleted
}

// pinned reports whether a thick snapshot of the volume is there.
func (r *run) pinned(v *persistent) bool {
	return slices.ContainsFunc(r.snapshots, func(s *snapshot) bool { return s.exists && s.thick && s.of == v })
}

// vacant is the volume, or mostly, where it is there already, one that is not.
func (r *run) vacant(v *persistent, s Step) *persistent {
	if i := slices.IndexFunc(r.volumes, func(v *persistent) bool { return !v.exists && !v.isAlien }); v.exists && i >= 0 && s.Arg%5 != 0 {
		return r.volumes[i]
	}
	return v
}

// clone makes a volume of another, restore of a snapshot.
func (r *run) clone(v *persistent, s Step) error {
	from := r.volumes[s.Arg%len(r.volumes)].source()
	return r.fill(v, s, from, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: from.id}}})
}

func (r *run) restore(v *persistent, s Step) error {
	from := r.snapshots[s.Arg%len(r.snapshots)].source
	return r.fill(v, s, from, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: from.id}}})
}

// copies are the layouts of what is made of a source: some share its blocks, some are copied.
var copies = []volume.Type{"", volume.Thin, volume.Striped}

// thinMost is the size up to which a copy may be thin: the pool is small.
const thinMost = 64 << 20

func (r *run) fill(v *persistent, s Step, from source, content *csi.VolumeContentSource) error {
	v = r.vacant(v, s)
	c, bytes := from.class, from.bytes
	if c.kind = copies[s.Arg/8%len(copies)]; c.kind == volume.Thin && bytes > thinMost {
		c.kind = ""
	}
	again := v.exists && v.from == from.id
	if again {
		c, bytes = v.class, v.bytes
	}
	if s.Arg%11 == 10 {
		bytes *= 2
	}
	want := codes.OK
	switch {
	case v.isAlien || v.exists && (!again || bytes > v.bytes):
		want = codes.AlreadyExists
	case !v.exists && !from.exists:
		want = codes.NotFound
	case !v.exists && s.Arg%16 == 15:
		bytes, want = from.bytes/2, codes.OutOfRange
	}
	as := persistent{class: c, bytes: bytes, filled: from.filled, content: from.content, from: from.id}
	if err := r.make(v, s, as, content, want); err != nil || want != codes.OK {
		return err
	}
	return r.checkPersistent(v, r.deep)
}

// snapshot makes a snapshot of the volume.
func (r *run) snapshot(v *persistent, s Step) error {
	n, want := r.snapshots[s.Arg%len(r.snapshots)], codes.OK
	switch {
	case n.exists && n.of != v:
		want = codes.AlreadyExists
	case !n.exists && !v.exists:
		want = codes.NotFound
	}
	var last atomic.Pointer[csi.Snapshot]
	made := rpc{call: func(ctx context.Context) error {
		reply, err := r.Controller().CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: n.name, SourceVolumeId: v.id})
		last.Store(reply.GetSnapshot())
		return err
	}}
	if !n.exists {
		made.opposite = n.deleteCall(r)
	}
	if err := r.answer(s, made, want); err != nil || want != codes.OK {
		return err
	}
	if !n.exists {
		id := n.id
		n.source, n.of, n.thick = v.source(), v, v.class.kind != volume.Thin
		n.id = id
	}
	if got := last.Load(); got.GetSnapshotId() != n.id || got.GetSourceVolumeId() != v.id || got.GetSizeBytes() != n.bytes || !got.GetReadyToUse() {
		return fmt.Errorf("the snapshot is %v, want %s of %s with %d bytes, ready", got, n.id, v.id, n.bytes)
	}
	return r.checkSnapshot(n)
}

func (n *snapshot) deleteCall(r *run) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Controller().DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: n.id})
		return err
	}
}

func (r *run) unsnapshot(s Step) error {
	n := r.snapshots[s.Slot%len(r.snapshots)]
	if err := r.answer(s, rpc{call: n.deleteCall(r)}, codes.OK); err != nil {
		return err
	}
	n.exists = false
	return r.checkSnapshot(n)
}

func (r *run) checkSnapshot(n *snapshot) error {
	if !r.deep {
		return nil
	}
	return errors.Join(r.holds(n.ref, n.exists), r.listed())
}

// listed compares the snapshots that the driver lists.
func (r *run) listed() error {
	var want, got []string
	for _, n := range r.snapshots {
		if n.exists {
			want = append(want, n.id)
		}
	}
	l, err := r.Controller().ListSnapshots(r.t.Context(), &csi.ListSnapshotsRequest{})
	if err != nil {
		return err
	}
	for _, e := range l.GetEntries() {
		got = append(got, e.GetSnapshot().GetSnapshotId())
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		return fmt.Errorf("listed are the snapshots %v, want %v", got, want)
	}
	return nil
}
