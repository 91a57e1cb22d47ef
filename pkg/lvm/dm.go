package lvm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// dmPrefix begins the device-mapper uuid of every device of LVM; the uuids of group and logical volume follow without
// their dashes (lvm2 lib/activate/dev_manager.c, build_dm_uuid).
const dmPrefix = "LVM-"

// From linux/dm-ioctl.h; also Documentation/admin-guide/device-mapper/dm-ioctl. Unchanged since version 4.0.0 (2003).
const (
	dmIoctlSize   = 312
	dmNameLen     = 128
	dmUUIDLen     = 129
	dmDataSize    = 12
	dmDataStart   = 16
	dmTargetCount = 20
	dmOpenCount   = 24
	dmFlags       = 28
	dmDev         = 40
	dmName        = 48
	dmUUID        = dmName + dmNameLen

	dmSuspendFlag    = 1 << 1
	dmStatusTable    = 1 << 4 // the table, not the status
	dmBufferFullFlag = 1 << 8 // the answer did not fit
	dmNoFlushFlag    = 1 << 11

	// struct dm_target_spec
	specSize = 40
	specNext = 20
	specKind = 24
)

// dmCommand is the number of an ioctl: _IOWR(DM_IOCTL, n, struct dm_ioctl).
type dmCommand uintptr

const (
	dmListDevices dmCommand = 3<<30 | dmIoctlSize<<16 | 0xfd<<8 | 2
	dmDevSuspend  dmCommand = 3<<30 | dmIoctlSize<<16 | 0xfd<<8 | 6
	dmDevStatus   dmCommand = 3<<30 | dmIoctlSize<<16 | 0xfd<<8 | 7
	dmTableStatus dmCommand = 3<<30 | dmIoctlSize<<16 | 0xfd<<8 | 12
	dmTargetMsg   dmCommand = 3<<30 | dmIoctlSize<<16 | 0xfd<<8 | 14
)

// deviceMapper looks at device-mapper devices. It changes missing device nodes, and what a pool's reservation and the snapshots of a group need.
type deviceMapper struct {
	sys, dev string
	control  *control
	effects  effect.Seam
	status   func(name string) (dmStatus, error) // askKernel; another in tests without device-mapper
	told     func(name string) ([]target, error) // askTargets; the same
	listed   func() (map[string]string, error)   // askNames; the same
}

func newDeviceMapper(sys, dev string, effects effect.Seam) deviceMapper {
	d := deviceMapper{sys: sys, dev: dev, control: &control{path: filepath.Join(dev, "mapper/control")}, effects: effects}
	d.status, d.told, d.listed = d.askKernel, d.askTargets, d.askNames
	return d
}

// control is device-mapper's own node. It is opened by the first question and stays open, so that a look at many devices does not open it for
// each. A process that ends closes it.
type control struct {
	path string
	mu   sync.Mutex
	fd   int
	open bool
}

func (c *control) descriptor() (fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		if c.fd, err = unix.Open(c.path, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return -1, &fs.PathError{Op: "open", Path: c.path, Err: err}
		}
		c.open = true
	}
	return c.fd, nil
}

// dmStatus is what the kernel tells of a device-mapper device.
type dmStatus struct {
	uuid         string
	major, minor uint32
	open         int
	suspended    bool
}

// dmTarget names a device: by its device-mapper name, or by its number.
type dmTarget struct {
	name string
	dev  uint64
}

func (t dmTarget) String() string {
	if t.name == "" {
		return devNumbers(t.dev)
	}
	return t.name
}

// ioctl sends a command about a device, with data behind the header, and gives the header and the data that the kernel
// wrote over it. ErrNotFound: there is no such device.
func (d deviceMapper) ioctl(command dmCommand, of dmTarget, flags uint32, data []byte) ([]byte, error) {
	if len(of.name) >= dmNameLen {
		return nil, fmt.Errorf("device-mapper name %s: %w", of.name, unix.ENAMETOOLONG)
	}
	buf := append(make([]byte, dmIoctlSize, dmIoctlSize+len(data)), data...)
	binary.NativeEndian.PutUint32(buf[0:], 4) // version 4.0.0: any kernel takes what is not above its own
	binary.NativeEndian.PutUint32(buf[dmDataSize:], uint32(len(buf)))
	binary.NativeEndian.PutUint32(buf[dmDataStart:], dmIoctlSize)
	binary.NativeEndian.PutUint32(buf[dmFlags:], flags)
	binary.NativeEndian.PutUint64(buf[dmDev:], of.dev)
	copy(buf[dmName:], of.name)
	fd, err := d.control.descriptor()
	if err != nil {
		return nil, err
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(command), uintptr(unsafe.Pointer(&buf[0])))
	switch {
	case errno == unix.ENXIO:
		return nil, fmt.Errorf("%w: there is no device-mapper device %s", volume.ErrNotFound, of.name)
	case errno != 0:
		return nil, errno
	}
	return buf, nil
}

// whole is ioctl for an answer of unknown size: with more and more room for it, until it fits or there was room for most bytes.
func (d deviceMapper) whole(command dmCommand, of dmTarget, flags uint32, most int) ([]byte, error) {
	for bytes := 4096; ; bytes *= 16 {
		buf, err := d.ioctl(command, of, flags, make([]byte, bytes))
		if err != nil || bytes >= most || binary.NativeEndian.Uint32(buf[dmFlags:])&dmBufferFullFlag == 0 {
			return buf, err
		}
	}
}

// askKernel asks for the device of this device-mapper name. ErrNotFound: there is none.
func (d deviceMapper) askKernel(name string) (dmStatus, error) {
	buf, err := d.ioctl(dmDevStatus, dmTarget{name: name}, 0, nil)
	if err != nil {
		return dmStatus{}, fmt.Errorf("DM_DEV_STATUS of %s: %w", name, err)
	}
	dev := binary.NativeEndian.Uint64(buf[dmDev:])
	uuid, _, _ := strings.Cut(string(buf[dmUUID:dmUUID+dmUUIDLen]), "\x00")
	return dmStatus{
		uuid:      uuid,
		major:     unix.Major(dev),
		minor:     unix.Minor(dev),
		open:      int(int32(binary.NativeEndian.Uint32(buf[dmOpenCount:]))),
		suspended: binary.NativeEndian.Uint32(buf[dmFlags:])&dmSuspendFlag != 0,
	}, nil
}

// askNames gives the kernel's name, such as dm-3, of each device-mapper device by its device-mapper name. Where device-mapper was not needed
// yet, there may be nothing to ask.
func (d deviceMapper) askNames() (map[string]string, error) {
	buf, err := d.whole(dmListDevices, dmTarget{}, 0, math.MaxInt)
	if err != nil {
		if some, _ := filepath.Glob(filepath.Join(d.sys, "block/dm-*")); len(some) == 0 { // the pattern is right
			return nil, nil // there is nothing to list
		}
		return nil, fmt.Errorf("DM_LIST_DEVICES: %w", err)
	}
	return parseNames(buf)
}

// parseNames reads a list of struct dm_name_list (linux/dm-ioctl.h): the number of a device, how many bytes further the next one is, its name.
func parseNames(buf []byte) (map[string]string, error) {
	const next, name = 8, 12
	start, end := int(binary.NativeEndian.Uint32(buf[dmDataStart:])), min(int(binary.NativeEndian.Uint32(buf[dmDataSize:])), len(buf))
	names := map[string]string{}
	if start == end { // there is none: the size is that of the header (list_devices in linux/drivers/md/dm-ioctl.c)
		return names, nil
	}
	for at := start; ; {
		if at < dmIoctlSize || at+name > end {
			return nil, fmt.Errorf("DM_LIST_DEVICES: a device at %d of %d bytes", at, end)
		}
		dev, step := binary.NativeEndian.Uint64(buf[at:]), int(binary.NativeEndian.Uint32(buf[at+next:]))
		if dev == 0 { // there is none
			return names, nil
		}
		text, _, _ := strings.Cut(string(buf[at+name:min(end, at+name+dmNameLen)]), "\x00")
		names[text] = fmt.Sprintf("dm-%d", unix.Minor(dev))
		if step == 0 {
			return names, nil
		}
		at += step
	}
}

// device gives the device of a status, and makes its node where it is missing.
func (d deviceMapper) device(ctx context.Context, s dmStatus) (volume.Device, error) {
	sectors, err := d.number(s, "size")
	if err != nil {
		return volume.Device{}, err
	}
	readOnly, err := d.number(s, "ro")
	if err != nil {
		return volume.Device{}, err
	}
	name := fmt.Sprintf("dm-%d", s.minor)
	suspended, err := d.suspendedBelow(name, 0)
	if err != nil {
		return volume.Device{}, err
	}
	node := filepath.Join(d.dev, name)
	if err := d.node(ctx, node, s.major, s.minor); err != nil {
		return volume.Device{}, err
	}
	return volume.Device{
		Major: s.major, Minor: s.minor, Path: node, SizeBytes: sectors * sectorBytes,
		Open: s.open, Suspended: s.suspended || suspended, ReadOnly: readOnly != 0,
	}, nil
}

// number reads an attribute of the device in sysfs; sizes there are in sectors.
func (d deviceMapper) number(s dmStatus, attr string) (int64, error) {
	return sysfs.Number(filepath.Join(d.sys, "dev/block", fmt.Sprintf("%d:%d", s.major, s.minor), attr))
}

// sectorBytes is the kernel's and LVM's unit, whatever the disk's is.
const sectorBytes = 512

// node makes the node of the device where it is missing (case B23): devtmpfs has it, a folder that only looks like /dev
// may not. What stands there for another device is left alone.
func (d deviceMapper) node(ctx context.Context, path string, major, minor uint32) error {
	dev := unix.Mkdev(major, minor)
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		err = d.effects.Do(ctx, "mknod", path, func() error { return unix.Mknod(path, unix.S_IFBLK|0o600, int(dev)) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &fs.PathError{Op: "mknod", Path: path, Err: err}
		}
		err = unix.Lstat(path, &st)
	}
	if err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != dev {
		return fmt.Errorf("%s is not the device node of %d:%d; remove it, or mount the host's /dev there", path, major, minor)
	}
	return nil
}

// devNumbers prints a dev_t as sysfs does.
func devNumbers(dev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)) }
