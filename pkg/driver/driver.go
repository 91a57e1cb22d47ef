package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/controller"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/metrics"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/node"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/rpc"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Driver is one driver on one node.
type Driver struct {
	// Timing and StopBound may be set before Run.
	Timing lifecycle.Timing
	// StopBound is how long a stop waits for what runs. Default 25 s: kubelet kills the containers of a pod 30 s after their
	// SIGTERM (terminationGracePeriodSeconds), and what is cut off then does not get to log why.
	StopBound time.Duration
	// LookEvery is how often all is looked at, for the metrics and the log. Default 30 s.
	LookEvery time.Duration

	cfg     Config
	node    string // volume.ShortNode
	backend Backend
	effects effect.Seam
}

// New makes a driver over the backend. effects is passed by every change the driver makes besides those of the backend,
// which has a seam of its own. Nothing happens before Run.
func New(cfg Config, backend Backend, effects effect.Seam) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	short, err := volume.ShortNode(cfg.NodeName)
	if err != nil {
		return nil, err
	}
	return &Driver{StopBound: 25 * time.Second, LookEvery: lookEvery, cfg: cfg, node: short, backend: backend, effects: effects}, nil
}

// Run serves until ctx ends, and then stops gracefully. In this order: 1 the state folder is locked, 2 the journal
// opened, 3 the first look at LVM taken, 4 unfinished work taken up, 5 calls answered. An error of 3 keeps nothing back:
// Probe then tells that the driver is not ready. The end is the other way round. Killed at any moment, it leaves nothing
// that the next Run does not take up.
func (d *Driver) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	state, err := lockState(d.cfg.StateDir)
	if err != nil {
		return err
	}
	defer state.unlock()

	count := metrics.New(d.cfg.Version)
	if d.backend.Programs != nil {
		d.backend.Programs.Tell(count.Program)
	}
	store, err := journal.Open(ctx, d.cfg.StateDir, d.node, count.Journal(d.effects))
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	for _, problem := range store.Problems() {
		log.Info("the journal holds what cannot be used; its volume is left alone", "problem", problem)
	}

	identity := rpc.NewIdentity(d.cfg.DriverName, d.cfg.Version, d.cfg.serves(ServiceController),
		func(ctx context.Context) error { return errors.Join(state.check(), d.checkLVM(ctx)) })
	ready := identity.Ready(ctx) == nil // and logs why not

	locks := &keylock.Locks{}
	life := d.lifecycle(log, store, locks, state)
	life.Counts = lifecycle.Counts{OrphanRemoved: count.OrphanRemoved, InUse: count.InUse}
	life.Start()
	stopped, cancel := boundedStop(ctx, d.StopBound)
	defer cancel()
	defer life.Stop(stopped)
	defer context.AfterFunc(ctx, life.StopCopies)() // a copy takes as long as it takes; a stop does not

	socket, err := rpc.Listen(ctx, d.cfg.Endpoint)
	if err != nil {
		return err
	}
	log.Info("serving", "endpoint", d.cfg.Endpoint, "driver", d.cfg.DriverName, "version", d.cfg.Version, "node", d.cfg.NodeName,
		"volumeGroups", d.cfg.VolumeGroups, "services", d.cfg.Services, "ready", ready)
	check := health.New(d.backend.LVM, d.backend.Mounts, d.backend.Paths.Resolve)
	d.tell(ctx, count, check, store, d.live(identity, life))
	services := d.services(identity, life, locks, check)
	services.Ended = func(method string, code codes.Code, took time.Duration, request string) {
		count.Call(method, code.String(), took, request)
	}
	return rpc.NewServer(services).Serve(ctx, stopped, socket)
}

// tell starts what tells of the driver beside CSI: the socket in the state folder, the log, and the metrics. None of it is needed for
// volumes, and none may stop them.
func (d *Driver) tell(ctx context.Context, count *metrics.Metrics, check *health.Checker, store *journal.Store, live func(context.Context) *status.Live) {
	go func() {
		if err := status.Serve(ctx, d.cfg.StateDir, live); err != nil {
			klog.FromContext(ctx).Info("the commands beside the driver learn nothing from it", "err", err)
		}
	}()
	w := &watcher{collector: status.New(d.sources(check, store, live)), metrics: count, every: d.LookEvery}
	go w.run(ctx, d.cfg.MetricsAddress != "")
	if d.cfg.MetricsAddress != "" {
		go d.serveMetrics(ctx, d.pages(count))
	}
}

// boundedStop gives a context that ends so long after ctx: what has not ended by then will not be waited for.
func boundedStop(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	stopped, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(bound):
			cancel()
		case <-stopped.Done():
		}
	})
	return stopped, func() { unhook(); cancel() }
}

func (d *Driver) lifecycle(log klog.Logger, store *journal.Store, locks *keylock.Locks, state *stateFolder) *lifecycle.Lifecycle {
	return lifecycle.New(lifecycle.Config{
		RequireAttach: d.cfg.Attach, NodeName: d.cfg.NodeName, MaxAttached: d.cfg.MaxVolumes,
		Owner: d.cfg.DriverName, Node: d.node,
		LVM: d.backend.LVM, Mounts: d.backend.Mounts, Paths: d.backend.Paths, FS: d.backend.Filesystems, Copier: d.backend.Copier, Cgroups: d.backend.Cgroups,
		Journal: store, Locks: locks, Timing: d.timing(), Log: log.Info,
		Thin: d.backend.LVM, Scratch: func(ctx context.Context) (lifecycle.Scratch, error) { return state.scratch(ctx, d.effects) },
		Inventory: d.backend.LVM, KubeletDir: d.cfg.KubeletDir, Orphans: lifecycle.OrphanPolicy(d.cfg.OrphanPolicy),
	})
}

// timing is Timing, with what the flags say.
func (d *Driver) timing() lifecycle.Timing {
	t := d.Timing
	t.OrphanGrace, t.CreateGrace = cmp.Or(t.OrphanGrace, d.cfg.OrphanGrace), cmp.Or(t.CreateGrace, d.cfg.OrphanGrace)
	return t
}

func (d *Driver) services(identity *rpc.Identity, life *lifecycle.Lifecycle, locks *keylock.Locks, check *health.Checker) rpc.Services {
	s := rpc.Services{Identity: identity, Locks: locks, Interrupt: life.CancelCopy}
	if d.cfg.serves(ServiceController) {
		c := controller.New(controller.Config{
			Node: d.node, TopologyKey: request.TopologyKey(d.cfg.DriverName), VolumeGroups: d.cfg.VolumeGroups, Overcommit: d.cfg.ThinOvercommit,
			Attach: d.cfg.Attach, NodeName: d.cfg.NodeName,
			NodeExpands: d.cfg.Expansion == ExpandNode,
		}, volumes{life, d.backend.LVM}, check)
		s.Controller, s.SnapshotMetadata, s.Group = c, controller.NewSnapshotMetadata(c, life), controller.NewGroupController(c, life)
	}
	if d.cfg.serves(ServiceNode) {
		s.Node = node.New(node.Config{
			NodeName: d.cfg.NodeName, ShortNode: d.node, TopologyKey: request.TopologyKey(d.cfg.DriverName),
			VolumeGroups: d.cfg.VolumeGroups, MaxVolumes: d.cfg.MaxVolumes, Expands: d.cfg.Expansion == ExpandNode,
		}, life, facts{life, d.backend.LVM, d.backend.Filesystems}, check)
	}
	return s
}

// volumes is what the controller service asks and has done: changes go to the lifecycle, questions to LVM.
type volumes struct {
	*lifecycle.Lifecycle
	lvm LVM
}

func (v volumes) List(ctx context.Context) ([]volume.LV, error) { return v.lvm.List(ctx) }

func (v volumes) Lookup(ctx context.Context, r volume.Ref) (volume.LV, error) {
	return v.lvm.Lookup(ctx, r)
}

func (v volumes) Groups(ctx context.Context) ([]volume.Group, error) { return v.lvm.Groups(ctx) }

// facts is what the node service asks, gathered from who knows it.
type facts struct {
	*lifecycle.Lifecycle
	groups LVM
	usage  Filesystems
}

func (f facts) Groups(ctx context.Context) ([]volume.Group, error) { return f.groups.Groups(ctx) }

func (f facts) Usage(ctx context.Context, path string, block bool) (volume.Usage, error) {
	return f.usage.Usage(ctx, path, block)
}

// checkLVM asks LVM. That its program is not there is a volume.ErrPrecondition: it will not be there later either. Of
// all else it may be true in a minute, and none may be taken for that.
func (d *Driver) checkLVM(ctx context.Context) error {
	err := d.backend.LVM.Check(ctx)
	switch {
	case err == nil:
		return nil
	case run.NotFound(err):
		return fmt.Errorf("%w: %w; use the driver's own image, or give --lvm-exec=host", volume.ErrPrecondition, err)
	default:
		return fmt.Errorf("check LVM: %v", err) //nolint:errorlint // its class would be taken for the answer of Probe
	}
}
