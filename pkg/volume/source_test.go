package volume

import (
	"errors"
	"strings"
	"testing"
)

func TestSource(t *testing.T) {
	for text, want := range map[string]Source{
		"snapshot:data/s-1":     {Snapshot, Ref{"data", "s-1"}},
		"volume:data/pvc-1":     {Persistent, Ref{"data", "pvc-1"}},
		"":                      {},
		"volume:":               {},
		"volume:data":           {},
		"volume:/x":             {},
		"volume:data/":          {},
		"volume:data/a/b":       {},
		"volume:data/-rf":       {},
		"inline:data/x":         {},
		"data/x":                {},
		"volume:data/x_tdata":   {},
		"volume:data/snapshot1": {},
	} {
		got, ok := ParseSource(text)
		if ok != (want != Source{}) || ok && got != want {
			t.Errorf("%q: %v, %t", text, got, ok)
		}
		if ok && got.String() != text {
			t.Errorf("%q is written %q", text, got)
		}
	}
	if got := (Source{}).String(); got != "" {
		t.Errorf("none is written %q", got)
	}
}

func TestFrom(t *testing.T) {
	thin := Layout{Type: Thin, Pool: "pool"}
	for _, c := range []struct {
		name            string
		layout          Layout
		vg              string
		required, limit int64
		source          LV
		bytes           int64
		copying         bool
		err             error
	}{
		{"thin to thin", thin, "data", 0, 0, LV{Ref: Ref{"data", "v"}, Type: Thin, Pool: "pool", SizeBytes: 100}, 100, false, nil},
		{"larger", thin, "data", 200, 0, LV{Ref: Ref{"data", "v"}, Type: Thin, Pool: "pool", SizeBytes: 100}, 200, false, nil},
		{"another pool", Layout{Type: Thin, Pool: "fast"}, "data", 0, 0, LV{Ref: Ref{"data", "v"}, Type: Thin, Pool: "pool", SizeBytes: 100}, 100, true, nil},
		{"a pool of that name in another group", thin, "more", 0, 0, LV{Ref: Ref{"data", "v"}, Type: Thin, Pool: "pool", SizeBytes: 100}, 100, true, nil},
		{"thin to thick", Layout{Type: Linear}, "data", 0, 0, LV{Ref: Ref{"data", "v"}, Type: Thin, Pool: "pool", SizeBytes: 100}, 100, true, nil},
		{"thick to thin", thin, "data", 100, 100, LV{Ref: Ref{"data", "v"}, Type: Linear, SizeBytes: 100}, 100, true, nil},
		{"thick snapshot", Layout{Type: Linear}, "data", 0, 0,
			LV{Ref: Ref{"data", "s"}, Type: Linear, Origin: "v", SizeBytes: 10, Tags: Tags{Kind: Snapshot, Bytes: 100}}, 100, true, nil},
		{"less than the source", thin, "data", 99, 0, LV{Ref: Ref{"data", "v"}, Type: Thin, Pool: "pool", SizeBytes: 100}, 0, false, ErrOutOfRange},
		{"limit below the source", thin, "data", 0, 99, LV{Ref: Ref{"data", "v"}, Type: Thin, Pool: "pool", SizeBytes: 100}, 0, false, ErrOutOfRange},
	} {
		s := Spec{Ref: Ref{VG: c.vg, LV: "new"}, Layout: c.layout, RequiredBytes: c.required, LimitBytes: c.limit, Source: Source{Persistent, c.source.Ref}}
		got, err := s.From(c.source)
		switch {
		case c.err != nil:
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), "volume:data/v") {
				t.Errorf("%s: %v", c.name, err)
			}
		case err != nil || got.RequiredBytes != c.bytes || got.Copying != c.copying || (got.Origin.LV != "") == c.copying:
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func TestTagsOfACopy(t *testing.T) {
	s := Spec{Ref: Ref{"data", "new"}, Kind: Persistent, Name: "new", Layout: Layout{Type: Linear}, Source: Source{Snapshot, Ref{"data", "s-1"}}, Copying: true}
	tags := s.Tags("d.example")
	if tags.From != "snapshot:data/s-1" || tags.State != Copying {
		t.Errorf("%+v", tags)
	}
	if got := ParseTags(tags.Strings()); got != tags {
		t.Errorf("read back as %+v", got)
	}
	whole := tags
	whole.State = ""
	if add, remove := tags.Changes(whole); len(add) != 0 || len(remove) != 1 || remove[0] != "csi.state=copying" {
		t.Errorf("made whole by adding %q and removing %q", add, remove)
	}
	lv := LV{Ref: s.Ref, Tags: whole, SizeBytes: 1}
	if err := s.Matches(lv); err != nil {
		t.Error(err)
	}
	for _, other := range []Source{{}, {Persistent, s.Source.Ref}, {Snapshot, Ref{"data", "s-2"}}} {
		s.Source = other
		if err := s.Matches(lv); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "content") {
			t.Errorf("asked for %q: %v", other, err)
		}
	}
}

// What is made of a file system is that file system.
func TestFromCarries(t *testing.T) {
	for _, c := range []struct {
		name     string
		source   Format
		untold   bool
		asked    FS
		any      bool
		want     FS
		mismatch bool
	}{
		{"the same", Format{FS: XFS}, false, XFS, false, XFS, false},
		{"another", Format{FS: XFS}, false, Ext4, false, "", true},
		{"none named", Format{FS: XFS}, false, DefaultFS, true, XFS, false},
		{"block of a file system", Format{FS: XFS}, false, "", false, "", true},
		{"a file system of block", Format{}, false, Ext4, true, "", true},
		{"block of block", Format{}, false, "", false, "", false},
		{"a source that does not tell", Format{}, true, XFS, false, XFS, false},
	} {
		source := LV{Ref: Ref{"data", "v"}, Type: Linear, SizeBytes: 1, Tags: Spec{Layout: Layout{Type: Linear}, Format: c.source}.Tags("d")}
		if c.untold {
			source.Tags.Spec = ""
		}
		s := Spec{Ref: Ref{"data", "new"}, Kind: Persistent, Name: "new", Layout: Layout{Type: Linear}, Format: Format{FS: c.asked}, AnyFS: c.any, Source: Source{Persistent, source.Ref}}
		got, err := s.From(source)
		if c.mismatch != errors.Is(err, ErrInvalid) || err == nil && got.Format.FS != c.want {
			t.Errorf("%s: %q, %v", c.name, got.Format.FS, err)
		}
		if err != nil {
			continue
		}
		made := LV{Ref: got.Ref, SizeBytes: 1, Tags: got.Tags("d")}
		if err := s.Matches(made); err != nil {
			t.Errorf("%s: the same request again: %v", c.name, err)
		}
	}
}
