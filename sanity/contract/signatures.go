package contract

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// tool runs a program of the machine; input is what it reads.
func tool(t *testing.T, input, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}

// PutSignature writes one of MountSignatures on a real device, with the tools that the machine has.
func PutSignature(t *testing.T, d volume.Device, signature string) {
	t.Helper()
	at := func(offset int64, b ...byte) {
		f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
		mountMust(t, err)
		_, err = f.WriteAt(b, offset)
		mountMust(t, errors.Join(err, f.Sync(), f.Close()))
	}
	switch signature {
	case "blank":
	case "ext4":
		tool(t, "", "mkfs.ext4", "-q", "-F", d.Path)
	case "xfs":
		tool(t, "", "mkfs.xfs", "-q", d.Path)
	case "xfs-unfinished":
		tool(t, "", "mkfs.xfs", "-q", d.Path)
		at(126, 1)
	case "btrfs":
		tool(t, "", "mkfs.btrfs", "-q", d.Path)
	case "LVM2_member":
		tool(t, "", "pvcreate", "-q", "-y", "-ff", "--config", `devices{filter=["a|.*|"] scan=["/dev"] scan_lvs=1} activation{udev_sync=0 udev_rules=0}`, d.Path)
	case "crypto_LUKS":
		tool(t, "secret", "cryptsetup", "luksFormat", "-q", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file", "-", d.Path)
	case "swap":
		tool(t, "", "mkswap", d.Path)
	case "dos":
		at(446, partitionEntry(0x83, 2048, uint32(d.SizeBytes/512)-2048)...)
		at(510, 0x55, 0xaa)
	case "gpt":
		at(446, partitionEntry(0xee, 1, uint32(d.SizeBytes/512)-1)...)
		at(510, 0x55, 0xaa)
		at(512, gptHeader(d.SizeBytes/512)...)
	case "linux_raid_member":
		offset := (d.SizeBytes/512 - 16) &^ 7 * 512
		at(offset, raidMember(offset/512)...)
	case "garbage":
		at(100, []byte("old data of somebody")...)
	case "last-byte":
		at(4095, 1)
	case "after-4k":
		at(4096, []byte("old data of somebody")...)
	default:
		t.Fatalf("no such signature %q", signature)
	}
}

func partitionEntry(kind byte, start, sectors uint32) []byte {
	b := make([]byte, 16)
	b[4] = kind
	binary.LittleEndian.PutUint32(b[8:], start)
	binary.LittleEndian.PutUint32(b[12:], sectors)
	return b
}

// gptHeader is that of an empty table (UEFI specification, 5.3.2).
func gptHeader(sectors int64) []byte {
	b := make([]byte, 92)
	copy(b, "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")
	le := binary.LittleEndian
	le.PutUint64(b[24:], 1)
	le.PutUint64(b[32:], uint64(sectors-1))
	le.PutUint64(b[40:], 34)
	le.PutUint64(b[48:], uint64(sectors-34))
	copy(b[56:], "a guid of a disk")
	le.PutUint64(b[72:], 2)
	le.PutUint32(b[80:], 128)
	le.PutUint32(b[84:], 128)
	le.PutUint32(b[88:], crc32.ChecksumIEEE(make([]byte, 128*128)))
	le.PutUint32(b[16:], crc32.ChecksumIEEE(b))
	return b
}

// raidMember is the superblock of version 1.0, which stands near the end of a device (linux/raid/md_p.h, struct mdp_superblock_1).
func raidMember(sector int64) []byte {
	b := make([]byte, 256)
	le := binary.LittleEndian
	le.PutUint32(b[0:], 0xa92b4efc)
	le.PutUint32(b[4:], 1)
	copy(b[16:], "a uuid of a raid")
	le.PutUint64(b[80:], uint64(sector))  // size
	le.PutUint32(b[92:], 1)               // raid disks
	le.PutUint64(b[136:], uint64(sector)) // data size
	le.PutUint64(b[144:], uint64(sector)) // super offset
	var sum uint64
	for i := 0; i < len(b); i += 4 {
		sum += uint64(le.Uint32(b[i:]))
	}
	le.PutUint32(b[216:], uint32(sum)+uint32(sum>>32))
	return b
}
