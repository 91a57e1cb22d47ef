package rpc

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
)

// shortDir is t.TempDir with a path that is short enough for sockets, whatever the test's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rpc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// node is a Node and Controller service whose calls do what the test says.
type node struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer
	publish func(context.Context) error
	stats   func(context.Context) error

	interrupt func(volumeID string) bool
}

func (n *node) NodePublishVolume(ctx context.Context, _ *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, n.publish(ctx)
}

func (n *node) NodeUnpublishVolume(ctx context.Context, _ *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, n.publish(ctx)
}

func (n *node) CreateVolume(ctx context.Context, _ *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{}, n.publish(ctx)
}

func (n *node) NodeGetVolumeStats(ctx context.Context, _ *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return &csi.NodeGetVolumeStatsResponse{}, n.stats(ctx)
}

// driver is a Server on a socket, and a client of it.
type driver struct {
	csi.NodeClient
	csi.ControllerClient
	csi.IdentityClient
	path  string
	locks *keylock.Locks
	stop  func()     // begins the graceful stop
	late  func()     // ends its patience
	ended chan error // what Serve returned
	conn  *grpc.ClientConn
}

// serve runs a Server until the test ends. A nil n has no Node and no Controller service.
func serve(t *testing.T, n *node, check func(context.Context) error) *driver {
	t.Helper()
	d := &driver{path: filepath.Join(shortDir(t), "s"), locks: &keylock.Locks{}, ended: make(chan error, 1)}
	s := Services{Identity: NewIdentity("d.example", "v1", n != nil, check), Locks: d.locks}
	if n != nil {
		s.Interrupt = n.interrupt
		s.Node, s.Controller = n, n
	}
	l, err := Listen(t.Context(), "unix://"+d.path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	late, isLate := context.WithCancel(context.Background())
	d.late = isLate
	t.Cleanup(isLate)
	go func() { d.ended <- NewServer(s).Serve(ctx, late, l) }()
	d.conn = dial(t, d.path)
	d.NodeClient, d.ControllerClient, d.IdentityClient = csi.NewNodeClient(d.conn), csi.NewControllerClient(d.conn), csi.NewIdentityClient(d.conn)
	t.Cleanup(func() {
		stop()
		select {
		case err, open := <-d.ended:
			if open && err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Serve does not end")
		}
	})
	return d
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func publishRequest(id string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: "/t"}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("code %s, want %s (%v)", got, want, err)
	}
}

// eventually polls the condition for at most ten seconds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	late := time.After(10 * time.Second)
	for !condition() {
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatalf("does not come true: %s", what)
		}
	}
}

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// logged gives a context whose logger writes into the buffer.
func logged(t *testing.T, verbosity int) (context.Context, *logBuffer) {
	l := &logBuffer{}
	return klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l), textlogger.Verbosity(verbosity)))), l
}

// call takes a request through the chain that NewServer makes, without a network.
func call(ctx context.Context, s *serialiser, method string, req any, h grpc.UnaryHandler) (any, error) {
	info := &grpc.UnaryServerInfo{FullMethod: method}
	return logger{}.call(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		return s.intercept(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return catchPanic(ctx, req, info, h)
		})
	})
}
