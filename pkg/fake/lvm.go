package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// LVM implements lifecycle.LVM, and what the controller asks of groups and volumes.
type LVM struct{ *conn }

// report is the name under which Commands counts the command that fills the inventory.
const report = "fullreport"

// names gives the groups in question, in the order of the configuration: one, or all. One that is named there without
// wildcards is in question whether it is there or not. With m.mu held.
func (c *conn) names(vg string) []string {
	if vg != "" {
		return []string{vg}
	}
	var out []string
	for _, pattern := range c.cfg.Groups {
		found := []string{pattern}
		if strings.ContainsAny(pattern, "*?[") {
			found = slices.Sorted(maps.Keys(c.groups))
		}
		for _, name := range found {
			if (volume.Patterns{pattern}).Match(name) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// check refuses bad names, and groups that are not the driver's.
func (c *LVM) check(r volume.Ref) error {
	if err := volume.CheckLV("logical volume", r.LV); err != nil || r.VG == "" {
		return err
	}
	if !volume.Patterns(c.cfg.Groups).Match(r.VG) {
		return volume.Invalid("parameters["+volume.KeyVolumeGroup+"]", r.VG, "not one of --volume-groups")
	}
	return nil
}

// refresh brings the inventory up to date: one report where a group in question has changed behind the driver's back
// or cannot be read. Its error is that of ctx; what cannot be read is for the caller to see.
func (c *LVM) refresh(ctx context.Context, vg string) error {
	c.mu.Lock()
	names := c.names(vg)
	stale := slices.ContainsFunc(names, func(name string) bool {
		g := c.groups[name]
		return c.seen[name] != g.state() || g != nil && g.unreadable != nil
	})
	c.mu.Unlock()
	if !stale {
		return nil
	}
	c.count(report)
	if err := c.pass(ctx, report); err != nil {
		return err
	}
	for _, name := range names {
		unlock, err := c.lockGroup(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", report, err)
		}
		unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.seen[name] = c.groups[name].state()
	}
	return nil
}

// queue lets the driver have one LVM command at a time that changes the group, as pkg/lvm does.
func (c *LVM) queue(ctx context.Context, vg string) (done func(), err error) {
	c.mu.Lock()
	q := c.queues[vg]
	if q == nil {
		q = make(chan struct{}, 1)
		c.queues[vg] = q
	}
	c.mu.Unlock()
	select {
	case q <- struct{}{}:
		return func() { <-q }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// write runs an LVM command that changes the group. What it changes is known to the driver without a report.
func (c *LVM) write(ctx context.Context, r volume.Ref, argv []string, do func(g *group) error) error {
	done, err := c.queue(ctx, r.VG)
	if err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	defer done()
	return c.program(ctx, r.VG, append([]string{"lvm"}, argv...), func() error {
		g := c.groups[r.VG]
		switch {
		case g == nil:
			return fmt.Errorf("%s: volume group %q not found", argv[0], r.VG)
		case g.unreadable != nil:
			return fmt.Errorf("%s: %w", argv[0], g.unreadable)
		}
		known := c.seen[r.VG] == g.state()
		err := do(g)
		if known {
			c.seen[r.VG] = g.state()
		}
		return err
	})
}

// durable flushes the disks of the group, one after the other, as pkg/lvm does after a change.
func (c *LVM) durable(ctx context.Context, vg string) (err error) {
	c.mu.Lock()
	var devices []string
	if g := c.groups[vg]; g != nil {
		for _, p := range g.pvs {
			devices = append(devices, p.device)
		}
	}
	c.mu.Unlock()
	for _, device := range devices {
		err = errors.Join(err, c.change(ctx, "fsync", device, func() error { return nil }))
	}
	return err
}

// Create implements lifecycle.LVM.
func (c *LVM) Create(ctx context.Context, s volume.Spec) (volume.LV, error) {
	out, err := c.create(ctx, s)
	if err == nil {
		err = c.durable(context.WithoutCancel(ctx), s.VG)
	}
	return out, err
}

// create is Create without the flush.
func (c *LVM) create(ctx context.Context, s volume.Spec) (out volume.LV, err error) {
	if err := c.check(s.Ref); err != nil {
		return out, err
	}
	if err := c.refresh(ctx, s.VG); err != nil {
		return out, err
	}
	if s.Origin.LV != "" {
		if s, err = c.withOrigin(s); err != nil {
			return out, err
		}
	}
	size, err := c.size(s)
	if err != nil {
		return out, err
	}
	first := size
	if s.Origin.LV != "" && s.Layout.Type == volume.Thin { // "lvcreate -s" takes no size of a thin volume
		first = s.Origin.SizeBytes
	}
	tags := s.Tags(c.cfg.Owner).Strings()
	argv := []string{"lvcreate", "--type", string(s.Layout.Type), "-n", s.LV, "--addtag", strings.Join(tags, " --addtag "), s.VG}
	err = c.write(ctx, s.Ref, argv, func(g *group) error {
		switch {
		case g.lvs[s.LV] != nil:
			return fmt.Errorf("%w: logical volume %s", volume.ErrExists, s.Ref)
		case s.Origin.LV != "" && g.lvs[s.Origin.LV] == nil:
			return fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, s.Origin.Ref)
		}
		if p := g.lvs[s.Layout.Pool]; s.Layout.Type == volume.Thin && !s.TakesNothing() && g.virtual(p)+size > c.limit(p) {
			return fmt.Errorf("%w: thin pool %s would be overcommitted", volume.ErrNoSpace, p.ref)
		}
		v, err := g.create(c.Machine, s.LV, s.Layout, first, tags)
		if err != nil {
			return err
		}
		switch {
		case c.torn("lvcreate"):
			return fmt.Errorf("lvcreate: killed")
		case s.Origin.LV == "":
			v.activate(c.Machine)
			v.disk = disk{}
		case s.Held:
			v.skip, v.disk = true, disk{}
		default:
			v.snapshotOf(c.Machine, g.lvs[s.Origin.LV])
			if v.skip = s.Kind == volume.Snapshot && !v.thick(); !v.skip {
				v.activate(c.Machine)
			}
		}
		out = v.report()
		return nil
	})
	if err == nil && first < size {
		err = c.write(ctx, s.Ref, []string{"lvextend", s.Ref.String()}, func(g *group) error {
			v := g.lvs[s.LV]
			v.size = size
			g.revision++
			out = v.report()
			return nil
		})
	}
	return out, err
}

// withOrigin gives the spec with its origin as it is now, and the layout that follows from that.
func (c *LVM) withOrigin(s volume.Spec) (volume.Spec, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	origin := c.volume(s.Origin.Ref)
	switch {
	case origin == nil:
		return s, fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, s.Origin.Ref)
	case origin.parsed().Owner != c.cfg.Owner || origin.layout == "":
		return s, fmt.Errorf("%w: logical volume %s is not one of %s, or no origin", volume.ErrPrecondition, s.Origin.Ref, c.cfg.Owner)
	}
	s.Origin, s.Layout = origin.report(), volume.Layout{Type: volume.Linear}
	if origin.layout == volume.Thin {
		s.Layout = volume.Layout{Type: volume.Thin, Pool: origin.poolName}
	}
	return s, nil
}

// Extend implements lifecycle.LVM.
func (c *LVM) Extend(ctx context.Context, r volume.Ref, k volume.Kind, required, limit int64) (out volume.LV, err error) {
	if err := c.check(r); err != nil {
		return out, err
	}
	if err := c.refresh(ctx, r.VG); err != nil {
		return out, err
	}
	size, out, err := c.extended(r, k, required, limit)
	if err != nil {
		return out, err
	}
	if size != out.SizeBytes {
		argv := []string{"lvextend", "-y", "-L", fmt.Sprintf("%db", size), r.String()}
		err = c.write(ctx, r, argv, func(g *group) error {
			v := g.lvs[r.LV]
			switch p := g.lvs[v.shape.Pool]; {
			case g.missing() != 0:
				return fmt.Errorf("lvextend: physical volumes of volume group %s are missing", r.VG)
			case v.layout == volume.Thin && g.virtual(p)+size-v.size > c.limit(p):
				return fmt.Errorf("%w: thin pool %s would be overcommitted", volume.ErrNoSpace, p.ref)
			}
			if err := g.extend(v, size); err != nil {
				return fmt.Errorf("extending logical volume %s: %w", r, err)
			}
			if c.torn("lvextend") {
				v.suspended = v.active
				return fmt.Errorf("lvextend: killed")
			}
			out = v.report()
			return nil
		})
	}
	if err == nil {
		err = c.durable(context.WithoutCancel(ctx), r.VG)
	}
	return out, err
}

// extended finds the LV and chooses its new size before anything is run, and refuses what can never be.
func (c *LVM) extended(r volume.Ref, k volume.Kind, required, limit int64) (size int64, lv volume.LV, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[r.VG]
	switch {
	case g == nil:
		return 0, lv, fmt.Errorf("volume group %s is not there", r.VG)
	case g.unreadable != nil:
		return 0, lv, fmt.Errorf("reading volume group %s: %w", r.VG, g.unreadable)
	case g.missing() != 0:
		return 0, lv, fmt.Errorf("physical volumes of volume group %s are missing", r.VG)
	case g.lvs[r.LV] == nil:
		return 0, lv, fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
	}
	v := g.lvs[r.LV]
	if v.parsed().Owner != c.cfg.Owner || v.parsed().Kind != k {
		return 0, lv, fmt.Errorf("%w: %s is not a %s volume of %s", volume.ErrPrecondition, r, k, c.cfg.Owner)
	}
	size, err = volume.ExpandedSize(v.size, required, limit, v.shape.UnitBytes(g.extent))
	if err != nil || size == v.size {
		return size, v.report(), err
	}
	if g.dependants(v) != "" {
		return 0, lv, fmt.Errorf("%w: %s has thick snapshots: %s", volume.ErrPrecondition, r, g.dependants(v))
	}
	if ever, _ := volume.Available(g.emptied(), v.shape, c.cfg.Overcommit); size > ever {
		return 0, lv, fmt.Errorf("%w: %d bytes; volume group %s could give %d with the overcommit limit, if it were empty", volume.ErrOutOfRange, size, r.VG, ever)
	}
	return size, v.report(), nil
}

// CreateTogether implements lifecycle.LVM.
func (c *LVM) CreateTogether(ctx context.Context, specs []volume.Spec) ([]volume.LV, error) {
	specs = slices.Clone(specs)
	out := make([]volume.LV, len(specs))
	for i, s := range specs {
		if specs[i].Held = s.Origin.Type == volume.Thin; specs[i].Held {
			var err error
			if out[i], err = c.create(ctx, specs[i]); err != nil {
				return nil, err
			}
		}
	}
	c.holding.Lock()
	defer c.holding.Unlock()
	held := map[volume.Ref]bool{}
	hold := func(r volume.Ref, yes bool) error {
		if held[r] == yes {
			return nil
		}
		held[r] = held[r] || yes // what fails is tried again in the end
		return c.change(ctx, map[bool]string{true: "suspend", false: "resume"}[yes], r.String(), func() error {
			if v := c.volume(r); v != nil {
				v.suspended = yes && v.active
			}
			held[r] = yes
			return nil
		})
	}
	defer func() {
		for _, s := range specs {
			_ = hold(s.Origin.Ref, false)
		}
	}()
	for _, s := range specs {
		if err := hold(s.Origin.Ref, true); err != nil {
			return nil, err
		}
	}
	for i, s := range specs {
		var err error
		if s.Held {
			err = c.cut(ctx, s)
		} else {
			out[i], err = c.create(ctx, s)
		}
		if err == nil {
			err = hold(s.Origin.Ref, false)
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range out {
		if !specs[i].Held {
			if err := c.durable(context.WithoutCancel(ctx), out[i].VG); err != nil {
				return nil, err
			}
			continue
		}
		whole := out[i].Tags
		whole.State = ""
		add, remove := out[i].Tags.Changes(whole)
		if err := c.Retag(ctx, out[i].Ref, volume.Snapshot, add, remove); err != nil {
			return nil, err
		}
		out[i].Tags = whole
	}
	return out, nil
}

// cut gives an empty thin snapshot its content.
func (c *LVM) cut(ctx context.Context, s volume.Spec) error {
	for _, text := range []string{"delete", "create_snap"} {
		err := c.change(ctx, "message", s.VG+"/"+s.Origin.Pool+" "+text, func() error {
			v, origin := c.volume(s.Ref), c.volume(s.Origin.Ref)
			if v == nil || origin == nil {
				return fmt.Errorf("%w: %s or %s", volume.ErrNotFound, s.Ref, s.Origin.Ref)
			}
			v.disk = disk{}
			if text == "create_snap" {
				v.snapshotOf(c.Machine, origin)
				v.origin = nil // LVM does not know it
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// limit is how large the thin volumes of a pool may be in all.
func (c *LVM) limit(pool *lv) int64 { return int64(float64(pool.size) * max(1, c.cfg.Overcommit)) }

// size chooses the size before anything is run, and refuses what the group could not give if it were empty.
func (c *LVM) size(s volume.Spec) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[s.VG]
	if g == nil {
		return 0, fmt.Errorf("%w: volume group %s is not there", volume.ErrNoSpace, s.VG)
	}
	if s.Origin.LV != "" {
		s.RequiredBytes = max(s.RequiredBytes, s.Origin.SizeBytes)
	}
	size, err := volume.Size(s.RequiredBytes, s.LimitBytes, s.Layout.UnitBytes(g.extent), volume.MinFSBytes(s.Format.FS))
	if s.Origin.LV != "" && s.Layout.Type != volume.Thin {
		size, err = s.CopyOnWrite.StoreBytes(s.Origin.SizeBytes, g.extent), nil
	}
	if err != nil {
		return 0, err
	}
	fits := true
	if s.Layout.Type == volume.Thin {
		pool := g.lvs[s.Layout.Pool]
		if pool == nil || !pool.pool {
			return 0, fmt.Errorf("%w: volume group %s has no thin pool %s", volume.ErrNoSpace, s.VG, s.Layout.Pool)
		}
		fits = size <= c.limit(pool)
	} else if count, _ := legs(s.Layout, 1); count <= len(g.pvs) { // else: with more disks it would fit
		_, fits = g.allocate(s.Layout, size/g.extent, func(p *pv) int64 { return p.size })
	}
	if !fits {
		return 0, fmt.Errorf("%w: volume group %s can never give %d bytes", volume.ErrOutOfRange, s.VG, size)
	}
	return size, nil
}

// Remove implements lifecycle.LVM.
func (c *LVM) Remove(ctx context.Context, r volume.Ref, k volume.Kind) error {
	if err := c.check(r); err != nil {
		return err
	}
	argv := []string{"lvremove", "-y", "--select", volume.OwnerTag(c.cfg.Owner) + " " + volume.KindTag(k), r.String()}
	err := c.write(ctx, r, argv, func(g *group) error {
		v := g.lvs[r.LV]
		switch {
		case g.missing() != 0:
			return fmt.Errorf("lvremove: physical volumes of volume group %s are missing", r.VG)
		case v == nil:
			return nil
		case v.parsed().Owner != c.cfg.Owner || v.parsed().Kind != k:
			return fmt.Errorf("%w: %s is not a %s volume of %s", volume.ErrPrecondition, r, k, c.cfg.Owner)
		case g.dependants(v) != "":
			return fmt.Errorf("%w: %s is the origin of %s; remove its snapshots first", volume.ErrPrecondition, r, g.dependants(v))
		case c.openCount(v) != 0:
			return fmt.Errorf("%w: logical volume %s is open", volume.ErrBusy, r)
		}
		g.drop(c.Machine, v)
		return nil
	})
	if err == nil {
		err = c.durable(context.WithoutCancel(ctx), r.VG)
	}
	return err
}

// Retag implements lifecycle.LVM.
func (c *LVM) Retag(ctx context.Context, r volume.Ref, k volume.Kind, add, remove []string) error {
	if err := volume.CheckRetag(add, remove); err != nil {
		return err
	}
	if err := c.check(r); err != nil {
		return err
	}
	if len(add)+len(remove) == 0 {
		return c.durable(context.WithoutCancel(ctx), r.VG)
	}
	argv := []string{"lvchange", "--select", volume.OwnerTag(c.cfg.Owner) + " " + volume.KindTag(k)}
	for _, tag := range remove {
		argv = append(argv, "--deltag", tag)
	}
	for _, tag := range add {
		argv = append(argv, "--addtag", tag)
	}
	return c.lvchange(ctx, r, k, append(argv, r.String()), func(v *lv) error { v.retag(add, remove); return nil })
}

// Tune implements lifecycle.LVM.
func (c *LVM) Tune(ctx context.Context, r volume.Ref, k volume.Kind, add, remove []string, m volume.Mutable) error {
	if err := volume.CheckRetag(add, remove); err != nil {
		return err
	}
	if err := c.check(r); err != nil {
		return err
	}
	if err := c.refresh(ctx, r.VG); err != nil {
		return err
	}
	if err := c.liesOn(r, m); err != nil {
		return err
	}
	argv := []string{"lvchange", "--select", volume.OwnerTag(c.cfg.Owner) + " " + volume.KindTag(k), m.String(), strings.Join(add, " "), r.String()}
	was := false
	err := c.lvchange(ctx, r, k, argv, func(v *lv) error {
		readAhead, asked := m[volume.KeyReadAhead]
		if thick := v.group.dependants(v); thick != "" && asked && v.settings[volume.KeyReadAhead] != readAhead {
			return fmt.Errorf("%w: %s is the origin of %s; delete its snapshots first", volume.ErrPrecondition, r, thick)
		}
		v.retag(add, remove)
		was = v.tune(m)
		return nil
	})
	if err == nil && was { // LVM fails where the read-ahead is so already, and is asked again
		for _, argv := range [][]string{{"lvchange", r.String()}, {"lvchange", "--refresh", r.String()}} {
			if err := c.write(ctx, r, argv, func(*group) error { return nil }); err != nil {
				return err
			}
		}
	}
	return err
}

// liesOn checks that the logical volume lies on the physical volumes that are to be write-mostly.
func (c *LVM) liesOn(r volume.Ref, m volume.Mutable) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.volume(r)
	devices, _ := m.WriteMostly()
	for _, d := range devices {
		if v == nil {
			return fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
		}
		if !slices.Contains(v.devices(), d) {
			return volume.Invalid("mutable_parameters["+volume.KeyWriteMostly+"]", d, fmt.Sprintf("%s does not lie on it, but on %v", r, v.devices()))
		}
	}
	return nil
}

// lvchange changes a logical volume of ours, and makes that durable.
func (c *LVM) lvchange(ctx context.Context, r volume.Ref, k volume.Kind, argv []string, do func(*lv) error) error {
	err := c.write(ctx, r, argv, func(g *group) error {
		v := g.lvs[r.LV]
		switch {
		case g.missing() != 0:
			return fmt.Errorf("lvchange: physical volumes of volume group %s are missing", r.VG)
		case v == nil:
			return fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
		case v.parsed().Owner != c.cfg.Owner || v.parsed().Kind != k:
			return fmt.Errorf("%w: %s is not a %s volume of %s", volume.ErrPrecondition, r, k, c.cfg.Owner)
		}
		g.revision++
		return do(v)
	})
	if err == nil {
		err = c.durable(context.WithoutCancel(ctx), r.VG)
	}
	return err
}

// Activate implements lifecycle.LVM.
func (c *LVM) Activate(ctx context.Context, r volume.Ref) error {
	if err := c.check(r); err != nil {
		return err
	}
	return c.write(ctx, r, []string{"lvchange", "-ay", "-K", r.String()}, func(g *group) error {
		v := g.lvs[r.LV]
		switch {
		case v == nil:
			return fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
		case v.partial():
			return fmt.Errorf("lvchange: refusing activation of partial logical volume %s", r)
		}
		v.activate(c.Machine)
		v.suspended = false
		return nil
	})
}

// Lookup implements lifecycle.LVM.
func (c *LVM) Lookup(ctx context.Context, r volume.Ref) (none volume.LV, err error) {
	if err := c.check(r); err != nil {
		return none, err
	}
	if err := c.refresh(ctx, r.VG); err != nil {
		return none, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var doubt, foreign error
	for _, name := range c.names(r.VG) {
		g := c.groups[name]
		switch {
		case g == nil:
			doubt = fmt.Errorf("volume group %s is not there", name)
		case g.unreadable != nil:
			doubt = fmt.Errorf("reading volume group %s: %w", name, g.unreadable)
		case g.lvs[r.LV] == nil && g.missing() != 0:
			doubt = fmt.Errorf("physical volumes of volume group %s are missing", name)
		case g.lvs[r.LV] == nil:
		case g.lvs[r.LV].parsed().Owner != c.cfg.Owner:
			foreign = fmt.Errorf("%w: logical volume %s/%s is not one of %s", volume.ErrPrecondition, name, r.LV, c.cfg.Owner)
		default:
			return g.lvs[r.LV].report(), nil
		}
	}
	switch {
	case doubt != nil:
		return none, doubt
	case foreign != nil:
		return none, foreign
	}
	return none, fmt.Errorf("%w: logical volume %s", volume.ErrNotFound, r)
}

// Device implements lifecycle.LVM.
func (c *LVM) Device(_ context.Context, r volume.Ref) (volume.Device, error) {
	if err := c.check(r); err != nil {
		return volume.Device{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.volume(r)
	if v == nil || !v.active {
		return volume.Device{}, fmt.Errorf("%w: device of logical volume %s", volume.ErrNotFound, r)
	}
	c.makeNode(v)
	return volume.Device{
		Major: dmMajor, Minor: v.minor, Path: "/dev/" + v.nodeName(), SizeBytes: v.deviceBytes(), Open: c.openCount(v), ReadOnly: v.readOnly, Suspended: v.suspended,
	}, nil
}

// Resume implements lifecycle.LVM.
func (c *LVM) Resume(ctx context.Context) (resumed []volume.Ref, err error) {
	if !c.holding.TryLock() { // what is suspended is no leftover
		return nil, nil
	}
	defer c.holding.Unlock()
	for _, r := range c.suspended() {
		err := c.write(ctx, r, []string{"lvchange", "--refresh", r.String()}, func(g *group) error {
			if v := g.lvs[r.LV]; v != nil {
				v.suspended = false
			}
			return nil
		})
		if err != nil {
			return resumed, err
		}
		resumed = append(resumed, r)
	}
	return resumed, nil
}

func (c *LVM) suspended() (out []volume.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.volumes() {
		if v.suspended && v.parsed().Owner == c.cfg.Owner && volume.Patterns(c.cfg.Groups).Match(v.ref.VG) {
			out = append(out, v.ref)
		}
	}
	return out
}

// readable gives the groups of the driver that are there.
func (c *LVM) readable(ctx context.Context) ([]*group, error) {
	if err := c.refresh(ctx, ""); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*group
	for _, name := range c.names("") {
		switch g := c.groups[name]; {
		case g == nil:
		case g.unreadable != nil:
			return nil, fmt.Errorf("reading volume group %s: %w", name, g.unreadable)
		default:
			out = append(out, g)
		}
	}
	return out, nil
}

// List gives the logical volumes of the driver in its groups, by group and name. It is an error that a group is not there which is
// named without wildcards.
func (c *LVM) List(ctx context.Context) ([]volume.LV, error) {
	groups, err := c.readable(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.names("") {
		if c.groups[name] == nil {
			return nil, fmt.Errorf("volume group %s is not there", name)
		}
	}
	var out []volume.LV
	for _, v := range c.volumes() {
		if slices.Contains(groups, v.group) && v.parsed().Owner == c.cfg.Owner {
			out = append(out, v.report())
		}
	}
	return out, nil
}

// Groups gives the volume groups of the driver that are there, in the order of its configuration, then by name.
func (c *LVM) Groups(ctx context.Context) ([]volume.Group, error) {
	groups, err := c.readable(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []volume.Group
	for _, g := range groups {
		out = append(out, g.report())
	}
	return out, nil
}

// Check is nil where LVM answers and a volume group of the driver is there and whole.
func (c *LVM) Check(ctx context.Context) error {
	groups, err := c.Groups(ctx)
	if err == nil && !slices.ContainsFunc(groups, func(g volume.Group) bool { return g.MissingPVs == 0 }) {
		err = fmt.Errorf("none of the volume groups %s is there and whole", strings.Join(c.cfg.Groups, ", "))
	}
	return err
}
