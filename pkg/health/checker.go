package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// LVM is what is asked of LVM and device-mapper.
type LVM interface {
	// VolumeFacts tells of a logical volume; with an empty VG, in any of the driver's groups. It does not hang.
	// ErrNotFound: neither a logical volume nor a device of the name is there.
	VolumeFacts(ctx context.Context, r volume.Ref) (volume.Facts, error)
	// Look gives a VolumeFacts for one look at many volumes: what they have in common is asked once, for all of them.
	Look() func(ctx context.Context, r volume.Ref) (volume.Facts, error)
	// StorageFacts tells of the driver's groups. It does not hang.
	StorageFacts(ctx context.Context) volume.StorageFacts
	// List gives all logical volumes of the driver.
	List(ctx context.Context) ([]volume.LV, error)
}

// Host is what is asked of the mount table and of mounted file systems.
type Host interface {
	// List gives the mount table; the topmost mount of a target comes last.
	List(ctx context.Context) ([]volume.Mount, error)
	// FilesystemFacts tells of the file system that a mount shows, the topmost at its target. It does not hang.
	FilesystemFacts(ctx context.Context, m volume.Mount) volume.FilesystemFacts
	// DeviceGone reports whether there is no device of the mount's number.
	DeviceGone(m volume.Mount) bool
}

// Checker gathers facts and judges them. Safe for use by several goroutines.
type Checker struct {
	lvm     LVM
	host    Host
	resolve func(path string) (string, error)
	open    ask.Open
}

// New gives the checker of a node. resolve gives a path as the mount table shows it.
func New(lvm LVM, host Host, resolve func(path string) (string, error)) *Checker {
	return &Checker{lvm: lvm, host: host, resolve: resolve}
}

// Volume gives the conditions of a volume; none: it is well. paths are where the CO has it, or tried to have it: each may be
// empty. ErrNotFound: there is no such volume, nor anything left of it.
func (c *Checker) Volume(ctx context.Context, r volume.Ref, paths ...string) ([]Condition, error) {
	table, err := c.table(ctx)
	if err != nil {
		return nil, err
	}
	at, err := c.topmost(table, paths)
	if err != nil {
		return nil, err
	}
	_, conditions, err := c.volume(ctx, c.lvm.VolumeFacts, r, mountsOf(table), at)
	return conditions, err
}

func (c *Checker) table(ctx context.Context) ([]volume.Mount, error) {
	return ask.Ask(ctx, &c.open, "the mount table", func() ([]volume.Mount, error) { return c.host.List(context.WithoutCancel(ctx)) })
}

// volume judges a volume; at are the topmost mounts at the paths where it should be.
func (c *Checker) volume(ctx context.Context, facts factsOf, r volume.Ref, mounts mounts, at []volume.Mount) (Seen, []Condition, error) {
	f, err := facts(ctx, r)
	if errors.Is(err, volume.ErrNotFound) && slices.ContainsFunc(at, c.host.DeviceGone) {
		s := Seen{Facts: volume.Facts{Ref: r, Gone: true}}
		return s, OfVolume(s), nil // a block volume keeps its target, not its device
	}
	s := Seen{Facts: f}
	if err != nil {
		return s, nil, err
	}
	own := device{f.Major, f.Minor}
	if f.Gone && f.Open == 0 && !(f.Active && mounts.any[own]) {
		return s, nil, fmt.Errorf("%w: there is no logical volume %s, and nobody uses the device that is left of it", volume.ErrNotFound, f.Ref)
	}
	if !f.Hangs() {
		s.Strangers = slices.DeleteFunc(at, func(m volume.Mount) bool { return f.Active && deviceOf(m) == own })
		if m, ok := mounts.shows[own]; ok && f.Active {
			s.Filesystems = append(s.Filesystems, c.host.FilesystemFacts(ctx, m))
		}
	}
	return s, OfVolume(s), ctx.Err()
}

// topmost gives the topmost mounts at the paths.
func (c *Checker) topmost(table []volume.Mount, paths []string) (out []volume.Mount, err error) {
	for _, p := range paths {
		if p == "" {
			continue
		}
		resolved, err := c.resolve(p)
		if err != nil {
			return nil, err
		}
		for _, target := range []string{resolved, resolved + "/" + volume.StagedDevice} {
			for _, m := range slices.Backward(table) {
				if m.Target == target {
					out = append(out, m)
					break
				}
			}
		}
	}
	return out, nil
}

// factsOf is LVM.VolumeFacts, or that of one look.
type factsOf func(ctx context.Context, r volume.Ref) (volume.Facts, error)

type device struct{ major, minor uint32 }

func deviceOf(m volume.Mount) device { return device{m.Major, m.Minor} }

// mounts is the mount table by device.
type mounts struct {
	any map[device]bool
	// shows is a mount that shows the file system of the device, one that has gone read-only if there is one: mounts that were
	// made read-only do not tell.
	shows map[device]volume.Mount
}

func mountsOf(table []volume.Mount) mounts {
	out := mounts{map[device]bool{}, map[device]volume.Mount{}}
	covered := map[string]bool{}
	for _, m := range slices.Backward(table) {
		d := deviceOf(m)
		out.any[d] = true
		if found, ok := out.shows[d]; !m.Block && !covered[m.Target] && (!ok || m.Forced && !found.Forced) {
			out.shows[d] = m
		}
		covered[m.Target] = true
	}
	return out
}

// Ill is a volume that is not well.
type Ill struct {
	LV         volume.LV
	Conditions []Condition
}

// List gives the volumes of the kind that are not well, by their names.
func (c *Checker) List(ctx context.Context, kind volume.Kind) ([]Ill, error) {
	lvs, err := ask.Ask(ctx, &c.open, "LVM's list of volumes", func() ([]volume.LV, error) { return c.lvm.List(context.WithoutCancel(ctx)) })
	if err != nil {
		return nil, err
	}
	table, err := c.table(ctx)
	if err != nil {
		return nil, err
	}
	lvs = slices.DeleteFunc(slices.Clone(lvs), func(lv volume.LV) bool { return lv.Tags.Kind != kind })
	var out []Ill
	var errs []error
	for _, e := range c.Examine(ctx, lvs, table) {
		switch {
		case errors.Is(e.Err, volume.ErrNotFound): // deleted meanwhile
		case e.Err != nil:
			errs = append(errs, e.Err)
		case len(e.Conditions) != 0:
			out = append(out, Ill{e.LV, e.Conditions})
		}
	}
	slices.SortFunc(out, func(a, b Ill) int { return strings.Compare(a.LV.Ref.String(), b.LV.Ref.String()) })
	return out, errors.Join(errs...)
}

// Exam is what was found out about one volume.
type Exam struct {
	LV         volume.LV
	Seen       Seen
	Conditions []Condition // none: it is well
	Err        error       // why nothing was found out; ErrNotFound: it is no more
}

// Examine looks at each of the volumes, in their order, some at a time. table is the mount table.
func (c *Checker) Examine(ctx context.Context, lvs []volume.LV, table []volume.Mount) []Exam {
	out := make([]Exam, len(lvs))
	for i, lv := range lvs {
		out[i].LV = lv
	}
	facts, mounts := c.lvm.Look(), mountsOf(table)
	ask.EachOf(out, atOnce, func(e *Exam) { e.Seen, e.Conditions, e.Err = c.volume(ctx, facts, e.LV.Ref, mounts, nil) })
	return out
}

// atOnce bounds how many volumes are looked at at a time.
const atOnce = 16

// Storage gives the conditions of the volume groups, disks and pools of the node.
func (c *Checker) Storage(ctx context.Context) ([]Condition, error) {
	s := c.lvm.StorageFacts(ctx)
	return OfStorage(s), ctx.Err()
}
