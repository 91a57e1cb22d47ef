//go:build vm

package sanity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stateOnTmpfs gives a running driver whose state folder is a small file system of its own.
func stateOnTmpfs(t *testing.T) realCo {
	h := newRealHarness(t).(*realHarness)
	must(t, os.MkdirAll(h.in("state"), 0o700))
	must(t, unix.Mount("tmpfs", h.in("state"), "tmpfs", 0, "size=256k,nr_inodes=64"))
	t.Cleanup(func() {
		if h.Running() {
			h.Kill(t)
		}
		must(t, unix.Unmount(h.in("state"), 0))
	})
	h.Orphans("remove", time.Second)
	h.Start(t)
	return realCo{co{h, t}, h}
}

// onlyTeardowns does what goes on where no record can be written, with the driver started anew in the middle.
func (c realCo) onlyTeardowns(errno syscall.Errno) {
	c.t.Helper()
	c.Target(c.t, "new")
	before := c.World(c.t)
	c.code(c.publishInline("new"), codes.Internal, errno.Error())
	_, err := c.create(c.t.Context(), "new", false)
	c.code(err, codes.Internal, errno.Error())
	if after := c.World(c.t); after != before {
		c.t.Errorf("what may not begin has left something; before:\n%s\nafter:\n%s", before, after)
	}
	must(c.t, c.unpublishInline("one"))
	c.h.Kill(c.t)
	c.h.launch(c.t)
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	_, err = c.h.Identity().Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true)) // ready or not, it serves
	if status.Code(err) == codes.DeadlineExceeded {
		c.t.Error(err)
	}
	must(c.t, c.unpublishInline("two"))
	// A record that could not be removed before the kill is left to the reaper, as the pod goes.
	must(c.t, os.RemoveAll(c.h.in("kubelet/pods/one")))
	must(c.t, os.RemoveAll(c.h.in("kubelet/pods/two")))
}

// case B19: the state folder is full
func TestFullState(t *testing.T) {
	c := stateOnTmpfs(t)
	must(t, c.publishInline("one"))
	must(t, c.publishInline("two"))
	filler := filepath.Join(c.h.in("state"), "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the state folder is not full: %v", err)
	}
	must(t, c.delete(c.mustCreate("full", false))) // its record is a name
	fillers := []string{filler}
	for err := error(nil); err == nil; {
		name := fmt.Sprintf("%s%d", filler, len(fillers))
		if err = os.WriteFile(name, nil, 0o600); err == nil {
			fillers = append(fillers, name)
		}
	}
	c.onlyTeardowns(syscall.ENOSPC)
	for _, name := range fillers {
		must(t, os.Remove(name))
	}
	c.wholeLife()
	c.wantNothing("after the state folder was full")
}

// case B19: the state folder's file system has become read-only, as after an error of its disk
func TestReadOnlyState(t *testing.T) {
	c := stateOnTmpfs(t)
	must(t, c.publishInline("one"))
	must(t, c.publishInline("two"))
	must(t, unix.Mount("", c.h.in("state"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	c.onlyTeardowns(syscall.EROFS)
	must(t, unix.Mount("", c.h.in("state"), "", unix.MS_REMOUNT, ""))
	c.wholeLife()
	c.wantNothing("after the state folder was read-only")
}
