package volume

import (
	"errors"
	"strings"
	"testing"
)

func TestParseMutable(t *testing.T) {
	long := "/dev/" + strings.Repeat("x", 1100)
	for _, c := range []struct{ key, value, want string }{
		{KeyReadAhead, "auto", "auto"}, {KeyReadAhead, "none", "none"}, {KeyReadAhead, "256", "256"}, {KeyReadAhead, "0256", "256"},
		{KeyReadAhead, "0", ""}, {KeyReadAhead, "7", ""}, {KeyReadAhead, "-8", ""}, {KeyReadAhead, "4Ki", ""}, {KeyReadAhead, "", ""}, {KeyReadAhead, "99999992", ""},
		{KeyMinRecoveryRate, "0", "0"}, {KeyMinRecoveryRate, "1000", "1000"}, {KeyMinRecoveryRate, "1M", ""}, {KeyMaxRecoveryRate, "-1", ""}, {KeyMaxRecoveryRate, "9999999999", ""},
		{KeyWriteMostly, "none", "none"}, {KeyWriteMostly, "/dev/b, /dev/a,/dev/b", "/dev/a,/dev/b"}, {KeyWriteMostly, "/dev/disk/by-id/x-1:0", "/dev/disk/by-id/x-1:0"},
		{KeyWriteMostly, "", ""}, {KeyWriteMostly, "sda", ""}, {KeyWriteMostly, "/dev/../etc", ""}, {KeyWriteMostly, "/dev/a b", ""}, {KeyWriteMostly, "--yes", ""}, {KeyWriteMostly, long, ""},
		{KeyReadBytes, "max", "max"}, {KeyReadBytes, "1Mi", "1048576"}, {KeyWriteBytes, "4096", "4096"}, {KeyWriteBytes, "1", ""}, {KeyWriteBytes, "none", ""}, {KeyReadBytes, "", ""},
		{KeyReadOps, "max", "max"}, {KeyReadOps, "100", "100"}, {KeyWriteOps, "0", ""}, {KeyWriteOps, "1k", ""},
		{"thinDiscards", "passdown", ""}, {"", "x", ""}, {"readahead", "auto", ""},
	} {
		m, err := ParseMutable(map[string]string{c.key: c.value})
		if c.want == "" {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "mutable_parameters") {
				t.Errorf("%s=%.40s: %v, %v", c.key, c.value, m, err)
			}
			continue
		}
		if err != nil || m[c.key] != c.want {
			t.Errorf("%s=%s: %v, %v; want %s", c.key, c.value, m, err, c.want)
		}
	}
	_, err := ParseMutable(map[string]string{"colour": "red"})
	if err == nil || !strings.Contains(err.Error(), "mutable_parameters[colour]") || !strings.Contains(err.Error(), KeyReadAhead) {
		t.Errorf("an unknown key: %v", err)
	}
}

func TestMutableIsReadBack(t *testing.T) {
	for _, params := range []map[string]string{
		nil, {},
		{KeyReadAhead: "auto", KeyWriteMostly: "/dev/sdb,/dev/sda", KeyReadBytes: "1Gi", KeyWriteOps: "max", KeyMinRecoveryRate: "7"},
	} {
		m, err := ParseMutable(params)
		if err != nil {
			t.Fatal(err)
		}
		tags := ParseTags(Tags{Owner: "o", Kind: Persistent, Mutable: m.String()}.Strings())
		back, err := tags.MutableParameters()
		if err != nil || back.String() != m.String() || len(back) != len(params) {
			t.Errorf("%s: read back %s, %v", m, back, err)
		}
	}
	for _, text := range []string{"colour=red", "readAhead", "readAhead=7", "writeOpsPerSecond=1&readAhead=auto", "readAhead=auto&", "&"} {
		if m, err := ReadMutable(text); err == nil {
			t.Errorf("%q is read as %v", text, m)
		}
	}
}

func TestMutableFitsTheType(t *testing.T) {
	types := []Type{Linear, Striped, RAID1, RAID5, RAID6, RAID10, Thin, ""}
	for key, fit := range map[string][]Type{
		KeyReadAhead: types, KeyReadBytes: types, KeyWriteOps: types, KeyWriteMostly: {RAID1},
		KeyMinRecoveryRate: {RAID1, RAID5, RAID6, RAID10}, KeyMaxRecoveryRate: {RAID1, RAID5, RAID6, RAID10},
	} {
		for _, ty := range types {
			want := false
			for _, f := range fit {
				want = want || f == ty
			}
			if err := (Mutable{key: "8192"}).Check(ty); (err == nil) != want {
				t.Errorf("%s on %q: %v", key, ty, err)
			}
		}
	}
	for _, c := range []struct {
		least, most string
		ok          bool
	}{{"2", "1", false}, {"2", "0", true}, {"0", "1", true}, {"1", "1", true}} {
		m := Mutable{KeyMinRecoveryRate: c.least}.With(Mutable{KeyMaxRecoveryRate: c.most})
		if err := m.Check(RAID5); (err == nil) != c.ok {
			t.Errorf("%s: %v", m, err)
		}
	}
}

func TestIOLimits(t *testing.T) {
	if l, set := (Mutable{KeyReadAhead: "auto"}).IOLimits(); set || l != (IOLimits{}) {
		t.Errorf("%+v, %v", l, set)
	}
	if l, set := (Mutable{KeyReadBytes: "max"}).IOLimits(); !set || l != (IOLimits{}) {
		t.Errorf("%+v, %v", l, set)
	}
	m := Mutable{KeyReadBytes: "4096", KeyWriteBytes: "8192", KeyReadOps: "1", KeyWriteOps: "2"}
	if l, set := m.IOLimits(); !set || l != (IOLimits{4096, 8192, 1, 2}) {
		t.Errorf("%+v, %v", l, set)
	}
}
