package contract

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What hangs: one volume suffers, the others do not.
var hungTests = []driverTest{
	{"HungStepStopsItsVolumeOnly", hungStep},
	{"VGLockHeld", vgLockHeld},
	{"SuspendedDeviceIsResumed", suspendedDevice},
}

// Patience is how long a caller waits in these tests. A machine in memory answers sooner than a real one.
var Patience = 300 * time.Millisecond

// stopsWithin is how long the end of a driver under test may take.
const stopsWithin = 10 * time.Second

// within gives the call a deadline, and fails the test if the answer comes much later.
func (c caller) within(call func(ctx context.Context) error) error {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), Patience)
	defer cancel()
	start := time.Now()
	err := call(ctx)
	if took := time.Since(start); took > Patience+3*time.Second {
		c.t.Errorf("the answer came after %s: %v", took, err)
	}
	return err
}

// notFinal fails the test unless the answer lets the CO ask again.
func (c caller) notFinal(what string, err error) {
	c.t.Helper()
	if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Aborted {
		c.t.Errorf("%s: got %v, want DeadlineExceeded or Aborted", what, err)
	}
}

// inTheEnd calls until the answer is final, or a minute has gone. It calls less often than repeat, since there is much to
// be caught up with at that time.
func (c caller) inTheEnd(call func(ctx context.Context) error) (err error) {
	for range time.Minute / (100 * time.Millisecond) {
		if err = call(c.t.Context()); status.Code(err) != codes.Aborted {
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
	return err
}

func (e eph) publishWithin(ctx context.Context) error {
	_, err := e.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: e.id, TargetPath: e.target, VolumeContext: e.attributes, VolumeCapability: e.capability,
	})
	return err
}

// othersGoOn does what needs neither LVM nor what hangs in these tests.
func (c caller) othersGoOn(v pv, target string) {
	c.t.Helper()
	c.ok(v.publish(target))
	_, err := c.Node().NodeGetVolumeStats(c.t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: target})
	c.ok(err)
	c.ok(c.within(func(ctx context.Context) error {
		r, err := c.Identity().Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !r.GetReady().GetValue() {
			err = fmt.Errorf("not ready")
		}
		return err
	}))
	_, err = c.Controller().GetCapacity(c.t.Context(), &csi.GetCapacityRequest{})
	c.ok(err)
}

// stops ends the driver, and fails the test if that takes long.
func (c caller) stops() {
	c.t.Helper()
	start := time.Now()
	c.Stop(c.t)
	if took := time.Since(start); took > stopsWithin {
		c.t.Errorf("the driver took %s to stop", took)
	}
}

// A program or a system call hangs. The call ends by its deadline, its volume is pending until the end, and the
// driver stops all the same. case B4, case B18
func hungStep(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("others", 64<<20, mountCapability(""), nil)
	c.ok(v.stage())
	other := c.Target(t, "others")
	for _, step := range []string{"unmount", "mkfs.ext4", "lvremove"} {
		e := c.inline("hung-" + step)
		call := e.publishWithin
		if step != "mkfs.ext4" {
			c.ok(c.repeat(e.publish))
			call = func(ctx context.Context) error { return c.unpublishWithin(ctx, e.id, e.target) }
		}
		entered, release := h.Block(t, step)
		c.code(c.within(call), codes.DeadlineExceeded)
		<-entered
		c.code(c.within(call), codes.Aborted, "under way")
		c.othersGoOn(v, other)
		c.stops()
		release()
		h.Start(t)
		c.ok(c.repeat(e.unpublish))
		c.ok(v.unpublish(other))
	}
	v.end()
	wantWorld(t, c, world, "after all that hung has ended")
}

// LVM's lock on the volume group is held by a process that does not end. case B18
func vgLockHeld(t *testing.T, h Harness) {
	c, world := started(t, h)
	v, deleted := c.create("staged", 64<<20, mountCapability(""), nil), c.create("deleted", 64<<20, mountCapability(""), nil)
	c.ok(v.stage())
	target := c.Target(t, "staged")
	published, fresh := c.inline("published"), c.inline("fresh")
	c.ok(published.publish())
	release := h.LockVG(t)
	calls := map[string]func(ctx context.Context) error{
		"unpublish": func(ctx context.Context) error { return c.unpublishWithin(ctx, published.id, published.target) },
		"publish":   fresh.publishWithin,
		"create": func(ctx context.Context) error {
			_, err := c.Controller().CreateVolume(ctx, c.createRequest("new", 64<<20, mountCapability(""), nil))
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := c.Controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: deleted.id})
			return err
		},
	}
	for range 3 {
		var wg sync.WaitGroup
		for what, call := range calls {
			wg.Go(func() { c.notFinal(what, c.within(call)) })
		}
		c.othersGoOn(v, target)
		wg.Wait()
		c.ok(v.unpublish(target))
		if n := h.LVMProcesses(t); n > 1 {
			t.Errorf("%d LVM processes wait for one volume group", n)
		}
	}
	release()
	for what, call := range calls {
		if err := c.inTheEnd(call); err != nil {
			t.Errorf("%s after the lock was freed: %v", what, err)
		}
	}
	c.ok(c.repeat(fresh.unpublish))
	c.ok(c.repeat(func() error { return c.delete(h.NodeName() + "/" + h.VG() + "/new") }))
	v.end()
	wantWorld(t, c, world, "after the lock was freed")
}

// A killed LVM command left a device suspended. It is not touched, which would hang, and resumed by the driver: at its
// start, and when it is met. case B15, case B18
func suspendedDevice(t *testing.T, h Harness) {
	c, world := started(t, h)
	e, v := c.inline("suspended"), c.create("suspended-pv", 64<<20, mountCapability(""), nil)
	target := c.Target(t, "suspended-pv")
	c.ok(e.publish())
	foreign := v.ref()
	foreign.LV = "foreign"
	h.MakeLV(t, foreign, 4<<20)
	h.SuspendLV(t, foreign)
	for what, call := range map[string]func() error{"unpublish": e.unpublish, "stage": v.stage, "delete": v.delete} {
		ref := v.ref()
		if what == "unpublish" {
			ref = e.ref()
		}
		h.SuspendLV(t, ref)
		if err := call(); err != nil || h.IsSuspended(t, ref) { // else it was resumed before the call came to it
			c.code(err, codes.Aborted, "suspended", "resumes it")
		}
		c.ok(c.repeat(call))
		if what == "stage" {
			c.ok(v.publish(target))
			c.ok(v.unpublish(target))
			c.ok(v.unstage())
		}
		if what == "delete" {
			v = c.create("suspended-pv", 64<<20, mountCapability(""), nil)
		}
	}
	c.ok(e.publish())
	h.Kill(t)
	h.SuspendLV(t, e.ref())
	h.Start(t)
	if !until(func() bool { return !h.IsSuspended(t, e.ref()) }) {
		t.Error("it was not resumed at the start of the driver")
	}
	c.ok(c.repeat(e.unpublish))
	c.ok(c.repeat(v.delete))
	if !h.IsSuspended(t, foreign) {
		t.Error("somebody else's device was resumed")
	}
	h.DestroyLV(t, foreign)
	wantWorld(t, c, world, "after all was resumed")
}
