package volume

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseSnapshotParameters(t *testing.T) {
	for v, want := range map[string]CopyOnWrite{
		"64Mi": {Bytes: 64 << 20}, "1": {Bytes: 1}, "1%": {Percent: 1}, "1000%": {Percent: 1000},
	} {
		got, err := ParseSnapshotParameters(map[string]string{KeySnapshotSize: v, "csi.storage.k8s.io/volumesnapshot/name": "x"})
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", v, got, err)
		}
	}
	if got, err := ParseSnapshotParameters(nil); err != nil || got != (CopyOnWrite{}) {
		t.Errorf("nothing said: %+v, %v", got, err)
	}
	for _, v := range []string{"", "0", "0%", "-1%", "+1%", "1001%", "1.5%", "%", "50 %", "much", "4294967297%"} {
		_, err := ParseSnapshotParameters(map[string]string{KeySnapshotSize: v})
		wantField(t, err, "parameters[snapshotSize]")
	}
	_, err := ParseSnapshotParameters(map[string]string{"snapshotsize": "1Gi"})
	wantField(t, err, "parameters[snapshotsize]")
}

// The sizes by default are those to which lvcreate 2.03.16 cuts one that is too large.
func TestStoreBytes(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		asked                CopyOnWrite
		origin, extent, want int64
	}{
		{CopyOnWrite{}, 64 * mib, 4 * mib, 68 * mib},
		{CopyOnWrite{}, 4 * mib, 4 * mib, 8 * mib},
		{CopyOnWrite{}, 1 << 40, 4 * mib, 1<<40 + 4100*mib},
		{CopyOnWrite{Bytes: 1}, 64 * mib, 4 * mib, 4 * mib},
		{CopyOnWrite{Bytes: 5 * mib}, 64 * mib, 4 * mib, 8 * mib},
		{CopyOnWrite{Bytes: 1 << 62}, 64 * mib, 4 * mib, 68 * mib},
		{CopyOnWrite{Percent: 50}, 64 * mib, 4 * mib, 32 * mib},
		{CopyOnWrite{Percent: 1000}, 64 * mib, 4 * mib, 68 * mib},
		{CopyOnWrite{Percent: 1000}, 1 << 60, 4 * mib, CopyOnWrite{}.StoreBytes(1<<60, 4*mib)},
	} {
		if got := tt.asked.StoreBytes(tt.origin, tt.extent); got != tt.want {
			t.Errorf("%+v of %d: %d, want %d", tt.asked, tt.origin, got, tt.want)
		}
	}
}

func TestSnapshotTags(t *testing.T) {
	origin := Spec{Ref: Ref{"vg", "v"}, Kind: Persistent, Name: "v", Layout: Layout{Type: Thin, Pool: "p"}, Format: Format{FS: XFS, MkfsOptions: []string{"-K"}}}
	s := Spec{
		Ref: Ref{"vg", LVName(Snapshot, "s")}, Kind: Snapshot, Name: "s", Created: time.Unix(0, 1234567890123456789), CopyOnWrite: CopyOnWrite{Percent: 20},
		Origin: LV{Ref: origin.Ref, SizeBytes: 1 << 30, Type: Thin, Tags: origin.Tags("d")},
	}
	tags := s.Tags("d")
	checkTags(t, tags)
	source, ok := tags.Source()
	format, told := tags.Format()
	if !ok || source != origin.Ref || !told || format.FS != XFS || tags.Bytes != 1<<30 || tags.Created != 1234567890123456789 || tags.CopyOnWrite != "20%" || tags.Name != "s" {
		t.Errorf("tags are %+v", tags)
	}
	lv := LV{Ref: s.Ref, SizeBytes: 1 << 30, Type: Thin, Tags: tags}
	if err := errors.Join(s.Matches(lv), lv.Whole()); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Spec){
		"source":       func(s *Spec) { s.Origin.LV = "w" },
		"snapshotSize": func(s *Spec) { s.CopyOnWrite = CopyOnWrite{} },
		"name":         func(s *Spec) { s.Name = "other" },
		"kind":         func(s *Spec) { s.Kind = Persistent },
	} {
		other := s
		change(&other)
		if err := other.Matches(lv); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), what) {
			t.Errorf("another %s: %v", what, err)
		}
	}
	if _, ok := (Tags{}).Source(); ok {
		t.Error("tags that say nothing tell a source")
	}
}

func TestWhole(t *testing.T) {
	snapshot := Tags{Kind: Snapshot}
	for _, tt := range []struct {
		lv           LV
		whole, thick bool
	}{
		{LV{Type: Linear, Tags: Tags{Kind: Persistent}}, true, false},
		{LV{Type: Linear, Tags: Tags{Kind: Persistent, State: "copying"}}, false, false},
		{LV{Type: Linear, Tags: snapshot}, false, false}, // never tied to its origin
		{LV{Type: Linear, Origin: "v", Tags: snapshot}, true, true},
		{LV{Type: Thin, Tags: snapshot}, true, false}, // its origin is gone
		{LV{Type: Thin, Origin: "v", Tags: snapshot}, true, false},
	} {
		if err := tt.lv.Whole(); (err == nil) != tt.whole || err != nil && !errors.Is(err, ErrPending) {
			t.Errorf("%+v: %v", tt.lv, err)
		}
		if tt.lv.Thick() != tt.thick {
			t.Errorf("%+v: thick is %v", tt.lv, !tt.thick)
		}
	}
}
