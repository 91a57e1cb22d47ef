package lvm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Activate implements lifecycle.LVM. One LVM command. An active one stays as it is; a suspended one is resumed by LVM.
// ErrNotFound: LVM read the group and it is not there.
func (l *LVM) Activate(ctx context.Context, r volume.Ref) error {
	if err := l.check(r, idField, idField, false); err != nil {
		return err
	}
	done, err := l.queue(ctx, r.VG)
	if err == nil {
		defer done()
		err = l.activate(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("activating logical volume %s: %w", r, err)
	}
	return nil
}

func (l *LVM) activate(ctx context.Context, r volume.Ref) error {
	// -K: also one with the skip flag, which thin snapshots carry (case B34).
	_, err := l.commands.write(ctx, "lvchange", "-y", "-ay", "-K", r.String())
	if errors.Is(err, errNoLV) {
		return fmt.Errorf("%w: %w", volume.ErrNotFound, err)
	}
	if err != nil {
		return err
	}
	// lvchange is content where something in lvm.conf or in the flags of the volume keeps it inactive.
	if _, err := l.dm.status(volume.DMName(r)); err != nil {
		return fmt.Errorf("lvchange succeeded, but there is no device (does activation/volume_list of lvm.conf forbid it?): %v", err) //nolint:errorlint // "not found" would be a lie here
	}
	return nil
}

// Device implements lifecycle.LVM. It asks the kernel by name, and holds the answer against what is known of the logical
// volume, so that a device that only has the name is not taken for it.
func (l *LVM) Device(ctx context.Context, r volume.Ref) (volume.Device, error) {
	if err := l.check(r, idField, idField, false); err != nil {
		return volume.Device{}, err
	}
	st, err := l.dm.status(volume.DMName(r))
	if err != nil {
		return volume.Device{}, fmt.Errorf("device of logical volume %s: %w", r, err)
	}
	if err := l.checkUUID(ctx, r, st.uuid); err != nil {
		return volume.Device{}, fmt.Errorf("device of logical volume %s: %w", r, err)
	}
	d, err := l.dm.device(ctx, st)
	if err != nil {
		return volume.Device{}, fmt.Errorf("device of logical volume %s: %w", r, err)
	}
	return d, nil
}

// checkUUID compares with what was known last; where that differs it may be out of date, and is renewed. Where the
// group cannot be asked, its disks being lost, the name must do: what is mounted of them must be unmounted all the same.
func (l *LVM) checkUUID(ctx context.Context, r volume.Ref, uuid string) error {
	if !strings.HasPrefix(uuid, dmPrefix) {
		return fmt.Errorf("the device of its name is none of LVM's (uuid %q)", uuid)
	}
	if s := l.inventory.state.Load(); s != nil && s.knows(r, uuid) {
		return nil
	}
	s, err := l.inventory.current(ctx, r.VG)
	if err != nil || s.groups[r.VG] == nil {
		klog.FromContext(ctx).Info("the volume group cannot be asked about a device; its name is taken for good", "lv", r.String(), "err", err)
		return nil
	}
	if !s.knows(r, uuid) {
		return fmt.Errorf("the device of its name is of another logical volume (uuid %q); see dmsetup(8) info", uuid)
	}
	return nil
}

func (s *state) knows(r volume.Ref, uuid string) bool {
	g, ok := s.groups[r.VG]
	if !ok {
		return false
	}
	lv, ok := g.lvs[r.LV]
	return ok && dmUUIDOf(g.UUID, lv.UUID) == uuid
}

func (l *LVM) groupUUID(vg string) string {
	if s := l.inventory.state.Load(); s != nil && s.groups[vg] != nil {
		return s.groups[vg].UUID
	}
	return ""
}

// dmUUIDOf gives the device-mapper uuid for LVM's uuids of group and logical volume.
func dmUUIDOf(vg, lv string) string {
	return dmPrefix + strings.ReplaceAll(vg, "-", "") + strings.ReplaceAll(lv, "-", "")
}
