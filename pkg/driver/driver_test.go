package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// shortConfig has its socket and state in a folder whose path is short enough for sockets.
func shortConfig(t *testing.T) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "drv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := valid()
	cfg.Endpoint, cfg.StateDir, cfg.Version = filepath.Join(dir, "s"), filepath.Join(dir, "state"), "v1"
	return cfg
}

func newMachine() *fake.Machine {
	m := fake.New()
	m.AddGroup("data", 4<<20, 1<<30)
	return m
}

func over(m *fake.Machine, cfg Config) Backend {
	tools := m.Connect(fake.Config{Owner: cfg.DriverName, Groups: cfg.VolumeGroups, Overcommit: cfg.ThinOvercommit})
	return Backend{LVM: tools.LVM, Mounts: tools.Mounts, Paths: tools.Paths, Filesystems: tools.Filesystems, Cgroups: tools.Cgroups}
}

// start runs a driver until stop, and gives a connexion to it.
func start(t *testing.T, cfg Config, b Backend) (conn *grpc.ClientConn, stop func() error) {
	t.Helper()
	d, err := New(cfg, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(10 * time.Second):
			return errors.New("Run does not end")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	soon := grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second,
		Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond}})
	conn, err = grpc.NewClient("unix://"+cfg.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), soon)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), nil, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return conn, stop
}

func ready(t *testing.T, conn *grpc.ClientConn) bool {
	t.Helper()
	reply, err := csi.NewIdentityClient(conn).Probe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetReady().GetValue()
}

func TestRun(t *testing.T) {
	cfg := shortConfig(t)
	conn, stop := start(t, cfg, over(newMachine(), cfg))
	if !ready(t, conn) {
		t.Error("not ready")
	}
	info, err := csi.NewNodeClient(conn).NodeGetInfo(t.Context(), nil)
	if err != nil || info.GetNodeId() != "node-1" || info.GetMaxVolumesPerNode() != 1000 ||
		info.GetAccessibleTopology().GetSegments()["topology.local-lvm.csi.internal/node"] != "node-1" {
		t.Errorf("%v %v", info, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(cfg.Endpoint); err == nil {
		t.Error("the socket is left")
	}
	conn, _ = start(t, cfg, over(newMachine(), cfg)) // the lock is free again
	if !ready(t, conn) {
		t.Error("not ready after a restart")
	}
}

// case B20: whoever comes second touches nothing.
func TestSecondDriverIsRefused(t *testing.T) {
	cfg := shortConfig(t)
	conn, _ := start(t, cfg, over(newMachine(), cfg))
	temp := filepath.Join(cfg.StateDir, "journal", ".tmp-precious") // a journal that is opened removes these
	if err := os.WriteFile(temp, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := New(cfg, over(newMachine(), cfg), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another driver is running on the state folder") {
		t.Errorf("same state folder: %v", err)
	}
	if _, err := os.Lstat(temp); err != nil {
		t.Errorf("the journal was touched: %v", err)
	}

	other := cfg
	other.StateDir += "2"
	third, err := New(other, over(newMachine(), cfg), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := third.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another driver is serving on") {
		t.Errorf("same socket: %v", err)
	}
	if !ready(t, conn) {
		t.Error("the first driver suffered")
	}
}

// What an earlier driver did not finish is finished before anybody asks (case B3).
func TestUnfinishedWorkIsTakenUp(t *testing.T) {
	cfg, m := shortConfig(t), newMachine()
	ref := volume.Ref{VG: "data", LV: volume.LVName(volume.Inline, "csi-1")}
	m.AddLV(ref, volume.Layout{Type: volume.Linear}, 4<<20, volume.OwnerTag(cfg.DriverName), volume.KindTag(volume.Inline))
	store, err := journal.Open(t.Context(), cfg.StateDir, "node-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := journal.Record{VolumeID: "csi-1", Kind: volume.Inline, VG: ref.VG, LV: ref.LV, Intent: journal.Reclaim}
	if err := store.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	b := over(m, cfg)
	start(t, cfg, b)
	for end := time.After(10 * time.Second); ; {
		if _, err := b.LVM.Lookup(t.Context(), ref); errors.Is(err, volume.ErrNotFound) {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-end:
			t.Fatal("the logical volume is still there")
		}
	}
}

// A node whose disk is not there yet must come up, and say so.
func TestNotReadyWithoutAGroup(t *testing.T) {
	cfg := shortConfig(t)
	m := fake.New()
	conn, _ := start(t, cfg, over(m, cfg))
	if ready(t, conn) {
		t.Error("ready without a volume group")
	}
	m.AddGroup("data", 4<<20, 1<<30)
	if !ready(t, conn) {
		t.Error("not ready with a volume group")
	}
	m.FailReads("data", errors.New("I/O error"))
	if ready(t, conn) {
		t.Error("ready with an unreadable volume group")
	}
}

// brokenLVM is an LVM that does not work at all.
type brokenLVM struct {
	LVM
	err error
}

func (b brokenLVM) Check(context.Context) error { return b.err }

func TestProbeOfABrokenDriver(t *testing.T) {
	cfg := shortConfig(t)
	_, gone := (&run.Local{}).Read(t.Context(), "no-such-program-anywhere")
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{gone, codes.FailedPrecondition},
		{volume.ErrPrecondition, codes.OK}, // LVM's own use of the word is not Probe's
		{volume.ErrNotFound, codes.OK},
	} {
		b := over(newMachine(), cfg)
		b.LVM = brokenLVM{b.LVM, c.err}
		conn, stop := start(t, cfg, b)
		reply, err := csi.NewIdentityClient(conn).Probe(t.Context(), nil)
		if status.Code(err) != c.want || reply.GetReady().GetValue() {
			t.Errorf("%v: %v %v", c.err, reply, err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}

	conn, _ := start(t, cfg, over(newMachine(), cfg))
	if err := os.Rename(cfg.StateDir, cfg.StateDir+".old"); err != nil {
		t.Fatal(err)
	}
	_, err := csi.NewIdentityClient(conn).Probe(t.Context(), nil)
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("state folder gone: %v", err)
	}
}

func TestServices(t *testing.T) {
	cfg := shortConfig(t)
	cfg.Services = []string{ServiceNode}
	conn, _ := start(t, cfg, over(newMachine(), cfg))
	if _, err := csi.NewControllerClient(conn).ListVolumes(t.Context(), nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("controller off: %v", err)
	}
	if _, err := csi.NewNodeClient(conn).NodeGetCapabilities(t.Context(), nil); err != nil {
		t.Errorf("node on: %v", err)
	}
}

func TestNewRefusesBadConfig(t *testing.T) {
	cfg := valid()
	cfg.NodeName = ""
	if _, err := New(cfg, Backend{}, nil); !errors.Is(err, volume.ErrInvalid) {
		t.Error(err)
	}
}
