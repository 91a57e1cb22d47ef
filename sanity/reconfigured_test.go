package sanity

import (
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// A driver that is started again with other flags, over what the one before has left.

// restarts gives a machine with another volume group beside the usual one, a running driver, and how to start it again.
func restarts(t *testing.T) (c co, again func(change func(*driver.Config))) {
	t.Helper()
	h := newFakeHarness(t).(*fakeHarness)
	h.m.AddGroup("other", 4<<20, 1<<30)
	h.Start(t)
	return co{h, t}, func(change func(*driver.Config)) {
		t.Helper()
		if h.Running() {
			h.Kill(t)
		}
		h.reconfigure = change
		h.Start(t)
	}
}

func groups(names ...string) func(*driver.Config) {
	return func(cfg *driver.Config) { cfg.VolumeGroups = names }
}

// The default volume group is another one: repeated calls that name none find what is there.
func TestOtherDefaultGroup(t *testing.T) {
	c, again := restarts(t)
	id := c.mustCreate("default", false)
	must(t, c.publishInline("default"))
	must(t, c.WriteFile(c.Target(t, "default")+"/f", "mine"))
	again(groups("other", fakeVG))
	if repeated := c.mustCreate("default", false); repeated != id {
		t.Errorf("created %s, and again %s", id, repeated)
	}
	must(t, c.publishInline("default"))
	c.Reboot(t, true)
	again(groups("other", fakeVG))
	must(t, c.publishInline("default"))
	if got, err := c.ReadFile(c.Target(t, "default") + "/f"); got != "mine" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	_, err := c.create(t.Context(), "default", false, volume.KeyVolumeGroup, "other")
	c.code(err, codes.AlreadyExists, fakeVG)
	c.repeat(func() error { return c.unpublishInline("default") })
	must(t, c.delete(id))
	c.wantNothing("after the default has changed")

	// Killed before lvcreate: the record names the old default, and the volume is made in the new one.
	for n := 1; ; n++ {
		again(nil)
		c.Arm(t, contract.Fault{N: n, Do: contract.KillBefore})
		err := c.publishInline("record")
		if err == nil {
			break
		}
		again(groups("other", fakeVG))
		must(t, c.publishInline("record"))
		c.repeat(func() error { return c.unpublishInline("record") })
		c.wantNothing("after a kill and another default")
	}
	c.Arm(t, contract.Fault{})
	c.repeat(func() error { return c.unpublishInline("record") })
	c.wantNothing("after all")
}

// The volume group is taken out of --volume-groups with work unfinished in it: nothing of that is done or forgotten, and all
// is carried on when it is back.
func TestGroupTakenOut(t *testing.T) {
	c, again := restarts(t)
	again(groups(fakeVG, "other"))
	id, target := c.mustCreate("out", false, volume.KeyVolumeGroup, "other"), c.Target(t, "out")
	must(t, c.stage(id, false))
	must(t, c.publish(id, target, false))
	must(t, c.publishInline("busy", volume.KeyVolumeGroup, "other"))
	must(t, c.publishInline("used", volume.KeyVolumeGroup, "other"))
	must(t, c.WriteFile(c.Target(t, "busy")+"/f", "x"))
	_, release := c.Hold(t, contract.HoldFile, c.Target(t, "busy")+"/f")
	c.code(c.unpublishInline("busy"), codes.Aborted)
	c.Arm(t, contract.Fault{Each: "lvcreate", Do: contract.KillAfter}) // the lvcreate of a create, which nobody was told of
	_, err := c.create(t.Context(), "cut-off", false, volume.KeyVolumeGroup, "other")
	if err == nil || c.Running() {
		t.Fatalf("not killed: %v", err)
	}
	cutOff := c.NodeName() + "/other/cut-off"
	before := c.World(t)

	again(groups(fakeVG))
	c.code(c.publish(id, c.Target(t, "out-2"), false), codes.InvalidArgument, "other")
	c.code(c.unpublish(t.Context(), id, target), codes.InvalidArgument, "other")
	c.code(c.delete(id), codes.InvalidArgument, "other")
	for _, pod := range []string{"busy", "used"} {
		if err := c.unpublishInline(pod); err == nil {
			t.Errorf("%s is said to be gone", pod)
		}
	}
	for _, name := range []string{"out", "cut-off"} { // the name is free in the groups that there are now
		must(t, c.delete(c.mustCreate(name, false)))
	}
	release()
	if after := c.World(t); lines(after, "lv other/") != lines(before, "lv other/") {
		t.Errorf("changed in a group that is not ours now, before:\n%s\nafter:\n%s", before, after)
	}

	again(groups(fakeVG, "other"))
	if err := c.stage(cutOff, false); status.Code(err) != codes.NotFound { // after its grace time it is removed
		c.code(err, codes.Aborted, "CreateVolume") // nobody has it
	}
	if got := c.mustCreate("cut-off", false, volume.KeyVolumeGroup, "other"); got != cutOff {
		t.Errorf("created %s, want %s", got, cutOff)
	}
	must(t, c.delete(cutOff))
	c.repeatWhileFailing(func() error { return c.unpublishInline("used") })
	c.repeatWhileFailing(func() error { return c.unpublishInline("busy") })
	c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
	c.repeat(func() error { return c.unstage(id) })
	must(t, c.delete(id))
	c.wantNothing("after the group is back")
}

func lines(text, prefix string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// The node has another name: ids of the old one are of another node, and unfinished work is finished all the same.
func TestOtherNodeName(t *testing.T) {
	c, again := restarts(t)
	id, target := c.mustCreate("node", false), c.Target(t, "node")
	must(t, c.stage(id, false))
	must(t, c.publish(id, target, false))
	must(t, c.WriteFile(target+"/f", "x"))
	must(t, c.publishInline("inline"))
	_, release := c.Hold(t, contract.HoldFile, target+"/f")
	c.code(c.unpublish(t.Context(), id, target), codes.Aborted)
	again(func(cfg *driver.Config) { cfg.NodeName = "renamed" })
	c.code(c.answered(func() error { return c.publish(id, c.Target(t, "node-2"), false) }), codes.NotFound, "node-1")
	c.code(c.answered(func() error { return c.delete(id) }), codes.FailedPrecondition, "node-1")
	release()
	c.repeatWhileFailing(func() error { return c.unpublish(t.Context(), id, target) })
	c.repeat(func() error { return c.unpublishInline("inline") })
	renamed := strings.Replace(id, "node-1", "renamed", 1)
	if got := c.mustCreate("node", false); got != renamed {
		t.Errorf("the volume is now %s, want %s", got, renamed)
	}
	c.repeat(func() error { return c.unstage(renamed) })
	must(t, c.delete(renamed))
	c.wantNothing("after another node name")
}

// The driver has another name: what it made before is not its own any more, and is left alone.
func TestOtherDriverName(t *testing.T) {
	c, again := restarts(t)
	id := c.mustCreate("owner", false)
	must(t, c.publishInline("owner"))
	again(func(cfg *driver.Config) { cfg.DriverName = "other.csi.internal" })
	_, err := c.create(t.Context(), "owner", false)
	c.code(err, codes.AlreadyExists)
	c.code(c.delete(id), codes.FailedPrecondition)
	c.code(c.stage(id, false), codes.FailedPrecondition)
	if err := c.unpublishInline("owner"); err == nil {
		t.Error("removed what is another driver's")
	}
	for _, r := range []volume.Ref{{VG: fakeVG, LV: "owner"}, {VG: fakeVG, LV: inlineID("owner")}} {
		if _, there := c.LV(t, r); !there {
			t.Errorf("%s is gone", r)
		}
	}
	r, err := c.Controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	must(t, err)
	if len(r.GetEntries()) != 0 {
		t.Errorf("listed is another driver's: %v", r)
	}
	again(nil)
	c.repeatWhileFailing(func() error { return c.unpublishInline("owner") })
	must(t, c.delete(id))
	c.wantNothing("after the first driver is back")
}

// A record that was cut short, and a folder that takes no more of them: the one volume is stopped, and nothing is lost. case B19
func TestDamagedJournal(t *testing.T) {
	c, again := restarts(t)
	must(t, c.publishInline("torn"))
	must(t, c.publishInline("good"))
	c.Kill(t)
	files, err := os.ReadDir(c.Journal())
	must(t, err)
	for _, f := range files {
		path := c.Journal() + "/" + f.Name()
		text, err := os.ReadFile(path)
		must(t, err)
		if strings.Contains(string(text), inlineID("torn")) {
			must(t, os.WriteFile(path, text[:len(text)/2], 0o600))
		}
	}
	again(nil)
	must(t, c.publishInline("good"))
	c.repeat(func() error { return c.unpublishInline("good") })
	c.code(c.publishInline("torn"), codes.Internal, "damaged")
	c.code(c.unpublishInline("torn"), codes.Internal, "damaged")
	if at := c.Mounts(t, c.Target(t, "torn")); len(at) != 1 {
		t.Errorf("mounted is %v", at)
	}
	c.Kill(t)
	must(t, os.RemoveAll(c.Journal())) // as the message says
	again(nil)
	c.repeat(func() error { return c.unpublishInline("torn") })
	c.wantNothing("after a torn record")
}
