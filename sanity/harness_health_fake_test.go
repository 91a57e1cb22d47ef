package sanity

import (
	"sync"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func (h *fakeHarness) MakePool(_ *testing.T, name string, bytes int64) {
	h.m.AddPool(fakeVG, name, bytes)
}

func (h *fakeHarness) Harm(t *testing.T, what string, r volume.Ref, _ string) (mend func()) {
	sick := func(r volume.Ref, s fake.Sickness) func() {
		h.m.Sicken(r, func(is *fake.Sickness) { *is = s })
		return func() { h.m.Sicken(r, func(is *fake.Sickness) { *is = fake.Sickness{} }) }
	}
	lose := func(disks ...string) func() {
		for _, d := range disks {
			h.m.LosePV(fakeVG, d)
		}
		return func() {
			for _, d := range disks {
				h.m.FindPV(fakeVG, d)
			}
		}
	}
	device := volume.DMName(r)
	switch what {
	case contract.HarmDisks:
		return lose(h.m.DisksOf(r)...)
	case contract.HarmLeg:
		find := lose(h.m.DisksOf(r)[0])
		well := sick(r, fake.Sickness{Devices: volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: device, Type: "raid1", Legs: "DA", Synced: 64, Total: 64, Action: "idle"}}}})
		return func() { find(); well() }
	case contract.HarmPool:
		return sick(volume.Ref{VG: r.VG, LV: "small"}, fake.Sickness{Devices: volume.DeviceFacts{Pools: []volume.PoolStatus{{Device: fakeVG + "-small-tpool", UsedData: 60, Data: 64, Metadata: 8}}}})
	case contract.HarmSnapshot:
		s := contract.SnapshotOf(r)
		h.m.AddSnapshot(r, s.LV, 8<<20)
		h.m.EditLV(s, func(is *fake.State) {
			is.Active, is.Tags = true, volume.Tags{Owner: "local-lvm.csi.internal", Kind: volume.Snapshot}.Strings()
		})
		sick(s, fake.Sickness{Devices: volume.DeviceFacts{Snapshots: []volume.SnapshotStatus{{Device: volume.DMName(s), Lost: "Invalid"}}}})
		return func() { h.m.DropLV(s) }
	case contract.HarmErrors:
		return sick(r, fake.Sickness{Filesystem: volume.FilesystemFacts{Errors: 1}})
	case contract.HarmReadOnly:
		return sick(r, fake.Sickness{ForcedReadOnly: true})
	case contract.HarmShutdown:
		return sick(r, fake.Sickness{Filesystem: volume.FilesystemFacts{ShutDown: "EIO"}})
	case contract.HarmSuspended:
		h.SuspendLV(t, r)
		return func() { h.m.EditLV(r, func(s *fake.State) { s.Suspended = false }) }
	case contract.HarmForgotten:
		h.m.Forget(r)
		return sync.OnceFunc(func() { h.m.Remember(r) })
	case contract.HarmErrorTable:
		return sick(r, fake.Sickness{Devices: volume.DeviceFacts{Empty: []string{device}}})
	}
	t.Fatalf("no harm %q", what)
	return nil
}
