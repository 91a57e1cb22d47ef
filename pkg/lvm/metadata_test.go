package lvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What the metadata text says is what LVM reports.
func TestMetadataIsTheReport(t *testing.T) {
	for _, c := range []struct{ name, vg string }{{"empty", "empty"}, {"many", "data"}, {"partial", "data"}} {
		report := recordedGroup(t, c.name, c.vg)
		_, text := recordedText(t, c.name)
		read, err := parseMetadata(text)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for i := range read.PVs {
			read.PVs[i].Device = report.uuids[read.PVs[i].Device]
		}
		read.sort()
		read.MissingPVs = report.MissingPVs
		if !same(report, read) || report.seqno != read.seqno {
			t.Errorf("%s:\nreport   %+v\n%+v\nmetadata %+v\n%+v", c.name, report.Group, report.lvs, read.Group, read.lvs)
		}
	}
}

// The recorded machine says which logical volumes have lost something: lvs -o lv_health_status.
func TestPartial(t *testing.T) {
	g := recordedGroup(t, "partial", "data")
	_, text := recordedText(t, "partial")
	read, err := parseMetadata(text)
	if err != nil {
		t.Fatal(err)
	}
	g.lies = read.lies
	markPartial(g)
	var partial []string
	for name, lv := range g.lvs {
		if lv.Partial {
			partial = append(partial, name)
		}
	}
	slices.Sort(partial)
	if want := strings.Fields(string(recorded(t, "partial.health"))); !slices.Equal(partial, want) {
		t.Errorf("partial are %v, want %v", partial, want)
	}
	g.lies = nil
	markPartial(g)
	for name, lv := range g.lvs {
		if !lv.Partial {
			t.Errorf("%s is not marked, though it cannot be told what it lies on", name)
		}
	}
}

// The area is a ring, and this text goes round its end.
func TestWrappedText(t *testing.T) {
	m, text := recordedText(t, "wrapped")
	if m.offset+m.size <= m.areaSize {
		t.Fatalf("the recorded text does not go round the end: %+v", m)
	}
	g, err := parseMetadata(text)
	if err != nil || len(g.lvs) == 0 {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestDamagedDisk(t *testing.T) {
	good := recorded(t, "many.head.gz")
	at := func(pos int, b byte) func([]byte) { return func(d []byte) { d[pos] ^= b } }
	for _, c := range []struct {
		name   string
		damage func([]byte)
	}{
		{"no label", func(d []byte) { clear(d[:4096]) }},
		{"label", at(512+40, 1)},
		{"header of the area", at(4096+50, 1)},
		{"magic of the area", at(4096+5, 1)},
		{"text", func(d []byte) { d[4096+binary.LittleEndian.Uint64(d[4096+40:])+20] ^= 1 }},
		{"text outside", func(d []byte) { reseal(d, func(h []byte) { binary.LittleEndian.PutUint64(h[40:], 1<<60) }) }},
		{"text too long", func(d []byte) { reseal(d, func(h []byte) { binary.LittleEndian.PutUint64(h[48:], 1<<60) }) }},
	} {
		d := bytes.Clone(good)
		c.damage(d)
		m, err := readMark(bytes.NewReader(d))
		if err == nil {
			_, err = readText(bytes.NewReader(d), m)
		}
		if err == nil {
			t.Errorf("%s: no error", c.name)
		}
	}
	d := bytes.Clone(good)
	reseal(d, func(h []byte) { h[40+20] |= rawIgnored })
	if m, err := readMark(bytes.NewReader(d)); err != nil || m.hasText() {
		t.Errorf("ignored area: %+v, %v", m, err)
	}
	if _, err := readMark(bytes.NewReader(good[:4096])); err == nil {
		t.Error("a disk of 4 KiB: no error")
	}
}

// reseal changes the header of the metadata area and its checksum.
func reseal(disk []byte, change func(header []byte)) {
	h := disk[4096 : 4096+mdaHeaderBytes]
	change(h)
	binary.LittleEndian.PutUint32(h, crc(crcInitial, h[4:]))
}

func TestTornText(t *testing.T) {
	d := bytes.Clone(recorded(t, "many.head.gz"))
	m, err := readMark(bytes.NewReader(d))
	if err != nil {
		t.Fatal(err)
	}
	d[m.area+m.offset+5] ^= 1
	if _, err := readText(bytes.NewReader(d), m); !errors.Is(err, errTorn) {
		t.Errorf("error %v, want that it is torn", err)
	}
}

// After a power cut in the middle of a commit some physical volumes have the text before it: the newest is the group.
func TestNewestText(t *testing.T) {
	good := recorded(t, "many.head.gz")
	m, text := recordedText(t, "many")
	now, err := parseMetadata(text)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(old, with string) []byte {
		d := bytes.Clone(good)
		body := d[m.area+m.offset:][:m.size]
		changed := bytes.Replace(body, []byte(old), []byte(with), 1)
		if len(old) != len(with) || bytes.Equal(body, changed) {
			t.Fatalf("%q cannot be made %q", old, with)
		}
		copy(body, changed)
		reseal(d, func(h []byte) { binary.LittleEndian.PutUint32(h[56:], crc(crcInitial, body)) })
		return d
	}
	seqno := fmt.Sprintf("seqno = %d", now.seqno)
	before := edited(seqno, fmt.Sprintf("seqno = %d", now.seqno-1))
	torn := bytes.Clone(good)
	torn[m.area+m.offset+5] ^= 1
	for _, c := range []struct {
		name string
		with []byte
		want string
	}{
		{"the same", good, ""},
		{"one behind", before, ""},
		{"another with the same number", edited("creation_time", "creation_tide"), "different things"},
		{"replaced while it is read", torn, errTorn.Error()},
	} {
		folder, marks := t.TempDir(), map[string]commitMark{}
		i := newInventory(nil, Config{})
		for name, disk := range map[string][]byte{"a": good, "b": c.with, "c": good} {
			path := filepath.Join(folder, name)
			if err := os.WriteFile(path, disk, 0o600); err != nil {
				t.Fatal(err)
			}
			if marks[path], err = i.disks.mark(t.Context(), path); err != nil {
				t.Fatal(err)
			}
		}
		if c.want == errTorn.Error() { // else the text is known from another disk
			delete(marks, filepath.Join(folder, "a"))
			delete(marks, filepath.Join(folder, "c"))
		}
		for range 10 { // in any order
			g, err := i.newest(t.Context(), marks)
			switch {
			case c.want == "" && (err != nil || g.seqno != now.seqno):
				t.Fatalf("%s: %+v, %v", c.name, g, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("%s: %v, want %s", c.name, err, c.want)
			}
		}
	}
}

func TestMetadataStrict(t *testing.T) {
	_, good := recordedText(t, "many")
	for _, c := range []struct{ old, with string }{
		{"seqno = ", "seqno = -"},
		{"seqno = ", "seqno = \"1\" # "},
		{"extent_size = 8192", "extent_size = 0"},
		{"extent_size = 8192", "extent_size = 999999999999999"},
		{"physical_volumes {", "physical {"},
		{"segment_count = 1", "segment_count = 2"},
		{"segment_count = 1", "segment_count = 99999999999"},
		{"extent_count = ", "extent_count = 1.5 # "},
		{`type = "striped"`, `type = 7`},
		{"tags = [", "tags = [7,"},
		{"logical_volumes {", "logical_volumes = 1 x {"},
		{"}", ""},
		{`"`, ""},
		{"[", "[["},
		{"data {", "data { } other {"},
	} {
		if !strings.Contains(good, c.old) {
			t.Fatalf("%q is not in the text", c.old)
		}
		if g, err := parseMetadata(strings.Replace(good, c.old, c.with, 1)); err == nil {
			t.Errorf("%q for %q: %+v, no error", c.with, c.old, g.Group)
		}
	}
	if _, err := parseMetadata(strings.Repeat("a {", 1000)); err == nil {
		t.Error("deep: no error")
	}
}

func TestTree(t *testing.T) {
	s, err := parseTree("# comment\na=1 b = \"x\\\"\\\\y#\" c=[] d=[1,\"z\",]e{f=-2.5}\n# end")
	if err != nil || s["a"] != int64(1) || s["b"] != `x"\y#` || len(s["c"].([]any)) != 0 || len(s["d"].([]any)) != 2 || s["e"].(section)["f"] != -2.5 {
		t.Errorf("%v, %v", s, err)
	}
	for _, bad := range []string{"a", "a=", "a=]", "a={", "=1", "a=1 a=2", "a{", "a=[1", "a=[1 2]", `a="x`, "}", "a=b"} {
		if s, err := parseTree(bad); err == nil {
			t.Errorf("%q: %v, no error", bad, s)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	for _, name := range []string{"empty", "many"} {
		_, text := recordedText(f, name)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if g, err := parseMetadata(text); (g == nil) == (err == nil) {
			t.Errorf("%+v, %v", g, err)
		}
	})
}

func FuzzDisk(f *testing.F) {
	good := recorded(f, "many.head.gz")
	f.Add(good[sectorBytes:2*sectorBytes], good[4096:4096+mdaHeaderBytes])
	f.Fuzz(func(t *testing.T, label, area []byte) {
		if len(label) != sectorBytes || len(area) != mdaHeaderBytes {
			return
		}
		head := make([]byte, headBytes)
		copy(head[sectorBytes:], label)
		// Checksums keep no attacker out, and would keep the fuzzer out.
		binary.LittleEndian.PutUint32(head[sectorBytes+16:], crc(crcInitial, label[20:]))
		area = bytes.Clone(area)
		binary.LittleEndian.PutUint32(area, crc(crcInitial, area[4:]))
		m, err := parseLabel(head)
		if err != nil || m.area == 0 {
			return
		}
		if m, err = parseArea(m, area); err == nil && (m.size < 0 || m.size > maxTextBytes || m.offset < 0 || m.offset > m.areaSize) {
			t.Errorf("%+v", m)
		}
		if _, err := readText(bytes.NewReader(head), m); m.size > headBytes && err == nil {
			t.Errorf("%+v: a text longer than the disk", m)
		}
	})
}
