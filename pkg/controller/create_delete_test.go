package controller

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestCreateVolume(t *testing.T) {
	c, v := newController()
	req := request1(func(r *csi.CreateVolumeRequest) {
		r.Parameters = map[string]string{"mkfsOptions": " -m  0", "csi.storage.k8s.io/pvc/name": "x"}
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{c.here.Message()}}
		r.Secrets = map[string]string{"password": "hunter2"}
	})
	before := proto.Clone(req)
	res, err := c.CreateVolume(bg, req)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(req, before) {
		t.Error("the request was changed")
	}
	wanted := &csi.Volume{
		VolumeId: "node-1/vg0/pvc-1", CapacityBytes: 12 * mi, VolumeContext: map[string]string{"mkfsOptions": "-m 0"},
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"topology.local-lvm.csi.internal/node": "node-1"}}},
	}
	if !proto.Equal(res.GetVolume(), wanted) {
		t.Errorf("got %v\nwant %v", res.GetVolume(), wanted)
	}
	if got := v.lvs[0].Tags; got.Kind != volume.Persistent || got.Owner != driverName {
		t.Errorf("tags are %+v", got)
	}
	// case B39: the same again is the same
	again, err := c.CreateVolume(bg, req)
	if err != nil || !proto.Equal(again, res) || len(v.lvs) != 1 {
		t.Errorf("repeated: %v, %v, %d logical volumes", again, err, len(v.lvs))
	}
	// A list and a get say the same of it.
	list, err := c.ListVolumes(bg, nil)
	if err != nil || !proto.Equal(list.GetEntries()[0].GetVolume(), wanted) {
		t.Errorf("listed: %v, %v", list, err)
	}
	get, err := c.ControllerGetVolume(bg, &csi.ControllerGetVolumeRequest{VolumeId: wanted.GetVolumeId()})
	if err != nil || !proto.Equal(get.GetVolume(), wanted) || get.GetStatus() == nil {
		t.Errorf("got: %v, %v", get, err)
	}
}

// cases B29, B30
func TestCreateVolumeNames(t *testing.T) {
	c, v := newController()
	ids := map[string]string{}
	for _, name := range []string{"pvc-1", "snapshot-1", "pvmove0", "a_tdata", "-rf", "--yes", ".", "..", "a/b", "a b", "a_b", "Ä", "a\nb", strings.Repeat("x", 128), strings.Repeat("ä", 64)} {
		vol := make1(t, c, v, func(r *csi.CreateVolumeRequest) { r.Name = name })
		id, err := volume.ParseID(vol.GetVolumeId())
		if err != nil || volume.CheckLV("f", id.LV) != nil {
			t.Errorf("%q: id %s, %v", name, vol.GetVolumeId(), err)
		}
		if other, taken := ids[vol.GetVolumeId()]; taken {
			t.Errorf("%q and %q are one volume", name, other)
		}
		ids[vol.GetVolumeId()] = name
		if again := make1(t, c, v, func(r *csi.CreateVolumeRequest) { r.Name = name }); again.GetVolumeId() != vol.GetVolumeId() {
			t.Errorf("%q: %s, then %s", name, vol.GetVolumeId(), again.GetVolumeId())
		}
		if got := v.lvs[len(v.lvs)-1].Name(); got != name {
			t.Errorf("the name of %q is kept as %q", name, got)
		}
	}
}

func TestCreateVolumeGroup(t *testing.T) {
	c, v := newController()
	in := func(vg string) func(*csi.CreateVolumeRequest) {
		return func(r *csi.CreateVolumeRequest) {
			r.Name = "in-" + vg
			if vg != "" {
				r.Parameters = map[string]string{"volumeGroup": vg}
			}
		}
	}
	if got := make1(t, c, v, in("data-1")).GetVolumeId(); got != "node-1/data-1/in-data-1" {
		t.Errorf("id is %s", got)
	}
	_, err := c.CreateVolume(bg, request1(in("rootvg")))
	wantField(t, err, "parameters[volumeGroup]")
	v.untouched(t)
	// case B43: a group that is missing here may be on another node.
	_, err = c.CreateVolume(bg, request1(in("data-2")))
	want(t, err, volume.ErrNoSpace)
	// The default does not move when its disk is missing.
	v.groups = v.groups[:1]
	_, err = c.CreateVolume(bg, request1(in("")))
	want(t, err, volume.ErrNoSpace)
	if len(v.lvs) != 1 {
		t.Errorf("%d logical volumes", len(v.lvs))
	}
}

func TestCreateVolumeOtherArguments(t *testing.T) {
	c, v := newController()
	make1(t, c, v)
	for name, change := range map[string]func(*csi.CreateVolumeRequest){
		"size":        func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 20 * mi },
		"limit":       func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 11 * mi },
		"file system": func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = caps(mount("xfs")) },
		"block":       func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = caps(block()) },
		"layout":      func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"type": "striped"} },
		"options":     func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"mkfsOptions": "-m 1"} },
	} {
		if _, err := c.CreateVolume(bg, request1(change)); !errors.Is(err, volume.ErrExists) {
			t.Errorf("%s: error is %v, want ErrExists", name, err)
		}
	}
	// case B51
	if vol := make1(t, c, v, func(r *csi.CreateVolumeRequest) { r.Name, r.VolumeCapabilities = "xfs", caps(mount("xfs")) }); vol.GetCapacityBytes() != 300*mi {
		t.Errorf("an XFS volume of 10 MiB has %d bytes", vol.GetCapacityBytes())
	}
}

// cases B21, B40
func TestBadCreateVolume(t *testing.T) {
	type change = func(*csi.CreateVolumeRequest)
	params := func(kv ...string) change {
		return func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{kv[0]: kv[1]} }
	}
	topology := func(q *csi.TopologyRequirement) change {
		return func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = q }
	}
	source := func(s *csi.VolumeContentSource) change {
		return func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = s }
	}
	bytes := func(required, limit int64) change {
		return func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
		}
	}
	capabilities := func(list ...*csi.VolumeCapability) change {
		return func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = list }
	}
	for name, tt := range map[string]struct {
		change change
		field  string // of an ErrInvalid
		err    error  // or another
	}{
		"no name":           {func(r *csi.CreateVolumeRequest) { r.Name = "" }, "name", nil},
		"name of 10 kB":     {func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("x", 10<<10) }, "name", nil},
		"name with NUL":     {func(r *csi.CreateVolumeRequest) { r.Name = "a\x00" }, "name", nil},
		"no capabilities":   {capabilities(), "volume_capabilities", nil},
		"nil capability":    {capabilities(nil), "volume_capability", nil},
		"empty capability":  {capabilities(&csi.VolumeCapability{}), "volume_capability.access_type", nil},
		"unknown mode":      {capabilities(&csi.VolumeCapability{AccessType: block().AccessType, AccessMode: &csi.VolumeCapability_AccessMode{Mode: 77}}), "volume_capability.access_mode", nil},
		"multi-node":        {capabilities(mount(""), multiNode()), "volume_capability.access_mode", nil},
		"block and mount":   {capabilities(mount(""), block()), "volume_capabilities", nil},
		"file system":       {capabilities(mount("ntfs")), "volume_capability.mount.fs_type", nil},
		"unknown parameter": {params("vg", "vg0"), "parameters[vg]", nil},
		"foreign group":     {params("volumeGroup", "rootvg"), "parameters[volumeGroup]", nil},
		"group glob":        {params("volumeGroup", "data-*"), "parameters[volumeGroup]", nil},
		"mkfs device":       {params("mkfsOptions", "-F /dev/sda"), "mkfsOptions", nil},
		"two file systems": {func(r *csi.CreateVolumeRequest) {
			params("csi.storage.k8s.io/fstype", "xfs")(r)
			capabilities(mount("ext4"))(r)
		}, "csi.storage.k8s.io/fstype", nil},
		"mkfs of a block":    {func(r *csi.CreateVolumeRequest) { params("mkfsOptions", "-m 0")(r); capabilities(block())(r) }, "parameters[mkfsOptions]", nil},
		"required negative":  {bytes(-1, 0), "capacity_range.required_bytes", nil},
		"limit negative":     {bytes(0, -1), "capacity_range.limit_bytes", nil},
		"limit < required":   {bytes(8*mi, 4*mi), "", volume.ErrOutOfRange},
		"empty topology":     {topology(&csi.TopologyRequirement{}), "accessibility_requirements", nil},
		"nil in topology":    {topology(&csi.TopologyRequirement{Requisite: []*csi.Topology{nil}}), "accessibility_requirements", nil},
		"other node":         {topology(&csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"topology.local-lvm.csi.internal/node": "node-2"}}}}), "", volume.ErrNoSpace},
		"empty source":       {source(&csi.VolumeContentSource{}), "volume_content_source", nil},
		"snapshot, nil":      {source(&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{}}), "volume_content_source.snapshot.snapshot_id", nil},
		"snapshot":           {source(&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}}}), "", volume.ErrNotFound},
		"clone":              {source(&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}}}), "", volume.ErrNotFound},
		"mutable parameters": {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"iops": "1"} }, "mutable_parameters[iops]", nil},
		"mutable parameters of another type": {func(r *csi.CreateVolumeRequest) {
			r.MutableParameters = map[string]string{"writeMostly": "/dev/sda"}
		}, "mutable_parameters[writeMostly]", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, v := newController()
			_, err := c.CreateVolume(bg, request1(tt.change))
			if tt.err != nil {
				want(t, err, tt.err)
			} else {
				wantField(t, err, tt.field)
			}
			v.untouched(t)
		})
	}
	c, v := newController()
	_, err := c.CreateVolume(bg, nil)
	wantField(t, err, "name")
	v.untouched(t)
	_, err = c.CreateVolume(bg, request1(bytes(math.MaxInt64, 0)))
	want(t, err, volume.ErrOutOfRange)
}

func TestErrorsPass(t *testing.T) {
	c, v := newController()
	vol := make1(t, c, v)
	for _, sentinel := range []error{volume.ErrPending, volume.ErrNoSpace, volume.ErrPrecondition, errors.New("lvm failed")} {
		v.err = sentinel
		_, err := c.CreateVolume(bg, request1())
		want(t, err, sentinel)
		_, err = c.DeleteVolume(bg, &csi.DeleteVolumeRequest{VolumeId: vol.GetVolumeId()})
		want(t, err, sentinel)
		_, err = c.ListVolumes(bg, nil)
		want(t, err, sentinel)
		_, err = c.ControllerGetVolume(bg, &csi.ControllerGetVolumeRequest{VolumeId: vol.GetVolumeId()})
		want(t, err, sentinel)
		_, err = c.GetCapacity(bg, nil)
		want(t, err, sentinel)
		_, err = c.ValidateVolumeCapabilities(bg, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: vol.GetVolumeId(), VolumeCapabilities: caps(mount(""))})
		want(t, err, sentinel)
	}
}

func TestDeleteVolume(t *testing.T) {
	c, v := newController()
	id := make1(t, c, v).GetVolumeId()
	for range 2 { // case B28
		if _, err := c.DeleteVolume(bg, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Fatal(err)
		}
	}
	if len(v.lvs) != 0 || !slices.Equal(v.calls, []string{"delete vg0/pvc-1", "delete vg0/pvc-1"}) {
		t.Errorf("%d logical volumes left, calls %q", len(v.lvs), v.calls)
	}
}

// case B21
func TestDeleteVolumeIDs(t *testing.T) {
	inline := "csi-" + strings.Repeat("0123456789abcdef", 4)
	for name, tt := range map[string]struct {
		id  string
		err error // nil: OK, the volume does not exist
	}{
		"of csi-sanity":      {"reallyfakevolumeid", nil},
		"inline":             {inline, nil},
		"too many parts":     {"a/b/c/d", nil},
		"option":             {"node-1/vg0/--yes", nil},
		"path":               {"node-1/../lv", nil},
		"glob":               {"node-1/vg*/lv", nil},
		"empty":              {"", volume.ErrInvalid},
		"129 bytes":          {strings.Repeat("x", 129), volume.ErrInvalid},
		"10 kB":              {strings.Repeat("x", 10<<10), volume.ErrInvalid},
		"control characters": {"node-1/vg0/a\n", volume.ErrInvalid},
		"not UTF-8":          {"node-1/vg0/\xff", volume.ErrInvalid},
		"other node":         {"node-2/vg0/pvc-1", volume.ErrPrecondition},
		"foreign group":      {"node-1/rootvg/root", volume.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			c, v := newController()
			v.lvs = []volume.LV{{Ref: volume.Ref{VG: "vg0", LV: inline}, Tags: volume.Tags{Kind: volume.Inline}}}
			_, err := c.DeleteVolume(bg, &csi.DeleteVolumeRequest{VolumeId: tt.id})
			want(t, err, tt.err)
			v.untouched(t)
			// Who must be there is not there, and another node's is not called missing.
			missing := tt.err
			if missing == nil {
				missing = volume.ErrNotFound
			}
			_, err = c.ControllerGetVolume(bg, &csi.ControllerGetVolumeRequest{VolumeId: tt.id})
			want(t, err, missing)
			_, err = c.ValidateVolumeCapabilities(bg, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: tt.id, VolumeCapabilities: caps(mount(""))})
			want(t, err, missing)
			v.untouched(t)
		})
	}
	c, v := newController()
	_, err := c.DeleteVolume(bg, nil)
	wantField(t, err, "volume_id")
	v.untouched(t)
}
