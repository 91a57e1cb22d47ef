package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// gate is a handler that says when it has begun, and ends when it is told to.
type gate struct {
	begun chan struct{}
	end   chan error
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan error)} }

func (g *gate) pass(context.Context) error {
	g.begun <- struct{}{}
	return <-g.end
}

// abandon makes a call, and takes its caller away once the handler has begun.
func (g *gate) abandon(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	<-g.begun
	cancel()
	return <-ended
}

// cases B4, B27
func TestSecondCallIsAborted(t *testing.T) {
	g := newGate()
	d := serve(t, &node{publish: g.pass}, nil)
	first := make(chan error, 1)
	go func() {
		_, err := d.NodePublishVolume(t.Context(), publishRequest("n/vg/v"))
		first <- err
	}()
	<-g.begun

	_, err := d.NodePublishVolume(t.Context(), publishRequest("n/vg/v"))
	wantCode(t, err, codes.Aborted)
	if !strings.Contains(fmt.Sprint(err), "NodePublishVolume") {
		t.Errorf("does not name what is under way: %v", err)
	}
	_, err = d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "n/vg/v"})
	wantCode(t, err, codes.Aborted)
	_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v"}) // the same LV
	wantCode(t, err, codes.Aborted)

	other := make(chan error, 1)
	go func() {
		_, err := d.NodePublishVolume(t.Context(), publishRequest("n/vg/other"))
		other <- err
	}()
	<-g.begun // another volume does not wait
	g.end <- nil
	g.end <- nil
	wantCode(t, <-first, codes.OK)
	wantCode(t, <-other, codes.OK)
}

// A delete that meets a create which copies gives that copy up, and is told to ask again. No other call does so.
func TestDeleteInterruptsACopy(t *testing.T) {
	g := newGate()
	var interrupted []string
	copies := true
	d := serve(t, &node{publish: g.pass, interrupt: func(volumeID string) bool {
		interrupted = append(interrupted, volumeID)
		return copies
	}}, nil)
	created := make(chan error, 1)
	go func() {
		_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v"})
		created <- err
	}()
	<-g.begun
	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v"})
	wantCode(t, err, codes.Aborted)
	_, err = d.NodePublishVolume(t.Context(), publishRequest("n/vg/v"))
	wantCode(t, err, codes.Aborted)
	if len(interrupted) != 0 {
		t.Errorf("interrupted %q", interrupted)
	}
	for _, copies = range []bool{true, false} {
		_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "n/vg/v"})
		wantCode(t, err, codes.Aborted)
		if told := strings.Contains(fmt.Sprint(err), "given up"); told != copies {
			t.Errorf("copies: %t, told: %v", copies, err)
		}
	}
	if strings.Join(interrupted, " ") != "n/vg/v n/vg/v" {
		t.Errorf("interrupted %q", interrupted)
	}
	g.end <- nil
	wantCode(t, <-created, codes.OK)
}

// Requests without a volume are wrong: the handlers say so, also side by side.
func TestNoVolumeNoLock(t *testing.T) {
	g := newGate()
	d := serve(t, &node{publish: g.pass}, nil)
	ended := make(chan error, 3)
	go func() {
		_, err := d.NodePublishVolume(t.Context(), publishRequest(""))
		ended <- err
	}()
	go func() {
		_, err := d.NodePublishVolume(t.Context(), nil)
		ended <- err
	}()
	go func() {
		_, err := d.CreateVolume(t.Context(), nil)
		ended <- err
	}()
	for range 3 {
		<-g.begun
	}
	for range 3 {
		g.end <- volume.Invalid("volume_id", "", "missing")
		wantCode(t, <-ended, codes.InvalidArgument)
	}
}

// cases B4, B15: reads may be cancelled, writes finish
func TestWriteOutlivesItsCaller(t *testing.T) {
	for _, c := range []struct {
		name string
		want codes.Code
		stop func(context.Context) (context.Context, context.CancelFunc)
	}{
		{"deadline", codes.DeadlineExceeded, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 300*time.Millisecond)
		}},
		{"cancel", codes.Canceled, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(300*time.Millisecond, cancel)
			return ctx, cancel
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			logCtx, log := logged(t, 2)
			ctx, cancel := c.stop(logCtx)
			defer cancel()
			s := &serialiser{locks: &keylock.Locks{}}
			g := newGate()
			seen := make(chan error, 1)
			_, err := call(ctx, s, csi.Node_NodePublishVolume_FullMethodName, publishRequest("n/vg/v"), func(work context.Context, _ any) (any, error) {
				err := g.pass(work)
				seen <- work.Err()
				return nil, err
			})
			wantCode(t, err, c.want)
			if !strings.Contains(fmt.Sprint(err), "goes on") {
				t.Errorf("does not say that the work goes on: %v", err)
			}
			if _, err := s.locks.Try("v", "test"); !errors.Is(err, volume.ErrPending) {
				t.Fatalf("the volume is free while the handler runs: %v", err)
			}
			g.end <- volume.ErrNoSpace
			if err := <-seen; err != nil {
				t.Errorf("the handler's context has ended: %v", err)
			}
			s.running.Wait()
			release, err := s.locks.Try("v", "test")
			if err != nil {
				t.Fatalf("the volume is not free after the handler has ended: %v", err)
			}
			release()
			if out := log.String(); !strings.Contains(out, "after its caller had left") || !strings.Contains(out, "ResourceExhausted") {
				t.Errorf("the late result is not in the log:\n%s", out)
			}
		})
	}
}

// The same over a socket, where the deadline comes with the call.
func TestDeadlineOverTheWire(t *testing.T) {
	g := newGate()
	d := serve(t, &node{publish: g.pass}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := d.NodePublishVolume(ctx, publishRequest("n/vg/v"))
	wantCode(t, err, codes.DeadlineExceeded)
	_, err = d.NodePublishVolume(t.Context(), publishRequest("n/vg/v"))
	wantCode(t, err, codes.Aborted)
	g.end <- nil
	eventually(t, "the volume is free", func() bool {
		release, err := d.locks.Try("v", "test")
		if err == nil {
			release()
		}
		return err == nil
	})
}

func TestEndedContextBeginsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := call(ctx, &serialiser{locks: &keylock.Locks{}}, csi.Node_NodePublishVolume_FullMethodName, publishRequest("n/vg/v"), func(context.Context, any) (any, error) {
		t.Error("begun")
		return nil, nil
	})
	wantCode(t, err, codes.Canceled)
}

// statfs of a hung file system does not return, and kubelet asks each minute.
func TestHungReadsDoNotPileUp(t *testing.T) {
	g := newGate()
	d := serve(t, &node{stats: g.pass}, nil)
	stats := func(path string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "n/vg/v", VolumePath: path})
			return err
		}
	}
	wantCode(t, g.abandon(t.Context(), stats("/a")), codes.Canceled)
	for range 5 {
		wantCode(t, stats("/a")(t.Context()), codes.Aborted)
	}
	wantCode(t, g.abandon(t.Context(), stats("/b")), codes.Canceled) // of another path nothing is known
	if release, err := d.locks.Try("v", "test"); err != nil {
		t.Errorf("a read holds the volume: %v", err)
	} else {
		release()
	}
	g.end <- nil
	g.end <- nil
	eventually(t, "a path can be asked again", func() bool {
		got := make(chan error, 1)
		go func() { got <- stats("/a")(t.Context()) }()
		select {
		case g.end <- nil:
			return true
		case <-got:
			return false
		}
	})
}

func TestReadContext(t *testing.T) {
	s := &serialiser{locks: &keylock.Locks{}}
	_, err := call(context.Background(), s, csi.Controller_GetCapacity_FullMethodName, &csi.GetCapacityRequest{}, func(ctx context.Context, _ any) (any, error) {
		if d, ok := ctx.Deadline(); !ok || time.Until(d) > readBound {
			t.Errorf("deadline %v %v; a read without one must get one", d, ok)
		}
		return nil, nil
	})
	wantCode(t, err, codes.OK)

	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	told := make(chan struct{})
	_, err = call(ctx, s, csi.Controller_GetCapacity_FullMethodName, &csi.GetCapacityRequest{}, func(ctx context.Context, _ any) (any, error) {
		<-ctx.Done() // a read is told that nobody waits
		close(told)
		return nil, ctx.Err()
	})
	wantCode(t, err, codes.DeadlineExceeded)
	<-told
}

// case B21: the process stays up, and the volume is free
func TestPanic(t *testing.T) {
	calls := 0
	d := serve(t, &node{publish: func(context.Context) error {
		if calls++; calls == 1 {
			panic("secret value")
		}
		return nil
	}}, nil)
	_, err := d.NodePublishVolume(t.Context(), publishRequest("n/vg/v"))
	wantCode(t, err, codes.Internal)
	if strings.Contains(fmt.Sprint(err), "secret value") {
		t.Errorf("the caller gets the panic's value: %v", err)
	}
	_, err = d.NodePublishVolume(t.Context(), publishRequest("n/vg/v"))
	wantCode(t, err, codes.OK)
}

func TestPanicIsLoggedWithItsStack(t *testing.T) {
	ctx, log := logged(t, 0)
	_, err := call(ctx, &serialiser{locks: &keylock.Locks{}}, csi.Node_NodePublishVolume_FullMethodName, publishRequest("n/vg/v"), panicking)
	wantCode(t, err, codes.Internal)
	for _, want := range []string{"on purpose", "serialise_test.go", "rpc.panicking"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, log)
		}
	}
}

func panicking(context.Context, any) (any, error) { panic("on purpose") }

// A method that is not in policies must not reach a handler, for nobody has thought of its lock.
func TestEveryMethodHasAPolicyOrIsNotServed(t *testing.T) {
	d := serve(t, &node{}, nil)
	_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "n/vg/v"})
	wantCode(t, err, codes.Unimplemented)
	known := map[string]bool{}
	for _, s := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.Node_ServiceDesc, csi.SnapshotMetadata_ServiceDesc, csi.GroupController_ServiceDesc} {
		for _, m := range s.Methods {
			known["/"+s.ServiceName+"/"+m.MethodName] = true
		}
		for _, m := range s.Streams {
			known["/"+s.ServiceName+"/"+m.StreamName] = true
		}
	}
	for method, p := range policies {
		switch {
		case !known[method]:
			t.Errorf("%s is no method", method)
		case p.writes && (p.key == nil || p.many != 0), !p.writes && p.many == 0:
			t.Errorf("%s: %+v", method, p)
		}
	}
}
