package contract

import (
	"context"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Volumes whose content is copied, because LVM has no other way: onto another layout, another pool, another group.
var copyTests = []driverTest{
	{"CopiedVolumes", driverCopies},
	{"CopyGivenUpForADelete", copyDeleted},
	{"CopyGivenUpForAStop", copyStopped},
	{"CopyKilled", copyKilled},
}

// copying is a CreateVolume that has to copy.
type copying struct {
	caller
	req *csi.CreateVolumeRequest
}

func (c caller) copying(name string, bytes int64, cap *csi.VolumeCapability, kind string, from *csi.VolumeContentSource) copying {
	req := c.createRequest(name, bytes, cap, layout(c, kind))
	req.VolumeContentSource = from
	return copying{c, req}
}

func (k copying) ref() volume.Ref { return volume.Ref{VG: k.VG(), LV: k.req.GetName()} }

func (k copying) create() error {
	_, err := k.Controller().CreateVolume(k.t.Context(), k.req)
	return err
}

// volume gives the volume, which must be made, or be there.
func (k copying) volume() pv {
	k.t.Helper()
	var r *csi.CreateVolumeResponse
	k.ok(k.repeat(func() (err error) {
		r, err = k.Controller().CreateVolume(k.t.Context(), k.req)
		return err
	}))
	v := r.GetVolume()
	if fmt.Sprint(v.GetContentSource()) != fmt.Sprint(k.req.GetVolumeContentSource()) || v.GetCapacityBytes() < k.req.GetCapacityRange().GetRequiredBytes() {
		k.t.Errorf("CreateVolume gives %v, asked for is %v", v, k.req)
	}
	return pv{
		caller: k.caller, id: v.GetVolumeId(), name: k.req.GetName(), staging: k.Staging(k.t, k.req.GetName()),
		capability: k.req.GetVolumeCapabilities()[0], context: v.GetVolumeContext(), bytes: v.GetCapacityBytes(),
	}
}

// temporary is the snapshot that is copied from.
func (k copying) temporary() volume.Ref {
	return volume.Ref{VG: k.VG(), LV: volume.TemporaryLV(k.req.GetName())}
}

// Of a file system in use, with what is in it, onto another layout and a larger size: it is mounted beside its origin, and grown.
// case B46, case B50
func driverCopies(t *testing.T, h Harness) {
	c, _ := started(t, h)
	type copyCase struct {
		from, to, fs string
		snapshot     bool
	}
	for _, k := range some(3,
		copyCase{"thin", "linear", "xfs", true}, copyCase{"linear", "thin", "ext4", false}, copyCase{"thin", "raid1", "btrfs", false},
		copyCase{"linear", "linear", "xfs", true}, copyCase{"linear", "striped", "ext4", true}, copyCase{"thin", "linear", "ext4", false},
	) {
		t.Run(fmt.Sprintf("%s to %s, %s", k.from, k.to, k.fs), func(t *testing.T) {
			c := c.with(t)
			const bytes = 320 << 20 // XFS takes no less than 300 MiB
			before := c.World(t)
			v := c.create("source", bytes, mountCapability(k.fs), layout(c, k.from))
			c.ok(v.stage())
			c.ok(c.WriteFile(v.staging+"/data", written))
			from := ofVolume(v.id)
			var snapshot string
			if k.snapshot {
				snapshot = c.snapshot("snap", v.id).GetSnapshotId()
				from = ofSnapshot(snapshot)
				c.ok(c.WriteFile(v.staging+"/data", "later"))
			}
			commands := c.Commands(t)
			copied := c.copying("copied", bytes+64<<20, mountCapability(k.fs), k.to, from).volume()
			want := map[string]int{"lvcreate": 2, "lvremove": 1, "lvchange": 1}
			if k.snapshot && k.from == "linear" { // is still by itself
				want = map[string]int{"lvcreate": 1, "lvchange": 1}
			}
			c.wantRuns(commands, want)
			c.ok(copied.stage())
			if got, err := c.ReadFile(copied.staging + "/data"); err != nil || got != written {
				t.Errorf("the copy holds %q, %v", got, err)
			}
			s, err := c.Node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: copied.id, VolumePath: copied.staging})
			if c.ok(err); s.GetUsage()[0].GetTotal() < bytes {
				t.Errorf("its file system was not grown: %v", s.GetUsage())
			}
			c.ok(c.WriteFile(copied.staging+"/data", "its own"))
			if got, err := c.ReadFile(v.staging + "/data"); err != nil || got == "its own" {
				t.Errorf("the source holds %q, %v", got, err)
			}
			c.ok(copied.unstage())
			c.ok(copied.delete())
			if k.snapshot {
				c.ok(c.deleteSnapshot(snapshot))
			}
			c.ok(v.unstage())
			c.ok(v.delete())
			wantWorld(t, c, before, "at the end")
		})
	}
}

// begun makes a source, and a CreateVolume that copies it and does not get on until release is called.
func (c caller) begun(from, to string) (k copying, source pv, answer chan error, release func()) {
	c.t.Helper()
	source = c.create("source", 16<<20, blockCapability(), layout(c, from))
	c.ok(source.stage())
	c.ok(c.WriteFile(source.staging+"/csi-local-lvm-device", written))
	c.ok(source.unstage())
	k = c.copying("copied", 16<<20, blockCapability(), to, ofVolume(source.id))
	entered, release := c.Block(c.t, "copy")
	answer = make(chan error, 1)
	go func() { answer <- k.create() }()
	<-entered
	if !c.there(k.ref()) || !c.there(k.temporary()) {
		c.t.Error("while it copies, there is no volume, or nothing it copies from")
	}
	return k, source, answer, release
}

// whole checks that the volume holds what the source held, and takes both away.
func (k copying) whole(source pv, before string) {
	k.t.Helper()
	v := k.volume()
	k.ok(v.stage())
	if got, err := k.ReadFile(v.staging + "/csi-local-lvm-device"); err != nil || len(got) < len(written) || got[:len(written)] != written {
		k.t.Errorf("the copy holds %.20q, %v", got, err)
	}
	k.ok(v.unstage())
	k.ok(v.delete())
	k.ok(source.delete())
	wantWorld(k.t, k.caller, before, "at the end")
}

// DeleteVolume does not wait for a copy: it is given up, and nothing of it stays.
func copyDeleted(t *testing.T, h Harness) {
	c, before := started(t, h)
	k, source, answer, release := c.begun("thin", "linear")
	between := volume.ID{Node: c.NodeName(), Ref: k.ref()}.String()
	c.code(k.create(), codes.Aborted)
	c.code(c.delete(between), codes.Aborted, "given up")
	release()
	c.code(<-answer, codes.Aborted, "deleted")
	c.ok(c.inTheEnd(func(context.Context) error { return c.delete(between) }))
	if c.there(k.ref()) || c.there(k.temporary()) {
		t.Error("something of it is left")
	}
	k.whole(source, before)
}

// A stop does not wait for a copy, either. The repeated call begins it anew.
func copyStopped(t *testing.T, h Harness) {
	c, before := started(t, h)
	k, source, answer, release := c.begun("linear", "thin")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.Stop(t)
	}()
	if !until(func() bool { return refused(c) }) { // it is being stopped
		t.Fatal("the driver takes calls")
	}
	release()
	<-stopped
	if err := <-answer; status.Code(err) == codes.OK {
		t.Error("a copy that was given up is answered OK")
	}
	c.Start(t)
	k.whole(source, before)
}

// refused reports whether the driver takes no more calls.
func refused(c caller) bool {
	_, err := c.Identity().Probe(c.t.Context(), &csi.ProbeRequest{})
	return status.Code(err) == codes.Unavailable
}

// What is half copied when the driver is killed is handed out to nobody: the repeated call begins anew, and without one it is removed.
func copyKilled(t *testing.T, h Harness) {
	h.Orphans("remove", Grace)
	c, before := started(t, h)
	for _, repeated := range []bool{true, false} {
		k, source, answer, release := c.begun("thin", "linear")
		c.Kill(t)
		if err := <-answer; err == nil {
			t.Error("a call of a killed driver is answered OK")
		}
		release()
		c.Start(t)
		if repeated {
			k.whole(source, before)
			continue
		}
		if !until(func() bool { return !c.there(k.ref()) && !c.there(k.temporary()) }) {
			t.Error("what was half copied is left")
		}
		c.ok(source.delete())
		wantWorld(t, c, before, "without a repeated call")
	}
}
