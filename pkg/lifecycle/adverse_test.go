package lifecycle

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// A create was cut off in the volume group that was the default then. What it left is nobody's, and is not handed out now that
// another is: it would be removed after its grace time.
func TestCutOffCreateInAnotherGroup(t *testing.T) {
	b := newRestoreBench(t)
	left := volume.Ref{VG: "data", LV: "pv"}
	b.make(left, volume.Tags{Owner: owner, Kind: volume.Persistent, Spec: "type=linear&mode=block"})
	rec := journal.Record{VolumeID: b.id(left), Kind: volume.Persistent, VG: left.VG, LV: left.LV, Intent: journal.Create}
	b.must(b.Journal.Put(t.Context(), rec))
	s := volume.Spec{Ref: volume.Ref{VG: "more", LV: "pv"}, AnyVG: true, Kind: volume.Persistent, Name: "pv", Layout: thick, RequiredBytes: 4 << 20}
	lv, err := b.Create(t.Context(), s)
	b.must(err)
	b.retry(rec.VolumeID)
	if !b.there(lv.Ref) {
		t.Errorf("%s was handed out, and is gone", lv.Ref)
	}
	if b.there(left) {
		t.Errorf("%s is still there", left)
	}
}

// A copy takes longer than a call may: what comes after it has time again.
func TestDeadlineInACopy(t *testing.T) {
	b := newRestoreBench(t)
	from := b.sourceOf(thick, false)
	ctx, cancel := context.WithCancel(t.Context())
	b.fail = func(e effect.Effect) error {
		if e.Op == "copy" {
			cancel()
		}
		return nil
	}
	s := restored("data", thick, from)
	s.Mutable = volume.Mutable{volume.KeyReadAhead: "512"}
	lv, err := b.Create(ctx, s)
	b.must(err)
	if got := b.holds(lv.Ref); got != content {
		t.Errorf("it holds %q", got)
	}
}

func (b *restoreBench) groupOf(name string, sources ...volume.Ref) ([]volume.LV, error) {
	return b.CreateGroup(b.t.Context(), volume.Ref{VG: sources[0].VG, LV: volume.LVName(volume.Together, name)}, name, sources, volume.CopyOnWrite{})
}

func (b *restoreBench) plain(vg, name string) volume.Ref {
	b.t.Helper()
	lv, err := b.Create(b.t.Context(), volume.Spec{Ref: volume.Ref{VG: vg, LV: name}, Kind: volume.Persistent, Name: name, Layout: thick, RequiredBytes: 4 << 20})
	b.must(err)
	return lv.Ref
}

// The name of a group of snapshots is taken, in whatever volume group its sources are.
func TestGroupNameOfOtherSources(t *testing.T) {
	b := newRestoreBench(t)
	one, other := b.plain("data", "one"), b.plain("more", "other")
	_, err := b.groupOf("g", one)
	b.must(err)
	if _, err := b.groupOf("g", other); !errors.Is(err, volume.ErrExists) {
		t.Errorf("a second group of one name: %v", err)
	}
}

// A volume group is not there for a while: the snapshots of a group that are elsewhere are not taken for what a call left that was cut
// off, and the group is not said to be gone.
func TestGroupOfWhichAPartIsAway(t *testing.T) {
	b := newRestoreBench(t)
	b.LVM, b.Inventory = b.tools.LVM, b.tools.LVM // with a glob
	one, other := b.plain("data", "one"), b.plain("more", "other")
	members, err := b.groupOf("g", one, other)
	b.must(err)
	back := b.m.DropGroup("more")
	if _, err := b.groupOf("g", one, other); err == nil || errors.Is(err, volume.ErrNotFound) {
		t.Errorf("made again: %v", err)
	}
	group := volume.Ref{VG: "data", LV: volume.LVName(volume.Together, "g")}
	if got, err := b.Members(t.Context(), group, members[0].Ref, members[1].Ref); err == nil {
		t.Errorf("its snapshots are said to be %v", got)
	}
	if _, err := b.groupOf("g", one); !errors.Is(err, volume.ErrExists) {
		t.Errorf("made of what is there alone: %v", err)
	}
	back()
	for _, lv := range members {
		if !b.there(lv.Ref) {
			t.Errorf("%s is gone", lv.Ref)
		}
	}
	b.m.DropGroup("data")() // both have been away
	back = b.m.DropGroup("data")
	if got, err := b.Members(t.Context(), group); err == nil {
		t.Errorf("its snapshots are said to be %v", got)
	}
	back()
	again, err := b.groupOf("g", one, other)
	b.must(err)
	if len(again) != len(members) || again[0].UUID != members[0].UUID {
		t.Errorf("%v, first %v", again, members)
	}
}

// Whether a snapshot is one of a group cannot be told: it is not deleted alone.
func TestDeleteSnapshotUnread(t *testing.T) {
	b := newRestoreBench(t)
	members, err := b.groupOf("g", b.plain("data", "one"), b.plain("data", "two"))
	b.must(err)
	unread := errors.New("cannot be read")
	b.LVM = lookless{b.LVM, unread}
	if err := b.DeleteSnapshot(t.Context(), members[0].Ref); !errors.Is(err, unread) {
		t.Errorf("deleted: %v", err)
	}
	if !b.there(members[0].Ref) {
		t.Error("a snapshot of a group was deleted alone")
	}
}

// lookless is an LVM that cannot read, and can write.
type lookless struct {
	LVM
	err error
}

func (l lookless) Lookup(context.Context, volume.Ref) (volume.LV, error) { return volume.LV{}, l.err }

// What an earlier change was about to do is not forgotten because a later one is wrong.
func TestRefusedModifyKeepsTheEarlier(t *testing.T) {
	b := newRestoreBench(t)
	r := volume.Ref{VG: "data", LV: "pv"}
	_, err := b.Create(t.Context(), volume.Spec{Ref: r, Kind: volume.Persistent, Name: "pv", Layout: volume.Layout{Type: volume.RAID1, Mirrors: 1}, RequiredBytes: 4 << 20})
	b.must(err)
	b.fail = func(e effect.Effect) error {
		if strings.Contains(e.Detail, "lvchange") {
			return errors.New("fault")
		}
		return nil
	}
	if err := b.Modify(t.Context(), r, volume.Mutable{volume.KeyReadAhead: "512"}); err == nil {
		t.Fatal("no fault")
	}
	b.fail = nil
	if err := b.Modify(t.Context(), r, volume.Mutable{volume.KeyWriteMostly: "/dev/none"}); !errors.Is(err, volume.ErrInvalid) {
		t.Fatalf("not refused: %v", err)
	}
	b.retry(b.id(r))
	if lv, err := b.LVM.Lookup(t.Context(), r); err != nil || lv.Tags.Mutable != "readAhead=512" {
		t.Errorf("the volume has %q, %v", lv.Tags.Mutable, err)
	}
}

// What was cut off, and cannot be had any more, is not tried for ever: the CO's repetition is told why.
func TestPendingModifyThatIsRefused(t *testing.T) {
	b := newRestoreBench(t)
	r := volume.Ref{VG: "data", LV: "pv"}
	_, err := b.Create(t.Context(), volume.Spec{Ref: r, Kind: volume.Persistent, Name: "pv", Layout: thick, RequiredBytes: 4 << 20})
	b.must(err)
	b.fail = func(e effect.Effect) error {
		if strings.Contains(e.Detail, "lvchange") {
			return errors.New("fault")
		}
		return nil
	}
	changes := volume.Mutable{volume.KeyReadAhead: "512"}
	if err := b.Modify(t.Context(), r, changes); err == nil {
		t.Fatal("no fault")
	}
	b.fail = nil
	b.m.AddSnapshot(r, "s", 4<<20)
	b.retry(b.id(r))
	if rec, pending, err := b.Journal.Get(b.id(r)); pending || err != nil {
		t.Errorf("still pending: %+v, %v", rec, err)
	}
	if err := b.Modify(t.Context(), r, changes); !errors.Is(err, volume.ErrPrecondition) {
		t.Errorf("repeated: %v", err)
	}
}

// The volume group of an inline volume that a pod has written to is not there, and another is the default now: the pod gets no new volume,
// which would be empty.
func TestInlineVolumeWhoseGroupIsAway(t *testing.T) {
	b := newBench(t)
	b.m.AddGroup("more", 4<<20, 256<<20)
	b.m.DropLV(inlineRef)
	b.mkdirs(filepath.Dir(target))
	publish := func(vg string) error {
		r := volume.Ref{VG: vg, LV: inlineRef.LV}
		return b.PublishInline(t.Context(), InlineRequest{
			Volume: Volume{ID: inlineID, Kind: volume.Inline, Ref: r}, Target: target,
			Spec: volume.Spec{Ref: r, AnyVG: true, Kind: volume.Inline, Name: inlineID, Layout: thick, Format: volume.Format{FS: volume.Ext4}, RequiredBytes: 8 << 20},
		})
	}
	b.must(publish("more"))
	b.must(b.m.WriteFile(target+"/f", "mine"))
	b.m.Reboot(true)
	back := b.m.DropGroup("more")
	if err := publish("data"); !errors.Is(err, volume.ErrPending) {
		t.Errorf("published while its group is away: %v", err)
	}
	if b.there(inlineRef) {
		t.Error("a second logical volume was made")
	}
	back()
	b.must(publish("data"))
	if got, err := b.m.ReadFile(target + "/f"); got != "mine" {
		t.Errorf("read %q, %v", got, err)
	}
}
