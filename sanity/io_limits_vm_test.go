//go:build vm

package sanity

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// dd is direct I/O of a process in the cgroup of a pod.
type dd struct {
	pod, path string
	write     bool
	block     int
	count     int
}

// took is how long it takes.
func (d dd) took(t *testing.T) time.Duration {
	t.Helper()
	files := "if=" + d.path + " of=/dev/null iflag=direct"
	if d.write {
		files = "if=/dev/zero of=" + d.path + " oflag=direct conv=notrunc"
	}
	script := fmt.Sprintf("echo $$ > %s/pod%s/cgroup.procs && exec dd %s bs=%d count=%d status=none", podGroups, d.pod, files, d.block, d.count)
	start := time.Now()
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return time.Since(start)
}

// A pod whose volume has I/O limits is as slow as they say, and no slower than it was where they say nothing: measured, on the block
// device and on a file system, linear and thin, from the publish on, and after each change while it is in use.
func TestIOLimitsHold(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	for _, v := range []struct {
		name   string
		block  bool
		params []string
	}{
		{"block-linear", true, []string{"type", "linear"}},
		{"mount-thin", false, []string{"type", "thin", "thinPool", realPool}},
	} {
		t.Run(v.name, func(t *testing.T) {
			c := co{h, t}
			id, target := c.mustCreate(v.name, v.block, v.params...), c.Target(t, v.name)
			h.AddPod(t, v.name, true)
			modify := func(kv ...string) {
				t.Helper()
				m := map[string]string{}
				for i := 0; i < len(kv); i += 2 {
					m[kv[i]] = kv[i+1]
				}
				_, err := h.Controller().ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: m})
				must(t, err)
			}
			modify(volume.KeyWriteBytes, "1Mi")
			must(t, c.stage(id, v.block))
			must(t, c.publish(id, target, v.block))
			path := target
			if !v.block {
				path += "/f"
			}
			write := dd{pod: v.name, path: path, write: true, block: 1 << 20, count: 8}
			read, small := write, write
			read.write, small.block, small.count = false, 4<<10, 80

			const implied = 8 * time.Second // by each of the limits
			slow := func(what string, d dd) {
				t.Helper()
				took := d.took(t)
				t.Logf("%s: %s; the limit implies %s", what, took.Round(10*time.Millisecond), implied)
				if took < implied*9/10 {
					t.Errorf("%s took %s, the limit implies %s", what, took, implied)
				}
			}
			// fast is measured up to five times: what else runs on the machine only adds.
			fast := func(what string, d dd) {
				t.Helper()
				took := time.Hour
				for n := 0; n < 5 && took > implied/2; n++ {
					took = min(took, d.took(t))
				}
				t.Logf("%s: %s", what, took.Round(10*time.Millisecond))
				if took > implied/2 {
					t.Errorf("%s took %s", what, took)
				}
			}
			slow("8 MiB written at 1 MiB a second", write)
			fast("8 MiB read", read)
			modify(volume.KeyWriteBytes, "max", volume.KeyReadBytes, "1Mi")
			slow("8 MiB read at 1 MiB a second", read)
			fast("8 MiB written", write)
			modify(volume.KeyReadBytes, "max", volume.KeyWriteOps, "10")
			slow("80 writes at 10 a second", small)
			modify(volume.KeyWriteOps, "max")
			fast("80 writes", small)
			fast("8 MiB read without limits", read)

			c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
			c.repeat(func() error { return c.unstage(id) })
			c.repeat(func() error { return c.delete(id) })
		})
	}
}
