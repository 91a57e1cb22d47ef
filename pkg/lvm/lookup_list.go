package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Lookup implements lifecycle.LVM. A logical volume of ours in a group with missing disks is found, and marked where it
// is partial; that one is not there can be said of whole groups only.
func (l *LVM) Lookup(ctx context.Context, r volume.Ref) (volume.LV, error) {
	if err := l.check(r, idField, idField, true); err != nil {
		return volume.LV{}, err
	}
	s, err := l.inventory.current(ctx, r.VG)
	if err != nil {
		return volume.LV{}, fmt.Errorf("looking for logical volume %s: %w", r.LV, err)
	}
	lv, err := l.find(s, r)
	if err != nil && !volume.NotOurs(err) {
		err = fmt.Errorf("looking for logical volume %s: %w", r.LV, err)
	}
	return lv, err
}

// find finds one of our logical volumes; the errors are Lookup's.
func (l *LVM) find(s *state, r volume.Ref) (volume.LV, error) {
	var foreign *volume.LV
	for _, g := range l.ordered(s) {
		lv, ok := g.lvs[r.LV]
		switch {
		case !ok || r.VG != "" && g.Name != r.VG:
		case lv.Tags.Owner == l.cfg.Owner:
			return lv, nil
		case foreign == nil:
			foreign = &lv
		}
	}
	if foreign != nil {
		return volume.LV{}, l.notOurs(foreign.Ref)
	}
	if err := l.wholeFor(s, r.VG); err != nil {
		return volume.LV{}, err
	}
	return volume.LV{}, fmt.Errorf("%w: there is no logical volume %s", volume.ErrNotFound, strings.TrimPrefix(r.String(), "/"))
}

func (l *LVM) notOurs(r volume.Ref) error {
	return fmt.Errorf("%w: logical volume %s does not carry the tag %s, so it is not the driver's; it is left alone",
		volume.ErrPrecondition, r, volume.OwnerTag(l.cfg.Owner))
}

// wholeFor is nil where what is not found in the group, or with "" in any of ours, is not there.
func (l *LVM) wholeFor(s *state, vg string) error {
	if vg == "" {
		return s.whole(l.cfg)
	}
	g, ok := s.groups[vg]
	if !ok {
		return fmt.Errorf("volume group %s is not there; bring its disks back", vg)
	}
	return g.whole()
}

// List gives all logical volumes with our owner tag in our groups, by group and name. A group that the flag names and
// that is not there is an error, since a list without its volumes would say that they are gone; those of a partial group are
// listed, marked where they are partial.
func (l *LVM) List(ctx context.Context) ([]volume.LV, error) {
	s, err := l.inventory.current(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("listing logical volumes: %w", err)
	}
	if err := s.named(l.cfg); err != nil {
		return nil, fmt.Errorf("listing logical volumes: %w", err)
	}
	var out []volume.LV
	for _, g := range s.groups {
		for _, lv := range g.lvs {
			if lv.Tags.Owner == l.cfg.Owner {
				out = append(out, lv)
			}
		}
	}
	slices.SortFunc(out, func(a, b volume.LV) int {
		if a.VG != b.VG {
			return strings.Compare(a.VG, b.VG)
		}
		return strings.Compare(a.LV, b.LV)
	})
	return out, nil
}

// Groups gives the groups of --volume-groups that are there, in the order of its patterns, then by name. The first is
// the default.
func (l *LVM) Groups(ctx context.Context) ([]volume.Group, error) {
	s, err := l.inventory.current(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("listing volume groups: %w", err)
	}
	var out []volume.Group
	for _, g := range l.ordered(s) {
		c := g.Group
		c.PVs, c.Pools = slices.Clone(g.PVs), slices.Clone(g.Pools)
		out = append(out, c)
	}
	return out, nil
}

func (l *LVM) ordered(s *state) []*group {
	var out []*group
	for _, g := range s.groups {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *group) int {
		if ra, rb := l.cfg.rank(a.Name), l.cfg.rank(b.Name); ra != rb {
			return ra - rb
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// Check is nil where LVM answers and at least one group is there with all its disks. No LVM command where nothing has
// changed.
func (l *LVM) Check(ctx context.Context) error {
	groups, err := l.Groups(ctx)
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		return fmt.Errorf("none of the volume groups that --volume-groups names is there: %v; make one with vgcreate", l.cfg.VolumeGroups)
	}
	if !slices.ContainsFunc(groups, func(g volume.Group) bool { return g.MissingPVs == 0 }) {
		return errors.New("every volume group of the driver has missing physical volumes; bring the disks back")
	}
	return nil
}
