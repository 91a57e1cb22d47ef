package lvm

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const mib = 1 << 20

func TestReportMany(t *testing.T) {
	g := recordedGroup(t, "many", "data")
	if g.ExtentBytes != 4*mib || g.SizeBytes != 1367343104 || g.MissingPVs != 0 || len(g.PVs) != 5 || g.UUID == "" {
		t.Errorf("group %+v", g.Group)
	}
	for i, want := range []string{"/dev/vda", "/dev/vdb", "/dev/vdc", "/dev/vdd", "/dev/vde"} {
		if pv := g.PVs[i]; pv.Device != want || pv.Allocatable != (want != "/dev/vde") || pv.SizeBytes == 0 {
			t.Errorf("physical volume %+v, want %s", pv, want)
		}
	}
	if len(g.Pools) != 1 || g.Pools[0] != (volume.Pool{Name: "pool", SizeBytes: 32 * mib, VirtualBytes: 32 * mib}) {
		t.Errorf("pools %+v", g.Pools)
	}
	ours := volume.Tags{Owner: "local-lvm.csi.internal", Kind: volume.Persistent, Name: "a b", Spec: "type=linear&fs=ext4"}
	for name, want := range map[string]volume.LV{
		"linear":   {SizeBytes: 8 * mib, Type: volume.Linear, Tags: ours},
		"foreign":  {SizeBytes: 80 * mib, Type: volume.Linear},
		"striped":  {SizeBytes: 8 * mib, Type: volume.Striped, Tags: ours},
		"raid1":    {SizeBytes: 8 * mib, Type: volume.RAID1, Tags: ours},
		"raid5":    {SizeBytes: 8 * mib, Type: volume.RAID5, Tags: ours},
		"raid6":    {SizeBytes: 12 * mib, Type: volume.RAID6, Tags: ours},
		"raid10":   {SizeBytes: 8 * mib, Type: volume.RAID10, Tags: ours},
		"pool":     {SizeBytes: 32 * mib},
		"thin":     {SizeBytes: 16 * mib, Type: volume.Thin, Pool: "pool", ThinID: 1, Tags: ours},
		"thinsnap": {SizeBytes: 16 * mib, Type: volume.Thin, Pool: "pool", Origin: "thin", ThinID: 2},
		"origin":   {SizeBytes: 8 * mib, Type: volume.Linear, Tags: ours},
		"thick":    {SizeBytes: 4 * mib, Type: volume.Linear, Origin: "origin"},
		"inactive": {SizeBytes: 4 * mib, Type: volume.Linear, Tags: ours},
		"grown":    {SizeBytes: 12 * mib, Type: volume.Linear, Tags: ours},
		"between":  {SizeBytes: 4 * mib, Type: volume.Linear},
	} {
		got := g.lvs[name]
		if got.UUID == "" {
			t.Errorf("%s has no uuid", name)
		}
		want.Ref, want.UUID = volume.Ref{VG: "data", LV: name}, got.UUID
		if got != want {
			t.Errorf("%s is %+v, want %+v", name, got, want)
		}
	}
	if len(g.lvs) != 15 {
		t.Errorf("logical volumes %v", slices.Sorted(maps.Keys(g.lvs)))
	}
	for name, want := range map[string]bool{"linear": true, "origin": false, "pool": false, "thin": true, "thick": true, "thinsnap": true} {
		if removable(g.roles[name]) != want {
			t.Errorf("%s with role %s: removable is not %v", name, g.roles[name], want)
		}
	}
}

func TestReportOthers(t *testing.T) {
	if groups, err := parseReport(recorded(t, "none.json"), all); err != nil || len(groups) != 0 {
		t.Errorf("no group: %v, %v", groups, err)
	}
	if g := recordedGroup(t, "empty", "empty"); len(g.lvs) != 0 || g.FreeBytes != g.SizeBytes || g.SizeBytes == 0 {
		t.Errorf("empty group: %+v", g)
	}
	if g := recordedGroup(t, "warning", "data"); len(g.lvs) == 0 {
		t.Errorf("group with a full snapshot: %+v", g)
	}
	g := recordedGroup(t, "partial", "data")
	if g.MissingPVs != 1 || len(g.PVs) != 5 || g.PVs[0].Device != "" {
		t.Errorf("partial group: %+v", g.Group)
	}
	if groups, err := parseReport(recorded(t, "many.json"), func(vg string) bool { return vg == "empty" }); err != nil || len(groups) != 1 {
		t.Errorf("one of two groups: %v, %v", groups, err)
	}
}

// LVM prints advice to standard output, also in the middle of a report.
func TestReportAdvice(t *testing.T) {
	var noisy bytes.Buffer
	noisy.WriteString("  Configuration setting \"x/y\" unknown.\n")
	for line := range bytes.Lines(recorded(t, "many.json")) {
		noisy.Write(line)
		noisy.WriteString("  WARNING: This is no JSON.\n\n  Reading VG data without a lock.\n")
	}
	groups, err := parseReport(noisy.Bytes(), all)
	if err != nil || !same(groups["data"], recordedGroup(t, "many", "data")) {
		t.Errorf("%v, %v", groups, err)
	}
}

// What is not as expected is an error, never an empty answer.
func TestReportStrict(t *testing.T) {
	good := string(recorded(t, "empty.json"))
	replace := func(old, with string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the report", old)
		}
		return strings.Replace(good, old, with, 1)
	}
	for name, text := range map[string]string{
		"nothing":             "",
		"advice only":         "  WARNING: nothing.\n",
		"cut off":             good[:len(good)/2],
		"no report":           "{}",
		"null":                `{"report": null}`,
		"another field":       replace(`"vg_size"`, `"vg_sise"`),
		"no uuid":             replace(`"vg_uuid":"`, `"vg_uuid":"","x":"`),
		"no name":             replace(`"vg_name":"empty"`, `"vg_name":""`),
		"size with unit":      replace(`"vg_free":"`, `"vg_free":"1m`),
		"negative":            replace(`"vg_free":"`, `"vg_free":"-`),
		"empty size":          replace(`"pv_size":"`, `"pv_size":"","x":"`),
		"extent of 0":         replace(`"vg_extent_size":"4194304"`, `"vg_extent_size":"0"`),
		"number, not string":  replace(`"vg_seqno":"1"`, `"vg_seqno":1`),
		"list, not string":    replace(`"pv_missing":""`, `"pv_missing":[]`),
		"logical volume bare": replace(`"lv": [`, `"lv": [ {"lv_name":"a"}`),
		"two of one name":     `{"report":[` + reports(good) + "," + reports(good) + `]}`,
	} {
		if groups, err := parseReport([]byte(text), all); err == nil {
			t.Errorf("%s: %+v, no error", name, groups)
		}
	}
}

// reports takes the list of reports out of a document, without its brackets.
func reports(doc string) string {
	return doc[strings.Index(doc, "[")+1 : strings.LastIndex(doc, "]")]
}

func FuzzReport(f *testing.F) {
	for _, name := range []string{"none", "empty", "many", "partial", "warning"} {
		f.Add(recorded(f, name+".json"))
	}
	f.Add([]byte(`{"report":[{"vg":[{"vg_name":"a"}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		groups, err := parseReport(b, all)
		if err != nil && groups != nil {
			t.Error("an error, and an answer")
		}
		for name, g := range groups {
			if name == "" || g.Name != name || g.ExtentBytes <= 0 || g.SizeBytes < 0 || g.FreeBytes < 0 {
				t.Errorf("group %q: %+v", name, g.Group)
			}
			for lv, v := range g.lvs {
				if lv == "" || v.VG != name || v.SizeBytes < 0 {
					t.Errorf("logical volume %q: %+v", lv, v)
				}
			}
			_ = fmt.Sprint(g)
		}
	})
}
