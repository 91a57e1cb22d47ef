package sanity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/adopt"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

const (
	fakeVG, fakePool = "vg", "pool"
	// bound is how long anything may take that a test waits for; nothing waits that long where all is well.
	bound = time.Minute
)

// fakeHarness is a machine in memory with drivers in this process. Only the socket and the journal are on this file
// system.
//
// A driver in this process cannot be killed. Instead its seam refuses every effect, its clients are cut off, and the next
// driver gets a socket and a state folder of its own, with what the journal then holds: nothing that the dead one still does
// can be seen. That includes its lock and its socket file, so these two are tests of pkg/driver and pkg/rpc, and of the real
// harness.
type fakeHarness struct {
	m       *fake.Machine
	dir     string
	starts  int
	state   string // the state folder of the last driver
	socket  string // of the last driver
	current *inProcess
	orphans orphans
	attach  bool
	expand  string         // which call makes volumes larger; "": the default
	adopt   contract.Fault // for the next command
	// reconfigure changes what the next driver is configured with; nil: nothing.
	reconfigure func(*driver.Config)
	programs    *run.Watch // hears of the programs of the next driver; nil: nobody does
	// timing is that of the next driver; nil: short waits, as a fake does not need time to become free.
	timing *lifecycle.Timing
	before func(effect.Effect) // comes before each effect of the next driver; nil: nothing does
}

// orphans is how the next driver treats orphans.
type orphans struct {
	policy string
	grace  time.Duration
}

var _ contract.Harness = (*fakeHarness)(nil)

// inProcess is one driver.
type inProcess struct {
	faults
	before func(effect.Effect)
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, when ended is closed
}

// newFakeHarness gives a machine with one volume group of five disks and a thin pool. No driver runs yet.
func newFakeHarness(t *testing.T) contract.Harness {
	dir, err := os.MkdirTemp("", "csi") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	h := &fakeHarness{m: fake.New(), dir: dir, state: filepath.Join(dir, "state0")}
	h.m.AddGroup(fakeVG, 4<<20, 2<<30, 2<<30, 2<<30, 2<<30, 2<<30)
	h.m.AddPool(fakeVG, fakePool, 1<<30)
	h.m.EditLV(volume.Ref{VG: fakeVG, LV: fakePool}, func(s *fake.State) { s.Active = true }) // as LVM leaves it
	t.Cleanup(func() {
		if p := h.current; p != nil {
			p.kill()
			p.wait(t)
		}
		for end := time.Now().Add(bound); ; <-time.After(time.Millisecond) { // what was under way when the driver was killed may still write
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	return h
}

func (h *fakeHarness) Start(t *testing.T) {
	t.Helper()
	if h.Running() {
		t.Fatal("a driver is running")
	}
	if h.current != nil && h.current.isDead() {
		h.inherit(t)
	}
	h.starts++
	cfg := driver.Default()
	h.socket = filepath.Join(h.dir, fmt.Sprintf("csi%d.sock", h.starts))
	cfg.Endpoint = h.socket
	cfg.NodeName, cfg.VolumeGroups, cfg.StateDir = h.NodeName(), []string{fakeVG}, h.state
	if cfg.Attach = h.attach; cfg.Attach {
		cfg.MaxVolumes = maxAttached
	}
	if h.reconfigure != nil {
		h.reconfigure(&cfg)
	}
	cfg.OrphanPolicy, cfg.Expansion = cmp.Or(h.orphans.policy, cfg.OrphanPolicy), cmp.Or(h.expand, cfg.Expansion)

	ctx, cancel := context.WithCancel(context.Background())
	p := &inProcess{before: h.before, cancel: cancel, ended: make(chan struct{})}
	tools := h.m.Connect(fake.Config{Owner: cfg.DriverName, Groups: cfg.VolumeGroups, Overcommit: cfg.ThinOvercommit, Effects: p.unsynced})
	d, err := driver.New(cfg, driver.Backend{LVM: tools.LVM, Mounts: tools.Mounts, Paths: tools.Paths, Filesystems: tools.Filesystems, Copier: tools.Copier, Cgroups: tools.Cgroups, Programs: h.programs}, p.unsynced)
	if err != nil {
		t.Fatal(err)
	}
	d.Timing = lifecycle.Timing{BusyWait: 10 * time.Millisecond, FirstRetry: 4 * time.Millisecond, BusyRetry: 20 * time.Millisecond, FailedRetry: 20 * time.Millisecond,
		CreateGrace: 20 * time.Millisecond, OrphanGrace: h.orphans.grace}
	if h.timing != nil {
		d.Timing = *h.timing
	}
	d.StopBound = stopBound / 10
	p.conn = dial(t, cfg.Endpoint)
	p.die = func() { _ = p.conn.Close(); cancel() }
	h.current = p
	go func() {
		defer close(p.ended)
		p.err = d.Run(ctx)
	}()
	waitReady(t, p.conn, p.ended)
	p.arm(contract.Fault{})
}

// maxAttached is how many volumes a driver with --attach may have attached: few, so that a test can attach them all.
const maxAttached = 8

// stopBound is how long the drivers under test wait for calls that hang when they are stopped.
const stopBound = 2 * time.Second

// unsynced is the seam, without what fsync(2) does: the machine in memory meets no power cut, and on the disk of this one
// it would be most of what the tests wait for.
func (p *inProcess) unsynced(ctx context.Context, e effect.Effect, do func() error) error {
	if p.before != nil {
		p.before(e)
	}
	if e.Op == "fsync" {
		do = func() error { return nil }
	}
	return p.seam(ctx, e, do)
}

// dial gives a connexion that is tried again at once while the driver is not there yet.
func dial(t testing.TB, socket string) *grpc.ClientConn {
	t.Helper()
	often := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond}, MinConnectTimeout: bound}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(often))
	must(t, err)
	return conn
}

// waitReady returns when the driver says that it is ready.
func waitReady(t testing.TB, conn *grpc.ClientConn, ended <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for {
		r, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		if err == nil && r.GetReady().GetValue() {
			return
		}
		select {
		case <-ended:
			t.Fatalf("the driver ended before it was ready: %v", err)
		case <-ctx.Done():
			t.Fatalf("the driver does not become ready: %v, %v", r, err)
		case <-time.After(time.Millisecond):
		}
	}
}

// inherit makes the state folder of the next driver from that of a dead one.
func (h *fakeHarness) inherit(t *testing.T) {
	t.Helper()
	next := filepath.Join(h.dir, fmt.Sprintf("state%d", h.starts))
	err := os.MkdirAll(next, 0o700)
	if err == nil {
		err = os.CopyFS(filepath.Join(next, "journal"), os.DirFS(h.Journal()))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	h.state = next
}

// wait waits for the end of the driver.
func (p *inProcess) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(bound):
		t.Error("the driver does not end")
	}
}

func (h *fakeHarness) Stop(t *testing.T) {
	t.Helper()
	h.current.cancel()
	h.current.wait(t)
	if err := h.current.err; err != nil {
		t.Errorf("the driver ended with %v", err)
	}
	h.current.kill() // what it did not wait for ends with its process
	_ = h.current.conn.Close()
}

func (h *fakeHarness) Kill(*testing.T) { h.current.kill() }

func (h *fakeHarness) Running() bool {
	if h.current == nil || h.current.isDead() {
		return false
	}
	select {
	case <-h.current.ended:
		return false
	default:
		return true
	}
}

func (h *fakeHarness) Identity() csi.IdentityClient { return csi.NewIdentityClient(h.current.conn) }
func (h *fakeHarness) Controller() csi.ControllerClient {
	return csi.NewControllerClient(h.current.conn)
}
func (h *fakeHarness) Node() csi.NodeClient { return csi.NewNodeClient(h.current.conn) }
func (h *fakeHarness) Group() csi.GroupControllerClient {
	return csi.NewGroupControllerClient(h.current.conn)
}
func (h *fakeHarness) SnapshotMetadata() csi.SnapshotMetadataClient {
	return csi.NewSnapshotMetadataClient(h.current.conn)
}

func (h *fakeHarness) Arm(_ *testing.T, f contract.Fault)       { h.current.arm(f) }
func (h *fakeHarness) Effects(*testing.T) []effect.Effect       { return h.current.effects() }
func (h *fakeHarness) Commands(*testing.T) map[string]int       { return h.m.Commands() }
func (h *fakeHarness) endpoint() string                         { return h.socket }
func (h *fakeHarness) NodeName() string                         { return "node-1" }
func (h *fakeHarness) VG() string                               { return fakeVG }
func (h *fakeHarness) Pool() string                             { return fakePool }
func (h *fakeHarness) Journal() string                          { return filepath.Join(h.state, "journal") }
func (h *fakeHarness) WriteFile(path, content string) error     { return h.m.WriteFile(path, content) }
func (h *fakeHarness) ReadFile(path string) (string, error)     { return h.m.ReadFile(path) }
func (h *fakeHarness) Mkdir(t *testing.T, path string)          { must(t, h.m.Mkdir(path)) }
func (h *fakeHarness) Symlink(t *testing.T, to, path string)    { must(t, h.m.Symlink(to, path)) }
func (h *fakeHarness) Remove(t *testing.T, path string)         { must(t, h.m.Remove(path)) }
func (h *fakeHarness) DestroyLV(_ *testing.T, r volume.Ref)     { h.m.DropLV(r) }
func (h *fakeHarness) HoldLV(_ *testing.T, r volume.Ref) func() { return h.m.HoldDevice(r) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *fakeHarness) Block(_ *testing.T, name string) (entered <-chan struct{}, release func()) {
	return h.m.Block(name)
}

func (h *fakeHarness) Target(t *testing.T, pod string) string {
	return h.folders(t, "/var/lib/kubelet/pods", pod, "volumes", "kubernetes.io~csi", "data") + "/mount"
}

func (h *fakeHarness) Staging(t *testing.T, volumeName string) string {
	return h.folders(t, "/var/lib/kubelet", "plugins", "kubernetes.io", "csi", volumeName, "globalmount")
}

// folders makes a folder in another, as deep as there are names.
func (h *fakeHarness) folders(t *testing.T, path string, names ...string) string {
	t.Helper()
	for _, name := range names {
		path = filepath.Join(path, name)
		if h.Lstat(t, path).Kind == 0 {
			h.Mkdir(t, path)
		}
	}
	return path
}

func (h *fakeHarness) World(t *testing.T) string {
	t.Helper()
	records, err := journalWorld(h.Journal())
	must(t, err)
	return h.m.World() + records
}

// byHand is the machine without a driver.
func (h *fakeHarness) byHand() fake.Tools { return h.by(nil) }

func (h *fakeHarness) by(effects effect.Seam) fake.Tools {
	return h.m.Connect(fake.Config{Owner: driver.Default().DriverName, Groups: []string{fakeVG}, Effects: effects})
}

// adopter is the machine without a driver, for the command.
func (h *fakeHarness) adopter() (adopt.LVM, adopt.Host) {
	tools := h.by(aCommand(&h.adopt))
	return tools.LVM, fakeHost{tools.Mounts, tools.Filesystems}
}

func (h *fakeHarness) Mounts(t *testing.T, path string) []volume.Mount {
	t.Helper()
	all, err := h.byHand().Mounts.List(t.Context())
	must(t, err)
	return slices.DeleteFunc(all, func(m volume.Mount) bool { return m.Target != path })
}

func (h *fakeHarness) Bind(t *testing.T, source, target string) {
	t.Helper()
	block := h.Lstat(t, source).Kind != 'd'
	if h.Lstat(t, target).Kind == 0 {
		_, err := h.byHand().Paths.Make(t.Context(), target, block)
		must(t, err)
	}
	must(t, h.byHand().Mounts.Bind(t.Context(), source, target, volume.MountOptions{}))
}

func (h *fakeHarness) Unmount(t *testing.T, path string) {
	t.Helper()
	must(t, h.byHand().Mounts.Unmount(t.Context(), path))
}

func (h *fakeHarness) Hold(_ *testing.T, how, path string) (pid int, release func()) {
	switch how {
	case contract.HoldNamespace:
		return h.m.PrivateNamespace()
	case contract.HoldElsewhere:
		return h.m.HoldElsewhere(path)
	}
	return h.m.Hold(how, path)
}

func (h *fakeHarness) Reboot(t *testing.T, active bool) {
	if h.Running() {
		h.Kill(t)
	}
	h.m.Reboot(active)
}

func (h *fakeHarness) Lstat(t *testing.T, path string) contract.File {
	t.Helper()
	f, err := h.m.Lstat(path)
	must(t, err)
	return contract.File(f)
}

func (h *fakeHarness) LV(_ *testing.T, r volume.Ref) (contract.LVMFacts, bool) {
	f, ok := h.m.LV(r)
	return contract.LVMFacts{UUID: f.UUID, SizeBytes: f.SizeBytes, SegType: string(f.Type), Stripes: f.Stripes, Tags: f.Tags}, ok
}

func (h *fakeHarness) ArmAdopt(f contract.Fault) { h.adopt = f }

func (h *fakeHarness) Adopt(t *testing.T, r volume.Ref, block bool, fs volume.FS) (string, error) {
	l, host := h.adopter()
	return adoptBy(t, l, host, adoptRequest(h.NodeName(), "/var/lib/kubelet", r, block, fs))
}

func (h *fakeHarness) Release(t *testing.T, r volume.Ref) error {
	l, host := h.adopter()
	return adopt.Release(t.Context(), l, host, adoptRequest(h.NodeName(), "/var/lib/kubelet", r, false, ""))
}

// fakeHost is adopt.Host over the machine in memory.
type fakeHost struct {
	*fake.Mounts
	fs *fake.Filesystems
}

func (f fakeHost) Probe(ctx context.Context, d volume.Device) (volume.Content, error) {
	return f.fs.Probe(ctx, d)
}

func adoptRequest(node, kubelet string, r volume.Ref, block bool, fs volume.FS) adopt.Request {
	return adopt.Request{Ref: r, Block: block, FS: fs, Owner: driver.Default().DriverName, Node: node, KubeletDir: kubelet}
}

func adoptBy(t *testing.T, l adopt.LVM, h adopt.Host, q adopt.Request) (string, error) {
	lv, err := adopt.Adopt(t.Context(), l, h, q)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	must(t, adopt.Manifest{Request: q, TopologyKey: "topology/node", StorageClass: "by-hand"}.Write(&out, lv))
	return out.String(), nil
}

func (h *fakeHarness) AddPod(_ *testing.T, pod string, io bool) { h.m.AddPod(pod, io) }
func (h *fakeHarness) DropPod(_ *testing.T, pod string)         { h.m.DropPod(pod) }

func (h *fakeHarness) PodLimits(_ *testing.T, pod string, r volume.Ref) volume.IOLimits {
	return h.m.PodLimits(pod, r)
}

func (h *fakeHarness) Settings(_ *testing.T, r volume.Ref) (volume.Mutable, []string) {
	return h.m.Settings(r)
}

func (h *fakeHarness) MakeLV(_ *testing.T, r volume.Ref, bytes int64, tags ...string) {
	h.m.AddLV(r, volume.Layout{Type: volume.Linear}, bytes, tags...)
}

func (h *fakeHarness) DeactivateLV(_ *testing.T, r volume.Ref) {
	h.m.EditLV(r, func(s *fake.State) { s.Active = false })
}

func (h *fakeHarness) Scribble(t *testing.T, r volume.Ref, signature string) {
	t.Helper()
	d, err := h.byHand().LVM.Device(t.Context(), r)
	must(t, err)
	switch signature {
	case "ext4", "xfs", "btrfs":
		must(t, h.byHand().Filesystems.Format(t.Context(), d, volume.Format{FS: volume.FS(signature)}))
	case "blank":
	case "xfs-unfinished":
		h.m.Tear("mkfs.xfs")
		if h.byHand().Filesystems.Format(t.Context(), d, volume.Format{FS: volume.XFS}) == nil {
			t.Fatal("a killed mkfs succeeded")
		}
	case "garbage":
		must(t, h.m.WriteFile(d.Path, strings.Repeat("garbage", 100)))
	case "last-byte":
		must(t, h.m.WriteFile(d.Path, strings.Repeat("\x00", 4095)+"x"))
	case "after-4k":
		must(t, h.m.WriteFile(d.Path, strings.Repeat("\x00", 4096)+"x"))
	case "linux_raid_member":
		h.m.SetEndSignature(r, signature)
	default:
		h.m.SetSignature(r, signature)
	}
}

func (h *fakeHarness) Orphans(policy string, grace time.Duration) { h.orphans = orphans{policy, grace} }

func (h *fakeHarness) Attach(on bool)        { h.attach = on }
func (h *fakeHarness) ExpandOn(where string) { h.expand = where }

func (h *fakeHarness) SnapshotLV(_ *testing.T, origin volume.Ref, name string) {
	h.m.AddSnapshot(origin, name, 4<<20)
}

func (h *fakeHarness) RemountReadOnly(_ *testing.T, path string) { h.m.RemountReadOnly(path) }

func (h *fakeHarness) SuspendLV(_ *testing.T, r volume.Ref) {
	h.m.EditLV(r, func(s *fake.State) { s.Suspended = true })
}

func (h *fakeHarness) IsSuspended(_ *testing.T, r volume.Ref) (is bool) {
	h.m.EditLV(r, func(s *fake.State) { is = s.Suspended })
	return is
}

func (h *fakeHarness) WriteThin(_ *testing.T, r volume.Ref, part volume.Range) {
	h.m.WriteThin(r, part)
}

func (h *fakeHarness) DiscardThin(_ *testing.T, r volume.Ref, part volume.Range) {
	h.m.DiscardThin(r, part)
}

func (h *fakeHarness) HoldPool(_ *testing.T, yes bool) {
	h.m.HoldPool(volume.Ref{VG: fakeVG, LV: fakePool}, yes)
}

func (h *fakeHarness) PoolHeld(*testing.T) bool {
	return h.m.PoolHeld(volume.Ref{VG: fakeVG, LV: fakePool})
}

func (h *fakeHarness) LockVG(*testing.T) (release func()) { return h.m.LockGroup(fakeVG) }

// LVMProcesses: those that hold LVM's lock on the group, or wait for it.
func (h *fakeHarness) LVMProcesses(*testing.T) int { return h.m.LVMProcesses() }

func (h *fakeHarness) BreakVG(*testing.T) (mend func()) {
	h.m.FailReads(fakeVG, errors.New("I/O error"))
	return func() { h.m.FailReads(fakeVG, nil) }
}
