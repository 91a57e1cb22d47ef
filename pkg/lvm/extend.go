package lvm

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Extend implements lifecycle.LVM.
//
//  1. What can be refused without LVM is refused: what is not ours, sizes, thick snapshots, the overcommit of a pool.
//  2. One lvextend, to a size in whole extents, so that LVM has nothing to round. LVM keeps the stripes, the mirrors and the stripe
//     size. It never runs what would resize a file system (-r), which is the node's to do, nor a check.
//  3. The group's metadata tells the new size, and the device must have it.
//  4. The disks are flushed, also where nothing was to be done: whoever made it larger may have been killed before this.
//
// lvextend takes no selection (lvextend(8) of LVM 2.03.16 knows neither --select nor tags), so the two keys are looked at here,
// in the metadata as it stands on the disks while no other change of the driver's is under way. If somebody else removed the
// volume and gave its name to another within that moment, the other would be made larger, which loses nothing; its uuid then
// tells, and the answer is an error.
func (l *LVM) Extend(ctx context.Context, r volume.Ref, k volume.Kind, required, limit int64) (volume.LV, error) {
	if err := l.check(r, idField, idField, false); err != nil {
		return volume.LV{}, err
	}
	lv, err := l.extend(ctx, r, k, required, limit)
	if err == nil {
		err = l.durable(context.WithoutCancel(ctx), r.VG)
	}
	if err != nil && !errors.Is(err, volume.ErrInvalid) {
		err = fmt.Errorf("extending logical volume %s: %w", r, err)
	}
	return lv, err
}

// extend is steps 1 to 3, when it is the turn of this change of the group.
func (l *LVM) extend(ctx context.Context, r volume.Ref, k volume.Kind, required, limit int64) (lv volume.LV, err error) {
	done, err := l.queue(ctx, r.VG)
	if err != nil {
		return lv, err
	}
	defer done()
	s, err := l.inventory.current(ctx, r.VG)
	if err != nil {
		return lv, err
	}
	lv, err = l.extendable(s, r, k)
	if err != nil {
		return lv, err
	}
	size, err := l.admitExtension(s.groups[r.VG], lv, required, limit)
	if err != nil {
		return lv, err
	}
	background := context.WithoutCancel(ctx) // the caller may go; what was made is told all the same
	if size == lv.SizeBytes {
		return lv, l.follow(background, lv)
	}
	if _, err := l.commands.write(ctx, "lvextend", "-y", "-L", strconv.FormatInt(size, 10)+"b", r.String()); err != nil {
		if errors.Is(err, errNoLV) {
			err = fmt.Errorf("%w: %w", volume.ErrNotFound, err)
		}
		return lv, err
	}
	larger, err := l.Lookup(background, r)
	switch {
	case err != nil:
		return lv, fmt.Errorf("lvextend succeeded, but then: %v", err) //nolint:errorlint // "not found" would be a lie here
	case larger.UUID != lv.UUID:
		return lv, fmt.Errorf("lvextend succeeded, but on another logical volume of this name, which was made meanwhile (uuid %s, before %s)", larger.UUID, lv.UUID)
	case larger.SizeBytes < size:
		return larger, fmt.Errorf("lvextend succeeded, but it has %d bytes, not %d", larger.SizeBytes, size)
	}
	return larger, l.follow(background, larger)
}

// extendable finds the logical volume, and checks whose and what it is.
func (l *LVM) extendable(s *state, r volume.Ref, k volume.Kind) (volume.LV, error) {
	if err := l.wholeFor(s, r.VG); err != nil { // LVM changes no partial group
		return volume.LV{}, err
	}
	lv, ok := s.groups[r.VG].lvs[r.LV]
	switch {
	case !ok:
		return lv, fmt.Errorf("%w: there is no logical volume %s", volume.ErrNotFound, r)
	case lv.Tags.Owner != l.cfg.Owner:
		return lv, l.notOurs(r)
	case lv.Tags.Kind != k:
		return lv, fmt.Errorf("%w: it is of kind %q, not %q; it is left alone", volume.ErrPrecondition, lv.Tags.Kind, k)
	}
	return lv, nil
}

// admitExtension gives the size, or says why the logical volume cannot have it. Whether there is room now is, but for thin
// volumes, for LVM to say.
func (l *LVM) admitExtension(g *group, lv volume.LV, required, limit int64) (int64, error) {
	layout, known := g.layoutOf(lv)
	size, err := volume.ExpandedSize(lv.SizeBytes, required, limit, layout.UnitBytes(g.ExtentBytes))
	if err != nil || size == lv.SizeBytes {
		return size, err
	}
	if !known {
		return 0, fmt.Errorf("%w: how it lies on its physical volumes is none of the ways the driver knows; extend it by hand, with lvextend(8)", volume.ErrPrecondition)
	}
	for _, other := range g.lvs {
		if other.Origin == lv.LV && other.Type != volume.Thin {
			return 0, fmt.Errorf("%w: it has thick snapshots, such as %s, and LVM does not extend their origin while it is active; remove its snapshots first",
				volume.ErrPrecondition, other.LV)
		}
	}
	now, ever := l.available(g, layout)
	if err := l.admitBytes(g, layout, size, size-lv.SizeBytes, now, ever); err != nil {
		return 0, err
	}
	return size, nil
}

// layoutOf gives the layout with which LVM goes on when the logical volume grows. Where the metadata text is not to be had it
// follows from the type alone; known is false where it does not, and for what the driver does not make.
func (g *group) layoutOf(lv volume.LV) (l volume.Layout, known bool) {
	if l, ok := g.layouts[lv.LV]; ok && lv.Type != "" {
		switch l.Type {
		case volume.Striped, volume.RAID5, volume.RAID6, volume.RAID10:
			return l, l.Stripes != 0
		}
		return l, true
	}
	switch lv.Type {
	case volume.Linear, volume.Thin:
		return volume.Layout{Type: lv.Type, Pool: lv.Pool}, true
	case volume.RAID1:
		return volume.Layout{Type: lv.Type, Mirrors: 1}, true
	}
	return volume.Layout{}, false
}

// follow sees to it that the device of an active logical volume has the size that the metadata say: an lvextend that was
// killed may have left it behind.
func (l *LVM) follow(ctx context.Context, lv volume.LV) error {
	for tries := 0; ; tries++ {
		st, err := l.dm.status(volume.DMName(lv.Ref))
		if errors.Is(err, volume.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		sectors, err := l.dm.number(st, "size")
		switch has := sectors * sectorBytes; {
		case err != nil:
			return err
		case has >= lv.SizeBytes:
			return nil
		case tries != 0:
			return fmt.Errorf("its device %d:%d has %d bytes, and not the %d of the logical volume, also after lvchange --refresh", st.major, st.minor, has, lv.SizeBytes)
		}
		if _, err := l.commands.write(ctx, "lvchange", "-y", "--refresh", lv.Ref.String()); err != nil {
			return err
		}
	}
}
