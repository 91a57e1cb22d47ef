package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	driverName = "local-lvm.csi.internal"
	extent     = 4 << 20
	mi         = 1 << 20
)

var bg = context.Background()

// volumes is a machine in memory, no larger than what these tests look at. It counts what was asked of it.
type volumes struct {
	groups []volume.Group
	lvs    []volume.LV
	err    error // what every question meets
	calls  []string
}

func (v *volumes) called(format string, args ...any) error {
	v.calls = append(v.calls, fmt.Sprintf(format, args...))
	return v.err
}

func (v *volumes) Create(_ context.Context, s volume.Spec) (volume.LV, error) {
	if err := v.called("create %s", s.Ref); err != nil {
		return volume.LV{}, err
	}
	for _, lv := range v.lvs {
		if lv.LV == s.LV {
			return lv, s.Matches(lv)
		}
	}
	size, err := volume.Size(s.RequiredBytes, s.LimitBytes, s.Layout.UnitBytes(extent), volume.MinFSBytes(s.Format.FS))
	if err != nil {
		return volume.LV{}, err
	}
	lv := volume.LV{Ref: s.Ref, SizeBytes: size, Type: s.Layout.Type, Pool: s.Layout.Pool, Tags: volume.ParseTags(s.Tags(driverName).Strings())}
	v.lvs = append(v.lvs, lv)
	return lv, nil
}

func (v *volumes) Delete(_ context.Context, r volume.Ref) error {
	if err := v.called("delete %s", r); err != nil {
		return err
	}
	v.lvs = slices.DeleteFunc(v.lvs, func(lv volume.LV) bool { return lv.Ref == r && lv.Tags.Kind == volume.Persistent })
	return nil
}

func (v *volumes) CreateSnapshot(ctx context.Context, s volume.Spec) (volume.LV, error) {
	origin, err := v.Lookup(ctx, s.Origin.Ref)
	if err != nil {
		return origin, err
	}
	s.Origin, s.Created = origin, time.Unix(1, 2)
	for _, lv := range v.lvs {
		if lv.LV == s.LV {
			return lv, s.Matches(lv)
		}
	}
	lv := volume.LV{Ref: s.Ref, SizeBytes: origin.SizeBytes, Type: volume.Thin, Origin: origin.LV, Tags: volume.ParseTags(s.Tags(driverName).Strings())}
	v.lvs = append(v.lvs, lv)
	return lv, nil
}

func (v *volumes) DeleteSnapshot(_ context.Context, r volume.Ref) error {
	if err := v.called("delete snapshot %s", r); err != nil {
		return err
	}
	v.lvs = slices.DeleteFunc(v.lvs, func(lv volume.LV) bool { return lv.Ref == r && lv.Tags.Kind == volume.Snapshot })
	return nil
}

func (v *volumes) Expand(_ context.Context, r volume.Ref, required, limit int64) (volume.LV, error) {
	if err := v.called("expand %s", r); err != nil {
		return volume.LV{}, err
	}
	i := slices.IndexFunc(v.lvs, func(lv volume.LV) bool { return lv.Ref == r })
	size, err := volume.ExpandedSize(v.lvs[i].SizeBytes, required, limit, extent)
	if err == nil {
		v.lvs[i].SizeBytes = size
	}
	return v.lvs[i], err
}

func (v *volumes) List(context.Context) ([]volume.LV, error) { return v.lvs, v.called("list") }

func (v *volumes) Lookup(_ context.Context, r volume.Ref) (volume.LV, error) {
	if err := v.called("lookup %s", r); err != nil {
		return volume.LV{}, err
	}
	for _, lv := range v.lvs {
		if lv.Ref == r {
			return lv, nil
		}
	}
	return volume.LV{}, fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
}

func (v *volumes) Groups(context.Context) ([]volume.Group, error) {
	return v.groups, v.called("groups")
}

// newController gives a controller of node-1 with the groups vg0 and data-1, that may use vg* too.
func newController() (*Controller, *volumes) {
	pv := volume.PV{SizeBytes: 1 << 30, FreeBytes: 1 << 30, Allocatable: true}
	v := &volumes{groups: []volume.Group{
		{Name: "data-1", ExtentBytes: extent, PVs: []volume.PV{pv}},
		{Name: "vg0", ExtentBytes: extent, PVs: []volume.PV{pv, pv}, Pools: []volume.Pool{{Name: "pool", SizeBytes: 1 << 30, VirtualBytes: 256 * mi}}},
	}}
	return New(Config{
		Node: "node-1", TopologyKey: request.TopologyKey(driverName), VolumeGroups: volume.Patterns{"vg0", "data-*"}, Overcommit: 2,
	}, v, illness{v}), v
}

// reset forgets what was asked so far.
func (v *volumes) reset() { v.calls = nil }

// untouched checks that a call changed and asked nothing.
func (v *volumes) untouched(t *testing.T) {
	t.Helper()
	if len(v.calls) != 0 {
		t.Errorf("bad input, and yet: %s", strings.Join(v.calls, ", "))
	}
}

func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var fe *volume.FieldError
	if !errors.As(err, &fe) || !errors.Is(err, volume.ErrInvalid) || fe.Field != field || fe.Remedy == "" {
		t.Fatalf("error is %v, want an ErrInvalid of %s with a remedy", err, field)
	}
}

func want(t *testing.T, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("error is %v, want %v", err, sentinel)
	}
}

func mount(fs string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func block() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func caps(list ...*csi.VolumeCapability) []*csi.VolumeCapability { return list }

// multiNode is a capability that no volume here can have.
func multiNode() *csi.VolumeCapability {
	c := mount("")
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	return c
}

func request1(change ...func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
	req := &csi.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: caps(mount("")), CapacityRange: &csi.CapacityRange{RequiredBytes: 10 * mi}}
	for _, f := range change {
		f(req)
	}
	return req
}

// make1 makes a volume and forgets the calls that took.
func make1(t *testing.T, c *Controller, v *volumes, change ...func(*csi.CreateVolumeRequest)) *csi.Volume {
	t.Helper()
	res, err := c.CreateVolume(bg, request1(change...))
	if err != nil {
		t.Fatal(err)
	}
	v.reset()
	return res.GetVolume()
}

func (v *volumes) Modify(_ context.Context, r volume.Ref, m volume.Mutable) error {
	return v.called("modify %s %s", r, m)
}

func (v *volumes) Attach(_ context.Context, r volume.Ref, a volume.Attachment) error {
	return v.called("attach %s %s", r, a)
}

func (v *volumes) Detach(_ context.Context, r volume.Ref, node string) error {
	return v.called("detach %s %s", r, node)
}
