package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var ctx = context.Background()

func record(id string) Record {
	return Record{
		VolumeID: id, Kind: volume.Inline, VG: "vg", LV: "lv", Intent: Publish,
		Paths: []Path{{"/pods/a", Target}}, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func open(t *testing.T, dir string, seam effect.Seam) *Store {
	t.Helper()
	s, err := Open(ctx, dir, "n", seam)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPutSurvivesReopen(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	want := record("csi-a")
	if err := s.Put(ctx, want); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(ctx, record("n/vg/b")); err != nil {
		t.Fatal(err)
	}
	want.Intent = Reclaim
	if err := s.Put(ctx, want); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, nil)
	got, ok, err := s.Get("csi-a")
	if err != nil || !ok || !reflect.DeepEqual(got, want) {
		t.Fatalf("Get after reopen: %+v, %v, %v; want %+v", got, ok, err, want)
	}
	if n := len(s.All()); n != 2 {
		t.Fatalf("%d records, want 2", n)
	}
}

func TestForgetAndSync(t *testing.T) {
	dir := t.TempDir()
	synced := 0
	s := open(t, dir, func(_ context.Context, e effect.Effect, do func() error) error {
		if e.Op == "fsync" {
			synced++
		}
		return do()
	})
	if err := s.Put(ctx, record("a")); err != nil {
		t.Fatal(err)
	}
	if synced != 2 {
		t.Errorf("Put synced %d times, want 2", synced)
	}
	for range 2 { // forgetting twice is not an error
		if err := s.Forget(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // and only the first Sync has something to do
		if err := s.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if synced != 3 {
		t.Errorf("synced %d times in all, want 3", synced)
	}
	if _, ok, err := open(t, dir, nil).Get("a"); ok || err != nil {
		t.Errorf("forgotten record is back: %v, %v", ok, err)
	}
}

// A file that cannot be trusted stops its own volume, and stays stopped after another restart; others go on.
func TestDamagedRecordStopsItsVolumeOnly(t *testing.T) {
	whole := string(encode(record("bad")))
	for name, content := range map[string]string{
		"empty":            "",
		"half":             whole[:len(whole)/2],
		"not JSON":         "hello\n",
		"edited":           strings.Replace(whole, `"publish"`, `"reclaim"`, 1),
		"of another":       string(encode(record("other"))),
		"newer version":    strings.Replace(whole, `"version": 1`, `"version": 2`, 1),
		"an unknown field": strings.Replace(whole, `"kind"`, `"colour": "red", "kind"`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, nil)
			for _, id := range []string{"bad", "good"} {
				if err := s.Put(ctx, record(id)); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, "journal", fileName("bad"))
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			for restart := range 2 {
				s = open(t, dir, nil)
				if _, _, err := s.Get("bad"); err == nil {
					t.Errorf("start %d: the damaged record reads as none", restart)
				}
				if _, ok, err := s.Get("good"); !ok || err != nil {
					t.Errorf("start %d: the other record is lost: %v, %v", restart, ok, err)
				}
				if len(s.Problems()) != 1 {
					t.Errorf("start %d: problems %q, want one", restart, s.Problems())
				}
			}
			if _, err := os.Stat(path); name == "newer version" && err != nil {
				t.Errorf("the newer driver's record was moved: %v", err)
			}
		})
	}
}

func TestForeignFilesAndLeftovers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	if err := s.Put(ctx, record("a")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{tempPrefix + "123", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, "journal", name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	readOnly := func(context.Context, effect.Effect, func() error) error { return syscall.EROFS }
	for _, effects := range []effect.Seam{readOnly, nil} { // what cannot be put in order keeps no driver from starting
		s = open(t, dir, effects)
		if _, ok, err := s.Get("a"); !ok || err != nil {
			t.Errorf("record lost: %v, %v", ok, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 { // the record, and the folder with the foreign file
		t.Errorf("folder holds %v", entries)
	}
	if aside, err := os.ReadDir(filepath.Join(dir, "journal", damagedFolder)); err != nil || len(aside) != 1 {
		t.Errorf("aside: %v, %v; want the foreign file", aside, err)
	}
	if err := s.Put(ctx, record("b")); err != nil {
		t.Errorf("Put beside leftovers: %v", err)
	}
}

// Each step of Put is made to fail, and each is cut off before and after: the journal that is opened next holds the old
// record or the new one, whole, and nothing else.
func TestPutFaultSweep(t *testing.T) {
	old, next, made := record("n/vg/lv"), record("n/vg/lv"), creation("lv", volume.Persistent)
	next.Intent = Reclaim
	for _, tc := range []struct {
		name      string
		old, next Record
		steps     int
	}{
		{"of the same form", old, next, 4},
		{"of a create", Record{}, made, 2},
		{"of a create, over another", old, made, 3},
		{"over that of a create", made, next, 5},
	} {
		for _, mode := range []string{"fail", "cut before", "cut after"} {
			t.Run(tc.name+", "+mode, func(t *testing.T) {
				n := 1
				for ; sweepPut(t, tc.old, tc.next, mode, n); n++ {
				}
				if n != tc.steps+1 {
					t.Errorf("Put has %d steps, want %d", n-1, tc.steps)
				}
			})
		}
	}
}

// sweepPut reports whether there is an n-th step.
func sweepPut(t *testing.T, old, next Record, mode string, n int) bool {
	type cut struct{}
	dir := t.TempDir()
	first := open(t, dir, nil)
	if old.VolumeID != "" {
		if err := first.Put(ctx, old); err != nil {
			t.Fatal(err)
		}
	}
	count := 0
	s := open(t, dir, func(_ context.Context, _ effect.Effect, do func() error) error {
		if count++; count != n {
			return do()
		}
		switch mode {
		case "fail":
			return errors.New("injected")
		case "cut before":
			panic(cut{})
		default:
			_ = do()
			panic(cut{})
		}
	})
	err := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(cut); !ok {
					panic(r)
				}
				err = errors.New("cut")
			}
		}()
		return s.Put(ctx, next)
	}()
	if count < n {
		if err != nil {
			t.Fatal(err)
		}
		return false
	}
	if err == nil {
		t.Errorf("at %d: Put reports success", n)
	}
	again := open(t, dir, nil)
	got, ok, err := again.Get(next.VolumeID)
	if err != nil || ok && got.Intent != old.Intent && got.Intent != next.Intent || !ok && old.VolumeID != "" || len(again.Problems()) != 0 {
		t.Errorf("at %d: %+v, %v, %v, %v", n, got, ok, err, again.Problems())
	}
	if mode == "fail" { // and memory says what the disk says
		if mem, _, _ := s.Get(next.VolumeID); mem.Intent != got.Intent && got.Intent != Create {
			t.Errorf("fail at %d: memory says %s, disk %s", n, mem.Intent, got.Intent)
		}
	}
	if err := again.Forget(ctx, next.VolumeID); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(filepath.Join(dir, "journal")); len(entries) != 0 {
		t.Errorf("at %d: left over: %v", n, entries)
	}
	return true
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(record("a")))
	f.Add([]byte(`{"version":9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, _, err := decode(data, fileName("a"))
		if err == nil && rec.VolumeID != "a" {
			t.Errorf("a record of %q was read under the name of another", rec.VolumeID)
		}
		if err == nil && fmt.Sprint(rec) == "" {
			t.Error("empty")
		}
	})
}
