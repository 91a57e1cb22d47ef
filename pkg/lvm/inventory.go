package lvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// inventory knows our groups and what is in them. It is filled by one report of LVM, and is current whenever it answers:
//
//  1. Before each answer it reads the sector of each physical volume that LVM rewrites with each change of its group.
//  2. Where that is as before, nothing has changed, and the answer comes from memory.
//  3. Where it differs, the metadata text it points to is read and says all: what LVM itself would read and report.
//  4. Where that cannot be done (a disk missing or broken, no metadata on it, another group, text not understood),
//     LVM is asked for a new report.
//
// So neither the driver's own changes nor those of others cost a command, and none is missed. What step 3 understands
// is compared with what LVM says at each report; where they differ, LVM is believed, and asked each time.
//
// Without LVM's lock one may see a change of somebody else half-made, as after a first of two commits. It is seen to
// be changed again at the next question. The driver's own changes are ended when they are asked about.
type inventory struct {
	commands *commands
	cfg      Config
	disks    disks
	now      func() time.Time

	state  atomic.Pointer[state] // what it points to is never changed
	update chan struct{}         // full while one goroutine renews state; the others wait and share its work
}

type state struct {
	groups   map[string]*group
	reported time.Time // when LVM was last asked
}

func newInventory(c *commands, cfg Config) *inventory {
	return &inventory{commands: c, cfg: cfg, now: time.Now, update: make(chan struct{}, 1)}
}

// Bounds of how long a report is relied upon where what it lacks may come without a trace on the known disks.
const (
	missingAge = 10 * time.Second // a group that the flag names or a physical volume is missing: it may come back
	globAge    = 5 * time.Minute  // the flag has a glob: another group may be made
)

func isGlob(pattern string) bool { return strings.ContainsAny(pattern, "*?[") }

// current gives a state in which the group vg, or with "" every group, is as it is now.
func (i *inventory) current(ctx context.Context, vg string) (*state, error) {
	if s := i.state.Load(); s != nil && i.isCurrent(ctx, s, vg) {
		return s, nil
	}
	select {
	case i.update <- struct{}{}:
		defer func() { <-i.update }()
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for LVM's report: %w", ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s := i.state.Load(); s != nil { // another may have done it while we waited
		if i.isCurrent(ctx, s, vg) {
			return s, nil
		}
		if next, ok := i.follow(ctx, s, vg); ok {
			i.state.Store(next)
			return next, nil
		}
	}
	s, err := i.report(ctx)
	if err != nil {
		return nil, err
	}
	i.state.Store(s)
	return s, nil
}

// isCurrent is steps 1 and 2.
func (i *inventory) isCurrent(ctx context.Context, s *state, vg string) bool {
	if i.expired(s) {
		return false
	}
	for name, g := range s.groups {
		if vg != "" && name != vg {
			continue
		}
		if g.marks == nil {
			return false
		}
		marks, err := i.readMarks(ctx, g)
		if err != nil || !maps.Equal(marks, g.marks) {
			return false
		}
	}
	return true
}

func (i *inventory) expired(s *state) bool {
	age := i.now().Sub(s.reported)
	if i.cfg.hasGlob() && age > globAge {
		return true
	}
	if age <= missingAge {
		return false
	}
	for _, p := range i.cfg.VolumeGroups {
		if !isGlob(p) && s.groups[p] == nil {
			return true
		}
	}
	for _, g := range s.groups {
		if g.MissingPVs != 0 {
			return true
		}
	}
	return false
}

// readMarks reads the marks of all physical volumes of the group that LVM found.
func (i *inventory) readMarks(ctx context.Context, g *group) (map[string]commitMark, error) {
	marks := map[string]commitMark{}
	texts := 0
	for uuid, device := range g.uuids {
		if device == "" {
			continue
		}
		m, err := i.disks.mark(ctx, device)
		if err != nil {
			return nil, fmt.Errorf("physical volume %s: %w", device, err)
		}
		if m.pv != strings.ReplaceAll(uuid, "-", "") {
			return nil, fmt.Errorf("%s is no longer the physical volume %s", device, uuid)
		}
		if m.hasText() {
			texts++
		}
		marks[device] = m
	}
	if texts == 0 {
		return nil, fmt.Errorf("group %s: no physical volume with metadata", g.Name)
	}
	return marks, nil
}

// follow is step 3, for the groups in question.
func (i *inventory) follow(ctx context.Context, s *state, vg string) (*state, bool) {
	if i.expired(s) {
		return nil, false
	}
	next := &state{groups: maps.Clone(s.groups), reported: s.reported}
	for name, g := range s.groups {
		if vg != "" && name != vg {
			continue
		}
		if g.marks == nil || g.MissingPVs != 0 {
			return nil, false
		}
		read, err := i.readMetadata(ctx, g)
		if err != nil {
			klog.FromContext(ctx).V(4).Info("metadata of the group cannot be followed; LVM is asked", "vg", name, "err", err)
			return nil, false
		}
		next.groups[name] = read
	}
	return next, true
}

// readMetadata reads the group from the metadata text on its physical volumes; devices are taken from known. LVM
// commits one physical volume after the other; for as long as they differ, it is asked again.
func (i *inventory) readMetadata(ctx context.Context, known *group) (*group, error) {
	var err error
	for range 5 {
		var g *group
		if g, err = i.readMetadataOnce(ctx, known); err == nil || !errors.Is(err, errTorn) {
			return g, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil, err
}

func (i *inventory) readMetadataOnce(ctx context.Context, known *group) (*group, error) {
	marks, err := i.readMarks(ctx, known)
	if err != nil {
		return nil, err
	}
	var device string
	for d, m := range marks {
		if !m.hasText() {
			continue
		}
		if first := marks[device]; device != "" && (m.checksum != first.checksum || m.size != first.size) {
			return nil, fmt.Errorf("%s and %s: %w", device, d, errTorn)
		}
		device = d
	}
	text, err := i.disks.text(ctx, device, marks[device])
	if err != nil {
		return nil, err
	}
	g, err := parseMetadata(string(text))
	if err != nil {
		return nil, err
	}
	if g.Name != known.Name || g.UUID != known.UUID || len(g.PVs) != len(known.uuids) {
		return nil, fmt.Errorf("group %s is no longer what it was", known.Name)
	}
	for n := range g.PVs {
		device, ok := known.uuids[g.PVs[n].Device]
		if !ok {
			return nil, fmt.Errorf("group %s has a new physical volume %s", g.Name, g.PVs[n].Device)
		}
		g.PVs[n].Device = device
	}
	g.sort()
	g.uuids, g.marks, g.MissingPVs = known.uuids, marks, known.MissingPVs
	return g, nil
}

// report is step 4. What the disks say is read after LVM has reported, and tells by its number of changes whether LVM
// saw the same.
func (i *inventory) report(ctx context.Context) (*state, error) {
	groups, err := i.commands.report(ctx, "", i.cfg.allows)
	if err != nil {
		return nil, err
	}
	s := &state{groups: map[string]*group{}, reported: i.now()}
	log := klog.FromContext(ctx)
	for name, g := range groups {
		read, err := i.readMetadata(ctx, g)
		switch {
		case err != nil:
			log.Info("metadata of the group cannot be read; LVM is asked each time", "vg", name, "err", err)
		case read.seqno == g.seqno && g.MissingPVs == 0 && !same(g, read):
			log.Info("metadata of the group is not understood; LVM is asked each time", "vg", name, "seqno", g.seqno)
		case read.seqno == g.seqno:
			g.marks, g.lies, g.layouts = read.marks, read.lies, read.layouts
		case read.seqno > g.seqno && g.MissingPVs == 0: // changed since LVM reported
			g = read
		}
		markPartial(g)
		s.groups[name] = g
	}
	return s, nil
}

// same reports whether two sources tell the same of the group.
func same(a, b *group) bool {
	return reflect.DeepEqual(a.Group, b.Group) && maps.Equal(a.lvs, b.lvs)
}

// markPartial marks the logical volumes that lie on a missing physical volume; all, where it cannot be told which.
func markPartial(g *group) {
	if g.MissingPVs == 0 {
		return
	}
	missing := map[string]bool{}
	for uuid, device := range g.uuids {
		missing[uuid] = device == ""
	}
	for name, lv := range g.lvs {
		lv.Partial = g.lies == nil
		for _, uuid := range g.lies[name] {
			lv.Partial = lv.Partial || missing[uuid]
		}
		g.lvs[name] = lv
	}
}

// whole reports whether every group that the flag names is there and has all its physical volumes. Only then is what
// is not found not there.
func (s *state) whole(cfg Config) error {
	if err := s.named(cfg); err != nil {
		return err
	}
	for _, g := range s.groups {
		if err := g.whole(); err != nil {
			return err
		}
	}
	return nil
}

// named reports whether every group that the flag names is there. Of a glob nobody can tell.
func (s *state) named(cfg Config) error {
	for _, p := range cfg.VolumeGroups {
		if !isGlob(p) && s.groups[p] == nil {
			return fmt.Errorf("volume group %s, which --volume-groups names, is not there; bring its disks back, or take it out of the flag", p)
		}
	}
	return nil
}

func (g *group) whole() error {
	if g.MissingPVs != 0 {
		return fmt.Errorf("volume group %s: %d of its %d physical volumes are missing, so what is not found may yet be there; bring the disks back, or see vgreduce(8) --removemissing",
			g.Name, g.MissingPVs, len(g.PVs))
	}
	return nil
}
