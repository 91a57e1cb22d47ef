// Package ask asks questions that may never be answered, such as a read of a disk that hangs. Nobody waits for longer than
// a bound, and of each question at most one is open at a time: what hangs costs one goroutine, however often it is asked about.
package ask

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// ErrHung is the error of a question that has not been answered in time.
var ErrHung = errors.New("no answer in time")

// Bound is how long one question waits for its answer. A healthy disk answers within milliseconds; one that sleeps, within
// seconds.
const Bound = 8 * time.Second

// Open are the questions that are open. The zero value is ready for use.
type Open struct {
	Bound time.Duration // 0: the constant Bound

	mu        sync.Mutex
	questions map[string]*question
}

type question struct {
	since  time.Time
	done   chan struct{} // closed when answer is set
	answer any
	err    error
}

func (o *Open) bound() time.Duration {
	if o.Bound == 0 {
		return Bound
	}
	return o.Bound
}

// Ask gives the answer of do. Whoever asks what is being asked already gets the answer to that, so key must say all that do
// depends on. do goes on when nobody waits any more; until it ends, every Ask of the key is ErrHung at once.
// The error is that of do, ErrHung, or that of ctx.
func Ask[T any](ctx context.Context, o *Open, key string, do func() (T, error)) (T, error) {
	var none T
	q := o.join(key, func() (any, error) { return do() })
	runtime.Gosched() // most answers come at once, and then no timer is needed
	select {
	case <-q.done:
		return answered[T](q)
	default:
	}
	limit := time.NewTimer(time.Until(q.since.Add(o.bound())))
	defer limit.Stop()
	select {
	case <-q.done:
		return answered[T](q)
	case <-limit.C:
		return none, fmt.Errorf("%s: %w (%s)", key, ErrHung, o.bound())
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w", key, ctx.Err())
	}
}

func answered[T any](q *question) (answer T, err error) {
	if q.err != nil {
		return answer, q.err
	}
	return q.answer.(T), nil
}

// join gives the open question of the key, or opens it.
func (o *Open) join(key string, do func() (any, error)) *question {
	o.mu.Lock()
	defer o.mu.Unlock()
	if q := o.questions[key]; q != nil {
		return q
	}
	if o.questions == nil {
		o.questions = map[string]*question{}
	}
	q := &question{since: time.Now(), done: make(chan struct{})}
	o.questions[key] = q
	go func() {
		defer func() {
			if p := recover(); p != nil { // it must not end the process, which the catcher of the call would have prevented
				q.err = fmt.Errorf("%s: panic: %v", key, p)
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			delete(o.questions, key)
			close(q.done)
		}()
		q.answer, q.err = do()
	}()
	return q
}

// EachOf is Each of pointers to the items, for a do that writes its answer there.
func EachOf[T any](items []T, atOnce int, do func(*T)) {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	Each(all, atOnce, do)
}

// Each calls do for each item, so many at a time, and returns when all have returned.
func Each[T any](items []T, atOnce int, do func(T)) {
	if len(items) == 1 { // as the devices below most volumes: no goroutine is needed
		do(items[0])
		return
	}
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, item := range items {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			do(item)
		})
	}
	all.Wait()
}
