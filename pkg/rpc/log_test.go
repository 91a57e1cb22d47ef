package rpc

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestLogVerbosity(t *testing.T) {
	const publish, probe = csi.Node_NodePublishVolume_FullMethodName, csi.Identity_Probe_FullMethodName
	for _, c := range []struct {
		name      string
		verbosity int
		method    string
		err       error
		lines     int
	}{
		{"success at 1", 1, publish, nil, 0},
		{"success at 2", 2, publish, nil, 1},
		{"failure at 0", 0, publish, volume.ErrBusy, 1},
		{"chatter at 3", 3, probe, nil, 0},
		{"chatter at 4", 4, probe, nil, 1},
		{"failing chatter at 0", 0, probe, volume.ErrPrecondition, 1},
		{"with messages at 5", 5, publish, nil, 2},
	} {
		ctx, log := logged(t, c.verbosity)
		_, err := call(ctx, &serialiser{locks: &keylock.Locks{}}, c.method, publishRequest("n/vg/v"), func(context.Context, any) (any, error) {
			return &csi.NodePublishVolumeResponse{}, c.err
		})
		if (err != nil) != (c.err != nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := strings.Count(log.String(), "\n"); got != c.lines {
			t.Errorf("%s: %d lines, want %d:\n%s", c.name, got, c.lines, log)
		}
	}
}

func TestLogLine(t *testing.T) {
	ctx, log := logged(t, 2)
	long := strings.Repeat("why ", 2000)
	req := &csi.NodePublishVolumeRequest{VolumeId: "n/vg/v", TargetPath: "/pods/t", StagingTargetPath: "/stage"}
	_, err := call(ctx, &serialiser{locks: &keylock.Locks{}}, csi.Node_NodePublishVolume_FullMethodName, req, func(context.Context, any) (any, error) {
		return nil, errors.New(long)
	})
	wantCode(t, err, codes.Internal)
	for _, want := range []string{`method="NodePublishVolume"`, `volume="n/vg/v"`, `target="/pods/t"`, `staging="/stage"`, `code="Internal"`, "request=", "duration=", long} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log:\n%s", want, log)
		}
	}
	if len(err.Error()) > maxMessage+100 {
		t.Errorf("the caller gets %d bytes", len(err.Error()))
	}
}

func TestLogHidesSecrets(t *testing.T) {
	const token = "csi.storage.k8s.io/serviceAccount.tokens"
	req := &csi.NodePublishVolumeRequest{
		VolumeId:      "n/vg/v",
		Secrets:       map[string]string{"password": "hidden-one"},
		VolumeContext: map[string]string{token: "hidden-two", "size": "64Mi"},
		VolumeCapability: &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
			MountFlags: []string{"noatime", "password=hidden-three"},
		}}},
	}
	for _, result := range []error{nil, errors.New("failed")} {
		ctx, log := logged(t, 10)
		_, _ = call(ctx, &serialiser{locks: &keylock.Locks{}}, csi.Node_NodePublishVolume_FullMethodName, req, func(_ context.Context, got any) (any, error) {
			if v := got.(*csi.NodePublishVolumeRequest).VolumeContext[token]; v != "hidden-two" {
				t.Errorf("the handler got %q", v)
			}
			if f := got.(*csi.NodePublishVolumeRequest).VolumeCapability.GetMount().MountFlags[1]; f != "password=hidden-three" {
				t.Errorf("the handler got %q", f)
			}
			return &csi.NodePublishVolumeResponse{}, result
		})
		if strings.Contains(log.String(), "hidden") {
			t.Errorf("a secret is in the log:\n%s", log)
		}
		for _, want := range []string{"64Mi", "***stripped***", token, "noatime", "password="} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("no %s in the log:\n%s", want, log)
			}
		}
	}
}

func TestLogCutsLongIds(t *testing.T) {
	ctx, log := logged(t, 2)
	_, _ = call(ctx, &serialiser{locks: &keylock.Locks{}}, csi.Node_NodePublishVolume_FullMethodName, publishRequest(strings.Repeat("x", 10000)),
		func(context.Context, any) (any, error) { return nil, volume.ErrInvalid })
	if n := len(log.String()); n > 1000 {
		t.Errorf("%d bytes in the log", n)
	}
}
