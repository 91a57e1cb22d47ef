package contract

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Inline volumes that no call will ever clean. What else keeps them is a table in pkg/lifecycle.
var orphanTests = []driverTest{
	{"OrphansAfterAReboot", orphansAfterReboot},
	{"OrphansAreKeptInDoubt", orphansInDoubt},
}

// Grace is --orphan-grace in these tests. The flag takes no less than a second; a machine in memory needs less.
var Grace = 50 * time.Millisecond

// waitGrace waits for so long that an orphan would have been removed.
func waitGrace() { <-time.After(3 * Grace) }

// removePod removes the pod's folder, as kubelet does after the volumes in it have gone.
func (c caller) removePod(target string) {
	c.t.Helper()
	for path := target; !strings.HasSuffix(path, "/pods"); path = parent(path) {
		if c.Lstat(c.t, path).Kind != 0 {
			c.Remove(c.t, path)
		}
	}
}

// kubelet gives kubelet's folder.
func (c caller) kubelet() string {
	before, _, _ := strings.Cut(c.Target(c.t, "driver"), "/pods/")
	return before
}

// cases B11, B12: the machine was reset; one pod is gone, of the other kubelet still knows
func orphansAfterReboot(t *testing.T, h Harness) {
	h.Orphans("remove", Grace)
	c, world := started(t, h)
	c.kubelet() // with the folder of the driver's own pod
	foreign := volume.Ref{VG: h.VG(), LV: "csi-foreign"}
	h.MakeLV(t, foreign, 4<<20, "csi.kind=inline", "csi.pod=gone")
	v := c.create("kept", 64<<20, mountCapability(""), nil)
	c.ok(v.stage())
	c.ok(h.WriteFile(v.staging+"/precious", "x"))
	for _, lost := range []bool{false, true} {
		for _, active := range []bool{true, false} {
			t.Run(fmt.Sprintf("journal lost %t, active %t", lost, active), func(t *testing.T) {
				c := c.with(t)
				gone, stays := c.inline(fmt.Sprintf("gone-%t-%t", lost, active)), c.inline(fmt.Sprintf("stays-%t-%t", lost, active))
				c.ok(gone.publish())
				c.ok(stays.publish())
				c.ok(h.WriteFile(stays.target+"/f", "y"))
				h.Reboot(t, active)
				if lost {
					c.ok(os.RemoveAll(h.Journal()))
				}
				c.removePod(gone.target)
				h.Start(t)
				if !until(func() bool { return !c.there(gone.ref()) }) {
					t.Fatal("the orphan is left")
				}
				if !c.there(stays.ref()) {
					t.Fatal("a volume whose pod is there was removed")
				}
				c.ok(c.repeat(stays.publish)) // kubelet starts the pod again
				if got, err := h.ReadFile(stays.target + "/f"); got != "y" || err != nil {
					t.Errorf("read %q, %v", got, err)
				}
				c.ok(c.repeat(stays.unpublish))
			})
		}
	}
	c.ok(v.stage())
	if got, err := h.ReadFile(v.staging + "/precious"); got != "x" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	v.end()
	if !c.there(foreign) {
		t.Error("a logical volume without our tag was removed")
	} else {
		h.DestroyLV(t, foreign)
	}
	wantWorld(t, c, world, "after all orphans have gone")
}

// "Don't know" is never "no": kubelet's folder is not what it was.
func orphansInDoubt(t *testing.T, h Harness) {
	h.Orphans("remove", Grace)
	c, world := started(t, h)
	kubelet := c.kubelet()
	e := c.inline("doubt")
	c.ok(e.publish())
	h.Reboot(t, true)
	c.removePod(e.target)
	for what, cover := range map[string]string{"missing": "", "empty": "/pods", "a file": "/pods", "a link": "/pods"} {
		instead := kubelet + "-instead"
		h.Mkdir(t, instead)
		switch what {
		case "empty":
			h.Mkdir(t, instead+cover)
		case "a file":
			c.ok(h.WriteFile(instead+cover, "x"))
		case "a link":
			h.Symlink(t, kubelet+"/plugins", instead+cover)
		}
		h.Bind(t, instead, kubelet)
		h.Start(t)
		waitGrace()
		if !c.there(e.ref()) {
			t.Fatalf("the folder of pods is %s, and a volume was removed", what)
		}
		h.Kill(t)
		h.Unmount(t, kubelet)
		if cover != "" {
			h.Remove(t, instead+cover)
		}
		h.Remove(t, instead)
	}
	release := h.HoldLV(t, e.ref())
	h.Start(t)
	waitGrace()
	if !c.there(e.ref()) {
		t.Fatal("a volume that is open was removed")
	}
	release()
	wantWorld(t, c, world, "after all doubts have ended")
}
