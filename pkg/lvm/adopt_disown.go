package lvm

import (
	"context"
	"errors"
	"fmt"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Describe implements adopt.LVM: one report about a logical volume of our groups, whosever it is.
func (l *LVM) Describe(ctx context.Context, r volume.Ref) (lv volume.LV, roles string, err error) {
	if err := l.check(r, idField, idField, false); err != nil {
		return lv, "", err
	}
	g, err := l.reported(ctx, r.VG)
	if err != nil {
		return lv, "", fmt.Errorf("looking for logical volume %s: %w", r, err)
	}
	if err := g.whole(); err != nil {
		return lv, "", err
	}
	var ok bool
	if lv, ok = g.lvs[r.LV]; !ok {
		return lv, "", fmt.Errorf("%w: there is no logical volume %s", volume.ErrNotFound, r)
	}
	return lv, g.roles[r.LV], nil
}

// Adopt implements adopt.LVM. LVM checks under its own lock that it is the logical volume of the uuid, and nothing others depend on.
func (l *LVM) Adopt(ctx context.Context, lv volume.LV, tags volume.Tags) error {
	conditions := changeable(lv.Ref, `lv_uuid="`+lv.UUID+`"`)
	return l.mark(ctx, lv.Ref, append(conditions, unneeded()...), tagArgs(tags.Strings(), nil))
}

// Disown implements adopt.LVM.
func (l *LVM) Disown(ctx context.Context, lv volume.LV) error {
	return l.mark(ctx, lv.Ref, ours(l.cfg.Owner, lv.Ref, lv.Tags.Kind), tagArgs(nil, lv.Tags.Strings()))
}

func (l *LVM) mark(ctx context.Context, r volume.Ref, conditions, args []string) error {
	err := l.check(r, idField, idField, false)
	if err == nil {
		err = l.change(ctx, r, conditions, args...)
	}
	if err == nil {
		err = l.durable(context.WithoutCancel(ctx), r.VG)
	}
	if err != nil && !errors.Is(err, volume.ErrInvalid) {
		return fmt.Errorf("changing the tags of logical volume %s: %w", r, err)
	}
	return err
}
