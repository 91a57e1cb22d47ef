package sanity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// co calls the driver as a CO does. Tests that need more than contract.Harness promises are written with it.
type co struct {
	contract.Harness
	t *testing.T
}

func capabilityOf(block bool) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER}}
	if c.AccessType = (&csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}); block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

// create makes a volume of the smallest size there is.
func (c co) create(ctx context.Context, name string, block bool, params ...string) (id string, err error) {
	req := &csi.CreateVolumeRequest{Name: name, Parameters: map[string]string{}, VolumeCapabilities: []*csi.VolumeCapability{capabilityOf(block)},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 32 << 20}}
	for i := 0; i < len(params); i += 2 {
		req.Parameters[params[i]] = params[i+1]
	}
	r, err := c.Controller().CreateVolume(ctx, req)
	return r.GetVolume().GetVolumeId(), err
}

func (c co) mustCreate(name string, block bool, params ...string) (id string) {
	c.t.Helper()
	id, err := c.create(c.t.Context(), name, block, params...)
	must(c.t, err)
	return id
}

func (c co) delete(id string) error {
	_, err := c.Controller().DeleteVolume(c.t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

// staging gives the staging path of a volume.
func (c co) staging(id string) string { return c.Staging(c.t, id[strings.LastIndex(id, "/")+1:]) }

func (c co) stage(id string, block bool) error {
	_, err := c.Node().NodeStageVolume(c.t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: c.staging(id), VolumeCapability: capabilityOf(block)})
	return err
}

func (c co) unstage(id string) error {
	_, err := c.Node().NodeUnstageVolume(c.t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: c.staging(id)})
	return err
}

func (c co) publish(id, target string, block bool) error {
	_, err := c.Node().NodePublishVolume(c.t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: c.staging(id), TargetPath: target, VolumeCapability: capabilityOf(block)})
	return err
}

func (c co) unpublish(ctx context.Context, id, target string) error {
	_, err := c.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

// inlineID gives the id of a pod's inline volume, as kubelet makes them.
func inlineID(pod string) string { return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(pod))) }

func (c co) publishInline(pod string, attributes ...string) error {
	a := map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "32Mi"}
	for i := 0; i < len(attributes); i += 2 {
		a[attributes[i]] = attributes[i+1]
	}
	_, err := c.Node().NodePublishVolume(c.t.Context(), &csi.NodePublishVolumeRequest{VolumeId: inlineID(pod), TargetPath: c.Target(c.t, pod),
		VolumeContext: a, VolumeCapability: capabilityOf(false)})
	return err
}

func (c co) unpublishInline(pod string) error {
	return c.unpublish(c.t.Context(), inlineID(pod), c.Target(c.t, pod))
}

// code fails the test unless the answer has the code, and a message that holds each of the words.
func (c co) code(err error, want codes.Code, words ...string) {
	c.t.Helper()
	if status.Code(err) != want {
		c.t.Fatalf("got %v, want %s", err, want)
	}
	for _, w := range words {
		if !strings.Contains(status.Convert(err).Message(), w) {
			c.t.Fatalf("the message %q does not say %q", status.Convert(err).Message(), w)
		}
	}
}

// repeat calls until the answer is not Aborted any more, which must then be OK.
func (c co) repeat(call func() error) {
	c.t.Helper()
	must(c.t, c.answered(call))
}

// answered gives the answer of the call when nothing else is at its volume: it is asked again while it is Aborted.
func (c co) answered(call func() error) (err error) {
	for end := time.Now().Add(bound); ; <-time.Tick(time.Millisecond) {
		if err = call(); status.Code(err) != codes.Aborted || time.Now().After(end) {
			return err
		}
	}
}

// repeatWhileLocked calls until the answer is not that another operation is under way, as a retry of the driver's own is.
func (c co) repeatWhileLocked(call func() error) (err error) {
	c.t.Helper()
	for end := time.Now().Add(bound); time.Now().Before(end); <-time.Tick(5 * time.Millisecond) {
		if err = call(); !strings.Contains(status.Convert(err).Message(), "under way") {
			break
		}
	}
	return err
}

// repeatWhileFailing calls until the answer is OK.
func (c co) repeatWhileFailing(call func() error) {
	c.t.Helper()
	for end := time.Now().Add(bound); ; <-time.Tick(50 * time.Millisecond) {
		if err := call(); err == nil {
			return
		} else if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}

// wholeLife takes a persistent and an inline volume through all that is done with them. Nothing is left then.
func (c co) wholeLife() {
	c.t.Helper()
	id, target := c.mustCreate("whole", false), c.Target(c.t, "whole")
	must(c.t, c.stage(id, false))
	must(c.t, c.publish(id, target, false))
	must(c.t, c.WriteFile(target+"/f", "x"))
	c.repeat(func() error { return c.unpublish(c.t.Context(), id, target) })
	c.repeat(func() error { return c.unstage(id) })
	c.repeat(func() error { return c.delete(id) })
	must(c.t, c.publishInline("whole"))
	c.repeat(func() error { return c.unpublishInline("whole") })
}

var mountedByKubelet = regexp.MustCompile(`mount \S+/kubernetes\.io[~/]csi/`)

// wantNothing waits until no logical volume of the driver's is left, no mount, and no record.
func (c co) wantNothing(when string) {
	c.t.Helper()
	var world string
	for end := time.Now().Add(bound); time.Now().Before(end); <-time.Tick(20 * time.Millisecond) {
		world = c.World(c.t)
		if !strings.Contains(world, "csi.owner=") && !strings.Contains(world, "journal ") && !mountedByKubelet.MatchString(world) {
			return
		}
	}
	c.t.Fatalf("%s, something is left:\n%s", when, world)
}
