package lifecycle

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// keepers is what the driver does by itself from start to stop, besides the retries.
type keepers struct {
	stopped chan struct{}
	stop    func() // closes stopped

	met    chan struct{} // somebody met a suspended device
	mu     sync.Mutex
	failed error // why devices of ours stay suspended; nil: none does, or it was not tried yet
}

func newKeepers() keepers {
	stopped := make(chan struct{})
	return keepers{stopped: stopped, stop: sync.OnceFunc(func() { close(stopped) }), met: make(chan struct{}, 1)}
}

// keep runs a keeper until Stop.
func (l *Lifecycle) keep(run func(stop <-chan struct{})) {
	l.retries.mu.Lock()
	defer l.retries.mu.Unlock()
	if !l.retries.stopped {
		l.retries.running.Go(func() { run(l.keepers.stopped) })
	}
}

// safely keeps a fault of the driver's own from ending it.
func (l *Lifecycle) safely(what string, do func()) {
	defer func() {
		if p := recover(); p != nil {
			l.Log("panic caught", "in", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	do()
}

// errSuspended is a suspended device that is about to be resumed: pending, and asked for again as what is busy is.
var errSuspended = fmt.Errorf("%w: its device is suspended", volume.ErrPending)

// suspended makes the error of a suspended device: errSuspended where the driver is about to resume it by itself. An LVM command
// suspends a device for a moment while it changes it; if it is killed then, the device stays so.
func (l *Lifecycle) suspended(r volume.Ref, d volume.Device) error {
	select {
	case l.keepers.met <- struct{}{}:
	default:
	}
	l.keepers.mu.Lock()
	failed := l.keepers.failed
	l.keepers.mu.Unlock()
	if failed != nil {
		return fmt.Errorf("device %s of logical volume %s is suspended, and is not touched, since that would hang; the driver could not resume it: %v; "+
			"see dmsetup info, and then: lvchange --refresh %s", d, r, failed, r)
	}
	return fmt.Errorf("%w, and is not touched, since that would hang: device %s of logical volume %s; an LVM command is at it, or was killed; "+
		"the driver resumes it by itself", errSuspended, d, r)
}

// resume resumes what killed LVM commands left suspended, until stop is closed: at once, and when somebody meets a suspended
// device, and every minute, because the suspended one may be below others and stop somebody else.
func (l *Lifecycle) resume(stop <-chan struct{}) {
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	for {
		l.safely("resume", l.resumeOnce)
		select {
		case <-stop:
			return
		case <-every.C:
		case <-l.keepers.met:
			select { // most often an LVM command that runs is about to resume it
			case <-stop:
				return
			case <-time.After(l.Timing.FirstRetry):
			}
		}
	}
}

func (l *Lifecycle) resumeOnce() {
	ctx, cancel := context.WithTimeout(context.Background(), effectBound)
	defer cancel()
	resumed, err := l.LVM.Resume(ctx)
	for _, r := range resumed {
		l.Log("resumed a logical volume that was left suspended", "lv", r.String())
	}
	l.keepers.mu.Lock()
	news := err != nil && (l.keepers.failed == nil || l.keepers.failed.Error() != err.Error())
	l.keepers.failed = err
	l.keepers.mu.Unlock()
	if news {
		l.Log("devices stay suspended", "err", err)
	}
}
