package copy

import (
	"context"
	"sync"
	"time"
)

// rate holds back whoever reads too fast. The zero value holds nobody back.
type rate struct {
	bytesPerSecond int64

	mu   sync.Mutex
	free time.Time // when all that was let through so far is within the bound
}

// wait returns when n more bytes may be read, or with the error of ctx when that ends.
func (r *rate) wait(ctx context.Context, n int64) error {
	until := r.reserve(time.Now(), n)
	if until <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(until)
	defer timer.Stop()
	select {
	case <-timer.C:
		return context.Cause(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reserve takes the next time that is free, and tells how long it is until then. Time that nobody used is not saved up.
func (r *rate) reserve(now time.Time, n int64) time.Duration {
	if r.bytesPerSecond == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	start := r.free
	if start.Before(now) {
		start = now
	}
	r.free = start.Add(time.Duration(float64(n) / float64(r.bytesPerSecond) * float64(time.Second)))
	return start.Sub(now)
}
