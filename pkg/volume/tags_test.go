package volume

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What LVM takes as a tag (lvm(8), "VALID NAMES": tags).
var lvmTag = regexp.MustCompile(`^[a-zA-Z0-9_+.\-/=!:&#]+$`)

func checkTags(t *testing.T, tags Tags) {
	t.Helper()
	list := tags.Strings()
	for _, tag := range list {
		if !lvmTag.MatchString(tag) || len(tag) > 1024 || tag[0] == '-' {
			t.Fatalf("LVM does not take the tag %q", tag)
		}
	}
	mixed := append([]string{"foreign", "csi.future=1", "csi.", "csi.noequals", "=", "backup=yes", "owner=eve"}, list...)
	if back := ParseTags(mixed); back != tags {
		t.Fatalf("\n%+v is read back as\n%+v", tags, back)
	}
}

func TestTags(t *testing.T) {
	checkTags(t, Tags{Owner: "d"})
	// The longest there are: case B30
	worst := strings.Repeat("\x01", maxID)
	checkTags(t, Tags{
		Owner: strings.Repeat("d", 54), Kind: Persistent, Name: worst, PodUID: worst, State: "creating",
		Mkfs: strings.Repeat("m", mkfsBytes),
		Spec: Spec{Layout: Layout{Type: RAID10, Pool: strings.Repeat("p", maxLVEncoded), Stripes: 64, StripeBytes: 4 << 20, Mirrors: 9}, Format: Format{FS: Btrfs}}.canonical(),
	})
	for _, name := range []string{"Ä", "a b", "a:b", "a:41", ":", "::", ":x", ":4", "a,b", "a=b&c", "@x", "\xff", "a\nb"} {
		checkTags(t, Tags{Owner: "d", Kind: Inline, Name: name})
	}
	if got := ParseTags([]string{"owner=d", "csiowner=d", "csi.Owner=d", " csi.owner=d"}); got.Owner != "" {
		t.Errorf("a tag that is not ours gives the owner %q", got.Owner)
	}
	if OwnerTag("d.example") != (Tags{Owner: "d.example"}).Strings()[0] || KindTag(Inline) != (Tags{Kind: Inline}).Strings()[1] {
		t.Error("OwnerTag and KindTag are not the tags that are written")
	}
}

func TestMkfsOptionsFitIntoATag(t *testing.T) {
	for _, v := range []string{strings.Repeat("^", mkfsBytes), strings.Repeat("^ ", mkfsBytes/2), strings.Repeat("x", mkfsBytes), strings.Repeat("x", mkfsBytes+1)} {
		words, err := parseMkfsOptions("f", v)
		tags := Tags{Owner: "d", Mkfs: strings.Join(words, " ")}
		if err == nil {
			checkTags(t, tags)
		} else {
			wantField(t, err, "f")
		}
	}
}

func TestCheckOwner(t *testing.T) {
	for _, name := range []string{"local-lvm.csi.internal", "a", "a1.b-c", strings.Repeat("d", 54)} {
		if err := CheckOwner(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "A.b", "a_b", ".a", "a.", "a..b", "a.-b", "a-", "a/b", "a b", "a\n", strings.Repeat("d", 55)} {
		wantField(t, CheckOwner(name), "--driver-name")
	}
}

func TestFormatAndLayoutOfTags(t *testing.T) {
	for _, s := range []Spec{
		{Layout: Layout{Type: Linear}, Format: Format{FS: Ext4}},
		{Layout: Layout{Type: Thin, Pool: "pool-0"}},
		{Layout: Layout{Type: RAID10, Stripes: 2, Mirrors: 1, StripeBytes: 65536}, Format: Format{FS: XFS, MkfsOptions: []string{"-m", "crc=1,finobt=1"}}},
	} {
		tags := ParseTags(s.Tags("d").Strings())
		f, ok := tags.Format()
		if !ok || f.FS != s.Format.FS || strings.Join(f.MkfsOptions, " ") != strings.Join(s.Format.MkfsOptions, " ") {
			t.Errorf("format is %+v, %v; want %+v", f, ok, s.Format)
		}
		if tags.Layout() != s.Layout.String() {
			t.Errorf("layout is %s, want %s", tags.Layout(), s.Layout)
		}
	}
	if _, ok := (Tags{Owner: "d"}).Format(); ok || (Tags{}).Layout() != "" {
		t.Error("tags that say nothing tell a format or layout")
	}
}

// cases B39, B40: a repeated call compares with the range, not with the number.
func TestMatches(t *testing.T) {
	base := func() Spec {
		return Spec{
			Ref: Ref{"vg", "pvc-1"}, Kind: Persistent, Name: "pvc-1", Layout: Layout{Type: Striped, Stripes: 2},
			Format: Format{FS: Ext4, MkfsOptions: []string{"-m", "0"}}, RequiredBytes: 203 << 20,
		}
	}
	lv := LV{Ref: base().Ref, SizeBytes: 208 << 20, Tags: base().Tags("d")}
	for name, tt := range map[string]struct {
		change func(*Spec)
		want   string // in the message; "": it matches
	}{
		"same":             {func(*Spec) {}, ""},
		"no size":          {func(s *Spec) { s.RequiredBytes = 0 }, ""},
		"smaller":          {func(s *Spec) { s.RequiredBytes = 1 }, ""},
		"as large":         {func(s *Spec) { s.RequiredBytes, s.LimitBytes = 208<<20, 208<<20 }, ""},
		"larger":           {func(s *Spec) { s.RequiredBytes = 208<<20 + 1 }, "at least"},
		"limit":            {func(s *Spec) { s.LimitBytes = 204 << 20 }, "at most"},
		"kind":             {func(s *Spec) { s.Kind = Inline }, "inline"},
		"name":             {func(s *Spec) { s.Name = "other" }, `"other"`},
		"type":             {func(s *Spec) { s.Layout = Layout{Type: Linear} }, "type=linear"},
		"stripes":          {func(s *Spec) { s.Layout.Stripes = 3 }, "stripes=3"},
		"stripe size":      {func(s *Spec) { s.Layout.StripeBytes = 4096 }, "stripeSize=4096"},
		"file system":      {func(s *Spec) { s.Format = Format{FS: XFS} }, "fs=xfs"},
		"block":            {func(s *Spec) { s.Format = Format{} }, "mode=block"},
		"other options":    {func(s *Spec) { s.Format.MkfsOptions = []string{"-m", "1"} }, `"-m 1"`},
		"no options":       {func(s *Spec) { s.Format.MkfsOptions = nil }, "mkfs options"},
		"mirrors and pool": {func(s *Spec) { s.Layout = Layout{Type: Thin, Pool: "p"} }, "pool=p"},
	} {
		s := base()
		tt.change(&s)
		err := s.Matches(lv)
		if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, ErrExists) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want an ErrExists with %q", name, err, tt.want)
		}
	}
	hashed := base()
	hashed.Name, hashed.LV = "snapshot-1", LVName(Persistent, "snapshot-1")
	found := LV{Ref: hashed.Ref, SizeBytes: 208 << 20, Tags: hashed.Tags("d")}
	if err := hashed.Matches(found); err != nil || found.Name() != "snapshot-1" {
		t.Errorf("mapped name: %v, name %s", err, found.Name())
	}
	if err := base().Matches(LV{Ref: lv.Ref, SizeBytes: lv.SizeBytes}); !errors.Is(err, ErrExists) {
		t.Errorf("an LV without tags matches: %v", err)
	}
}

func FuzzTags(f *testing.F) {
	f.Add("d.example", "Ä", "type=linear&fs=ext4", "-m 0", "uid", "creating")
	f.Add("d", ":41", ":", "::", "a=b", ",")
	f.Fuzz(func(t *testing.T, owner, name, spec, mkfs, pod, state string) {
		tags := Tags{Owner: owner, Kind: Persistent, Name: name, Spec: spec, Mkfs: mkfs, PodUID: pod, State: state}
		if CheckOwner(owner) != nil {
			return
		}
		for _, s := range []string{name, spec, mkfs, pod, state} {
			if len(s) > 300 { // more than any of them may have in 3 bytes each
				return
			}
		}
		checkTags(t, tags)
		if _, ok := tags.Format(); !ok && strings.HasSuffix(spec, "&"+specBlock) {
			t.Fatalf("%q tells no format", spec)
		}
		ParseTags([]string{owner, name, spec, mkfs, pod, state, tagPrefix + name, tagPrefix + "name=" + name})
	})
}

func TestChanges(t *testing.T) {
	a := Tags{Owner: "d", Kind: Persistent, Spec: "type=linear&fs=ext4", State: "copying"}
	for _, c := range []struct {
		to          Tags
		add, remove []string
	}{
		{to: a},
		{to: Tags{Owner: "other", Kind: Inline, Spec: a.Spec, State: a.State}},
		{to: Tags{Spec: a.Spec}, remove: []string{"csi.state=copying"}},
		{to: Tags{Spec: a.Spec, State: "x y", Name: "n"}, add: []string{"csi.name=n", "csi.state=x:20y"}, remove: []string{"csi.state=copying"}},
	} {
		if add, remove := a.Changes(c.to); !slices.Equal(add, c.add) || !slices.Equal(remove, c.remove) {
			t.Errorf("%+v: add %q, remove %q; want %q, %q", c.to, add, remove, c.add, c.remove)
		}
	}
}
