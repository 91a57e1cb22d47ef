package lvm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// A metadata snapshot is the kernel's way to let programs read the metadata of a thin pool in use: the blocks of one
// moment stay as they are until it is released (Documentation/admin-guide/device-mapper/thin-provisioning, "Metadata
// snapshots"). There is at most one for each pool. It is kept in the pool's metadata on disk, so it outlives whoever
// reserved it, and reboots; while it lasts, blocks of metadata that are replaced are not free.

// thinPools is what is asked of the kernel about the devices of thin pools, by device-mapper name.
type thinPools interface {
	// state gives kind and status of the one target of a device.
	state(name string) (target, error)
	// message sends a message to the target of a device.
	message(name, text string) error
}

// poolLayer is what LVM adds to the name, and to the uuid, of the device that has the target thin-pool (lvm2
// lib/activate/dev_manager.c, lv_layer). A new pool, in which there was no volume yet, has no such device.
const poolLayer = "-tpool"

// Reserved implements lifecycle.ThinMetadata.
func (l *LVM) Reserved(_ context.Context, pool volume.Ref) (bool, error) {
	held, err := l.reserved(pool)
	if err != nil {
		return false, fmt.Errorf("metadata snapshot of thin pool %s: %w", pool, err)
	}
	return held, nil
}

func (l *LVM) reserved(pool volume.Ref) (bool, error) {
	t, err := l.pools.state(volume.DMName(pool) + poolLayer)
	if err != nil {
		return false, err
	}
	if t.kind != "thin-pool" {
		return false, fmt.Errorf("its device is of type %q", t.kind)
	}
	return parseHeld(t.params)
}

// parseHeld finds in the state of a thin pool whether its metadata snapshot is reserved: "<transaction id> <used>/<total>
// <used>/<total> <held metadata root> ...", with "-" for none, or "Fail", or "Error" (thin-provisioning, "Status").
func parseHeld(state string) (bool, error) {
	fields := strings.Fields(state)
	if len(fields) < 4 {
		return false, fmt.Errorf("the pool's state is %q; see lvs -o+lv_health_status", state)
	}
	if fields[3] == "-" {
		return false, nil
	}
	if _, err := strconv.ParseUint(fields[3], 10, 64); err != nil {
		return false, fmt.Errorf("the pool's state is not understood: %q", state)
	}
	return true, nil
}

// Reserve implements lifecycle.ThinMetadata.
func (l *LVM) Reserve(ctx context.Context, pool volume.Ref) error {
	err := l.tell(ctx, pool, "reserve_metadata_snap")
	if errors.Is(err, unix.EBUSY) { // drivers/md/dm-thin-metadata.c, __reserve_metadata_snap
		return fmt.Errorf("reserving the metadata snapshot of thin pool %s: %w: it is reserved already", pool, volume.ErrBusy)
	}
	if err != nil {
		return fmt.Errorf("reserving the metadata snapshot of thin pool %s: %w", pool, err)
	}
	return nil
}

// Release implements lifecycle.ThinMetadata.
func (l *LVM) Release(ctx context.Context, pool volume.Ref) error {
	held, err := l.reserved(pool)
	if err == nil && held {
		err = l.tell(ctx, pool, "release_metadata_snap")
	}
	if err != nil {
		return fmt.Errorf("releasing the metadata snapshot of thin pool %s: %w", pool, err)
	}
	return nil
}

// tell sends a message to a pool. The kernel commits the pool's metadata with it.
func (l *LVM) tell(ctx context.Context, pool volume.Ref, text string) error {
	return l.cfg.Effects.Do(ctx, "message", pool.String()+" "+text, func() error {
		return l.pools.message(volume.DMName(pool)+poolLayer, text)
	})
}

// message implements thinPools.
func (d deviceMapper) message(name, text string) error {
	// struct dm_target_msg: the sector, which tells the target; then the text, ended by a zero.
	data := append(make([]byte, 8, 8+len(text)+1), text...)
	_, err := d.ioctl(dmTargetMsg, dmTarget{name: name}, 0, append(data, 0))
	return err
}

// state implements thinPools.
func (d deviceMapper) state(name string) (target, error) {
	all, err := d.askTargets(name)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("the device has %d targets", len(all))
	}
	if err != nil {
		return target{}, err
	}
	return all[0], nil
}
