package fake

import (
	"context"
	"fmt"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Describe implements adopt.LVM.
func (c *LVM) Describe(ctx context.Context, r volume.Ref) (none volume.LV, roles string, err error) {
	if err := c.check(r); err != nil {
		return none, "", err
	}
	c.count(report)
	if err := c.pass(ctx, report); err != nil {
		return none, "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[r.VG]
	switch {
	case g == nil || g.unreadable != nil:
		return none, "", fmt.Errorf("reading volume group %s", r.VG)
	case g.missing() != 0:
		return none, "", fmt.Errorf("physical volumes of volume group %s are missing", r.VG)
	case g.lvs[r.LV] == nil:
		return none, "", fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
	}
	v := g.lvs[r.LV]
	switch {
	case v.pool:
		roles = "private"
	case v.thick():
		roles = "public,snapshot,thicksnapshot"
	case g.dependants(v) != "":
		roles = "public,origin,thickorigin"
	default:
		roles = "public"
	}
	return v.report(), roles, nil
}

// Adopt implements adopt.LVM.
func (c *LVM) Adopt(ctx context.Context, lv volume.LV, tags volume.Tags) error {
	return c.mark(ctx, lv.Ref, func(v *lvState) error {
		if v.uuid != lv.UUID {
			return fmt.Errorf("%w: %s is another one by now", volume.ErrPrecondition, lv.Ref)
		}
		v.retag(tags.Strings(), nil)
		return nil
	})
}

// Disown implements adopt.LVM.
func (c *LVM) Disown(ctx context.Context, lv volume.LV) error {
	return c.mark(ctx, lv.Ref, func(v *lvState) error {
		if v.parsed().Owner != c.cfg.Owner {
			return fmt.Errorf("%w: %s is not ours", volume.ErrPrecondition, lv.Ref)
		}
		v.retag(nil, lv.Tags.Strings())
		return nil
	})
}

// lvState is lv, where that name is taken.
type lvState = lv

func (c *LVM) mark(ctx context.Context, r volume.Ref, do func(*lvState) error) error {
	err := c.write(ctx, r, []string{"lvchange", r.String()}, func(g *group) error {
		v := g.lvs[r.LV]
		if v == nil {
			return fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
		}
		g.revision++
		return do(v)
	})
	if err == nil {
		err = c.durable(context.WithoutCancel(ctx), r.VG)
	}
	return err
}
