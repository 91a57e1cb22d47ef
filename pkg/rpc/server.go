package rpc

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
)

// Services is what a Server serves.
type Services struct {
	Identity   csi.IdentityServer
	Controller csi.ControllerServer // nil: off
	Node       csi.NodeServer       // nil: off
	Locks      *keylock.Locks       // of volumes, shared with whoever else changes them
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
	serial := &serialiser{locks: s.Locks}
	g := grpc.NewServer(
		grpc.ChainUnaryInterceptor(logCall, serial.intercept, catchPanic),
		grpc.StreamInterceptor(catchStreamPanic),
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
	return &Server{grpc: g, serial: serial}
}

// Serve answers calls on the socket until ctx ends, and then stops gracefully: no new calls, those that run are
// answered, writes that run without a caller finish too, and the socket file is removed. That takes as long as they
// take; whoever cannot wait ends the process, which the journal is made for.
func (s *Server) Serve(ctx context.Context, l *Socket) error {
	defer l.Remove()
	defer context.AfterFunc(ctx, s.grpc.GracefulStop)()
	err := s.grpc.Serve(l)
	s.grpc.GracefulStop() // waits for the calls, also where accepting failed
	s.serial.running.Wait()
	if ctx.Err() != nil { // told to stop, perhaps before the start
		return nil
	}
	return err
}
