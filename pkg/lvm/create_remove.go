package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
//  4. The disks are flushed, so that it outlives a power cut.
func (l *LVM) Create(ctx context.Context, s volume.Spec) (volume.LV, error) {
	if err := l.check(s.Ref, createVGField, createLVField, false); err != nil {
		return volume.LV{}, err
	}
	lv, err := l.create(ctx, s)
	if err == nil {
		err = l.creating(s, l.durable(context.WithoutCancel(ctx), s.VG))
	}
	return lv, err
}

// create is steps 1 to 3, when it is the turn of this change of the group.
func (l *LVM) create(ctx context.Context, s volume.Spec) (volume.LV, error) {
	done, err := l.queue(ctx, s.VG)
	if err != nil {
		return volume.LV{}, l.creating(s, err)
	}
	defer done()
	return l.createNow(ctx, s)
}

func (l *LVM) createNow(ctx context.Context, s volume.Spec) (volume.LV, error) {
	state, err := l.inventory.current(ctx, s.VG)
	if err != nil {
		return volume.LV{}, l.creating(s, err)
	}
	if s.Origin.LV != "" {
		if s, err = l.withOrigin(state.groups[s.VG], s); err != nil {
			return volume.LV{}, l.creating(s, err)
		}
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
	if s.Origin.LV != "" && !s.Held && s.Layout.Type == volume.Thin && size > s.Origin.SizeBytes { // lvcreate -s takes no size of a thin volume
		if _, err := l.commands.write(ctx, "lvextend", "-y", "-L", strconv.FormatInt(size, 10)+"b", s.Ref.String()); err != nil {
			return volume.LV{}, l.creating(s, err)
		}
	}
	lv, err := l.made(context.WithoutCancel(ctx), s) // the caller may have gone; what was made is told all the same
	return lv, l.creating(s, err)
}

func (l *LVM) creating(s volume.Spec, err error) error {
	if err == nil || errors.Is(err, volume.ErrInvalid) {
		return err
	}
	what := string(s.Layout.Type)
	if s.Origin.LV != "" {
		what = "of " + s.Origin.Ref.String()
	}
	return fmt.Errorf("creating logical volume %s (%s): %w", s.Ref, what, err)
}

// made gives the logical volume that lvcreate has just made.
func (l *LVM) made(ctx context.Context, s volume.Spec) (volume.LV, error) {
	r := s.Ref
	lv, err := l.Lookup(ctx, r)
	if err == nil && s.Kind == volume.Snapshot && !s.Held {
		err = lv.Whole()
	}
	if err != nil {
		return lv, fmt.Errorf("lvcreate succeeded, but then: %v", err) //nolint:errorlint // "not found" would be a lie here
	}
	if s.Kind == volume.Snapshot { // it has no device of its own, or one only while its origin has
		return lv, nil
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

// withOrigin gives the spec with its origin as it is now, and the layout that follows from that.
func (l *LVM) withOrigin(g *group, s volume.Spec) (volume.Spec, error) {
	if g == nil {
		return s, fmt.Errorf("volume group %s is not on this node now; bring its disks back", s.VG)
	}
	origin, ok := g.lvs[s.Origin.LV]
	switch {
	case !ok:
		if err := g.whole(); err != nil {
			return s, err
		}
		return s, fmt.Errorf("%w: there is no logical volume %s", volume.ErrNotFound, s.Origin.Ref)
	case origin.Tags.Owner != l.cfg.Owner:
		return s, l.notOurs(origin.Ref)
	}
	s.Origin, s.Layout = origin, volume.Layout{Type: volume.Linear}
	switch origin.Type {
	case volume.Thin:
		s.Layout = volume.Layout{Type: volume.Thin, Pool: origin.Pool}
	case "":
		return s, fmt.Errorf("%w: logical volume %s is of a layout that the driver does not know; LVM's snapshots are for linear, striped, raid and thin ones", volume.ErrPrecondition, origin.Ref)
	}
	return s, nil
}

// sizeOf gives the size that the spec asks for, within its bounds.
func sizeOf(g *group, s volume.Spec) (int64, error) {
	unit, least := s.Layout.UnitBytes(g.ExtentBytes), volume.MinFSBytes(s.Format.FS)
	switch {
	case s.Origin.LV == "":
		return volume.Size(s.RequiredBytes, s.LimitBytes, unit, least)
	case s.Layout.Type != volume.Thin:
		return s.CopyOnWrite.StoreBytes(s.Origin.SizeBytes, unit), nil
	default:
		return volume.Size(max(s.RequiredBytes, s.Origin.SizeBytes), s.LimitBytes, unit, least)
	}
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
	size, err := sizeOf(g, s)
	if err != nil {
		return 0, err
	}
	if lv, ok := g.lvs[s.LV]; ok {
		return 0, fmt.Errorf("%w: logical volume %s is there, with %d bytes", volume.ErrExists, s.Ref, lv.SizeBytes)
	}
	switch {
	case g.MissingPVs != 0: // LVM changes no partial group, and says so best itself
		return size, nil
	case s.TakesNothing():
		return size, nil
	}
	return size, l.admitSize(g, s.Layout, size)
}

// admitSize refuses what the group could not hold even if it were empty, and holds the overcommit limit of thin pools:
// no other change of the group by the driver is under way here. Whether there is room now is else for LVM to say.
func (l *LVM) admitSize(g *group, layout volume.Layout, size int64) error {
	now, ever := l.available(g, layout)
	switch {
	case ever == 0 && layout.Type == volume.Thin:
		return fmt.Errorf("%w: there is no thin pool %s/%s on this node", volume.ErrNoSpace, g.Name, layout.Pool)
	case ever == 0:
		return fmt.Errorf("%w: %d stripes and %d mirrors need more physical volumes than the %d of volume group %s",
			volume.ErrNoSpace, layout.Stripes, layout.Mirrors, len(g.PVs), g.Name)
	}
	return l.admitBytes(g, layout, size, size, now, ever)
}

// admitBytes refuses a size of which the group has less for ever, or, of a thin volume, that is so many bytes more than there are now.
func (l *LVM) admitBytes(g *group, layout volume.Layout, size, more, now, ever int64) error {
	thin := layout.Type == volume.Thin
	switch {
	case size > ever && thin:
		return fmt.Errorf("%w: %d bytes; thin pool %s/%s may hold %d in all, by its size and the overcommit limit of %g",
			volume.ErrOutOfRange, size, g.Name, layout.Pool, ever, l.cfg.ThinOvercommit)
	case size > ever:
		return fmt.Errorf("%w: %d bytes; volume group %s of %d bytes on %d physical volumes could hold %d of this type if it were empty",
			volume.ErrOutOfRange, size, g.Name, g.SizeBytes, len(g.PVs), ever)
	case more > now && thin:
		return fmt.Errorf("%w: %d bytes more; thin pool %s/%s may hold %d in all, by its size and the overcommit limit of %g, and %d are left",
			volume.ErrNoSpace, more, g.Name, layout.Pool, ever, l.cfg.ThinOvercommit, now)
	}
	return nil
}

// available gives the bytes that the group can give to volumes of a layout now, and could if it were empty.
func (l *LVM) available(g *group, layout volume.Layout) (now, ever int64) {
	now, _ = volume.Available(g.Group, layout, l.cfg.ThinOvercommit)
	ever, _ = volume.Available(g.emptied(), layout, l.cfg.ThinOvercommit)
	return now, ever
}

// emptied gives the group as it would be with nothing in it but its pools, and these with nothing in them.
func (g *group) emptied() volume.Group {
	e := g.Group
	e.PVs, e.Pools = slices.Clone(e.PVs), slices.Clone(e.Pools)
	for i := range e.PVs {
		e.PVs[i].FreeBytes, e.PVs[i].Allocatable = e.PVs[i].SizeBytes, true
	}
	for i := range e.Pools {
		e.Pools[i].VirtualBytes = 0
	}
	return e
}

// createArgs gives the arguments of lvcreate(8). All names have been checked.
func createArgs(s volume.Spec, owner string, size int64) []string {
	// -y -W y: an old signature in reused extents is wiped and not asked about (case B48). -Z y: the first 4 KiB are
	// zero. Both are passed because lvm.conf may say otherwise.
	bytes := strconv.FormatInt(size, 10) + "b"
	if s.Origin.LV != "" {
		return snapshotArgs(s, owner, bytes)
	}
	args := append([]string{"-y", "-W", "y", "-n", s.LV, "--type", string(s.Layout.Type)}, addTags(s, owner)...)
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

func addTags(s volume.Spec, owner string) (args []string) {
	for _, tag := range s.Tags(owner).Strings() {
		args = append(args, "--addtag", tag)
	}
	return args
}

// snapshotArgs gives the arguments of lvcreate(8) where LVM makes a logical volume of another.
func snapshotArgs(s volume.Spec, owner, bytes string) []string {
	args := append([]string{"-y", "-s", "-n", s.LV}, addTags(s, owner)...)
	switch {
	case s.Held:
		return append(append([]string{"-y", "-n", s.LV, "--type", "thin"}, addTags(s, owner)...), "-ky", "-V", bytes, "--thinpool", s.VG+"/"+s.Layout.Pool)
	case s.Layout.Type != volume.Thin:
		args = append(args, "-c", "4k", "-L", bytes) // the chunk that the size is reckoned with (volume.CopyOnWrite)
	case s.Kind == volume.Snapshot:
		// With the skip flag, which is LVM's default but for auto_set_activation_skip in lvm.conf: it has no device until
		// somebody reads it, and none after a reboot.
		args = append(args, "-ky")
	default:
		args = append(args, "-kn", "-ay")
	}
	return append(args, s.Origin.Ref.String())
}

// Remove implements lifecycle.LVM.
//
//  1. One lvremove, which LVM itself carries out only if, under its lock, the logical volume has our owner tag and the
//     kind, and nothing else would go with it.
//  2. If it removed nothing, one report tells why. Only where the group was read well and is whole, "not there" is "gone".
//  3. The disks are flushed, so that it does not come back with a power cut; also where it was gone, since whoever
//     removed it may have been killed before this.
func (l *LVM) Remove(ctx context.Context, r volume.Ref, k volume.Kind) error {
	if err := l.check(r, idField, idField, false); err != nil {
		return err
	}
	err := l.remove(ctx, r, k)
	if err == nil {
		err = l.durable(context.WithoutCancel(ctx), r.VG)
	}
	if err != nil {
		return fmt.Errorf("removing logical volume %s: %w", r, err)
	}
	return nil
}

// remove is steps 1 and 2, when it is the turn of this change of the group.
func (l *LVM) remove(ctx context.Context, r volume.Ref, k volume.Kind) error {
	done, err := l.queue(ctx, r.VG)
	if err != nil {
		return err
	}
	defer done()
	res, err := l.commands.write(ctx, "lvremove", "-y", "-S", l.selection(r, k), r.String())
	switch {
	case err != nil && !errors.Is(err, errNoLV):
		return err
	case err == nil && removed(res.Stdout, r.LV):
		return nil
	}
	g, err := l.reported(ctx, r.VG)
	if err != nil {
		return fmt.Errorf("LVM removed nothing, and why could not be found out: %w", err)
	}
	lv, ok := g.lvs[r.LV]
	switch {
	case !ok || g.MissingPVs != 0:
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
	return strings.Join(append(ours(l.cfg.Owner, r, k), unneeded()...), " && ")
}

// keepRoles are the roles of logical volumes that others depend on: origins of thick snapshots, and external origins of
// thin volumes. A thin origin is not among them: thin snapshots live on without it (lvmthin(7)). Pools are not public.
var keepRoles = []string{"thickorigin", "extthinorigin"}

// unneeded is what must hold of a logical volume on which no other depends.
func unneeded() (conditions []string) {
	for _, role := range keepRoles {
		conditions = append(conditions, `lv_role!=`+role)
	}
	return conditions
}

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
