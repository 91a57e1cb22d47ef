package contract

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var modifyTests = []driverTest{
	{"Modify", modify},
	{"ModifyRefuses", modifyRefuses},
	{"ModifyThickOrigin", modifyThickOrigin},
	{"ModifyLimits", modifyLimits},
	{"ModifyCreate", modifyCreate},
}

func parameters(kv []string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func (v pv) modify(kv ...string) error {
	_, err := v.Controller().ControllerModifyVolume(v.t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: v.id, MutableParameters: parameters(kv)})
	return err
}

// is checks what LVM holds of a volume, and the tag.
func (v pv) is(tag string, kv ...string) error {
	got, _ := v.Settings(v.t, v.ref())
	for key, want := range parameters(kv) {
		if got[key] != want {
			return fmt.Errorf("%s is %s, want %s", key, got[key], want)
		}
	}
	return v.tagged("csi.mutable="+tag, true)
}

func modify(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("modify", 16<<20, blockCapability(), map[string]string{"type": "raid1"})
	_, devices := h.Settings(t, v.ref())
	c.ok(v.modify(volume.KeyReadAhead, "512"))
	c.ok(v.is("readAhead=512", volume.KeyReadAhead, "512"))
	c.ok(v.modify(volume.KeyMaxRecoveryRate, "2000", volume.KeyMinRecoveryRate, "1000"))
	const rates = "raidMaxRecoveryRate=2000&raidMinRecoveryRate=1000&readAhead=512"
	c.ok(v.is(rates, volume.KeyReadAhead, "512", volume.KeyMinRecoveryRate, "1000", volume.KeyMaxRecoveryRate, "2000"))
	for range 2 {
		c.ok(v.modify(volume.KeyWriteMostly, devices[1], volume.KeyReadAhead, "none"))
		c.ok(v.is("", volume.KeyReadAhead, "none", volume.KeyWriteMostly, devices[1], volume.KeyMinRecoveryRate, "1000"))
	}
	// An earlier driver was killed after the tag, and lost its journal: the same call again makes it so.
	h.Kill(t)
	h.Start(t)
	c.ok(v.modify(volume.KeyWriteMostly, "none", volume.KeyReadAhead, "auto"))
	c.ok(v.is("", volume.KeyReadAhead, "auto", volume.KeyWriteMostly, "none"))
	c.ok(c.create("modify-2", 4<<20, blockCapability(), nil).delete())
	c.ok(v.stage())
	c.ok(v.modify(volume.KeyReadAhead, "256"))
	v.end()
	wantWorld(t, c, world, "after the volume is deleted")
}

// What is refused changes nothing.
func modifyRefuses(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("modify", 16<<20, mountCapability(""), nil)
	c.ok(v.modify(volume.KeyReadAhead, "512"))
	before := c.World(t)
	for key, value := range map[string]string{
		"colour": "red", volume.KeyReadAhead: "7", volume.KeyWriteMostly: "/dev/sda", volume.KeyMinRecoveryRate: "1", volume.KeyReadBytes: "1", "thinDiscards": "passdown",
	} {
		c.code(v.modify(volume.KeyReadAhead, "1024", key, value), codes.InvalidArgument, "mutable_parameters")
		c.code(v.modify(key, value), codes.InvalidArgument, "mutable_parameters["+key+"]")
		r, err := h.Controller().ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: v.id, VolumeCapabilities: []*csi.VolumeCapability{v.capability}, MutableParameters: map[string]string{key: value}})
		c.ok(err)
		if r.GetConfirmed() != nil || !strings.Contains(r.GetMessage(), key) {
			t.Errorf("%s=%s: %v", key, value, r)
		}
	}
	c.code(v.modify(), codes.InvalidArgument, "mutable_parameters")
	none := v
	none.id = h.NodeName() + "/" + h.VG() + "/none"
	c.code(none.modify(volume.KeyReadAhead, "512"), codes.NotFound)
	none.id = ""
	c.code(none.modify(volume.KeyReadAhead, "512"), codes.InvalidArgument, "volume_id")
	if after := c.World(t); after != before {
		t.Errorf("the world has changed:%s", difference(before, after))
	}
	c.ok(v.is("readAhead=512", volume.KeyReadAhead, "512"))
	c.ok(v.delete())
	raid := c.create("raid", 16<<20, mountCapability(""), map[string]string{"type": "raid1"})
	c.code(raid.modify(volume.KeyWriteMostly, "/dev/none"), codes.InvalidArgument, "/dev/none")
	c.ok(raid.modify(volume.KeyMaxRecoveryRate, "10"))
	c.code(raid.modify(volume.KeyMinRecoveryRate, "11"), codes.InvalidArgument, volume.KeyMinRecoveryRate, "10")
	c.ok(raid.delete())
	wantWorld(t, c, world, "after the volumes are deleted")
}

// LVM does not change the read-ahead of a volume that has thick snapshots. All else about it can be changed.
func modifyThickOrigin(t *testing.T, h Harness) {
	c, world := started(t, h)
	v := c.create("origin", 16<<20, mountCapability(""), layout(c, "linear"))
	c.ok(v.modify(volume.KeyReadAhead, "512"))
	snapshot := c.snapshot("thick", v.id).GetSnapshotId()
	before := c.World(t)
	c.code(v.modify(volume.KeyReadAhead, "1024"), codes.FailedPrecondition, "snapshots")
	c.code(v.modify(volume.KeyReadAhead, "auto", volume.KeyReadOps, "100"), codes.FailedPrecondition, "snapshots")
	if after := c.World(t); after != before {
		t.Errorf("the world has changed:%s", difference(before, after))
	}
	c.ok(v.modify(volume.KeyReadOps, "100"))
	c.ok(v.modify(volume.KeyReadAhead, "512"))
	c.ok(v.is("readAhead=512&readOpsPerSecond=100", volume.KeyReadAhead, "512"))
	c.ok(c.deleteSnapshot(snapshot))
	c.ok(v.modify(volume.KeyReadAhead, "1024"))
	c.ok(v.is("readAhead=1024&readOpsPerSecond=100", volume.KeyReadAhead, "1024"))
	c.ok(v.delete())
	wantWorld(t, c, world, "after the volume is deleted")
}

func modifyLimits(t *testing.T, h Harness) {
	c, world := started(t, h)
	v, target := c.create("limits", 16<<20, mountCapability(""), nil), c.Target(t, "limited")
	want := func(l volume.IOLimits) {
		t.Helper()
		if got := h.PodLimits(t, "limited", v.ref()); got != l {
			t.Fatalf("the pod is limited to %+v, want %+v", got, l)
		}
	}
	c.ok(v.modify(volume.KeyReadBytes, "1Mi", volume.KeyWriteOps, "100"))
	c.ok(v.stage())
	staged := c.World(t)
	h.AddPod(t, "another", true) // kubelet's cgroup is there, and that of this pod is not
	h.DropPod(t, "another")
	c.code(v.publish(target), codes.FailedPrecondition, "limited")
	h.AddPod(t, "limited", false)
	c.code(v.publish(target), codes.FailedPrecondition, "io")
	h.DropPod(t, "limited")
	wantWorld(t, c, staged, "after a publish without limits was refused")

	h.AddPod(t, "limited", true)
	c.ok(v.publish(target))
	want(volume.IOLimits{ReadBytes: 1 << 20, WriteOps: 100})
	c.ok(v.modify(volume.KeyReadBytes, "2Mi", volume.KeyWriteBytes, "1Mi"))
	want(volume.IOLimits{ReadBytes: 2 << 20, WriteBytes: 1 << 20, WriteOps: 100})
	c.ok(v.modify(volume.KeyReadAhead, "64"))
	want(volume.IOLimits{ReadBytes: 2 << 20, WriteBytes: 1 << 20, WriteOps: 100})

	// The cgroup lost them, as when somebody else writes it: a start and a publish make them again.
	h.DropPod(t, "limited")
	h.AddPod(t, "limited", true)
	want(volume.IOLimits{})
	c.ok(v.publish(target))
	want(volume.IOLimits{ReadBytes: 2 << 20, WriteBytes: 1 << 20, WriteOps: 100})
	h.Kill(t)
	h.DropPod(t, "limited")
	h.AddPod(t, "limited", true)
	h.Start(t)
	until(func() bool { return h.PodLimits(t, "limited", v.ref()).WriteOps == 100 })
	want(volume.IOLimits{ReadBytes: 2 << 20, WriteBytes: 1 << 20, WriteOps: 100})

	// A pod that is limited nowhere: what cannot be had is refused before anything is changed. One that has ended does no harm.
	h.DropPod(t, "limited")
	h.AddPod(t, "limited", false)
	c.code(v.modify(volume.KeyReadBytes, "3Mi", volume.KeyReadAhead, "128"), codes.FailedPrecondition, "limited")
	c.ok(v.is("readAhead=64", volume.KeyReadAhead, "64"))
	c.ok(v.modify(volume.KeyReadBytes, "max", volume.KeyWriteBytes, "max", volume.KeyWriteOps, "max"))
	h.DropPod(t, "limited")
	h.AddPod(t, "another", true)
	c.ok(v.modify(volume.KeyReadBytes, "3Mi"))
	h.DropPod(t, "another")
	c.ok(c.repeat(func() error { return v.unpublish(target) }))
	v.end()

	// No limit can be had anywhere.
	v = c.create("limits", 16<<20, mountCapability(""), nil)
	c.ok(v.modify(volume.KeyReadBytes, "max"))
	c.ok(v.stage())
	c.ok(v.publish(target))
	c.ok(c.repeat(func() error { return v.unpublish(target) }))
	v.end()
	wantWorld(t, c, world, "after the volume is deleted")
}

func modifyCreate(t *testing.T, h Harness) {
	c, world := started(t, h)
	create := func(kv ...string) (pv, error) {
		r := c.createRequest("mutable", 16<<20, mountCapability(""), nil)
		r.MutableParameters = parameters(kv)
		answer, err := h.Controller().CreateVolume(t.Context(), r)
		return pv{caller: c, id: answer.GetVolume().GetVolumeId()}, err
	}
	_, err := create("colour", "red")
	c.code(err, codes.InvalidArgument, "mutable_parameters[colour]", volume.KeyReadAhead)
	_, err = create(volume.KeyWriteMostly, "/dev/sda")
	c.code(err, codes.InvalidArgument, "linear")
	var v pv
	for range 2 {
		v, err = create(volume.KeyReadAhead, "0512", volume.KeyReadOps, "7")
		c.ok(err)
		c.ok(v.is("readAhead=512&readOpsPerSecond=7", volume.KeyReadAhead, "512"))
	}
	_, err = create(volume.KeyReadAhead, "1024")
	c.code(err, codes.AlreadyExists, "readAhead=1024")
	_, err = create()
	c.code(err, codes.AlreadyExists)
	c.ok(v.delete())
	wantWorld(t, c, world, "after the volume is deleted")
}

func creatingMutable(c caller) act {
	a := creating("linear")(c)
	req := c.createRequest("swept", 16<<20, blockCapability(), layout(c, "linear"))
	req.MutableParameters = map[string]string{volume.KeyReadAhead: "512"}
	a.call = func() error { _, err := c.Controller().CreateVolume(c.t.Context(), req); return err }
	made := a.verify
	a.verify = func() error {
		got, _ := c.Settings(c.t, volume.Ref{VG: c.VG(), LV: "swept"})
		if err := made(); err != nil || got[volume.KeyReadAhead] != "512" {
			return fmt.Errorf("%v; read-ahead is %s", err, got[volume.KeyReadAhead]) //nolint:errorlint // a test's message
		}
		return nil
	}
	return a
}

func modifying(published bool) func(c caller) act {
	return func(c caller) act {
		v := c.swept("linear", mountCapability(""))
		v.fill()
		kv := []string{volume.KeyReadAhead, "512"}
		var want volume.IOLimits
		if published {
			c.AddPod(c.t, "swept", true)
			c.ok(v.publish(v.target))
			kv, want = append(kv, volume.KeyWriteOps, "9"), volume.IOLimits{WriteOps: 9}
		}
		return act{
			call: func() error { return v.modify(kv...) },
			verify: func() error {
				if got := c.PodLimits(c.t, "swept", v.ref()); got != want {
					return fmt.Errorf("the pod is limited to %+v, want %+v", got, want)
				}
				return errors.Join(v.is("readAhead=512", volume.KeyReadAhead, "512"), v.holds())
			},
			undo: v.takeBack,
		}
	}
}

func publishingLimited(c caller) act {
	v := c.swept("linear", mountCapability(""))
	v.fill()
	c.ok(v.modify(volume.KeyWriteOps, "9"))
	c.AddPod(c.t, "swept", true)
	return act{
		call: func() error { return v.publish(v.target) },
		verify: func() error {
			if got := c.PodLimits(c.t, "swept", v.ref()); got.WriteOps != 9 {
				return fmt.Errorf("the pod is limited to %+v", got)
			}
			return errors.Join(c.visible(v.target, 1), v.holds())
		},
		undo: v.takeBack,
	}
}
