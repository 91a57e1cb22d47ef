// Package mount is what the driver does with mounts, target paths and file systems on this machine: it mounts and
// unmounts, tells what is mounted and who keeps it busy, probes, makes and grows file systems. Kernel error numbers come
// in, the sentinels of pkg/volume go out.
//
// It mounts with the mount API of file descriptors (fsopen(2), fsmount(2), open_tree(2), mount_setattr(2),
// move_mount(2); kernel 5.12): the mount is made with all its flags where nobody sees it, and then appears at its target
// in one step. So a failure, or a kill, leaves nothing behind, and there is no moment at which a read-only target can be
// written. mount(8) and umount(8) are not run. Nothing is ever unmounted lazily or by force.
package mount

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Host is this machine, as seen from the mount namespace of this process. It holds no state but questions that are open: every
// answer is the kernel's.
// It is safe for use by several goroutines.
type Host struct {
	runner  run.Runner
	effects effect.Seam
	proc    string // /proc
	sys     string // /sys
	dev     string // /dev
	search  time.Duration
	open    ask.Open // questions that may hang
}

// Option changes a Host from what is right outside of tests.
type Option func(*Host)

// WithRoots makes the Host read another folder than /proc, and another than /sys.
func WithRoots(proc, sys string) Option {
	return func(h *Host) { h.proc, h.sys = proc, sys }
}

// searchTime is how long Holders looks. It is spent while kubelet waits for the answer to an unpublish, and a search over
// 1,000 processes takes a tenth of it.
const searchTime = 2 * time.Second

// New gives the machine. Programs are run by runner; changes that need none pass through effects.
func New(runner run.Runner, effects effect.Seam, options ...Option) *Host {
	h := &Host{runner: runner, effects: effects, proc: "/proc", sys: "/sys", dev: "/dev", search: searchTime}
	for _, o := range options {
		o(h)
	}
	return h
}

// devno is a device number.
type devno struct{ major, minor uint32 }

func numberOf(d volume.Device) devno { return devno{d.Major, d.Minor} }

func split(dev uint64) devno { return devno{unix.Major(dev), unix.Minor(dev)} }

func (n devno) String() string { return fmt.Sprintf("%d:%d", n.major, n.minor) }

func parseDevno(s string) (devno, error) {
	major, minor, ok := strings.Cut(strings.TrimSpace(s), ":")
	a, err1 := strconv.ParseUint(major, 10, 32)
	b, err2 := strconv.ParseUint(minor, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return devno{}, fmt.Errorf("%q is not a device number", s)
	}
	return devno{uint32(a), uint32(b)}, nil
}

// checkNode makes sure that the device's path is the node of this very device. A path is only a name: behind it may be
// another device by now, and what follows could be a mkfs.
func checkNode(d volume.Device) error {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(d.Path, &st) }); err != nil {
		return fmt.Errorf("device %s: %w", d, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("device %s: the path is not a block device node", d)
	}
	if at := split(st.Rdev); at != numberOf(d) {
		return fmt.Errorf("device %s: the path is the node of device %s", d, at)
	}
	return nil
}

// openDevice opens the node of the device, and makes sure that it is the node of this very device.
func openDevice(d volume.Device) (*os.File, error) {
	f, err := os.OpenFile(d.Path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", d, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFBLK || split(st.Rdev) != numberOf(d)) {
		err = fmt.Errorf("the path is not the node of this device")
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("device %s: %w", d, err)
	}
	return f, nil
}

// blockAttr reads a number from the folder of a block device in sysfs.
func (h *Host) blockAttr(n devno, name string) (int64, error) {
	v, err := sysfs.Number(filepath.Join(h.sys, "dev/block", n.String(), name))
	if err != nil {
		return 0, fmt.Errorf("device %s: %w", n, err)
	}
	return v, nil
}

// sizeBytes gives the size the device has now. sysfs counts in sectors of 512 bytes whatever the device's own are.
func (h *Host) sizeBytes(n devno) (int64, error) {
	sectors, err := h.blockAttr(n, "size")
	return sectors * 512, err
}

// isReadOnly tells what BLKROGET would: the device as a whole refuses writes.
func (h *Host) isReadOnly(n devno) (bool, error) {
	ro, err := h.blockAttr(n, "ro")
	return ro != 0, err
}

// Sync implements lifecycle.Filesystems. It takes as long as the disk needs; a crash leaves a part written.
func (h *Host) Sync(ctx context.Context, mountpoint string) error {
	f, err := os.OpenFile(mountpoint, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	err = h.effects.Do(ctx, "syncfs", mountpoint, func() error {
		return retry(func() error { return unix.Syncfs(int(f.Fd())) })
	})
	if err != nil {
		return fmt.Errorf("sync the file system at %s: %w", mountpoint, err)
	}
	return nil
}

// SetReadOnly makes the whole block device read-only, or writable again (BLKROSET). It lasts until the device goes or
// is set again; a crash leaves it one way or the other. Nothing is done where the device is so already.
func (h *Host) SetReadOnly(ctx context.Context, d volume.Device, readOnly bool) error {
	f, err := openDevice(d)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	switch is, err := h.isReadOnly(numberOf(d)); {
	case err != nil:
		return err
	case is == readOnly:
		return nil
	}
	value := 0
	if readOnly {
		value = 1
	}
	err = h.effects.Do(ctx, "blkroset", fmt.Sprintf("%s %d", d.Path, value), func() error {
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, value)
	})
	if err != nil {
		return fmt.Errorf("set device %s read-only %v: %w", d, readOnly, err)
	}
	return nil
}

// retry repeats a call that a signal interrupted; the Go runtime uses signals itself.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR { //nolint:errorlint // straight from the kernel
			return err
		}
	}
}
