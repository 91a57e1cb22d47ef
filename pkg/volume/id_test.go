package volume

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// wantField checks that the error is the ErrInvalid of this field, with a remedy, in a message that can be sent.
func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var fe *FieldError
	if !errors.As(err, &fe) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("error is %v, want an ErrInvalid of %s", err, field)
	}
	if fe.Field != field || fe.Remedy == "" {
		t.Errorf("field is %q, remedy %q; want field %q and a remedy", fe.Field, fe.Remedy, field)
	}
	if msg := err.Error(); len(msg) > 1500 || !utf8.ValidString(msg) || strings.ContainsFunc(msg, func(r rune) bool { return r < ' ' }) {
		t.Errorf("message is not fit to be sent: %q", msg)
	}
}

func TestParseID(t *testing.T) {
	long := strings.Repeat("n", maxNode) + "/" + strings.Repeat("g", maxVG) + "/" + strings.Repeat("v", maxPersistentLV)
	if len(long) != maxID {
		t.Fatalf("the longest parts make an id of %d bytes, not %d", len(long), maxID)
	}
	for _, s := range []string{
		"node-1/vg0/pvc-1", "a/b/c", "node.example.com/vg_1+x/pvc-0b5c7c5e-2c1b-4ac4-9d3e-1f2d3c4b5a69", "n/v/lvol0", long,
		"n/vg/" + LVName(Persistent, "snapshot"), "n/vg/" + LVName(Inline, "csi-1"), "n/vg/" + LVName(Snapshot, "s"),
	} {
		id, err := ParseID(s)
		if err != nil {
			t.Errorf("ParseID(%q): %v", s, err)
		} else if id.String() != s {
			t.Errorf("ParseID(%q) is printed as %q", s, id)
		}
	}
}

// cases B21, B30
func TestBadID(t *testing.T) {
	for name, s := range map[string]string{
		"empty":             "",
		"one part":          "reallyfakevolumeid",
		"inline":            "csi-" + strings.Repeat("0", 64),
		"two parts":         "vg/lv",
		"four parts":        "n/vg/lv/x",
		"empty node":        "/vg/lv",
		"empty group":       "n//lv",
		"empty volume":      "n/vg/",
		"only slashes":      "//",
		"parent as node":    "../vg/lv",
		"parent as group":   "n/../lv",
		"parent as volume":  "n/vg/..",
		"dot":               "n/./lv",
		"option as group":   "n/-rf/lv",
		"option as volume":  "n/vg/--yes",
		"option as node":    "-n/vg/lv",
		"blank":             "n/vg/a b",
		"not ASCII":         "n/vg/Ä",
		"not UTF-8":         "n/vg/\xff",
		"newline":           "n/vg/a\n",
		"newline in front":  "\nn/vg/a",
		"NUL":               "n/vg/a\x00",
		"C1 control":        "n/vg/a\u0085",
		"tag":               "n/vg/@tag",
		"glob":              "n/vg/*",
		"internal volume":   "n/vg/a_tdata",
		"pvmove":            "n/vg/pvmove0",
		"129 bytes":         "n/vg/" + strings.Repeat("v", 124),
		"long node":         strings.Repeat("n", maxNode+1) + "/vg/lv",
		"long group":        "n/" + strings.Repeat("g", maxVG+1) + "/lv",
		"group of dashes":   "n/a" + strings.Repeat("-", 20) + "/lv",
		"long volume":       "n/vg/" + strings.Repeat("v", maxLVEncoded+1),
		"volume of dashes":  "n/vg/a" + strings.Repeat("-", 40),
		"10 kB":             strings.Repeat("x", 10<<10),
		"10 kB, three part": "n/vg/" + strings.Repeat("x", 10<<10),
	} {
		t.Run(name, func(t *testing.T) {
			id, err := ParseID(s)
			wantField(t, err, "volume_id")
			if id != (ID{}) {
				t.Errorf("the id is %v beside an error", id)
			}
		})
	}
}

func TestCheckAnyIDAndName(t *testing.T) {
	for _, tt := range []struct {
		s              string
		idOK, nameOK   bool
		whyItIsChecked string
	}{
		{"pvc-1", true, true, "plain"},
		{strings.Repeat("x", 128), true, true, "the longest"},
		{strings.Repeat("ä", 64), true, true, "128 bytes of UTF-8"},
		{strings.Repeat("ä", 64) + "x", false, false, "129 bytes in 65 characters"},
		{"", false, false, "required"},
		{"a\tb\nc\rd", false, true, "common blanks are allowed in names"},
		{"a\x00", false, false, "U+0000"}, {"a\x08", false, false, "U+0008"}, {"a\x0b", false, false, "U+000B"},
		{"a\x0c", false, false, "U+000C"}, {"a\x0e", false, false, "U+000E"}, {"a\x1f", false, false, "U+001F"},
		{"a\x7f", false, false, "U+007F"}, {"a\u0080", false, false, "U+0080"}, {"a\u009f", false, false, "U+009F"},
		{"a\u00a0", true, true, "U+00A0"}, {"a b", true, true, "blank"}, {"\xff", false, false, "not UTF-8"},
	} {
		if err := CheckAnyID(tt.s); (err == nil) != tt.idOK {
			t.Errorf("%s: CheckAnyID(%q) = %v", tt.whyItIsChecked, tt.s, err)
		}
		if err := CheckName(tt.s); (err == nil) != tt.nameOK {
			t.Errorf("%s: CheckName(%q) = %v", tt.whyItIsChecked, tt.s, err)
		}
	}
	wantField(t, CheckName(""), "name")
}

func TestLockKey(t *testing.T) {
	for _, name := range []string{"pvc-1", "snapshot-1", "Ä", strings.Repeat("x", 128)} {
		lv := LVName(Persistent, name)
		if key := LockKey(ID{Node: "n", Ref: Ref{"vg", lv}}.String()); key != lv {
			t.Errorf("%q: CreateVolume locks %s, DeleteVolume %s", name, lv, key)
		}
	}
	inline := "csi-" + strings.Repeat("a", 64)
	if LockKey(inline) != LVName(Inline, inline) {
		t.Error("an inline volume is not locked by the name of its logical volume")
	}
	if LockKey("x") == LockKey("y") {
		t.Error("two foreign ids have one key")
	}
}

// case B30
func FuzzParseID(f *testing.F) {
	for _, s := range []string{"n/vg/lv", "", "n/../lv", "node-1/vg-0/v-0123456789abcdef0123456789abcdef", "n/vg/-x", "n/vg/a\n", "a/b/c/d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		_ = LockKey(s) // of anything
		if err != nil {
			wantField(t, err, "volume_id")
			return
		}
		if id.String() != s {
			t.Fatalf("%q is printed as %q", s, id)
		}
		if len(s) > maxID {
			t.Fatalf("%d bytes", len(s))
		}
		for _, part := range []string{id.Node, id.VG, id.LV} {
			if part == "" || part == "." || part == ".." || part[0] == '-' || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+_.-") != "" {
				t.Fatalf("%q has the unsafe part %q", s, part)
			}
		}
		if n := len(DMName(id.Ref)); n > 127-16 {
			t.Fatalf("the device-mapper name has %d bytes", n)
		}
		if CheckVG("vg", id.VG) != nil || CheckLV("lv", id.LV) != nil {
			t.Fatalf("%q: its parts are not valid by themselves", s)
		}
	})
}
