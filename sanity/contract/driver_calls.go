package contract

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// caller makes calls as a CO does, and checks the codes of the answers.
type caller struct {
	Harness
	t    *testing.T
	made map[string]bool // the folders that kubelet would make, and take away again, by itself
}

// with gives the caller for a part of its test.
func (c caller) with(t *testing.T) caller { c.t = t; return c }

// Target implements Harness.
func (c caller) Target(t *testing.T, pod string) string {
	path := c.Harness.Target(t, pod)
	c.made[parent(path)] = true
	return path
}

// Staging implements Harness.
func (c caller) Staging(t *testing.T, volumeName string) string {
	path := c.Harness.Staging(t, volumeName)
	c.made[path] = true
	return path
}

// World implements Harness, without the folders that are kubelet's.
func (c caller) World(t *testing.T) string { return c.withoutKubelets(c.Harness.World(t)) }

func (c caller) withoutKubelets(world string) string {
	var out strings.Builder
	for line := range strings.Lines(world) {
		path, isPath := strings.CutPrefix(line, "path ")
		path, _, _ = strings.Cut(strings.TrimRight(path, "/\n"), " d") // how a folder is marked differs from machine to machine
		if !isPath || !c.kubelets(path) {
			out.WriteString(line)
		}
	}
	return out.String()
}

func (c caller) kubelets(path string) bool {
	for made := range c.made {
		if made == path || strings.HasPrefix(made, path+"/") {
			return true
		}
	}
	return false
}

func parent(path string) string { return path[:strings.LastIndex(path, "/")] }

// pv is a persistent volume as its CO knows it.
type pv struct {
	caller
	id, name, staging string
	capability        *csi.VolumeCapability
	context           map[string]string
	bytes             int64
}

func mountCapability(fs string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func blockCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// withMode gives the capability with another access mode.
func withMode(c *csi.VolumeCapability, m csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessType: c.GetAccessType(), AccessMode: &csi.VolumeCapability_AccessMode{Mode: m}}
}

// ok fails the test unless the call is answered OK.
func (c caller) ok(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("got %v, want OK", err)
	}
}

// code fails the test unless the call is answered with the code, and with a message that holds each of the words.
func (c caller) code(err error, want codes.Code, words ...string) {
	c.t.Helper()
	if got := status.Code(err); got != want {
		c.t.Fatalf("got %v, want code %s", err, want)
	}
	for _, w := range words {
		if !strings.Contains(status.Convert(err).Message(), w) {
			c.t.Fatalf("the message %q does not say %q", status.Convert(err).Message(), w)
		}
	}
}

func (c caller) createRequest(name string, bytes int64, cap *csi.VolumeCapability, params map[string]string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, Parameters: params,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: bytes},
		VolumeCapabilities: []*csi.VolumeCapability{cap},
	}
}

// create makes a volume, and gives it a staging path.
func (c caller) create(name string, bytes int64, cap *csi.VolumeCapability, params map[string]string) pv {
	c.t.Helper()
	var r *csi.CreateVolumeResponse
	c.ok(c.repeat(func() (err error) { // the driver may just be ending what it had to do for the last volume of this name
		r, err = c.Controller().CreateVolume(c.t.Context(), c.createRequest(name, bytes, cap, params))
		return err
	}))
	v := r.GetVolume()
	return pv{
		caller: c, id: v.GetVolumeId(), name: name, staging: c.Staging(c.t, fmt.Sprintf("%x", sha256.Sum256([]byte(name)))),
		capability: cap, context: v.GetVolumeContext(), bytes: v.GetCapacityBytes(),
	}
}

func (v pv) ref() volume.Ref {
	id, err := volume.ParseID(v.id)
	v.ok(err)
	return id.Ref
}

func (v pv) stage() error {
	_, err := v.Node().NodeStageVolume(v.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability, VolumeContext: v.context,
	})
	return err
}

func (v pv) unstage() error {
	_, err := v.Node().NodeUnstageVolume(v.t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

func (v pv) publishAs(target string, cap *csi.VolumeCapability, readOnly bool) error {
	_, err := v.Node().NodePublishVolume(v.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: target, VolumeCapability: cap, VolumeContext: v.context, Readonly: readOnly,
	})
	return err
}

func (v pv) publish(target string) error { return v.publishAs(target, v.capability, false) }

func (v pv) unpublish(target string) error { return v.caller.unpublish(v.id, target) }

func (c caller) unpublish(id, target string) error {
	return c.unpublishWithin(c.t.Context(), id, target)
}

func (c caller) unpublishWithin(ctx context.Context, id, target string) error {
	_, err := c.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

func (v pv) delete() error { return v.caller.delete(v.id) }

func (c caller) delete(id string) error {
	_, err := c.Controller().DeleteVolume(c.t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

// end takes the volume away; everything about it must be unpublished.
func (v pv) end() {
	v.t.Helper()
	v.ok(v.repeat(v.unstage))
	v.ok(v.repeat(v.delete))
}

func (c caller) repeat(call func() error) error { c.t.Helper(); return repeat(c.t, call) }

// eph is an inline volume at a target.
type eph struct {
	caller
	id, target string
	attributes map[string]string
	capability *csi.VolumeCapability
}

func (c caller) inline(pod string) eph {
	return eph{
		caller: c, id: inlineID(pod), target: c.Target(c.t, pod), capability: mountCapability(""),
		attributes: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "64Mi", volume.KeyPodUID: pod},
	}
}

func (e eph) ref() volume.Ref { return volume.Ref{VG: e.VG(), LV: e.id} }

func (e eph) publish() error { return e.publishAs(e.capability, false) }

func (e eph) publishAs(cap *csi.VolumeCapability, readOnly bool) error {
	_, err := e.Node().NodePublishVolume(e.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: e.id, TargetPath: e.target, VolumeContext: e.attributes, VolumeCapability: cap, Readonly: readOnly,
	})
	return err
}

func (e eph) unpublish() error { return e.caller.unpublish(e.id, e.target) }

// there reports whether the logical volume is there.
func (c caller) there(r volume.Ref) bool {
	c.t.Helper()
	_, ok := c.LV(c.t, r)
	return ok
}

// mounted fails the test unless so many mounts are at the path.
func (c caller) mounted(path string, want int) {
	c.t.Helper()
	if at := c.Mounts(c.t, path); len(at) != want {
		c.t.Fatalf("%d mounts at %s, want %d: %+v", len(at), path, want, at)
	}
}

// started gives a caller of a driver that runs, and the world before anything is asked of it.
func started(t *testing.T, h Harness) (c caller, world string) {
	t.Helper()
	h.Start(t)
	c = caller{Harness: h, t: t, made: map[string]bool{}}
	return c, c.World(t)
}

// inlineID gives a volume id as kubelet makes them, csi- and 64 hex digits, for a pod's name.
func inlineID(pod string) string { return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(pod))) }
