package journal

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func creation(lv string, k volume.Kind) Record {
	return Record{VolumeID: "n/vg/" + lv, Kind: k, VG: "vg", LV: lv, Intent: Create, Since: time.Now().UTC().Truncate(time.Second)}
}

// A create costs one fsync to be made known, and one to be forgotten for good; its file is empty, and its name is all.
func TestCreateIsItsName(t *testing.T) {
	for _, tc := range []struct {
		rec  Record
		name string
	}{
		{creation("lv", volume.Persistent), "vg:lv.create-persistent"},
		{creation("s-1", volume.Snapshot), "vg:s-1.create-snapshot"},
		{creation("a.create-snapshot", volume.Persistent), "vg:a.create-snapshot.create-persistent"},
		{Record{VolumeID: "n/.tmp-1/lv", Kind: volume.Persistent, VG: ".tmp-1", LV: "lv", Intent: Create, Since: creation("", "").Since}, ".tmp-1:lv.create-persistent"},
	} {
		dir, synced := t.TempDir(), 0
		s := open(t, dir, func(_ context.Context, e effect.Effect, do func() error) error {
			if e.Op == "fsync" {
				synced++
			}
			return do()
		})
		if err := s.Put(ctx, tc.rec); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "journal", tc.name)
		if info, err := os.Stat(file); err != nil || info.Size() != 0 || synced != 1 {
			t.Errorf("%s: %v, %v, after %d fsyncs", tc.name, info, err, synced)
		}
		for _, content := range []string{"", "whatever a power cut has left of notes"} {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			again := open(t, dir, nil)
			got, ok, err := again.Get(tc.rec.VolumeID)
			if tc.rec.Since = got.Since; !ok || err != nil || !reflect.DeepEqual(got, tc.rec) || len(again.Problems()) != 0 {
				t.Errorf("%s: read again: %+v, %v, %v, %v", tc.name, got, ok, err, again.Problems())
			}
		}
		if err := s.Erase(ctx, tc.rec.VolumeID); err != nil || synced != 2 {
			t.Errorf("%s: erased: %v, after %d fsyncs", tc.name, err, synced)
		}
		if entries, _ := os.ReadDir(filepath.Join(dir, "journal")); len(entries) != 0 {
			t.Errorf("%s: left: %v", tc.name, entries)
		}
	}
}

// What its name would not say needs a file with content.
func TestCreateWithContent(t *testing.T) {
	other := creation("lv", volume.Persistent)
	other.VolumeID = "another-node/vg/lv"
	dir := t.TempDir()
	if err := open(t, dir, nil).Put(ctx, other); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := open(t, dir, nil).Get(other.VolumeID); !ok || err != nil || !reflect.DeepEqual(got, other) {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
}

// A driver before this one wrote creates as JSON, as all else.
func TestEarlierCreateIsRead(t *testing.T) {
	dir, rec := t.TempDir(), creation("lv", volume.Persistent)
	folder := filepath.Join(dir, "journal")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, fileName(rec.VolumeID)), encode(rec), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, nil)
	if got, ok, err := s.Get(rec.VolumeID); !ok || err != nil || !reflect.DeepEqual(got, rec) {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
	if err := s.Put(ctx, rec); err != nil { // and it is replaced, not doubled
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 1 || !strings.HasSuffix(entries[0].Name(), ".create-persistent") {
		t.Errorf("left: %v", entries)
	}
}

// A power cut can leave both the old file and the new one: what is nobody's stays nobody's, and both go together.
func TestCreateBesideAnother(t *testing.T) {
	dir, rec := t.TempDir(), creation("lv", volume.Persistent)
	other := record(rec.VolumeID)
	if err := open(t, dir, nil).Put(ctx, other); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "journal/vg:lv.create-persistent"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, nil)
	if got, ok, err := s.Get(rec.VolumeID); !ok || err != nil || got.Intent != Create {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
	if err := s.Forget(ctx, rec.VolumeID); err != nil {
		t.Fatal(err)
	}
	if left := open(t, dir, nil).All(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// What looks like a create and is none stops its own volume only, whatever stands there in its place.
func TestStrangeCreates(t *testing.T) {
	for _, tc := range []struct {
		name           string
		folder         bool
		stops, staysIn bool
	}{
		{"vg:lv.create-clone", false, true, true}, // of a newer driver
		{"vg:lv.create-persistent", true, true, false},
		{"vg:lv.delete-persistent", false, false, false},
		{"vg:-lv.create-persistent", false, false, false},
		{"vg:lv", false, false, false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "journal", tc.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		make := func() error { return os.WriteFile(path, nil, 0o600) }
		if tc.folder {
			make = func() error { return os.Mkdir(path, 0o700) }
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second start finds it where the first has put it
			s := open(t, dir, nil)
			if _, ok, err := s.Get("n/vg/lv"); ok || (err != nil) != tc.stops {
				t.Errorf("%s: %v, %v", tc.name, ok, err)
			}
			if _, ok, err := s.Get("n/vg/other"); ok || err != nil {
				t.Errorf("%s: of another volume: %v, %v", tc.name, ok, err)
			}
			if len(s.Problems()) != 1 {
				t.Errorf("%s: problems: %v", tc.name, s.Problems())
			}
			if _, err := os.Stat(path); (err == nil) != tc.staysIn {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	}
}
