package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Retag implements lifecycle.LVM.
//
//  1. One lvchange, which LVM itself carries out only if, under its lock, the logical volume has our owner tag and the kind.
//     All tags change with one commit of the metadata.
//  2. If it changed nothing, one report tells why.
//  3. The disks are flushed, also where the tags were so before: whoever changed them may have been killed before this.
func (l *LVM) Retag(ctx context.Context, r volume.Ref, k volume.Kind, add, remove []string) error {
	if err := volume.CheckRetag(add, remove); err != nil {
		return err
	}
	if err := l.check(r, idField, idField, false); err != nil {
		return err
	}
	var err error
	if len(add)+len(remove) != 0 {
		err = l.change(ctx, r, ours(l.cfg.Owner, r, k), tagArgs(add, remove)...)
	}
	if err == nil {
		err = l.durable(context.WithoutCancel(ctx), r.VG)
	}
	if err != nil {
		return fmt.Errorf("changing the tags of logical volume %s: %w", r, err)
	}
	return nil
}

func tagArgs(add, remove []string) (args []string) {
	for _, tag := range remove {
		args = append(args, "--deltag", tag)
	}
	for _, tag := range add {
		args = append(args, "--addtag", tag)
	}
	return args
}

// ours is what must hold of the logical volume for LVM to change it (lvmreport(7), "SELECTION").
func ours(owner string, r volume.Ref, k volume.Kind) []string {
	return changeable(r, `lv_tags="`+volume.OwnerTag(owner)+`"`, `lv_tags="`+volume.KindTag(k)+`"`)
}

// changeable is what must hold of a logical volume for LVM to change it, whosever it is, besides what is given.
func changeable(r volume.Ref, more ...string) []string {
	return slices.Concat([]string{`lv_name="` + r.LV + `"`, `vg_name="` + r.VG + `"`}, more, []string{
		`lv_role=public`,
		// Whatever LVM changes in a group with a missing disk, it also marks that disk as missing for good: when it comes
		// back it stays out, until vgextend(8) --restoremissing. A disk that is late at boot must not end so.
		`vg_missing_pv_count=0`,
	})
}

// change runs one lvchange with the arguments on the logical volume, when it is the turn of this change of the group.
func (l *LVM) change(ctx context.Context, r volume.Ref, conditions []string, args ...string) error {
	done, err := l.queue(ctx, r.VG)
	if err != nil {
		return err
	}
	defer done()
	return l.lvchange(ctx, r, conditions, args)
}

// lvchange is content where the selection fits nothing, and says so by silence.
func (l *LVM) lvchange(ctx context.Context, r volume.Ref, conditions, args []string) error {
	args = append([]string{"-y", "-S", strings.Join(conditions, " && ")}, append(args, r.String())...)
	res, err := l.commands.write(ctx, "lvchange", args...)
	switch {
	case err != nil && !errors.Is(err, errNoLV):
		return err
	case err == nil && changed(res, r):
		return nil
	}
	return l.whyNot(ctx, r, conditions)
}

// changed looks for LVM's word that it changed the logical volume (lvm2 tools/lvchange.c, _lvchange_properties_single).
func changed(res run.Result, r volume.Ref) bool {
	return strings.Contains(res.Stdout, "ogical volume "+r.String()+" changed")
}

// reported gives the group as LVM reports it now.
func (l *LVM) reported(ctx context.Context, vg string) (*group, error) {
	groups, err := l.commands.report(ctx, vg, l.cfg.allows)
	if err == nil && groups[vg] == nil {
		err = fmt.Errorf("LVM does not report volume group %s", vg)
	}
	return groups[vg], err
}

// whyNot asks LVM why nothing was changed.
func (l *LVM) whyNot(ctx context.Context, r volume.Ref, conditions []string) error {
	g, err := l.reported(ctx, r.VG)
	if err != nil {
		return fmt.Errorf("LVM changed nothing, and why could not be found out: %w", err)
	}
	if err := g.whole(); err != nil {
		return err
	}
	lv, ok := g.lvs[r.LV]
	switch {
	case !ok:
		return fmt.Errorf("%w: it is not there", volume.ErrNotFound)
	case lv.Tags.Owner != l.cfg.Owner:
		return l.notOurs(r)
	}
	return fmt.Errorf("%w: LVM changed nothing, since one of these does not hold: %s; its kind is %q, its role %s",
		volume.ErrPrecondition, strings.Join(conditions, ", "), lv.Tags.Kind, g.roles[r.LV])
}
