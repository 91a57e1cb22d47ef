package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const owner = "local-lvm.csi.internal"

// scripted answers LVM commands as told, and keeps what was asked.
type scripted struct {
	t  *testing.T
	mu sync.Mutex
	// answer is called with the verb and the arguments after --config.
	answer func(verb string, args []string) (run.Result, error)
	asked  []string // verbs
	config []string
}

func (s *scripted) Read(ctx context.Context, args ...string) (run.Result, error) {
	if err := ctx.Err(); err != nil {
		return run.Result{}, err
	}
	s.mu.Lock()
	s.asked = append(s.asked, args[0])
	if len(args) > 2 && args[1] == "--config" {
		s.config = append(s.config, args[2])
		args = append(args[:1:1], args[3:]...)
	}
	s.mu.Unlock()
	return s.answer(args[0], args[1:])
}

func (s *scripted) Write(ctx context.Context, args ...string) (run.Result, error) {
	return s.Read(ctx, args...)
}

func failed(stderr string) error {
	return &run.Error{Argv: []string{"lvm"}, ExitCode: 5, Stderr: stderr, Err: errors.New("exit status 5")}
}

// rig is an LVM over scripted answers: the recorded machine "many", whose disk is a file that tests may change.
type rig struct {
	*LVM
	*scripted
	dev string

	flushed    []string // the groups
	flushFails error
}

// newRig begins with the recorded group "empty", on one disk, a file.
func newRig(t *testing.T, patterns ...string) *rig {
	t.Helper()
	if len(patterns) == 0 {
		patterns = []string{"empty"}
	}
	sys, dev := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(sys, "block"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := &rig{dev: dev}
	r.disk(t, "empty")
	r.scripted = &scripted{t: t}
	r.scripted.answer = func(verb string, args []string) (run.Result, error) {
		if verb == "fullreport" {
			return run.Result{Stdout: r.reportText(t, "empty"), Stderr: "  WARNING: a warning\n"}, nil
		}
		return run.Result{}, fmt.Errorf("unexpected %s %v", verb, args)
	}
	r.LVM = newLVM(r.scripted, Config{Owner: owner, VolumeGroups: patterns, ThinOvercommit: 1}, sys, dev)
	r.durable = func(_ context.Context, vg string) error {
		r.flushed = append(r.flushed, vg)
		return r.flushFails
	}
	r.LVM.dm.status = func(string) (dmStatus, error) { return dmStatus{}, volume.ErrNotFound }
	return r
}

// disk puts a recorded disk in place of the one there is.
func (r *rig) disk(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.dev, "vdf"), recorded(t, name+".head.gz"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reportText is a recorded report whose devices are files in our folder.
func (r *rig) reportText(t *testing.T, name string) string {
	return strings.ReplaceAll(string(recorded(t, name+".json")), `"/dev/`, `"`+r.dev+"/")
}

func (r *rig) count(t *testing.T, what string, want ...string) {
	t.Helper()
	r.scripted.mu.Lock()
	defer r.scripted.mu.Unlock()
	if !slices.Equal(r.asked, want) {
		t.Errorf("%s: asked LVM %v, want %v", what, r.asked, want)
	}
	r.asked = nil
}

func spec(lv string, l volume.Layout, bytes int64) volume.Spec {
	return volume.Spec{Ref: volume.Ref{VG: "empty", LV: lv}, Kind: volume.Persistent, Name: lv, Layout: l, RequiredBytes: bytes}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{
		{Owner: "", VolumeGroups: []string{"a"}},
		{Owner: "-x", VolumeGroups: []string{"a"}},
		{Owner: owner},
		{Owner: owner, VolumeGroups: []string{""}},
		{Owner: owner, VolumeGroups: []string{"[a"}},
		{Owner: owner, VolumeGroups: []string{"a"}, ThinOvercommit: -1},
	} {
		if _, err := New(nil, c); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if l, err := New(nil, Config{Owner: owner, VolumeGroups: []string{"a"}}); err != nil || l.cfg.ThinOvercommit != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestInventoryIsAskedOnce(t *testing.T) {
	r := newRig(t)
	for range 3 {
		if err := r.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Lookup(t.Context(), volume.Ref{LV: "v"}); !errors.Is(err, volume.ErrNotFound) {
			t.Fatal(err)
		}
	}
	r.count(t, "three times", "fullreport")
}

func TestReportIsShared(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := r.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.count(t, "20 callers", "fullreport")
}

// traps 1 and 2: a question that failed has no answer
func TestFailedReport(t *testing.T) {
	r := newRig(t)
	for _, res := range []struct {
		out string
		err error
	}{
		{"", failed("  Volume group \"empty\" not found")},
		{"", errors.New("cannot start")},
		{`{"report": [`, nil},
		{"", nil},
	} {
		r.answer = func(string, []string) (run.Result, error) { return run.Result{Stdout: res.out}, res.err }
		_, err := r.Lookup(t.Context(), volume.Ref{VG: "empty", LV: "v"})
		_, err2 := r.List(t.Context())
		_, err3 := r.Groups(t.Context())
		_, err4 := r.Create(t.Context(), spec("v", volume.Layout{Type: volume.Linear}, 1))
		for i, err := range []error{err, err2, err3, r.Check(t.Context()), err4, r.Remove(t.Context(), volume.Ref{VG: "empty", LV: "v"}, volume.Persistent)} {
			if err == nil || errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrNoSpace) {
				t.Errorf("report %+v, question %d: %v", res, i, err)
			}
		}
	}
}

// A disk that cannot be read, or is another one, makes the inventory ask LVM; what LVM says counts.
func TestInventoryAsksWhenInDoubt(t *testing.T) {
	r := newRig(t)
	check := func(what string, want ...string) {
		t.Helper()
		if _, err := r.List(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		r.count(t, what, want...)
	}
	check("begin", "fullreport")
	check("unchanged")
	if err := os.Truncate(filepath.Join(r.dev, "vdf"), 4096); err != nil {
		t.Fatal(err)
	}
	check("short disk", "fullreport")
	check("still", "fullreport")
	r.disk(t, "wrapped") // another physical volume
	check("another disk", "fullreport")
	r.disk(t, "empty")
	check("back", "fullreport")
	check("unchanged again")
}

// What was read from the disk and what LVM reported must agree, or LVM is believed and asked each time.
func TestInventoryDistrusts(t *testing.T) {
	r := newRig(t)
	r.answer = func(string, []string) (run.Result, error) {
		return run.Result{Stdout: strings.Replace(r.reportText(t, "empty"), `"vg_free":"1`, `"vg_free":"2`, 1)}, nil
	}
	for range 2 {
		groups, err := r.Groups(t.Context())
		if err != nil || groups[0].FreeBytes <= groups[0].SizeBytes {
			t.Errorf("%+v, %v; LVM's word is not taken", groups, err)
		}
		r.count(t, "distrust", "fullreport")
	}
}

// A group that the flag names and that is missing may come back; so may a group for a glob, but it is not waited for.
func TestInventoryAges(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		after    time.Duration
		want     []string
	}{
		{[]string{"empty"}, 24 * time.Hour, nil},
		{[]string{"empty", "other"}, missingAge - time.Second, nil},
		{[]string{"empty", "other"}, missingAge + time.Second, []string{"fullreport"}},
		{[]string{"e*"}, missingAge + time.Second, nil},
		{[]string{"e*"}, globAge + time.Second, []string{"fullreport"}},
	} {
		r := newRig(t, c.patterns...)
		now := time.Now()
		r.inventory.now = func() time.Time { return now }
		_, _ = r.List(t.Context())
		r.count(t, "begin", "fullreport")
		now = now.Add(c.after)
		_, _ = r.List(t.Context())
		r.count(t, fmt.Sprint(c.patterns, c.after), c.want...)
	}
}

func TestCreateArguments(t *testing.T) {
	tags := "--addtag csi.owner=" + owner + " --addtag csi.kind=persistent --addtag csi.spec=type=%s&mode=block"
	for _, c := range []struct {
		layout volume.Layout
		spec   string
		want   string
	}{
		{volume.Layout{Type: volume.Linear}, "linear", "-Z y -L 25165824b empty"},
		{volume.Layout{Type: volume.Striped, Stripes: 2, StripeBytes: 65536}, "striped&stripes=2&stripeSize=65536", "-Z y -L 25165824b -i 2 -I 65536b empty"},
		{volume.Layout{Type: volume.RAID1, Mirrors: 2}, "raid1&mirrors=2", "-Z y -L 25165824b -m 2 empty"},
		{volume.Layout{Type: volume.RAID5, Stripes: 2}, "raid5&stripes=2", "-Z y -L 25165824b -i 2 empty"},
		{volume.Layout{Type: volume.RAID10, Stripes: 2, Mirrors: 1}, "raid10&stripes=2&mirrors=1", "-Z y -L 25165824b -i 2 -m 1 empty"},
		{volume.Layout{Type: volume.Thin, Pool: "p"}, "thin&pool=p", "-kn -V 25165824b --thinpool empty/p"},
	} {
		want := fmt.Sprintf("-y -W y -n v --type %s "+tags+" %s", c.layout.Type, c.spec, c.want)
		if got := strings.Join(createArgs(spec("v", c.layout, 0), owner, 24*mib), " "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// What lvcreate says becomes what it means; a success that made nothing is no success.
func TestCreateAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		stderr string // of a failure; "": success
		want   error  // nil: a plain error
	}{
		{"exists", "exists", volume.ErrExists},
		{"full", "insufficient", volume.ErrNoSpace},
		{"group vanished", "nogroup", volume.ErrNoSpace},
		{"usage", "reserved", nil},
		{"disks missing", "partialcreate", nil},
		{"nothing made", "", nil},
	} {
		r := newRig(t)
		report := r.answer
		r.answer = func(verb string, args []string) (run.Result, error) {
			switch {
			case verb == "fullreport":
				return report(verb, args)
			case c.stderr == "":
				return run.Result{Stdout: "  Logical volume \"v\" created.\n"}, nil
			}
			return run.Result{}, failed(string(recorded(t, c.stderr+".stderr")))
		}
		_, err := r.Create(t.Context(), spec("v", volume.Layout{Type: volume.Linear}, 1))
		if err == nil {
			t.Errorf("%s: no error", c.name)
		}
		for _, s := range sentinels[:8] {
			if errors.Is(err, s) != (s == c.want) { //nolint:errorlint // the sentinels themselves are compared
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		}
		r.count(t, c.name, "fullreport", "lvcreate")
	}
}

func TestAdmitSize(t *testing.T) {
	made := func(extents ...int64) *group {
		g := &group{}
		g.ExtentBytes = 4 * mib
		for _, n := range extents {
			g.PVs = append(g.PVs, volume.PV{SizeBytes: n * 4 * mib})
			g.SizeBytes += n * 4 * mib
		}
		return g
	}
	for _, c := range []struct {
		group   *group
		layout  volume.Layout
		extents int64
		want    error
	}{
		{made(10), volume.Layout{Type: volume.Linear}, 10, nil},
		{made(10), volume.Layout{Type: volume.Linear}, 11, volume.ErrOutOfRange},
		{made(10, 1), volume.Layout{Type: volume.Linear}, 11, nil},
		{made(10, 5), volume.Layout{Type: volume.Striped, Stripes: 2}, 10, nil},
		{made(10, 5), volume.Layout{Type: volume.Striped, Stripes: 2}, 12, volume.ErrOutOfRange},
		{made(10), volume.Layout{Type: volume.Striped, Stripes: 2}, 2, volume.ErrNoSpace},
		{made(10, 10), volume.Layout{Type: volume.RAID1, Mirrors: 1}, 9, nil},
		{made(10, 10), volume.Layout{Type: volume.RAID1, Mirrors: 1}, 10, volume.ErrOutOfRange},
		{made(10, 5, 5), volume.Layout{Type: volume.RAID1, Mirrors: 1}, 9, nil}, // the second copy on two disks
		{made(5, 5, 5), volume.Layout{Type: volume.RAID5, Stripes: 2}, 8, nil},
		{made(5, 5, 5), volume.Layout{Type: volume.RAID5, Stripes: 2}, 10, volume.ErrOutOfRange},
		{made(5, 5), volume.Layout{Type: volume.RAID5, Stripes: 2}, 2, volume.ErrNoSpace},
		{made(5, 5, 5, 5, 5), volume.Layout{Type: volume.RAID6, Stripes: 3}, 12, nil},
		{made(5, 5, 5, 5), volume.Layout{Type: volume.RAID6, Stripes: 3}, 3, volume.ErrNoSpace},
		{made(5, 5, 5, 5), volume.Layout{Type: volume.RAID10, Stripes: 2, Mirrors: 1}, 8, nil},
		{made(5, 5, 5, 5), volume.Layout{Type: volume.RAID10, Stripes: 2, Mirrors: 1}, 10, volume.ErrOutOfRange},
	} {
		if err := (&LVM{}).admitSize(c.group, c.layout, c.extents*4*mib); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%+v, %d extents on %d physical volumes: %v, want %v", c.layout, c.extents, len(c.group.PVs), err, c.want)
		}
	}
}

// A removal that may come back with a power cut is none.
func TestRemoveIsDurable(t *testing.T) {
	r := newRig(t, "data")
	r.answer = func(string, []string) (run.Result, error) {
		return run.Result{Stdout: "  Logical volume \"linear\" successfully removed.\n"}, nil
	}
	r.flushFails = errors.New("no flush today")
	if err := r.Remove(t.Context(), volume.Ref{VG: "data", LV: "linear"}, volume.Persistent); !errors.Is(err, r.flushFails) {
		t.Errorf("got %v, want %v", err, r.flushFails)
	}
}

// LVM is told what must hold of what it removes; what it answers decides, and silence is looked into.
func TestRemove(t *testing.T) {
	silent := run.Result{}
	for _, c := range []selected{
		{name: "removed", lv: "linear", result: run.Result{Stdout: "  Logical volume \"linear\" successfully removed.\n"}},
		{name: "another one removed", lv: "linear", result: run.Result{Stdout: "  Logical volume \"xlinear\" successfully removed.\n"}, report: "many", plain: true, reports: true},
		{name: "open", lv: "linear", err: failed(string(recorded(t, "open.stderr"))), want: volume.ErrBusy},
		{name: "gone", lv: "none", err: failed(string(recorded(t, "nolv.stderr"))), report: "many", reports: true},
		{name: "gone from a partial group", lv: "none", err: failed(string(recorded(t, "nolv.stderr"))), report: "partial", plain: true, reports: true},
		{name: "gone with its group", lv: "none", err: failed(string(recorded(t, "nolv.stderr"))), report: "none", plain: true, reports: true},
		{name: "no group", lv: "none", err: failed(string(recorded(t, "nogroup.stderr"))), plain: true},
		{name: "foreign", lv: "foreign", result: silent, report: "many", want: volume.ErrPrecondition, reports: true},
		{name: "of another kind", lv: "linear", kind: volume.Inline, result: silent, report: "many", want: volume.ErrPrecondition, reports: true},
		{name: "origin", lv: "origin", result: silent, report: "many", want: volume.ErrPrecondition, reports: true},
		{name: "pool", lv: "pool", result: silent, report: "many", want: volume.ErrPrecondition, reports: true},
		{name: "changed meanwhile", lv: "linear", result: silent, report: "many", plain: true, reports: true},
		{name: "a disk is missing", lv: "linear", result: silent, report: "partial", plain: true, reports: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, "lvremove", nil, " && lv_role!=thickorigin && lv_role!=extthinorigin", func(r *rig, of volume.Ref) error { return r.Remove(t.Context(), of, c.kind) })
		})
	}
}

// One command of ours per group; the others wait, and may give up.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &LVM{queues: map[string]chan struct{}{}}
		done, err := l.queue(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := l.queue(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("second in the same group: %v", err)
		}
		other, err := l.queue(t.Context(), "b")
		if err != nil {
			t.Errorf("another group: %v", err)
		}
		other()
		done()
		again, err := l.queue(t.Context(), "a")
		if err != nil {
			t.Errorf("after the first: %v", err)
		}
		again()
	})
}

// A change that panics gives its turn back: the group is not lost to all others.
func TestQueueAfterAPanic(t *testing.T) {
	r := newRig(t)
	ref := volume.Ref{VG: "empty", LV: "v"}
	report := r.answer
	r.answer = func(verb string, args []string) (run.Result, error) {
		if verb == "fullreport" {
			return report(verb, args)
		}
		panic("in " + verb)
	}
	for what, change := range map[string]func() error{
		"Remove": func() error { return r.Remove(t.Context(), ref, volume.Inline) },
		"Create": func() error {
			_, err := r.Create(t.Context(), volume.Spec{Ref: ref, RequiredBytes: 4 << 20, Layout: volume.Layout{Type: volume.Linear}})
			return err
		},
		"Activate": func() error { return r.Activate(t.Context(), ref) },
		"Retag":    func() error { return r.Retag(t.Context(), ref, volume.Inline, []string{"csi.state=x"}, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s has not panicked", what)
				}
			}()
			t.Errorf("%s: %v", what, change())
		}()
		if len(r.queues["empty"]) != 0 {
			t.Errorf("%s has kept its turn", what)
			delete(r.queues, "empty")
		}
	}
}

// A disk that hangs keeps a caller for a bounded time, and does not collect goroutines.
func TestStuckDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d disks
		for range 3 {
			d.begin("/dev/x")
		}
		if d.isStuck("/dev/x") || d.isStuck("/dev/y") {
			t.Error("stuck from the beginning")
		}
		time.Sleep(diskLimit + time.Second) //nolint:forbidigo // the clock of synctest, which costs no time
		if !d.isStuck("/dev/x") || d.isStuck("/dev/y") {
			t.Error("not stuck after the limit")
		}
		if _, err := d.mark(t.Context(), "/dev/x"); err == nil {
			t.Error("another read was begun")
		}
		for id := range 3 {
			d.end("/dev/x", id+1)
		}
		if d.isStuck("/dev/x") {
			t.Error("stuck after all reads have ended")
		}
	})
}

func TestActivate(t *testing.T) {
	r := newRig(t)
	ref := volume.Ref{VG: "empty", LV: "v"}
	r.answer = func(verb string, args []string) (run.Result, error) {
		if want := []string{"-y", "-ay", "-K", "empty/v"}; verb != "lvchange" || !slices.Equal(args, want) {
			t.Errorf("%s %v", verb, args)
		}
		return run.Result{}, nil
	}
	// case B34: lvchange says nothing and does nothing
	if err := r.Activate(t.Context(), ref); err == nil || errors.Is(err, volume.ErrNotFound) {
		t.Errorf("no device after lvchange: %v", err)
	}
	r.dm.status = func(string) (dmStatus, error) { return dmStatus{}, nil }
	if err := r.Activate(t.Context(), ref); err != nil {
		t.Error(err)
	}
	r.answer = func(string, []string) (run.Result, error) {
		return run.Result{}, failed(string(recorded(t, "nolv.stderr")))
	}
	if err := r.Activate(t.Context(), ref); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("no such logical volume: %v", err)
	}
}

// A device of the right name must be LVM's, and of this very logical volume.
func TestDeviceOfAnother(t *testing.T) {
	r := newRig(t)
	for _, uuid := range []string{"", "CRYPT-LUKS2-x", dmPrefix + strings.Repeat("x", 64)} {
		r.dm.status = func(string) (dmStatus, error) { return dmStatus{uuid: uuid}, nil }
		if _, err := r.Device(t.Context(), volume.Ref{VG: "empty", LV: "v"}); err == nil || errors.Is(err, volume.ErrNotFound) {
			t.Errorf("uuid %q: %v", uuid, err)
		}
	}
}

func TestNode(t *testing.T) {
	d := newDeviceMapper("/sys", t.TempDir(), func(_ context.Context, e effectOf, _ func() error) error {
		if e.Op != "mknod" {
			t.Errorf("effect %+v", e)
		}
		return unix.EPERM
	})
	path := filepath.Join(d.dev, "dm-1")
	if err := d.node(t.Context(), path, 253, 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("missing node: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.node(t.Context(), path, 253, 1); err == nil {
		t.Error("a regular file in place of the node: no error")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("what stood there is gone: %v", err)
	}
}
