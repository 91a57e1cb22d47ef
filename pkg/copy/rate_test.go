package copy

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	r := rate{bytesPerSecond: 100}
	for _, c := range []struct {
		when  float64
		bytes int64
		wait  time.Duration
	}{
		{0, 100, 0},             // free
		{0, 50, time.Second},    // after the first one
		{0.5, 100, time.Second}, // after both
		{10, 100, 0},            // free again
		{10, 100, time.Second},  // what nobody used between 2.5 and 10 is not saved up
		{12.5, 1, 0},            // free
		{12.505, 1, 5e6},        // in a moment
		{12.505, 200, 15e6},
		{13, 1, 1520 * time.Millisecond}, // a large one is waited for by those after it
	} {
		if got := r.reserve(at(c.when), c.bytes); (got - c.wait).Abs() > time.Microsecond {
			t.Errorf("%d bytes after %v s: wait %v, want %v", c.bytes, c.when, got, c.wait)
		}
	}
	if got := (&rate{}).reserve(start, 1<<40); got != 0 {
		t.Errorf("without a bound: wait %v", got)
	}
}

func TestRateEndsWithItsContext(t *testing.T) {
	r := rate{bytesPerSecond: 1}
	because := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := r.wait(ctx, 3600); err != nil {
		t.Fatal(err)
	}
	cancel(because)
	for range 2 { // an hour each
		if err := r.wait(ctx, 3600); !errors.Is(err, because) {
			t.Fatal(err)
		}
	}
	if err := (&rate{}).wait(ctx, 1); !errors.Is(err, because) {
		t.Fatal(err)
	}
}

// A copy takes as long as the bound says, not counting the first block.
func TestCopyIsThrottled(t *testing.T) {
	b := newBench(thick(8*blockBytes), thick(8*blockBytes), nil)
	b.rate.bytesPerSecond = 100 * blockBytes
	start := time.Now()
	if err := b.Copy(t.Context(), b.from(), b.to(), nil); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 70*time.Millisecond {
		t.Errorf("8 blocks at 100 a second took %v", took)
	}
}
