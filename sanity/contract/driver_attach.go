package contract

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var attachTests = []driverTest{
	{"Attach", attach},
	{"AttachReadOnly", attachReadOnly},
	{"AttachOff", attachOff},
	{"AttachLimit", attachLimit},
}

func (v pv) attachAs(node string, cap *csi.VolumeCapability, readOnly bool) (map[string]string, error) {
	r, err := v.Controller().ControllerPublishVolume(v.t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: v.id, NodeId: node, VolumeCapability: cap, Readonly: readOnly, VolumeContext: v.context,
	})
	return r.GetPublishContext(), err
}

func (v pv) attach() error {
	_, err := v.attachAs(v.NodeName(), v.capability, false)
	return err
}

func (v pv) detach(node string) error {
	_, err := v.Controller().ControllerUnpublishVolume(v.t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: node})
	return err
}

// wantAttached checks what ListVolumes and ControllerGetVolume say.
func (v pv) wantAttached(nodes ...string) {
	v.t.Helper()
	list, err := v.Controller().ListVolumes(v.t.Context(), &csi.ListVolumesRequest{})
	v.ok(err)
	get, err := v.Controller().ControllerGetVolume(v.t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: v.id})
	v.ok(err)
	for _, e := range list.GetEntries() {
		if e.GetVolume().GetVolumeId() == v.id && (e.GetStatus() == nil || !slices.Equal(e.GetStatus().GetPublishedNodeIds(), nodes)) {
			v.t.Fatalf("ListVolumes says %v, want %q", e.GetStatus(), nodes)
		}
	}
	if got := get.GetStatus().GetPublishedNodeIds(); !slices.Equal(got, nodes) {
		v.t.Fatalf("ControllerGetVolume says %q, want %q", got, nodes)
	}
}

func attach(t *testing.T, h Harness) {
	h.Attach(true)
	c, world := started(t, h)
	v, target := c.create("attach", 64<<20, mountCapability(""), nil), c.Target(t, "attach")
	here := h.NodeName()
	made := c.World(t)

	c.code(v.stage(), codes.FailedPrecondition, "ControllerPublishVolume")
	_, err := v.attachAs("", v.capability, false)
	c.code(err, codes.InvalidArgument, "node_id")
	_, err = v.attachAs(here, nil, false)
	c.code(err, codes.InvalidArgument, "volume_capability")
	_, err = v.attachAs(here, blockCapability(), false)
	c.code(err, codes.InvalidArgument, "volume_capability")
	_, err = v.attachAs("elsewhere", v.capability, false)
	c.code(err, codes.NotFound, "elsewhere", here)
	none := v
	none.id = here + "/" + h.VG() + "/none"
	c.code(none.attach(), codes.NotFound)
	c.ok(none.detach(here))
	none.id = "no id of ours"
	c.code(none.attach(), codes.NotFound)
	c.ok(none.detach(""))
	none.id = "other/" + h.VG() + "/x"
	c.code(none.attach(), codes.FailedPrecondition, "other")
	v.wantAttached()
	wantWorld(t, c, made, "after what cannot be published")

	for range 2 {
		c.ok(v.attach())
		v.wantAttached(here)
	}
	_, err = v.attachAs(here, v.capability, true)
	c.code(err, codes.AlreadyExists, "readonly")
	_, err = v.attachAs(here, withMode(v.capability, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER), false)
	c.code(err, codes.AlreadyExists, "SINGLE_NODE_SINGLE_WRITER")
	_, err = v.attachAs("elsewhere", v.capability, false)
	c.code(err, codes.FailedPrecondition, here)
	c.code(v.delete(), codes.FailedPrecondition, here)
	c.ok(v.detach("elsewhere"))
	v.wantAttached(here)

	c.ok(v.stage())
	c.ok(v.publish(target))
	c.code(v.detach(here), codes.FailedPrecondition, v.staging)
	v.wantAttached(here)
	h.Kill(t)
	h.Start(t)
	v.wantAttached(here)
	c.ok(v.publish(target))
	h.Reboot(t, true)
	h.Start(t)
	v.wantAttached(here)
	c.ok(v.stage())
	c.ok(v.publish(target))
	c.ok(c.repeat(func() error { return v.unpublish(target) }))
	c.code(v.detach(""), codes.FailedPrecondition, v.staging)
	c.ok(c.repeat(v.unstage))
	for _, node := range []string{here, here, ""} {
		c.ok(v.detach(node))
		v.wantAttached()
	}
	c.code(v.publish(target), codes.FailedPrecondition)

	// Whoever has it, another node cannot, and this one must not touch it. Only where it is taken away from all is it free.
	f, _ := h.LV(t, v.ref())
	h.DestroyLV(t, v.ref())
	h.MakeLV(t, v.ref(), 64<<20, append(f.Tags, "csi.attached=elsewhere/rw/SINGLE_NODE_WRITER")...)
	v.wantAttached("elsewhere")
	c.code(v.attach(), codes.FailedPrecondition, "elsewhere")
	c.code(v.stage(), codes.FailedPrecondition, "elsewhere")
	c.ok(v.detach(here))
	v.wantAttached("elsewhere")
	c.ok(v.detach(""))
	v.wantAttached()
	h.DestroyLV(t, v.ref())
	h.MakeLV(t, v.ref(), 64<<20, append(f.Tags, "csi.attached=what")...)
	c.code(v.attach(), codes.Internal, "csi.attached=what")
	c.code(v.stage(), codes.Internal, "csi.attached=what")
	c.code(v.delete(), codes.Internal, "csi.attached=what")
	c.code(v.detach(here), codes.Internal, "csi.attached=what")
	c.ok(v.detach(""))
	c.ok(v.attach())
	c.ok(v.detach(""))
	c.ok(v.delete())
	c.ok(v.detach(here))
	wantWorld(t, c, world, "after the volume is deleted")
}

// A volume that is published read-only cannot be written to, whatever the node is asked for.
func attachReadOnly(t *testing.T, h Harness) {
	h.Attach(true)
	c, world := started(t, h)
	for _, cap := range some(1, blockCapability(), mountCapability("")) {
		v, target := c.create("attach", 64<<20, cap, nil), c.Target(t, "attach")
		c.ok(v.attach())
		c.ok(v.stage())
		c.ok(v.unstage())
		c.ok(v.detach(""))
		publish, err := v.attachAs(h.NodeName(), cap, true)
		c.ok(err)
		if publish["readonly"] != "true" {
			t.Errorf("publish_context is %v", publish)
		}
		c.ok(v.stage())
		for range 2 {
			c.ok(v.publish(target))
			if at := c.Mounts(t, target); len(at) != 1 || !at[0].ReadOnly {
				t.Fatalf("published as %+v", at)
			}
		}
		c.ok(c.repeat(func() error { return v.unpublish(target) }))
		c.ok(v.unstage())
		c.ok(v.detach(h.NodeName()))
		c.ok(v.delete())
	}
	wantWorld(t, c, world, "after read-only volumes")
}

// Without the flag there is no ControllerPublishVolume, and no call minds what an earlier driver has recorded; only a
// publish_context is honoured.
func attachOff(t *testing.T, h Harness) {
	h.Attach(true)
	c, world := started(t, h)
	v, target := c.create("attach", 64<<20, mountCapability(""), nil), c.Target(t, "attach")
	c.ok(v.attach())
	h.Stop(t)
	h.Attach(false)
	h.Start(t)
	c.code(v.attach(), codes.Unimplemented)
	c.code(v.detach(""), codes.Unimplemented)
	r, err := h.Controller().ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	c.ok(err)
	if strings.Contains(r.String(), "PUBLISH") {
		t.Errorf("capabilities %v", r)
	}
	v.wantAttachedOff()
	c.ok(v.stage())
	publish := func(value string) error {
		_, err := v.Node().NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: target, VolumeCapability: v.capability, PublishContext: map[string]string{"readonly": value, "other": "x"},
		})
		return err
	}
	c.code(publish("perhaps"), codes.InvalidArgument, "publish_context[readonly]")
	c.ok(publish("true"))
	if at := c.Mounts(t, target); len(at) != 1 || !at[0].ReadOnly {
		t.Fatalf("published as %+v", at)
	}
	c.code(publish("false"), codes.AlreadyExists, "readonly")
	c.ok(c.repeat(func() error { return v.unpublish(target) }))
	v.end()
	wantWorld(t, c, world, "after the volume is deleted")
}

// As many volumes as the node may have, and no more.
func attachLimit(t *testing.T, h Harness) {
	h.Attach(true)
	c, world := started(t, h)
	info, err := h.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	c.ok(err)
	var all []pv
	for range info.GetMaxVolumesPerNode() + 1 {
		all = append(all, c.create(fmt.Sprintf("limit-%d", len(all)), 4<<20, blockCapability(), nil))
	}
	last := all[len(all)-1]
	for _, v := range all[:len(all)-1] {
		c.ok(v.attach())
	}
	c.code(last.attach(), codes.ResourceExhausted, "--max-volumes")
	c.ok(all[0].attach())
	c.ok(all[0].detach(""))
	c.ok(last.attach())
	for _, v := range all {
		c.ok(v.detach(""))
		c.ok(v.delete())
	}
	wantWorld(t, c, world, "after all are deleted")
}

func (v pv) wantAttachedOff() {
	v.t.Helper()
	list, err := v.Controller().ListVolumes(v.t.Context(), &csi.ListVolumesRequest{})
	v.ok(err)
	for _, e := range list.GetEntries() {
		if len(e.GetStatus().GetPublishedNodeIds()) != 0 {
			v.t.Errorf("ListVolumes says %v", e)
		}
	}
}

func (v swept) detachAndTakeBack() error {
	if err := errors.Join(v.unpublish(v.target), v.unstage()); err != nil {
		return err
	}
	if err := v.detach(""); err != nil {
		return err
	}
	return v.delete()
}

// tagged checks whether the logical volume has a tag that begins so.
func (v pv) tagged(prefix string, want bool) error {
	f, _ := v.LV(v.t, v.ref())
	if has := slices.ContainsFunc(f.Tags, func(tag string) bool { return strings.HasPrefix(tag, prefix) }); has != want {
		return fmt.Errorf("the tags are %q; one of %s: %t, want %t", f.Tags, prefix, has, want)
	}
	return nil
}

// attaching and detaching are for the sweep.
func attaching(c caller) act {
	v := c.swept("linear", mountCapability(""))
	return act{
		call:   v.attach,
		verify: func() error { return v.tagged("csi.attached="+c.NodeName()+"/rw/SINGLE_NODE_WRITER", true) },
		undo:   v.detachAndTakeBack,
	}
}

func detaching(c caller) act {
	v := c.swept("linear", mountCapability(""))
	c.ok(v.attach())
	return act{
		call:   func() error { return v.detach("") },
		verify: func() error { return v.tagged("csi.attached=", false) },
		undo:   v.detachAndTakeBack,
	}
}
