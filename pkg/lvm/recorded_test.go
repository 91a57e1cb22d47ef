package lvm

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// recorded gives a file that testdata/record.sh made with real LVM.
func recorded(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(name) != ".gz" {
		return b
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	return b
}

func all(string) bool { return true }

// recordedGroup gives a group as LVM reported it.
func recordedGroup(t testing.TB, report, vg string) *group {
	t.Helper()
	groups, err := parseReport(recorded(t, report+".json"), all)
	if err != nil {
		t.Fatal(err)
	}
	if groups[vg] == nil {
		t.Fatalf("%s: no group %s", report, vg)
	}
	return groups[vg]
}

// recordedText gives the mark and the metadata text of the beginning of a disk.
func recordedText(t testing.TB, name string) (commitMark, string) {
	t.Helper()
	disk := bytes.NewReader(recorded(t, name+".head.gz"))
	m, err := readMark(disk)
	if err != nil {
		t.Fatal(err)
	}
	text, err := readText(disk, m)
	if err != nil {
		t.Fatal(err)
	}
	return m, string(text)
}
