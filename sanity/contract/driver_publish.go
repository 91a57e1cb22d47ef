package contract

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What stage and publish do, and what they refuse.
var publishTests = []driverTest{
	{"DataOutlivesPublish", dataOutlivesPublish},
	{"RepeatedCalls", repeatedCalls},
	{"OtherArguments", otherArguments},
	{"PublishWithoutStage", publishWithoutStage},
	{"AccessModes", accessModes},
	{"ReadOnlyAndFlags", readOnlyAndFlags},
	{"Block", blockVolume},
	{"NeverFormatsWhatIsNotBlank", neverFormats},
	{"ForeignLVIsNotTouched", foreignLV},
	{"InactiveLV", inactiveLV},
	{"MountGroup", mountGroup},
	{"Stats", stats},
	{"InlineTargetInTheWay", inlineTargetInTheWay},
	{"InlineSurvivesRestarts", inlineSurvives},
	{"ManyFilesystems", manyFilesystems},
}

func dataOutlivesPublish(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, params := range []map[string]string{nil, {"type": "thin", "thinPool": h.Pool()}} {
		v := c.create("data", 64<<20, mountCapability("ext4"), params)
		target := c.Target(t, "data")
		c.ok(v.stage())
		c.ok(v.publish(target))
		c.ok(h.WriteFile(target+"/f", "hello"))
		c.ok(v.unpublish(target))
		if f := h.Lstat(t, target); f.Kind != 0 {
			t.Errorf("the target is left: %+v", f)
		}
		c.ok(v.unstage())
		c.mounted(v.staging, 0)
		c.ok(v.stage())
		c.ok(v.publish(target))
		if got, err := h.ReadFile(target + "/f"); got != "hello" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		c.ok(v.unpublish(target))
		v.end()
	}
	wantWorld(t, c, world, "after both volumes")
}

// case B12, case B19, case B25; trap 4
func repeatedCalls(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, cap := range []*csi.VolumeCapability{mountCapability(""), blockCapability()} {
		v := c.create("repeat", 64<<20, cap, nil)
		target := c.Target(t, "repeat")
		for round := range 3 {
			if round == 2 {
				h.Kill(t)
				h.Start(t)
			}
			again := c.create("repeat", 64<<20, cap, nil)
			if again.id != v.id || again.bytes != v.bytes {
				t.Fatalf("the second create gave %s of %d bytes, the first %s of %d", again.id, again.bytes, v.id, v.bytes)
			}
			c.ok(v.stage())
			c.ok(v.publish(target))
		}
		c.mounted(target, 1)
		for range 2 {
			c.ok(v.unpublish(target))
			c.mounted(target, 0)
		}
		for range 2 {
			c.ok(v.unstage())
		}
		for range 2 {
			c.ok(v.delete())
		}
	}
	wantWorld(t, c, world, "after repeated calls")
}

// case B25, case B29
func otherArguments(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("other", 64<<20, mountCapability(""), nil)
	target := c.Target(t, "other")
	c.ok(v.stage())
	c.ok(v.publish(target))
	published := c.World(t)
	c.code(v.publishAs(target, v.capability, true), codes.AlreadyExists, target, "readonly")
	c.code(v.publishAs(target, mountCapability("xfs"), false), codes.AlreadyExists, target, "xfs")
	xfs := v
	xfs.capability = mountCapability("xfs")
	c.code(xfs.stage(), codes.AlreadyExists, v.staging, "xfs")
	for name, req := range map[string]*csi.CreateVolumeRequest{
		"larger":       c.createRequest("other", 640<<20, mountCapability(""), nil),
		"limit":        {Name: "other", CapacityRange: &csi.CapacityRange{LimitBytes: 32 << 20}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability("")}},
		"block":        c.createRequest("other", 64<<20, blockCapability(), nil),
		"file system":  c.createRequest("other", 64<<20, mountCapability("btrfs"), nil),
		"type":         c.createRequest("other", 64<<20, mountCapability(""), map[string]string{"type": "striped"}),
		"mkfs options": c.createRequest("other", 64<<20, mountCapability(""), map[string]string{"mkfsOptions": "-m 1"}),
	} {
		_, err := h.Controller().CreateVolume(t.Context(), req)
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("%s: got %v, want AlreadyExists", name, err)
		}
	}
	wantWorld(t, c, published, "after calls with other arguments")
	e := c.inline("other-inline")
	c.ok(e.publish())
	c.code(e.publishAs(e.capability, true), codes.AlreadyExists, e.target)
	e.attributes[volume.KeySize] = "128Mi"
	c.code(e.publish(), codes.AlreadyExists, "size")
	second := e
	second.target = c.Target(t, "other-inline-2")
	second.attributes[volume.KeySize] = "64Mi"
	c.code(second.publish(), codes.FailedPrecondition, "one target path")
	c.ok(e.unpublish())
	c.ok(v.unpublish(target))
	v.end()
	wantWorld(t, c, world, "after all has gone")
}

func publishWithoutStage(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, cap := range []*csi.VolumeCapability{mountCapability(""), blockCapability()} {
		v := c.create("unstaged", 64<<20, cap, nil)
		target := c.Target(t, "unstaged")
		before := c.World(t)
		c.code(v.publish(target), codes.FailedPrecondition, "NodeStageVolume")
		nowhere := v
		nowhere.staging = ""
		c.code(nowhere.publish(target), codes.FailedPrecondition, "staging_target_path")
		wantWorld(t, c, before, "after a publish without stage")
		c.ok(v.stage())
		c.ok(v.publish(target))
		c.ok(v.unpublish(target))
		c.ok(v.unstage())
		c.code(v.publish(target), codes.FailedPrecondition, "NodeStageVolume")
		c.ok(v.delete())
		c.code(v.stage(), codes.NotFound)
		c.code(v.publish(target), codes.NotFound)
	}
	wantWorld(t, c, world, "after unstaged publishes")
}

// case B29
func accessModes(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, cap := range []*csi.VolumeCapability{mountCapability(""), blockCapability()} {
		v := c.create("modes", 64<<20, cap, nil)
		one, two := c.Target(t, "modes-1"), c.Target(t, "modes-2")
		single := withMode(cap, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
		multi := withMode(cap, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER)
		reader := withMode(cap, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
		c.ok(v.stage())
		c.ok(v.publishAs(one, single, false))
		c.ok(v.publishAs(one, single, false))
		c.code(v.publishAs(two, single, false), codes.FailedPrecondition, one)
		c.mounted(two, 0)
		c.ok(v.publishAs(two, multi, false))
		c.ok(v.unpublish(one))
		c.ok(v.unpublish(two))
		c.ok(v.publishAs(one, reader, false))
		if m := h.Mounts(t, one); len(m) != 1 || !m[0].ReadOnly {
			t.Errorf("published for a reader only: %+v", m)
		}
		c.ok(v.unpublish(one))
		v.end()
	}
	_, err := h.Controller().CreateVolume(t.Context(), c.createRequest("many-nodes", 64<<20,
		withMode(mountCapability(""), csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER), nil))
	c.code(err, codes.InvalidArgument, "access_mode")
	wantWorld(t, c, world, "after all modes")
}

// case B56
func readOnlyAndFlags(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("flags", 64<<20, mountCapability("ext4", "noatime", "nodev,noexec", "noatime"), nil)
	rw, ro := c.Target(t, "flags-rw"), c.Target(t, "flags-ro")
	c.ok(v.stage())
	c.ok(v.publish(rw))
	c.ok(v.publishAs(ro, v.capability, true))
	for path, readOnly := range map[string]bool{rw: false, ro: true, v.staging: false} {
		m := h.Mounts(t, path)
		if len(m) != 1 || m[0].ReadOnly != readOnly {
			t.Fatalf("%s: %+v, want readonly %t", path, m, readOnly)
		}
		for _, flag := range []string{"noatime", "nodev", "noexec"} {
			if !slices.Contains(m[0].Options, flag) {
				t.Errorf("%s: options %v lack %s", path, m[0].Options, flag)
			}
		}
	}
	c.ok(h.WriteFile(rw+"/f", "x"))
	if err := h.WriteFile(ro+"/g", "x"); err == nil {
		t.Error("wrote to a read-only target")
	}
	c.ok(v.unpublish(rw))
	c.ok(v.unpublish(ro))
	v.end()

	flagged := c.create("flag-ro", 64<<20, mountCapability("", "ro"), nil)
	c.ok(flagged.stage())
	c.ok(flagged.publish(ro))
	if m := h.Mounts(t, ro); len(m) != 1 || !m[0].ReadOnly {
		t.Errorf("published with flag ro: %+v", m)
	}
	c.ok(flagged.unpublish(ro))
	flagged.end()

	bogus := c.create("bogus", 64<<20, mountCapability("", "bogus"), nil)
	before := c.World(t)
	if err := bogus.stage(); err == nil || !strings.Contains(err.Error(), "bogus") {
		t.Errorf("staged with a bogus flag: %v", err)
	}
	c.mounted(bogus.staging, 0)
	wantWorld(t, c, before, "after a bogus flag")
	bogus.end()
	wantWorld(t, c, world, "after all flags")
}

func blockVolume(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("block", 64<<20, blockCapability(), nil)
	rw, ro := c.Target(t, "block-rw"), c.Target(t, "block-ro")
	c.ok(v.stage())
	c.ok(v.publish(rw))
	if m := h.Mounts(t, rw); len(m) != 1 || !m[0].Block {
		t.Fatalf("at the target is %+v, want a device node", m)
	}
	c.code(v.publishAs(ro, v.capability, true), codes.FailedPrecondition, rw) // the whole device is read-only, or is not
	_, release := h.Hold(t, HoldDevice, rw)
	c.code(v.unpublish(rw), codes.Aborted, rw) // opened through the target, the node keeps its mount busy
	release()
	c.ok(c.repeat(func() error { return v.unpublish(rw) }))
	release = h.HoldLV(t, v.ref()) // opened by another node, as containers have it, the device keeps no mount busy
	c.ok(v.unstage())
	c.code(v.delete(), codes.FailedPrecondition, v.ref().String())
	release()
	c.ok(v.stage())
	c.ok(v.publishAs(ro, v.capability, true))
	c.ok(v.unpublish(ro))
	c.ok(v.publish(rw)) // writable again
	c.ok(v.unpublish(rw))
	v.end()
	wantWorld(t, c, world, "after the block volume")
}

// What is on a volume is never formatted over. case B48, trap 9
func neverFormats(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, s := range MountSignatures {
		t.Run(s.Name, func(t *testing.T) {
			c := c.with(t)
			v := c.create("content-"+strings.ToLower(s.Name), 512<<20, mountCapability("ext4"), nil)
			h.Scribble(t, v.ref(), s.Name)
			before := h.Commands(t)["mkfs.ext4"]
			err := v.stage()
			formatted := h.Commands(t)["mkfs.ext4"] != before
			switch {
			case s.Want.Blank || s.Want.Unfinished:
				c.ok(err)
				if !formatted {
					t.Error("a blank volume was not formatted")
				}
			case s.Want.FS == "ext4":
				c.ok(err)
			default:
				c.code(err, codes.FailedPrecondition, v.ref().String(), s.Want.FS)
			}
			if formatted && !s.Want.Blank && !s.Want.Unfinished {
				t.Error("a volume that holds something was formatted")
			}
			v.end()
		})
	}
	wantWorld(t, c, world, "after all contents")
}

// trap 2, trap 9: without the owner tag it is nobody's business here
func foreignLV(t *testing.T, h Harness) {
	c, _ := started(t, h)
	foreign := volume.Ref{VG: h.VG(), LV: "foreign"}
	h.MakeLV(t, foreign, 64<<20, "something.else")
	world := c.World(t)
	id := h.NodeName() + "/" + foreign.String()
	_, err := h.Controller().CreateVolume(t.Context(), c.createRequest("foreign", 64<<20, mountCapability(""), nil))
	c.code(err, codes.AlreadyExists, foreign.String())
	c.code(c.delete(id), codes.FailedPrecondition, foreign.String())
	v := pv{caller: c, id: id, staging: c.Staging(t, "foreign"), capability: mountCapability("")}
	c.code(v.stage(), codes.FailedPrecondition, foreign.String())
	e := c.inline("foreign-inline")
	h.MakeLV(t, e.ref(), 64<<20)
	c.code(e.publish(), codes.FailedPrecondition, e.ref().String())
	c.ok(e.unpublish())
	if !c.there(e.ref()) || !c.there(foreign) {
		t.Error("a logical volume that is not the driver's was removed")
	}
	h.DestroyLV(t, e.ref())
	h.Remove(t, v.staging)
	wantWorld(t, c, world, "after calls about a foreign logical volume")
}

// case B23
func inactiveLV(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("inactive", 64<<20, mountCapability(""), nil)
	target := c.Target(t, "inactive")
	c.ok(v.stage())
	c.ok(v.publish(target))
	c.ok(h.WriteFile(target+"/f", "x"))
	c.ok(v.unpublish(target))
	c.ok(v.unstage())
	h.DeactivateLV(t, v.ref())
	c.code(v.publish(target), codes.FailedPrecondition, "NodeStageVolume")
	c.ok(v.stage())
	c.ok(v.publish(target))
	if got, err := h.ReadFile(target + "/f"); got != "x" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	c.ok(v.unpublish(target))
	v.end()
	wantWorld(t, c, world, "after the inactive volume")
}

// case B59
func mountGroup(t *testing.T, h Harness) {
	c, world := started(t, h)
	withGroup := func() *csi.VolumeCapability {
		cap := mountCapability("")
		cap.GetMount().VolumeMountGroup = "1234"
		return cap
	}
	v, e := c.create("group", 64<<20, withGroup(), nil), c.inline("group-inline")
	e.capability = withGroup()
	target := c.Target(t, "group")
	c.ok(v.stage())
	c.ok(v.publish(target))
	c.ok(e.publish())
	for _, path := range []string{target, e.target} {
		if f := h.Lstat(t, path); f.GID != 1234 || f.Mode&0o2770 != 0o2770 {
			t.Errorf("%s: gid %d, mode %o; want 1234 and at least 2770", path, f.GID, f.Mode)
		}
	}
	c.ok(v.unpublish(target))
	c.ok(e.unpublish())
	v.end()
	wantWorld(t, c, world, "after group ownership")
}

func stats(t *testing.T, h Harness) {
	c, world := started(t, h)
	get := func(id, path string) ([]*csi.VolumeUsage, error) {
		r, err := h.Node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
		return r.GetUsage(), err
	}
	m, b, e := c.create("stats", 64<<20, mountCapability(""), nil), c.create("stats-block", 64<<20, blockCapability(), nil), c.inline("stats-inline")
	mt, bt := c.Target(t, "stats"), c.Target(t, "stats-block")
	c.ok(errors.Join(m.stage(), b.stage(), m.publish(mt), b.publish(bt), e.publish()))
	for id, path := range map[string]string{m.id: mt, e.id: e.target} {
		u, err := get(id, path)
		c.ok(err)
		if len(u) != 2 || u[0].GetUnit() != csi.VolumeUsage_BYTES || u[1].GetUnit() != csi.VolumeUsage_INODES {
			t.Fatalf("usage of %s: %v; want bytes and inodes", id, u)
		}
		if total := u[0].GetTotal(); total < 32<<20 || total > 64<<20 || u[0].GetAvailable() <= 0 || u[1].GetTotal() == 0 {
			t.Errorf("usage of %s: %v", id, u)
		}
	}
	u, err := get(m.id, m.staging)
	c.ok(err)
	if len(u) == 0 {
		t.Error("no usage at the staging path")
	}
	u, err = get(b.id, bt)
	c.ok(err)
	if len(u) != 1 || u[0].GetTotal() != b.bytes {
		t.Errorf("usage of a block volume: %v, want %d bytes", u, b.bytes)
	}
	for id, path := range map[string]string{m.id: bt, b.id: mt, e.id: c.Target(t, "nowhere"), "unknown": mt} {
		_, err := get(id, path)
		c.code(err, codes.NotFound, path)
	}
	_, err = get(m.id, "")
	c.code(err, codes.InvalidArgument, "volume_path")
	c.ok(errors.Join(m.unpublish(mt), b.unpublish(bt), e.unpublish()))
	m.end()
	b.end()
	wantWorld(t, c, world, "after stats")
}

// case B13
func inlineTargetInTheWay(t *testing.T, h Harness) {
	c, _ := started(t, h)
	for name, obstruct := range map[string]func(path string){
		"a file":             func(path string) { c.ok(h.WriteFile(path, "mine")) },
		"a folder in use":    func(path string) { h.Mkdir(t, path); c.ok(h.WriteFile(path+"/f", "mine")) },
		"a symbolic link":    func(path string) { h.Symlink(t, "/etc", path) },
		"a dangling link":    func(path string) { h.Symlink(t, "/nowhere", path) },
		"a file as a parent": func(path string) { h.Remove(t, parent(path)); c.ok(h.WriteFile(parent(path), "mine")) },
	} {
		e := c.inline("way-" + strings.ReplaceAll(name, " ", "-"))
		obstruct(e.target)
		world := c.World(t)
		err := e.publish()
		if code := status.Code(err); code != codes.FailedPrecondition && code != codes.Internal {
			t.Errorf("%s: got %v, want FailedPrecondition or Internal", name, err)
		}
		wantWorld(t, c, world, name+" in the way")
	}
}

// A reboot, a kill: what was published inline is there with its data, or goes when it is unpublished.
// case B11, case B12, case B19; traps 3 and 14
func inlineSurvives(t *testing.T, h Harness) {
	c, world := started(t, h)
	keep, drop := c.inline("keep"), c.inline("drop")
	c.ok(keep.publish())
	c.ok(drop.publish())
	c.ok(h.WriteFile(keep.target+"/f", "kept"))
	for _, active := range []bool{true, false} {
		h.Reboot(t, active)
		h.Start(t)
		c.ok(keep.publish())
		if got, err := h.ReadFile(keep.target + "/f"); got != "kept" || err != nil {
			t.Fatalf("after a reboot: read %q, %v", got, err)
		}
	}
	c.ok(drop.unpublish())
	h.Kill(t)
	h.Start(t)
	c.ok(keep.publish())
	c.mounted(keep.target, 1)
	c.ok(keep.unpublish())
	wantWorld(t, c, world, "after reboots")
}

func manyFilesystems(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		v := c.create("fs-"+fs, 1, mountCapability(fs), nil) // case B51: raised to the least the file system needs
		if v.bytes < volume.MinFSBytes(volume.FS(fs)) {
			t.Errorf("%s: %d bytes, the file system needs %d", fs, v.bytes, volume.MinFSBytes(volume.FS(fs)))
		}
		target := c.Target(t, "fs-"+fs)
		c.ok(v.stage())
		c.ok(v.publish(target))
		if m := h.Mounts(t, target); len(m) != 1 || m[0].FS != fs {
			t.Errorf("at the target is %+v, want %s", m, fs)
		}
		c.ok(v.unpublish(target))
		v.end()

		e := c.inline("fs-inline-" + fs)
		e.capability, e.attributes[volume.KeySize] = mountCapability(fs), "1Mi"
		c.ok(e.publish())
		c.ok(e.unpublish())

		_, err := h.Controller().CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: "small-" + fs, CapacityRange: &csi.CapacityRange{RequiredBytes: 1, LimitBytes: 1 << 20},
			VolumeCapabilities: []*csi.VolumeCapability{mountCapability(fs)},
		})
		c.code(err, codes.OutOfRange, "limit_bytes")
	}
	wantWorld(t, c, world, "after all file systems")
}
