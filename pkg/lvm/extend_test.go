package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// manyFrom gives the recorded group as its metadata text tells it, or as LVM reports it.
func manyFrom(t *testing.T, source string) *group {
	t.Helper()
	if source == "report" {
		return recordedGroup(t, "many", "data")
	}
	_, text := recordedText(t, "many")
	g, err := parseMetadata(text)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestLayoutsOfTheText(t *testing.T) {
	g := manyFrom(t, "text")
	for lv, want := range map[string]volume.Layout{
		"linear": {Type: volume.Linear}, "grown": {Type: volume.Linear}, "striped": {Type: volume.Striped, Stripes: 2},
		"raid1": {Type: volume.RAID1, Mirrors: 1}, "raid5": {Type: volume.RAID5, Stripes: 2}, "raid6": {Type: volume.RAID6, Stripes: 3},
		"raid10": {Type: volume.RAID10, Stripes: 2, Mirrors: 1}, "thin": {Type: volume.Thin, Pool: "pool"},
	} {
		if got, known := g.layoutOf(g.lvs[lv]); got != want || !known {
			t.Errorf("%s: %+v, %t; want %+v", lv, got, known, want)
		}
	}
}

// Whether the driver knows it by the text or by the report, an extension is refused or admitted the same; where only the text tells
// how many stripes there are, nothing is done without.
func TestAdmitExtension(t *testing.T) {
	const mib = 1 << 20
	l := &LVM{cfg: Config{ThinOvercommit: 1}}
	for _, c := range []struct {
		lv              string
		required, limit int64
		want            int64
		text, report    error
	}{
		{"linear", 9 * mib, 0, 12 * mib, nil, nil},
		{"linear", 8 * mib, 0, 8 * mib, nil, nil},
		{"linear", 9 * mib, 11 * mib, 0, volume.ErrOutOfRange, volume.ErrOutOfRange},
		{"linear", 1 << 50, 0, 0, volume.ErrOutOfRange, volume.ErrOutOfRange},
		{"raid1", 9 * mib, 0, 12 * mib, nil, nil},
		{"striped", 9 * mib, 0, 16 * mib, nil, volume.ErrPrecondition},
		{"striped", 8 * mib, 0, 8 * mib, nil, nil},
		{"raid6", 13 * mib, 0, 24 * mib, nil, volume.ErrPrecondition},
		{"raid10", 9 * mib, 12 * mib, 0, volume.ErrOutOfRange, volume.ErrPrecondition},
		{"thin", 16 * mib, 0, 16 * mib, nil, nil},
		{"thin", 17 * mib, 0, 0, volume.ErrNoSpace, volume.ErrNoSpace}, // its snapshot has the other half of the pool
		{"thin", 33 * mib, 0, 0, volume.ErrOutOfRange, volume.ErrOutOfRange},
		{"origin", 8 * mib, 0, 8 * mib, nil, nil},
		{"origin", 9 * mib, 0, 0, volume.ErrPrecondition, volume.ErrPrecondition}, // case B42
		{"pool", 64 * mib, 0, 0, volume.ErrPrecondition, volume.ErrPrecondition},
	} {
		for source, want := range map[string]error{"text": c.text, "report": c.report} {
			g := manyFrom(t, source)
			size, err := l.admitExtension(g, g.lvs[c.lv], c.required, c.limit)
			if !errors.Is(err, want) || want == nil && (err != nil || size != c.want) {
				t.Errorf("%s, required %d, limit %d, by the %s: %d, %v; want %d, %v", c.lv, c.required, c.limit, source, size, err, c.want, want)
			}
		}
	}
}

// A device that is smaller than its logical volume, as a killed lvextend leaves it, is brought up to it.
func TestDeviceFollows(t *testing.T) {
	r := newRig(t)
	at := filepath.Join(r.dm.sys, "dev/block/253:7")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	set := func(sectors int64) {
		if err := os.WriteFile(filepath.Join(at, "size"), fmt.Appendln(nil, sectors), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lv := volume.LV{Ref: volume.Ref{VG: "empty", LV: "v"}, SizeBytes: 8 << 20}
	after := int64(16 << 10)
	r.answer = func(_ string, args []string) (run.Result, error) {
		if !slices.Equal(args, []string{"-y", "--refresh", "empty/v"}) {
			return run.Result{}, fmt.Errorf("unexpected %v", args)
		}
		set(after)
		return run.Result{}, nil
	}
	if err := r.follow(t.Context(), lv); err != nil {
		t.Errorf("inactive: %v", err)
	}
	r.count(t, "inactive")
	r.dm.status = func(string) (dmStatus, error) { return dmStatus{major: 253, minor: 7}, nil }
	set(8 << 10)
	if err := r.follow(t.Context(), lv); err != nil {
		t.Errorf("a device that was smaller: %v", err)
	}
	r.count(t, "smaller", "lvchange")
	if err := r.follow(t.Context(), lv); err != nil {
		t.Errorf("a device of the size: %v", err)
	}
	r.count(t, "of the size")
	after = 8 << 10
	set(after)
	if err := r.follow(t.Context(), lv); err == nil {
		t.Error("a device that stays smaller: no error")
	}
}
