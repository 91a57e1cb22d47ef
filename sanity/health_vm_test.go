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

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What only a real kernel can do to a disk: to hang without a word, to be pulled out, to write some blocks and not others.

// reasons gives what the node says of a volume, "STATUS Reason", and the bound within which it must say so.
func (c co) reasons(id, target string) (out []string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	r, err := c.Node().NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: target})
	must(c.t, err)
	for _, s := range r.GetVolumeHealth().GetHealthStatuses() {
		out = append(out, s.GetStatus().String()+" "+s.GetReason())
	}
	return out
}

func (c co) storageReasons() (out []string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	r, err := c.Node().NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	must(c.t, err)
	for _, s := range r.GetBackendHealth() {
		out = append(out, s.GetStatus().String()+" "+s.GetReason())
	}
	return out
}

// want waits until the answer holds what is wanted; "": until it is empty.
func (c co) want(what, want string, answer func() []string) {
	c.t.Helper()
	for end := time.Now().Add(90 * time.Second); ; <-time.After(100 * time.Millisecond) {
		got := strings.Join(answer(), ", ")
		if want == "" && got == "" || want != "" && strings.Contains(got, want) {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%s: got %q, want %q", what, got, want)
		}
	}
}

func (c co) published(name string, block bool, params ...string) (id, target string) {
	c.t.Helper()
	id, target = c.mustCreate(name, block, params...), c.Target(c.t, name)
	must(c.t, c.stage(id, block))
	must(c.t, c.publish(id, target, block))
	return id, target
}

func (c co) gone(id, target string) {
	c.t.Helper()
	c.repeat(func() error { return c.unpublish(c.t.Context(), id, target) })
	c.repeat(func() error { return c.unstage(id) })
	c.repeat(func() error { return c.delete(id) })
}

// A disk that answers no more, and does not say so. Of two volumes on it, and asked again and again, one thread of the driver hangs.
func TestHealthOfAHungDisk(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	c := co{h, t}
	first, at1 := c.published("hung-1", true)
	second, at2 := c.published("hung-2", true)
	c.want("at first", "", func() []string { return c.reasons(first, at1) })
	disks := disksBelow(t, kernelName(t, "/dev/mapper/"+volume.DMName(volume.Ref{VG: realVG, LV: "hung-1"})))
	if other := disksBelow(t, kernelName(t, "/dev/mapper/"+volume.DMName(volume.Ref{VG: realVG, LV: "hung-2"}))); fmt.Sprint(other) != fmt.Sprint(disks) {
		t.Fatalf("the volumes are on %v and %v", disks, other)
	}
	sh(t, "modprobe", "dm-delay")
	mend := h.swapDisks(t, fmt.Sprintf("0 %d delay %%[1]s %%[2]d 3600000", pvBytes/512), disks...)
	start := time.Now()
	if got := strings.Join(c.reasons(first, at1), ", "); got != "INACCESSIBLE DeviceHung" {
		t.Errorf("got %q", got)
	}
	if took := time.Since(start); took > 12*time.Second {
		t.Errorf("the first answer took %s", took)
	}
	t.Logf("the first answer took %s", time.Since(start).Round(time.Millisecond))
	start = time.Now()
	for range 50 {
		for id, at := range map[string]string{first: at1, second: at2} {
			if got := strings.Join(c.reasons(id, at), ", "); got != "INACCESSIBLE DeviceHung" {
				t.Errorf("%s: got %q", id, got)
			}
		}
	}
	if got := strings.Join(c.storageReasons(), ", "); !strings.Contains(got, "STORAGE_UNREACHABLE DeviceHung") {
		t.Errorf("the storage: got %q", got)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("a hundred more took %s", took)
	}
	if n := h.hanging(); n > 2 { // one read, and at most LVM's inventory beside it
		t.Errorf("%d threads of the driver hang in the kernel", n)
	}
	mend()
	c.want("after the disk went on", "", func() []string { return c.reasons(first, at1) })
	c.want("after the disk went on", "", func() []string { return c.reasons(second, at2) })
	c.want("after the disk went on", "", c.storageReasons)
	c.gone(first, at1)
	c.gone(second, at2)
}

// hanging counts the driver's threads in uninterruptible sleep.
func (h *realHarness) hanging() (n int) {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", h.proc.cmd.Process.Pid))
	for _, s := range stats {
		text, _ := os.ReadFile(s)
		if _, after, ok := strings.Cut(string(text), ") "); ok && strings.HasPrefix(after, "D") {
			n++
		}
	}
	return n
}

// A disk is pulled out, and put in again.
func TestHealthOfAPulledDisk(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	c := co{h, t}
	id, target := c.published("pulled", true)
	c.want("at first", "", func() []string { return c.reasons(id, target) })
	name := disksBelow(t, kernelName(t, "/dev/mapper/"+volume.DMName(volume.Ref{VG: realVG, LV: "pulled"})))[0]
	var disk string
	for _, p := range h.pvs {
		if p.name == name {
			disk = p.disk
		}
	}
	device, err := filepath.EvalSymlinks("/sys/block/" + filepath.Base(disk) + "/device/..")
	must(t, err)
	before := blockDevices(t)
	must(t, os.WriteFile(filepath.Join(device, "remove"), []byte("1"), 0o600))
	c.want("pulled", "INACCESSIBLE DiskMissing", func() []string { return c.reasons(id, target) })
	c.want("pulled", "INACCESSIBLE DeviceUnreadable", func() []string { return c.reasons(id, target) })
	c.want("pulled", "STORAGE_DEGRADED DiskMissing", c.storageReasons)

	must(t, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0o600))
	var back string
	for end := time.Now().Add(bound); back == ""; <-time.Tick(10 * time.Millisecond) {
		for b := range blockDevices(t) {
			if strings.HasPrefix(b, "vd") && (!before[b] || "/dev/"+b == disk) {
				back = "/dev/" + b
			}
		}
		if time.Now().After(end) {
			t.Fatal("the disk does not come back")
		}
	}
	var names []string
	for i, p := range h.pvs {
		if p.disk == disk {
			h.pvs[i].disk = back
			names = append(names, p.name)
		}
	}
	h.swapDisks(t, fmt.Sprintf("0 %d linear %%[1]s %%[2]d", pvBytes/512), names...)
	c.want("put in again", "", func() []string { return c.reasons(id, target) })
	c.want("put in again", "", c.storageReasons)
	c.gone(id, target)
}

func blockDevices(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir("/sys/block")
	must(t, err)
	out := map[string]bool{}
	for _, e := range entries {
		out[e.Name()] = true
	}
	return out
}

// A disk that takes no more writes: btrfs counts that, and makes itself read-only.
func TestHealthOfABtrfs(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	c := co{h, t}
	id, target := c.published("btrfs", false, "csi.storage.k8s.io/fstype", "btrfs")
	c.want("at first", "", func() []string { return c.reasons(id, target) })
	disks := disksBelow(t, kernelName(t, "/dev/mapper/"+volume.DMName(volume.Ref{VG: realVG, LV: "btrfs"})))
	sh(t, "modprobe", "dm-flakey")
	mend := h.swapDisks(t, fmt.Sprintf("0 %d flakey %%[1]s %%[2]d 0 60 1 error_writes", pvBytes/512), disks...)
	must(t, os.WriteFile(target+"/f", make([]byte, 1<<20), 0o600))
	_ = h.syncFolder(target) // it fails, and that is what the file system then knows
	c.want("writes fail", "INACCESSIBLE FilesystemReadOnly", func() []string { return c.reasons(id, target) })
	c.want("writes fail", "DEGRADED FilesystemErrors", func() []string { return c.reasons(id, target) })
	mend()
	c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
	c.repeat(func() error { return c.unstage(id) })
	must(t, c.stage(id, false))
	sh(t, "btrfs", "device", "stats", "-z", c.staging(id))
	must(t, c.publish(id, target, false))
	c.want("mended", "", func() []string { return c.reasons(id, target) })
	c.gone(id, target)
}

func (h *realHarness) syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}

// A disk has an error, of which the kernel takes note.
func TestHealthOfAnErringDisk(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	sh(t, "modprobe", "sd_mod") // there is no udev that would
	before := blockDevices(t)
	sh(t, "modprobe", "scsi_debug", "dev_size_mb=64", "opts=2") // 2: sector 4660 cannot be read
	var disk string
	for end := time.Now().Add(bound); disk == ""; <-time.Tick(10 * time.Millisecond) {
		for b := range blockDevices(t) {
			if _, err := os.Stat("/dev/" + b); err == nil && !before[b] && strings.HasPrefix(b, "sd") {
				disk = "/dev/" + b
			}
		}
		if time.Now().After(end) {
			t.Fatal("no SCSI disk")
		}
	}
	lvm(t, "vgextend", "-y", "-q", realVG, disk)
	defer func() {
		lvm(t, "vgreduce", realVG, disk)
		sh(t, "modprobe", "-r", "scsi_debug")
	}()
	h.Start(t)
	c := co{h, t}
	c.want("at first", "", c.storageReasons)
	sh(t, "sh", "-c", "! dd if="+disk+" of=/dev/null bs=512 skip=4660 count=1 iflag=direct")
	c.want("after an error", "STORAGE_DEGRADED DiskErrors", c.storageReasons)
	h.Stop(t)
}

// A thin pool is full, and then the disk of its metadata takes no more writes.
func TestHealthOfAThinPool(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	lvm(t, "lvcreate", "-y", "-q", "--type", "thin-pool", "-L", "64m", "-n", "small", realVG)
	lvm(t, "lvchange", "-y", "-q", "--errorwhenfull", "y", realVG+"/small") // lvcreate takes no such option
	h.Start(t)
	c := co{h, t}
	id, target := c.published("thin", true, "type", "thin", "thinPool", "small")
	ask := func() []string { return c.reasons(id, target) }
	c.want("at first", "", ask)

	lvm(t, "lvcreate", "-y", "-q", "-V", "64m", "-T", realVG+"/small", "-n", "greedy") // more than there is
	other := "/dev/mapper/" + volume.DMName(volume.Ref{VG: realVG, LV: "greedy"})
	own := "/dev/mapper/" + volume.DMName(volume.Ref{VG: realVG, LV: "thin"})
	fill := func(device string) string {
		return "dd if=/dev/zero of=" + device + " bs=1M count=64 oflag=direct conv=notrunc,nocreat"
	}
	sh(t, "sh", "-c", fill(other))
	c.want("all blocks are used", "DEGRADED ThinPoolFull", ask)
	sh(t, "sh", "-c", "! "+fill(own))
	c.want("a write has met that", "INACCESSIBLE ThinPoolFull", ask)
	c.want("a write has met that", "STORAGE_DEGRADED ThinPoolFull", c.storageReasons)
	lvm(t, "lvremove", "-f", "-y", realVG+"/greedy")
	c.want("there is room again", "", ask)
	c.want("there is room again", "", c.storageReasons)

	metadata := disksBelow(t, kernelName(t, "/dev/mapper/"+volume.DMName(volume.Ref{VG: realVG, LV: "small_tmeta"})))
	sh(t, "modprobe", "dm-flakey")
	mend := h.swapDisks(t, fmt.Sprintf("0 %d flakey %%[1]s %%[2]d 0 60 1 error_writes", pvBytes/512), metadata...)
	sh(t, "sh", "-c", fill(own)+" || true")
	c.want("no metadata can be written", "ThinPoolNeedsCheck", ask)
	c.want("no metadata can be written", "STORAGE_DEGRADED ThinPoolReadOnly", c.storageReasons)
	mend()
	c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
	c.repeat(func() error { return c.unstage(id) })
	lvm(t, "lvchange", "-an", realVG+"/thin")
	lvm(t, "lvchange", "-an", realVG+"/small")
	lvm(t, "lvconvert", "-y", "--repair", realVG+"/small")
	// thin_repair of thin-provisioning-tools 0.9 keeps the mark.
	sh(t, "lvm", "lvchange", "--config", tuned+` global{thin_check_options=["-q","--clear-needs-check-flag"]}`, "-ay", realVG+"/thin")
	must(t, c.stage(id, true))
	must(t, c.publish(id, target, true))
	c.want("repaired", "", ask)
	c.want("repaired", "", c.storageReasons)
	c.gone(id, target)
}
