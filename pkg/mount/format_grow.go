package mount

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// mkfs are the programs and the arguments that always stand first. None of them discards (ext4 nodiscard; xfs and btrfs -K):
// a new thin volume has nothing to give back, on a plain one it would only tell the disk what lvcreate has already told it or fstrim will, and
// it can take minutes on a large disk, within a call that kubelet waits for. -f and -F: nothing is asked; the caller
// has proved that the device is blank, or holds only what an interrupted mkfs left. -F stands once: a second would format
// a mounted device too.
//
// All else is left as the distribution wants it (mke2fs.conf), the blocks that ext4 reserves for root among it: they keep a
// full file system from fragmenting, and who does not want them says "-m 0" in mkfsOptions.
var mkfs = map[volume.FS][]string{
	volume.Ext4:  {"mkfs.ext4", "-q", "-F", "-E", "nodiscard"},
	volume.XFS:   {"mkfs.xfs", "-q", "-f", "-K"},
	volume.Btrfs: {"mkfs.btrfs", "-q", "-f", "-K"},
}

// Format makes the file system. The caller has made sure that the device is ours, blank (or Unfinished) and not open. A kill
// leaves a device that Probe calls blank or unfinished. An error leaves one or the other, or a whole file system.
func (h *Host) Format(ctx context.Context, d volume.Device, f volume.Format) error {
	command, ok := mkfs[f.FS]
	if !ok {
		return volume.Invalid("fs_type", string(f.FS), "give ext4, xfs or btrfs")
	}
	if err := checkNode(d); err != nil {
		return err
	}
	args := append(append(append([]string(nil), command[1:]...), f.MkfsOptions...), d.Path)
	if _, err := h.runner.Write(ctx, command[0], args...); err != nil {
		return fmt.Errorf("make %s on device %s: %w", f.FS, d, err)
	}
	return nil
}

// Grow makes the mounted file system as large as its device. No program is run where it is so already. It is safe to be
// interrupted at any point, and then to be called again: the file systems grow in transactions of their own.
func (h *Host) Grow(ctx context.Context, d volume.Device, fs volume.FS, mountpoint string) error {
	bytes, err := h.sizeBytes(numberOf(d))
	if err != nil {
		return fmt.Errorf("grow %s: %w", fs, err)
	}
	var full bool
	var command []string
	switch fs {
	case volume.Ext4:
		full, err = ext4Full(d, bytes)
		command = []string{"resize2fs", d.Path}
	case volume.XFS:
		full, err = xfsFull(mountpoint, bytes)
		command = []string{"xfs_growfs", "-d", mountpoint}
	case volume.Btrfs:
		full, err = btrfsFull(mountpoint, bytes)
		command = []string{"btrfs", "filesystem", "resize", "max", mountpoint}
	default:
		return volume.Invalid("fs_type", string(fs), "give ext4, xfs or btrfs")
	}
	if err != nil {
		return fmt.Errorf("grow %s on device %s at %s: %w", fs, d, mountpoint, err)
	}
	if full {
		return nil
	}
	if _, err := h.runner.Write(ctx, command[0], command[1:]...); err != nil {
		return fmt.Errorf("grow %s on device %s to %d bytes: %w", fs, d, bytes, err)
	}
	return nil
}

// The size of a mounted file system. ext4 keeps its superblock in the page cache of the device, so that reading the device
// tells the truth. XFS and btrfs do not: what is on the device, or was read once, lags behind until they write it. They
// answer an ioctl instead.

func ext4Full(d volume.Device, bytes int64) (bool, error) {
	f, err := openDevice(d)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	super := make([]byte, 1024)
	if _, err := f.ReadAt(super, ext4Super); err != nil {
		return false, err
	}
	if !hasExt4Magic(super) {
		return false, fmt.Errorf("no ext4 superblock on device %s", d)
	}
	return parseExt4(super).full(bytes), nil
}

// ext4Size is what the superblock says about sizes; Documentation/filesystems/ext4/super.rst in the kernel.
type ext4Size struct {
	blocks, blockBytes, firstBlock, perGroup int64
	inodeBlocks                              int64 // of each group's inode table
	superBlocks                              int64 // of a copy of the superblock with its descriptors
	sparse                                   bool  // only some groups have such a copy
}

func parseExt4(super []byte) ext4Size {
	u16 := func(at int) int64 { return int64(binary.LittleEndian.Uint16(super[at:])) }
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(super[at:])) }
	const is64bit, sparseSuper, metaBG = 0x80, 0x1, 0x10
	e := ext4Size{blocks: u32(0x4), firstBlock: u32(0x14), blockBytes: 1024 << min(u32(0x18), 6), perGroup: max(u32(0x20), 1)}
	descriptor := int64(32)
	if u32(0x60)&is64bit != 0 {
		e.blocks |= u16(0x150) << 32 // a file system has at most 1<<48 blocks
		descriptor = max(u16(0xfe), 32)
	}
	e.inodeBlocks = ceil(u32(0x28)*max(u16(0x58), 128), e.blockBytes)
	e.sparse = u32(0x64)&sparseSuper != 0
	e.superBlocks = 1 + u16(0xce)
	if u32(0x60)&metaBG == 0 {
		e.superBlocks += ceil(e.groups(e.blocks)*descriptor, e.blockBytes)
	}
	return e
}

func ceil(n, unit int64) int64 { return (n + unit - 1) / unit }

func (e ext4Size) groups(blocks int64) int64 { return ceil(blocks-e.firstBlock, e.perGroup) }

// full reports whether resize2fs would find nothing to do. It rounds down to pages of 4 KiB, and leaves out a last group
// that could hold little more than its own tables (adjust_fs_info in resize/resize2fs.c).
func (e ext4Size) full(bytes int64) bool {
	blocks := bytes / 4096 * 4096 / e.blockBytes
	if e.blocks >= blocks {
		return true
	}
	rest := (blocks - e.firstBlock) % e.perGroup
	if groups := e.groups(blocks); groups > 1 && rest != 0 {
		tables := 2 + e.inodeBlocks
		if e.hasSuper(groups - 1) {
			tables += e.superBlocks
		}
		if rest < tables+50 {
			blocks -= rest
		}
	}
	return e.blocks >= blocks
}

// hasSuper: with sparse_super the groups 0, 1 and the powers of 3, 5 and 7 have a copy.
func (e ext4Size) hasSuper(group int64) bool {
	if !e.sparse || group <= 1 {
		return true
	}
	for _, base := range []int64{3, 5, 7} {
		n := base
		for n < group {
			n *= base
		}
		if n == group {
			return true
		}
	}
	return false
}

// xfsGeometry is struct xfs_fsop_geom_v4 of fs/xfs/libxfs/xfs_fs.h, which each kernel gives.
type xfsGeometry struct {
	BlockBytes, RtExtent, AGBlocks, AGCount, LogBlocks, SectorBytes, InodeBytes, InodePercent uint32

	DataBlocks, RtBlocks, RtExtents, LogStart uint64

	UUID                                                                          [16]byte
	StripeUnit, StripeWidth, Version, Flags, LogSector, RtSector, DirBlock, LogSU uint32
}

const (
	xfsGeometryV4 = 0x8070587c // XFS_IOC_FSGEOMETRY_V4: _IOR('X', 124, struct xfs_fsop_geom_v4)
	// xfsMinAG is XFS_MIN_AG_BLOCKS: a last allocation group with fewer blocks is left out (xfs_growfs_data_private).
	xfsMinAG = 64
)

func xfsFull(mountpoint string, bytes int64) (bool, error) {
	var g xfsGeometry
	if err := ioctlAsk(mountpoint, xfsGeometryV4, unsafe.Pointer(&g)); err != nil {
		return false, fmt.Errorf("XFS_IOC_FSGEOMETRY: %w", err)
	}
	return g.full(bytes), nil
}

func (g xfsGeometry) full(bytes int64) bool {
	blocks := uint64(bytes) / uint64(max(g.BlockBytes, 512))
	if rest := blocks % uint64(max(g.AGBlocks, 1)); rest < xfsMinAG {
		blocks -= rest
	}
	return g.DataBlocks >= blocks
}

// btrfsDevice is struct btrfs_ioctl_dev_info_args of linux/btrfs.h.
type btrfsDevice struct {
	ID         uint64
	UUID       [16]byte
	UsedBytes  uint64
	TotalBytes uint64
	_          [379]uint64
	Path       [1024]byte
}

const btrfsDevInfo = 0xd000941e // BTRFS_IOC_DEV_INFO: _IOWR(0x94, 30, struct btrfs_ioctl_dev_info_args)

// btrfsFull asks for the first device, the only one the driver gives a file system, which "resize max" grows as well. Below its least size
// the kernel resizes none (volume.MinFSBytes); one that somebody made there is as large as it can be.
func btrfsFull(mountpoint string, bytes int64) (bool, error) {
	if bytes < volume.MinFSBytes(volume.Btrfs) {
		return true, nil
	}
	dev := btrfsDevice{ID: 1}
	if err := ioctlAsk(mountpoint, btrfsDevInfo, unsafe.Pointer(&dev)); err != nil {
		return false, fmt.Errorf("BTRFS_IOC_DEV_INFO: %w", err)
	}
	sector := uint64(os.Getpagesize()) // or less; a device's size is rounded down to it
	return dev.TotalBytes >= uint64(bytes)/sector*sector, nil
}

// ioctlAsk puts an ioctl that changes nothing to the file system at a mount point.
func ioctlAsk(mountpoint string, request uintptr, arg unsafe.Pointer) error {
	f, err := os.OpenFile(mountpoint, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	return retry(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
			return errno
		}
		return nil
	})
}
