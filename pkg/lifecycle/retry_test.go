package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// lateBench is a lifecycle that retries fast, over a machine of which the test decides what fails.
type lateBench struct {
	*Lifecycle
	m *fake.Machine

	mu   sync.Mutex
	told []string
	fail func(e effect.Effect) error
}

func newLateBench(t *testing.T, timing Timing) *lateBench {
	b := &lateBench{m: fake.New()}
	b.m.AddGroup("data", 4<<20, 512<<20)
	tools := b.m.Connect(fake.Config{Owner: owner, Groups: []string{"data"}, Effects: func(_ context.Context, e effect.Effect, do func() error) error {
		b.mu.Lock()
		fail := b.fail
		b.mu.Unlock()
		if fail != nil {
			if err := fail(e); err != nil {
				return err
			}
		}
		return do()
	}})
	store, err := journal.Open(t.Context(), t.TempDir(), "node-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Lifecycle = New(Config{
		Owner: owner, Node: "node-1", LVM: tools.LVM, Mounts: tools.Mounts, Paths: tools.Paths, FS: tools.Filesystems,
		Journal: store, Locks: &keylock.Locks{}, Inventory: tools.LVM, KubeletDir: kubelet, Timing: timing, Thin: tools.LVM,
		Log: func(msg string, _ ...any) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.told = append(b.told, msg)
		},
	})
	t.Cleanup(func() { b.Stop(context.Background()) })
	return b
}

func (b *lateBench) add(kind volume.Kind, r volume.Ref) {
	b.m.AddLV(r, volume.Layout{Type: volume.Linear}, 64<<20, volume.Tags{Owner: owner, Kind: kind}.Strings()...)
}

// wait waits until the logical volume, and its record, are gone.
func (b *lateBench) wait(t *testing.T, r volume.Ref) {
	t.Helper()
	gone := func() bool {
		_, there := b.m.LV(r)
		return !there && len(b.Journal.All()) == 0
	}
	for end := time.Now().Add(20 * time.Second); !gone(); <-time.Tick(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is left, or its record: %v", r, b.Journal.All())
		}
	}
}

// A teardown that is late is told of when it begins to be, and when it has ended; not each time it is tried.
func TestLateIsToldOnceAndOnce(t *testing.T) {
	b := newLateBench(t, Timing{BusyWait: time.Millisecond, FirstRetry: time.Millisecond, FailedRetry: 2 * time.Millisecond})
	b.add(volume.Inline, inlineRef)
	tries := 0
	b.fail = func(e effect.Effect) error {
		if tries++; e.Op == "run" && tries < 6 {
			return errors.New("lvremove: exit status 5")
		}
		return nil
	}
	v := Volume{ID: inlineID, Kind: volume.Inline, Ref: volume.Ref{LV: inlineID}}
	err := b.Unpublish(t.Context(), v, target)
	if err == nil || errors.Is(err, volume.ErrBusy) || !strings.Contains(err.Error(), "left to do") || !strings.Contains(err.Error(), "tries again by itself") {
		t.Errorf("got %v", err)
	}
	b.wait(t, inlineRef)
	b.Stop(t.Context()) // the last try has told what it has to tell
	if got, want := fmt.Sprint(b.told), "[a teardown is unfinished and will be carried on an unfinished teardown has ended]"; got != want {
		t.Errorf("told %s after %d tries, want %s", got, tries, want)
	}
}

// Nothing is decided by the clock of the machine: the time in a record is for people.
func TestTheClockDecidesNothing(t *testing.T) {
	const grace = 100 * time.Millisecond
	for _, since := range []time.Time{time.Unix(0, 0), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
		b := newLateBench(t, Timing{FirstRetry: time.Millisecond, CreateGrace: grace})
		made := volume.Ref{VG: "data", LV: "made"}
		b.add(volume.Inline, inlineRef)
		b.add(volume.Persistent, made)
		for _, rec := range []journal.Record{
			{VolumeID: inlineID, Kind: volume.Inline, VG: "data", LV: inlineID, Intent: journal.Reclaim, Since: since},
			{VolumeID: "node-1/data/made", Kind: volume.Persistent, VG: "data", LV: "made", Intent: journal.Create, Since: since},
		} {
			if err := b.Journal.Put(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		b.Start()
		b.wait(t, made)
		if took := time.Since(start); took < grace {
			t.Errorf("a create since %v was undone after %v", since, took)
		}
		if _, there := b.m.LV(inlineRef); there {
			t.Errorf("a teardown since %v was not taken up", since)
		}
	}
}

// The volume group was renamed while work was pending: an inline volume is found by its name, which is its own alone; of a
// persistent one the error says what to do.
func TestRenamedGroup(t *testing.T) {
	b := newLateBench(t, Timing{BusyWait: time.Millisecond, FirstRetry: time.Millisecond, FailedRetry: 2 * time.Millisecond})
	b.add(volume.Inline, inlineRef)
	made := volume.Ref{VG: "data", LV: "made"}
	b.add(volume.Persistent, made)
	for path, r := range map[string]volume.Ref{target: inlineRef, "/staged": made} {
		d, err := b.LVM.Device(t.Context(), r)
		if err == nil {
			err = b.FS.Format(t.Context(), d, volume.Format{FS: volume.Ext4})
		}
		if err == nil {
			_, err = b.Paths.Make(t.Context(), path, false)
		}
		if err == nil {
			err = b.Mounts.Mount(t.Context(), d, path, volume.MountOptions{FS: volume.Ext4})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, rec := range []journal.Record{
		{VolumeID: inlineID, Kind: volume.Inline, VG: "before", LV: inlineID, Intent: journal.Reclaim, Paths: []journal.Path{{Path: target, Role: journal.Target}}},
		{VolumeID: "node-1/before/made", Kind: volume.Persistent, VG: "before", LV: "made", Intent: journal.Reclaim, Paths: []journal.Path{{Path: "/staged", Role: journal.Staging}}},
	} {
		if err := b.Journal.Put(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		b.retry(rec.VolumeID)
	}
	if _, there := b.m.LV(inlineRef); there {
		t.Error("the inline volume is left")
	}
	if _, pending, _ := b.Journal.Get(inlineID); pending {
		t.Error("its record is left")
	}
	rec, _, _ := b.Journal.Get("node-1/before/made")
	if err := b.reclaim(t.Context(), rec, rec.Paths, false); err == nil || !strings.Contains(err.Error(), "vgrename") {
		t.Errorf("got %v", err)
	}
}
