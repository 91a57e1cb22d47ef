//go:build vm

package sanity

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// kubelet's folder lies on another partition and is bound to where kubelet looks for it, and both are shared: each mount
// appears at two paths. case B1 (b)
func TestSharedMounts(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	must(t, os.Mkdir(h.in("data"), 0o755))
	sh(t, "mount", "-t", "tmpfs", "tmpfs", h.in("data"))
	sh(t, "mount", "--make-shared", h.in("data"))
	must(t, os.MkdirAll(h.in("data/kubelet/pods"), 0o755))
	must(t, os.MkdirAll(h.in("data/kubelet/plugins"), 0o755))
	sh(t, "mount", "--bind", h.in("data/kubelet"), h.in("kubelet"))
	h.Start(t)
	c := co{h, t}
	alias := func(path string) string { return strings.Replace(path, h.in("kubelet"), h.in("data/kubelet"), 1) }
	mounted := func(path string, want int) {
		t.Helper()
		for _, p := range []string{path, alias(path)} {
			if at := h.Mounts(t, p); len(at) != want {
				t.Fatalf("%d mounts at %s, want %d: %+v", len(at), p, want, at)
			}
		}
	}
	for _, block := range []bool{false, true} {
		id, target := c.mustCreate("shared", block), h.Target(t, "shared")
		must(t, c.stage(id, block))
		must(t, c.publish(id, target, block)) // the staging path by its other name is no second target
		must(t, c.publish(id, target, block))
		mounted(target, 1)
		c.code(c.publish(id, h.Target(t, "shared-2"), block), codes.FailedPrecondition, target)
		c.code(c.unstage(id), codes.Aborted, target)
		if !block {
			must(t, h.WriteFile(alias(target)+"/f", "x"))
			_, release := h.Hold(t, contract.HoldFile, alias(target)+"/f") // through the other path
			c.code(c.repeatWhileLocked(func() error { return c.unpublish(t.Context(), id, target) }), codes.Aborted, "sleep")
			mounted(target, 1)
			release()
		}
		c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
		mounted(target, 0)
		c.repeat(func() error { return c.unstage(id) })
		mounted(c.staging(id), 0)
		must(t, c.delete(id))
	}
	must(t, c.publishInline("shared"))
	mounted(h.Target(t, "shared"), 1)
	c.repeat(func() error { return c.unpublishInline("shared") })
	mounted(h.Target(t, "shared"), 0)
	c.wantNothing("after shared mounts")
}
