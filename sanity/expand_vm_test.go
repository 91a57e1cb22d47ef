//go:build vm

package sanity

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// lvextend is killed at swept moments while a pod writes to the volume. The repeated calls end with OK, the volume, its device
// and its file system as large as they say, nothing suspended, and the data there. case B15, case B46
func TestKilledLvextend(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	c := co{h, t}
	must(t, c.delete(c.mustCreate("warm", false, "type", "thin", "thinPool", realPool)))
	step := 90 * time.Millisecond
	if os.Getenv("TEST_SWEEP") == "full" {
		step = 10 * time.Millisecond
	}
	hit, outcomes := 0, map[string]int{}
	for _, kind := range []string{"linear", "thin", "striped", "raid1", "raid5"} {
		params := []string{"type", kind}
		if kind == "thin" {
			params = append(params, "thinPool", realPool)
		}
		id, target := c.mustCreate("killed-"+kind, false, params...), c.Target(t, "killed-"+kind)
		parsed, err := volume.ParseID(id)
		must(t, err)
		must(t, c.stage(id, false))
		must(t, c.publish(id, target, false))
		must(t, c.WriteFile(target+"/f", "kept"))
		bytes := int64(32 << 20)
		for after := step / 3; after < 500*time.Millisecond; after += step {
			what := fmt.Sprintf("lvextend of %s killed after %s", kind, after)
			bytes += 8 << 20
			stop := make(chan struct{})
			struck := strike("lvextend", after, syscall.SIGKILL, stop)
			answers := again(t, what, func() error {
				_, err := h.Controller().ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}})
				return err
			})
			answers = append(answers, again(t, what, func() error {
				_, err := h.Node().NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}})
				return err
			})...)
			close(stop)
			if <-struck != 0 {
				hit++
			}
			for _, err := range answers {
				outcomes[status.Code(err).String()]++
			}
			must(t, c.WriteFile(target+"/g", strings.Repeat(what, 1000)))
			f, _ := h.LV(t, parsed.Ref)
			r, err := h.Node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
			must(t, err)
			if total := r.GetUsage()[0].GetTotal(); f.SizeBytes != bytes || total < bytes*78/100 {
				t.Errorf("%s: %+v, and a file system of %d bytes; want %d", what, f, total, bytes)
			}
			if world := h.World(t); strings.Contains(world, "Suspended") {
				t.Errorf("%s: something is suspended:\n%s", what, world)
			}
		}
		if text, err := c.ReadFile(target + "/f"); text != "kept" || err != nil {
			t.Errorf("%s: the volume holds %q, %v", kind, text, err)
		}
		c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
		c.repeat(func() error { return c.unstage(id) })
		c.repeat(func() error { return c.delete(id) })
	}
	c.wantNothing("after killed lvextends")
	t.Logf("%d lvextends were struck; answers besides OK: %v", hit, outcomes)
	if hit == 0 {
		t.Error("no lvextend was killed")
	}
}
