package lvm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	guardReady = "ready"
	guardDone  = "done"
)

// Guard is a process beside the driver that resumes devices which the driver has suspended, where the driver cannot: it was killed, and
// nobody may start it for long, or it was stopped. Every writer to such a device would wait until then.
//
// It says that it is ready, and then reads lines. Each names a device, by its device-mapper name and uuid, before it is suspended.
// The last one says that the driver has resumed all. Where the input ends without that, the driver is dead; where it does not come
// within holdBound of the first device, the driver is late. Then each of these devices that is suspended is resumed, each by
// itself, so that one which hangs keeps back no other. Nothing else is touched, and no program is run.
//
// Signals that ask a process to end are for the driver. The kernel is told to leave this process when it looks for one to kill for
// memory (proc(5), oom_score_adj), also where it kills all others of a cgroup (memory.oom.group in Documentation/admin-guide/cgroup-v2);
// without CAP_SYS_RESOURCE it may not be, and dies like others.
func Guard(in io.Reader, out io.Writer) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	if _, err := fmt.Fprintln(out, guardReady); err != nil {
		return err
	}
	g := guard{resume: newDeviceMapper("/sys", "/dev", nil).resumeOwn, bound: holdBound}
	return g.watch(in)
}

// guard is Guard, and what a test puts in its place.
type guard struct {
	resume func(name, uuid string) error
	bound  time.Duration
}

func (g guard) watch(in io.Reader) error {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	}()
	var told []string
	var late <-chan time.Time
	for {
		select {
		case line, more := <-lines:
			if !more {
				return g.resumeAll(told)
			}
			if line == guardDone {
				return nil
			}
			if told = append(told, line); late == nil {
				late = time.After(g.bound)
			}
		case <-late:
			return g.resumeAll(told)
		}
	}
}

func (g guard) resumeAll(told []string) error {
	errs := make([]error, len(told))
	var all sync.WaitGroup
	for i, line := range told {
		all.Go(func() {
			name, uuid, _ := strings.Cut(line, " ")
			errs[i] = g.resume(name, uuid)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// resumeOwn resumes a device if it is suspended, and still the one with this uuid. That somebody was faster, or has removed it, is as good.
func (d deviceMapper) resumeOwn(name, uuid string) error {
	var tried error
	for range 2 {
		s, err := d.status(name)
		if errors.Is(err, volume.ErrNotFound) || err == nil && (s.uuid != uuid || !s.suspended) {
			return nil
		}
		if err != nil {
			return err
		}
		if tried = d.suspend(context.Background(), name, 0); tried == nil {
			return nil
		}
	}
	return tried
}

// companion is a guard that was started; nil: there is none, and none is wanted.
type companion struct{ beside *run.Beside }

// startGuard starts the guard of the configuration.
func (l *LVM) startGuard(ctx context.Context) (*companion, error) {
	if len(l.cfg.Guard) == 0 {
		return nil, nil
	}
	b, err := run.StartBeside(ctx, l.cfg.Guard...)
	if err != nil {
		return nil, fmt.Errorf("start the process that resumes devices where this one is killed: %w", err)
	}
	return &companion{b}, nil
}

// tell names a device that is about to be suspended. An error: the guard is not there, and the device must not be.
func (c *companion) tell(name, uuid string) error {
	if c == nil {
		return nil
	}
	return c.beside.Tell(name + " " + uuid)
}

// end says that all are resumed. Of one that has come too late, or is gone, there is nothing to be said.
func (c *companion) end() {
	if c != nil {
		_ = c.beside.End(guardDone)
	}
}
