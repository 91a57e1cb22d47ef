package contract

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Snapshots, and what is made of them, over callers that give up, restarts, reboots and devices that hang.
var snapshotFaultTests = []driverTest{
	{"SlowSnapshot", slowSnapshot},
	{"SnapshotsSurviveReboots", snapshotsSurvive},
	{"SnapshotOfASuspended", snapshotOfSuspended},
}

// The caller gives up, and asks again: one snapshot, and it is listed. case B24
func slowSnapshot(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("slow", 4<<20, blockCapability(), nil)
	entered, release := h.Block(t, "lvcreate")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := h.Controller().CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "slow", SourceVolumeId: v.id})
	c.code(err, codes.DeadlineExceeded)
	<-entered
	_, err = c.createSnapshot("slow", v.id)
	c.code(err, codes.Aborted, "CreateSnapshot")
	release()
	s := c.snapshot("slow", v.id)
	c.wantSnapshots(&csi.ListSnapshotsRequest{}, s.GetSnapshotId())
	c.ok(c.repeat(func() error { return c.deleteSnapshot(s.GetSnapshotId()) }))
	v.end()
	wantWorld(t, c, world, "after the slow snapshot")
}

// Each call is repeated after a kill and after reboots, and finds what was made: also the device of a volume that was made of a
// snapshot, which LVM leaves inactive if it is not told. case B19, case B34
func snapshotsSurvive(t *testing.T, h Harness) {
	c, _ := started(t, h)
	c.create("warm", 4<<20, blockCapability(), layout(c, "thin")).end() // the pool gets another device with its first volume
	clean := c.World(t)
	for _, kind := range some(1, "thin", "linear") {
		t.Run(kind, func(t *testing.T) {
			c := c.with(t)
			v := c.create("source", 16<<20, mountCapability(""), layout(c, kind))
			c.ok(v.stage())
			c.ok(c.WriteFile(v.staging+"/data", "before"))
			s := c.snapshot("snap", v.id)
			restored := c.restore("restored", 16<<20, mountCapability(""), layout(c, kind), ofSnapshot(s.GetSnapshotId()))
			c.ok(restored.stage())
			c.ok(c.WriteFile(restored.staging+"/own", "mine"))
			c.ok(restored.unstage())
			c.ok(v.unstage())
			for _, active := range []bool{true, false} {
				h.Reboot(t, active)
				h.Start(t)
				if again := c.snapshot("snap", v.id); !proto.Equal(again, s) {
					t.Errorf("after a reboot the snapshot is %v, it was %v", again, s)
				}
				if again := c.restore("restored", 16<<20, mountCapability(""), layout(c, kind), ofSnapshot(s.GetSnapshotId())); again.id != restored.id {
					t.Errorf("after a reboot the volume is %s, it was %s", again.id, restored.id)
				}
				for _, each := range []pv{v, restored} {
					c.ok(c.repeat(each.stage))
					each.wantData("before")
				}
				if got, err := c.ReadFile(restored.staging + "/own"); got != "mine" || err != nil {
					t.Errorf("read %q, %v", got, err)
				}
				late := c.restore("late", 16<<20, mountCapability(""), layout(c, kind), ofSnapshot(s.GetSnapshotId()))
				c.ok(late.stage())
				late.wantData("before")
				late.end()
				for _, each := range []pv{v, restored} {
					c.ok(c.repeat(each.unstage))
				}
			}
			c.ok(c.repeat(func() error { return c.deleteSnapshot(s.GetSnapshotId()) }))
			restored.end()
			v.end()
			wantWorld(t, c, clean, "in the end")
		})
	}
}

// The source's device was left suspended by an LVM command that was killed: whoever takes a snapshot of it does not hang, nor does anybody
// else. case B18
func snapshotOfSuspended(t *testing.T, h Harness) {
	c, world := started(t, h)
	v, other := c.create("suspended", 16<<20, mountCapability(""), nil), c.create("other", 16<<20, mountCapability(""), nil)
	target := c.Target(t, "suspended")
	c.ok(other.stage())
	h.SuspendLV(t, v.ref())
	if err := c.within(func(ctx context.Context) error {
		_, err := h.Controller().CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: v.id})
		return err
	}); err != nil {
		c.notFinal("a snapshot of a suspended volume", err)
	}
	c.othersGoOn(other, target)
	s := c.snapshot("snap", v.id)
	c.ok(c.repeat(v.stage))
	if h.IsSuspended(t, v.ref()) {
		t.Error("the source is left suspended")
	}
	c.ok(c.repeat(v.unstage))
	c.ok(c.repeat(func() error { return c.deleteSnapshot(s.GetSnapshotId()) }))
	c.ok(other.unpublish(target))
	v.end()
	other.end()
	wantWorld(t, c, world, "after the suspended volume")
}
