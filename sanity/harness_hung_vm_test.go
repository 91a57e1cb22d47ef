//go:build vm

package sanity

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func (h *realHarness) ExpandOn(where string) { h.expand = where }

func (h *realHarness) SnapshotLV(t *testing.T, origin volume.Ref, name string) {
	t.Helper()
	lvm(t, "lvcreate", "-y", "-s", "-L", "4m", "-n", name, origin.String())
}

func (h *realHarness) RemountReadOnly(t *testing.T, path string) {
	t.Helper()
	must(t, unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

func (h *realHarness) Orphans(policy string, grace time.Duration) { h.orphans = orphans{policy, grace} }

func (h *realHarness) Attach(on bool) { h.attach = on }

func (h *realHarness) SuspendLV(t *testing.T, r volume.Ref) {
	t.Helper()
	name := volume.DMName(r)
	sh(t, "dmsetup", "suspend", "--noflush", "--nolockfs", name)
	t.Cleanup(func() { h.resume(t, name) }) // whatever becomes of the test: nothing may hang on it afterwards
}

func (h *realHarness) IsSuspended(t *testing.T, r volume.Ref) bool {
	t.Helper()
	return h.suspended(t, volume.DMName(r))
}

// suspended asks about a device by its device-mapper name.
func (h *realHarness) suspended(t *testing.T, name string) bool {
	t.Helper()
	folders, _ := filepath.Glob("/sys/block/dm-*/dm")
	for _, f := range folders {
		if text, _ := os.ReadFile(f + "/name"); strings.TrimSpace(string(text)) == name {
			text, err := os.ReadFile(f + "/suspended")
			must(t, err)
			return strings.TrimSpace(string(text)) == "1"
		}
	}
	return false
}

// LockVG locks as LVM does: lvm2 lib/misc/lvm-flock.c.
func (h *realHarness) LockVG(t *testing.T) (release func()) {
	t.Helper()
	f, err := os.OpenFile("/run/lock/lvm/V_"+realVG, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	must(t, err)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	release = sync.OnceFunc(func() { _ = f.Close() })
	t.Cleanup(release)
	return release
}

func (h *realHarness) LVMProcesses(t *testing.T) int {
	t.Helper()
	n := 0
	processes, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, p := range processes {
		if text, _ := os.ReadFile(p); strings.TrimSpace(string(text)) == "lvm" {
			n++
		}
	}
	return n
}
