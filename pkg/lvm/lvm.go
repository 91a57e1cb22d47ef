// Package lvm is the driver's only place that understands LVM: its commands, its text, its metadata on disk, and the
// device-mapper devices of logical volumes.
//
// Changes are made by the system's lvm program, one command each. What is there is known from an inventory in memory.
// LVM's own report fills it; later questions are answered without any command, because the metadata areas of the
// physical volumes tell whether anything changed since, and what (inventory.go). A destructive command never trusts
// the inventory: LVM itself checks name, owner and kind under its own lock (create_remove.go).
package lvm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Config is what the driver's flags say about LVM.
type Config struct {
	// Owner is the driver's name. Logical volumes without its owner tag are never touched.
	Owner string
	// VolumeGroups are the groups the driver works in: names or globs (path.Match). Others do not exist for it.
	VolumeGroups []string
	// ThinOvercommit bounds the sum of the sizes of the thin volumes in a pool, as a multiple of the pool's size.
	// 0 is 1.0: no overcommit.
	ThinOvercommit float64
	// Effects is passed by the changes that are no programs: a missing device node that is made.
	Effects effect.Seam
	// Guard is the argument vector of a program that runs Guard, and so keeps a killed driver from leaving devices suspended. Empty:
	// they stay so until Resume.
	Guard []string
}

// LVM is the volume groups of this machine, as far as Config.VolumeGroups names them. It is safe for use by several
// goroutines.
type LVM struct {
	cfg       Config
	commands  *commands
	inventory *inventory
	dm        deviceMapper
	durable   func(ctx context.Context, vg string) error // flushGroup; tests have no disks
	tools     run.Streamer                               // for the programs of thin-provisioning-tools
	pools     thinPools                                  // the kernel's; tests have others
	watcher   watcher

	mu     sync.Mutex
	queues map[string]chan struct{} // by group: full while an LVM command of ours changes it
}

// Runner runs the lvm program, and those of thin-provisioning-tools.
type Runner interface {
	run.Runner
	run.Streamer
}

// New gives the LVM of this machine. Nothing is run before the first question.
func New(runner Runner, cfg Config) (*LVM, error) {
	if err := volume.CheckOwner(cfg.Owner); err != nil {
		return nil, err
	}
	if _, err := volume.ParsePatterns(cfg.VolumeGroups); err != nil {
		return nil, err
	}
	if cfg.ThinOvercommit == 0 {
		cfg.ThinOvercommit = 1
	}
	if !(cfg.ThinOvercommit > 0) { // also NaN
		return nil, volume.Invalid("--thin-overcommit", fmt.Sprint(cfg.ThinOvercommit), "give a number above 0; 1.0 is no overcommit")
	}
	l := newLVM(programs{runner}, cfg, "/sys", "/dev")
	l.tools = runner
	return l, nil
}

func newLVM(e Executor, cfg Config, sys, dev string) *LVM {
	c := &commands{exec: e, guests: guests{sys: sys, dev: dev, ours: cfg.allows}}
	l := &LVM{
		cfg:       cfg,
		commands:  c,
		inventory: newInventory(c, cfg),
		dm:        newDeviceMapper(sys, dev, cfg.Effects),
		queues:    map[string]chan struct{}{},
	}
	l.durable, l.pools = l.flushGroup, l.dm
	l.watcher = watcher{dm: l.dm, settle: settleTime, errors: diskErrors{now: time.Now}}
	return l
}

// allows reports whether the flag --volume-groups names the group.
func (c Config) allows(vg string) bool { return volume.Patterns(c.VolumeGroups).Match(vg) }

// rank gives the place of the first pattern that names the group.
func (c Config) rank(vg string) int {
	return slices.IndexFunc(c.VolumeGroups, func(p string) bool { return volume.Patterns{p}.Match(vg) })
}

// hasGlob reports whether groups that nobody has named may yet appear.
func (c Config) hasGlob() bool { return slices.ContainsFunc(c.VolumeGroups, isGlob) }

// check checks that the names can go into an argument vector, and that the group is one of ours. vgField and lvField
// name them in errors. With anyVG an empty group is all of them.
func (l *LVM) check(r volume.Ref, vgField, lvField string, anyVG bool) error {
	if err := volume.CheckLV(lvField, r.LV); err != nil {
		return err
	}
	if anyVG && r.VG == "" {
		return nil
	}
	if err := volume.CheckVG(vgField, r.VG); err != nil {
		return err
	}
	if !l.cfg.allows(r.VG) {
		return volume.Invalid(vgField, r.VG, fmt.Sprintf("not one of the driver's volume groups; --volume-groups names %v", l.cfg.VolumeGroups))
	}
	return nil
}

const (
	createVGField = "parameters[" + volume.KeyVolumeGroup + "]"
	createLVField = "name"
	idField       = "volume_id"
)

// queue waits for the turn of a command that changes the group. LVM has a lock per group, for which its processes would
// wait; this keeps all but one of ours from being started only to wait there. The wait ends with ctx.
func (l *LVM) queue(ctx context.Context, vg string) (done func(), err error) {
	l.mu.Lock()
	q, ok := l.queues[vg]
	if !ok {
		q = make(chan struct{}, 1)
		l.queues[vg] = q
	}
	l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case q <- struct{}{}:
		return func() { <-q }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for other changes of volume group %s: %w", vg, ctx.Err())
	}
}
