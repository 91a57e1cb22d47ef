//go:build vm

package sanity

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func (h *realHarness) MakePool(t *testing.T, name string, bytes int64) {
	t.Helper()
	lvm(t, "lvcreate", "-y", "-q", "--type", "thin-pool", "-L", fmt.Sprintf("%db", bytes), "-n", name, realVG)
}

func (h *realHarness) Harm(t *testing.T, what string, r volume.Ref, path string) (mend func()) {
	t.Helper()
	device := "/dev/mapper/" + volume.DMName(r)
	kernel := kernelName(t, device)
	write := func(mib int) {
		sh(t, "dd", "if=/dev/zero", "of="+device, "bs=1M", fmt.Sprintf("count=%d", mib), "oflag=direct", "conv=notrunc,nocreat")
	}
	check := func() { sh(t, "sh", "-c", "e2fsck -fy "+device+" || [ $? = 1 ]") } // 1: it found something, and mended it
	switch what {
	case contract.HarmDisks:
		return h.failDisks(t, disksBelow(t, kernel)...)
	case contract.HarmLeg:
		back := h.failDisks(t, disksBelow(t, kernel)[0])
		write(8)
		return func() { back(); lvm(t, "lvchange", "-y", "--refresh", r.String()) }
	case contract.HarmPool:
		write(58)
		return func() { sh(t, "blkdiscard", device) }
	case contract.HarmSnapshot:
		s := contract.SnapshotOf(r)
		tags := volume.Tags{Owner: driver.Default().DriverName, Kind: volume.Snapshot}.Strings()
		lvm(t, "lvcreate", "-y", "-q", "-s", "-L", "8m", "-n", s.LV, "--addtag", tags[0], "--addtag", tags[1], r.String())
		write(16)
		return func() { h.DestroyLV(t, s) }
	case contract.HarmErrors:
		must(t, os.WriteFile("/sys/fs/ext4/"+kernel+"/trigger_fs_error", []byte("1"), 0o600))
		return check
	case contract.HarmReadOnly:
		sh(t, "mount", "-o", "remount,errors=remount-ro", path)
		must(t, os.WriteFile("/sys/fs/ext4/"+kernel+"/trigger_fs_error", []byte("1"), 0o600))
		return check
	case contract.HarmShutdown:
		sh(t, "xfs_io", "-x", "-c", "shutdown", path)
		return func() {}
	case contract.HarmSuspended:
		h.SuspendLV(t, r)
		return func() { sh(t, "dmsetup", "resume", volume.DMName(r)) }
	case contract.HarmForgotten:
		return h.forget(t, r)
	case contract.HarmErrorTable:
		table := h.in("table")
		must(t, os.WriteFile(table, []byte(sh(t, "dmsetup", "table", volume.DMName(r))), 0o600))
		sh(t, "dmsetup", "wipe_table", "--noflush", "--nolockfs", volume.DMName(r))
		return func() {
			sh(t, "dmsetup", "load", volume.DMName(r), table)
			sh(t, "dmsetup", "suspend", "--noflush", "--nolockfs", volume.DMName(r))
			sh(t, "dmsetup", "resume", volume.DMName(r))
		}
	}
	t.Fatalf("no harm %q", what)
	return nil
}

// kernelName gives the kernel's name of a device-mapper device, dm-3.
func kernelName(t *testing.T, path string) string {
	t.Helper()
	return strings.TrimSpace(sh(t, "dmsetup", "info", "-c", "--noheadings", "-o", "blkdevname", path))
}

// disksBelow gives the harness's physical volumes below a device, by their device-mapper names.
func disksBelow(t *testing.T, kernel string) (out []string) {
	t.Helper()
	if text, _ := os.ReadFile("/sys/block/" + kernel + "/dm/name"); strings.HasPrefix(string(text), "csitest") {
		return []string{strings.TrimSpace(string(text))}
	}
	below, err := filepath.Glob("/sys/block/" + kernel + "/slaves/*")
	must(t, err)
	for _, b := range below {
		out = append(out, disksBelow(t, filepath.Base(b))...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// failDisks lets every access to physical volumes fail, until it is mended.
func (h *realHarness) failDisks(t *testing.T, names ...string) (mend func()) {
	t.Helper()
	return h.swapDisks(t, fmt.Sprintf("0 %d error", pvBytes/512), names...)
}

// swapDisks gives physical volumes another table until it is mended. %[1]s and %[2]d in it are the disk and where the physical volume
// begins on it.
func (h *realHarness) swapDisks(t *testing.T, table string, names ...string) (mend func()) {
	t.Helper()
	set := func(to func(pv) string) {
		for _, p := range h.pvs {
			if slices.Contains(names, p.name) {
				sh(t, "dmsetup", "load", p.name, "--table", to(p))
				sh(t, "dmsetup", "suspend", "--noflush", "--nolockfs", p.name)
				sh(t, "dmsetup", "resume", p.name)
			}
		}
	}
	set(func(p pv) string {
		if strings.Contains(table, "%[1]s") {
			return fmt.Sprintf(table, p.disk, p.start)
		}
		return table
	})
	mend = sync.OnceFunc(func() { set(func(p pv) string { return p.table("linear") }) })
	t.Cleanup(mend)
	return mend
}

// forget takes a logical volume out of the metadata of its group, as somebody does who restores an old backup of it.
func (h *realHarness) forget(t *testing.T, r volume.Ref) (mend func()) {
	t.Helper()
	with, without := h.in("with"), h.in("without")
	lvm(t, "vgcfgbackup", "-q", "-f", with, r.VG)
	text, err := os.ReadFile(with)
	must(t, err)
	before, rest, found := strings.Cut(string(text), "\n\t\t"+r.LV+" {\n")
	_, after, ended := strings.Cut(rest, "\n\t\t}\n")
	if !found || !ended {
		t.Fatalf("%s is not in the metadata:\n%s", r, text)
	}
	must(t, os.WriteFile(without, []byte(before+"\n"+after), 0o600))
	restore := func(file string) { lvm(t, "vgcfgrestore", "-y", "--force", "-f", file, r.VG) }
	restore(without)
	mend = sync.OnceFunc(func() { restore(with) })
	t.Cleanup(mend)
	return mend
}
