package contract

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

// A later decision of the CO wins over a teardown that is pending. Each is done as it is, with a kill of the driver before
// the later call, and with one after it.
var laterTests = []driverTest{
	{"LaterPublish", later(laterPublish)},
	{"LaterPublishOfABlockVolume", later(laterBlockPublish)},
	{"LaterPublishOfOneOfTwo", later(laterPublishOfOne)},
	{"LaterPublishAtAnotherTarget", later(laterOtherTarget)},
	{"LaterStage", later(laterStage)},
	{"LaterUnstage", later(laterUnstage)},
	{"LaterDelete", later(laterDelete)},
	{"LaterInlinePublish", later(laterInline)},
}

// kills are the moments at which a test that is run with later lets the driver be killed.
type kills struct {
	c    caller
	when string
}

// at kills and starts the driver, if it is the moment.
func (k kills) at(when string) {
	k.c.t.Helper()
	if k.when == when {
		k.c.Kill(k.c.t)
		k.c.Start(k.c.t)
	}
}

func later(test func(c caller, k kills)) func(t *testing.T, h Harness) {
	return func(t *testing.T, h Harness) {
		c, world := started(t, h)
		for _, when := range some(1, "before", "after", "no kill") {
			t.Run(when, func(t *testing.T) {
				c := c.with(t)
				test(c, kills{c, when})
				wantWorld(t, c, world, "in the end")
			})
		}
	}
}

// published gives a volume that is published at the target with a file in it, which a process holds.
func (c caller) published(name string, targets ...string) (v pv, release func()) {
	c.t.Helper()
	v = c.create(name, 64<<20, mountCapability(""), nil)
	c.ok(v.stage())
	for _, target := range targets {
		c.ok(v.publish(target))
	}
	c.ok(c.WriteFile(v.staging+"/f", "mine"))
	_, release = c.Hold(c.t, HoldFile, targets[0]+"/f")
	return v, release
}

// still checks that the file is there, and that nothing is left to be done to the volume: so nothing can come later.
func (v pv) still(path string) {
	v.t.Helper()
	if got, err := v.ReadFile(path); !strings.HasPrefix(got, "mine") || err != nil {
		v.t.Fatalf("read %.20q, %v", got, err)
	}
	if w := v.World(v.t); strings.Contains(w, v.id) {
		v.t.Fatalf("a record is left:\n%s", w)
	}
}

func laterPublish(c caller, k kills) {
	target := c.Target(c.t, "later")
	v, release := c.published("later", target)
	c.code(v.unpublish(target), codes.Aborted)
	k.at("before")
	c.ok(v.repeat(func() error { return v.publish(target) }))
	k.at("after")
	v.still(target + "/f")
	release()
	v.still(target + "/f")
	c.mounted(target, 1)
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	v.end()
}

func laterBlockPublish(c caller, k kills) {
	target := c.Target(c.t, "later")
	v := c.create("later", 4<<20, blockCapability(), nil)
	c.ok(v.stage())
	c.ok(v.publish(target))
	c.ok(c.WriteFile(target, "mine"))
	_, release := c.Hold(c.t, HoldDevice, target)
	c.code(v.unpublish(target), codes.Aborted)
	k.at("before")
	c.ok(v.repeat(func() error { return v.publish(target) }))
	k.at("after")
	release()
	v.still(target)
	c.mounted(target, 1)
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	v.end()
}

// Both targets are being unpublished, and one is wanted again: the other goes.
func laterPublishOfOne(c caller, k kills) {
	one, two := c.Target(c.t, "later-1"), c.Target(c.t, "later-2")
	v, release := c.published("later", one, two)
	_, releaseTwo := c.Hold(c.t, HoldFile, two+"/f")
	c.code(v.unpublish(one), codes.Aborted)
	c.code(v.repeatWhileLocked(func() error { return v.unpublish(two) }), codes.Aborted)
	k.at("before")
	c.ok(v.repeat(func() error { return v.publish(one) }))
	k.at("after")
	release()
	releaseTwo()
	if !until(func() bool { return len(c.Mounts(c.t, two)) == 0 && !strings.Contains(c.World(c.t), v.id) }) {
		c.t.Fatalf("the other target does not go:\n%s", c.World(c.t))
	}
	v.still(one + "/f")
	c.mounted(one, 1)
	c.ok(v.repeat(func() error { return v.unpublish(one) }))
	v.end()
}

// Another target comes and goes while the first is being unpublished; the first goes all the same.
func laterOtherTarget(c caller, k kills) {
	one, two := c.Target(c.t, "later-1"), c.Target(c.t, "later-2")
	v, release := c.published("later", one)
	c.code(v.unpublish(one), codes.Aborted)
	k.at("before")
	c.ok(v.repeat(func() error { return v.publish(two) }))
	c.mounted(two, 1)
	k.at("after")
	c.ok(v.repeat(func() error { return v.unpublish(two) }))
	c.mounted(two, 0)
	c.mounted(one, 1)
	c.ok(v.repeat(func() error { return v.publish(two) }))
	release()
	if !until(func() bool { return len(c.Mounts(c.t, one)) == 0 && !strings.Contains(c.World(c.t), v.id) }) {
		c.t.Fatalf("the first target does not go:\n%s", c.World(c.t))
	}
	v.still(two + "/f")
	c.mounted(two, 1)
	c.ok(v.repeat(func() error { return v.unpublish(two) }))
	v.end()
}

// An unstage waits for a mount that is not the driver's; then the volume is wanted again.
func laterStage(c caller, k kills) {
	target, alien := c.Target(c.t, "later"), c.Target(c.t, "later-alien")
	v, release := c.published("later", target)
	release()
	c.Bind(c.t, target, alien)
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	c.code(v.unstage(), codes.Aborted, alien, "tries again by itself")
	k.at("before")
	c.code(v.repeatWhileLocked(func() error { return v.publish(target) }), codes.FailedPrecondition, "NodeStageVolume")
	c.ok(v.repeat(v.stage))
	k.at("after")
	c.ok(v.repeat(func() error { return v.publish(target) }))
	c.Unmount(c.t, alien)
	c.Remove(c.t, alien)
	v.still(target + "/f")
	c.mounted(v.staging, 1)
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	v.end()
}

// An unstage comes while the unpublish is not done: both are carried on.
func laterUnstage(c caller, k kills) {
	target := c.Target(c.t, "later")
	v, release := c.published("later", target)
	c.code(v.unpublish(target), codes.Aborted)
	k.at("before")
	c.code(v.repeatWhileLocked(v.unstage), codes.Aborted, target)
	k.at("after")
	c.mounted(target, 1)
	release()
	if !until(func() bool { return len(c.Mounts(c.t, v.staging)) == 0 && !strings.Contains(c.World(c.t), v.id) }) {
		c.t.Fatalf("it is not unstaged:\n%s", c.World(c.t))
	}
	c.ok(v.repeat(v.delete))
}

func laterDelete(c caller, k kills) {
	target := c.Target(c.t, "later")
	v, release := c.published("later", target)
	c.code(v.unpublish(target), codes.Aborted)
	k.at("before")
	c.code(v.repeatWhileLocked(v.delete), codes.Aborted, "left to do", target, "tries again by itself")
	k.at("after")
	if got, err := c.ReadFile(target + "/f"); got != "mine" || err != nil {
		c.t.Fatalf("read %q, %v", got, err)
	}
	release()
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	c.code(v.delete(), codes.FailedPrecondition, v.staging)
	v.end()
}

// An inline volume whose teardown has begun is not published again: its data is to go. A new one comes after it.
func laterInline(c caller, k kills) {
	e, release := c.held("later", HoldFile)
	k.at("before")
	c.code(c.repeatWhileLocked(e.publish), codes.Aborted, "teardown", "left to do", fmt.Sprint(e.ref()), "tries again by itself")
	k.at("after")
	c.mounted(e.target, 1)
	release()
	c.ok(c.repeat(e.publish))
	if _, err := c.ReadFile(e.target + "/f"); err == nil {
		c.t.Error("the new volume holds the data of the old one")
	}
	c.mounted(e.target, 1)
	c.ok(c.repeat(e.unpublish))
}
