package ask

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestAnswer(t *testing.T) {
	var o Open
	if got, err := Ask(t.Context(), &o, "k", func() (int, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	failed := errors.New("failed")
	if _, err := Ask(t.Context(), &o, "k", func() (int, error) { return 7, failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if _, err := Ask(t.Context(), &o, "k", func() (int, error) { panic("oh") }); err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("got %v", err)
	}
}

// What hangs costs one goroutine, and its answer is news again when it has come.
func TestHung(t *testing.T) {
	o := Open{Bound: 500 * time.Millisecond}
	release := make(chan struct{})
	var asked atomic.Int32
	hang := func() (int, error) { asked.Add(1); <-release; return 1, nil }
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := Ask(t.Context(), &o, "k", hang); !errors.Is(err, ErrHung) {
				t.Errorf("got %v", err)
			}
		})
	}
	all.Wait()
	start := time.Now()
	if _, err := Ask(t.Context(), &o, "k", hang); !errors.Is(err, ErrHung) || time.Since(start) > 400*time.Millisecond {
		t.Errorf("a question known to hang: %v after %s", err, time.Since(start))
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
	if got, err := Ask(t.Context(), &o, "another", func() (int, error) { return 2, nil }); got != 2 || err != nil {
		t.Errorf("another question: %d, %v", got, err)
	}
	close(release)
	for end := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		got, err := Ask(t.Context(), &o, "k", func() (int, error) { return 3, nil })
		if got == 3 && err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the answer came: %d, %v", got, err)
		}
	}
}

func TestCallerLeaves(t *testing.T) {
	var o Open
	release := make(chan struct{})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ask(ctx, &o, "k", func() (int, error) { <-release; return 1, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestEach(t *testing.T) {
	var now, most, sum atomic.Int32
	Each([]int32{1, 2, 3, 4, 5, 6, 7, 8}, 3, func(n int32) {
		if m := now.Add(1); m > most.Load() {
			most.Store(m)
		}
		<-time.After(time.Millisecond)
		sum.Add(n)
		now.Add(-1)
	})
	if sum.Load() != 36 || most.Load() > 3 {
		t.Errorf("sum %d, %d at a time", sum.Load(), most.Load())
	}
}
