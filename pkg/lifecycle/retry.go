package lifecycle

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// late is a volume whose teardown is unfinished.
type late struct {
	tries int
	since time.Time
	timer *time.Timer
	next  time.Time // when the timer is due; zero: there is no next try
	cause string    // of the last failure
	busy  bool      // it is only in use
}

// effectBound ends work that nobody waits for. It is long: programs that change something are never cut off by it.
const effectBound = 30 * time.Minute

// Start takes up what an earlier run of the driver left: every record that wants a teardown is tried at once, and each
// create that was cut off is given back after a grace time unless the CO repeats it. From now on orphans are looked for,
// and suspended devices resumed. It does not wait for any of it.
func (l *Lifecycle) Start() {
	for _, rec := range l.Journal.All() {
		switch rec.Intent {
		case journal.Reclaim:
			l.Log("taking up an unfinished teardown", "volume", rec.VolumeID, "left", l.left(rec.VolumeID))
			l.retryIn(rec.VolumeID, 0)
		case journal.Create:
			l.Log("a create was cut off; what is left of it is removed unless it is repeated",
				"volume", rec.VolumeID, "in", l.Timing.CreateGrace)
			l.retryIn(rec.VolumeID, l.Timing.CreateGrace)
		case journal.Modify:
			l.Log("taking up an unfinished change of mutable parameters", "volume", rec.VolumeID)
			l.retryIn(rec.VolumeID, 0)
		case journal.Reserve:
			l.Log("releasing the metadata snapshot of a thin pool, which an earlier driver reserved", "pool", rec.Ref().String())
			l.retryIn(rec.VolumeID, 0)
		case journal.Publish: // an inline volume in use
		}
	}
	l.keep(l.reap)
	l.keep(l.resume)
	l.keep(l.limit)
}

// Stop begins no more of what the driver does by itself, gives copies up, and waits for what runs, at most until ctx ends.
func (l *Lifecycle) Stop(ctx context.Context) {
	l.retries.mu.Lock()
	l.retries.stopped = true
	for _, e := range l.retries.late {
		e.timer.Stop()
	}
	l.retries.mu.Unlock()
	l.keepers.stop()
	l.StopCopies()
	idle := make(chan struct{})
	go func() {
		l.retries.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// schedule sees to the next try after an error. Waits double, up to a bound that is short while the volume is only in
// use.
func (l *Lifecycle) schedule(volumeID string, cause error, busy bool) {
	bound := l.Timing.FailedRetry
	if busy {
		bound = l.Timing.BusyRetry
	}
	e := l.lateEntry(volumeID)
	l.retries.mu.Lock()
	e.tries++
	e.cause, e.busy = cause.Error(), busy
	wait := min(l.Timing.FirstRetry<<min(e.tries-1, 16), bound)
	first := e.tries == 1
	l.retries.mu.Unlock()
	if first {
		l.Log("a teardown is unfinished and will be carried on", "volume", volumeID, "err", cause, "next", wait)
	}
	l.retryIn(volumeID, wait)
}

// settle sees to it that whatever a record wants done has a next try, however the verb ended that wrote it: with an error, or
// with a panic. Each verb that writes one defers it.
func (l *Lifecycle) settle(volumeID string) {
	rec, ok, err := l.Journal.Get(volumeID)
	if err != nil || !ok || rec.Intent == journal.Publish {
		return
	}
	e := l.lateEntry(volumeID)
	l.retries.mu.Lock()
	none := e.next.IsZero()
	l.retries.mu.Unlock()
	if none {
		l.retryIn(volumeID, l.Timing.FirstRetry)
	}
}

// nextTry tells how long it is until the next try; 0: it is due.
func (l *Lifecycle) nextTry(volumeID string) time.Duration {
	l.retries.mu.Lock()
	defer l.retries.mu.Unlock()
	if e := l.retries.late[volumeID]; e != nil {
		return max(0, time.Until(e.next))
	}
	return 0
}

func (l *Lifecycle) lateEntry(volumeID string) *late {
	l.retries.mu.Lock()
	defer l.retries.mu.Unlock()
	e := l.retries.late[volumeID]
	if e == nil {
		e = &late{since: time.Now(), timer: time.AfterFunc(time.Hour, func() { l.retry(volumeID) })}
		e.timer.Stop()
		l.retries.late[volumeID] = e
	}
	return e
}

func (l *Lifecycle) retryIn(volumeID string, wait time.Duration) {
	e := l.lateEntry(volumeID)
	l.retries.mu.Lock()
	defer l.retries.mu.Unlock()
	if !l.retries.stopped {
		e.next = time.Now().Add(wait)
		e.timer.Reset(wait)
	}
}

// finished forgets that a volume was late.
func (l *Lifecycle) finished(volumeID string) {
	l.retries.mu.Lock()
	e := l.retries.late[volumeID]
	if e != nil {
		e.timer.Stop()
		delete(l.retries.late, volumeID)
	}
	l.retries.mu.Unlock()
	if e != nil && e.tries > 0 {
		l.Log("an unfinished teardown has ended", "volume", volumeID, "tries", e.tries+1, "after", time.Since(e.since).Round(time.Millisecond))
	}
}

// retry is one try to finish what the record of a volume wants gone, under the lock of the volume. A record that a
// later call of the CO has replaced in the meantime is none of its business any more.
func (l *Lifecycle) retry(volumeID string) {
	l.retries.mu.Lock()
	if l.retries.stopped {
		l.retries.mu.Unlock()
		return
	}
	l.retries.running.Add(1)
	l.retries.mu.Unlock()
	defer l.retries.running.Done()

	release, err := l.Locks.Try(volume.LockKey(volumeID), "an earlier teardown")
	if err != nil { // a call is at it, and schedules the next try itself if it must
		l.retryIn(volumeID, l.Timing.FirstRetry)
		return
	}
	defer release()
	defer func() { // a fault of the driver's own stops this volume, and not the driver
		if p := recover(); p != nil {
			l.Log("panic caught", "volume", volumeID, "panic", p, "stack", string(debug.Stack()))
			l.schedule(volumeID, fmt.Errorf("panic: %v", p), false)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), effectBound)
	defer cancel()
	rec, ok, err := l.Journal.Get(volumeID)
	switch {
	case err != nil || !ok || rec.Intent == journal.Publish:
		l.finished(volumeID)
		return
	case rec.Intent == journal.Reclaim:
		err = l.reclaim(ctx, rec, rec.Paths, false)
	case rec.Intent == journal.Modify:
		err = l.finishModify(ctx, rec)
	case rec.Intent == journal.Create:
		err = l.undoCreate(ctx, rec)
	case rec.Intent == journal.Reserve:
		err = l.unreserve(ctx, rec)
	}
	if err != nil {
		l.schedule(volumeID, err, onlyBusy(err))
		return
	}
	if _, left, _ := l.Journal.Get(volumeID); !left {
		l.finished(volumeID)
	}
}
