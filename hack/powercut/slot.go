package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Slot is a place for one volume at a time. A new one has a new name, as those of a CO's volumes are never used again.
type Slot struct {
	name   string
	inline bool
	block  bool
	fs     string
	size   int64
	params map[string]string

	// What the book says.
	gen     int    // of the volume that is in the slot, or was last
	there   bool   // somebody was told that it is there
	doing   string // what was begun to make it or take it away, and may be done or not
	synced  int    // the last write of which the pod knows that it is durable
	writing int    // the last that was begun

	// What the node did since it booted.
	staged, published bool
}

var slots = []*Slot{
	{name: "linear", fs: "ext4", size: 48 << 20},
	{name: "xfs", fs: "xfs", size: 320 << 20},
	{name: "btrfs", fs: "btrfs", size: 256 << 20},
	{name: "block", block: true, size: 8 << 20},
	{name: "thin", fs: "ext4", size: 64 << 20, params: map[string]string{volume.KeyType: "thin", volume.KeyThinPool: pool}},
	{name: "mirror", fs: "ext4", size: 16 << 20, params: map[string]string{volume.KeyType: "raid1"}},
	{name: "inline0", inline: true, fs: "ext4", size: 32 << 20},
	{name: "inline1", inline: true, fs: "ext4", size: 32 << 20},
	{name: "inline2", inline: true, fs: "ext4", size: 32 << 20},
}

// What is done to a volume. Stage and publish of a persistent volume need no memory: a boot undoes them.
const (
	doCreate, doDelete     = "create", "delete"
	doStage, doUnstage     = "stage", "unstage"
	doPublish, doUnpublish = "publish", "unpublish"
	doWrite                = "write"
	doAbandon              = "abandon" // the pod's folder is gone, and nobody will call NodeUnpublishVolume
)

// apply takes an entry of the book over.
func (s *Slot) apply(e Entry) {
	begins := e.Do == doCreate || s.inline && e.Do == doPublish
	ends := e.Do == doDelete || s.inline && e.Do == doUnpublish || e.Do == doAbandon
	switch {
	case e.Do == doWrite && e.Done:
		s.synced = e.N
	case e.Do == doWrite:
		s.writing = e.N
	case begins && s.there: // a repeated call changes nothing
	case begins && !e.Done:
		if s.doing == "" { // else it was cut off, and is tried again
			s.synced, s.writing = 0, 0
		}
		s.gen, s.doing = e.N, e.Do
	case begins:
		s.there, s.doing = true, ""
	case ends && !e.Done:
		s.doing = e.Do
	case ends:
		s.there, s.doing = false, ""
	}
}

func (s *Slot) coName() string { return fmt.Sprintf("pvc-%s-%d", s.name, s.gen) }

func (s *Slot) id() string {
	if s.inline {
		return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(s.coName())))
	}
	return nodeName + "/" + s.ref().String()
}

func (s *Slot) ref() volume.Ref {
	if s.inline {
		return volume.Ref{VG: group, LV: volume.LVName(volume.Inline, s.id())}
	}
	return volume.Ref{VG: group, LV: volume.LVName(volume.Persistent, s.coName())}
}

func (s *Slot) pod() string    { return fmt.Sprintf("pod-%s-%d", s.name, s.gen) }
func (s *Slot) podDir() string { return filepath.Join(kubelet, "pods", s.pod()) }
func (s *Slot) target() string {
	return filepath.Join(s.podDir(), "volumes/kubernetes.io~csi/data/mount")
}
func (s *Slot) staging() string {
	return filepath.Join(kubelet, "plugins/kubernetes.io/csi", s.coName(), "globalmount")
}

func (s *Slot) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if s.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: s.fs}}
	}
	return c
}

// kept is how many writes are in the volume at a time: each file, or each region of a block volume, is used again.
const kept = 4

const regionBytes = 64 << 10

// content is what the n-th write puts there; it cannot be mistaken for that of another write or volume.
func (s *Slot) content(n int) []byte {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d/%d", s.name, s.gen, n) //nolint:errcheck // a hash takes everything
	random := rand.New(rand.NewPCG(h.Sum64(), 0))
	data := make([]byte, sector*(1+random.IntN(regionBytes/sector)))
	for i := 0; i < len(data); i += 8 {
		x := random.Uint64()
		for j := range 8 {
			data[i+j] = byte(x >> (8 * j))
		}
	}
	return data
}

// write makes the n-th write and returns when the file system, or the device, has said that it is durable.
func (s *Slot) write(n int) error {
	if s.block {
		f, err := os.OpenFile(s.target(), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(s.content(n), int64(n%kept)*regionBytes)
		return errors.Join(err, f.Sync(), f.Close())
	}
	if err := os.Remove(filepath.Join(s.target(), fmt.Sprint(n-kept))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.Create(filepath.Join(s.target(), fmt.Sprint(n)))
	if err != nil {
		return err
	}
	_, err = f.Write(s.content(n))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	folder, err := os.Open(s.target())
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// check compares what is in the published volume with what is durable for sure.
func (s *Slot) check() error {
	for n := max(1, s.writing-kept+1, s.synced-kept+1); n <= s.synced; n++ {
		got, err := s.read(n)
		want := s.content(n)
		switch {
		case err != nil:
			return fmt.Errorf("write %d of %d that are durable is lost: %w", n, s.synced, err)
		case !bytes.Equal(got, want):
			return fmt.Errorf("write %d of %d that are durable is not what it was: %d of %d bytes differ", n, s.synced, differ(got, want), len(want))
		}
	}
	return nil
}

func (s *Slot) read(n int) ([]byte, error) {
	if !s.block {
		return os.ReadFile(filepath.Join(s.target(), fmt.Sprint(n)))
	}
	f, err := os.Open(s.target())
	if err != nil {
		return nil, err
	}
	data := make([]byte, len(s.content(n)))
	_, err = f.ReadAt(data, int64(n%kept)*regionBytes)
	return data, errors.Join(err, f.Close())
}

func differ(a, b []byte) int {
	n := max(len(a), len(b)) - min(len(a), len(b))
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}
