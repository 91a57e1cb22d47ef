package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	owner   = "local-lvm.csi.internal"
	kubelet = "/var/lib/kubelet"
	podA    = "8f1d2c5a-0000-4000-8000-00000000000a"
	podB    = "8f1d2c5a-0000-4000-8000-00000000000b" // its folder is there, as that of the driver's own pod always is
)

var (
	inlineID  = "csi-" + strings.Repeat("a", 64)
	inlineRef = volume.Ref{VG: "data", LV: inlineID}
	target    = kubelet + "/pods/" + podA + "/volumes/kubernetes.io~csi/scratch/mount"
)

// bench is a machine with an inline volume of pod A, whose folder is gone, and a lifecycle over it that does nothing by
// itself: the test looks for orphans.
type bench struct {
	*Lifecycle
	t     *testing.T
	m     *fake.Machine
	tools fake.Tools
	state string
	told  []string
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, m: fake.New(), state: t.TempDir()}
	b.m.AddGroup("data", 4<<20, 512<<20, 512<<20)
	b.tools = b.m.Connect(fake.Config{Owner: owner, Groups: []string{"data", "mor*"}})
	store, err := journal.Open(t.Context(), b.state, "node-1", nil)
	b.must(err)
	b.Lifecycle = New(Config{
		Owner: owner, Node: "node-1", LVM: b.tools.LVM, Mounts: b.tools.Mounts, Paths: b.tools.Paths, FS: b.tools.Filesystems,
		Journal: store, Locks: &keylock.Locks{}, Inventory: b.tools.LVM, KubeletDir: kubelet, Orphans: RemoveOrphans,
		Timing: Timing{OrphanGrace: time.Nanosecond, FirstRetry: time.Hour, FailedRetry: time.Hour},
		Log:    func(msg string, kv ...any) { b.told = append(b.told, msg+" "+fmt.Sprint(kv...)) },
	})
	b.must(b.m.Mkdir(kubelet + "/pods/" + podB))
	b.make(inlineRef, volume.Tags{Owner: owner, Kind: volume.Inline, PodUID: podA})
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) make(r volume.Ref, tags volume.Tags) {
	b.m.AddLV(r, volume.Layout{Type: volume.Linear}, 64<<20, tags.Strings()...)
}

func (b *bench) setTags(tags ...string) {
	b.m.EditLV(inlineRef, func(s *fake.State) { s.Tags = tags })
}

func (b *bench) record(intent journal.Intent, path string) {
	b.must(b.Journal.Put(b.t.Context(), journal.Record{
		VolumeID: inlineID, Kind: volume.Inline, VG: "data", LV: inlineID, Intent: intent,
		Paths: []journal.Path{{Path: path, Role: journal.Target}}, Since: time.Now(),
	}))
}

func (b *bench) mkdirs(path string) {
	if f, err := b.m.Lstat(path); err == nil && f.Kind == 0 {
		b.mkdirs(filepath.Dir(path))
		b.must(b.m.Mkdir(path))
	}
}

func (b *bench) there(r volume.Ref) bool { _, ok := b.m.LV(r); return ok }

func (b *bench) heard(words string) (n int) {
	for _, line := range b.told {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

// cases B11, B12: what is removed, and all that keeps it.
func TestReap(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(b *bench)
		gone    bool
	}{
		{"all evidence", func(*bench) {}, true},
		{"inactive", func(b *bench) { b.m.EditLV(inlineRef, func(s *fake.State) { s.Active = false }) }, true},
		{"a record of its publish", func(b *bench) { b.record(journal.Publish, target) }, true},
		{"known by its record alone", func(b *bench) {
			b.setTags(volume.Tags{Owner: owner, Kind: volume.Inline}.Strings()...)
			b.record(journal.Publish, target)
		}, true},
		{"kubelet's folder is a link", func(b *bench) {
			b.must(b.m.Symlink(kubelet, "/kubelet"))
			b.KubeletDir = "/kubelet"
			b.record(journal.Publish, target)
		}, true},

		{"its pod is there", func(b *bench) { b.mkdirs(kubelet + "/pods/" + podA) }, false},
		{"its pod is a file", func(b *bench) { b.must(b.m.WriteFile(kubelet+"/pods/"+podA, "")) }, false},
		{"tag and record name two pods, one is there", func(b *bench) {
			b.record(journal.Publish, strings.ReplaceAll(target, podA, podB))
		}, false},
		{"no pod is known", func(b *bench) { b.setTags(volume.Tags{Owner: owner, Kind: volume.Inline}.Strings()...) }, false},
		{"the tag names no folder", func(b *bench) {
			b.setTags(volume.Tags{Owner: owner, Kind: volume.Inline, PodUID: "../pods"}.Strings()...)
		}, false},
		{"its target is elsewhere", func(b *bench) { b.record(journal.Publish, "/elsewhere/pods/"+podA+"/mount") }, false},
		{"kubelet's folder is missing", func(b *bench) { b.KubeletDir = "/var/lib/other" }, false},
		{"kubelet's folder is a file", func(b *bench) {
			b.must(b.m.WriteFile("/var/lib/other", ""))
			b.KubeletDir = "/var/lib/other"
		}, false},
		{"pods is a file", func(b *bench) {
			b.mkdirs("/other")
			b.must(b.m.WriteFile("/other/pods", ""))
			b.KubeletDir = "/other"
		}, false},
		{"pods is empty, as when its disk is not mounted", func(b *bench) { b.must(b.m.Remove(kubelet + "/pods/" + podB)) }, false},
		{"mounted", func(b *bench) {
			b.mkdirs("/mnt")
			d, err := b.tools.LVM.Device(t.Context(), inlineRef)
			b.must(err)
			b.must(b.tools.Filesystems.Format(t.Context(), d, volume.Format{FS: volume.Ext4}))
			b.must(b.tools.Mounts.Mount(t.Context(), d, "/mnt", volume.MountOptions{FS: volume.Ext4}))
		}, false},
		{"open", func(b *bench) { b.m.HoldDevice(inlineRef) }, false},
		{"suspended", func(b *bench) { b.m.EditLV(inlineRef, func(s *fake.State) { s.Suspended = true }) }, false},
		{"a call is at it", func(b *bench) {
			_, err := b.Locks.Try(volume.LockKey(inlineID), "a test")
			b.must(err)
		}, false},
		{"not ours", func(b *bench) { b.setTags("csi.kind=inline", "csi.pod="+podA) }, false},
		{"another driver's", func(b *bench) {
			b.setTags(volume.Tags{Owner: "other.example", Kind: volume.Inline, PodUID: podA}.Strings()...)
		}, false},
		{"persistent", func(b *bench) {
			b.setTags(volume.Tags{Owner: owner, Kind: volume.Persistent, PodUID: podA}.Strings()...)
		}, false},
		{"not whole", func(b *bench) {
			b.setTags(volume.Tags{Owner: owner, Kind: volume.Inline, PodUID: podA, State: "copying"}.Strings()...)
		}, false},
		{"partial", func(b *bench) { b.m.LosePV("data", "/dev/data0") }, false},
		{"renamed", func(b *bench) {
			b.setTags(volume.Tags{Owner: owner, Kind: volume.Inline, PodUID: podA, Name: "csi-" + strings.Repeat("b", 64)}.Strings()...)
		}, false},
		{"the record names another logical volume", func(b *bench) {
			b.must(b.Journal.Put(t.Context(), journal.Record{VolumeID: inlineID, Kind: volume.Inline, VG: "other", LV: inlineID,
				Intent: journal.Publish, Paths: []journal.Path{{Path: target, Role: journal.Target}}}))
		}, false},
		{"a teardown is under way", func(b *bench) { b.record(journal.Reclaim, target) }, false},
		{"its record is damaged", func(b *bench) {
			b.record(journal.Publish, target)
			files, err := filepath.Glob(b.state + "/journal/*.json")
			b.must(err)
			b.must(os.WriteFile(files[0], []byte("{"), 0o600))
			b.Journal, err = journal.Open(t.Context(), b.state, "node-1", nil)
			b.must(err)
		}, false},
		{"the group cannot be read", func(b *bench) { b.m.FailReads("data", os.ErrPermission) }, false},
		{"another group has one of it", func(b *bench) {
			b.m.AddGroup("more", 4<<20, 512<<20)
			b.make(volume.Ref{VG: "more", LV: inlineID}, volume.Tags{Owner: owner, Kind: volume.Inline, PodUID: podA})
		}, false},
		{"only to be reported", func(b *bench) { b.Orphans = ReportOrphans }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			other := volume.Ref{VG: "data", LV: "pvc-1"}
			b.make(other, volume.Tags{Owner: owner, Kind: volume.Persistent})
			c.prepare(b)
			before := b.Journal.All()
			b.look(t.Context())
			if !b.there(inlineRef) {
				t.Fatal("removed at the first look")
			}
			for range 3 {
				b.look(t.Context())
			}
			if b.there(inlineRef) == c.gone {
				t.Errorf("gone %t, want %t; told %q", !c.gone, c.gone, b.told)
			}
			after := b.Journal.All()
			if c.gone && len(after) != 0 || !c.gone && fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("records: %v, before %v", after, before)
			}
			if !b.there(other) {
				t.Error("a persistent volume is gone")
			}
		})
	}
}

func TestReapGraceBeginsAnew(t *testing.T) {
	for name, between := range map[string]func(b *bench){
		"a question fails": func(b *bench) {
			b.m.FailReads("data", os.ErrPermission)
			b.look(t.Context())
			b.m.FailReads("data", nil)
		},
		"its pod is back": func(b *bench) {
			b.mkdirs(kubelet + "/pods/" + podA)
			b.look(t.Context())
			b.must(b.m.Remove(kubelet + "/pods/" + podA))
		},
		"it was opened": func(b *bench) {
			release := b.m.HoldDevice(inlineRef)
			b.look(t.Context())
			release()
		},
		"another of its name": func(b *bench) {
			b.m.DropLV(inlineRef)
			b.make(inlineRef, volume.Tags{Owner: owner, Kind: volume.Inline, PodUID: podA})
		},
		// Between two looks the pod came, published and went, and the publish was cut off.
		"a publish": func(b *bench) {
			err := b.PublishInline(t.Context(), InlineRequest{
				Volume: Volume{ID: inlineID, Kind: volume.Inline, Ref: inlineRef}, Target: target,
				Spec: volume.Spec{Ref: inlineRef, Kind: volume.Inline, Name: inlineID, RequiredBytes: 1 << 40},
			})
			if err == nil {
				b.t.Fatal("published")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.look(t.Context())
			between(b)
			b.look(t.Context())
			if !b.there(inlineRef) {
				t.Fatal("removed at the first look of a new grace time")
			}
			b.look(t.Context())
			if b.there(inlineRef) {
				t.Errorf("not removed at the second; told %q", b.told)
			}
		})
	}
}

func TestReapWaitsForTheGrace(t *testing.T) {
	b := newBench(t)
	b.Timing.OrphanGrace = time.Hour
	for range 10 {
		b.look(t.Context())
	}
	if !b.there(inlineRef) {
		t.Error("removed before its time")
	}
	b.reaper.orphans[inlineID].since = time.Now().Add(-2 * time.Hour)
	b.look(t.Context())
	if b.there(inlineRef) {
		t.Error("kept after its time")
	}
}

// A kill between record and lvcreate leaves a record only; it goes in the same way.
func TestReapRecordWithoutLV(t *testing.T) {
	b := newBench(t)
	b.m.DropGroup("data")
	b.record(journal.Publish, target)
	for range 3 {
		b.look(t.Context())
	}
	if recs := b.Journal.All(); len(recs) != 1 || recs[0].Intent != journal.Publish {
		t.Fatalf("records %v, though nobody knows whether the logical volume is there", recs)
	}
	b.m.AddGroup("data", 4<<20, 512<<20)
	b.look(t.Context())
	b.look(t.Context())
	if left := b.Journal.All(); len(left) != 0 {
		t.Errorf("records are left: %v; told %q", left, b.told)
	}
}

func TestReapReportsOnce(t *testing.T) {
	for name, prepare := range map[string]func(b *bench){
		"--orphan-policy=report": func(b *bench) { b.Orphans = ReportOrphans },
		"may be needed":          func(b *bench) { b.setTags(volume.Tags{Owner: owner, Kind: volume.Inline}.Strings()...) },
	} {
		b := newBench(t)
		prepare(b)
		for range 5 {
			b.look(t.Context())
		}
		if b.heard(name) != 1 || b.heard("no orphan any more") != 0 {
			t.Errorf("%s: told %q", name, b.told)
		}
		b.m.DropLV(inlineRef)
		b.look(t.Context())
		b.look(t.Context())
		if b.heard("no orphan any more") != 1 {
			t.Errorf("%s: told %q", name, b.told)
		}
	}
}

// What goes wrong is told when it changes, not at each look.
func TestReapTellsDoubtOnce(t *testing.T) {
	b := newBench(t)
	b.m.FailReads("data", os.ErrPermission)
	for range 5 {
		b.look(t.Context())
	}
	if b.heard("cannot be looked for") != 1 {
		t.Errorf("told %q", b.told)
	}
}

// A removal that fails is a teardown like any other, and is carried on.
func TestReapRemovalFails(t *testing.T) {
	b := newBench(t)
	b.look(t.Context())
	b.make(volume.Ref{VG: "data", LV: "other"}, volume.Tags{})
	b.m.AddSnapshot(inlineRef, "snap", 4<<20) // LVM would drop it with its origin
	b.look(t.Context())
	recs := b.Journal.All()
	if len(recs) != 1 || recs[0].Intent != journal.Reclaim || !b.there(inlineRef) {
		t.Fatalf("records %v, there %t; told %q", recs, b.there(inlineRef), b.told)
	}
	b.m.DropLV(volume.Ref{VG: "data", LV: "snap"})
	if b.retries.late[inlineID] == nil {
		t.Error("it is not tried again")
	}
	b.retry(inlineID)
	if b.there(inlineRef) || len(b.Journal.All()) != 0 {
		t.Errorf("left: %v; told %q", b.Journal.All(), b.told)
	}
}

// A look costs no LVM command, and a volume in use not even its lock.
func TestReapIsCheap(t *testing.T) {
	b := newBench(t)
	b.mkdirs(kubelet + "/pods/" + podA)
	b.look(t.Context())
	before := b.m.Commands()
	_, err := b.Locks.Try(volume.LockKey(inlineID), "a test")
	b.must(err)
	for range 10 {
		b.look(t.Context())
	}
	if after := b.m.Commands(); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("commands: %v, then %v", before, after)
	}
}

// Suspended devices are resumed, and not touched until then.
func TestSuspended(t *testing.T) {
	b := newBench(t)
	b.m.EditLV(inlineRef, func(s *fake.State) { s.Suspended = true })
	if _, _, err := b.device(t.Context(), inlineRef); err == nil || !strings.Contains(err.Error(), "resumes it by itself") || !onlyBusy(err) {
		t.Fatalf("got %v", err)
	}
	select {
	case <-b.keepers.met:
	default:
		t.Error("nobody was told")
	}
	b.m.FailReads("data", os.ErrPermission)
	b.resumeOnce()
	b.resumeOnce()
	if _, _, err := b.device(t.Context(), inlineRef); err == nil || !strings.Contains(err.Error(), "lvchange --refresh") || onlyBusy(err) {
		t.Errorf("got %v", err)
	}
	if b.heard("stay suspended") != 1 {
		t.Errorf("told %q", b.told)
	}
	b.m.FailReads("data", nil)
	b.resumeOnce()
	if _, active, err := b.device(t.Context(), inlineRef); err != nil || !active {
		t.Errorf("got %t, %v", active, err)
	}
	if !slices.ContainsFunc(b.told, func(s string) bool { return strings.HasPrefix(s, "resumed") }) {
		t.Errorf("told %q", b.told)
	}
}
