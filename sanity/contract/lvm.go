package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// LVMSurface is all that the driver asks of LVM.
type LVMSurface interface {
	lifecycle.LVM
	// List gives all logical volumes with our owner tag in our groups, by group and name.
	List(ctx context.Context) ([]volume.LV, error)
	// Groups gives the groups of --volume-groups that are there, in the order of its patterns, then by name.
	Groups(ctx context.Context) ([]volume.Group, error)
	// Check is nil where LVM answers and at least one group is there and whole.
	Check(ctx context.Context) error
}

// LVMOptions is how an LVMSurface is configured.
type LVMOptions struct {
	Owner          string
	VolumeGroups   []string
	ThinOvercommit float64
}

// LVMMachine is a machine with LVM, as its administrator uses it: whatever he does is behind the back of the surfaces
// under test. Each method fails the test when it cannot do what it says. What it makes is undone at the end of t.
type LVMMachine interface {
	// NewLVM gives a surface that looks at this machine, as a driver started now.
	NewLVM(t *testing.T, o LVMOptions) LVMSurface
	// NewGroup makes a volume group with so many physical volumes, each of LVMExtentsPerPV extents of LVMExtentBytes.
	NewGroup(t *testing.T, pvs int) string
	// NewPool makes a thin pool whose data has so many bytes.
	NewPool(t *testing.T, pool volume.Ref, bytes int64)
	// Make makes a linear logical volume with these tags, active.
	Make(t *testing.T, r volume.Ref, bytes int64, tags ...string)
	// MakeSnapshot makes a thick (copy-on-write) snapshot of a logical volume.
	MakeSnapshot(t *testing.T, origin volume.Ref, name string)
	// Destroy removes a logical volume.
	Destroy(t *testing.T, r volume.Ref)
	// Deactivate takes the device of a logical volume away.
	Deactivate(t *testing.T, r volume.Ref)
	// Hold opens the device of a logical volume, until release is called.
	Hold(t *testing.T, r volume.Ref) (release func())
	// Mount makes a file system on the device and mounts it at a place of its own, until release is called.
	Mount(t *testing.T, r volume.Ref) (release func())
	// Scribble writes the signature of a file system, or of an LVM physical volume of a group of this very name, on
	// the device of a logical volume.
	Scribble(t *testing.T, r volume.Ref, what string)
	// Signature tells what the machine's own prober finds on the device; "" for nothing.
	Signature(t *testing.T, r volume.Ref) string
	// Break makes one physical volume of the group unreadable, until the end of t.
	Break(t *testing.T, vg string)
	// Facts asks the machine itself about a logical volume; ok is false where there is none.
	Facts(t *testing.T, r volume.Ref) (f LVMFacts, ok bool)
	// Settings gives what LVM holds of the mutable parameters, and the physical volumes it lies on, as LVMSettings does.
	Settings(t *testing.T, r volume.Ref) (m volume.Mutable, devices []string)
	// Commands counts the LVM commands that all surfaces of this machine have run so far.
	Commands() int
}

// LVMFacts is what a machine's own tools tell of a logical volume.
type LVMFacts struct {
	UUID      string
	SizeBytes int64
	SegType   string // as lvs(8) names it
	Stripes   int    // all of them, with parity and copies
	Tags      []string
}

// The shape of the groups that NewGroup makes.
const (
	LVMExtentBytes  = 4 << 20
	LVMExtentsPerPV = 120
)

const lvmOwner = "contract.local-lvm.csi.internal"

// LVM is the contract of every LVMSurface: of pkg/lvm on a real machine, and of the fake that tests use in its place.
func LVM(t *testing.T, m LVMMachine) {
	for _, c := range []struct {
		name string
		test func(*testing.T, LVMMachine)
	}{
		{"types", lvmTypes},
		{"sizes", lvmSizes},
		{"names", lvmNames},
		{"exists", lvmExists},
		{"no space", lvmNoSpace},
		{"out of range", lvmOutOfRange},
		{"too few physical volumes", lvmTooFewPVs},
		{"groups outside the flag", lvmOutside},
		{"group not there", lvmGroupGone},
		{"thin overcommit", lvmOvercommit},
		{"extend", lvmExtend},
		{"extend sizes", lvmExtendSizes},
		{"extend no space", lvmExtendNoSpace},
		{"extend origin", lvmExtendOrigin},
		{"extend what is not ours", lvmExtendForeign},
		{"remove", lvmRemove},
		{"remove in use", lvmRemoveInUse},
		{"remove origin", lvmRemoveOrigin},
		{"snapshots", lvmSnapshots},
		{"snapshot sizes", lvmSnapshotSizes},
		{"snapshots that fail", lvmSnapshotFails},
		{"clones", lvmClones},
		{"copies", lvmCopies},
		{"retag", lvmRetag},
		{"tune", lvmTune},
		{"behind the back", lvmBehindTheBack},
		{"lookup in all groups", lvmLookupAll},
		{"activate", lvmActivate},
		{"device", lvmDevice},
		{"old signatures", lvmSignatures},
		{"guest group of the same name", lvmGuest},
		{"list and groups", lvmListGroups},
		{"partial group", lvmPartial},
		{"commands", lvmCommands},
		{"concurrent", lvmConcurrent},
		{"cancelled", lvmCancelled},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, m) })
	}
}

// lvmFixture is one surface over one new group, and the phrases the tests speak in.
type lvmFixture struct {
	LVMSurface
	t  *testing.T
	m  LVMMachine
	vg string
}

func newLVMFixture(t *testing.T, m LVMMachine, pvs int) *lvmFixture {
	t.Helper()
	vg := m.NewGroup(t, pvs)
	return &lvmFixture{m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{vg}, ThinOvercommit: 1}), t, m, vg}
}

func (f *lvmFixture) ref(lv string) volume.Ref { return volume.Ref{VG: f.vg, LV: lv} }

func (f *lvmFixture) spec(lv string, extents int64, l volume.Layout) volume.Spec {
	return volume.Spec{Ref: f.ref(lv), Kind: volume.Persistent, Name: lv, Layout: l, RequiredBytes: extents * LVMExtentBytes}
}

func (f *lvmFixture) linear(lv string, extents int64) volume.Spec {
	return f.spec(lv, extents, volume.Layout{Type: volume.Linear})
}

func (f *lvmFixture) create(s volume.Spec) volume.LV {
	f.t.Helper()
	lv, err := f.Create(f.t.Context(), s)
	if err != nil {
		f.t.Fatalf("Create %s: %v", s.Ref, err)
	}
	return lv
}

func (f *lvmFixture) remove(lv string) {
	f.t.Helper()
	if err := f.Remove(f.t.Context(), f.ref(lv), volume.Persistent); err != nil {
		f.t.Fatalf("Remove %s: %v", lv, err)
	}
	f.there(lv, false)
}

// there checks with the machine's own tools whether a logical volume is there.
func (f *lvmFixture) there(lv string, want bool) {
	f.t.Helper()
	if _, ok := f.m.Facts(f.t, f.ref(lv)); ok != want {
		f.t.Fatalf("%s is there: %v, want %v", lv, ok, want)
	}
}

// fails checks that err is want and no other sentinel. A nil want is a plain error, which says neither "gone" nor "busy".
func (f *lvmFixture) fails(what string, err, want error) {
	f.t.Helper()
	if err == nil {
		f.t.Fatalf("%s: no error, want %v", what, want)
	}
	for _, sentinel := range []error{volume.ErrInvalid, volume.ErrNotFound, volume.ErrExists, volume.ErrBusy, volume.ErrPending,
		volume.ErrPrecondition, volume.ErrNoSpace, volume.ErrOutOfRange, volume.ErrToken} {
		if errors.Is(err, sentinel) != (sentinel == want) { //nolint:errorlint // the sentinels themselves are compared
			f.t.Fatalf("%s: error %q, want %v", what, err, want)
		}
	}
}

// cost runs do and checks how many LVM commands it took.
func (f *lvmFixture) cost(what string, want int, do func()) {
	f.t.Helper()
	before := f.m.Commands()
	do()
	if n := f.m.Commands() - before; n != want {
		f.t.Errorf("%s took %d LVM commands, want %d", what, n, want)
	}
}

func lvmTypes(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 5)
	m.NewPool(t, f.ref("pool"), 16*LVMExtentBytes)
	for _, c := range []struct {
		layout  volume.Layout
		segType string
		stripes int
	}{
		{volume.Layout{Type: volume.Linear}, "linear", 1},
		{volume.Layout{Type: volume.Striped, Stripes: 3, StripeBytes: 32 << 10}, "striped", 3},
		{volume.Layout{Type: volume.RAID1, Mirrors: 1}, "raid1", 2},
		{volume.Layout{Type: volume.RAID1, Mirrors: 2}, "raid1", 3},
		{volume.Layout{Type: volume.RAID5, Stripes: 2}, "raid5", 3},
		{volume.Layout{Type: volume.RAID6, Stripes: 3}, "raid6", 5},
		{volume.Layout{Type: volume.RAID10, Stripes: 2, Mirrors: 1}, "raid10", 4},
		{volume.Layout{Type: volume.Thin, Pool: "pool"}, "thin", 0},
	} {
		t.Run(fmt.Sprintf("%s-%d", c.layout.Type, c.stripes), func(t *testing.T) {
			f := &lvmFixture{f.LVMSurface, t, m, f.vg}
			s := f.spec("v", 6, c.layout)
			s.Name, s.PodUID = "a name / that needs escaping", "1234-5678"
			made := f.create(s)
			found, err := f.Lookup(t.Context(), f.ref("v"))
			if err != nil || found != made {
				t.Errorf("Lookup gives %+v, %v; Create gave %+v", found, err, made)
			}
			facts, ok := m.Facts(t, f.ref("v"))
			if !ok || facts.SizeBytes != 6*LVMExtentBytes || facts.SegType != c.segType || facts.Stripes != c.stripes {
				t.Errorf("the machine says %+v, %v; want %d bytes, %s, %d stripes", facts, ok, 6*LVMExtentBytes, c.segType, c.stripes)
			}
			want := volume.LV{Ref: f.ref("v"), UUID: facts.UUID, SizeBytes: facts.SizeBytes, Type: c.layout.Type,
				Pool: c.layout.Pool, ThinID: made.ThinID, Tags: s.Tags(lvmOwner)}
			if made != want || (made.ThinID != 0) != (c.layout.Type == volume.Thin) {
				t.Errorf("Create gives %+v, want %+v", made, want)
			}
			if err := s.Matches(made); err != nil {
				t.Errorf("the same request again: %v", err)
			}
			if d, err := f.Device(t.Context(), f.ref("v")); err != nil || d.SizeBytes != made.SizeBytes {
				t.Errorf("Device: %+v, %v", d, err)
			}
			f.remove("v")
			if _, err := f.Device(t.Context(), f.ref("v")); !errors.Is(err, volume.ErrNotFound) {
				t.Errorf("Device after Remove: %v", err)
			}
		})
	}
}

// case B39, case B40
func lvmSizes(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	for _, c := range []struct{ required, limit, want int64 }{
		{1, 0, LVMExtentBytes},
		{LVMExtentBytes + 1, 0, 2 * LVMExtentBytes},
		{203 << 20, 0, 204 << 20},
		{0, 8 << 20, 8 << 20},
		{5 << 20, 8 << 20, 8 << 20},
	} {
		s := f.linear("v", 0)
		s.RequiredBytes, s.LimitBytes = c.required, c.limit
		if lv := f.create(s); lv.SizeBytes != c.want {
			t.Errorf("required %d, limit %d: %d bytes, want %d", c.required, c.limit, lv.SizeBytes, c.want)
		}
		f.remove("v")
	}
	s := f.spec("v", 0, volume.Layout{Type: volume.Striped, Stripes: 2})
	s.RequiredBytes = 5 << 20
	if lv := f.create(s); lv.SizeBytes != 2*LVMExtentBytes {
		t.Errorf("striped: %d bytes", lv.SizeBytes)
	}
	f.remove("v")
	s = f.linear("v", 1)
	s.Format.FS = volume.Btrfs // case B51
	if lv := f.create(s); lv.SizeBytes < volume.MinFSBytes(volume.Btrfs) {
		t.Errorf("btrfs: %d bytes", lv.SizeBytes)
	}
	f.remove("v")
	s.LimitBytes = 8 << 20
	_, err := f.Create(t.Context(), s)
	f.fails("too small for its file system", err, volume.ErrOutOfRange)
	s = f.linear("v", 0)
	s.RequiredBytes, s.LimitBytes = LVMExtentBytes+1, LVMExtentBytes+1
	_, err = f.Create(t.Context(), s)
	f.fails("limit between two extents", err, volume.ErrOutOfRange)
	s.RequiredBytes, s.LimitBytes = -1, 0
	_, err = f.Create(t.Context(), s)
	f.fails("negative", err, volume.ErrInvalid)
	f.there("v", false)
}

// case B30
func lvmNames(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	names := []string{"a", "A", "a--b", "a-", "a_b", "+x.y_z", "_under", ".dot", "lvol0", "0", "x-y-z", strings.Repeat("n", 48),
		"v-0123456789abcdef0123456789abcdef", "csi-" + strings.Repeat("0123456789abcdef", 4)}
	for _, n := range names {
		f.create(f.linear(n, 1))
	}
	for _, n := range names {
		if lv, err := f.Lookup(t.Context(), f.ref(n)); err != nil || lv.LV != n {
			t.Errorf("Lookup %s: %+v, %v", n, lv, err)
		}
		if _, err := f.Device(t.Context(), f.ref(n)); err != nil {
			t.Errorf("Device %s: %v", n, err)
		}
	}
	for i, n := range names { // "a" must not take "A" with it, nor "a_b"
		if err := f.Remove(t.Context(), f.ref(n), volume.Persistent); err != nil {
			t.Errorf("Remove %s: %v", n, err)
		}
		lvs, err := f.List(t.Context())
		if err != nil || len(lvs) != len(names)-i-1 || slices.ContainsFunc(lvs, func(lv volume.LV) bool { return lv.LV == n }) {
			t.Errorf("List after Remove %s: %+v, %v", n, lvs, err)
		}
	}
	for _, n := range []string{"", "-rf", "--yes", "..", "a/b", "a b", `a"b`, "a\nb", "snapshot-1", "pvmove0", "a_tdata", strings.Repeat("n", 200)} {
		_, err := f.Create(t.Context(), f.linear(n, 1))
		f.fails("Create "+n, err, volume.ErrInvalid)
		f.fails("Remove "+n, f.Remove(t.Context(), f.ref(n), volume.Persistent), volume.ErrInvalid)
		_, err = f.Lookup(t.Context(), f.ref(n))
		f.fails("Lookup "+n, err, volume.ErrInvalid)
		f.fails("Activate "+n, f.Activate(t.Context(), f.ref(n)), volume.ErrInvalid)
		_, err = f.Device(t.Context(), f.ref(n))
		f.fails("Device "+n, err, volume.ErrInvalid)
	}
}

func lvmExists(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	made := f.create(f.linear("v", 2))
	_, err := f.Create(t.Context(), f.linear("v", 3))
	f.fails("Create again", err, volume.ErrExists)
	m.Make(t, f.ref("foreign"), LVMExtentBytes)
	_, err = f.Create(t.Context(), f.linear("foreign", 1))
	f.fails("Create over a foreign one", err, volume.ErrExists)
	if lv, err := f.Lookup(t.Context(), f.ref("v")); err != nil || lv != made {
		t.Errorf("Lookup: %+v, %v", lv, err)
	}
}

// case B43
func lvmNoSpace(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	f.create(f.linear("most", 2*LVMExtentsPerPV-2))
	_, err := f.Create(t.Context(), f.linear("v", 3))
	f.fails("full", err, volume.ErrNoSpace)
	_, err = f.Create(t.Context(), f.spec("v", 2, volume.Layout{Type: volume.RAID1, Mirrors: 1}))
	f.fails("full for raid1", err, volume.ErrNoSpace)
	_, err = f.Create(t.Context(), f.spec("v", 1, volume.Layout{Type: volume.Thin, Pool: "nopool"}))
	f.fails("no such pool", err, volume.ErrNoSpace)
	f.there("v", false)
	f.create(f.linear("v", 2))
}

func lvmOutOfRange(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	m.NewPool(t, f.ref("pool"), 8*LVMExtentBytes)
	for _, s := range []volume.Spec{
		f.linear("v", 2*LVMExtentsPerPV+1),
		f.linear("v", 1<<40),
		f.spec("v", LVMExtentsPerPV+1, volume.Layout{Type: volume.RAID1, Mirrors: 1}),
		f.spec("v", 9, volume.Layout{Type: volume.Thin, Pool: "pool"}),
	} {
		_, err := f.Create(t.Context(), s)
		f.fails(fmt.Sprintf("%s of %d bytes", s.Layout.Type, s.RequiredBytes), err, volume.ErrOutOfRange)
	}
	s := f.linear("v", 0)
	s.RequiredBytes = 1<<63 - 1
	_, err := f.Create(t.Context(), s)
	f.fails("the largest number", err, volume.ErrOutOfRange)
	f.there("v", false)
}

// A layout for which the group has too few physical volumes can be made on another node, perhaps.
func lvmTooFewPVs(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	for _, l := range []volume.Layout{
		{Type: volume.Striped, Stripes: 3},
		{Type: volume.RAID1, Mirrors: 2},
		{Type: volume.RAID5, Stripes: 2},
		{Type: volume.RAID6, Stripes: 3},
		{Type: volume.RAID10, Stripes: 2, Mirrors: 1},
	} {
		_, err := f.Create(t.Context(), f.spec("v", 6, l))
		f.fails(string(l.Type), err, volume.ErrNoSpace)
		f.there("v", false)
	}
}

func lvmOutside(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	other := m.NewGroup(t, 1)
	m.Make(t, volume.Ref{VG: other, LV: "v"}, LVMExtentBytes, volume.OwnerTag(lvmOwner), volume.KindTag(volume.Persistent))
	s := f.linear("w", 1)
	s.VG = other
	_, err := f.Create(t.Context(), s)
	f.fails("Create", err, volume.ErrInvalid)
	if !strings.Contains(err.Error(), "parameters["+volume.KeyVolumeGroup+"]") {
		t.Errorf("Create does not name the field: %v", err)
	}
	r := volume.Ref{VG: other, LV: "v"}
	f.fails("Remove", f.Remove(t.Context(), r, volume.Persistent), volume.ErrInvalid)
	_, err = f.Lookup(t.Context(), r)
	f.fails("Lookup", err, volume.ErrInvalid)
	f.fails("Activate", f.Activate(t.Context(), r), volume.ErrInvalid)
	if _, ok := m.Facts(t, r); !ok {
		t.Error("the logical volume in the other group is gone")
	}
	if _, err := f.Lookup(t.Context(), volume.Ref{LV: "v"}); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("Lookup in all our groups: %v", err)
	}
}

// case B28
func lvmGroupGone(t *testing.T, m LVMMachine) {
	vg := m.NewGroup(t, 1)
	f := &lvmFixture{m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{vg, "notthere"}, ThinOvercommit: 1}), t, m, "notthere"}
	_, err := f.Create(t.Context(), f.linear("v", 1))
	f.fails("Create", err, volume.ErrNoSpace)
	f.fails("Remove", f.Remove(t.Context(), f.ref("v"), volume.Persistent), nil)
	_, err = f.Lookup(t.Context(), f.ref("v"))
	f.fails("Lookup", err, nil)
	_, err = f.Lookup(t.Context(), volume.Ref{LV: "v"})
	f.fails("Lookup in all groups", err, nil)
	if err := f.Check(t.Context()); err != nil {
		t.Errorf("Check with one of two groups: %v", err)
	}
	lone := m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{"notthere"}, ThinOvercommit: 1})
	f.fails("Check without a group", lone.Check(t.Context()), nil)
}

func lvmOvercommit(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	m.NewPool(t, f.ref("pool"), 8*LVMExtentBytes)
	thin := func(lv string, extents int64) volume.Spec {
		return f.spec(lv, extents, volume.Layout{Type: volume.Thin, Pool: "pool"})
	}
	f.create(thin("a", 5))
	_, err := f.Create(t.Context(), thin("b", 4))
	f.fails("above the limit", err, volume.ErrNoSpace)
	f.there("b", false)
	f.create(thin("b", 3))
	f.remove("a")
	f.create(thin("a", 5))

	f.LVMSurface = m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{f.vg}, ThinOvercommit: 2})
	f.create(thin("c", 8))
	_, err = f.Create(t.Context(), thin("d", 1))
	f.fails("above twice the pool", err, volume.ErrNoSpace)
	groups, err := f.Groups(t.Context())
	if err != nil || len(groups) != 1 || len(groups[0].Pools) != 1 {
		t.Fatalf("Groups: %+v, %v", groups, err)
	}
	if p := groups[0].Pools[0]; p != (volume.Pool{Name: "pool", SizeBytes: 8 * LVMExtentBytes, VirtualBytes: 16 * LVMExtentBytes}) {
		t.Errorf("pool %+v", p)
	}
}

// case B28; trap 2: a failed question is never "removed"
func lvmRemove(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	for range 2 {
		if err := f.Remove(t.Context(), f.ref("v"), volume.Persistent); err != nil {
			t.Fatalf("Remove of what is not there: %v", err)
		}
	}
	f.create(f.linear("v", 1))
	f.fails("Remove as another kind", f.Remove(t.Context(), f.ref("v"), volume.Inline), volume.ErrPrecondition)
	f.there("v", true)
	f.remove("v")

	m.Make(t, f.ref("foreign"), LVMExtentBytes)
	m.Make(t, f.ref("other"), LVMExtentBytes, volume.OwnerTag("other.driver"), volume.KindTag(volume.Persistent))
	m.Make(t, f.ref("kindless"), LVMExtentBytes, volume.OwnerTag(lvmOwner))
	for _, lv := range []string{"foreign", "other", "kindless"} {
		f.fails("Remove "+lv, f.Remove(t.Context(), f.ref(lv), volume.Persistent), volume.ErrPrecondition)
		f.there(lv, true)
	}
	_, err := f.Lookup(t.Context(), f.ref("foreign"))
	f.fails("Lookup of a foreign one", err, volume.ErrPrecondition)

	f.create(f.linear("v", 1))
	m.Deactivate(t, f.ref("v"))
	f.remove("v")
}

// case B8; trap 11
func lvmRemoveInUse(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	f.create(f.linear("v", 8))
	release := m.Hold(t, f.ref("v"))
	f.fails("Remove of an open one", f.Remove(t.Context(), f.ref("v"), volume.Persistent), volume.ErrBusy)
	if d, err := f.Device(t.Context(), f.ref("v")); err != nil || d.Open != 1 {
		t.Errorf("Device: %+v, %v; want it open once", d, err)
	}
	release()
	release = m.Mount(t, f.ref("v"))
	f.fails("Remove of a mounted one", f.Remove(t.Context(), f.ref("v"), volume.Persistent), volume.ErrBusy)
	f.there("v", true)
	release()
	f.remove("v")
}

// case B47
func lvmRemoveOrigin(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	f.create(f.linear("v", 2))
	m.MakeSnapshot(t, f.ref("v"), "snap")
	f.fails("Remove of an origin", f.Remove(t.Context(), f.ref("v"), volume.Persistent), volume.ErrPrecondition)
	f.there("v", true)
	f.there("snap", true)
	if lv, err := f.Lookup(t.Context(), f.ref("v")); err != nil || lv.SizeBytes != 2*LVMExtentBytes {
		t.Errorf("Lookup of an origin: %+v, %v", lv, err)
	}
	m.Destroy(t, f.ref("snap"))
	f.remove("v")
}

// One command changes tags, all at once, and only of what is ours; again is the same.
func lvmRetag(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	made := f.create(f.linear("v", 1))
	retag := func(add, remove []string) {
		t.Helper()
		f.cost("Retag", 1, func() {
			if err := f.Retag(t.Context(), f.ref("v"), volume.Persistent, add, remove); err != nil {
				t.Fatalf("Retag: %v", err)
			}
		})
	}
	for _, state := range []string{"copying", "zeroing: 50 %", ""} {
		lv, err := f.Lookup(t.Context(), f.ref("v"))
		if err != nil {
			t.Fatal(err)
		}
		want := lv
		want.Tags.State = state
		add, remove := lv.Tags.Changes(want.Tags)
		for range 2 {
			retag(add, remove)
			f.cost("Lookup after Retag", 0, func() {
				if lv, err := f.Lookup(t.Context(), f.ref("v")); err != nil || lv != want {
					t.Errorf("Lookup: %+v, %v; want %+v", lv, err, want)
				}
			})
		}
	}
	if facts, _ := m.Facts(t, f.ref("v")); volume.ParseTags(facts.Tags) != made.Tags || len(facts.Tags) != len(made.Tags.Strings()) {
		t.Errorf("the machine says %q", facts.Tags)
	}
	f.cost("Retag of nothing", 0, func() {
		if err := f.Retag(t.Context(), f.ref("v"), volume.Persistent, nil, nil); err != nil {
			t.Errorf("Retag of nothing: %v", err)
		}
	})

	one := []string{"csi.state=x"}
	m.Make(t, f.ref("foreign"), LVMExtentBytes)
	m.Make(t, f.ref("other"), LVMExtentBytes, volume.OwnerTag("other.driver"), volume.KindTag(volume.Persistent))
	m.Make(t, f.ref("kindless"), LVMExtentBytes, volume.OwnerTag(lvmOwner))
	for _, lv := range []string{"foreign", "other", "kindless"} {
		f.fails("Retag "+lv, f.Retag(t.Context(), f.ref(lv), volume.Persistent, one, nil), volume.ErrPrecondition)
		if facts, _ := m.Facts(t, f.ref(lv)); slices.Contains(facts.Tags, one[0]) {
			t.Errorf("%s has %q", lv, facts.Tags)
		}
	}
	f.fails("Retag as another kind", f.Retag(t.Context(), f.ref("v"), volume.Inline, one, nil), volume.ErrPrecondition)
	f.fails("Retag of none", f.Retag(t.Context(), f.ref("none"), volume.Persistent, one, nil), volume.ErrNotFound)
	f.fails("Retag in another group", f.Retag(t.Context(), volume.Ref{VG: "not-ours", LV: "v"}, volume.Persistent, one, nil), volume.ErrInvalid)
	for _, bad := range []string{"", "-x", "a b", "a@b", volume.OwnerTag("x"), volume.KindTag(volume.Inline), strings.Repeat("a", 1025)} {
		f.fails("Retag with "+bad, f.Retag(t.Context(), f.ref("v"), volume.Persistent, []string{bad}, nil), volume.ErrInvalid)
		f.fails("Retag without "+bad, f.Retag(t.Context(), f.ref("v"), volume.Persistent, nil, []string{bad}), volume.ErrInvalid)
	}
	f.fails("Retag with and without", f.Retag(t.Context(), f.ref("v"), volume.Persistent, one, one), volume.ErrInvalid)
	if lv, err := f.Lookup(t.Context(), f.ref("v")); err != nil || lv != made {
		t.Errorf("Lookup at the end: %+v, %v; want %+v", lv, err, made)
	}
	f.remove("v")
}

// One command changes tags and settings; what is not named stays; again is the same.
func lvmTune(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 3)
	m.NewPool(t, f.ref("pool"), 8*LVMExtentBytes)
	tune := func(s volume.Spec, cost int, changes volume.Mutable) {
		t.Helper()
		lv, err := f.Lookup(t.Context(), s.Ref)
		if err != nil {
			t.Fatal(err)
		}
		had, err := lv.Tags.MutableParameters()
		if err != nil {
			t.Fatal(err)
		}
		before, _ := m.Settings(t, s.Ref)
		to := lv.Tags
		to.Mutable = had.With(changes).String()
		add, remove := lv.Tags.Changes(to)
		for i := range 2 {
			if _, ok := changes[volume.KeyReadAhead]; ok && i == 1 {
				cost = 3
			}
			f.cost("Tune "+changes.String(), cost, func() {
				if err := f.Tune(t.Context(), s.Ref, volume.Persistent, add, remove, changes); err != nil {
					t.Fatalf("Tune %s: %v", changes, err)
				}
			})
			if after, _ := m.Settings(t, s.Ref); after.String() != before.With(changes).String() {
				t.Errorf("Tune %s: the machine says %s, want %s", changes, after, before.With(changes))
			}
			if lv, err := f.Lookup(t.Context(), s.Ref); err != nil || lv.Tags != to {
				t.Errorf("Lookup: %+v, %v; want %+v", lv, err, to)
			}
		}
	}
	parse := func(kv ...string) volume.Mutable {
		params := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			params[kv[i]] = kv[i+1]
		}
		p, err := volume.ParseMutable(params)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, l := range []volume.Layout{{Type: volume.Linear}, {Type: volume.Thin, Pool: "pool"}} {
		s := f.spec("v", 2, l)
		f.create(s)
		tune(s, 1, parse(volume.KeyReadAhead, "512"))
		tune(s, 1, parse(volume.KeyReadAhead, "none"))
		tune(s, 1, parse(volume.KeyReadAhead, "auto"))
		f.remove("v")
	}
	s := f.spec("v", 2, volume.Layout{Type: volume.RAID1, Mirrors: 1})
	made := f.create(s)
	_, devices := m.Settings(t, s.Ref)
	if len(devices) != 2 {
		t.Fatalf("it lies on %v", devices)
	}
	tune(s, 1, parse(volume.KeyMinRecoveryRate, "100", volume.KeyMaxRecoveryRate, "200"))
	tune(s, 1, parse(volume.KeyMinRecoveryRate, "300", volume.KeyMaxRecoveryRate, "400"))
	tune(s, 1, parse(volume.KeyMinRecoveryRate, "0"))
	tune(s, 1, parse(volume.KeyWriteMostly, devices[1]))
	tune(s, 1, parse(volume.KeyWriteMostly, devices[0], volume.KeyMaxRecoveryRate, "0"))
	tune(s, 1, parse(volume.KeyWriteMostly, "none", volume.KeyReadAhead, "1024"))
	if d, err := f.Device(t.Context(), s.Ref); err != nil || d.Suspended {
		t.Errorf("Device: %+v, %v", d, err)
	}

	groups, err := f.Groups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	foreign := slices.IndexFunc(groups[0].PVs, func(p volume.PV) bool { return !slices.Contains(devices, p.Device) })
	now, err := f.Lookup(t.Context(), s.Ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"/dev/none", groups[0].PVs[foreign].Device} {
		changes := parse(volume.KeyWriteMostly, devices[0]+","+bad, volume.KeyReadAhead, "64")
		err := f.Tune(t.Context(), s.Ref, volume.Persistent, []string{"csi.state=x"}, nil, changes)
		f.fails("Tune "+changes.String(), err, volume.ErrInvalid)
		if lv, err := f.Lookup(t.Context(), s.Ref); err != nil || lv != now {
			t.Errorf("Lookup: %+v, %v; want %+v", lv, err, now)
		}
	}
	f.fails("Tune of none", f.Tune(t.Context(), f.ref("none"), volume.Persistent, nil, nil, parse(volume.KeyReadAhead, "64")), volume.ErrNotFound)
	f.fails("Tune of none", f.Tune(t.Context(), f.ref("none"), volume.Persistent, nil, nil, parse(volume.KeyWriteMostly, "/dev/x")), volume.ErrNotFound)
	f.fails("Tune as another kind", f.Tune(t.Context(), s.Ref, volume.Inline, nil, nil, parse(volume.KeyReadAhead, "64")), volume.ErrPrecondition)
	if made.UUID != now.UUID {
		t.Errorf("it was %s, and is %s", made.UUID, now.UUID)
	}
	f.remove("v")
}

func lvmBehindTheBack(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	r := f.ref("v")
	for range 3 {
		_, err := f.Lookup(t.Context(), r)
		f.fails("Lookup before", err, volume.ErrNotFound)
		m.Make(t, r, 3*LVMExtentBytes, volume.OwnerTag(lvmOwner), volume.KindTag(volume.Persistent))
		if lv, err := f.Lookup(t.Context(), r); err != nil || lv.SizeBytes != 3*LVMExtentBytes || lv.Tags.Kind != volume.Persistent {
			t.Fatalf("Lookup of what was made by hand: %+v, %v", lv, err)
		}
		if free := f.freeBytes(); free != (LVMExtentsPerPV-3)*LVMExtentBytes {
			t.Errorf("%d bytes free", free)
		}
		m.Destroy(t, r)
	}
	if free := f.freeBytes(); free != LVMExtentsPerPV*LVMExtentBytes {
		t.Errorf("%d bytes free at the end", free)
	}
	old := f.create(f.linear("v", 1))
	m.Destroy(t, r)
	m.Make(t, r, LVMExtentBytes, volume.OwnerTag(lvmOwner), volume.KindTag(volume.Persistent))
	if lv, err := f.Lookup(t.Context(), r); err != nil || lv.UUID == old.UUID {
		t.Errorf("Lookup of another one of the same name: %+v, %v", lv, err)
	}
	if _, err := f.Device(t.Context(), r); err != nil {
		t.Errorf("Device of another one of the same name: %v", err)
	}
}

func (f *lvmFixture) freeBytes() int64 {
	f.t.Helper()
	groups, err := f.Groups(f.t.Context())
	if err != nil || len(groups) == 0 {
		f.t.Fatalf("Groups: %+v, %v", groups, err)
	}
	var free int64
	for _, pv := range groups[0].PVs {
		free += pv.FreeBytes
	}
	if free != groups[0].FreeBytes {
		f.t.Fatalf("the group has %d bytes free, its physical volumes %d", groups[0].FreeBytes, free)
	}
	return free
}

func lvmLookupAll(t *testing.T, m LVMMachine) {
	a, b := m.NewGroup(t, 1), m.NewGroup(t, 1)
	f := &lvmFixture{m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{a, b}, ThinOvercommit: 1}), t, m, b}
	made := f.create(f.linear("v", 1))
	m.Make(t, volume.Ref{VG: a, LV: "v"}, LVMExtentBytes) // a foreign one of that name does not hide ours
	if lv, err := f.Lookup(t.Context(), volume.Ref{LV: "v"}); err != nil || lv != made {
		t.Errorf("Lookup: %+v, %v; want %+v", lv, err, made)
	}
	_, err := f.Lookup(t.Context(), volume.Ref{LV: "none"})
	f.fails("Lookup of none", err, volume.ErrNotFound)
}

// case B23, case B34; trap 9
func lvmActivate(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	f.create(f.linear("v", 1))
	m.Deactivate(t, f.ref("v"))
	_, err := f.Device(t.Context(), f.ref("v"))
	f.fails("Device of an inactive one", err, volume.ErrNotFound)
	if _, err := f.Lookup(t.Context(), f.ref("v")); err != nil {
		t.Errorf("Lookup of an inactive one: %v", err)
	}
	for range 2 {
		f.cost("Activate", 1, func() {
			if err := f.Activate(t.Context(), f.ref("v")); err != nil {
				t.Fatalf("Activate: %v", err)
			}
		})
		if _, err := f.Device(t.Context(), f.ref("v")); err != nil {
			t.Errorf("Device: %v", err)
		}
	}
	f.fails("Activate of none", f.Activate(t.Context(), f.ref("none")), volume.ErrNotFound)
}

func lvmDevice(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	f.create(f.linear("v", 3))
	f.create(f.linear("w", 1))
	f.cost("Device", 0, func() {
		v, err := f.Device(t.Context(), f.ref("v"))
		if err != nil || v.SizeBytes != 3*LVMExtentBytes || v.Open != 0 || v.Suspended || v.ReadOnly || v.Path != fmt.Sprintf("/dev/dm-%d", v.Minor) {
			t.Errorf("Device v: %#v, %v", v, err)
		}
		w, err := f.Device(t.Context(), f.ref("w"))
		if err != nil || (w.Major == v.Major && w.Minor == v.Minor) {
			t.Errorf("Device w: %+v, %v", w, err)
		}
		_, err = f.Device(t.Context(), f.ref("none"))
		f.fails("Device of none", err, volume.ErrNotFound)
		_, err = f.Device(t.Context(), volume.Ref{VG: "not-ours", LV: "v"})
		f.fails("Device in a group that is not ours", err, volume.ErrInvalid)
	})
}

// case B48: an old signature in reused extents neither stops lvcreate nor survives it
func lvmSignatures(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	for _, what := range []string{"ext4", "xfs", "LVM2_member", "swap"} {
		f.create(f.linear("v", LVMExtentsPerPV))
		m.Scribble(t, f.ref("v"), what)
		if got := m.Signature(t, f.ref("v")); got != what {
			t.Fatalf("scribbled %s, found %q", what, got)
		}
		f.remove("v")
		f.create(f.linear("v", LVMExtentsPerPV))
		if got := m.Signature(t, f.ref("v")); got != "" {
			t.Errorf("after %s: the new logical volume holds %q", what, got)
		}
		f.remove("v")
	}
}

// case B35: a volume's user makes a volume group in it
func lvmGuest(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	f.create(f.linear("v", 20))
	m.Scribble(t, f.ref("v"), "group of the same name")
	f.LVMSurface = m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{f.vg}, ThinOvercommit: 1})
	groups, err := f.Groups(t.Context())
	if err != nil || len(groups) != 1 || groups[0].SizeBytes != LVMExtentsPerPV*LVMExtentBytes {
		t.Fatalf("Groups: %+v, %v", groups, err)
	}
	f.create(f.linear("w", 1))
	f.remove("w")
	f.remove("v")
}

func lvmListGroups(t *testing.T, m LVMMachine) {
	a, b := m.NewGroup(t, 2), m.NewGroup(t, 1)
	l := m.NewLVM(t, LVMOptions{Owner: lvmOwner, VolumeGroups: []string{b, "*"}, ThinOvercommit: 1})
	f := &lvmFixture{l, t, m, b}
	if lvs, err := l.List(t.Context()); err != nil || len(lvs) != 0 {
		t.Errorf("List of nothing: %+v, %v", lvs, err)
	}
	f.create(f.linear("z", 1))
	f.create(f.linear("y", 1))
	s := f.linear("x", 1)
	s.VG = a
	f.create(s)
	m.Make(t, f.ref("foreign"), LVMExtentBytes)
	m.Make(t, f.ref("other"), LVMExtentBytes, volume.OwnerTag("other.driver"))
	lvs, err := l.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, lv := range lvs {
		got = append(got, lv.String())
	}
	want := []string{a + "/x", b + "/y", b + "/z"}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("List: %v, want %v", got, want)
	}
	groups, err := l.Groups(t.Context())
	if err != nil || len(groups) < 2 || groups[0].Name != b {
		t.Fatalf("Groups: %+v, %v; want %s first", groups, err, b)
	}
	i := slices.IndexFunc(groups, func(g volume.Group) bool { return g.Name == a })
	if i < 0 {
		t.Fatalf("Groups: %+v; want %s too", groups, a)
	}
	g := groups[i]
	const size = LVMExtentsPerPV * LVMExtentBytes
	if g.ExtentBytes != LVMExtentBytes || g.SizeBytes != 2*size || g.FreeBytes != 2*size-LVMExtentBytes || g.MissingPVs != 0 || len(g.PVs) != 2 || g.UUID == "" {
		t.Errorf("group %+v", g)
	}
	for _, pv := range g.PVs {
		if pv.SizeBytes != size || !pv.Allocatable || pv.Device == "" {
			t.Errorf("physical volume %+v", pv)
		}
	}
	if err := l.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
}

// case B28; traps 1, 2, 9: with a disk gone nothing is "not there"
func lvmPartial(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	f.create(f.linear("v", 2*LVMExtentsPerPV-4))
	m.Break(t, f.vg)
	lv, err := f.Lookup(t.Context(), f.ref("v"))
	if err != nil || !lv.Partial {
		t.Errorf("Lookup: %+v, %v; want it marked partial", lv, err)
	}
	_, err = f.Lookup(t.Context(), f.ref("none"))
	f.fails("Lookup of none", err, nil)
	_, err = f.Lookup(t.Context(), volume.Ref{LV: "none"})
	f.fails("Lookup of none in all groups", err, nil)
	f.fails("Remove of none", f.Remove(t.Context(), f.ref("none"), volume.Persistent), nil)
	groups, err := f.Groups(t.Context())
	if err != nil || len(groups) != 1 || groups[0].MissingPVs != 1 {
		t.Errorf("Groups: %+v, %v; want one missing", groups, err)
	}
	if err := f.Check(t.Context()); err == nil {
		t.Error("Check with a partial group only: no error")
	}
	_, err = f.Create(t.Context(), f.linear("w", 1))
	f.fails("Create", err, nil)
	// LVM itself would do it, and mark the missing disk as missing for good.
	f.fails("Remove", f.Remove(t.Context(), f.ref("v"), volume.Persistent), nil)
	f.fails("Retag", f.Retag(t.Context(), f.ref("v"), volume.Persistent, []string{"csi.state=x"}, nil), nil)
	f.fails("Retag of none", f.Retag(t.Context(), f.ref("none"), volume.Persistent, []string{"csi.state=x"}, nil), nil)
	f.there("v", true)
	_, err = f.Extend(t.Context(), f.ref("v"), volume.Persistent, (2*LVMExtentsPerPV-3)*LVMExtentBytes, 0)
	f.fails("Extend", err, nil)
}

// The figures of the table of LVM commands per call.
func lvmCommands(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	m.NewPool(t, f.ref("pool"), 16*LVMExtentBytes)
	if err := f.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, l := range []volume.Layout{{Type: volume.Linear}, {Type: volume.Striped, Stripes: 2}, {Type: volume.RAID1, Mirrors: 1}, {Type: volume.Thin, Pool: "pool"}} {
		for range 2 {
			f.cost("Lookup before "+string(l.Type), 0, func() { _, _ = f.Lookup(t.Context(), f.ref("v")) })
			f.cost("Create "+string(l.Type), 1, func() { f.create(f.spec("v", 2, l)) })
			f.cost("reads after Create "+string(l.Type), 0, func() {
				for range 3 {
					_, err := f.Lookup(t.Context(), f.ref("v"))
					_, err2 := f.List(t.Context())
					_, err3 := f.Groups(t.Context())
					_, err4 := f.Device(t.Context(), f.ref("v"))
					if err := errors.Join(err, err2, err3, err4, f.Check(t.Context())); err != nil {
						t.Fatal(err)
					}
				}
			})
			f.cost("Extend "+string(l.Type), 1, func() { f.extend("v", 4, 4) })
			f.cost("Extend again "+string(l.Type), 0, func() { f.extend("v", 3, 4) })
			f.cost("Remove "+string(l.Type), 1, func() {
				if err := f.Remove(t.Context(), f.ref("v"), volume.Persistent); err != nil {
					t.Fatal(err)
				}
			})
			f.cost("reads after Remove "+string(l.Type), 0, func() {
				_, err := f.Lookup(t.Context(), f.ref("v"))
				f.fails("Lookup", err, volume.ErrNotFound)
				f.freeBytes()
			})
		}
	}
	f.there("v", false)
}

func lvmConcurrent(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 2)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			name := fmt.Sprintf("v%d", i)
			if lv, err := f.Create(t.Context(), f.linear(name, 1)); err != nil || lv.LV != name {
				t.Errorf("Create %s: %+v, %v", name, lv, err)
			}
			if lv, err := f.Lookup(t.Context(), f.ref(name)); err != nil || lv.LV != name {
				t.Errorf("Lookup %s: %+v, %v", name, lv, err)
			}
			if i%2 == 0 {
				if err := f.Remove(t.Context(), f.ref(name), volume.Persistent); err != nil {
					t.Errorf("Remove %s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
	lvs, err := f.List(t.Context())
	if err != nil || len(lvs) != 3 {
		t.Errorf("List: %+v, %v; want 3", lvs, err)
	}
}

// What has not begun when the caller gives up is not begun.
func lvmCancelled(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	_, err := f.Create(ctx, f.linear("v", 1))
	f.fails("Create", err, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Create: %v, want the deadline named", err)
	}
	f.there("v", false)
}
