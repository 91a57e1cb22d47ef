package contract

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Calls that no CO should make, and that one may: of volumes that are none of the driver's, at paths within each other,
// of one volume in two ways, and many at once that are given up.
var sidewaysTests = []driverTest{
	{"OtherVolumeGroup", otherVolumeGroup},
	{"OtherKind", otherKind},
	{"OtherAccessType", otherAccessType},
	{"TargetWithinTheVolume", targetWithinVolume},
	{"TwoStagingPaths", twoStagingPaths},
	{"BusyBesideASecondTarget", busyBesideSecond},
	{"UnstageLeavesFiles", unstageLeavesFiles},
	{"InlineAtASecondTarget", inlineSecondTarget},
	{"ReadersAndGroups", readersAndGroups},
	{"QuotedFlags", quotedFlags},
	{"PanicInARetry", panicInRetry},
	{"GivenUpCalls", givenUpCalls},
}

// Volume groups outside --volume-groups do not exist for the driver.
func otherVolumeGroup(t *testing.T, h Harness) {
	c, _ := started(t, h)
	mounted, empty := c.inline("group-mounted"), c.Target(t, "group-empty")
	c.ok(mounted.publish())
	id := h.NodeName() + "/not-ours/" + mounted.id
	v := pv{caller: c, id: id, staging: c.Staging(t, "group"), capability: mountCapability("")}
	world := c.World(t)
	c.code(v.stage(), codes.InvalidArgument, "not-ours")
	c.code(v.publish(empty), codes.InvalidArgument, "not-ours")
	c.code(v.unpublish(mounted.target), codes.InvalidArgument, "not-ours")
	c.code(v.delete(), codes.InvalidArgument, "not-ours")
	_, err := h.Node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: mounted.target})
	c.code(err, codes.InvalidArgument, "not-ours")
	_, err = h.Controller().ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	c.code(err, codes.InvalidArgument, "not-ours")
	c.ok(v.unpublish(empty)) // nothing is there
	c.ok(v.unstage())
	e := c.inline("group-inline")
	e.attributes[volume.KeyVolumeGroup] = "not-ours"
	c.code(e.publish(), codes.InvalidArgument, "volume_context["+volume.KeyVolumeGroup+"]", "not-ours")
	wantWorld(t, c, world, "after calls about a volume group that is not the driver's")
	c.ok(e.unpublish())
	wantWorld(t, c, world, "after an unpublish of what was refused")
	c.ok(mounted.unpublish())
}

// An inline volume is not to be had by an id as persistent ones have it, nor the other way round.
func otherKind(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("kind")
	c.ok(e.publish())
	v := c.create("kind", 64<<20, mountCapability(""), nil)
	published := c.World(t)
	sideways := pv{caller: c, id: h.NodeName() + "/" + e.ref().String(), staging: v.staging, capability: mountCapability("")}
	c.code(sideways.stage(), codes.FailedPrecondition)
	c.code(sideways.publish(c.Target(t, "kind-2")), codes.FailedPrecondition)
	c.code(sideways.delete(), codes.FailedPrecondition)
	c.code(sideways.unpublish(e.target), codes.FailedPrecondition, e.id)
	sideways.staging = e.target // where it is mounted
	c.code(sideways.publish(c.Target(t, "kind-2")), codes.FailedPrecondition, e.id)
	c.code(sideways.unstage(), codes.FailedPrecondition, e.id)
	_, err := h.Controller().ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: sideways.id})
	c.code(err, codes.NotFound)
	for _, id := range []string{v.id, v.ref().LV} { // an inline volume with a persistent one's id, or with its name
		other := e
		other.id, other.target = id, c.Target(t, "kind-3")
		switch err := other.publish(); {
		case id == v.id:
			c.code(err, codes.InvalidArgument, "volume_id")
		default:
			c.ok(err) // its logical volume has another name
			c.ok(other.unpublish())
		}
	}
	wantWorld(t, c, published, "after calls about a volume of the other kind")
	c.ok(e.unpublish())
	c.ok(v.delete())
	wantWorld(t, c, world, "after all has gone")
}

// What was created as a block volume gets no file system, and what has one is not shown as a device.
func otherAccessType(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, tt := range []struct{ made, asked *csi.VolumeCapability }{
		{blockCapability(), mountCapability("ext4")}, {blockCapability(), mountCapability("")}, {mountCapability(""), blockCapability()},
	} {
		v := c.create("access", 64<<20, tt.made, nil)
		other := v
		other.capability = tt.asked
		target := c.Target(t, "access")
		created := c.World(t)
		formatted := h.Commands(t)["mkfs.ext4"]
		c.code(other.stage(), codes.FailedPrecondition, v.ref().String())
		if h.Commands(t)["mkfs.ext4"] != formatted {
			t.Error("a block volume was formatted")
		}
		wantWorld(t, c, created, "after a stage with the other access type")
		c.ok(v.stage())
		c.code(other.publish(target), codes.FailedPrecondition, "NodeStageVolume")
		c.ok(v.publish(target))
		c.code(v.publishAs(target, tt.asked, false), codes.FailedPrecondition)
		c.ok(v.unpublish(target))
		v.end()
	}
	wantWorld(t, c, world, "after both access types")
}

// Within the volume a target would be one of its user's files.
func targetWithinVolume(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("within", 64<<20, mountCapability(""), nil)
	c.ok(v.stage())
	staged := c.World(t)
	for _, target := range []string{v.staging, v.staging + "/", v.staging + "/sub", v.staging + "/deep/er"} {
		c.code(v.publish(target), codes.InvalidArgument, "target_path")
	}
	wantWorld(t, c, staged, "after targets within the volume")
	beside := c.Target(t, "within") // a name that only begins as the staging path does is another one
	c.ok(v.publish(beside))
	c.ok(v.unpublish(beside))
	v.end()
	wantWorld(t, c, world, "after all has gone")
}

// A volume that is staged at two paths can be unstaged from both, in any order.
func twoStagingPaths(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, cap := range []*csi.VolumeCapability{mountCapability(""), blockCapability()} {
		one := c.create("twice", 64<<20, cap, nil)
		two := one
		two.staging = c.Staging(t, "twice-2")
		target := c.Target(t, "twice")
		c.ok(one.stage())
		c.ok(two.stage())
		c.ok(two.publish(target))
		c.code(one.unstage(), codes.Aborted, target)
		c.code(two.unstage(), codes.Aborted, target)
		c.ok(c.repeat(func() error { return one.unpublish(target) }))
		c.ok(c.repeat(two.unstage))
		c.ok(c.repeat(one.unstage))
		c.ok(c.repeat(one.delete))
	}
	wantWorld(t, c, world, "after both staging paths")
}

// A target that is busy is not said to be gone, does not stop the volume from being published for the next pod, and goes
// by itself. case B1 (a)
func busyBesideSecond(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("beside", 64<<20, mountCapability(""), nil)
	old, next := c.Target(t, "beside-old"), c.Target(t, "beside-next")
	c.ok(v.stage())
	c.ok(v.publish(old))
	c.ok(h.WriteFile(old+"/f", "x"))
	_, release := h.Hold(t, HoldFile, old+"/f")
	for range 2 {
		c.code(c.repeatWhileLocked(func() error { return v.unpublish(old) }), codes.Aborted, old)
		c.mounted(old, 1)
	}
	c.ok(c.repeatWhileLocked(func() error { return v.publish(next) }))
	c.mounted(next, 1)
	release()
	if !until(func() bool { return len(h.Mounts(t, old)) == 0 && h.Lstat(t, old).Kind == 0 }) {
		t.Error("the old target is still there, though nobody holds it")
	}
	c.mounted(next, 1)
	if got, err := h.ReadFile(next + "/f"); got != "x" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	c.ok(c.repeat(func() error { return v.unpublish(old) }))
	c.ok(c.repeat(func() error { return v.unpublish(next) }))
	v.end()
	wantWorld(t, c, world, "after both targets")
}

// An unstage removes nothing but what a stage has made, wherever its path leads.
func unstageLeavesFiles(t *testing.T, h Harness) {
	c, world := started(t, h)
	v, other := c.create("leaves", 64<<20, mountCapability(""), nil), c.create("leaves-2", 64<<20, blockCapability(), nil)
	target := c.Target(t, "leaves")
	c.ok(v.stage())
	c.ok(v.publish(target))
	h.Mkdir(t, target+"/stage")
	files := []string{target + "/device", target + "/stage/device", v.staging + "/empty", target + "/stage/full"}
	for _, f := range files {
		content := ""
		if f == target+"/stage/full" {
			content = "x"
		}
		c.ok(h.WriteFile(f, content))
	}
	for _, id := range []string{v.id, other.id, "unknown"} {
		for _, path := range []string{target + "/stage", v.staging + "/stage"} {
			_, err := h.Node().NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
			c.ok(err)
		}
	}
	for _, f := range files {
		if h.Lstat(t, f).Kind != 'f' {
			t.Errorf("%s is gone", f)
		}
	}
	c.ok(v.unpublish(target))
	v.end()
	c.ok(other.delete())
	wantWorld(t, c, world, "after all has gone")
}

// One inline volume, one target: also where the journal was lost, and only the mount table tells of the first.
func inlineSecondTarget(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("second")
	c.ok(e.publish())
	c.ok(h.WriteFile(e.target+"/f", "mine"))
	h.Stop(t)
	c.ok(os.RemoveAll(h.Journal()))
	h.Start(t)
	second := e
	second.target = c.Target(t, "second-2")
	c.code(second.publish(), codes.FailedPrecondition, e.target)
	c.mounted(second.target, 0)
	if got, err := h.ReadFile(e.target + "/f"); got != "mine" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	c.ok(e.publish())
	c.ok(e.unpublish())
	wantWorld(t, c, world, "after a second target")
}

// case B29, case B56, case B59
func readersAndGroups(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		cap := mountCapability(fs)
		cap.GetMount().VolumeMountGroup = "0"
		reader := withMode(cap, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
		v := c.create("reader-"+fs, 64<<20, cap, nil)
		rw, ro := c.Target(t, "reader-rw"), c.Target(t, "reader-ro")
		c.ok(v.stage())
		c.ok(v.publishAs(ro, reader, false)) // the first one, on a volume nobody has written to
		c.ok(v.publishAs(ro, reader, true))  // the mode says it already
		c.code(v.publishAs(ro, cap, false), codes.AlreadyExists, "readonly")
		c.ok(v.publish(rw))
		c.ok(h.WriteFile(rw+"/f", "x"))
		if h.WriteFile(ro+"/g", "x") == nil {
			t.Errorf("%s: wrote through the target of a reader", fs)
		}
		if got, err := h.ReadFile(ro + "/f"); got != "x" || err != nil {
			t.Errorf("%s: read %q, %v", fs, got, err)
		}
		if f := h.Lstat(t, ro); f.GID != 0 || f.Mode&0o2770 != 0o2770 {
			t.Errorf("%s: gid %d, mode %o; want 0 and at least 2770", fs, f.GID, f.Mode)
		}
		c.ok(v.unpublish(rw))
		c.ok(v.unpublish(ro))
		v.end()

		e := c.inline("reader-inline-" + fs)
		e.capability, e.attributes[volume.KeySize] = reader, "1Mi"
		c.ok(e.publish())
		if h.WriteFile(e.target+"/g", "x") == nil {
			t.Errorf("%s: wrote to an inline volume of a reader", fs)
		}
		c.ok(e.unpublish())
	}
	wantWorld(t, c, world, "after readers")
}

// case B56: a comma within double quotes is part of a value, and what stands there is no flag
func quotedFlags(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("quoted", 64<<20, mountCapability("", `x-note="a,ro,b"`, "noatime"), nil)
	target := c.Target(t, "quoted")
	c.ok(v.stage())
	c.ok(v.publish(target))
	if m := h.Mounts(t, target); len(m) != 1 || m[0].ReadOnly || !slices.Contains(m[0].Options, "noatime") {
		t.Errorf("mounted is %+v, want it writable and noatime", m)
	}
	c.ok(v.unpublish(target))
	v.end()
	for _, flag := range []string{`x-note="a`, "device=/dev/null"} {
		_, err := h.Controller().CreateVolume(t.Context(), c.createRequest("quoted", 64<<20, mountCapability("", flag), nil))
		c.code(err, codes.InvalidArgument, "mount_flags")
	}
	wantWorld(t, c, world, "after quoted flags")
}

// A fault of the driver's own, in what it does by itself, stops neither the driver nor the work. case B21
func panicInRetry(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("retry")
	c.ok(e.publish())
	c.ok(h.WriteFile(e.target+"/f", "x"))
	_, release := h.Hold(t, HoldFile, e.target+"/f")
	c.code(e.unpublish(), codes.Aborted)
	h.Arm(t, Fault{N: 1, Do: PanicAt})
	if !until(func() bool { return len(h.Effects(t)) != 0 || !h.Running() }) {
		t.Fatal("no retry")
	}
	release()
	wantWorld(t, c, world, "after a panic and the end of the holder, without a further call")
	if !h.Running() {
		t.Fatal("the driver is down")
	}
	c.ok(c.repeat(e.unpublish))
}

// Callers that give up after any time, many at once: no answer but those that are due, and no trace in the end.
// case B4, case B24, case B27
func givenUpCalls(t *testing.T, h Harness) {
	c, world := started(t, h)
	const volumes, callers = 3, 60
	var pvs []pv
	var ephs []eph
	for i := range volumes {
		pvs = append(pvs, c.create(fmt.Sprintf("given-up-%d", i), 64<<20, []*csi.VolumeCapability{mountCapability(""), blockCapability()}[i%2], nil))
		ephs = append(ephs, c.inline(fmt.Sprintf("given-up-%d", i)))
	}
	targets := []string{c.Target(t, "given-up-a"), c.Target(t, "given-up-b")}
	calls := func(ctx context.Context, n int) error {
		v, e, target := pvs[n%volumes], ephs[n%volumes], targets[n/volumes%2]
		var err error
		switch rand.N(9) {
		case 0:
			_, err = h.Controller().CreateVolume(ctx, c.createRequest(v.name, 64<<20, v.capability, nil))
		case 1:
			_, err = h.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability})
		case 2:
			_, err = h.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: target, VolumeCapability: v.capability})
		case 3:
			err = c.unpublishWithin(ctx, v.id, target)
		case 4:
			_, err = h.Node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
		case 5:
			_, err = h.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: e.id, TargetPath: e.target, VolumeCapability: e.capability, VolumeContext: e.attributes})
		case 6:
			err = c.unpublishWithin(ctx, e.id, e.target)
		case 7:
			_, err = h.Node().NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: target})
		default:
			_, err = h.Controller().ListVolumes(ctx, &csi.ListVolumesRequest{})
		}
		return err
	}
	// NotFound: statistics of a target where the volume is not now, or is another. FailedPrecondition: not staged, or something else
	// is mounted at the target. AlreadyExists: the other access type of another volume there.
	due := []codes.Code{codes.OK, codes.Aborted, codes.DeadlineExceeded, codes.Canceled, codes.NotFound, codes.FailedPrecondition, codes.AlreadyExists}
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			for range 4 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.N(int64(20*time.Millisecond))))
				if n%3 == 0 {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(time.Duration(rand.N(int64(20*time.Millisecond))), cancel)
				}
				if err := calls(ctx, n); !slices.Contains(due, status.Code(err)) {
					t.Errorf("a call that may be given up ended with %v", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for i := range volumes {
		v, e := pvs[i], ephs[i]
		for _, target := range targets {
			if err := c.repeat(func() error { return v.unpublish(target) }); err != nil && status.Code(err) != codes.NotFound { // another's
				t.Errorf("the last unpublish: %v", err)
			}
		}
		c.ok(c.repeat(e.unpublish))
	}
	for _, v := range pvs {
		c.ok(errors.Join(c.repeat(v.unstage), c.repeat(v.delete)))
	}
	wantWorld(t, c, world, "after calls that were given up")
}
