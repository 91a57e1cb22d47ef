package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// metadata is a SnapshotMetadata service whose streams do what the test says.
type metadata struct {
	csi.UnimplementedSnapshotMetadataServer
	allocated func(ctx context.Context, send func() error) error
}

func (m *metadata) GetMetadataAllocated(_ *csi.GetMetadataAllocatedRequest, out csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return m.allocated(out.Context(), func() error { return out.Send(&csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: 1}) })
}

// streams runs a Server with the service until the test ends, or stop is called.
func streams(t *testing.T, m *metadata) (client csi.SnapshotMetadataClient, stop func()) {
	t.Helper()
	path := filepath.Join(shortDir(t), "s")
	l, err := Listen(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s := NewServer(Services{Identity: NewIdentity("d.example", "v1", true, nil), SnapshotMetadata: m, Locks: &keylock.Locks{}})
	go func() { ended <- s.Serve(ctx, t.Context(), l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return csi.NewSnapshotMetadataClient(dial(t, path)), stop
}

// drain gives the number of messages, and how the stream ended.
func drain(t *testing.T, client csi.SnapshotMetadataClient) (n int, err error) {
	t.Helper()
	s, err := client.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: "n/vg/s"})
	for ; err == nil; n++ {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n - 1, err
}

func TestStreamEnds(t *testing.T) {
	var end func() error
	client, _ := streams(t, &metadata{allocated: func(_ context.Context, send func() error) error {
		return errors.Join(send(), send(), end())
	}})
	for _, c := range []struct {
		end  func() error
		want codes.Code
	}{
		{func() error { return nil }, codes.OK},
		{func() error { return fmt.Errorf("snapshot: %w", volume.ErrNotFound) }, codes.NotFound},
		{func() error { return volume.ErrPrecondition }, codes.FailedPrecondition},
		{func() error { return errors.New("other") }, codes.Internal},
		{func() error { panic("secret value") }, codes.Internal}, // case B21
		{func() error { return nil }, codes.OK},
	} {
		end = c.end
		n, err := drain(t, client)
		wantCode(t, err, c.want)
		if n != 2 {
			t.Errorf("%d messages", n)
		}
		if strings.Contains(fmt.Sprint(err), "secret value") {
			t.Errorf("the caller gets the panic's value: %v", err)
		}
	}
	delta, err := client.GetMetadataDelta(t.Context(), &csi.GetMetadataDeltaRequest{})
	if err == nil {
		_, err = delta.Recv()
	}
	wantCode(t, err, codes.Unimplemented) // of the generated code
}

// A stop does not wait for a caller who reads slowly.
func TestStreamEndsWhenTheDriverStops(t *testing.T) {
	begun := make(chan struct{})
	client, stop := streams(t, &metadata{allocated: func(ctx context.Context, send func() error) error {
		err := send()
		close(begun)
		<-ctx.Done()
		return errors.Join(err, ctx.Err())
	}})
	go func() {
		<-begun
		stop()
	}()
	n, err := drain(t, client)
	wantCode(t, err, codes.Unavailable)
	if n != 1 || !strings.Contains(fmt.Sprint(err), "the driver is stopping") {
		t.Errorf("%d messages, %v", n, err)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	const method = csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName
	release, running := make(chan struct{}), make(chan struct{}, 100)
	client, _ := streams(t, &metadata{allocated: func(ctx context.Context, _ func() error) error {
		if d, ok := ctx.Deadline(); !ok || time.Until(d) > streamBound {
			t.Errorf("deadline %v, %v", d, ok)
		}
		running <- struct{}{}
		<-release
		return nil
	}})
	ended := make(chan error)
	for range policies[method].many {
		go func() { _, err := drain(t, client); ended <- err }()
	}
	for range policies[method].many {
		<-running
	}
	_, err := drain(t, client)
	wantCode(t, err, codes.Aborted)
	close(release)
	for range policies[method].many {
		wantCode(t, <-ended, codes.OK)
	}
}

// wire is a stream without a network.
type wire struct {
	grpc.ServerStream
	ctx context.Context
}

func (w wire) Context() context.Context { return w.ctx }
func (w wire) SendMsg(any) error        { return nil }
func (w wire) RecvMsg(m any) error {
	m.(*csi.GetMetadataAllocatedRequest).SnapshotId = "n/vg/s"
	m.(*csi.GetMetadataAllocatedRequest).Secrets = map[string]string{"password": "hidden"}
	return nil
}

func TestStreamLog(t *testing.T) {
	const method = csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName
	for _, c := range []struct {
		verbosity int
		err       error
		want      []string
		lines     int
	}{
		{0, nil, nil, 0},
		{0, volume.ErrNotFound, []string{`method="GetMetadataAllocated"`, `snapshot="n/vg/s"`, `code="NotFound"`, "request=", "duration="}, 1},
		{2, nil, []string{`snapshot="n/vg/s"`, `code="OK"`}, 1},
		{5, nil, []string{"in the handler", "messages=2", "***stripped***"}, 3},
	} {
		ctx, log := logged(t, c.verbosity)
		s, info := newSerialiser(&keylock.Locks{}, nil), &grpc.StreamServerInfo{FullMethod: method}
		err := logger{}.stream(nil, wire{ctx: ctx}, info, func(srv any, in grpc.ServerStream) error {
			return s.interceptStream(srv, in, info, func(_ any, in grpc.ServerStream) error {
				err := errors.Join(in.RecvMsg(&csi.GetMetadataAllocatedRequest{}), in.SendMsg(nil), in.SendMsg(nil))
				klog.FromContext(in.Context()).V(3).Info("in the handler")
				return errors.Join(err, c.err)
			})
		})
		if (status.Code(err) == codes.OK) != (c.err == nil) {
			t.Errorf("ended with %v", err)
		}
		if got := strings.Count(log.String(), "\n"); got != c.lines || strings.Contains(log.String(), "hidden") {
			t.Errorf("at %d: %d lines, want %d:\n%s", c.verbosity, got, c.lines, log)
		}
		for _, want := range c.want {
			if !strings.Contains(log.String(), want) {
				t.Errorf("no %s in the log:\n%s", want, log)
			}
		}
		if c.verbosity == 5 && strings.Count(log.String(), `snapshot="n/vg/s"`) != 3 {
			t.Errorf("not all lines name the snapshot:\n%s", log)
		}
	}
}

func TestUnknownStreamIsNotServed(t *testing.T) {
	info := &grpc.StreamServerInfo{FullMethod: "/csi.v1.SnapshotMetadata/Other"}
	err := newSerialiser(&keylock.Locks{}, nil).interceptStream(nil, wire{ctx: t.Context()}, info, func(any, grpc.ServerStream) error { return nil })
	wantCode(t, statusOf(info.FullMethod, err, "0"), codes.Unimplemented)
}
