package mount

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// blankBytes must be zero at the beginning of a blank device: lvcreate leaves them so (lvcreate(8), --zero).
const blankBytes = 4096

// Ends of the device in which signatures stand: up to btrfs' at 64 KiB, and the copies that partition tables and RAID
// members keep at the end.
const (
	headBytes = 128 << 10
	tailBytes = 128 << 10
)

// Probe looks what is on the device. It writes nothing.
//
// blkid(8) knows all signatures, but does not tell "nothing is there" from "could not be read": both end with code 2. So the
// places where signatures stand are read here first, and an error there is the answer.
func (h *Host) Probe(ctx context.Context, d volume.Device) (volume.Content, error) {
	head, err := h.readEnds(d)
	if err != nil {
		return volume.Content{}, err
	}
	tags, found, err := h.blkid(ctx, d)
	if err != nil {
		return volume.Content{}, fmt.Errorf("probe device %s: %w", d, err)
	}
	return content(head, tags, found), nil
}

// content puts together what was read at the beginning of the device and what blkid found.
//
// An interrupted mkfs (each one killed before each of its writes in turn, tests of this package): mkfs.ext4 writes the
// superblock last, so the device is still blank; mkfs.xfs marks it in progress until it has written everything else;
// mkfs.btrfs first writes a superblock with another magic, and the right one at the end.
func content(head []byte, tags map[string]string, found bool) volume.Content {
	switch {
	case isXFSInProgress(head):
		return volume.Content{FS: string(volume.XFS), Unfinished: true}
	case isBtrfsInProgress(head):
		return volume.Content{FS: string(volume.Btrfs), Unfinished: true}
	case !found:
		return volume.Content{Blank: isZero(head[:min(len(head), blankBytes)])}
	}
	c := volume.Content{FS: cmp.Or(tags["TYPE"], tags["PTTYPE"], "unknown")}
	if fs := superblock(head); c.FS != string(fs) {
		c.Head = fs
	}
	return c
}

// superblock tells by its magic which of the driver's file systems stands at the beginning; "" is none.
func superblock(head []byte) volume.FS {
	switch {
	case len(head) >= ext4Super+1024 && hasExt4Magic(head[ext4Super:]):
		return volume.Ext4
	case strings.HasPrefix(string(head[:min(len(head), len(xfsMagic))]), xfsMagic):
		return volume.XFS
	case len(head) >= btrfsMagicAt+8 && string(head[btrfsMagicAt:btrfsMagicAt+8]) == btrfsFinished:
		return volume.Btrfs
	}
	return ""
}

// blkid probes the device itself, without blkid's cache (-p). Codes of blkid(8): 2, nothing found; 8, several signatures that
// contradict each other. It ends with 2 also where it could not open the device, but then it says so.
func (h *Host) blkid(ctx context.Context, d volume.Device) (tags map[string]string, found bool, err error) {
	res, err := h.runner.Read(ctx, "blkid", "-p", "-o", "export", d.Path)
	var failed *run.Error
	switch {
	case err == nil:
		return parseTags(res.Stdout), true, nil
	case errors.As(err, &failed) && failed.ExitCode == 2 && strings.TrimSpace(failed.Stderr+failed.Stdout) == "":
		return nil, false, nil
	case errors.As(err, &failed) && failed.ExitCode == 8:
		return map[string]string{"TYPE": contradictory}, true, nil
	}
	return nil, false, err
}

// contradictory is the type where blkid cannot say which it is; wipefs(8) shows and takes away the false one.
const contradictory = "several signatures that contradict each other (see wipefs(8))"

// parseTags reads blkid's "export" format, lines of KEY=value.
func parseTags(out string) map[string]string {
	tags := map[string]string{}
	for line := range strings.Lines(out) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			tags[key] = value
		}
	}
	return tags
}

// readEnds reads the first and the last part of the device, and gives the first. The page cache may answer: it is coherent
// with what others wrote through the device node, and a mounted file system is not probed.
func (h *Host) readEnds(d volume.Device) ([]byte, error) {
	f, err := openDevice(d)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("read device %s: %w", d, err)
	}
	head, tail := make([]byte, min(size, headBytes)), make([]byte, min(size, tailBytes))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read the beginning of device %s: %w", d, err)
	}
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil {
		return nil, fmt.Errorf("read the end of device %s: %w", d, err)
	}
	if len(head) < blankBytes {
		return nil, fmt.Errorf("device %s has only %d bytes", d, size)
	}
	return head, nil
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// Where superblocks stand, and their fields: fs/xfs/libxfs/xfs_format.h (struct xfs_dsb), btrfs-progs kernel-shared/ctree.h.
const (
	xfsMagic              = "XFSB"
	xfsInProgress         = 126
	btrfsSuper            = 64 << 10
	btrfsMagicAt          = btrfsSuper + 64
	btrfsFinished         = "_BHRfS_M"
	btrfsTemporary        = "!BHRfS_M" // BTRFS_MAGIC_TEMPORARY, 0x4D5F536652484221
	ext4Super             = 1024
	ext4MagicAt           = ext4Super + 56
	ext4Magic      uint16 = 0xef53
)

func isXFSInProgress(head []byte) bool {
	return len(head) > xfsInProgress && string(head[:4]) == xfsMagic && head[xfsInProgress] != 0
}

func isBtrfsInProgress(head []byte) bool {
	return len(head) >= btrfsMagicAt+8 && string(head[btrfsMagicAt:btrfsMagicAt+8]) == btrfsTemporary
}

func hasExt4Magic(super []byte) bool {
	return binary.LittleEndian.Uint16(super[ext4MagicAt-ext4Super:]) == ext4Magic
}
