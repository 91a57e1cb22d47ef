//go:build vm

package sanity

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/doctor"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// consulted is doctor beside the driver of a harness.
type consulted struct {
	t     *testing.T
	look  func(context.Context) (*doctor.Facts, error)
	hands driver.Hands
}

func consult(t *testing.T, h *realHarness) consulted {
	t.Helper()
	cfg, _, _, err := driver.Beside(t.Context(), driver.Config{StateDir: h.config().StateDir, VolumeGroups: h.config().VolumeGroups, NodeName: h.NodeName(), KubeletDir: h.config().KubeletDir})
	must(t, err)
	reader, err := driver.Reader(cfg)
	must(t, err)
	sources, err := driver.Sources(cfg, reader, func(ctx context.Context) (*status.Live, error) { return status.AskDriver(ctx, cfg.StateDir) })
	must(t, err)
	collector := status.New(sources)
	real, err := driver.Real(cfg, nil)
	must(t, err)
	return consulted{t, func(ctx context.Context) (*doctor.Facts, error) {
		f := doctor.Gather(ctx, doctor.Here(cfg.KubeletDir, cfg.DriverName), "", collector, collector.Collect)
		f.Machine = doctor.Machine{} // that of the tests, which lacks this and that
		return f, nil
	}, driver.Hands{Backend: real}}
}

// finds looks, wants just these rules to find something, and gives the findings.
func (c consulted) finds(rules ...string) []doctor.Finding {
	c.t.Helper()
	f, err := c.look(c.t.Context())
	must(c.t, err)
	all := doctor.Examine(f)
	var got []string
	for _, n := range all {
		got = append(got, n.Rule)
	}
	if strings.Join(got, " ") != strings.Join(rules, " ") {
		c.t.Fatalf("found %q, want %q: %+v", got, rules, all)
	}
	return all
}

// mends mends what one rule finds; then there is nothing more to find.
func (c consulted) mends(rule string, left ...string) {
	c.t.Helper()
	for _, n := range c.finds(append(left, rule)...) {
		if n.Rule == rule {
			fix, err := doctor.Still(c.t.Context(), n, c.look)
			if fix == nil || err != nil {
				c.t.Fatalf("%s: %v %v", rule, fix, err)
			}
			must(c.t, fix.Do(c.t.Context(), c.hands))
		}
	}
	c.finds(left...)
}

// wanted is kubelet's file beside a target, as old as if it had been there for long.
func wanted(t *testing.T, target, id string) (gone func()) {
	t.Helper()
	file := filepath.Join(filepath.Dir(target), "vol_data.json")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":%q}`, driver.Default().DriverName, id), 0o600))
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(file, old, old))
	return func() { must(t, os.Remove(file)) }
}

// Faults are made on the real thing, named, and mended, and nothing else is touched.
func TestStatusAndDoctor(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	c, d := co{h, t}, consult(t, h)
	id, target := c.published("seen", false)
	other, otherTarget := c.published("bystander", false)
	forget, forgetOther := wanted(t, target, id), wanted(t, otherTarget, other)
	d.finds()
	f, err := d.look(t.Context())
	must(t, err)
	v := f.Report.Volumes[1]
	if v.ID != id || v.Boundary != status.Published || v.FS != "ext4" || v.UsedBytes == nil || len(v.Mounts) != 2 || f.Report.Driver == nil || f.Report.Groups[0].FreeBytes == 0 {
		t.Errorf("%+v", f.Report)
	}

	pid, release := h.Hold(t, "file", target)
	must(t, os.WriteFile(otherTarget+"/x", nil, 0o600))
	if c.unpublish(t.Context(), id, target) == nil {
		t.Fatal("unpublished while it is held")
	}
	if n := d.finds("teardown-pending")[0]; !strings.Contains(n.Sentence, fmt.Sprintf("pid %d (sleep)", pid)) {
		t.Errorf("%+v", n)
	}
	release()
	c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
	must(t, os.Mkdir(target, 0o755))
	d.mends("target-left")

	sh(t, "mkdir", target)
	sh(t, "mount", "-t", "tmpfs", "none", target)
	d.finds("foreign-mount")
	sh(t, "umount", target)
	must(t, c.publish(id, target, false))
	forget()
	d.mends("leaked-mount")

	must(t, c.unstage(id))
	forget = wanted(t, target, id)
	h.DeactivateLV(t, volume.Ref{VG: realVG, LV: "seen"})
	d.mends("inactive")
	forget()
	c.repeat(func() error { return c.delete(id) })

	h.Stop(t)
	d.finds("driver-down")
	orphan := volume.Ref{VG: realVG, LV: "csi-" + strings.Repeat("0", 64)}
	h.MakeLV(t, orphan, 8<<20, volume.OwnerTag(driver.Default().DriverName), volume.KindTag(volume.Inline), "csi.pod=pod-gone")
	d.mends("orphan", "driver-down")
	if _, there := h.LV(t, orphan); there {
		t.Error("the orphan is there")
	}
	h.Start(t)
	d.finds()
	forgetOther()
	c.gone(other, otherTarget)
}
