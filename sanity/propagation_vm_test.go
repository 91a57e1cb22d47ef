//go:build vm

package sanity

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// kubelet's folder lies on another partition and is bound to where kubelet looks for it, and both are shared: each mount
// appears at two paths. case B1 (b)
func TestSharedMounts(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	must(t, os.Mkdir(h.in("data"), 0o755))
	sh(t, "mount", "-t", "tmpfs", "tmpfs", h.in("data"))
	sh(t, "mount", "--make-shared", h.in("data"))
	must(t, os.MkdirAll(h.in("data/kubelet/pods"), 0o755))
	must(t, os.MkdirAll(h.in("data/kubelet/plugins"), 0o755))
	sh(t, "mount", "--bind", h.in("data/kubelet"), h.in("kubelet"))
	alias := func(path string) string { return strings.Replace(path, h.in("kubelet"), h.in("data/kubelet"), 1) }
	mounted := func(path string, want int) {
		t.Helper()
		for _, p := range []string{path, alias(path)} {
			if at := h.Mounts(t, p); len(at) != want {
				t.Fatalf("%d mounts at %s, want %d: %+v", len(at), p, want, at)
			}
		}
	}
	wantCode := func(want codes.Code, err error) {
		t.Helper()
		if status.Code(err) != want {
			t.Fatalf("got %v, want %s", err, want)
		}
	}
	h.Start(t)
	ctx := t.Context()
	for _, c := range []*csi.VolumeCapability{
		{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}},
		{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}},
	} {
		c.AccessMode = &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER}
		made, err := h.Controller().CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "shared", VolumeCapabilities: []*csi.VolumeCapability{c}})
		must(t, err)
		id, staging, target := made.GetVolume().GetVolumeId(), h.Staging(t, "shared"), h.Target(t, "shared")
		publish := func(target string) error {
			_, err := h.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: c})
			return err
		}
		unpublish := func() error {
			_, err := h.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
			return err
		}
		unstage := func() error {
			_, err := h.Node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
			return err
		}
		_, err = h.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: c})
		must(t, err)
		must(t, publish(target)) // the staging path at its other name is no second target
		must(t, publish(target))
		mounted(target, 1)
		wantCode(codes.FailedPrecondition, publish(h.Target(t, "shared-2")))
		wantCode(codes.Aborted, unstage())
		if c.GetMount() != nil {
			must(t, h.WriteFile(alias(target)+"/f", "x"))
			_, release := h.Hold(t, contract.HoldFile, alias(target)+"/f") // through the other path
			wantCode(codes.Aborted, unpublish())
			mounted(target, 1)
			release()
		}
		repeatUntil(t, unpublish)
		mounted(target, 0)
		repeatUntil(t, unstage)
		mounted(staging, 0)
		_, err = h.Controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		must(t, err)
	}
	id, target := "csi-shared", h.Target(t, "shared-inline")
	_, err := h.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: target,
		VolumeContext: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "64Mi"},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}})
	must(t, err)
	mounted(target, 1)
	repeatUntil(t, func() error {
		_, err := h.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
		return err
	})
	mounted(target, 0)
	if _, there := h.LV(t, volume.Ref{VG: realVG, LV: id}); there {
		t.Error("the logical volume is left")
	}
}

// repeatUntil calls until the answer is not Aborted any more, which must then be OK.
func repeatUntil(t *testing.T, call func() error) {
	t.Helper()
	for end := time.Now().Add(bound); ; <-time.Tick(5 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		if status.Code(err) != codes.Aborted || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
