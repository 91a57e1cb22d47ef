package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Beside is the configuration of a command beside the driver that works in the same place: what the command was told, else what the running
// driver was, else what can be told without either, which guessed names. live is nil where no driver runs.
//
// told has the fields that the command was told, and StateDir; the others are empty.
func Beside(ctx context.Context, told Config) (cfg Config, live *status.Live, guessed Guessed, err error) {
	cfg = Default()
	cfg.StateDir = cmp.Or(told.StateDir, cfg.StateDir)
	live, err = status.AskDriver(ctx, cfg.StateDir)
	if err != nil && !errors.Is(err, status.ErrNotRunning) && ctx.Err() != nil {
		return cfg, nil, Guessed{}, err
	}
	var its status.Live
	if live != nil {
		its = *live
	}
	guessed = Guessed{Node: told.NodeName == "" && its.NodeName == "", KubeletDir: told.KubeletDir == "" && its.KubeletDir == ""}
	host, _ := os.Hostname() // without it, and without another name, Validate says so
	cfg.NodeName = cmp.Or(told.NodeName, its.NodeName, host)
	cfg.DriverName = cmp.Or(told.DriverName, its.DriverName, cfg.DriverName)
	cfg.KubeletDir = cmp.Or(told.KubeletDir, its.KubeletDir, cfg.KubeletDir)
	cfg.LVMExec = cmp.Or(told.LVMExec, its.LVMExec, cfg.LVMExec)
	switch {
	case len(told.VolumeGroups) != 0:
		cfg.VolumeGroups = told.VolumeGroups
	case len(its.VolumeGroups) != 0:
		cfg.VolumeGroups = its.VolumeGroups
	default:
		cfg.VolumeGroups, guessed.Groups = []string{"*"}, true
	}
	return cfg, live, guessed, cfg.Validate()
}

// Guessed is what of a configuration neither the command was told, nor the running driver told. Nothing that takes away something may rest on it.
type Guessed struct {
	Groups     bool // it is all of them
	Node       bool // it is the host's name
	KubeletDir bool // it is the default
}

// errReader refuses what only the driver does.
var errReader = errors.New("a command that only looks changes nothing")

// Reader gives a machine that can be looked at and not changed.
func Reader(cfg Config) (Backend, error) {
	return Real(cfg, func(_ context.Context, e effect.Effect, _ func() error) error {
		return fmt.Errorf("%w: %s %s", errReader, e.Op, e.Detail)
	})
}

// Sources is whom a command beside the driver asks: LVM and the kernel itself, the files of the journal, and the running driver for what only that
// knows. So it tells the truth too where the driver is wrong, hangs, or is not there.
func Sources(cfg Config, b Backend, live func(context.Context) (*status.Live, error)) (status.Sources, error) {
	node, err := volume.ShortNode(cfg.NodeName)
	if err != nil {
		return status.Sources{}, err
	}
	s := sources(cfg, node, b, health.New(b.LVM, b.Mounts, b.Paths.Resolve))
	s.Journal = func() ([]journal.Record, []string, error) { return journal.Read(cfg.StateDir, node) }
	s.Live, s.Holders = live, b.Mounts.Holders
	return s, nil
}

// sources is whom each report asks, the driver's own and that of a command beside it. Who tells of the journal and of the driver is left to say.
func sources(cfg Config, node string, b Backend, check *health.Checker) status.Sources {
	return status.Sources{
		Node: node, Owner: cfg.DriverName, KubeletDir: cfg.KubeletDir,
		LVM: b.LVM, Health: check, Mounts: b.Mounts.List, Resolve: b.Paths.Resolve,
	}
}

// Collect makes the report of a command beside the driver. Where no volume group was named, it has those in which the driver has volumes;
// all, where it has none.
func Collect(ctx context.Context, c *status.Collector, all bool) *status.Report {
	r := c.Collect(ctx)
	if !all || len(r.Volumes) == 0 {
		return r
	}
	r.Groups = slices.DeleteFunc(r.Groups, func(g status.Group) bool {
		return !slices.ContainsFunc(r.Volumes, func(v status.Volume) bool { return v.VG == g.Name })
	})
	return r
}

// Hands carries out what doctor mends, over a backend that may change things.
type Hands struct{ Backend Backend }

// Activate implements doctor.Hands.
func (h Hands) Activate(ctx context.Context, r volume.Ref) error {
	return h.Backend.LVM.Activate(ctx, r)
}

// Resume implements doctor.Hands.
func (h Hands) Resume(ctx context.Context) ([]volume.Ref, error) { return h.Backend.LVM.Resume(ctx) }

// RemoveInline implements doctor.Hands. LVM checks name, owner and kind under its own lock.
func (h Hands) RemoveInline(ctx context.Context, r volume.Ref) error {
	return h.Backend.LVM.Remove(ctx, r, volume.Inline)
}

// Unmount implements doctor.Hands.
func (h Hands) Unmount(ctx context.Context, path string) error {
	return h.Backend.Mounts.Unmount(ctx, path)
}

// RemoveTarget implements doctor.Hands.
func (h Hands) RemoveTarget(ctx context.Context, path string) error {
	return h.Backend.Paths.Remove(ctx, path)
}
