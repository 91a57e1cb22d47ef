package fake

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// filesystem is what mkfs makes: it stays when it is unmounted.
type filesystem struct {
	kind         string
	id           string // a copy has that of its original
	root         *inode
	device       *lv // nil: none of ours
	major, minor uint32
	bytes        int64
	readOnly     bool // as long as it is mounted
	sick         Sickness
}

// disk is what is on a device. With fs, it is that file system; else another signature, or bytes, or nothing.
type disk struct {
	fs         *filesystem
	signature  string
	end        string // an old signature at the end, which hides fs from probers
	bytes      []byte
	unfinished bool
}

// copyFor gives the same content for another LV.
func (d disk) copyFor(v *lv) disk {
	d.bytes = slices.Clone(d.bytes)
	if d.fs != nil {
		fs := *d.fs
		fs.root, fs.device, fs.readOnly = d.fs.root.copy(), v, false
		d.fs = &fs
	}
	return d
}

func (n *inode) copy() *inode {
	c := *n
	c.data, c.parent = slices.Clone(n.data), nil
	if n.children != nil {
		c.children = map[string]*inode{}
		for name, child := range n.children {
			c.children[name] = child.copy()
			c.children[name].parent = &c
		}
	}
	return &c
}

// SetSignature puts another signature on the LV: "LVM2_member", "crypto_LUKS", "swap", "dos", ...
func (m *Machine) SetSignature(r volume.Ref, signature string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volume(r).disk = disk{signature: signature}
}

// SetEndSignature puts a signature on the end of the LV, and leaves what is before it.
func (m *Machine) SetEndSignature(r volume.Ref, signature string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volume(r).disk.end = signature
}

// device gives the LV that the device is of.
func (m *Machine) device(d volume.Device) (*lv, error) {
	v := m.byMinor(d.Minor)
	if v == nil || d.Major != dmMajor {
		return nil, fmt.Errorf("%s: %w", d, syscall.ENXIO)
	}
	return v, v.hangs()
}

// hangs is an error where access to the device would not end: nobody may have tried.
func (v *lv) hangs() error {
	if v != nil && v.suspended {
		return fmt.Errorf("device of %s is suspended: this would hang", v.ref)
	}
	return nil
}

// content is what blkid(8), and a look at the first 4 KiB, find on the device.
func (v *lv) content() volume.Content {
	switch {
	case v.disk.end != "" && v.disk.fs != nil:
		return volume.Content{FS: v.disk.end, Head: volume.FS(v.disk.fs.kind)}
	case v.disk.end != "":
		return volume.Content{FS: v.disk.end}
	case v.disk.fs != nil:
		return volume.Content{FS: v.disk.fs.kind, Unfinished: v.disk.unfinished}
	case v.disk.signature != "":
		return volume.Content{FS: v.disk.signature}
	}
	begin := v.disk.bytes[:min(4096, len(v.disk.bytes))]
	return volume.Content{Blank: len(bytes.Trim(begin, "\x00")) == 0}
}

// Filesystems implements lifecycle.Filesystems.
type Filesystems struct{ *conn }

// Probe implements lifecycle.Filesystems.
func (c *Filesystems) Probe(ctx context.Context, d volume.Device) (volume.Content, error) {
	if err := c.pass(ctx, "probe"); err != nil {
		return volume.Content{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.device(d)
	switch {
	case err != nil:
		return volume.Content{}, err
	case v.partial():
		return volume.Content{}, fmt.Errorf("%s: %w", d, syscall.EIO)
	}
	return v.content(), nil
}

// Format implements lifecycle.Filesystems.
func (c *Filesystems) Format(ctx context.Context, d volume.Device, f volume.Format) error {
	program := "mkfs." + string(f.FS)
	argv := append(append([]string{program}, f.MkfsOptions...), d.Path)
	return c.program(ctx, "", argv, func() error {
		v, err := c.device(d)
		switch {
		case err != nil:
			return err
		case c.openCount(v) != 0:
			return fmt.Errorf("%s: %s is in use", program, d)
		case v.size < volume.MinFSBytes(f.FS):
			return fmt.Errorf("%s: %s is too small", program, d)
		}
		fs := &filesystem{kind: string(f.FS), id: c.uuid(), root: newFolder(), device: v, bytes: v.size}
		if f.FS == volume.Ext4 {
			fs.root.add("lost+found", newFolder())
		}
		v.disk = disk{fs: fs}
		if c.torn(program) {
			if v.disk.unfinished = f.FS == volume.XFS; !v.disk.unfinished {
				v.disk = disk{}
			}
			return fmt.Errorf("%s: killed", program)
		}
		return nil
	})
}

// Grow implements lifecycle.Filesystems.
func (c *Filesystems) Grow(ctx context.Context, d volume.Device, fs volume.FS, mountpoint string) error {
	c.mu.Lock()
	v, err := c.device(d)
	small := err == nil && v.disk.fs != nil && v.disk.fs.bytes < v.deviceBytes()
	c.mu.Unlock()
	if !small {
		return err
	}
	argv := map[volume.FS][]string{
		volume.Ext4:  {"resize2fs", d.Path},
		volume.XFS:   {"xfs_growfs", mountpoint},
		volume.Btrfs: {"btrfs", "filesystem", "resize", "max", mountpoint},
	}[fs]
	return c.program(ctx, "", argv, func() error {
		if v.disk.fs.readOnly {
			return fmt.Errorf("%s: %s: %w", argv[0], mountpoint, syscall.EROFS)
		}
		v.disk.fs.bytes = v.deviceBytes()
		return nil
	})
}

// Distinguish implements lifecycle.Filesystems.
func (c *Filesystems) Distinguish(ctx context.Context, d volume.Device, id string) error {
	c.mu.Lock()
	v, err := c.device(d)
	same := err == nil && (v.disk.fs == nil || v.disk.fs.kind != string(volume.Btrfs) || v.disk.fs.id == id)
	c.mu.Unlock()
	if err != nil || same {
		return err
	}
	return c.change(ctx, "identity", d.Path, func() error {
		if c.openCount(v) != 0 {
			return fmt.Errorf("%w: %s", volume.ErrBusy, d)
		}
		v.disk.fs.id = id
		return nil
	})
}

// SetGroup implements lifecycle.Filesystems.
func (c *Filesystems) SetGroup(ctx context.Context, path string, gid int) error {
	if f, err := c.Lstat(path); err != nil || f.GID == gid && f.Mode&0o2770 == 0o2770 {
		return err
	}
	return c.change(ctx, "setgroup", fmt.Sprintf("%s %d", path, gid), func() error {
		place, _, err := c.walk(path, true)
		if err != nil {
			return err
		}
		if place.mount.isReadOnly() {
			return fmt.Errorf("%s: %w", path, syscall.EROFS)
		}
		place.inode.visit("", func(_ string, n *inode) {
			n.gid = gid
			switch n.kind {
			case folder:
				n.mode |= 0o2770
			case file:
				n.mode |= 0o660
			}
		})
		return nil
	})
}

// Sync implements lifecycle.Filesystems. What is written here is on the disk at once.
func (c *Filesystems) Sync(ctx context.Context, mountpoint string) error {
	return c.change(ctx, "syncfs", mountpoint, func() error {
		_, _, err := c.walk(mountpoint, true)
		return err
	})
}

// SetReadOnly implements lifecycle.Filesystems.
func (c *Filesystems) SetReadOnly(ctx context.Context, d volume.Device, readOnly bool) error {
	return c.change(ctx, "blkroset", fmt.Sprintf("%s %t", d.Path, readOnly), func() error {
		v, err := c.device(d)
		if err == nil {
			v.readOnly = readOnly
		}
		return err
	})
}

// Usage gives what statfs(2) tells of the mounted file system at path, or the size of the block device there.
// ErrNotFound: nothing is there. ErrPrecondition: it is no block device.
func (c *Filesystems) Usage(_ context.Context, path string, block bool) (volume.Usage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	place, _, err := c.walk(path, true)
	if isMissing(err) {
		return volume.Usage{}, fmt.Errorf("%w: %w", volume.ErrNotFound, err)
	}
	if err != nil {
		return volume.Usage{}, err
	}
	if block {
		if place.inode.kind != node {
			return volume.Usage{}, fmt.Errorf("%w: %s is no block device", volume.ErrPrecondition, path)
		}
		v, err := c.device(volume.Device{Major: dmMajor, Minor: place.inode.minor, Path: path})
		if err != nil {
			return volume.Usage{}, err
		}
		return volume.Usage{Bytes: v.deviceBytes()}, nil
	}
	return place.mount.fs.usage(), nil
}

func (f *filesystem) usage() volume.Usage {
	u := volume.Usage{Bytes: f.bytes, Inodes: 65536}
	f.root.visit("", func(_ string, n *inode) {
		u.UsedBytes += int64(len(n.data))
		u.UsedInodes++
	})
	u.AvailableBytes, u.AvailableInodes = u.Bytes-u.UsedBytes, u.Inodes-u.UsedInodes
	return u
}
