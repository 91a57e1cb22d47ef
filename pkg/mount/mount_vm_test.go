//go:build vm

package mount_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/mount"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// These tests need root and at least one blank disk, /dev/vda, of 4 GiB. Devices are device-mapper linear ones on it.
const disk = "/dev/vda"

func TestMain(m *testing.M) {
	if how := os.Getenv("MOUNT_TEST_HOLD"); how != "" {
		os.Exit(hold(how, os.Getenv("MOUNT_TEST_PATH")))
	}
	os.Exit(m.Run())
}

// hold is what the holding child does: it holds, says so, and ends with its input.
func hold(how, path string) int {
	err := func() error {
		switch how {
		case contract.HoldFile:
			_, err := unix.Open(path, unix.O_RDONLY, 0)
			return err
		case contract.HoldDevice:
			_, err := unix.Open(path, unix.O_RDWR, 0)
			return err
		case contract.HoldCwd:
			return unix.Chdir(path)
		case contract.HoldMapped:
			fd, err := unix.Open(path, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			return err
		case contract.HoldNamespace:
			return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		return errors.New("no such way to hold")
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("holding")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return 0
}

func startHolder(t *testing.T, how string, _ volume.Device, path string) (int, func()) {
	t.Helper()
	if how == contract.HoldLoop {
		loop := strings.TrimSpace(sh(t, "losetup", "-f", "--show", path))
		return 0, func() { sh(t, "losetup", "-d", loop) }
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "MOUNT_TEST_HOLD="+how, "MOUNT_TEST_PATH="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if how == contract.HoldNamespace {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	}
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "holding\n" {
		t.Fatalf("the holder said %q, %v", line, err)
	}
	return cmd.Process.Pid, func() {
		check(t, in.Close())
		check(t, cmd.Wait())
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sh(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// disks hands out linear devices, each from a place of its own on the disk.
type disks struct {
	count int
	start map[string]int64 // in sectors, by name, of those in use
}

const slot = int64(1100) << 11 // sectors: room for a device to be enlarged to 1 GiB

func newDisks() *disks { return &disks{start: map[string]int64{}} }

func (k *disks) device(t testing.TB, bytes int64) volume.Device {
	t.Helper()
	used := slices.Collect(maps.Values(k.start))
	var start int64
	for slices.Contains(used, start) {
		start += slot
	}
	k.count++
	name := fmt.Sprintf("mt%d", k.count)
	sh(t, "dmsetup", "create", name, "--table", fmt.Sprintf("0 %d linear %s %d", bytes/512, disk, start))
	k.start[name] = start
	d := k.describe(t, name)
	t.Cleanup(func() {
		unmountAll(t, d.Same)
		sh(t, "dmsetup", "remove", "--retry", name)
		delete(k.start, name)
	})
	sh(t, "blkdiscard", "-z", d.Path)
	return d
}

// unmountAll clears up after a test that failed; one that passes leaves nothing.
func unmountAll(t testing.TB, which func(volume.Mount) bool) {
	t.Helper()
	mounts, err := newHost().List(context.Background()) // the test's own context has ended
	check(t, err)
	left := 0
	for _, m := range slices.Backward(mounts) {
		if which(m) {
			left++
			_ = unix.Unmount(m.Target, 0)
		}
	}
	if left != 0 {
		t.Errorf("%d left mounted", left)
	}
}

func (k *disks) describe(t testing.TB, name string) volume.Device {
	t.Helper()
	var major, minor uint32
	_, err := fmt.Sscanf(sh(t, "dmsetup", "info", "-c", "--noheadings", "--separator", " ", "-o", "major,minor", name), "%d %d", &major, &minor)
	check(t, err)
	path := fmt.Sprintf("/dev/dm-%d", minor)
	var bytes int64
	_, err = fmt.Sscan(sh(t, "blockdev", "--getsize64", path), &bytes)
	check(t, err)
	return volume.Device{Major: major, Minor: minor, Path: path, SizeBytes: bytes}
}

func (k *disks) enlarge(t *testing.T, d volume.Device, bytes int64) volume.Device {
	t.Helper()
	name := strings.TrimSpace(sh(t, "cat", "/sys/class/block/"+filepath.Base(d.Path)+"/dm/name"))
	sh(t, "dmsetup", "reload", name, "--table", fmt.Sprintf("0 %d linear %s %d", bytes/512, disk, k.start[name]))
	sh(t, "dmsetup", "resume", name)
	return k.describe(t, name)
}

func newHost() *mount.Host { return mount.New(&run.Local{}, nil) }

func TestContract(t *testing.T) {
	k := newDisks()
	contract.Mount(t, func(t *testing.T) contract.MountBench {
		b := plainBench(newHost(), tempDir(t))
		b.Device = func(t *testing.T, bytes int64) volume.Device { return k.device(t, bytes) }
		b.Enlarge, b.Put, b.Hold = k.enlarge, contract.PutSignature, startHolder
		return b
	})
}

// tempDir is t.TempDir with its links resolved and without a mount left in it, even by a test that failed.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	t.Cleanup(func() {
		unmountAll(t, func(m volume.Mount) bool { return strings.HasPrefix(m.Target, dir+"/") })
	})
	return dir
}
