package contract

import (
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Volumes that become larger, in use and not.
var expandTests = []driverTest{
	{"Expand", expandFileSystems},
	{"ExpandBlock", expandBlock},
	{"ExpandTypes", expandTypes},
	{"ExpandSizes", expandSizes},
	{"ExpandNoSpace", expandNoSpace},
	{"ExpandOrigin", expandOrigin},
	{"ExpandWrongPath", expandWrongPath},
	{"ExpandReadOnly", expandReadOnly},
	{"ExpandOntoAnOldSignature", expandOntoSignature},
	{"ExpandOnNode", expandOnNode},
}

const mib = 1 << 20

func capacityRange(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

func (c caller) expandTo(id string, r *csi.CapacityRange, cap *csi.VolumeCapability) (*csi.ControllerExpandVolumeResponse, error) {
	return c.Controller().ControllerExpandVolume(c.t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: r, VolumeCapability: cap})
}

func (v pv) nodeExpandTo(path string, r *csi.CapacityRange, cap *csi.VolumeCapability) (*csi.NodeExpandVolumeResponse, error) {
	return v.Node().NodeExpandVolume(v.t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: path, CapacityRange: r, StagingTargetPath: v.staging, VolumeCapability: cap,
	})
}

// expand makes the logical volume larger, and checks the answer against the machine. The CO says the capability or not.
func (v *pv) expand(required, want int64) {
	v.t.Helper()
	for _, cap := range []*csi.VolumeCapability{v.capability, nil} { // case B39: the second time nothing grows
		r, err := v.expandTo(v.id, capacityRange(required, 0), cap)
		v.ok(err)
		if f, _ := v.LV(v.t, v.ref()); r.GetCapacityBytes() != want || f.SizeBytes != want || r.GetNodeExpansionRequired() != (v.capability.GetBlock() == nil) {
			v.t.Fatalf("required %d: answered %v, the machine has %d bytes, want %d", required, r, f.SizeBytes, want)
		}
	}
	v.bytes = want
}

// nodeExpand grows what is visible at the path.
func (v pv) nodeExpand(path string) {
	v.t.Helper()
	for _, cap := range []*csi.VolumeCapability{v.capability, nil} {
		r, err := v.nodeExpandTo(path, capacityRange(v.bytes-1, 0), cap)
		v.ok(err)
		if r.GetCapacityBytes() != v.bytes {
			v.t.Fatalf("answered %v, want %d bytes", r, v.bytes)
		}
	}
}

// total is how large the volume is to whoever uses it at the path.
func (v pv) total(path string) int64 {
	v.t.Helper()
	r, err := v.Node().NodeGetVolumeStats(v.t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: path})
	v.ok(err)
	return r.GetUsage()[0].GetTotal()
}

// full checks that the file system is as large as the volume, but for its own tables and its journal, which small ones feel.
func (v pv) full(path string) {
	v.t.Helper()
	if total := v.total(path); total < v.bytes*78/100 || total > v.bytes {
		v.t.Errorf("the file system at %s has %d bytes, the volume %d", path, total, v.bytes)
	}
}

// case B39, case B46: in use, between two drivers, while it is staged only, and while it is nowhere.
func expandFileSystems(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, fs := range []struct {
		name  string
		bytes int64
	}{{"ext4", 48 * mib}, {"xfs", 304 * mib}, {"btrfs", 256 * mib}} {
		v := c.create("grows-"+fs.name, fs.bytes, mountCapability(fs.name), nil)
		target := c.Target(t, "grows-"+fs.name)
		c.ok(v.stage())
		c.ok(v.publish(target))
		c.ok(h.WriteFile(target+"/f", "kept"))

		v.expand(v.bytes+39*mib, v.bytes+40*mib)
		v.nodeExpand(target)
		v.full(target)
		v.expand(v.bytes+8*mib, v.bytes+8*mib)
		if fs.name == "ext4" { // killed between the two: whoever repeats the second has it done
			h.Kill(t)
			h.Start(t)
		}
		v.nodeExpand(v.staging)
		v.full(target)
		v.expand(v.bytes+8*mib, v.bytes+8*mib)
		c.ok(v.stage()) // a repeated stage grows it as well
		v.full(target)

		c.ok(v.unpublish(target))
		c.ok(v.unstage())
		v.expand(v.bytes+40*mib, v.bytes+40*mib)
		_, err := v.nodeExpandTo(v.staging, capacityRange(v.bytes, 0), nil)
		c.code(err, codes.NotFound, v.staging)
		h.DeactivateLV(t, v.ref())
		v.expand(v.bytes+8*mib, v.bytes+8*mib)
		c.ok(v.stage())
		v.full(v.staging)
		if text, err := h.ReadFile(v.staging + "/f"); text != "kept" || err != nil {
			t.Errorf("%s: the volume holds %q, %v", fs.name, text, err)
		}
		before := h.Commands(t)
		v.nodeExpand(v.staging)
		if after := h.Commands(t); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: programs ran where nothing was to be done: %v, before %v", fs.name, after, before)
		}
		v.end()
	}
	wantWorld(t, c, world, "after expansions")
}

// case B55: the device grows by itself, for whoever has it open; what is on it is the user's, be it a file system.
func expandBlock(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("block", 8*mib, blockCapability(), nil)
	target := c.Target(t, "block")
	c.ok(v.stage())
	c.ok(v.publish(target))
	h.Scribble(t, v.ref(), "ext4")
	before, err := h.ReadFile(target)
	c.ok(err)
	programs := h.Commands(t)
	_, release := h.Hold(t, HoldDevice, target)
	v.expand(9*mib, 12*mib)
	at := h.Mounts(t, target)
	node := fmt.Sprintf("/dev/dm-%d", at[len(at)-1].Minor)
	for _, path := range []string{target, v.staging, v.staging + "/csi-local-lvm-device", node} {
		v.nodeExpand(path)
	}
	if total := v.total(target); total != v.bytes {
		t.Errorf("at the target there are %d bytes, of %d", total, v.bytes)
	}
	release()
	after, err := h.ReadFile(target)
	c.ok(err)
	if len(after) < len(before) || after[:len(before)] != before {
		t.Error("what was on the device has changed")
	}
	for name, n := range h.Commands(t) {
		if n != programs[name] && !isLVM(name) {
			t.Errorf("%s was run", name)
		}
	}
	_, err = v.nodeExpandTo(c.Target(t, "unknown"), capacityRange(v.bytes, 0), nil)
	c.code(err, codes.NotFound)
	_, err = v.nodeExpandTo("", capacityRange(v.bytes, 0), nil)
	c.code(err, codes.InvalidArgument, "volume_path")
	_, err = v.nodeExpandTo(target, capacityRange(v.bytes, 0), mountCapability(""))
	c.code(err, codes.InvalidArgument, "access_type")
	_, err = c.expandTo(v.id, capacityRange(v.bytes, 0), mountCapability(""))
	c.code(err, codes.InvalidArgument, "access_type")
	c.ok(v.unpublish(target))
	v.end()
	wantWorld(t, c, world, "after a block volume")
}

func expandTypes(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, params := range []map[string]string{
		{"type": "thin", "thinPool": h.Pool()}, {"type": "raid1"}, {"type": "striped", "stripes": "2"}, {"type": "raid5"}, {"type": "raid6"}, {"type": "raid10"},
	} {
		v := c.create("type-"+params["type"], 48*mib, mountCapability(""), params)
		was, _ := h.LV(t, v.ref())
		c.ok(v.stage())
		c.ok(h.WriteFile(v.staging+"/f", "kept"))
		v.expand(v.bytes+48*mib, v.bytes+48*mib)
		v.nodeExpand(v.staging)
		v.full(v.staging)
		is, _ := h.LV(t, v.ref())
		was.SizeBytes = v.bytes
		if fmt.Sprint(is) != fmt.Sprint(was) {
			t.Errorf("%s: the machine has %+v, want %+v", params["type"], is, was)
		}
		if text, err := h.ReadFile(v.staging + "/f"); text != "kept" || err != nil {
			t.Errorf("%s: the volume holds %q, %v", params["type"], text, err)
		}
		v.end()
	}
	wantWorld(t, c, world, "after all types")
}

// case B39, case B40
func expandSizes(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("sizes", 8*mib, blockCapability(), nil)
	for _, tt := range []struct {
		required, limit int64
		want            int64 // 0: by code
		code            codes.Code
	}{
		{1, 0, 8 * mib, 0}, {0, 0, 8 * mib, 0}, {8 * mib, 8 * mib, 8 * mib, 0}, {0, 9 * mib, 8 * mib, 0},
		{9 * mib, 11 * mib, 0, codes.OutOfRange}, {0, 7 * mib, 0, codes.OutOfRange}, {20 * mib, 12 * mib, 0, codes.OutOfRange}, {1<<63 - 1, 0, 0, codes.OutOfRange},
		{-1, 0, 0, codes.InvalidArgument}, {0, -1, 0, codes.InvalidArgument},
		{8*mib + 1, 12 * mib, 12 * mib, 0}, {203 * mib, 0, 204 * mib, 0}, {203 * mib, 0, 204 * mib, 0}, {791 * mib, 0, 792 * mib, 0}, {4 * mib, 0, 792 * mib, 0},
	} {
		r, err := c.expandTo(v.id, capacityRange(tt.required, tt.limit), nil)
		if tt.code != codes.OK {
			c.code(err, tt.code, "capacity_range")
			continue
		}
		c.ok(err)
		if r.GetCapacityBytes() != tt.want {
			t.Errorf("required %d, limit %d: %d bytes, want %d", tt.required, tt.limit, r.GetCapacityBytes(), tt.want)
		}
	}
	_, err := c.expandTo(v.id, nil, nil)
	c.code(err, codes.InvalidArgument, "capacity_range")
	_, err = c.expandTo(v.id, capacityRange(1, 0), withMode(blockCapability(), csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER))
	c.code(err, codes.InvalidArgument, "access_mode")
	e := c.inline("sizes")
	c.ok(e.publish())
	for id, want := range map[string]codes.Code{
		"": codes.InvalidArgument, strings.Repeat("x", 10<<10): codes.InvalidArgument, "unknown": codes.NotFound, h.NodeName() + "/" + h.VG() + "/unknown": codes.NotFound,
		"other-node/" + h.VG() + "/x": codes.FailedPrecondition, h.NodeName() + "/other-vg/x": codes.InvalidArgument,
		e.id: codes.NotFound, h.NodeName() + "/" + e.ref().String(): codes.NotFound, // an inline volume is as large as its pod says
	} {
		_, err := c.expandTo(id, capacityRange(800*mib, 0), nil)
		c.code(err, want)
	}
	c.ok(e.unpublish())
	c.ok(v.delete())
	wantWorld(t, c, world, "after all sizes")
}

// case B43: no room now is ResourceExhausted, and never possible is OutOfRange, which external-resizer gives up on.
func expandNoSpace(t *testing.T, h Harness) {
	c, world := started(t, h)
	free := c.capacity(nil).GetAvailableCapacity()
	v := c.create("expands", 8*mib, blockCapability(), nil)
	other := c.create("other", free*3/4, blockCapability(), nil)
	filled := c.World(t)
	_, err := c.expandTo(v.id, capacityRange(free/2, 0), nil)
	c.code(err, codes.ResourceExhausted, v.ref().String())
	_, err = c.expandTo(v.id, capacityRange(1<<50, 0), nil)
	c.code(err, codes.OutOfRange, "if it were empty")
	wantWorld(t, c, filled, "after expansions for which there is no room")
	c.ok(v.stage()) // the volume as it is stays usable (case B42)
	c.ok(v.unstage())
	c.ok(other.delete())
	half := (free / 2) &^ (4*mib - 1)
	v.expand(half, half)
	c.ok(v.delete())

	thin := map[string]string{"type": "thin", "thinPool": h.Pool()}
	pool := c.capacity(thin).GetAvailableCapacity()
	a, b := c.create("thin-a", pool/2, blockCapability(), thin), c.create("thin-b", 8*mib, blockCapability(), thin)
	_, err = c.expandTo(b.id, capacityRange(pool*3/4, 0), nil)
	c.code(err, codes.ResourceExhausted, "overcommit")
	_, err = c.expandTo(b.id, capacityRange(pool+4*mib, 0), nil)
	c.code(err, codes.OutOfRange, "overcommit")
	c.ok(a.delete())
	b.expand(pool, pool)
	c.ok(b.delete())
	wantWorld(t, c, world, "after all requests")
}

// case B42
func expandOrigin(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("origin", 48*mib, mountCapability(""), nil)
	target := c.Target(t, "origin")
	c.ok(v.stage())
	h.SnapshotLV(t, v.ref(), "by-hand")
	before := c.World(t)
	for range 2 {
		_, err := c.expandTo(v.id, capacityRange(64*mib, 0), nil)
		c.code(err, codes.FailedPrecondition, "snapshots")
		wantWorld(t, c, before, "after the refusal")
	}
	v.expand(48*mib, 48*mib) // nothing to do
	c.ok(v.publish(target))
	h.DestroyLV(t, volume.Ref{VG: h.VG(), LV: "by-hand"})
	v.expand(64*mib, 64*mib)
	v.nodeExpand(target)
	v.full(target)
	c.ok(v.unpublish(target))
	v.end()
	wantWorld(t, c, world, "after an origin")
}

func expandWrongPath(t *testing.T, h Harness) {
	c, world := started(t, h)
	v, w := c.create("one", 48*mib, mountCapability(""), nil), c.create("two", 48*mib, mountCapability(""), nil)
	c.ok(v.stage())
	c.ok(w.stage())
	file := c.Target(t, "file")
	c.ok(h.WriteFile(file, "x"))
	before := c.World(t)
	for _, path := range []string{w.staging, c.Target(t, "nothing"), file, parent(file), "relative", "/", "/dev/null", v.staging + "/lost+found"} {
		_, err := v.nodeExpandTo(path, capacityRange(v.bytes, 0), nil)
		c.code(err, codes.NotFound)
	}
	_, err := v.nodeExpandTo(v.staging, capacityRange(64*mib, 0), nil)
	c.code(err, codes.OutOfRange, "ControllerExpandVolume")
	_, err = v.nodeExpandTo(v.staging, capacityRange(0, 4*mib), nil)
	c.code(err, codes.OutOfRange, "limit_bytes")
	_, err = v.nodeExpandTo(v.staging, nil, blockCapability())
	c.code(err, codes.InvalidArgument, "access_type")
	e := c.inline("unexpanded")
	for _, id := range []string{"unknown", h.NodeName() + "/" + h.VG() + "/unknown", "other-node/" + h.VG() + "/one", e.id} {
		other := v
		other.id = id
		_, err := other.nodeExpandTo(v.staging, nil, nil)
		c.code(err, codes.NotFound)
	}
	_, err = v.nodeExpandTo(v.staging, nil, nil) // a capacity range may be left out
	c.ok(err)
	wantWorld(t, c, before, "after wrong paths")
	h.Remove(t, file)
	v.end()
	w.end()
	wantWorld(t, c, world, "after all")
}

// case B46: published read-only it grows all the same, where it is staged. A file system that is itself read-only cannot.
func expandReadOnly(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("read-only", 48*mib, mountCapability(""), nil)
	target := c.Target(t, "read-only")
	c.ok(v.stage())
	c.ok(v.publishAs(target, v.capability, true))
	v.expand(96*mib, 96*mib)
	v.nodeExpand(target)
	v.full(target)
	h.RemountReadOnly(t, v.staging)
	v.nodeExpand(target) // nothing to do
	v.expand(192*mib, 192*mib)
	for _, path := range []string{target, v.staging} {
		_, err := v.nodeExpandTo(path, capacityRange(v.bytes, 0), nil)
		c.code(err, codes.FailedPrecondition, "read-only")
	}
	c.ok(v.unpublish(target))
	c.ok(v.unstage())
	c.ok(v.stage())
	v.full(v.staging)
	v.end()
	wantWorld(t, c, world, "after a read-only file system")
}

// The new space ends where another volume had a signature at its end, which hides the file system from probers. A block volume of
// a RAID member's looks the same, and is not mounted. case B48
func expandOntoSignature(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("old-signature", 48*mib, mountCapability(""), nil)
	c.ok(v.stage())
	c.ok(h.WriteFile(v.staging+"/f", "kept"))
	c.ok(v.unstage())
	v.expand(96*mib, 96*mib)
	h.Scribble(t, v.ref(), "linux_raid_member")
	c.ok(v.stage())
	v.full(v.staging)
	if text, err := h.ReadFile(v.staging + "/f"); text != "kept" || err != nil {
		t.Errorf("the volume holds %q, %v", text, err)
	}
	c.ok(v.unstage())
	h.Scribble(t, v.ref(), "linux_raid_member")
	c.ok(v.stage())
	v.end()

	adopted := volume.Ref{VG: h.VG(), LV: "adopted"} // without a tag that tells what it was made for
	h.MakeLV(t, adopted, 48*mib, volume.OwnerTag("local-lvm.csi.internal"), volume.KindTag(volume.Persistent))
	h.Scribble(t, adopted, "ext4")
	h.Scribble(t, adopted, "linux_raid_member")
	v.id = h.NodeName() + "/" + adopted.String()
	c.code(v.stage(), codes.FailedPrecondition, "linux_raid_member")
	h.DestroyLV(t, adopted)
	wantWorld(t, c, world, "after old signatures")
}

// The node makes the logical volume larger as well; the controller does not offer it.
func expandOnNode(t *testing.T, h Harness) {
	h.ExpandOn("node")
	c, world := started(t, h)
	caps, err := h.Controller().ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	c.ok(err)
	if strings.Contains(fmt.Sprint(caps), "EXPAND_VOLUME") {
		t.Errorf("the controller says it can %v", caps)
	}
	v, b := c.create("node", 48*mib, mountCapability(""), nil), c.create("node-block", 8*mib, blockCapability(), nil)
	_, err = c.expandTo(v.id, capacityRange(96*mib, 0), nil)
	c.code(err, codes.Unimplemented)
	target, blockTarget := c.Target(t, "node"), c.Target(t, "node-block")
	for v, target := range map[*pv]string{&v: target, &b: blockTarget} {
		_, err = v.nodeExpandTo(v.staging, capacityRange(v.bytes+8*mib, 0), nil)
		c.code(err, codes.NotFound) // not staged: unaltered
		c.ok(v.stage())
		c.ok(v.publish(target))
		for _, r := range []*csi.CapacityRange{nil, capacityRange(v.bytes, 0), capacityRange(v.bytes+7*mib, 0), capacityRange(v.bytes+7*mib, 0)} {
			got, err := v.nodeExpandTo(target, r, v.capability)
			c.ok(err)
			v.bytes = (max(v.bytes, r.GetRequiredBytes()) + 4*mib - 1) &^ (4*mib - 1)
			if f, _ := h.LV(t, v.ref()); got.GetCapacityBytes() != v.bytes || f.SizeBytes != v.bytes {
				t.Errorf("%v: answered %v, the machine has %d bytes, want %d", r, got, f.SizeBytes, v.bytes)
			}
		}
		before := c.World(t)
		_, err = v.nodeExpandTo(target, capacityRange(1<<50, 0), nil)
		c.code(err, codes.OutOfRange, "if it were empty")
		_, err = v.nodeExpandTo(target, capacityRange(0, 4*mib), nil)
		c.code(err, codes.OutOfRange, "limit_bytes")
		_, err = v.nodeExpandTo(c.Target(t, "wrong"), capacityRange(64*mib, 0), nil)
		c.code(err, codes.NotFound)
		wantWorld(t, c, before, "after what cannot be")
		h.SnapshotLV(t, v.ref(), "by-hand")
		_, err = v.nodeExpandTo(target, capacityRange(v.bytes+1, 0), nil)
		c.code(err, codes.FailedPrecondition, "snapshots")
		h.DestroyLV(t, volume.Ref{VG: h.VG(), LV: "by-hand"})
	}
	v.full(target)
	if total := b.total(blockTarget); total != b.bytes {
		t.Errorf("the block volume has %d bytes at its target, want %d", total, b.bytes)
	}
	c.ok(v.unpublish(target))
	c.ok(b.unpublish(blockTarget))
	v.end()
	b.end()
	wantWorld(t, c, world, "after the node has expanded")
}
