package mount

import (
	"encoding/binary"
	"testing"
	"unsafe"
)

// The sizes of the kernel's structs are part of the numbers of the ioctls.
func TestIoctlStructs(t *testing.T) {
	if got := unsafe.Sizeof(xfsGeometry{}); got != xfsGeometryV4>>16&0x3fff {
		t.Errorf("xfsGeometry has %d bytes", got)
	}
	if got := unsafe.Sizeof(btrfsDevice{}); got != btrfsDevInfo>>16&0x3fff {
		t.Errorf("btrfsDevice has %d bytes", got)
	}
}

// ext4Header makes up a superblock, as dumpe2fs would show it.
func ext4Header(blocks uint64, is64bit bool) []byte {
	b := make([]byte, 1024)
	le := binary.LittleEndian
	le.PutUint32(b[0x4:], uint32(blocks))
	le.PutUint32(b[0x18:], 2)     // 4 KiB
	le.PutUint32(b[0x20:], 32768) // blocks per group
	le.PutUint32(b[0x28:], 8192)  // inodes per group
	le.PutUint16(b[0x38:], ext4Magic)
	le.PutUint16(b[0x58:], 256)
	le.PutUint32(b[0x64:], 1)    // sparse_super
	le.PutUint16(b[0xce:], 1024) // reserved for descriptors
	if is64bit {
		le.PutUint32(b[0x60:], 0x80)
		le.PutUint32(b[0x150:], uint32(blocks>>32))
		le.PutUint16(b[0xfe:], 64)
	}
	return b
}

func TestExt4Full(t *testing.T) {
	const block, group = 4096, 32768
	tables := int64(2 + 8192*256/block) // of each group
	for _, tc := range []struct {
		name   string
		blocks uint64
		bytes  int64
		want   bool
	}{
		{"just as large", 4 * group, 4 * group * block, true},
		{"a part of a block more", 4 * group, 4*group*block + block - 1, true},
		{"larger than the device", 4*group + 1, 4 * group * block, true},
		{"a group more", 4 * group, 5 * group * block, false},
		{"a little more, within the last group", 4*group - 100, (4*group - 99) * block, false},
		{"a last group that would hold nothing", 4 * group, (4*group + tables + 49) * block, true},
		{"a last group that would hold a little", 4 * group, (4*group + tables + 50) * block, false},
		{"nothing, but with a superblock", 5 * group, (5*group + tables + 50 + 1000) * block, true}, // group 5
		{"64 bit", 1<<32 + 5, (1<<32 + 5) * block, true},
		{"64 bit, smaller", 1<<32 + 5, (1<<32 + 2*group) * block, false},
	} {
		if got := parseExt4(ext4Header(tc.blocks, tc.blocks>>32 != 0)).full(tc.bytes); got != tc.want {
			t.Errorf("%s: full = %v", tc.name, got)
		}
	}
}

func TestHasSuper(t *testing.T) {
	sparse, all := ext4Size{sparse: true}, ext4Size{}
	want := map[int64]bool{0: true, 1: true, 3: true, 5: true, 7: true, 9: true, 25: true, 27: true, 49: true, 81: true}
	for group := range int64(100) {
		if got := sparse.hasSuper(group); got != want[group] {
			t.Errorf("group %d: %v", group, got)
		}
		if !all.hasSuper(group) {
			t.Errorf("group %d has no superblock, and all should", group)
		}
	}
}

func TestXFSFull(t *testing.T) {
	g := xfsGeometry{BlockBytes: 4096, AGBlocks: 10000, DataBlocks: 40000}
	for bytes, want := range map[int64]bool{
		40000 * 4096: true, 40000*4096 + 4095: true, 40063 * 4096: true, 40064 * 4096: false, 39999 * 4096: true,
	} {
		if got := g.full(bytes); got != want {
			t.Errorf("%d bytes: %v", bytes, got)
		}
	}
}

func FuzzParseExt4(f *testing.F) {
	f.Add(ext4Header(4*32768, false), int64(1<<30))
	f.Add(ext4Header(1<<33, true), int64(1<<45))
	f.Fuzz(func(_ *testing.T, super []byte, bytes int64) {
		if len(super) < 1024 || bytes < 0 {
			return
		}
		parseExt4(super).full(bytes) // whatever is on the device, it must end and not panic
	})
}
