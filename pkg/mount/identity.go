package mount

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// The superblock of btrfs (linux/include/uapi/linux/btrfs_tree.h, struct btrfs_super_block): 4 KiB at 64 KiB, and copies of it
// where the device is large enough. All numbers are little-endian.
const (
	btrfsSuperBytes    = 4096
	btrfsFsid          = 0x20
	btrfsBytenr        = 0x30
	btrfsFlags         = 0x38
	btrfsMagic         = 0x40
	btrfsDevices       = 0x88
	btrfsIncompat      = 0xbc
	btrfsChecksumType  = 0xc4
	btrfsMetadataUUID  = 0x23b
	btrfsHasMetaUUID   = 1 << 10               // BTRFS_FEATURE_INCOMPAT_METADATA_UUID
	btrfsChangingFlags = 1<<32 | 1<<35 | 1<<36 // a seed device; an fsid that some program has begun to change
)

var btrfsSupers = []int64{64 << 10, 64 << 20, 256 << 30}

// Distinguish gives the file system on the device, which is a copy of another one, an identity of its own where it needs one to
// be mounted beside that. id is what the identity is made from: it is the same for the same id, so that a second time changes
// nothing. Nothing is done for what is no btrfs.
//
// Two btrfs of one fsid are for the kernel one file system on two devices, and only one of them can be mounted. Since Linux 5.0 the fsid
// can be changed by the superblock alone: the old one moves to metadata_uuid, where each block of metadata finds its own again
// (BTRFS_FEATURE_INCOMPAT_METADATA_UUID). That is done here and not by btrfstune(8), which does the same by two transactions: after these a
// log tree, which a snapshot of a mounted file system has, is out of date, and the file system cannot be mounted any more (seen
// with btrfs-progs 6.2 and Linux 6.1). XFS has a mount option for it (nouuid), ext4 needs nothing.
//
// The copies of the superblock are written first, the one that the kernel reads last. So a kill leaves the old identity or the new one.
// The device must be open nowhere; ErrBusy: it is.
func (h *Host) Distinguish(ctx context.Context, d volume.Device, id string) error {
	sum := sha256.Sum256([]byte("btrfs " + id))
	fsid := sum[:16]
	fsid[6], fsid[8] = fsid[6]&0x0f|0x80, fsid[8]&0x3f|0x80 // a UUID of version 8 (RFC 9562)
	supers, err := readSupers(d)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: device %s", volume.ErrBusy, d)
	}
	if err != nil || len(supers) == 0 || bytes.Equal(supers[len(supers)-1].fsid(), fsid) {
		return err
	}
	for _, s := range supers {
		if err := s.rename(fsid); err != nil {
			return fmt.Errorf("%w: btrfs on device %s: %v", volume.ErrPrecondition, d, err) //nolint:errorlint // as said
		}
	}
	err = h.effects.Do(ctx, "identity", fmt.Sprintf("%s %x", d.Path, fsid), func() error {
		f, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_EXCL|unix.O_DIRECT|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		for _, s := range supers {
			if _, err := f.WriteAt(s.data, s.at); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		return errors.Join(f.Sync(), f.Close())
	})
	if err != nil {
		return fmt.Errorf("give the btrfs on device %s an identity of its own: %w", d, err)
	}
	return nil
}

// super is one superblock.
type super struct {
	at   int64
	data []byte // aligned for O_DIRECT
}

// readSupers gives the superblocks of the btrfs on a device, the one that counts last; none where there is no btrfs.
// The device must be open nowhere: EBUSY.
func readSupers(d volume.Device) ([]super, error) {
	f, err := os.OpenFile(d.Path, os.O_RDONLY|unix.O_EXCL|unix.O_DIRECT|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	var out []super
	for i, at := range btrfsSupers {
		if at+btrfsSuperBytes > d.SizeBytes {
			break
		}
		s := super{at, alignedBlock()}
		if _, err := f.ReadAt(s.data, at); err != nil {
			return nil, err
		}
		ours := bytes.Equal(s.data[btrfsMagic:btrfsMagic+8], []byte("_BHRfS_M")) && s.number(btrfsBytenr) == uint64(at)
		switch {
		case i == 0 && !ours:
			return nil, nil
		case i > 0 && (!ours || !bytes.Equal(s.fsid(), out[0].fsid())):
			continue // left of an earlier file system
		}
		out = append(out, s)
	}
	if len(out) > 1 {
		out = append(out[1:], out[0])
	}
	return out, nil
}

func alignedBlock() []byte {
	buf := make([]byte, 2*btrfsSuperBytes)
	shift := 0
	if rest := int(uintptr(unsafe.Pointer(&buf[0])) % btrfsSuperBytes); rest != 0 {
		shift = btrfsSuperBytes - rest
	}
	return buf[shift : shift+btrfsSuperBytes]
}

func (s super) number(at int) uint64 { return binary.LittleEndian.Uint64(s.data[at:]) }
func (s super) fsid() []byte         { return s.data[btrfsFsid : btrfsFsid+16] }

// rename gives the superblock another fsid, after it was proved to be sound.
func (s super) rename(fsid []byte) error {
	before, err := s.checksum()
	switch {
	case err != nil:
		return err
	case !bytes.Equal(before, s.data[:len(before)]):
		return fmt.Errorf("the superblock at %d has a wrong checksum", s.at)
	case s.number(btrfsDevices) != 1:
		return fmt.Errorf("it is on %d devices; only one of a single device can be told from its copy", s.number(btrfsDevices))
	case s.number(btrfsFlags)&btrfsChangingFlags != 0:
		return errors.New("it is a seed device, or its fsid is being changed")
	}
	if features := s.number(btrfsIncompat); features&btrfsHasMetaUUID == 0 {
		binary.LittleEndian.PutUint64(s.data[btrfsIncompat:], features|btrfsHasMetaUUID)
		copy(s.data[btrfsMetadataUUID:], s.fsid())
	}
	copy(s.data[btrfsFsid:], fsid)
	after, err := s.checksum()
	copy(s.data, after)
	return err
}

// checksum gives that of the superblock, which covers all but the 32 bytes in which it stands.
func (s super) checksum() ([]byte, error) {
	switch kind := binary.LittleEndian.Uint16(s.data[btrfsChecksumType:]); kind {
	case 0:
		return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(s.data[32:], crc32.MakeTable(crc32.Castagnoli))), nil
	case 2:
		sum := sha256.Sum256(s.data[32:])
		return sum[:], nil
	default:
		return nil, fmt.Errorf("its checksums are of kind %d (xxhash, or blake2b); a copy of one with crc32c or sha256 can be told from it", kind)
	}
}
