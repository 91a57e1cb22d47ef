package rpc

import (
	"context"
	"errors"
	"runtime/debug"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// errPanic does not tell the panic's value: nobody vouches for what it holds. The log has it, with the stack.
var errPanic = errors.New("internal fault of the driver: the call panicked; the driver's log has the stack, and the driver goes on")

// catchPanic answers a panic of a handler as an error, Internal for the caller, and keeps the process up (case B21).
// It runs in the goroutine of the handler, below serialise, which therefore frees the volume as after any error.
func catchPanic(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
	err = safely(ctx, func() error {
		reply, err = next(ctx, req)
		return err
	})
	return reply, err
}

// catchStreamPanic is catchPanic for streams.
func catchStreamPanic(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return safely(s.Context(), func() error { return next(srv, s) })
}

// safely calls do and makes an error of a panic.
func safely(ctx context.Context, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(errPanic, "panic caught", "panic", p, "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return do()
}
