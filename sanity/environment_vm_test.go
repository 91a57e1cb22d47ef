//go:build vm

package sanity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What surrounds the driver on a machine, at its worst: udev, /etc/lvm, lvm.conf, programs that fail or hang, limits.

// realCo is a CO on a real machine.
type realCo struct {
	co
	h *realHarness
}

// startReal gives a running driver on a new machine.
func startReal(t *testing.T) realCo {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	return realCo{co{h, t}, h}
}

// udev seems to be there and answers nobody; somebody's cookie is stuck. case B33
func TestStuckUdev(t *testing.T) {
	c := startReal(t)
	must(t, os.MkdirAll("/run/udev", 0o755))
	must(t, os.WriteFile("/run/udev/control", nil, 0o600)) // by this libudev knows that udevd runs
	cookies := func() string { return sh(t, "dmsetup", "udevcookies") }
	out, err := exec.Command("dmsetup", "udevcreatecookie").Output()
	must(t, err)
	t.Cleanup(func() {
		must(t, os.RemoveAll("/run/udev"))
		_ = exec.Command("dmsetup", "udevreleasecookie", strings.TrimSpace(string(out))).Run() // waits for no one: nobody decrements it
	})
	before := cookies()
	start := time.Now()
	c.wholeLife()
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %v", took)
	}
	if after := cookies(); after != before {
		t.Errorf("cookies before:\n%s\nand after:\n%s", before, after)
	}
	c.wantNothing("with a stuck udev")
}

// /etc/lvm is full, and nothing is written to it. case B37
func TestFullEtcLVM(t *testing.T) {
	c := startReal(t)
	for _, folder := range []string{"/etc/lvm/archive", "/etc/lvm/backup"} {
		must(t, os.MkdirAll(folder, 0o755))
		must(t, unix.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"))
		t.Cleanup(func() { must(t, unix.Unmount(folder, 0)) })
		if err := os.WriteFile(folder+"/full", make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s is not full: %v", folder, err)
		}
	}
	c.wholeLife()
	for _, folder := range []string{"/etc/lvm/archive", "/etc/lvm/backup"} {
		if files, err := os.ReadDir(folder); err != nil || len(files) != 1 {
			t.Errorf("in %s: %v, %v", folder, files, err)
		}
	}
	c.wantNothing("with a full /etc/lvm")
}

// lvm.conf with settings that get in the way.
func TestOddLVMConf(t *testing.T) {
	c := startReal(t)
	const file = "/etc/lvm/lvm.conf"
	before, _ := os.ReadFile(file)
	set := func(text string) { t.Helper(); must(t, os.WriteFile(file, []byte(text), 0o644)) }
	t.Cleanup(func() { must(t, os.WriteFile(file, before, 0o644)) })
	for _, text := range []string{
		`activation { auto_activation_volume_list = [] }
		global { event_activation = 0 use_lvmpolld = 1 units = "s" suffix = 0 }
		devices { scan_lvs = 1 issue_discards = 1 use_devicesfile = 0 }
		allocation { wipe_signatures_when_zeroing_new_lvs = 0 thin_pool_zero = 0 }
		backup { backup = 1 archive = 1 backup_dir = "/nowhere" archive_dir = "/nowhere" }
		nonsense { a = 1 }`,
		`report { output_format = "json" aligned = 0 headings = 0 prefixes = 1 list_item_separator = ";" }
		log { verbose = 3 silent = 1 prefix = "XX" command_names = 1 report_command_log = 1 }`,
	} {
		set(text)
		c.wholeLife()
	}
	// What is not activated cannot be used, and is not left behind.
	set("activation { volume_list = [ \"another\" ] }")
	_, err := c.create(t.Context(), "forbidden", false)
	c.code(err, codes.Internal, "volume_list")
	c.code(c.publishInline("forbidden"), codes.Internal, "volume_list")
	c.wantNothing("where no logical volume may be activated")
	// The physical volumes are hidden: what cannot be seen is not gone.
	set("")
	id := c.mustCreate("hidden", false)
	must(t, c.publishInline("hidden"))
	set("devices { global_filter = [ \"r|.*|\" ] }")
	if err := c.delete(id); err == nil {
		t.Error("deleted in a group that LVM does not see")
	}
	if err := c.unpublishInline("hidden"); err == nil {
		t.Error("an inline volume is said to be gone in a group that LVM does not see")
	}
	set("")
	c.repeatWhileFailing(func() error { return c.unpublishInline("hidden") })
	c.repeat(func() error { return c.delete(id) })
	c.wantNothing("with an odd lvm.conf")
}

// putBefore puts a script before the lvm program: it is run for the verbs, a pattern of the shell, and gets the real one as $real. mend takes it away.
func (c realCo) putBefore(verbs, script string) (mend func()) {
	c.t.Helper()
	path := c.h.in("bin/lvm")
	before, err := os.ReadFile(path)
	must(c.t, err)
	real, err := exec.LookPath("lvm")
	must(c.t, err)
	text := fmt.Sprintf("#!/bin/sh\nreal=%s\ncase \"$1\" in %s)\n%s\n;;\nesac\nexec \"$real\" \"$@\"\n", real, verbs, script)
	write := func(content []byte) {
		must(c.t, os.WriteFile(path+".new", content, 0o755))
		must(c.t, os.Rename(path+".new", path))
	}
	write([]byte(text))
	return func() { write(before) }
}

// lvcreate itself is killed in the middle, and the driver lives on. case B15
func TestKilledLvcreate(t *testing.T) {
	c := startReal(t)
	for _, params := range [][]string{{}, {"type", "thin", "thinPool", c.Pool()}, {"type", "raid1"}} {
		for _, after := range []string{"0.1"} {
			mend := c.putBefore("lvcreate", `"$real" "$@" & pid=$!; sleep `+after+`; kill -9 $pid; wait $pid; exit $?`)
			_, err := c.create(t.Context(), "killed", false, params...)
			mend()
			t.Logf("%v after %s s: %v", params, after, err)
			if code := status.Code(err); code != codes.OK && code != codes.Internal && code != codes.Aborted {
				t.Errorf("%v after %s s: %v", params, after, err)
			}
			var id string
			c.repeat(func() error { id, err = c.create(t.Context(), "killed", false, params...); return err })
			must(t, c.stage(id, false))
			c.repeat(func() error { return c.unstage(id) })
			c.repeat(func() error { return c.delete(id) })
			c.wantNothing("after an lvcreate that was killed")
		}
	}
}

// lvcreate is killed while it makes a snapshot of a volume in use, thin and thick, at several moments. case B15
func TestKilledSnapshot(t *testing.T) {
	c := startReal(t)
	for _, params := range [][]string{{}, {"type", "thin", "thinPool", c.Pool()}} {
		id, target := c.published("origin", false, params...)
		must(t, c.WriteFile(target+"/f", "kept"))
		for _, after := range []string{"0.05", "0.1", "0.2", "0.3", "0.4"} {
			snapshot := func() (string, error) {
				r, err := c.Controller().CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "killed", SourceVolumeId: id})
				return r.GetSnapshot().GetSnapshotId(), err
			}
			mend := c.putBefore("lvcreate", `"$real" "$@" & pid=$!; sleep `+after+`; kill -9 $pid; wait $pid; exit $?`)
			_, err := snapshot()
			mend()
			t.Logf("%v after %s s: %v", params, after, err)
			if code := status.Code(err); code != codes.OK && code != codes.Internal && code != codes.Aborted {
				t.Errorf("%v after %s s: %v", params, after, err)
			}
			var made string
			c.repeat(func() error { made, err = snapshot(); return err })
			if got, err := c.ReadFile(target + "/f"); got != "kept" || err != nil {
				t.Errorf("the origin holds %q, %v", got, err)
			}
			must(t, c.WriteFile(target+"/g", after))
			must(t, c.h.Sync(target+"/g"))
			c.repeat(func() error {
				_, err := c.Controller().DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made})
				return err
			})
		}
		c.gone(id, target)
		c.wantNothing("after an lvcreate -s that was killed")
	}
}

// LVM is noisy, and says nothing that is wrong.
func TestNoisyLVM(t *testing.T) {
	c := startReal(t)
	mend := c.putBefore("lv*|fullreport", `echo "  WARNING: Device /dev/x has size of 1 sectors which is smaller than corresponding PV size of 2 sectors. Was device resized?" >&2; echo "  File descriptor 63 leaked."`)
	c.wholeLife()
	mend()
	for _, verb := range []string{"lvcreate", "lvremove"} { // it says that all is well, and did nothing
		must(t, c.publishInline("there"))
		mend := c.putBefore(verb, "exit 0")
		var err error
		if verb == "lvcreate" {
			_, err = c.create(t.Context(), "liar", false)
		} else {
			err = c.unpublishInline("there")
		}
		mend()
		if err == nil {
			t.Errorf("%s did nothing, and the answer is OK", verb)
		}
		c.repeatWhileFailing(func() error { return c.unpublishInline("there") })
		c.wantNothing("after a " + verb + " that did nothing")
	}
}

// Somebody holds LVM's lock on the volume group: what needs it ends by its deadline, and does not pile up; the rest goes
// on. case B18
func TestLockedGroup(t *testing.T) {
	c := startReal(t)
	id, target := c.mustCreate("mounted", false), c.Target(t, "mounted")
	must(t, c.stage(id, false))
	must(t, c.publishInline("locked"))
	lock, err := os.OpenFile("/run/lock/lvm/V_"+c.VG(), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	t.Cleanup(func() { _ = lock.Close() }) // the clean-up of the machine waits for it too
	within := func(call func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return call(ctx)
	}
	for try := range 5 {
		for _, name := range []string{"a", "b", "c"} {
			err := within(func(ctx context.Context) error { _, err := c.create(ctx, name, false); return err })
			if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Aborted {
				t.Errorf("try %d: create with the group locked: %v", try, err)
			}
		}
		err := within(func(ctx context.Context) error { return c.unpublish(ctx, inlineID("locked"), c.Target(t, "locked")) })
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Aborted {
			t.Errorf("try %d: unpublish with the group locked: %v", try, err)
		}
		must(t, c.publish(id, target, false))
		must(t, c.unpublish(t.Context(), id, target))
		_, err = c.Identity().Probe(t.Context(), &csi.ProbeRequest{})
		must(t, err)
		_, err = c.Controller().GetCapacity(t.Context(), &csi.GetCapacityRequest{})
		must(t, err)
	}
	if n := strings.Count(sh(t, "ps", "-e", "-o", "comm="), "lvm\n"); n > 2 { // the shell before it and itself
		t.Errorf("%d lvm processes wait for the lock", n)
	}
	must(t, lock.Close())
	for _, name := range []string{"a", "b", "c"} {
		var id string
		c.repeat(func() error { var err error; id, err = c.create(t.Context(), name, false); return err })
		c.repeat(func() error { return c.delete(id) })
	}
	c.repeat(func() error { return c.unpublishInline("locked") })
	c.repeat(func() error { return c.unstage(id) })
	c.repeat(func() error { return c.delete(id) })
	c.wantNothing("after the lock is free")
}

// The user of a block volume makes a volume group of his own in it, with the name of ours, and another; kubelet puts a
// loop device over the target. case B35
func TestGuestGroupInABlockVolume(t *testing.T) {
	c := startReal(t)
	for _, guest := range []string{"guest", realVG} {
		id, target := c.mustCreate("guest", true), c.Target(t, "guest")
		must(t, c.stage(id, true))
		must(t, c.publish(id, target, true))
		loop := strings.TrimSpace(sh(t, "losetup", "-f", "--show", target))
		t.Cleanup(func() { _ = exec.Command("losetup", "-d", loop).Run() }) // where the test has failed
		only := []string{"--devices", loop}
		// LVM would refuse the name because of the folder /dev/VG, which a guest has not.
		sh(t, "lvm", "vgcreate", "--config", `devices{dir="`+t.TempDir()+`" scan="/dev" scan_lvs=0}`, "--devices", loop, "-y", guest, loop)
		c.wholeLife()
		c.code(c.unpublish(t.Context(), id, target), codes.Aborted, "loop")
		if guest != realVG { // with ours it cannot be activated: device-mapper has one name for both
			lvm(t, "lvcreate", append(only, "-y", "-Zn", "-l1", "-n", "inner", guest)...)
			c.wholeLife()
			c.code(c.unpublish(t.Context(), id, target), codes.Aborted)
			lvm(t, "lvchange", append(only, "-an", guest+"/inner")...)
		}
		sh(t, "losetup", "-d", loop)
		c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
		c.repeat(func() error { return c.unstage(id) })
		c.repeat(func() error { return c.delete(id) })
		c.wantNothing("after the guest " + guest)
	}
}

// mkfs makes what this kernel cannot mount. case B52
func TestUnmountableFilesystem(t *testing.T) {
	c := startReal(t)
	options := []string{volume.KeyMkfsOptions, "-b 65536 -F"} // blocks larger than a page
	c.code(c.publishInline("unmountable", options...), codes.Internal, "mount")
	c.wantNothing("after an inline volume that cannot be mounted")
	id := c.mustCreate("unmountable", false, options...)
	formatted := c.Commands(t)["mkfs.ext4"]
	for range 3 {
		_, err := c.Node().NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: c.staging(id),
			VolumeCapability: capabilityOf(false), VolumeContext: map[string]string{options[0]: options[1]}})
		c.code(err, codes.Internal, "mount", "ext4")
	}
	if n := c.Commands(t)["mkfs.ext4"] - formatted; n != 1 {
		t.Errorf("formatted %d times", n)
	}
	must(t, c.delete(id))
	c.wantNothing("after a volume that cannot be mounted")
}

// No more file descriptors: calls fail, the driver lives, and nothing is lost or left.
func TestOutOfDescriptors(t *testing.T) {
	c := startReal(t)
	id, target := c.mustCreate("descriptors", false), c.Target(t, "descriptors")
	must(t, c.stage(id, false))
	must(t, c.publish(id, target, false))
	must(t, c.WriteFile(target+"/f", "mine"))
	must(t, c.publishInline("inline"))
	pid := c.h.proc.cmd.Process.Pid
	var was unix.Rlimit
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	for _, more := range []uint64{0, 3} {
		limit := unix.Rlimit{Cur: uint64(len(open)) + more, Max: was.Max}
		must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil))
		_, errCreate := c.create(t.Context(), "more", false)
		calls := map[string]error{
			"create": errCreate, "inline publish": c.publishInline("more"), "publish": c.publish(id, c.Target(t, "more-2"), false),
			"inline unpublish": c.unpublishInline("inline"), "delete": c.delete(id),
		}
		must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil))
		for what, err := range calls {
			t.Logf("%d more descriptors, %s: %v", more, what, err)
		}
		if err := calls["delete"]; err == nil {
			t.Fatal("a mounted volume was deleted")
		}
		c.repeatWhileFailing(func() error { return c.unpublishInline("more") })
		c.repeatWhileFailing(func() error { return c.unpublishInline("inline") })
		must(t, c.publishInline("inline"))
		var more string
		c.repeatWhileFailing(func() error { var err error; more, err = c.create(t.Context(), "more", false); return err })
		must(t, c.delete(more))
		if got, err := c.ReadFile(target + "/f"); got != "mine" || err != nil {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	c.repeat(func() error { return c.unpublishInline("inline") })
	for _, path := range []string{target, c.Target(t, "more-2")} {
		c.repeat(func() error { return c.unpublish(t.Context(), id, path) })
	}
	c.repeat(func() error { return c.unstage(id) })
	c.repeat(func() error { return c.delete(id) })
	c.wantNothing("after a time without descriptors")
}

// The state folder takes no record, being full or read-only: what frees space goes on, and nothing new is begun. case B19
func TestStateFolderTakesNothing(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	state := h.in("state")
	must(t, os.Mkdir(state, 0o700))
	must(t, unix.Mount("tmpfs", state, "tmpfs", 0, "size=64k"))
	h.Start(t)
	c := realCo{co{h, t}, h}
	for what, spoil := range map[string]func() (mend func()){
		"full": func() func() {
			if err := os.WriteFile(state+"/filler", make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("it is not full: %v", err)
			}
			return func() { must(t, os.Remove(state+"/filler")) }
		},
		"read-only": func() func() {
			must(t, unix.Mount("", state, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
			return func() { must(t, unix.Mount("", state, "", unix.MS_REMOUNT|unix.MS_BIND, "")) }
		},
	} {
		id, target := c.mustCreate("state", false), c.Target(t, "state")
		must(t, c.stage(id, false))
		must(t, c.publish(id, target, false))
		must(t, c.publishInline("inline"))
		mend := spoil()
		created, err := c.create(t.Context(), "new", false)
		switch {
		case what == "full" && err == nil: // the record of a create is the name of an empty file, for which there is room
			c.repeat(func() error { return c.delete(created) })
		case what == "full" || status.Code(err) != codes.Internal:
			t.Errorf("%s: create: %v", what, err)
		}
		if err := c.publishInline("new"); status.Code(err) != codes.Internal {
			t.Errorf("%s: inline publish: %v", what, err)
		}
		if r, err := c.Identity().Probe(t.Context(), &csi.ProbeRequest{}); err == nil && r.GetReady().GetValue() {
			t.Errorf("%s: the driver says that it is ready", what)
		}
		c.repeat(func() error { return c.unpublishInline("inline") })
		c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
		c.repeat(func() error { return c.unstage(id) })
		c.repeat(func() error { return c.delete(id) })
		if world := c.World(t); strings.Contains(world, "csi.owner=") {
			t.Errorf("%s: a logical volume is left:\n%s", what, world)
		}
		mend()
		c.wantNothing("after the state folder was " + what)
	}
}

// kubelet's folder is read-only: a publish that cannot make its target leaves nothing. case B13
func TestReadOnlyPodFolder(t *testing.T) {
	c := startReal(t)
	c.Target(t, "read-only")
	pods := c.h.in("kubelet/pods")
	must(t, unix.Mount(pods, pods, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", pods, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	c.code(c.publishInline("read-only"), codes.Internal, "read-only file system")
	c.wantNothing("after a publish below a read-only folder")
	must(t, unix.Unmount(pods, unix.UMOUNT_NOFOLLOW))
	must(t, c.publishInline("read-only"))
	c.repeat(func() error { return c.unpublishInline("read-only") })
	c.wantNothing("after all")
}

// The device nodes of a mounted volume are gone, and the driver starts anew. case B23
func TestMissingNodes(t *testing.T) {
	c := startReal(t)
	for _, block := range []bool{false, true} {
		id, target := c.mustCreate("nodes", block), c.Target(t, "nodes")
		must(t, c.stage(id, block))
		must(t, c.publish(id, target, block))
		d, err := os.Readlink("/dev/" + realVG + "/nodes")
		must(t, err)
		for _, node := range []string{"/dev/" + realVG + "/nodes", "/dev/mapper/" + volume.DMName(volume.Ref{VG: realVG, LV: "nodes"})} {
			_ = os.Remove(node) // without udev they are made by LVM, in one way or the other
		}
		t.Logf("the link led to %s", d)
		c.Kill(t)
		c.Start(t)
		_, err = c.Node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
		must(t, err)
		must(t, c.publish(id, target, block))
		c.repeat(func() error { return c.unpublish(t.Context(), id, target) })
		c.repeat(func() error { return c.unstage(id) })
		must(t, c.stage(id, block))
		c.repeat(func() error { return c.unstage(id) })
		c.repeat(func() error { return c.delete(id) })
		c.wantNothing("after lost device nodes")
	}
}
