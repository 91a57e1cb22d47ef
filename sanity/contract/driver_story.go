package contract

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
)

// The orphan, and its sisters: a teardown that begins and that nobody asks for a second time.
var storyTests = []driverTest{
	{"Orphan", orphanStory},
	{"OrphanOfAKill", orphanOfAKill},
	{"OrphanHeldElsewhere", orphanHeldElsewhere},
	{"OrphanThatCannotBeRemoved", orphanNotRemoved},
	{"RollbackThatFails", rollbackFails},
}

// held gives an inline volume with a file in it that a process holds, after an unpublish that was therefore not done.
func (c caller) held(pod, how string) (e eph, release func()) {
	c.t.Helper()
	e = c.inline(pod)
	c.ok(c.repeat(e.publish))
	c.ok(c.WriteFile(e.target+"/f", "x"))
	pid, release := c.Hold(c.t, how, e.target+"/f")
	c.code(e.unpublish(), codes.Aborted, fmt.Sprintf("pid %d", pid), "left to do", e.ref().String(), "tries again by itself")
	return e, release
}

// The caller never calls again, the driver is killed, the holder ends. case B1, case B11, case B17
func orphanStory(t *testing.T, h Harness) {
	for _, reset := range some(1, "the driver is killed", "the driver is stopped", "nothing else happens") {
		t.Run(reset, func(t *testing.T) {
			h.Start(t)
			defer h.Stop(t)
			c := caller{Harness: h, t: t, made: map[string]bool{}}
			world := c.World(t)
			e, release := c.held("orphan", HoldFile)
			switch reset {
			case "the driver is killed":
				h.Kill(t)
				h.Start(t)
			case "the driver is stopped":
				h.Stop(t)
				h.Start(t)
			}
			c.mounted(e.target, 1)
			release()
			wantWorld(t, c, world, "after the holder has ended, without any further call")
		})
	}
}

// The driver is killed in the middle of the teardown, or the whole machine is reset, and nobody calls again. case B3, case B11
func orphanOfAKill(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("killed")
	for turn, f := range []Fault{
		{Each: "lvremove", Do: KillAfter}, {Each: "lvremove", Do: KillBefore}, {Each: "unmount", Do: KillBefore}, {Each: "unmount", Do: KillAfter},
	} {
		for i, reset := range []string{"", ", and the machine is reset", ", and the machine is reset and activates nothing"} {
			if Brief && i != turn {
				continue
			}
			c.ok(c.repeat(e.publish))
			h.Arm(t, f)
			if err := e.unpublish(); err == nil || h.Running() {
				t.Fatalf("%s %s: the driver is not dead, and answers %v", f.Do, f.Each, err)
			}
			if reset != "" {
				h.Reboot(t, !strings.Contains(reset, "nothing"))
			}
			h.Start(t)
			wantWorld(t, c, world, fmt.Sprintf("%s %s%s", f.Do, f.Each, reset))
			c.ok(c.repeat(e.unpublish))
		}
	}
	c.held("reset", HoldFile)
	h.Reboot(t, true) // the holder ends with the machine
	h.Start(t)
	wantWorld(t, c, world, "after a reset of the machine while the volume was in use")
}

// The unmount succeeds, and the file system lives on in another mount namespace: no program is run on the device. case B6, case B8
func orphanHeldElsewhere(t *testing.T, h Harness) {
	c, world := started(t, h)
	before := h.Commands(t)
	e, release := c.held("elsewhere", HoldElsewhere)
	c.mounted(e.target, 0)
	for range some(1, "the first driver", "the next one") {
		c.code(c.repeatWhileLocked(e.unpublish), codes.Aborted, "remove logical volume", "left to do")
		c.code(c.repeatWhileLocked(e.publish), codes.Aborted, "teardown", "left to do")
		h.Kill(t)
		h.Start(t)
	}
	after := h.Commands(t)
	if !c.there(e.ref()) || after["lvremove"] != before["lvremove"] || after["mkfs.ext4"] != before["mkfs.ext4"]+1 {
		t.Errorf("a program was run on a device that is open: %v, before %v", after, before)
	}
	release()
	wantWorld(t, c, world, "after the holder has ended")
}

// lvremove fails, and not because the volume is in use: Internal, and tried again all the same. case B3; traps 2 and 7
func orphanNotRemoved(t *testing.T, h Harness) {
	c, world := started(t, h)
	e := c.inline("fails")
	c.ok(e.publish())
	h.Arm(t, Fault{Each: "lvremove", Do: FailBefore, Errno: syscall.EIO})
	c.code(e.unpublish(), codes.Internal, "remove logical volume "+e.ref().String(), "input/output error", "tries again by itself")
	c.mounted(e.target, 0)
	tries := func() (n int) {
		for _, effect := range h.Effects(t) {
			if EffectName(effect) == "lvremove" {
				n++
			}
		}
		return n
	}
	if !until(func() bool { return tries() > 3 }) {
		t.Errorf("tried %d times", tries())
	}
	c.code(c.repeatWhileLocked(e.unpublish), codes.Internal, "left to do: ", "remove logical volume")
	h.Arm(t, Fault{})
	wantWorld(t, c, world, "after lvremove has stopped failing, without any further call")
	c.ok(c.repeat(e.unpublish))
}

// A call fails, and what it began cannot be taken back: not final, and carried on without any further call. case B13, case B14
func rollbackFails(t *testing.T, h Harness) {
	c, _ := started(t, h)
	v := c.create("rollback", 64<<20, mountCapability(""), nil)
	b := c.create("rollback-block", 4<<20, blockCapability(), nil)
	e := c.inline("rollback")
	target, blockTarget := c.Target(t, "rollback-1"), c.Target(t, "rollback-2")
	c.ok(v.stage())
	c.ok(b.stage())
	for _, tt := range []struct {
		fail string
		call func() error
	}{
		{"bind remove", func() error { return v.publish(target) }},
		{"bind remove", func() error { return b.publish(blockTarget) }},
		{"mkfs.ext4 lvremove", e.publish},
		{"mount remove", e.publish},
		{"lvcreate lvremove", func() error {
			_, err := h.Controller().CreateVolume(t.Context(), c.createRequest("rollback-2", 64<<20, mountCapability(""), nil))
			return err
		}},
	} {
		world := c.World(t)
		h.Arm(t, Fault{Each: tt.fail, Do: FailBefore})
		c.code(c.repeatWhileLocked(tt.call), codes.Aborted, "left to do", "tries again by itself")
		h.Arm(t, Fault{})
		wantWorld(t, c, world, "by itself after failures of "+tt.fail)
	}
	c.ok(v.repeat(func() error { return v.publish(target) }))
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	v.end()
	b.end()
}
