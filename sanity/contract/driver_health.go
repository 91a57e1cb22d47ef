package contract

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What Machine.Harm does to a volume.
const (
	HarmDisks      = "disks fail"                 // all that it lies on
	HarmLeg        = "a leg of its RAID fails"    // and comes back
	HarmPool       = "its thin pool fills up"     // to nine tenths, with what is written into the volume
	HarmSnapshot   = "a snapshot of it overflows" // of the name SnapshotOf gives
	HarmErrors     = "its file system finds errors"
	HarmReadOnly   = "its file system goes read-only"
	HarmShutdown   = "its file system shuts down"
	HarmSuspended  = "its device is suspended"
	HarmForgotten  = "LVM forgets it" // it is not in the metadata any more, while it is mounted
	HarmErrorTable = "its device is taken away"
)

// SnapshotOf names the snapshot that HarmSnapshot makes.
func SnapshotOf(r volume.Ref) volume.Ref { return volume.Ref{VG: r.VG, LV: r.LV + "-snap"} }

var healthTests = []driverTest{
	{"Health", func(t *testing.T, h Harness) {
		c, world := started(t, h)
		healthAnswers(t, c, world)
		healthOf(t, c, HarmErrors, HarmPool, HarmErrorTable)
	}},
	{"HealthOfDisks", harmsOf(HarmDisks, HarmLeg, HarmForgotten)},
	{"HealthOfDevices", harmsOf(HarmSnapshot, HarmSuspended)},
	{"HealthOfFilesystems", harmsOf(HarmReadOnly, HarmShutdown)},
}

// Patience with what LVM and the kernel notice by and by.
const healthPatience = 40 * time.Second

// smallPool is a thin pool that HarmPool can fill in a moment.
const (
	smallPool      = "small"
	smallPoolBytes = 64 << 20
)

// ailment is what a harm must come to.
type ailment struct {
	block   bool
	fs      string
	bytes   int64
	params  map[string]string
	volume  condition
	storage condition // zero: it is no matter of the storage
	remount bool      // it takes an end of all pods to mend it
}

type condition struct {
	status health.Status
	reason health.Reason
}

var ailments = map[string]ailment{
	HarmDisks:      {block: true, volume: condition{health.Inaccessible, health.DiskMissing}, storage: condition{health.Degraded, health.DiskMissing}},
	HarmLeg:        {block: true, params: map[string]string{"type": "raid1"}, volume: condition{health.Degraded, health.RaidDegraded}, storage: condition{health.Degraded, health.DiskMissing}},
	HarmPool:       {block: true, bytes: smallPoolBytes, params: map[string]string{"type": "thin", "thinPool": smallPool}, volume: condition{health.Degraded, health.ThinPoolNearlyFull}, storage: condition{health.Degraded, health.ThinPoolNearlyFull}},
	HarmSnapshot:   {block: true, volume: condition{health.Degraded, health.SnapshotLost}, storage: condition{health.Degraded, health.SnapshotLost}},
	HarmErrors:     {volume: condition{health.Degraded, health.FilesystemErrors}, remount: true},
	HarmReadOnly:   {volume: condition{health.Inaccessible, health.FilesystemReadOnly}, remount: true},
	HarmShutdown:   {fs: "xfs", bytes: 300 << 20, volume: condition{health.Inaccessible, health.FilesystemShutdown}, remount: true},
	HarmSuspended:  {volume: condition{health.Inaccessible, health.DeviceSuspended}},
	HarmForgotten:  {volume: condition{health.DataLoss, health.VolumeGone}},
	HarmErrorTable: {block: true, volume: condition{health.Inaccessible, health.DeviceGone}},
}

func harmsOf(harms ...string) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		c, _ := started(t, h)
		healthOf(t, c, harms...)
	}
}

// healthOf does each of the harms to a published volume, and mends it.
func healthOf(t *testing.T, c caller, harms ...string) {
	if slices.Contains(harms, HarmPool) {
		c.MakePool(t, smallPool, smallPoolBytes)
	}
	for i, harm := range harms {
		t.Run(harm, func(t *testing.T) { ailing(t, c.with(t), fmt.Sprintf("ill-%d", i), harm) })
	}
}

func ailing(t *testing.T, c caller, name, harm string) {
	a := ailments[harm]
	bytes := a.bytes
	if bytes == 0 {
		bytes = 32 << 20
	}
	capability := mountCapability(a.fs)
	if a.block {
		capability = blockCapability()
	}
	v, target := c.create(name, bytes, capability, a.params), c.Target(t, name)
	c.ok(v.stage())
	c.ok(v.publish(target))
	v.well(target, "before any harm")
	mend := c.Harm(t, harm, v.ref(), target)
	v.ill(target, a)
	if harm == HarmSnapshot {
		r, err := c.Controller().ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: volume.ID{Node: c.NodeName(), Ref: SnapshotOf(v.ref())}.String()})
		c.ok(err)
		if !has(r.GetVolumeHealth(), condition{health.DataLoss, health.SnapshotLost}) {
			t.Errorf("of the snapshot itself: %v", r)
		}
	}
	if a.remount {
		c.ok(c.repeat(func() error { return v.unpublish(target) }))
		c.ok(c.repeat(v.unstage))
	}
	mend()
	if a.remount {
		c.ok(v.stage())
		c.ok(v.publish(target))
	}
	v.well(target, "mended")
	c.ok(c.repeat(func() error { return v.unpublish(target) }))
	v.end()
}

var volumeStatuses = map[health.Status]csi.VolumeHealthErrorType{
	health.Degraded: csi.VolumeHealthErrorType_DEGRADED, health.Inaccessible: csi.VolumeHealthErrorType_INACCESSIBLE, health.DataLoss: csi.VolumeHealthErrorType_DATA_LOSS,
}

func has(h *csi.VolumeHealth, want condition) bool {
	return slices.ContainsFunc(h.GetHealthStatuses(), func(e *csi.VolumeHealth_VolumeHealthEntry) bool {
		return e.GetStatus() == volumeStatuses[want.status] && e.GetReason() == string(want.reason)
	})
}

// answers are what the four calls say of a volume.
type answers struct {
	node, controller, listed *csi.VolumeHealth
	storage                  []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
}

func (a answers) String() string {
	return fmt.Sprintf("\nnode %v\ncontroller %v\nlisted %v\nstorage %v", a.node, a.controller, a.listed, a.storage)
}

func (v pv) health(target string) (a answers) {
	v.t.Helper()
	n, err := v.Node().NodeGetVolumeHealth(v.t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id, VolumePublishPath: target, StagingTargetPath: v.staging})
	v.ok(err)
	g, err := v.Controller().ControllerGetVolumeHealth(v.t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: v.id})
	v.ok(err)
	l, err := v.Controller().ControllerListVolumeHealth(v.t.Context(), &csi.ControllerListVolumeHealthRequest{})
	v.ok(err)
	s, err := v.Node().NodeGetStorageHealth(v.t.Context(), &csi.NodeGetStorageHealthRequest{})
	v.ok(err)
	a = answers{node: n.GetVolumeHealth(), controller: g.GetVolumeHealth(), storage: s.GetBackendHealth()}
	for _, e := range l.GetEntries() {
		if e.GetVolumeId() == v.id {
			a.listed = e
		}
	}
	for _, h := range []*csi.VolumeHealth{a.node, a.controller, a.listed} {
		v.wellFormed(h)
	}
	return a
}

// wellFormed checks what the CSI spec says of an answer: its id, no pair of status and reason twice, strings of at most 128
// bytes.
func (v pv) wellFormed(h *csi.VolumeHealth) {
	v.t.Helper()
	if h != nil && h.GetVolumeId() != v.id {
		v.t.Errorf("an answer for %q", h.GetVolumeId())
	}
	seen := map[string]bool{}
	for _, e := range h.GetHealthStatuses() {
		key := e.GetStatus().String() + e.GetReason()
		if seen[key] || e.GetReason() == "" || e.GetMessage() == "" || len(e.GetMessage()) > 128 || len(e.GetReason()) > 128 {
			v.t.Errorf("not well-formed: %v", h)
		}
		seen[key] = true
	}
}

// patiently waits until the answers are right.
func (v pv) patiently(target, what string, right func(answers) bool) {
	v.t.Helper()
	var got answers
	for end := time.Now().Add(healthPatience); ; <-time.After(20 * time.Millisecond) {
		if got = v.health(target); right(got) {
			return
		}
		if time.Now().After(end) {
			v.t.Fatalf("%s:%v", what, got)
		}
	}
}

func (v pv) well(target, when string) {
	v.t.Helper()
	v.patiently(target, when+", the volume and the storage should be well", func(a answers) bool {
		return len(a.node.GetHealthStatuses()) == 0 && len(a.controller.GetHealthStatuses()) == 0 && a.listed == nil && len(a.storage) == 0
	})
}

func (v pv) ill(target string, want ailment) {
	v.t.Helper()
	v.patiently(target, fmt.Sprintf("the volume should have %v, the storage %v", want.volume, want.storage), func(a answers) bool {
		for _, h := range []*csi.VolumeHealth{a.node, a.controller} {
			if !has(h, want.volume) {
				return false
			}
		}
		if listed := a.listed != nil && has(a.listed, want.volume); listed == (want.volume.reason == health.VolumeGone) { // what LVM has not cannot be listed
			return false
		}
		return want.storage == condition{} || slices.ContainsFunc(a.storage, func(s *csi.NodeGetStorageHealthResponse_StorageBackendHealth) bool {
			return s.GetStatus() == csi.StorageHealthErrorType_STORAGE_DEGRADED && s.GetReason() == string(want.storage.reason) && s.GetMessage() != "" && len(s.GetMessage()) <= 128
		})
	})
}

func healthAnswers(t *testing.T, c caller, world string) {
	node := func(id, publish, stage string) error {
		_, err := c.Node().NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: publish, StagingTargetPath: stage})
		return err
	}
	controller := func(id string) error {
		_, err := c.Controller().ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
		return err
	}
	list := func(most int32, token string) error {
		_, err := c.Controller().ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{MaxEntries: most, StartingToken: token})
		return err
	}
	none := volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: "none"}}.String()
	foreign := volume.ID{Node: "another", Ref: volume.Ref{VG: c.VG(), LV: "none"}}.String()
	target := c.Target(t, "health")
	c.code(node("", "", ""), codes.InvalidArgument, "volume_id")
	c.code(controller(""), codes.InvalidArgument, "volume_id")
	c.code(node(none, "relative", ""), codes.InvalidArgument, "volume_publish_path")
	c.code(node(none, "", "relative"), codes.InvalidArgument, "staging_target_path")
	c.code(list(-1, ""), codes.InvalidArgument, "max_entries")
	c.code(list(0, "nonsense"), codes.Aborted, "starting_token")
	c.code(node(none, target, ""), codes.NotFound, "none")
	c.code(node(inlineID("none"), target, ""), codes.NotFound)
	c.code(node(foreign, target, ""), codes.NotFound, "another")
	c.code(controller(none), codes.NotFound, "none")
	c.code(controller(foreign), codes.FailedPrecondition, "another")

	// A volume is well in each of its states, and while it is in none.
	v := c.create("health", 4<<20, mountCapability(""), nil)
	v.well("", "unpublished")
	c.ok(v.stage())
	c.ok(v.publish(target))
	v.well(target, "published")
	c.ok(v.unpublish(target))
	c.ok(v.unstage())
	c.DeactivateLV(t, v.ref())
	v.well(target, "inactive")
	c.MakeLV(t, volume.Ref{VG: c.VG(), LV: "foreign"}, 4<<20)
	c.code(controller(strings.Replace(none, "none", "foreign", 1)), codes.FailedPrecondition, "foreign")
	c.DestroyLV(t, volume.Ref{VG: c.VG(), LV: "foreign"})
	v.end()
	c.code(controller(v.id), codes.NotFound)

	e := c.inline("health")
	c.ok(e.publish())
	c.ok(node(e.id, e.target, ""))
	c.ok(e.unpublish())
	wantWorld(t, c, world, "after questions")
}
