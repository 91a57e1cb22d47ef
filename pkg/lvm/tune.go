package lvm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Tune implements lifecycle.LVM.
//
//  1. One lvchange changes the tags and sets what is asked for, if the logical volume has our owner tag and the kind.
//  2. LVM calls it a failure where the read-ahead is so already, and does not then say whether the rest went well. It is run again
//     without, and what the device has is made what the metadata say: whoever set it may have been killed in between. The same where LVM
//     refuses to set it, since the logical volume has thick snapshots, and it is so already: that is in the tag, which was changed with it.
//  3. The disks are flushed.
//
// A kill can leave the tags without all of the rest. Repeated, it ends well.
func (l *LVM) Tune(ctx context.Context, r volume.Ref, k volume.Kind, add, remove []string, m volume.Mutable) error {
	if err := volume.CheckRetag(add, remove); err != nil {
		return err
	}
	if err := l.check(r, idField, idField, false); err != nil {
		return err
	}
	writeMostly, err := l.writeMostlyArgs(ctx, r, m)
	if err != nil {
		return err
	}
	if err := l.tune(ctx, r, k, append(tagArgs(add, remove), writeMostly...), m); err != nil {
		return fmt.Errorf("changing logical volume %s: %w", r, err)
	}
	return nil
}

func (l *LVM) tune(ctx context.Context, r volume.Ref, k volume.Kind, args []string, m volume.Mutable) error {
	args = append(args, rateArgs(m)...)
	readAhead := readAheadArgs(m)
	if len(args)+len(readAhead) == 0 {
		return l.durable(context.WithoutCancel(ctx), r.VG)
	}
	conditions := ours(l.cfg.Owner, r, k)
	err := l.change(ctx, r, conditions, append(readAhead, args...)...)
	if errors.Is(err, errReadAheadIs) || errors.Is(err, errThickOrigin) && l.hasReadAhead(ctx, r, m) {
		err = nil
		if len(args) != 0 {
			err = l.change(ctx, r, conditions, args...)
		}
		if err == nil {
			err = l.refresh(ctx, r)
		}
	}
	if err != nil {
		return err
	}
	return l.durable(context.WithoutCancel(ctx), r.VG)
}

// hasReadAhead reports whether the logical volume surely has the read-ahead.
func (l *LVM) hasReadAhead(ctx context.Context, r volume.Ref, m volume.Mutable) bool {
	lv, err := l.Lookup(ctx, r)
	if err != nil {
		return false
	}
	has, err := lv.Tags.MutableParameters()
	return err == nil && has[volume.KeyReadAhead] == m[volume.KeyReadAhead]
}

// readAheadArgs and rateArgs are the arguments of lvcreate(8) and lvchange(8) alike.
func readAheadArgs(m volume.Mutable) (args []string) {
	if v, ok := m[volume.KeyReadAhead]; ok {
		args = append(args, "-r", v)
	}
	return args
}

func rateArgs(m volume.Mutable) (args []string) {
	if v, ok := m[volume.KeyMinRecoveryRate]; ok {
		args = append(args, "--minrecoveryrate", v+"k")
	}
	if v, ok := m[volume.KeyMaxRecoveryRate]; ok {
		args = append(args, "--maxrecoveryrate", v+"k")
	}
	return args
}

// writeMostlyArgs name all physical volumes of the logical volume: those that are to be write-mostly, and those that are not any
// more. One on which it does not lie LVM would pass over in silence; and one that the group lacks it calls a failure only after it
// has changed the tags.
func (l *LVM) writeMostlyArgs(ctx context.Context, r volume.Ref, m volume.Mutable) (args []string, err error) {
	devices, asked := m.WriteMostly()
	if !asked {
		return nil, nil
	}
	has, err := l.devicesOf(ctx, r)
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, d := range devices {
		i := slices.IndexFunc(has, func(h string) bool { return sameFile(h, d) })
		if i < 0 {
			return nil, volume.Invalid("mutable_parameters["+volume.KeyWriteMostly+"]", d,
				fmt.Sprintf("the logical volume %s does not lie on it, but on %v; name of these", r, has))
		}
		wanted[has[i]] = true
	}
	for _, h := range has {
		flag := ":n"
		if wanted[h] {
			flag = ":y"
		}
		args = append(args, "--writemostly", h+flag)
	}
	return args, nil
}

// devicesOf gives the physical volumes on which a logical volume lies.
func (l *LVM) devicesOf(ctx context.Context, r volume.Ref) (out []string, err error) {
	s, err := l.inventory.current(ctx, r.VG)
	if err != nil {
		return nil, fmt.Errorf("looking for the physical volumes of %s: %w", r, err)
	}
	g := s.groups[r.VG]
	if g == nil || g.lies == nil {
		return nil, fmt.Errorf("on which physical volumes %s lies cannot be told: the metadata of its group cannot be read from the disks", r)
	}
	if _, ok := g.lvs[r.LV]; !ok {
		return nil, fmt.Errorf("%w: there is no logical volume %s", volume.ErrNotFound, r)
	}
	for _, uuid := range g.lies[r.LV] {
		out = append(out, g.uuids[uuid])
	}
	slices.Sort(out)
	return out, nil
}

// sameFile reports whether two paths are of one device: /dev/disk/by-id/... is a link to what LVM calls it.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	ra, err := filepath.EvalSymlinks(a)
	rb, err2 := filepath.EvalSymlinks(b)
	return err == nil && err2 == nil && ra == rb
}
