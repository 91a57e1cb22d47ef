package rpc

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
)

// Services is what a Server serves.
type Services struct {
	Identity   csi.IdentityServer
	Controller csi.ControllerServer // nil: off
	Node       csi.NodeServer       // nil: off

	Group            csi.GroupControllerServer  // nil: off
	SnapshotMetadata csi.SnapshotMetadataServer // nil: off

	Locks *keylock.Locks // of volumes, shared with whoever else changes them
	// Interrupt ends a copy onto the volume, and reports whether there is one; it does not wait for its end. Nil: there never is.
	Interrupt func(volumeID string) bool
	// Ended is told of each call that has been answered; nil: nobody is. request is the number that is also in the log, and in the error.
	Ended func(method string, code codes.Code, took time.Duration, request string)
}

// Server answers CSI calls.
type Server struct {
	grpc   *grpc.Server
	serial *serialiser
}

// maxRequest bounds a request, in bytes. The largest that the CSI spec allows has a few maps of 4 KiB each.
const maxRequest = 1 << 20

// NewServer puts every call through: log → code → serialise → catch → the service.
func NewServer(s Services) *Server {
	serial := newSerialiser(s.Locks, s.Interrupt)
	log := logger{s.Ended}
	g := grpc.NewServer(
		grpc.ChainUnaryInterceptor(log.call, serial.intercept, catchPanic),
		grpc.ChainStreamInterceptor(log.stream, serial.interceptStream, catchStreamPanic),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.ConnectionTimeout(10*time.Second), // whoever connects and says nothing must not hold up a stop
	)
	csi.RegisterIdentityServer(g, s.Identity)
	if s.Controller != nil {
		csi.RegisterControllerServer(g, s.Controller)
	}
	if s.Node != nil {
		csi.RegisterNodeServer(g, s.Node)
	}
	if s.Group != nil {
		csi.RegisterGroupControllerServer(g, s.Group)
	}
	if s.SnapshotMetadata != nil {
		csi.RegisterSnapshotMetadataServer(g, s.SnapshotMetadata)
	}
	return &Server{grpc: g, serial: serial}
}

// Serve answers calls on the socket until ctx ends, and then stops gracefully: no new calls, those that run are
// answered, streams end with Unavailable, since their callers can go on where they were, writes that run without a caller finish too, and the socket file is removed. When late ends they are waited
// for no longer: their callers are cut off, and what they do is left behind, for one may hang for ever. The journal is
// made for that.
func (s *Server) Serve(ctx, late context.Context, l *Socket) error {
	defer l.Remove()
	defer context.AfterFunc(late, func() { s.cutOff(late) })()
	defer context.AfterFunc(ctx, s.grpc.GracefulStop)()
	defer context.AfterFunc(ctx, s.serial.stop)()
	err := s.grpc.Serve(l)
	s.grpc.GracefulStop() // waits for the calls, also where accepting failed
	s.serial.wait(late)
	if ctx.Err() != nil { // told to stop, perhaps before the start
		return nil
	}
	return err
}

// cutOff ends the calls that a graceful stop waits for.
func (s *Server) cutOff(ctx context.Context) {
	klog.FromContext(ctx).Info("stopping without the calls that have not ended; what they began is taken up at the next start")
	s.grpc.Stop()
}
