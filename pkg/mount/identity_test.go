package mount

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const imageBytes = 65 << 20 // with a second superblock

// btrfsImage makes a file with the superblocks of a btrfs, changed and then sealed.
func btrfsImage(t *testing.T, change func(super)) volume.Device {
	t.Helper()
	d := volume.Device{Path: filepath.Join(t.TempDir(), "image"), SizeBytes: imageBytes}
	f, err := os.Create(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range btrfsSupers[:2] {
		s := super{at, make([]byte, btrfsSuperBytes)}
		copy(s.data[btrfsMagic:], "_BHRfS_M")
		copy(s.fsid(), "the first fsid..")
		binary.LittleEndian.PutUint64(s.data[btrfsBytenr:], uint64(at))
		binary.LittleEndian.PutUint64(s.data[btrfsDevices:], 1)
		binary.LittleEndian.PutUint64(s.data[btrfsIncompat:], 0x361)
		change(s)
		if sum, err := s.checksum(); err == nil && s.data[0] == 0 {
			copy(s.data, sum)
		}
		if _, err := f.WriteAt(s.data, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(imageBytes); err != nil {
		t.Fatal(err)
	}
	return d
}

func supersOf(t *testing.T, d volume.Device) []super {
	t.Helper()
	all, err := readSupers(d)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// case B50
func TestDistinguish(t *testing.T) {
	for name, change := range map[string]func(super){
		"crc32c": func(super) {},
		"sha256": func(s super) { s.data[btrfsChecksumType] = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			var effects int
			h := New(nil, func(_ context.Context, _ effect.Effect, do func() error) error {
				effects++
				return do()
			})
			d := btrfsImage(t, change)
			var last []byte
			for i, id := range []string{"a", "a", "b", "a"} {
				if err := h.Distinguish(t.Context(), d, id); err != nil {
					t.Fatal(err)
				}
				all := supersOf(t, d)
				if len(all) != 2 {
					t.Fatalf("%d superblocks", len(all))
				}
				for _, s := range all {
					sum, err := s.checksum()
					if err != nil || !bytes.HasPrefix(s.data, sum) || s.number(btrfsIncompat) != 0x361|btrfsHasMetaUUID ||
						!bytes.Equal(s.data[btrfsMetadataUUID:btrfsMetadataUUID+16], []byte("the first fsid..")) || !bytes.Equal(s.fsid(), all[0].fsid()) {
						t.Errorf("superblock at %d: %v", s.at, err)
					}
				}
				if same := bytes.Equal(all[0].fsid(), last); same != (i == 1) {
					t.Errorf("id %s: the fsid %x was %x", id, all[0].fsid(), last)
				}
				last = bytes.Clone(all[0].fsid())
			}
			if effects != 3 {
				t.Errorf("%d changes, want 3", effects)
			}
		})
	}
}

func TestDistinguishRefuses(t *testing.T) {
	h := New(nil, nil)
	for name, change := range map[string]func(super){
		"wrong checksum":   func(s super) { s.data[0] = 1 },
		"two devices":      func(s super) { s.data[btrfsDevices] = 2 },
		"being changed":    func(s super) { binary.LittleEndian.PutUint64(s.data[btrfsFlags:], 1<<36) },
		"unknown checksum": func(s super) { s.data[btrfsChecksumType] = 1 },
	} {
		d := btrfsImage(t, change)
		before, err := os.ReadFile(d.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Distinguish(t.Context(), d, "a"); !errors.Is(err, volume.ErrPrecondition) {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.ReadFile(d.Path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: it was changed (%v)", name, err)
		}
	}
	none := btrfsImage(t, func(s super) { copy(s.data[btrfsMagic:], "........") })
	if err := h.Distinguish(t.Context(), none, "a"); err != nil {
		t.Errorf("no btrfs: %v", err)
	}
}
