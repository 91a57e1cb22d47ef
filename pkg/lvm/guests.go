package lvm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
)

// guests finds block devices that lie on volumes: what a volume's user made of his device, or what was made of it for
// him. LVM must not look for physical volumes there (case B35). It skips logical volumes themselves by scan_lvs=0.
// Not found: a loop device over a file in a btrfs, which has a device number of its own.
type guests struct {
	sys, dev string
	ours     func(vg string) bool
}

// find gives the paths of all guests: loop devices over a block device or over a file on one of our logical volumes,
// and device-mapper and md devices built on our logical volumes or on such loop devices.
func (g guests) find() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(g.sys, "block"))
	if err != nil {
		return nil, err
	}
	var hidden []string
	for _, e := range entries {
		name := e.Name()
		is, err := g.isGuest(name, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist): // gone while we looked
			continue
		case err != nil:
			return nil, err
		case !is:
			continue
		}
		hidden = append(hidden, filepath.Join(g.dev, name))
		if alias, err := g.attr(name, "dm/name"); err == nil {
			hidden = append(hidden, filepath.Join(g.dev, "mapper", alias))
		}
	}
	return hidden, nil
}

// maxStack is how many devices may lie on each other before we stop looking; the kernel's own bound for bios is lower.
const maxStack = 16

func (g guests) isGuest(name string, depth int) (bool, error) {
	switch {
	case depth > maxStack:
		return false, nil
	case strings.HasPrefix(name, "loop"):
		return g.loopIsGuest(name)
	case !strings.HasPrefix(name, "dm-") && !strings.HasPrefix(name, "md"):
		return false, nil
	}
	if lv, err := g.isLogicalVolume(name); err != nil || lv {
		return false, err // a logical volume is hidden by scan_lvs=0, and need not be
	}
	slaves, err := os.ReadDir(filepath.Join(g.sys, "block", name, "slaves"))
	if err != nil {
		return false, err
	}
	for _, s := range slaves {
		if ours, err := g.isOurs(s.Name()); err == nil && ours {
			return true, nil
		}
		if is, err := g.isGuest(s.Name(), depth+1); err == nil && is {
			return true, nil
		}
	}
	return false, nil
}

func (g guests) isLogicalVolume(name string) (bool, error) {
	uuid, err := g.attr(name, "dm/uuid")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // no device-mapper device
	}
	return strings.HasPrefix(uuid, dmPrefix), err
}

// isOurs reports whether the device is a logical volume of one of our groups.
func (g guests) isOurs(name string) (bool, error) {
	if lv, err := g.isLogicalVolume(name); err != nil || !lv {
		return false, err
	}
	dmName, err := g.attr(name, "dm/name")
	return g.ours(groupOfDMName(dmName)), err
}

// groupOfDMName takes the group from a device-mapper name, in which each "-" of the names is doubled.
func groupOfDMName(name string) string {
	parts := strings.Split(strings.ReplaceAll(name, "--", "\x00"), "-")
	return strings.ReplaceAll(parts[0], "\x00", "-")
}

// loopIsGuest asks the loop driver, because the path in sysfs may be one of another mount namespace.
func (g guests) loopIsGuest(name string) (bool, error) {
	if _, err := g.attr(name, "loop/backing_file"); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // free
		}
		return false, err
	}
	fd, err := unix.Open(filepath.Join(g.dev, name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, nil
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	info, err := unix.IoctlLoopGetStatus64(fd)
	switch {
	case errors.Is(err, unix.ENXIO): // free by now
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "LOOP_GET_STATUS64", Path: name, Err: err}
	case info.Rdevice != 0:
		return true, nil
	}
	link, err := os.Readlink(filepath.Join(g.sys, "dev/block", devNumbers(info.Device)))
	if err != nil {
		return false, nil
	}
	return g.isOurs(filepath.Base(link))
}

func (g guests) attr(name, attr string) (string, error) {
	return sysfs.Read(filepath.Join(g.sys, "block", name, attr))
}
