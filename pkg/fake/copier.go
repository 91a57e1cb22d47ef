package fake

import (
	"context"
	"fmt"
	"syscall"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Copier implements lifecycle.Copier.
type Copier struct{ *conn }

// Copy implements lifecycle.Copier. Half a copy holds all names, and nothing in them.
func (c *Copier) Copy(ctx context.Context, from, to volume.Device, progress func(bytes int64)) error {
	src, dst, release, err := c.openBoth(from, to)
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	defer release()
	for half := range int64(2) {
		what := fmt.Sprintf("%s to %s, half %d", from.Path, to.Path, half+1)
		err := c.change(ctx, "copy", what, func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if src.partial() || dst.partial() {
				return fmt.Errorf("copy %s to %s: %w", from, to, syscall.EIO)
			}
			dst.disk = src.disk.copyFor(dst)
			if half == 0 {
				dst.disk.empty()
			}
			return nil
		})
		if err != nil {
			return err
		}
		progress(from.SizeBytes*(half+1)/2 - from.SizeBytes*half/2)
	}
	return c.change(ctx, "fsync", to.Path, func() error { return nil })
}

// openBoth gives what is behind the devices, of which nobody may have the destination open, and keeps them open until release is called.
func (c *Copier) openBoth(from, to volume.Device) (src, dst *lv, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if src, err = c.device(from); err != nil {
		return nil, nil, nil, err
	}
	if dst, err = c.device(to); err != nil {
		return nil, nil, nil, err
	}
	switch {
	case src.deviceBytes() > dst.deviceBytes():
		err = fmt.Errorf("the destination has %d bytes, the source %d", dst.deviceBytes(), src.deviceBytes())
	case c.openCount(dst) != 0:
		err = volume.ErrBusy
	}
	if err != nil {
		return nil, nil, nil, err
	}
	_, closeSource := c.hold("open device", "/dev/"+src.nodeName())
	_, closeDestination := c.hold("open device", "/dev/"+dst.nodeName())
	return src, dst, func() { closeSource(); closeDestination() }, nil
}

// empty takes away what is in files, and the second half of what is in none.
func (d *disk) empty() {
	d.bytes = d.bytes[:len(d.bytes)/2]
	if d.fs != nil {
		d.fs.root.visit("", func(_ string, n *inode) { n.data = nil })
	}
}
