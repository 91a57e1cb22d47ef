package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const owner = "local-lvm.csi.internal"

// bench is a machine in memory beside a folder of kubelet's on this one, at the same path.
type bench struct {
	t     *testing.T
	m     *fake.Machine
	tools fake.Tools
	where Where
	live  error // nil: a driver runs
}

func newBench(t *testing.T) *bench {
	m := fake.New()
	m.AddGroup("data", 4<<20, 1<<30)
	b := &bench{t: t, m: m, tools: m.Connect(fake.Config{Owner: owner, Groups: []string{"data"}})}
	empty := t.TempDir()
	b.where = Where{Proc: empty, Sys: empty, Modules: empty, Locks: empty, KubeletDir: filepath.Join(t.TempDir(), "kubelet"), Driver: owner}
	b.folder(b.where.KubeletDir + "/pods/another-pod")
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// folder makes a folder on both.
func (b *bench) folder(path string) {
	b.must(os.MkdirAll(path, 0o700))
	at := ""
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		at += "/" + part
		if f, err := b.m.Lstat(at); err != nil || f.Kind == 0 {
			b.must(b.m.Mkdir(at))
		}
	}
}

// volume makes an active logical volume of the driver.
func (b *bench) volume(kind volume.Kind, name string, tags ...string) (volume.Ref, volume.Device) {
	r := volume.Ref{VG: "data", LV: name}
	b.m.AddLV(r, volume.Layout{Type: volume.Linear}, 8<<20, append(tags, volume.OwnerTag(owner), volume.KindTag(kind))...)
	b.m.EditLV(r, func(s *fake.State) { s.Active = true })
	d, err := b.tools.LVM.Device(b.t.Context(), r)
	b.must(err)
	b.must(b.tools.Filesystems.Format(b.t.Context(), d, volume.Format{FS: volume.Ext4}))
	return r, d
}

// wanted makes kubelet's folder and file for a volume of a pod, and gives the target.
func (b *bench) wanted(pod, id string) string {
	folder := filepath.Join(b.where.KubeletDir, "pods", pod, "volumes/kubernetes.io~csi/pv")
	b.folder(folder + "/mount")
	file := folder + "/vol_data.json"
	b.must(os.WriteFile(file, fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":%q,"attachmentID":"x"}`, owner, id), 0o600))
	b.must(os.Chtimes(file, old, old))
	return folder + "/mount"
}

func (b *bench) look(ctx context.Context) (*Facts, error) {
	c := status.New(status.Sources{
		Node: "node-1", Owner: owner, KubeletDir: b.where.KubeletDir, LVM: b.tools.LVM,
		Health: health.New(b.tools.LVM, b.tools.Mounts, b.tools.Paths.Resolve), Mounts: b.tools.Mounts.List, Resolve: b.tools.Paths.Resolve,
		Holders: b.tools.Mounts.Holders,
		Journal: func() ([]journal.Record, []string, error) { return nil, nil, nil },
		Live: func(context.Context) (*status.Live, error) {
			if b.live != nil {
				return nil, b.live
			}
			return &status.Live{Version: "v1"}, nil
		},
	})
	f := Gather(ctx, b.where, "v1", c, c.Collect)
	f.Machine = Machine{} // of this machine, of which a test knows nothing
	return f, nil
}

// hands are those of the driver, over the machine in memory.
type hands struct{ *bench }

func (h hands) Activate(ctx context.Context, r volume.Ref) error {
	return h.tools.LVM.Activate(ctx, r)
}
func (h hands) Resume(ctx context.Context) ([]volume.Ref, error) { return h.tools.LVM.Resume(ctx) }
func (h hands) RemoveInline(ctx context.Context, r volume.Ref) error {
	return h.tools.LVM.Remove(ctx, r, volume.Inline)
}
func (h hands) Unmount(ctx context.Context, path string) error {
	return h.tools.Mounts.Unmount(ctx, path)
}
func (h hands) RemoveTarget(ctx context.Context, path string) error {
	return errors.Join(h.tools.Paths.Remove(ctx, path), os.Remove(path))
}

// mend carries out the fix of a finding that is still found.
func (b *bench) mend(n Finding) (ok bool, err error) {
	fix, err := Still(b.t.Context(), n, b.look)
	if fix == nil || err != nil {
		return false, err
	}
	return true, fix.Do(b.t.Context(), hands{b})
}

// Each fault is made, found, and mended, and nothing else is touched.
func TestMend(t *testing.T) {
	for _, c := range []struct {
		rule  string
		fault func(b *bench)
	}{
		{"inactive", func(b *bench) {
			r, _ := b.volume(volume.Persistent, "pvc-1")
			b.must(os.Remove(b.wanted("uid-1", "node-1/data/pvc-1")))
			b.m.EditLV(r, func(s *fake.State) { s.Active = false })
		}},
		{"orphan", func(b *bench) { b.volume(volume.Inline, "csi-1", "csi.pod=uid-1") }},
		{"leaked-mount", func(b *bench) {
			_, d := b.volume(volume.Persistent, "pvc-1")
			target := b.wanted("uid-1", "node-1/data/pvc-1")
			b.must(b.tools.Mounts.Mount(b.t.Context(), d, target, volume.MountOptions{FS: volume.Ext4}))
			b.must(os.Remove(filepath.Dir(target) + "/vol_data.json"))
		}},
		{"target-left", func(b *bench) {
			b.volume(volume.Persistent, "pvc-1")
			b.wanted("uid-1", "node-1/data/pvc-1")
		}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			b := newBench(t)
			b.volume(volume.Persistent, "bystander")
			_, d := b.volume(volume.Inline, "csi-9", "csi.pod=uid-9")
			b.must(b.tools.Mounts.Mount(t.Context(), d, b.wanted("uid-9", "csi-9"), volume.MountOptions{FS: volume.Ext4}))
			before := b.m.World()
			if f, _ := b.look(t.Context()); len(Examine(f)) != 0 {
				t.Fatalf("before: %+v", Examine(f))
			}
			c.fault(b)
			f, _ := b.look(t.Context())
			found := Examine(f)
			if len(found) != 1 || found[0].Rule != c.rule || found[0].Fix == nil {
				t.Fatalf("%+v", found)
			}
			if ok, err := b.mend(found[0]); !ok || err != nil {
				t.Fatalf("%v %v", ok, err)
			}
			f, _ = b.look(t.Context())
			if left := Examine(f); len(left) != 0 {
				t.Errorf("left: %+v", left)
			}
			for line := range strings.Lines(before) {
				if !strings.Contains(b.m.World(), line) {
					t.Errorf("lost: %s", line)
				}
			}
			if ok, err := b.mend(found[0]); ok || err != nil {
				t.Errorf("a second time: %v %v", ok, err)
			}
		})
	}
}

// idle resumes nothing.
type idle struct{ hands }

func (idle) Resume(context.Context) ([]volume.Ref, error) { return nil, nil }

// What is suspended is left to a driver that runs, or may. Without one it is mended, and a fix that changed nothing is not called done.
func TestResume(t *testing.T) {
	b := newBench(t)
	r, _ := b.volume(volume.Persistent, "pvc-1")
	b.m.EditLV(r, func(s *fake.State) { s.Suspended = true })
	find := func() *Fix {
		t.Helper()
		f, _ := b.look(t.Context())
		for _, n := range Examine(f) {
			if n.Rule == "suspended" {
				return n.Fix
			}
		}
		t.Fatal("not found")
		return nil
	}
	if fix := find(); fix != nil {
		t.Errorf("beside a driver that runs: %s", fix.Says)
	}
	b.live = errors.New("permission denied")
	if fix := find(); fix != nil {
		t.Errorf("beside a driver that may run: %s", fix.Says)
	}
	b.live = status.ErrNotRunning
	if err := find().Do(t.Context(), idle{hands{b}}); !errors.Is(err, errNotResumed) {
		t.Errorf("%v", err)
	}
	b.must(find().Do(t.Context(), hands{b}))
	if d, err := b.tools.LVM.Device(t.Context(), r); err != nil || d.Suspended {
		t.Errorf("%+v, %v", d, err)
	}
}

// What has come to be used since the look is not touched.
func TestMendLooksAgain(t *testing.T) {
	b := newBench(t)
	r, d := b.volume(volume.Inline, "csi-1", "csi.pod=uid-1")
	f, _ := b.look(t.Context())
	found := Examine(f)
	b.must(b.tools.Mounts.Mount(t.Context(), d, b.wanted("uid-1", "csi-1"), volume.MountOptions{FS: volume.Ext4}))
	if ok, err := b.mend(found[0]); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	if _, ok := b.m.LV(r); !ok {
		t.Error("it is gone")
	}
}

// kubelet's files tell what it wants of the driver, at which path, and for whom.
func TestWanted(t *testing.T) {
	root := t.TempDir()
	const csi = "plugins/kubernetes.io/csi/"
	want := []string{
		"h1 /pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount uid-1 false",
		"h2 /" + csi + owner + "/0a1b/globalmount  true",
		"h3 /" + csi + "pv/pv-3/globalmount  true",
		"h4 /" + csi + "volumeDevices/staging/pv-4  true",
	}
	for file, text := range map[string]string{
		"pods/uid-1/volumes/kubernetes.io~csi/pv-1/": `{"driverName":"` + owner + `","volumeHandle":"h1"}`,
		csi + owner + "/0a1b/":                       `{"driverName":"` + owner + `","volumeHandle":"h2"}`,
		csi + "pv/pv-3/":                             `{"driverName":"` + owner + `","volumeHandle":"h3"}`,
		csi + "volumeDevices/pv-4/data/":             `{"driverName":"` + owner + `","volumeHandle":"h4"}`,
		csi + "volumeDevices/pv-5/data/":             `{"driverName":"another","volumeHandle":"h5"}`,
		csi + "volumeDevices/pv-6/data/":             `{`,
	} {
		folder := filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(folder+"/vol_data.json", []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, k := range (Where{KubeletDir: root, Driver: owner}).wanted() {
		got = append(got, fmt.Sprint(k.Handle, " ", strings.TrimPrefix(k.Path, root), " ", k.PodUID, " ", k.Staging))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMachine(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Unix(1000000, 0)
	const magic = 0x0d4d
	write("proc/sysvipc/sem", fmt.Sprintf("       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n"+
		"%d 0 600 1 0 0 0 0 0 %d\n%d 1 600 1 0 0 0 0 0 %d\n%d 2 600 1 0 0 0 0 0 %d\n",
		magic<<16|7, at.Unix()-100, magic<<16|8, at.Unix()-10, 42, at.Unix()-100))
	write("proc/1/root"+filepath.Join(root, "locks")+"/x", "")
	write("sys/module/dm_mod/x", "")
	write("modules/6.1/modules.builtin", "kernel/fs/ext4/ext4.ko\n")
	write("modules/6.1/modules.dep", "kernel/drivers/md/dm-thin-pool.ko.xz: kernel/a.ko\nkernel/fs/xfs/xfs.ko:\n")
	w := Where{Proc: root + "/proc", Sys: root + "/sys", Modules: root + "/modules", Locks: root + "/locks"}
	if n := w.cookies(at); n != 1 {
		t.Errorf("%d cookies", n)
	}
	if got := w.missing("6.1"); !slices.Equal(got, []string{"dm_raid", "dm_snapshot", "btrfs"}) {
		t.Errorf("missing: %q", got)
	}
	if got := w.missing("6.2"); got != nil {
		t.Errorf("of a kernel without a folder: %q", got)
	}
	if !w.locksApart() {
		t.Error("it has no locks at all, and they are taken for the host's")
	}
	w.Proc = root + "/none"
	if w.locksApart() {
		t.Error("the host's cannot be seen")
	}
}

// kubectl answers for a cluster.
type kubectl map[string]string

func (k kubectl) Read(_ context.Context, name string, args ...string) (run.Result, error) {
	line := name + " " + strings.Join(args, " ")
	for part, answer := range k {
		if strings.Contains(line, part) {
			if strings.HasPrefix(answer, "error") {
				return run.Result{}, &run.Error{Argv: args, ExitCode: 1, Stderr: answer, Err: errors.New("exit status 1")}
			}
			return run.Result{Stdout: answer}, nil
		}
	}
	return run.Result{}, errors.New("not expected: " + line)
}

func (kubectl) Write(context.Context, string, ...string) (run.Result, error) {
	return run.Result{}, errors.New("it only looks")
}

func TestAskCluster(t *testing.T) {
	k := kubectl{
		"persistentvolumes,nodes": `{"items":[
			{"kind":"Node","metadata":{"name":"node-1"}},
			{"kind":"PersistentVolume","metadata":{"name":"pv"},"spec":{"csi":{"driver":"local-lvm.csi.internal","volumeHandle":"node-1/data/x","volumeAttributes":{"password":"secret"}},"claimRef":{"name":"c","namespace":"ns"}},"status":{"phase":"Bound"}},
			{"kind":"PersistentVolume","metadata":{"name":"other"},"spec":{"csi":{"driver":"another"}}},
			{"kind":"VolumeAttachment","metadata":{"name":"a","deletionTimestamp":"2026-01-02T03:04:05Z"},"spec":{"attacher":"local-lvm.csi.internal","nodeName":"node-1","source":{"persistentVolumeName":"pv"}},"status":{"detachError":{"message":"in use"}}}]}`,
		"--field-selector=spec.nodeName=node-1": `{"items":[{"kind":"Pod","metadata":{"name":"p","namespace":"ns","uid":"u"},"spec":{"nodeName":"node-1"},"status":{"phase":"Running"}}]}`,
		"volumesnapshotcontents":                `{"items":[{"kind":"VolumeSnapshotContent","metadata":{"name":"s"},"spec":{"driver":"local-lvm.csi.internal"},"status":{"snapshotHandle":"node-1/data/s"}}]}`,
	}
	c, err := AskCluster(t.Context(), k, "/kube", owner, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%v %v %v %v %v %v", c.Nodes, c.PVs, c.Pods, c.Attachments[0].PV, c.Attachments[0].Error, c.Contents)
	if want := "[node-1] [{pv node-1/data/x ns/c Bound}] [{u ns/p Running}] pv in use [{s node-1/data/s}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	k["volumesnapshotcontents"] = `error: the server doesn't have a resource type "volumesnapshotcontents"`
	if c, err := AskCluster(t.Context(), k, "", owner, "node-1"); err != nil || len(c.PVs) != 1 {
		t.Errorf("without snapshots: %v", err)
	}
	for part := range k {
		broken := kubectl{part: "error: connection refused"}
		for other, answer := range k {
			if other != part {
				broken[other] = answer
			}
		}
		if _, err := AskCluster(t.Context(), broken, "", owner, "node-1"); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", part, err)
		}
	}
}

// Whatever somebody has put in the place of one of kubelet's files, it is neither waited for nor taken whole.
func TestReadFile(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	for _, err := range []error{
		os.WriteFile(at("small"), []byte("{}"), 0o600), os.WriteFile(at("huge"), make([]byte, 10*mostBytes), 0o600),
		os.Chtimes(at("small"), time.Unix(1e9, 0), time.Unix(1e9, 0)), unix.Mkfifo(at("pipe"), 0o600), os.Symlink("loop", at("loop")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	text, written, err := readFile(at("small"))
	if string(text) != "{}" || !written.Equal(time.Unix(1e9, 0)) || err != nil {
		t.Errorf("small: %q, %v, %v", text, written, err)
	}
	for name, most := range map[string]int{"huge": mostBytes, "pipe": 0} {
		if text, _, err := readFile(at(name)); len(text) > most || err != nil {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
	for _, name := range []string{"none", "loop", "."} {
		if text, _, err := readFile(at(name)); err == nil {
			t.Errorf("%s: %q", name, text)
		}
	}
}
