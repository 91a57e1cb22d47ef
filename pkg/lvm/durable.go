package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// flushGroup returns when a change of the group would outlive a power cut. LVM writes its metadata past the page cache, and
// stops there: it does not flush the volatile cache of a disk. Without this, a volume whose removal was answered OK is back after
// the cut, and nobody asks for its removal again; and one that was handed out is gone. All physical volumes are flushed, at
// the same time: each may hold a copy of the metadata, or what lvcreate wiped. One that is new and not yet known is missed,
// and does no harm: LVM takes the newest copy.
func (l *LVM) flushGroup(ctx context.Context, vg string) error {
	s := l.inventory.state.Load()
	if s == nil || s.groups[vg] == nil {
		var err error
		if s, err = l.inventory.current(ctx, vg); err != nil {
			return fmt.Errorf("find the disks to flush: %w", err)
		}
	}
	g := s.groups[vg]
	if g == nil {
		return nil // nothing of it is here to be flushed
	}
	var err error
	for _, device := range g.uuids {
		if device != "" { // one after the other: a panic in a goroutine of its own would end the driver
			err = errors.Join(err, l.cfg.Effects.Do(ctx, "fsync", device, func() error { return flush(device) }))
		}
	}
	return err
}

// flush writes the cache of a disk to its medium: fsync(2) of a block device does, whoever wrote.
func flush(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
