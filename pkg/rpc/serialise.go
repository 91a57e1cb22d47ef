package rpc

import (
	"context"
	"fmt"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	// writeBound ends a write for which nobody waits any more. It is far above what mkfs or a removal takes, and below
	// for ever: the programs are not killed by it, but no next step is begun.
	writeBound = 30 * time.Minute
	// readBound is the deadline of a read whose caller named none; kubelet's own is as long (csiTimeout).
	readBound = 2 * time.Minute
)

// serialiser carries out policies: one volume, one operation; reads may be cancelled, writes finish.
//
// Every handler runs in a goroutine of its own, so that the caller gets its answer when its deadline passes, whatever
// the handler hangs on. A write goes on then, without the caller's deadline, and holds the lock until it has ended; its
// late result is logged. A read is told that nobody waits (its context ends), and is left behind if it does not listen.
type serialiser struct {
	locks     *keylock.Locks // of volumes; the sweep takes them too
	interrupt func(volumeID string) bool
	reads     slots
	running   sync.WaitGroup // writes, with and without a caller

	stopping context.Context //nolint:containedctx // it is what ends the streams, and of no call
	stop     func()          // ends stopping
}

func newSerialiser(locks *keylock.Locks, interrupt func(volumeID string) bool) *serialiser {
	ctx, stop := context.WithCancel(context.Background())
	return &serialiser{locks: locks, interrupt: interrupt, stopping: ctx, stop: stop}
}

// wait returns when no write runs any more, or when ctx ends.
func (s *serialiser) wait(ctx context.Context) {
	idle := make(chan struct{})
	go func() {
		s.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

func (s *serialiser) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	p, served := policies[info.FullMethod]
	switch {
	case !served:
		return nil, fmt.Errorf("%s: %w", info.FullMethod, errNotServed)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("not begun: %w", ctx.Err())
	case p.writes:
		return s.write(ctx, req, info.FullMethod, p, next)
	default:
		return s.read(ctx, req, info.FullMethod, p, next)
	}
}

func (s *serialiser) write(ctx context.Context, req any, method string, p policy, next grpc.UnaryHandler) (any, error) {
	release := func() {}
	if key := p.key(req); key != "" {
		var err error
		if release, err = s.locks.Try(key, path.Base(method)); err != nil {
			if r, ok := req.(interface{ GetVolumeId() string }); ok && p.interrupts && s.interrupt != nil && s.interrupt(r.GetVolumeId()) {
				err = fmt.Errorf("%w; it copies, and is given up for this", err)
			}
			return nil, err
		}
	}
	s.running.Add(1)
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeBound)
	reply, left, err := detach(ctx, method, func() (any, error) {
		defer release()
		defer cancel()
		return next(work, req)
	}, s.running.Done)
	if left {
		return nil, fmt.Errorf("%s goes on without its caller (%w); ask again to learn how it ended", path.Base(method), ctx.Err())
	}
	return reply, err
}

func (s *serialiser) read(ctx context.Context, req any, method string, p policy, next grpc.UnaryHandler) (any, error) {
	key := path.Base(method)
	if p.key != nil {
		key += " " + p.key(req)
	}
	release, err := s.reads.take(key, p.many)
	if err != nil {
		return nil, err
	}
	cancel := func() {}
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancel = context.WithTimeout(ctx, readBound)
	}
	defer cancel()
	reply, left, err := detach(ctx, method, func() (any, error) {
		defer release()
		return next(ctx, req)
	}, func() {})
	if left {
		return nil, fmt.Errorf("%s has no answer yet (%w); what it asks may hang, see the driver's log", path.Base(method), ctx.Err())
	}
	return reply, err
}

// detach runs do in a goroutine and gives its result, or left if ctx ended first. The result of a do that was left is
// logged when it comes. All that do defers has been done before its result is seen; ended is called last of all.
func detach(ctx context.Context, method string, do func() (any, error), ended func()) (reply any, left bool, err error) {
	type result struct {
		reply any
		err   error
	}
	start, done := time.Now(), make(chan result)
	go func() {
		defer ended()
		reply, err := do()
		select {
		case done <- result{reply, err}:
		case <-ctx.Done(): // nobody listens
			klog.FromContext(ctx).Info("call ended after its caller had left", "code", codeOf(method, err),
				"duration", time.Since(start).Round(time.Microsecond), "err", err)
		}
	}()
	select {
	case r := <-done:
		return r.reply, false, r.err
	case <-ctx.Done():
		return nil, true, nil
	}
}

// slots counts the reads that run, by key. The zero value is ready for use.
type slots struct {
	mu    sync.Mutex
	taken map[string]int
}

// take takes one of many slots of the key, and never waits. The error is a volume.ErrPending. release must be called
// exactly once.
func (s *slots) take(key string, many int) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[key] >= many {
		return nil, fmt.Errorf("%w: %d earlier calls (%s) have not been answered; what they ask may hang, see the driver's log",
			volume.ErrPending, many, key)
	}
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	s.taken[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taken[key]--; s.taken[key] == 0 {
			delete(s.taken, key)
		}
	}, nil
}
