package contract

import (
	"errors"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// snapshotSpec is a snapshot of the logical volume, which is named and no more.
func (f *lvmFixture) snapshotSpec(name, origin string) volume.Spec {
	return volume.Spec{
		Ref: f.ref(volume.LVName(volume.Snapshot, name)), Kind: volume.Snapshot, Name: name,
		Origin: volume.LV{Ref: f.ref(origin)}, Created: time.Unix(1700000000, 12345),
	}
}

func (f *lvmFixture) lookup(r volume.Ref) volume.LV {
	f.t.Helper()
	lv, err := f.Lookup(f.t.Context(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return lv
}

// Snapshots of each kind: one command to make one and one to remove it; what is told of it outlives the driver, and its origin
// where LVM lets that go.
func lvmSnapshots(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 4)
	m.NewPool(t, f.ref("pool"), 16*LVMExtentBytes)
	for _, l := range []volume.Layout{
		{Type: volume.Linear}, {Type: volume.Striped, Stripes: 2}, {Type: volume.RAID1, Mirrors: 1}, {Type: volume.RAID5, Stripes: 2}, {Type: volume.Thin, Pool: "pool"},
	} {
		t.Run(string(l.Type), func(t *testing.T) {
			f := &lvmFixture{f.LVMSurface, t, m, f.vg}
			origin := f.spec("v", 4, l)
			origin.Format = volume.Format{FS: volume.Ext4, MkfsOptions: []string{"-m", "0"}}
			f.create(origin)
			s := f.snapshotSpec("snap 1", "v")
			var made volume.LV
			f.cost("a snapshot", 1, func() { made = f.create(s) })
			want := volume.Tags{
				Owner: lvmOwner, Kind: volume.Snapshot, Name: "snap 1", Spec: f.lookup(f.ref("v")).Tags.Spec, Mkfs: "-m 0",
				Origin: f.vg + "/v", Created: 1700000000000012345, Bytes: 4 * LVMExtentBytes,
			}
			if made.Tags != want || made.Origin != "v" || made.Whole() != nil || made.Thick() != (l.Type != volume.Thin) {
				t.Errorf("made is %+v, want tags %+v", made, want)
			}
			if next := m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{f.vg}}); true {
				if lv, err := next.Lookup(t.Context(), s.Ref); err != nil || lv != made {
					t.Errorf("a report says %+v, %v; the metadata %+v", lv, err, made)
				}
			}
			_, err := f.Create(t.Context(), s)
			f.fails("a snapshot of that name again", err, volume.ErrExists)
			again := f.snapshotSpec("snap 2", "v")
			f.create(again)
			if l.Type == volume.Thin { // case B47
				if _, err := f.Device(t.Context(), s.Ref); !errors.Is(err, volume.ErrNotFound) {
					t.Errorf("a thin snapshot that nobody reads has a device: %v", err)
				}
				f.remove("v")
				if lv := f.lookup(s.Ref); lv.Origin != "" || lv.Tags != want || lv.Whole() != nil {
					t.Errorf("without its origin it is %+v", lv)
				}
			} else {
				f.fails("Remove of an origin", f.Remove(t.Context(), f.ref("v"), volume.Persistent), volume.ErrPrecondition)
				f.there(s.LV, true)
			}
			if err := f.Activate(t.Context(), s.Ref); err != nil { // case B34
				t.Fatal(err)
			}
			if d, err := f.Device(t.Context(), s.Ref); err != nil || d.SizeBytes != 4*LVMExtentBytes {
				t.Errorf("its device is %+v, %v", d, err)
			}
			release := m.Hold(t, s.Ref)
			f.fails("Remove of a snapshot that is read", f.Remove(t.Context(), s.Ref, volume.Snapshot), volume.ErrBusy)
			release()
			f.fails("Remove as a volume", f.Remove(t.Context(), s.Ref, volume.Persistent), volume.ErrPrecondition)
			f.cost("the removal of a snapshot", 1, func() {
				if err := f.Remove(t.Context(), s.Ref, volume.Snapshot); err != nil {
					t.Fatal(err)
				}
			})
			f.there(s.LV, false)
			if err := f.Remove(t.Context(), again.Ref, volume.Snapshot); err != nil {
				t.Fatal(err)
			}
			if l.Type != volume.Thin {
				f.remove("v")
			}
		})
	}
}

// The store of a thick snapshot: large enough for all of its origin, or as asked for.
func lvmSnapshotSizes(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	f.create(f.linear("v", 20))
	for _, c := range []struct {
		asked   volume.CopyOnWrite
		extents int64
	}{
		{volume.CopyOnWrite{}, 21}, // and the tables
		{volume.CopyOnWrite{Percent: 10}, 2},
		{volume.CopyOnWrite{Percent: 1}, 1},
		{volume.CopyOnWrite{Percent: 1000}, 21},
		{volume.CopyOnWrite{Bytes: 1}, 1},
		{volume.CopyOnWrite{Bytes: 9<<20 + 1}, 3},
		{volume.CopyOnWrite{Bytes: 1 << 50}, 21},
	} {
		s := f.snapshotSpec("snap", "v")
		s.CopyOnWrite = c.asked
		lv := f.create(s)
		if lv.SizeBytes != c.extents*LVMExtentBytes || lv.Tags.Bytes != 20*LVMExtentBytes || lv.Tags.CopyOnWrite != c.asked.String() {
			t.Errorf("asked for %q: %+v, want %d extents", c.asked, lv, c.extents)
		}
		if err := f.Remove(t.Context(), s.Ref, volume.Snapshot); err != nil {
			t.Fatal(err)
		}
	}
}

func lvmSnapshotFails(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	m.NewPool(t, f.ref("pool"), 16*LVMExtentBytes)
	_, err := f.Create(t.Context(), f.snapshotSpec("snap", "gone"))
	f.fails("a snapshot of nothing", err, volume.ErrNotFound)
	m.Make(t, f.ref("foreign"), LVMExtentBytes)
	_, err = f.Create(t.Context(), f.snapshotSpec("snap", "foreign"))
	f.fails("a snapshot of a foreign one", err, volume.ErrPrecondition)
	f.create(f.linear("big", 60))
	_, err = f.Create(t.Context(), f.snapshotSpec("snap", "big"))
	f.fails("a snapshot for which there is no room", err, volume.ErrNoSpace)
	f.create(f.spec("thin", 10, volume.Layout{Type: volume.Thin, Pool: "pool"}))
	_, err = f.Create(t.Context(), f.snapshotSpec("snap", "thin"))
	f.fails("a thin snapshot beyond the overcommit limit", err, volume.ErrNoSpace)
	f.there(volume.LVName(volume.Snapshot, "snap"), false)
}

// A thin volume made of a thin snapshot, or of a thin volume, is one like any other: one command, and one more where it is larger.
func lvmClones(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	m.NewPool(t, f.ref("pool"), 32*LVMExtentBytes)
	thin := volume.Layout{Type: volume.Thin, Pool: "pool"}
	f.create(f.spec("v", 2, thin))
	snap := f.create(f.snapshotSpec("snap", "v"))
	for _, c := range []struct {
		origin  volume.Ref
		extents int64
		cost    int
	}{{f.ref("v"), 0, 1}, {snap.Ref, 2, 1}, {snap.Ref, 5, 2}} {
		s := f.spec("clone", c.extents, thin)
		s.Origin = volume.LV{Ref: c.origin}
		var lv volume.LV
		f.cost("a clone", c.cost, func() { lv = f.create(s) })
		bytes := max(c.extents, 2) * LVMExtentBytes
		if lv.SizeBytes != bytes || lv.Origin != c.origin.LV || lv.Type != volume.Thin || lv.Pool != "pool" || lv.Tags != s.Tags(lvmOwner) {
			t.Errorf("clone is %+v", lv)
		}
		if d, err := f.Device(t.Context(), lv.Ref); err != nil || d.SizeBytes != bytes {
			t.Errorf("its device is %+v, %v", d, err)
		}
		f.remove("clone")
	}
	s := f.spec("clone", 1, thin)
	s.Origin, s.LimitBytes = volume.LV{Ref: snap.Ref}, LVMExtentBytes
	_, err := f.Create(t.Context(), s)
	f.fails("a clone smaller than its source", err, volume.ErrOutOfRange)
}
