package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Expand makes the logical volume of a persistent volume larger, be it in use or not; see LVM.Extend for sizes and answers. What
// is in the volume is not touched: a file system is grown by ExpandNode, or when it is staged next.
//
// No intent is journalled. A kill in the middle leaves the volume as it was or larger; the CO repeats the call, and nothing but
// the size that LVM tells decides what is left to do.
func (l *Lifecycle) Expand(ctx context.Context, r volume.Ref, required, limit int64) (volume.LV, error) {
	lv, err := l.LVM.Lookup(ctx, r)
	if err != nil {
		return volume.LV{}, err
	}
	if lv.Tags.Kind != volume.Persistent {
		return volume.LV{}, fmt.Errorf("%w: logical volume %s is no persistent volume but of kind %q", volume.ErrNotFound, r, lv.Tags.Kind)
	}
	if err := errors.Join(lv.Whole(), l.handedOut(l.id(r), lv)); err != nil {
		return volume.LV{}, err
	}
	if _, _, err := l.device(ctx, r); err != nil { // LVM would wait for a suspended one
		return volume.LV{}, err
	}
	return l.LVM.Extend(ctx, r, volume.Persistent, required, limit)
}

// ExpandRequest is a NodeExpandVolume.
type ExpandRequest struct {
	Volume        Volume
	Path          string             // volume_path
	Capability    *volume.Capability // nil: not said
	RequiredBytes int64              // 0: not said
	LimitBytes    int64              // 0: not said
	// Extend: the logical volume is made as large as required first. Else it must be so already.
	Extend bool
}

// ExpandNode makes the file system of a volume as large as the volume, while it is mounted, and gives the volume's size. A block
// volume is as large as its device, whose content is its user's. Path is where the volume is visible: a target, the staging
// path, or of a block volume its device node. Repeating it is OK; a kill in the middle leaves a file system that a repeated call,
// or the next stage, grows.
//
// ErrNotFound: the volume is not visible at the path; nothing was changed. ErrOutOfRange: it is not as large as required.
// ErrPrecondition: the file system ought to grow, and is read-only. With Extend also what Expand answers.
func (l *Lifecycle) ExpandNode(ctx context.Context, q ExpandRequest) (bytes int64, err error) {
	m, err := l.expandable(ctx, q)
	if err != nil {
		return 0, err
	}
	if q.Capability != nil && q.Capability.Block != m.Block {
		return 0, volume.Invalid("volume_capability.access_type", "", fmt.Sprintf("what is at volume_path %s has the other one; leave it out, or say what it is", q.Path))
	}
	if q.Extend {
		if _, err := l.Expand(ctx, q.Volume.Ref, q.RequiredBytes, q.LimitBytes); err != nil {
			return 0, err
		}
	}
	d, err := l.LVM.Device(ctx, q.Volume.Ref)
	switch {
	case err != nil:
		return 0, err
	case d.SizeBytes < q.RequiredBytes:
		return 0, fmt.Errorf("%w: capacity_range.required_bytes %d: logical volume %s has %d bytes; call ControllerExpandVolume first",
			volume.ErrOutOfRange, q.RequiredBytes, q.Volume.Ref, d.SizeBytes)
	case q.LimitBytes != 0 && d.SizeBytes > q.LimitBytes:
		return 0, fmt.Errorf("%w: capacity_range.limit_bytes %d: logical volume %s has %d bytes, and is never made smaller",
			volume.ErrOutOfRange, q.LimitBytes, q.Volume.Ref, d.SizeBytes)
	case m.Block:
		return d.SizeBytes, nil
	}
	return d.SizeBytes, l.growMounted(ctx, d, m)
}

// expandable gives what is visible at the path.
func (l *Lifecycle) expandable(ctx context.Context, q ExpandRequest) (volume.Mount, error) {
	d, active, err := l.device(ctx, q.Volume.Ref)
	if err != nil {
		return volume.Mount{}, err
	}
	if active && q.Path == d.Path { // the device node itself
		lv, err := l.LVM.Lookup(ctx, q.Volume.Ref)
		if f, known := lv.Tags.Format(); err != nil || known && f.FS == "" {
			return volume.Mount{Block: true}, err
		}
	}
	return l.Visible(ctx, q.Volume, q.Path)
}

// growMounted grows a mounted file system. What is mounted read-only at one place may be writable at another, such as where it
// is staged, and there it is grown.
func (l *Lifecycle) growMounted(ctx context.Context, d volume.Device, at volume.Mount) error {
	table, err := l.mountTable(ctx)
	if err != nil {
		return err
	}
	writable := slices.IndexFunc(table, func(m volume.Mount) bool { return d.Same(m) && !m.Block && m.Root == "/" && !m.ReadOnly })
	if writable >= 0 {
		return l.grow(ctx, d, volume.FS(table[writable].FS), table[writable].Target)
	}
	if err := l.grow(ctx, d, volume.FS(at.FS), at.Target); err != nil {
		return fmt.Errorf("%w: the file system is mounted read-only: %w; see the kernel's log for errors in it; it is grown when it is staged anew",
			volume.ErrPrecondition, err)
	}
	return nil
}
