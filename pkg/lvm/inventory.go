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
	doubts map[string]string     // by group: why its metadata is not relied upon, as it was logged; of who holds update
}

type state struct {
	groups   map[string]*group
	reported time.Time // when LVM was last asked
}

func newInventory(c *commands, cfg Config) *inventory {
	return &inventory{commands: c, cfg: cfg, now: time.Now, update: make(chan struct{}, 1), doubts: map[string]string{}}
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

// readMetadata reads the group from the metadata text on its physical volumes; devices are taken from known. What LVM
// replaces while it is read is read again.
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
	g, err := i.newest(ctx, marks)
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

// newest reads the texts of the marks, each once, and gives the last. LVM commits one physical volume after the other. After a
// power cut in between, or on disks that are slow, some have the text before: LVM takes the one with the most changes too (lvm2
// lib/metadata/metadata.c, vg_read), and its next change brings all of them up to it.
func (i *inventory) newest(ctx context.Context, marks map[string]commitMark) (*group, error) {
	var newest *group
	read := map[commitMark]bool{}
	for device, m := range marks {
		key := commitMark{size: m.size, checksum: m.checksum}
		if !m.hasText() || read[key] {
			continue
		}
		read[key] = true
		text, err := i.disks.text(ctx, device, m)
		if err != nil {
			return nil, err
		}
		g, err := parseMetadata(string(text))
		if err != nil {
			return nil, err
		}
		switch {
		case newest == nil || g.seqno > newest.seqno:
			newest = g
		case g.seqno == newest.seqno:
			return nil, fmt.Errorf("group %s: its physical volumes tell different things as change %d", g.Name, g.seqno)
		}
	}
	return newest, nil
}

// report is step 4. What the disks say is read after LVM has reported, and tells by its number of changes whether LVM
// saw the same.
func (i *inventory) report(ctx context.Context) (*state, error) {
	groups, err := i.commands.report(ctx, "", i.cfg.allows)
	if err != nil {
		return nil, err
	}
	s := &state{groups: map[string]*group{}, reported: i.now()}
	for name, g := range groups {
		read, err := i.readMetadata(ctx, g)
		if err == nil && read.seqno == g.seqno && g.MissingPVs == 0 && !same(g, read) {
			err = errors.New("it is not understood")
		}
		i.tell(ctx, name, err)
		switch {
		case err != nil:
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

// tell logs that the metadata of a group cannot be relied upon, once, and once when it can be again.
func (i *inventory) tell(ctx context.Context, vg string, doubt error) {
	log := klog.FromContext(ctx).WithValues("vg", vg)
	switch {
	case doubt == nil && i.doubts[vg] != "":
		log.Info("metadata of the group is read from its disks again")
		delete(i.doubts, vg)
	case doubt != nil && i.doubts[vg] != doubt.Error():
		log.Info("metadata of the group cannot be read; LVM is asked each time", "err", doubt)
		i.doubts[vg] = doubt.Error()
	}
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
