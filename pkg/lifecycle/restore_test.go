package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	sourceBytes = 32 << 20
	content     = "what the source holds"
)

var (
	thick = volume.Layout{Type: volume.Linear}
	thin  = volume.Layout{Type: volume.Thin, Pool: "pool"}
)

// restoreBench is a bench with two groups and pools, and a seam of which the test decides.
type restoreBench struct {
	*bench
	fail func(e effect.Effect) error
	seen []string
}

func newRestoreBench(t *testing.T) *restoreBench {
	b := &restoreBench{bench: newBench(t)}
	b.m.AddGroup("more", 4<<20, 256<<20)
	for _, vg := range []string{"data", "more"} {
		b.m.AddPool(vg, "pool", 128<<20)
	}
	tools := b.m.Connect(fake.Config{Owner: owner, Groups: []string{"data", "more"}, Effects: func(_ context.Context, e effect.Effect, do func() error) error {
		b.seen = append(b.seen, strings.Join(strings.Fields(e.Op + " " + e.Detail)[:min(3, len(strings.Fields(e.Op+" "+e.Detail)))], " "))
		if b.fail != nil {
			if err := b.fail(e); err != nil {
				return err
			}
		}
		return do()
	}})
	b.LVM, b.Inventory, b.Copier = tools.LVM, tools.LVM, tools.Copier
	return b
}

// source makes a volume with something in it, and a snapshot of it if asked for.
func (b *restoreBench) sourceOf(layout volume.Layout, snapshot bool) volume.Source {
	b.t.Helper()
	ctx := b.t.Context()
	lv, err := b.Create(ctx, volume.Spec{Ref: volume.Ref{VG: "data", LV: "src"}, Kind: volume.Persistent, Name: "src", Layout: layout, RequiredBytes: sourceBytes})
	b.must(err)
	d, err := b.LVM.Device(ctx, lv.Ref)
	b.must(err)
	b.must(b.m.WriteFile(d.Path, content))
	if !snapshot {
		return volume.Source{Kind: volume.Persistent, Ref: lv.Ref}
	}
	snap, err := b.CreateSnapshot(ctx, volume.Spec{
		Ref: volume.Ref{VG: "data", LV: volume.LVName(volume.Snapshot, "snap")}, Kind: volume.Snapshot, Name: "snap", Origin: volume.LV{Ref: lv.Ref},
	})
	b.must(err)
	b.must(b.m.WriteFile(d.Path, "what it holds later"))
	return volume.Source{Kind: volume.Snapshot, Ref: snap.Ref}
}

func restored(vg string, layout volume.Layout, from volume.Source) volume.Spec {
	return volume.Spec{Ref: volume.Ref{VG: vg, LV: "dst"}, Kind: volume.Persistent, Name: "dst", Layout: layout, Source: from}
}

func (b *restoreBench) holds(r volume.Ref) string {
	b.t.Helper()
	d, err := b.LVM.Device(b.t.Context(), r)
	b.must(err)
	got, err := b.m.ReadFile(d.Path)
	b.must(err)
	return strings.TrimRight(got, "\x00")
}

// wantOnly checks that these logical volumes of ours are there, and no record.
func (b *restoreBench) wantOnly(when string, names ...string) {
	b.t.Helper()
	all, err := b.Inventory.List(b.t.Context())
	b.must(err)
	var got []string
	for _, lv := range all {
		if lv.Tags.Kind != volume.Inline {
			got = append(got, lv.LV)
		}
	}
	slices.Sort(got)
	slices.Sort(names)
	if !slices.Equal(got, names) || len(b.Journal.All()) != 0 {
		b.t.Fatalf("%s: logical volumes %q, want %q; records %v", when, got, names, b.Journal.All())
	}
}

var snapLV = volume.LVName(volume.Snapshot, "snap")

// Each kind of source onto each kind of volume, in the same group and in another.
func TestRestore(t *testing.T) {
	for _, c := range []struct {
		from     volume.Layout
		snapshot bool
		to       volume.Layout
		vg       string
		commands int // LVM's
		copied   bool
	}{
		{thin, true, thin, "data", 1, false},
		{thin, false, thin, "data", 1, false},
		{thin, true, thick, "data", 4, true},
		{thin, false, thick, "data", 4, true},
		{thin, true, thin, "more", 4, true},
		{thick, true, thin, "data", 2, true}, // it is still by itself
		{thick, true, thick, "more", 2, true},
		{thick, false, thick, "data", 4, true},
		{thick, false, thin, "more", 4, true},
	} {
		t.Run(fmt.Sprintf("%s %t to %s of %s", c.from.Type, c.snapshot, c.to.Type, c.vg), func(t *testing.T) {
			b := newRestoreBench(t)
			from := b.sourceOf(c.from, c.snapshot)
			b.seen = nil
			s := restored(c.vg, c.to, from)
			lv, err := b.Create(t.Context(), s)
			b.must(err)
			if lv.SizeBytes != sourceBytes || lv.Tags.State != "" || lv.Tags.From != from.String() {
				t.Errorf("made is %+v", lv)
			}
			if got := b.holds(lv.Ref); got != content {
				t.Errorf("it holds %q", got)
			}
			commands := 0
			for _, e := range b.seen {
				if strings.HasPrefix(e, "run lvm") {
					commands++
				}
			}
			if copied := slices.ContainsFunc(b.seen, func(e string) bool { return strings.HasPrefix(e, "copy") }); copied != c.copied || commands != c.commands {
				t.Errorf("%d LVM commands, copied: %t, want %d, %t: %q", commands, copied, c.commands, c.copied, b.seen)
			}
			want := []string{"src", "dst"}
			if c.snapshot {
				want = append(want, snapLV)
			}
			b.wantOnly("made", want...)

			b.seen = nil
			again, err := b.Create(t.Context(), s)
			b.must(err)
			if again != lv || slices.ContainsFunc(b.seen, func(e string) bool { return !strings.HasPrefix(e, "fsync") }) {
				t.Errorf("again: %+v, %q", again, b.seen)
			}
			other := s
			other.Source.LV = "another"
			if _, err := b.Create(t.Context(), other); !errors.Is(err, volume.ErrExists) {
				t.Errorf("from another source: %v", err)
			}
		})
	}
}

func TestRestoreRefused(t *testing.T) {
	b := newRestoreBench(t)
	from := b.sourceOf(thin, true)
	for name, c := range map[string]struct {
		change func(*volume.Spec)
		want   error
	}{
		"source is not there":      {func(s *volume.Spec) { s.Source.LV = "s-00000000000000000000000000000000" }, volume.ErrNotFound},
		"source is no volume":      {func(s *volume.Spec) { s.Source.Kind = volume.Persistent }, volume.ErrNotFound},
		"limit below the source":   {func(s *volume.Spec) { s.LimitBytes = sourceBytes - 1 }, volume.ErrOutOfRange},
		"more than there is":       {func(s *volume.Spec) { s.RequiredBytes = 100 << 30 }, volume.ErrOutOfRange},
		"no such pool":             {func(s *volume.Spec) { s.Layout = volume.Layout{Type: volume.Thin, Pool: "none"} }, volume.ErrNoSpace},
		"name of another's volume": {func(s *volume.Spec) { s.Ref.LV, s.Name = "src", "src" }, volume.ErrExists},
	} {
		s := restored("data", thick, from)
		c.change(&s)
		if _, err := b.Create(t.Context(), s); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		b.wantOnly(name, "src", snapLV)
	}
}

// Whatever fails, and wherever: nothing is left, or the answer is that it is pending and the driver carries on; and the repeated call converges.
func TestRestoreFails(t *testing.T) {
	for n := 1; ; n++ {
		b := newRestoreBench(t)
		from := b.sourceOf(thick, false)
		count, failed := 0, false
		b.fail = func(effect.Effect) error {
			if count++; count == n {
				failed = true
				return errors.New("injected")
			}
			return nil
		}
		s := restored("data", thin, from)
		_, err := b.Create(t.Context(), s)
		b.fail = nil
		if !failed {
			if err != nil || n < 8 {
				t.Fatalf("%d effects, %v", n-1, err)
			}
			return
		}
		switch {
		case err == nil:
			t.Fatalf("effect %d failed: OK", n)
		case errors.Is(err, volume.ErrPending):
		default:
			b.wantOnly(fmt.Sprintf("effect %d failed", n), "src")
		}
		lv, err := b.Create(t.Context(), s)
		b.must(err)
		if got := b.holds(lv.Ref); got != content {
			t.Errorf("after the failure of effect %d it holds %q", n, got)
		}
		b.wantOnly("repeated", "src", "dst")
		b.must(b.Delete(t.Context(), lv.Ref))
		b.wantOnly("deleted", "src")
	}
}

// A copy takes as long as it takes: that nobody waits any more, and that the time of the call is over, ends nothing.
func TestRestoreOutlivesItsDeadline(t *testing.T) {
	b := newRestoreBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.fail = func(e effect.Effect) error {
		if e.Op == "copy" {
			cancel()
		}
		return nil
	}
	s := restored("data", thick, b.sourceOf(thin, false))
	lv, err := b.Create(ctx, s)
	b.must(err)
	if ctx.Err() == nil || b.holds(lv.Ref) != content {
		t.Errorf("it holds %q", b.holds(lv.Ref))
	}
	b.wantOnly("made", "src", "dst")

	ctx, cancel = context.WithCancel(t.Context())
	b.fail = func(e effect.Effect) error {
		if e.Op == "copy" {
			cancel()
			return errors.New("I/O error")
		}
		return nil
	}
	s.Ref.LV, s.Name = "other", "other"
	if _, err := b.Create(ctx, s); err == nil || errors.Is(err, volume.ErrPending) {
		t.Errorf("failed after its deadline: %v", err)
	}
	b.wantOnly("failed", "src", "dst")
}

// cutOffAt leaves what a kill at that effect of a copy leaves; the driver after it is b.
func (b *restoreBench) cutOffAt(s volume.Spec, name string) {
	b.t.Helper()
	dead := false
	b.fail = func(e effect.Effect) error {
		if dead = dead || strings.HasPrefix(e.Op+" "+e.Detail, name); dead {
			return errors.New("killed")
		}
		return nil
	}
	_, err := b.Create(b.t.Context(), s)
	if err == nil || !dead {
		b.t.Fatalf("cut off at %s: %v", name, err)
	}
	b.fail = nil
}

var cuts = []string{"copy", "fsync /dev/dm", "run lvm lvremove", "run lvm lvchange"}

// Without its record what is half copied is told by its tag: it is handed out to nobody, used by nobody, and taken up by the driver.
func TestRestoreWithoutItsRecord(t *testing.T) {
	temporary := volume.TemporaryLV("dst")
	lose := func(t *testing.T, cut string) (*restoreBench, volume.Spec) {
		b := newRestoreBench(t)
		s := restored("data", thick, b.sourceOf(thin, false))
		b.cutOffAt(s, cut)
		b.must(os.RemoveAll(filepath.Join(b.state, "journal")))
		store, err := journal.Open(t.Context(), b.state, "node-1", nil)
		b.must(err)
		b.Journal = store
		if lv, err := b.LVM.Lookup(t.Context(), s.Ref); err != nil || lv.Tags.State != volume.Copying {
			t.Fatalf("cut off at %s: %+v, %v", cut, lv, err)
		}
		return b, s
	}
	for _, cut := range cuts {
		t.Run(cut, func(t *testing.T) {
			b, s := lose(t, cut)
			v := Volume{ID: b.id(s.Ref), Kind: volume.Persistent, Ref: s.Ref}
			if err := b.Stage(t.Context(), StageRequest{Volume: v, Path: "/tmp", Capability: volume.Capability{Block: true}}); !errors.Is(err, volume.ErrPrecondition) {
				t.Errorf("staged: %v", err)
			}
			lv, err := b.Create(t.Context(), s)
			b.must(err)
			if got := b.holds(lv.Ref); got != content {
				t.Errorf("repeated, it holds %q", got)
			}
			b.wantOnly("repeated", "src", "dst")

			b, s = lose(t, cut)
			b.must(b.Delete(t.Context(), s.Ref))
			b.wantOnly("deleted", "src")

			b, _ = lose(t, cut)
			b.Timing.CreateGrace, b.Timing.FirstRetry = time.Millisecond, time.Millisecond // it may be due before its lock is free
			b.lostCopies(t.Context())
			for end := time.Now().Add(20 * time.Second); len(b.Journal.All()) != 0; <-time.Tick(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("not taken up: %v", b.Journal.All())
				}
			}
			b.wantOnly("taken up", "src")
		})
	}
	t.Run("only the temporary snapshot", func(t *testing.T) {
		b, s := lose(t, "run lvm lvremove")
		b.m.DropLV(s.Ref) // by hand
		b.wantOnly("before", "src", temporary)
		release, err := b.Locks.Try("dst", "a copy")
		b.must(err)
		b.lostCopies(t.Context())
		b.wantOnly("while a call is at it", "src", temporary)
		release()
		b.lostCopies(t.Context())
		b.wantOnly("after", "src")
	})
	t.Run("while a call is at it", func(t *testing.T) {
		b, _ := lose(t, "copy")
		release, err := b.Locks.Try("dst", "a copy")
		b.must(err)
		b.lostCopies(t.Context())
		release()
		b.wantOnly("nothing is done", "src", "dst", temporary)
	})
}

// A clone of a large thick volume finds room for a small store at least, and says what there is no room for.
func TestRestoreWithLittleRoom(t *testing.T) {
	for _, c := range []struct {
		free int64 // beside the source and the volume
		want error
	}{{8 << 20, nil}, {0, volume.ErrNoSpace}} {
		b := newRestoreBench(t)
		b.m.AddGroup("tight", 4<<20, 2*sourceBytes+c.free)
		tools := b.m.Connect(fake.Config{Owner: owner, Groups: []string{"data", "tight"}})
		b.LVM, b.Inventory, b.Copier = tools.LVM, tools.LVM, tools.Copier
		src, err := b.Create(t.Context(), volume.Spec{Ref: volume.Ref{VG: "tight", LV: "src"}, Kind: volume.Persistent, Name: "src", Layout: thick, RequiredBytes: sourceBytes})
		b.must(err)
		_, err = b.Create(t.Context(), restored("tight", thick, volume.Source{Kind: volume.Persistent, Ref: src.Ref}))
		if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), "temporary snapshot") {
			t.Errorf("%d bytes free: %v", c.free, err)
		}
	}
}
