package lvm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Create implements lifecycle.LVM.
//
//  1. What can be refused without LVM is refused: names, sizes, the overcommit of a pool.
//  2. One lvcreate makes, tags, activates and wipes. A kill in the middle can leave a logical volume with our tags, which
//     Lookup then finds, or without any device.
//  3. What was made is read from the group's metadata, and its device must be there.
func (l *LVM) Create(ctx context.Context, s volume.Spec) (volume.LV, error) {
	if err := l.check(s.Ref, createVGField, createLVField, false); err != nil {
		return volume.LV{}, err
	}
	done, err := l.queue(ctx, s.VG)
	if err != nil {
		return volume.LV{}, l.creating(s, err)
	}
	defer done()
	state, err := l.inventory.current(ctx, s.VG)
	if err != nil {
		return volume.LV{}, l.creating(s, err)
	}
	size, err := l.admit(state.groups[s.VG], s)
	if err != nil {
		return volume.LV{}, l.creating(s, err)
	}
	if _, err := l.commands.write(ctx, "lvcreate", createArgs(s, l.cfg.Owner, size)...); err != nil {
		if errors.Is(err, errNoGroup) {
			err = fmt.Errorf("%w: %w", volume.ErrNoSpace, err)
		}
		return volume.LV{}, l.creating(s, err)
	}
	lv, err := l.made(context.WithoutCancel(ctx), s.Ref) // the caller may have gone; what was made is told all the same
	return lv, l.creating(s, err)
}

func (l *LVM) creating(s volume.Spec, err error) error {
	if err == nil || errors.Is(err, volume.ErrInvalid) {
		return err
	}
	return fmt.Errorf("creating logical volume %s (%s): %w", s.Ref, s.Layout.Type, err)
}

// made gives the logical volume that lvcreate has just made.
func (l *LVM) made(ctx context.Context, r volume.Ref) (volume.LV, error) {
	lv, err := l.Lookup(ctx, r)
	if err != nil {
		return lv, fmt.Errorf("lvcreate succeeded, but then: %v", err) //nolint:errorlint // "not found" would be a lie here
	}
	// With activation/volume_list in lvm.conf lvcreate succeeds and leaves it inactive, with its old content.
	st, err := l.dm.status(volume.DMName(r))
	if err != nil {
		return lv, fmt.Errorf("lvcreate succeeded, but there is no device (does activation/volume_list of lvm.conf forbid it?): %v", err) //nolint:errorlint // as above
	}
	if st.uuid != dmUUIDOf(l.groupUUID(r.VG), lv.UUID) {
		return lv, fmt.Errorf("lvcreate succeeded, but the device of that name is another one, %s", st.uuid)
	}
	return lv, nil
}

// admit gives the size, or says why there can be no such logical volume.
func (l *LVM) admit(g *group, s volume.Spec) (int64, error) {
	if g == nil {
		return 0, fmt.Errorf("%w: volume group %s is not on this node now", volume.ErrNoSpace, s.VG)
	}
	if s.Layout.StripeBytes > g.ExtentBytes {
		return 0, volume.Invalid("parameters["+volume.KeyStripeSize+"]", strconv.FormatInt(s.Layout.StripeBytes, 10),
			fmt.Sprintf("at most the extent size of the volume group, %d", g.ExtentBytes))
	}
	size, err := volume.Size(s.RequiredBytes, s.LimitBytes, s.Layout.UnitBytes(g.ExtentBytes), volume.MinFSBytes(s.Format.FS))
	if err != nil {
		return 0, err
	}
	if lv, ok := g.lvs[s.LV]; ok {
		return 0, fmt.Errorf("%w: logical volume %s is there, with %d bytes", volume.ErrExists, s.Ref, lv.SizeBytes)
	}
	if s.Layout.Type == volume.Thin {
		return size, l.admitThin(g, s, size)
	}
	return size, admitThick(g, s.Layout, size)
}

// admitThin holds the overcommit limit. No other change of the group by the driver is under way here.
func (l *LVM) admitThin(g *group, s volume.Spec, size int64) error {
	for _, p := range g.Pools {
		if p.Name != s.Layout.Pool {
			continue
		}
		limit := int64(math.MaxInt64)
		if f := float64(p.SizeBytes) * l.cfg.ThinOvercommit; f < math.MaxInt64 {
			limit = int64(f)
		}
		switch {
		case size > limit:
			return fmt.Errorf("%w: %d bytes; thin pool %s/%s may hold %d in all (%d × overcommit limit %g)",
				volume.ErrOutOfRange, size, g.Name, p.Name, limit, p.SizeBytes, l.cfg.ThinOvercommit)
		case size > limit-p.VirtualBytes:
			return fmt.Errorf("%w: %d bytes; thin pool %s/%s may hold %d in all (%d × overcommit limit %g), and %d are given out",
				volume.ErrNoSpace, size, g.Name, p.Name, limit, p.SizeBytes, l.cfg.ThinOvercommit, p.VirtualBytes)
		}
		return nil
	}
	return fmt.Errorf("%w: there is no thin pool %s/%s on this node", volume.ErrNoSpace, g.Name, s.Layout.Pool)
}

// admitThick refuses what the group could not hold even if it were empty. Whether it can now is for LVM to say.
func admitThick(g *group, layout volume.Layout, size int64) error {
	data, all := images(layout)
	image := size / int64(data)
	if all > data {
		image += g.ExtentBytes // the metadata of an image takes an extent at least (lvmraid(7))
	}
	if len(g.PVs) < all {
		return fmt.Errorf("%w: type %s with these stripes and mirrors needs %d physical volumes, volume group %s has %d",
			volume.ErrNoSpace, layout.Type, all, g.Name, len(g.PVs))
	}
	// Images lie on different physical volumes, and one image may lie on several: no physical volume gives more than
	// one image to each, so the sum of what each can give bounds what is possible.
	var give int64
	for _, pv := range g.PVs {
		give += min(pv.SizeBytes, image)
	}
	if all == 1 {
		give = g.SizeBytes
	}
	if image > give/int64(all) {
		return fmt.Errorf("%w: %d bytes as %s need %d × %d bytes on separate physical volumes; volume group %s of %d bytes on %d physical volumes can never hold that",
			volume.ErrOutOfRange, size, layout.Type, all, image, g.Name, g.SizeBytes, len(g.PVs))
	}
	return nil
}

// images gives into how many images the data is divided, and how many there are with copies and parity (lvmraid(7)).
func images(l volume.Layout) (data, all int) {
	data = max(1, l.Stripes)
	switch l.Type {
	case volume.RAID5:
		return data, data + 1
	case volume.RAID6:
		return data, data + 2
	default:
		return data, data * (l.Mirrors + 1)
	}
}

// createArgs gives the arguments of lvcreate(8). All names have been checked.
func createArgs(s volume.Spec, owner string, size int64) []string {
	// -y -W y: an old signature in reused extents is wiped and not asked about (case B48). -Z y: the first 4 KiB are
	// zero. Both are passed because lvm.conf may say otherwise.
	args := []string{"-y", "-W", "y", "-n", s.LV, "--type", string(s.Layout.Type)}
	for _, tag := range s.Tags(owner).Strings() {
		args = append(args, "--addtag", tag)
	}
	bytes := strconv.FormatInt(size, 10) + "b"
	l := s.Layout
	if l.Type == volume.Thin {
		// -kn: never skipped at activation. There is no -Z for thin volumes; the pool hands out zeroed chunks.
		return append(args, "-kn", "-V", bytes, "--thinpool", s.VG+"/"+l.Pool)
	}
	args = append(args, "-Z", "y", "-L", bytes)
	if l.Stripes != 0 {
		args = append(args, "-i", strconv.Itoa(l.Stripes))
	}
	if l.StripeBytes != 0 {
		args = append(args, "-I", strconv.FormatInt(l.StripeBytes, 10)+"b")
	}
	if l.Mirrors != 0 {
		args = append(args, "-m", strconv.Itoa(l.Mirrors))
	}
	// Not --nosync: the copies would differ where nothing was written, and the parity of raid5 and raid6 would be wrong
	// there, so that a lost disk turns into wrong data (lvmraid(7), "nosync").
	return append(args, s.VG)
}

// Remove implements lifecycle.LVM.
//
//  1. One lvremove, which LVM itself carries out only if, under its lock, the logical volume has our owner tag and the
//     kind, and nothing else would go with it.
//  2. If it removed nothing, one report tells why. Only where the group was read well and is whole, "not there" is "gone".
func (l *LVM) Remove(ctx context.Context, r volume.Ref, k volume.Kind) error {
	if err := l.check(r, idField, idField, false); err != nil {
		return err
	}
	done, err := l.queue(ctx, r.VG)
	if err == nil {
		defer done()
		err = l.remove(ctx, r, k)
	}
	if err != nil {
		return fmt.Errorf("removing logical volume %s: %w", r, err)
	}
	return nil
}

func (l *LVM) remove(ctx context.Context, r volume.Ref, k volume.Kind) error {
	res, err := l.commands.write(ctx, "lvremove", "-y", "-S", l.selection(r, k), r.String())
	switch {
	case err != nil && !errors.Is(err, errNoLV):
		return err
	case err == nil && removed(res.Stdout, r.LV):
		return nil
	}
	groups, err := l.commands.report(ctx, r.VG, l.cfg.allows)
	if err != nil {
		return fmt.Errorf("LVM removed nothing, and why could not be found out: %w", err)
	}
	g, ok := groups[r.VG]
	if !ok {
		return fmt.Errorf("LVM removed nothing, and does not report volume group %s", r.VG)
	}
	lv, ok := g.lvs[r.LV]
	switch {
	case !ok:
		return g.whole()
	case lv.Tags.Owner != l.cfg.Owner:
		return l.notOurs(r)
	case lv.Tags.Kind != k:
		return fmt.Errorf("%w: it is of kind %q, not %q; it is left alone", volume.ErrPrecondition, lv.Tags.Kind, k)
	case !removable(g.roles[r.LV]):
		return fmt.Errorf("%w: LVM would drop other logical volumes with it (its role is %s); remove its snapshots first", volume.ErrPrecondition, g.roles[r.LV])
	}
	return errors.New("LVM removed nothing, although it is there and fits; it was changed meanwhile")
}

// selection is what must hold of the logical volume for LVM to remove it (lvmreport(7), "SELECTION"). lvremove -y drops
// the snapshots of an origin and the thin volumes of a pool without a word; such are left out.
func (l *LVM) selection(r volume.Ref, k volume.Kind) string {
	conditions := []string{
		`lv_name="` + r.LV + `"`, `vg_name="` + r.VG + `"`,
		`lv_tags="` + volume.OwnerTag(l.cfg.Owner) + `"`, `lv_tags="` + volume.KindTag(k) + `"`,
		`lv_role=public`,
	}
	for _, role := range keepRoles {
		conditions = append(conditions, `lv_role!=`+role)
	}
	return strings.Join(conditions, " && ")
}

// keepRoles are the roles of logical volumes that others depend on: origins of thick snapshots, and external origins of
// thin volumes. A thin origin is not among them: thin snapshots live on without it (lvmthin(7)). Pools are not public.
var keepRoles = []string{"thickorigin", "extthinorigin"}

func removable(roles string) bool {
	public := false
	for _, role := range strings.Split(roles, ",") {
		public = public || role == "public"
		for _, keep := range keepRoles {
			if role == keep {
				return false
			}
		}
	}
	return public
}

// removed looks for LVM's word that it removed the logical volume (lvm2 lib/metadata/lv_manip.c, lv_remove_single).
func removed(stdout, lv string) bool {
	return strings.Contains(stdout, `ogical volume "`+lv+`" successfully removed`)
}
