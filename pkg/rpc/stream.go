package rpc

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// streamBound is the deadline of a stream, whatever its caller named: one that nobody reads on must not hold its place for
// ever. A caller that is slower goes on with another call where this one ended.
const streamBound = 6 * time.Hour

// errStopping ends streams when the driver is told to stop.
var errStopping = errors.New("the driver is stopping; call again, and go on where this stream ended")

// stream is a stream with a context of its own. The request comes to the handler through it.
type stream struct {
	grpc.ServerStream
	ctx      context.Context //nolint:containedctx // the way of gRPC: a stream has one
	received func(req any)
	sent     int // messages
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil && s.received != nil {
		s.received(m)
	}
	return err
}

func (s *stream) SendMsg(m any) error {
	s.sent++
	return s.ServerStream.SendMsg(m)
}

// stream is call for calls that are answered with a stream. Its messages are counted, not logged: there can be
// millions.
func (l logger) stream(srv any, in grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	c := l.begin(in.Context(), info.FullMethod)
	s := &stream{ServerStream: in, ctx: klog.NewContext(in.Context(), c.log)}
	s.received = func(req any) {
		c.log = c.log.WithValues(subject(req)...)
		s.ctx = klog.NewContext(s.ctx, c.log)
		if v := c.log.V(5); v.Enabled() {
			v.Info("call", "message", stripped(req))
		}
	}
	err := next(srv, s)
	return c.end(err, func() []any { return []any{"messages", s.sent} })
}

// interceptStream is intercept for streams, which are reads. gRPC itself answers a caller whose deadline has passed; the
// handler is told, and holds its place until it has ended.
func (s *serialiser) interceptStream(srv any, in grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	p, served := policies[info.FullMethod]
	if !served || p.writes || p.key != nil {
		return fmt.Errorf("%s: %w", info.FullMethod, errNotServed)
	}
	release, err := s.reads.take(path.Base(info.FullMethod), p.many)
	if err != nil {
		return err
	}
	defer release()
	bounded := &boundedStream{ServerStream: in}
	var cancel context.CancelFunc
	bounded.ctx, cancel = s.bound(in)
	defer cancel()
	err = next(srv, bounded)
	if err != nil && s.stopping.Err() != nil {
		return fmt.Errorf("%w (%w)", errStopping, err)
	}
	return err
}

// boundedStream is a stream whose context ends earlier than that of the one below; it has the values of that one, which
// has them when the request has come.
type boundedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // as in stream
}

func (b *boundedStream) Context() context.Context {
	return klog.NewContext(b.ctx, klog.FromContext(b.ServerStream.Context()))
}

// bound gives a context that ends with the stream's, after streamBound, or when the driver stops.
func (s *serialiser) bound(in grpc.ServerStream) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(in.Context(), streamBound)
	unhook := context.AfterFunc(s.stopping, cancel)
	return ctx, func() { unhook(); cancel() }
}
