package contract

import (
	"errors"
	"fmt"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// extend asks for so many extents, and checks that there are as many as are wanted: in the answer, for the machine, and on the
// device, if there is one.
func (f *lvmFixture) extend(lv string, extents, want int64) {
	f.t.Helper()
	before, err := f.Lookup(f.t.Context(), f.ref(lv))
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = f.Device(f.t.Context(), f.ref(lv))
	active := !errors.Is(err, volume.ErrNotFound)
	got, err := f.Extend(f.t.Context(), f.ref(lv), volume.Persistent, extents*LVMExtentBytes, 0)
	if err != nil {
		f.t.Fatalf("Extend %s to %d extents: %v", lv, extents, err)
	}
	before.SizeBytes = want * LVMExtentBytes
	if got != before {
		f.t.Errorf("Extend %s to %d extents gives %+v, want %+v", lv, extents, got, before)
	}
	d, err := f.Device(f.t.Context(), f.ref(lv))
	if active && (err != nil || d.SizeBytes != got.SizeBytes) || !active && !errors.Is(err, volume.ErrNotFound) {
		f.t.Errorf("after Extend the device is %+v, %v; want %d bytes, active %t", d, err, got.SizeBytes, active)
	}
}

// Stripes and copies stay; sizes are whole rows of stripes.
func lvmExtend(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 5)
	m.NewPool(t, f.ref("pool"), 32*LVMExtentBytes)
	free := f.freeBytes()
	for _, c := range []struct {
		layout volume.Layout
		wanted int64 // extents
		want   int64
	}{
		{volume.Layout{Type: volume.Linear}, 13, 13},
		{volume.Layout{Type: volume.Striped, Stripes: 3, StripeBytes: 32 << 10}, 13, 15},
		{volume.Layout{Type: volume.RAID1, Mirrors: 1}, 13, 13},
		{volume.Layout{Type: volume.RAID1, Mirrors: 2}, 13, 13},
		{volume.Layout{Type: volume.RAID5, Stripes: 2}, 13, 14},
		{volume.Layout{Type: volume.RAID6, Stripes: 3}, 13, 15},
		{volume.Layout{Type: volume.RAID10, Stripes: 2, Mirrors: 1}, 13, 14},
		{volume.Layout{Type: volume.Thin, Pool: "pool"}, 13, 13},
	} {
		t.Run(fmt.Sprintf("%s-%d", c.layout.Type, c.layout.Mirrors), func(t *testing.T) {
			f := &lvmFixture{f.LVMSurface, t, m, f.vg}
			f.create(f.spec("v", 6, c.layout))
			before, _ := m.Facts(t, f.ref("v"))
			release := m.Hold(t, f.ref("v"))
			f.extend("v", c.wanted, c.want)
			f.extend("v", c.wanted, c.want) // case B39: no further growth
			release()
			m.Deactivate(t, f.ref("v"))
			f.extend("v", c.want+6, c.want+6)
			before.SizeBytes = (c.want + 6) * LVMExtentBytes
			if after, ok := m.Facts(t, f.ref("v")); !ok || fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("the machine says %+v, %v; want %+v", after, ok, before)
			}
			if err := f.Activate(t.Context(), f.ref("v")); err != nil {
				t.Fatal(err)
			}
			if d, err := f.Device(t.Context(), f.ref("v")); err != nil || d.SizeBytes != before.SizeBytes {
				t.Errorf("Device: %+v, %v", d, err)
			}
			f.remove("v")
		})
	}
	if left := f.freeBytes(); left != free {
		t.Errorf("%d bytes free at the end, %d before", left, free)
	}
}

// case B39, case B40
func lvmExtendSizes(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	f.create(f.linear("v", 2))
	const mi = 1 << 20
	for _, c := range []struct {
		required, limit int64
		want            int64 // 0: by code
		err             error
	}{
		{0, 0, 8 * mi, nil}, {1, 0, 8 * mi, nil}, {4 * mi, 0, 8 * mi, nil}, {8 * mi, 8 * mi, 8 * mi, nil}, {0, 100 * mi, 8 * mi, nil},
		{8*mi + 1, 0, 12 * mi, nil}, {8*mi + 1, 0, 12 * mi, nil}, {13 * mi, 16 * mi, 16 * mi, nil}, {203 * mi, 0, 204 * mi, nil}, {203 * mi, 0, 204 * mi, nil},
		{0, 8 * mi, 0, volume.ErrOutOfRange}, {100 * mi, 200 * mi, 0, volume.ErrOutOfRange}, {205 * mi, 207 * mi, 0, volume.ErrOutOfRange},
		{300 * mi, 200 * mi, 0, volume.ErrOutOfRange}, {1<<63 - 1, 0, 0, volume.ErrOutOfRange},
		{-1, 0, 0, volume.ErrInvalid}, {0, -1, 0, volume.ErrInvalid},
	} {
		what := fmt.Sprintf("required %d, limit %d", c.required, c.limit)
		lv, err := f.Extend(t.Context(), f.ref("v"), volume.Persistent, c.required, c.limit)
		if c.err != nil {
			f.fails(what, err, c.err)
		} else if err != nil || lv.SizeBytes != c.want {
			t.Errorf("%s: %d bytes, %v; want %d", what, lv.SizeBytes, err, c.want)
		}
	}
	f.remove("v")
	f.create(f.spec("v", 2, volume.Layout{Type: volume.Striped, Stripes: 2}))
	_, err := f.Extend(t.Context(), f.ref("v"), volume.Persistent, 9*mi, 12*mi)
	f.fails("limit within a row of stripes", err, volume.ErrOutOfRange)
	if facts, _ := m.Facts(t, f.ref("v")); facts.SizeBytes != 8*mi {
		t.Errorf("it has %d bytes now", facts.SizeBytes)
	}
}

// case B43, case B40
func lvmExtendNoSpace(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	m.NewPool(t, f.ref("pool"), 8*LVMExtentBytes)
	thin := func(lv string, extents int64) volume.Spec {
		return f.spec(lv, extents, volume.Layout{Type: volume.Thin, Pool: "pool"})
	}
	fails := func(lv string, extents int64, want error) {
		t.Helper()
		before, _ := m.Facts(t, f.ref(lv))
		_, err := f.Extend(t.Context(), f.ref(lv), volume.Persistent, extents*LVMExtentBytes, 0)
		f.fails(fmt.Sprintf("%s to %d extents", lv, extents), err, want)
		if after, _ := m.Facts(t, f.ref(lv)); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s is %+v, and was %+v", lv, after, before)
		}
	}
	f.create(thin("a", 5))
	f.create(thin("b", 2))
	fails("b", 4, volume.ErrNoSpace)
	fails("b", 9, volume.ErrOutOfRange)
	f.extend("b", 3, 3)
	fails("b", 4, volume.ErrNoSpace)
	f.remove("a")
	f.extend("b", 8, 8)

	f.create(f.linear("v", 2))
	f.create(f.spec("r", 2, volume.Layout{Type: volume.RAID1, Mirrors: 1}))
	f.create(f.spec("s", 2, volume.Layout{Type: volume.Striped, Stripes: 2}))
	for _, lv := range []string{"v", "s"} {
		fails(lv, 2*LVMExtentsPerPV+2, volume.ErrOutOfRange)
		fails(lv, 1<<40, volume.ErrOutOfRange)
	}
	fails("r", LVMExtentsPerPV+1, volume.ErrOutOfRange)
	free := f.freeBytes() / LVMExtentBytes
	f.extend("v", 2+free-3, 2+free-3)
	for _, lv := range []string{"r", "s"} {
		fails(lv, 10, volume.ErrNoSpace)
	}
	fails("v", 2+free+1, volume.ErrNoSpace)
	f.extend("v", 2+free, 2+free)
}

// case B42: also where LVM would do it, the origin being inactive. Thin snapshots keep nothing from growing.
func lvmExtendOrigin(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	f.create(f.linear("v", 2))
	m.MakeSnapshot(t, f.ref("v"), "snap")
	for _, active := range []bool{true, false} {
		if !active {
			m.Deactivate(t, f.ref("v"))
		}
		_, err := f.Extend(t.Context(), f.ref("v"), volume.Persistent, 3*LVMExtentBytes, 0)
		f.fails(fmt.Sprintf("Extend of an origin, active %t", active), err, volume.ErrPrecondition)
		if lv, err := f.Extend(t.Context(), f.ref("v"), volume.Persistent, 2*LVMExtentBytes, 0); err != nil || lv.SizeBytes != 2*LVMExtentBytes {
			t.Errorf("Extend of an origin to the size it has: %+v, %v", lv, err)
		}
	}
	f.there("snap", true)
	m.Destroy(t, f.ref("snap"))
	f.extend("v", 3, 3)
	f.remove("v")

	m.NewPool(t, f.ref("pool"), 16*LVMExtentBytes)
	f.create(f.spec("v", 2, volume.Layout{Type: volume.Thin, Pool: "pool"}))
	snap := f.create(f.snapshotSpec("thin", "v"))
	f.extend("v", 3, 3)
	if facts, _ := m.Facts(t, snap.Ref); facts.SizeBytes != 2*LVMExtentBytes {
		t.Errorf("the snapshot has %d bytes now", facts.SizeBytes)
	}
	_, err := f.Extend(t.Context(), snap.Ref, volume.Persistent, 3*LVMExtentBytes, 0)
	f.fails("Extend of a snapshot", err, volume.ErrPrecondition)
}

func lvmExtendForeign(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	extend := func(lv string, k volume.Kind) error {
		_, err := f.Extend(t.Context(), f.ref(lv), k, 5*LVMExtentBytes, 0)
		return err
	}
	f.fails("not there", extend("v", volume.Persistent), volume.ErrNotFound)
	f.create(f.linear("v", 1))
	f.fails("of another kind", extend("v", volume.Inline), volume.ErrPrecondition)
	m.Make(t, f.ref("foreign"), LVMExtentBytes)
	f.fails("without our tag", extend("foreign", volume.Persistent), volume.ErrPrecondition)
	f.fails("in a group of others", func() error {
		_, err := f.Extend(t.Context(), volume.Ref{VG: m.NewGroup(t, 1), LV: "v"}, volume.Persistent, 5*LVMExtentBytes, 0)
		return err
	}(), volume.ErrInvalid)
	for _, name := range []string{"", "-rf", "--yes", "a/b", "a b", "pvmove0"} {
		f.fails("Extend "+name, extend(name, volume.Persistent), volume.ErrInvalid)
	}
	for _, lv := range []string{"v", "foreign"} {
		if facts, ok := m.Facts(t, f.ref(lv)); !ok || facts.SizeBytes != LVMExtentBytes {
			t.Errorf("%s is %+v, %t", lv, facts, ok)
		}
	}
}
