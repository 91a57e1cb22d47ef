package contract

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Create, delete, list, capacity; names, sizes, bad input; calls at the same time; how many programs run.
var volumeTests = []driverTest{
	{"Types", volumeTypes},
	{"Names", volumeNames},
	{"Sizes", volumeSizes},
	{"NoSpace", noSpace},
	{"SlowCreate", slowCreate},
	{"DeleteInUse", deleteInUse},
	{"GroupUnreadable", groupUnreadable},
	{"List", listVolumes},
	{"Topology", topology},
	{"BadInput", badInput},
	{"AllAtOnce", allAtOnce},
	{"Commands", commands},
	{"StopFinishesCalls", stopFinishes},
}

func volumeTypes(t *testing.T, h Harness) {
	c, world := started(t, h)
	for i, params := range []map[string]string{
		{"type": "linear"}, {"type": "striped", "stripes": "2", "stripeSize": "64Ki"}, {"type": "raid1"}, {"type": "raid5"},
		{"type": "raid6"}, {"type": "raid10"}, {"type": "thin", "thinPool": h.Pool()}, {"volumeGroup": h.VG()},
	} {
		v := c.create(fmt.Sprintf("type-%d", i), 48<<20, mountCapability(""), params)
		f, ok := h.LV(t, v.ref())
		want := params["type"]
		if want == "" {
			want = "linear"
		}
		if !ok || !strings.HasPrefix(f.SegType, want) || f.SizeBytes != v.bytes || v.bytes < 48<<20 {
			t.Errorf("%v: the machine has %+v, the answer was %d bytes", params, f, v.bytes)
		}
		target := c.Target(t, "type")
		c.ok(v.stage())
		c.ok(v.publish(target))
		c.ok(h.WriteFile(target+"/f", "x"))
		c.ok(v.unpublish(target))
		v.end()
	}
	wantWorld(t, c, world, "after all types")
}

// case B30
func volumeNames(t *testing.T, h Harness) {
	c, world := started(t, h)
	ids := map[string]string{}
	var volumes []pv
	for _, name := range []string{
		"pvc-3f0b8a4e-7c1d-4f5a-9b1e-2d6c8e0f1a2b", "snapshot-1", "pvmove0", "a_tdata", "x_rimage_0", "-rf", "--yes", ".", "..", "a/b", "a b", "a_b", "Ä",
		strings.Repeat("n", 128), strings.Repeat("n", 127) + "m", "lvol0", "a--b", "a-", "-a", "A", "a", inlineID("not-inline"), "v-" + strings.Repeat("0", 32),
	} {
		v := c.create(name, 4<<20, mountCapability(""), nil)
		if other, taken := ids[v.id]; taken {
			t.Errorf("%q and %q have the id %s", name, other, v.id)
		}
		if again := c.create(name, 4<<20, mountCapability(""), nil); again.id != v.id {
			t.Errorf("%q: %s, and the second time %s", name, v.id, again.id)
		}
		ids[v.id] = name
		volumes = append(volumes, v)
	}
	for _, v := range volumes {
		c.ok(v.delete())
	}
	wantWorld(t, c, world, "after all names")
}

// case B39, case B40, case B51
func volumeSizes(t *testing.T, h Harness) {
	c, world := started(t, h)
	const mi = 1 << 20
	for _, tt := range []struct {
		required, limit int64
		want            int64 // 0: by code
		code            codes.Code
	}{
		{1, 0, 4 * mi, 0}, {203 * mi, 0, 204 * mi, 0}, {221920847, 0, 212 * mi, 0}, {0, 8 * mi, 8 * mi, 0}, {5 * mi, 8 * mi, 8 * mi, 0},
		{4*mi + 1, 4*mi + 1, 0, codes.OutOfRange}, {5 * mi, 6 * mi, 0, codes.OutOfRange}, {0, 3 * mi, 0, codes.OutOfRange}, {8 * mi, 4 * mi, 0, codes.OutOfRange},
		{-1, 0, 0, codes.InvalidArgument}, {0, -1, 0, codes.InvalidArgument}, {1<<63 - 1, 0, 0, codes.OutOfRange},
	} {
		req := c.createRequest("size", tt.required, blockCapability(), nil)
		req.CapacityRange.LimitBytes = tt.limit
		r, err := h.Controller().CreateVolume(t.Context(), req)
		if tt.code != codes.OK {
			if status.Code(err) != tt.code {
				t.Errorf("required %d, limit %d: got %v, want %s", tt.required, tt.limit, err, tt.code)
			}
			wantWorld(t, c, world, "after a size that is refused")
			continue
		}
		c.ok(err)
		if got := r.GetVolume().GetCapacityBytes(); got != tt.want {
			t.Errorf("required %d, limit %d: got %d bytes, want %d", tt.required, tt.limit, got, tt.want)
		}
		c.ok(c.delete(r.GetVolume().GetVolumeId()))
	}
	wantWorld(t, c, world, "after all sizes")
}

// case B43
func noSpace(t *testing.T, h Harness) {
	c, world := started(t, h)
	free := c.capacity(nil).GetAvailableCapacity()
	first := c.create("first", free*3/4, blockCapability(), nil)
	filled := c.World(t)
	_, err := h.Controller().CreateVolume(t.Context(), c.createRequest("second", free/2, blockCapability(), nil))
	c.code(err, codes.ResourceExhausted)
	e := c.inline("too-big")
	e.attributes[volume.KeySize] = fmt.Sprint(free / 2)
	c.code(e.publish(), codes.ResourceExhausted)
	wantWorld(t, c, filled, "after requests for which there is no room")
	c.ok(e.unpublish()) // kubelet takes it for "may be going on"
	c.ok(first.delete())

	thin := map[string]string{"type": "thin", "thinPool": h.Pool()}
	pool := c.capacity(thin).GetAvailableCapacity()
	half := c.create("thin", pool/2, blockCapability(), thin)
	_, err = h.Controller().CreateVolume(t.Context(), c.createRequest("thin-2", pool*3/4, blockCapability(), thin))
	c.code(err, codes.ResourceExhausted, "overcommit")
	c.ok(half.delete())

	var wg sync.WaitGroup // two for the last extents
	answers := make([]error, 2)
	for i := range answers {
		wg.Go(func() {
			_, answers[i] = h.Controller().CreateVolume(t.Context(), c.createRequest(fmt.Sprintf("race-%d", i), free*3/4, blockCapability(), nil))
		})
	}
	wg.Wait()
	won := slices.IndexFunc(answers, func(err error) bool { return err == nil })
	if won < 0 || status.Code(answers[1-won]) != codes.ResourceExhausted {
		t.Fatalf("two creates for the last extents: %v; want one OK and one ResourceExhausted", answers)
	}
	c.ok(c.create(fmt.Sprintf("race-%d", won), free*3/4, blockCapability(), nil).delete())
	wantWorld(t, c, world, "after all requests")
}

func (c caller) capacity(params map[string]string) *csi.GetCapacityResponse {
	c.t.Helper()
	r, err := c.Controller().GetCapacity(c.t.Context(), &csi.GetCapacityRequest{Parameters: params})
	c.ok(err)
	return r
}

// case B24
func slowCreate(t *testing.T, h Harness) {
	c, world := started(t, h)
	entered, release := h.Block(t, "lvcreate")
	req := c.createRequest("slow", 64<<20, mountCapability(""), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := h.Controller().CreateVolume(ctx, req)
	c.code(err, codes.DeadlineExceeded)
	<-entered
	_, err = h.Controller().CreateVolume(t.Context(), req)
	c.code(err, codes.Aborted, "CreateVolume")
	release()
	var id string
	c.ok(c.repeat(func() error {
		r, err := h.Controller().CreateVolume(t.Context(), req)
		id = r.GetVolume().GetVolumeId()
		return err
	}))
	list, err := h.Controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	c.ok(err)
	if len(list.GetEntries()) != 1 || list.GetEntries()[0].GetVolume().GetVolumeId() != id {
		t.Errorf("listed is %v, want %s alone", list.GetEntries(), id)
	}
	c.ok(c.delete(id))
	wantWorld(t, c, world, "after the slow create")
}

// case B8, case B28
func deleteInUse(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("used", 64<<20, mountCapability(""), nil)
	release := h.HoldLV(t, v.ref())
	c.code(v.delete(), codes.FailedPrecondition, v.ref().String())
	release()
	c.ok(v.stage())
	c.code(v.delete(), codes.FailedPrecondition, v.staging)
	c.ok(v.unstage())
	h.DestroyLV(t, v.ref())
	for range 2 {
		c.ok(v.delete())
	}
	for id, want := range map[string]codes.Code{
		"unknown": codes.OK, h.NodeName() + "/" + h.VG() + "/unknown": codes.OK, inlineID("none"): codes.OK,
		"other-node/" + h.VG() + "/x": codes.FailedPrecondition, h.NodeName() + "/other-vg/x": codes.InvalidArgument,
		"": codes.InvalidArgument, strings.Repeat("x", 10<<10): codes.InvalidArgument,
	} {
		if err := c.delete(id); status.Code(err) != want {
			t.Errorf("delete of %.40q: %v, want %s", id, err, want)
		}
	}
	e := c.inline("not-deletable")
	c.ok(e.publish())
	for _, id := range []string{e.id, h.NodeName() + "/" + e.ref().String()} {
		if err := c.delete(id); status.Code(err) == codes.OK && !c.there(e.ref()) {
			t.Errorf("DeleteVolume of %s removed an inline volume", id)
		}
	}
	c.mounted(e.target, 1)
	c.ok(e.unpublish())
	wantWorld(t, c, world, "after deletes")
}

// case B28; trap 1, trap 2: a question that failed is not an answer
func groupUnreadable(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("unread", 64<<20, mountCapability(""), nil)
	e := c.inline("unread")
	c.ok(e.publish())
	before := c.World(t)
	mend := h.BreakVG(t)
	for what, err := range map[string]error{
		"delete": v.delete(), "unpublish of an unknown inline volume": c.unpublish(inlineID("who"), c.Target(t, "who")), "stage": v.stage(),
	} {
		if err == nil || status.Code(err) == codes.NotFound {
			t.Errorf("%s with an unreadable volume group: %v", what, err)
		}
	}
	_, err := h.Controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err == nil {
		t.Error("a list of an unreadable volume group")
	}
	mend()
	wantWorld(t, c, before, "after the group is readable again")
	c.ok(e.unpublish())
	c.ok(v.delete())
	wantWorld(t, c, world, "after all has gone")
}

func listVolumes(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("unlisted")
	c.ok(e.publish())
	byID := map[string]pv{}
	add := func(i int) {
		v := c.create(fmt.Sprintf("list-%d", i), 4<<20, blockCapability(), nil)
		byID[v.id] = v
	}
	for i := range 5 {
		add(i)
	}
	var got []string
	token := ""
	for page := 0; ; page++ {
		r, err := h.Controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		c.ok(err)
		for _, entry := range r.GetEntries() {
			id := entry.GetVolume().GetVolumeId()
			if entry.GetVolume().GetCapacityBytes() != byID[id].bytes {
				t.Errorf("listed %v, created with %d bytes", entry, byID[id].bytes)
			}
			got = append(got, id)
		}
		if token = r.GetNextToken(); token == "" {
			break
		}
		if page == 0 { // the volume that the token is about goes, and another comes; the token stays good
			c.ok(c.delete(got[len(got)-1]))
			add(5)
		}
	}
	if want := slices.Sorted(maps.Keys(byID)); !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	_, err := h.Controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "no token"})
	c.code(err, codes.Aborted, "starting_token")
	_, err = h.Controller().ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: got[0]})
	c.ok(err)
	for _, v := range byID {
		c.ok(v.delete())
	}
	_, err = h.Controller().ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: got[0]})
	c.code(err, codes.NotFound)
	c.ok(e.unpublish())
	wantWorld(t, c, world, "after lists")
}

func topology(t *testing.T, h Harness) {
	c, world := started(t, h)
	info, err := h.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	c.ok(err)
	here := info.GetAccessibleTopology()
	elsewhere := &csi.Topology{Segments: map[string]string{}}
	for k := range here.GetSegments() {
		elsewhere.Segments[k] = "another-node"
	}
	req := c.createRequest("topology", 64<<20, blockCapability(), nil)
	req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{elsewhere}, Preferred: []*csi.Topology{elsewhere}}
	_, err = h.Controller().CreateVolume(t.Context(), req)
	c.code(err, codes.ResourceExhausted)
	req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{elsewhere, here}, Preferred: []*csi.Topology{here}}
	r, err := h.Controller().CreateVolume(t.Context(), req)
	c.ok(err)
	if got := r.GetVolume().GetAccessibleTopology(); len(got) != 1 || !maps.Equal(got[0].GetSegments(), here.GetSegments()) {
		t.Errorf("accessible from %v, want %v", got, here)
	}
	c.ok(c.delete(r.GetVolume().GetVolumeId()))
	for top, some := range map[*csi.Topology]bool{here: true, elsewhere: false, nil: true} {
		r, err := h.Controller().GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: top})
		c.ok(err)
		if (r.GetAvailableCapacity() > 0) != some {
			t.Errorf("capacity at %v: %v", top, r)
		}
	}
	wantWorld(t, c, world, "after topology")
}

// case B21; trap 17: nothing is changed, no program is run, and the driver lives on
func badInput(t *testing.T, h Harness) {
	c, _ := started(t, h)
	long := strings.Repeat("x", 10<<10)
	good := h.NodeName() + "/" + h.VG() + "/some"
	staging, target := c.Staging(t, "bad"), c.Target(t, "bad")
	world, programs := c.World(t), h.Commands(t)
	ctx := t.Context()
	inlineWith := func(key, value string) *csi.NodePublishVolumeRequest {
		a := map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "64Mi", key: value}
		return &csi.NodePublishVolumeRequest{VolumeId: inlineID("bad"), TargetPath: target, VolumeContext: a, VolumeCapability: mountCapability("")}
	}
	create := func(change func(r *csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
		r := c.createRequest("bad", 64<<20, mountCapability(""), nil)
		change(r)
		return r
	}
	params := func(kv ...string) *csi.CreateVolumeRequest {
		return create(func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{}
			for i := 0; i < len(kv); i += 2 {
				r.Parameters[kv[i]] = kv[i+1]
			}
		})
	}
	stage := func(id, path string, cap *csi.VolumeCapability, context map[string]string) error {
		_, err := h.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path, VolumeCapability: cap, VolumeContext: context})
		return err
	}
	publish := func(r *csi.NodePublishVolumeRequest) error { _, err := h.Node().NodePublishVolume(ctx, r); return err }
	made := func(r *csi.CreateVolumeRequest) error { _, err := h.Controller().CreateVolume(ctx, r); return err }
	expand := func(r *csi.ControllerExpandVolumeRequest) error {
		_, err := h.Controller().ControllerExpandVolume(ctx, r)
		return err
	}
	nodeExpand := func(r *csi.NodeExpandVolumeRequest) error { _, err := h.Node().NodeExpandVolume(ctx, r); return err }
	for field, err := range map[string]error{
		"name":                     made(&csi.CreateVolumeRequest{}),
		"name ":                    made(create(func(r *csi.CreateVolumeRequest) { r.Name = long })),
		"name  ":                   made(create(func(r *csi.CreateVolumeRequest) { r.Name = "a\x01b" })),
		"volume_capabilities":      made(create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil })),
		"volume_capability":        made(create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{nil} })),
		"access_type":              made(create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{{}} })),
		"access_mode":              made(create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode.Mode = 77 })),
		"fs_type":                  made(create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = mountCapability("ntfs") })),
		"mount_flags":              made(create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = mountCapability("", "bind") })),
		"required_bytes":           made(create(func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = -1 })),
		"volume_content_source":    made(create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} })),
		"mutable_parameters":       made(create(func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} })),
		"parameters[colour]":       made(params("colour", "red")),
		"parameters[type]":         made(params("type", "raid7")),
		"parameters[stripes]":      made(params("type", "striped", "stripes", "many")),
		"parameters[mirrors]":      made(params("type", "linear", "mirrors", "1")),
		"parameters[thinPool]":     made(params("type", "thin")),
		"parameters[thinPool] ":    made(params("type", "thin", "thinPool", "--yes")),
		"parameters[volumeGroup]":  made(params("volumeGroup", "not-ours")),
		"parameters[volumeGroup] ": made(params("volumeGroup", "../../etc")),
		"mkfsOptions":              made(params("mkfsOptions", "/dev/sda")),
		"volume_id":                c.delete(""),
		"volume_id ":               c.delete(long),
		"volume_id  ":              c.unpublish("", target),
		"target_path":              c.unpublish(good, ""),
		"target_path ":             c.unpublish(good, "relative/path"),
		"target_path  ":            c.unpublish(good, "/var/lib/../../etc"),
		"target_path   ":           c.unpublish(good, "/"),
		"target_path    ":          c.unpublish(good, "/"+long),
		"staging_target_path":      stage(good, "", mountCapability(""), nil),
		"staging_target_path ":     stage(good, "relative", mountCapability(""), nil),
		"volume_capability ":       stage(good, staging, nil, nil),
		"volume_id   ":             stage("", staging, mountCapability(""), nil),
		"volume_context[colour]":   stage(good, staging, mountCapability(""), map[string]string{"colour": "red"}),
		"volume_capability  ":      publish(&csi.NodePublishVolumeRequest{VolumeId: good, TargetPath: target}),
		"ephemeral":                publish(inlineWith(volume.KeyEphemeral, "perhaps")),
		"volume_context[size]":     publish(inlineWith(volume.KeySize, "")),
		"volume_context[size] ":    publish(inlineWith(volume.KeySize, "-1Gi")),
		"volume_context[size]  ":   publish(inlineWith(volume.KeySize, "99999999999Ei")),
		"volume_context[colour] ":  publish(inlineWith("colour", "red")),
		"volume_context[type]":     publish(inlineWith("type", "floppy")),
		"capacity_range":           expand(&csi.ControllerExpandVolumeRequest{VolumeId: good}),
		"volume_id    ":            expand(&csi.ControllerExpandVolumeRequest{CapacityRange: capacityRange(1, 0)}),
		"capacity_range ":          expand(&csi.ControllerExpandVolumeRequest{VolumeId: good, CapacityRange: capacityRange(-1, 0)}),
		"access_type ":             expand(&csi.ControllerExpandVolumeRequest{VolumeId: good, CapacityRange: capacityRange(1, 0), VolumeCapability: &csi.VolumeCapability{}}),
		"volume_id     ":           nodeExpand(&csi.NodeExpandVolumeRequest{VolumePath: target}),
		"volume_path":              nodeExpand(&csi.NodeExpandVolumeRequest{VolumeId: good}),
		"staging_target_path  ":    nodeExpand(&csi.NodeExpandVolumeRequest{VolumeId: good, VolumePath: target, StagingTargetPath: "relative"}),
		"capacity_range  ":         nodeExpand(&csi.NodeExpandVolumeRequest{VolumeId: good, VolumePath: target, CapacityRange: capacityRange(0, -1)}),
		"access_type  ":            nodeExpand(&csi.NodeExpandVolumeRequest{VolumeId: good, VolumePath: target, VolumeCapability: &csi.VolumeCapability{}}),
		"volume_mount_group":       stage(good, staging, groupCapability("staff"), nil),
	} {
		if field = strings.TrimRight(field, " "); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v, want InvalidArgument that names it", field, err)
		}
		if len(status.Convert(err).Message()) > 2000 {
			t.Errorf("%s: a message of %d bytes", field, len(status.Convert(err).Message()))
		}
	}
	for what, err := range map[string]error{ // not here, whatever it is
		"stage": stage(good, staging, mountCapability(""), nil), "stage of another node": stage("other/"+h.VG()+"/x", staging, mountCapability(""), nil),
		"stage of no id of ours": stage("something", staging, mountCapability(""), nil),
	} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("%s: got %v, want NotFound", what, err)
		}
	}
	wantWorld(t, c, world, "after bad input")
	for name, n := range h.Commands(t) {
		if n != programs[name] && strings.HasPrefix(name, "lv") && name != "lvs" {
			t.Errorf("bad input ran %s", name)
		}
	}
	e := c.inline("good-again")
	c.ok(e.publish())
	c.ok(e.unpublish())
}

func groupCapability(group string) *csi.VolumeCapability {
	cap := mountCapability("")
	cap.GetMount().VolumeMountGroup = group
	return cap
}

// case B27; each answer is OK or Aborted, and the end is that of some order
func allAtOnce(t *testing.T, h Harness) {
	c, world := started(t, h)
	v, e := c.create("storm", 64<<20, mountCapability(""), nil), c.inline("storm")
	one, two := c.Target(t, "storm-1"), c.Target(t, "storm-2")
	atOnce := func(what string, allowed []codes.Code, calls ...func() error) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range 4 * len(calls) {
			wg.Go(func() {
				if err := calls[i%len(calls)](); err != nil && !slices.Contains(allowed, status.Code(err)) {
					t.Errorf("%s at once: %v", what, err)
				}
			})
		}
		wg.Wait()
	}
	aborted, unstaged := []codes.Code{codes.Aborted}, []codes.Code{codes.Aborted, codes.FailedPrecondition}
	before := h.Commands(t)["mkfs.ext4"]
	atOnce("stage", aborted, v.stage)
	c.ok(c.repeat(v.stage))
	if n := h.Commands(t)["mkfs.ext4"] - before; n != 1 {
		t.Errorf("mkfs ran %d times", n)
	}
	atOnce("publish", aborted, func() error { return v.publish(one) }, func() error { return v.publish(two) })
	atOnce("publish and unpublish", aborted, func() error { return v.publish(one) }, func() error { return v.unpublish(one) })
	c.ok(c.repeat(func() error { return v.publish(one) }))
	c.mounted(one, 1)
	atOnce("expand", aborted, func() error { _, err := c.expandTo(v.id, capacityRange(80<<20, 0), nil); return err },
		func() error { _, err := v.nodeExpandTo(one, nil, nil); return err })
	c.ok(c.repeat(func() error { _, err := c.expandTo(v.id, capacityRange(80<<20, 0), nil); return err }))
	for _, target := range []string{one, two} {
		c.ok(c.repeat(func() error { return v.unpublish(target) }))
	}
	atOnce("stage and unstage", unstaged, v.stage, v.unstage)
	c.ok(c.repeat(v.unstage))
	atOnce("inline publish and unpublish", aborted, e.publish, e.unpublish)
	c.ok(c.repeat(e.unpublish))
	c.ok(c.repeat(v.delete))
	req := c.createRequest("storm", 64<<20, mountCapability(""), nil)
	atOnce("create and delete", aborted, func() error { _, err := h.Controller().CreateVolume(t.Context(), req); return err }, v.delete)
	c.ok(c.repeat(v.delete))
	wantWorld(t, c, world, "after the storm")
}

// The LVM commands of each call in the normal case.
func commands(t *testing.T, h Harness) {
	c, world := started(t, h)
	count := func(what string, want int, call func() error) {
		t.Helper()
		before := h.Commands(t)
		c.ok(call())
		n := 0
		var ran []string
		for name, now := range h.Commands(t) {
			if isLVM(name) && now != before[name] {
				n += now - before[name]
				ran = append(ran, name)
			}
		}
		if n != want {
			t.Errorf("%s ran %d LVM commands (%v), want %d", what, n, ran, want)
		}
	}
	// The first call of a driver fills its inventory.
	c.ok(c.create("warm", 4<<20, blockCapability(), nil).delete())
	for _, cap := range []*csi.VolumeCapability{mountCapability(""), blockCapability()} {
		var v pv
		target := c.Target(t, "commands")
		count("CreateVolume", 1, func() error { v = c.create("commands", 64<<20, cap, nil); return nil })
		count("CreateVolume again", 0, func() error { c.create("commands", 64<<20, cap, nil); return nil })
		count("NodeStageVolume", 0, v.stage)
		count("NodePublishVolume", 0, func() error { return v.publish(target) })
		count("ControllerExpandVolume", 1, func() error { _, err := c.expandTo(v.id, capacityRange(80<<20, 0), nil); return err })
		count("ControllerExpandVolume again", 0, func() error { _, err := c.expandTo(v.id, capacityRange(80<<20, 0), nil); return err })
		count("NodeExpandVolume", 0, func() error { _, err := v.nodeExpandTo(target, capacityRange(80<<20, 0), nil); return err })
		count("NodeGetVolumeStats", 0, func() error {
			_, err := h.Node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: target})
			return err
		})
		count("all that tells of health", 0, func() error { v.health(target); return nil })
		count("NodeUnpublishVolume", 0, func() error { return v.unpublish(target) })
		count("NodeUnstageVolume", 0, v.unstage)
		count("DeleteVolume", 1, v.delete)
	}
	e := c.inline("commands")
	count("inline publish", 1, e.publish)
	count("inline unpublish", 1, e.unpublish)
	c.capacity(nil)
	count("GetCapacity", 0, func() error { c.capacity(nil); return nil })
	count("ListVolumes", 0, func() error {
		_, err := h.Controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		return err
	})
	thin := c.thinVolume("commands", 4<<20)
	first, second := thin.cut("first"), thin.cut("second")
	count("GetMetadataAllocated", 0, func() error { return c.allocated(second.id, second.bytes, 0, 0).err })
	count("GetMetadataDelta", 0, func() error { return c.delta(first.id, second.id, second.bytes, 0, 0).err })
	var s *csi.Snapshot
	count("CreateSnapshot", 1, func() error { s = c.snapshot("third", thin.id); return nil })
	count("CreateSnapshot again, and all that tells of it", 0, func() error {
		c.snapshot("third", thin.id)
		_, err := h.Controller().GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: s.GetSnapshotId()})
		c.listSnapshots(&csi.ListSnapshotsRequest{})
		return err
	})
	var restored pv
	count("CreateVolume of a thin snapshot", 1, func() error {
		restored = c.restore("restored", 0, blockCapability(), layout(c, "thin"), ofSnapshot(s.GetSnapshotId()))
		return nil
	})
	count("DeleteSnapshot", 1, func() error { return c.deleteSnapshot(s.GetSnapshotId()) })
	var g *csi.VolumeGroupSnapshot
	count("CreateVolumeGroupSnapshot of two thin volumes", 4, func() error { g = c.group("group", thin.id, restored.id); return nil })
	count("DeleteVolumeGroupSnapshot", 2, func() error { return c.deleteGroup(g.GetGroupSnapshotId()) })
	c.ok(restored.delete())
	c.ok(c.deleteSnapshot(first.id))
	c.ok(c.deleteSnapshot(second.id))
	c.ok(thin.delete())
	h.Stop(t)
	h.Attach(true)
	h.Start(t)
	v := c.create("commands", 64<<20, mountCapability(""), nil)
	count("ControllerPublishVolume", 1, v.attach)
	count("ControllerPublishVolume again", 0, v.attach)
	count("NodeStageVolume of an attached volume", 0, v.stage)
	count("NodeUnstageVolume of an attached volume", 0, v.unstage)
	count("ControllerUnpublishVolume", 1, func() error { return v.detach("") })
	count("ControllerUnpublishVolume again", 0, func() error { return v.detach("") })
	count("DeleteVolume of a detached volume", 1, v.delete)
	count("Probe", 0, func() error { _, err := h.Identity().Probe(t.Context(), &csi.ProbeRequest{}); return err })
	wantWorld(t, c, world, "after counting")
}

// isLVM reports whether a program is one of LVM's.
func isLVM(name string) bool {
	return strings.HasPrefix(name, "lv") || strings.HasPrefix(name, "vg") || strings.HasPrefix(name, "pv") || name == "fullreport"
}

func stopFinishes(t *testing.T, h Harness) {
	c, world := started(t, h)
	entered, release := h.Block(t, "lvcreate")
	answer := make(chan error, 1)
	go func() {
		_, err := h.Controller().CreateVolume(t.Context(), c.createRequest("stopped", 64<<20, mountCapability(""), nil))
		answer <- err
	}()
	<-entered
	stopped := make(chan struct{})
	go func() { defer close(stopped); h.Stop(t) }()
	release()
	c.ok(<-answer)
	<-stopped
	h.Start(t)
	v := c.create("stopped", 64<<20, mountCapability(""), nil)
	c.ok(v.delete())
	wantWorld(t, c, world, "after a graceful stop")
}
