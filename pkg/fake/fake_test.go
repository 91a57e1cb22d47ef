package fake_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var (
	_ lifecycle.LVM         = (*fake.LVM)(nil)
	_ lifecycle.Mounts      = (*fake.Mounts)(nil)
	_ lifecycle.Paths       = (*fake.Paths)(nil)
	_ lifecycle.Filesystems = (*fake.Filesystems)(nil)
)

const (
	owner  = "local-lvm.csi.internal"
	mib    = int64(1) << 20
	target = "/var/lib/kubelet/pods/p/mount"
)

var ref = volume.Ref{VG: "vg", LV: "one"}

// box is a machine with one group of three disks, and a driver on it.
type box struct {
	*fake.Machine
	fake.Tools
	t *testing.T
}

func newBox(t *testing.T) box {
	m := fake.New()
	m.AddGroup("vg", 4*mib, 1024*mib, 1024*mib, 1024*mib)
	return box{m, m.Connect(fake.Config{Owner: owner, Groups: []string{"vg"}}), t}
}

func (b box) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b box) is(err, want error) {
	b.t.Helper()
	if !errors.Is(err, want) {
		b.t.Fatalf("got %v, want %v", err, want)
	}
}

func (b box) there(path string) bool {
	f, err := b.Lstat(path)
	b.ok(err)
	return f.Kind != 0
}

func spec(l volume.Layout) volume.Spec {
	return volume.Spec{Ref: ref, Kind: volume.Persistent, Name: ref.LV, Layout: l, Format: volume.Format{FS: volume.Ext4}, RequiredBytes: 64 * mib}
}

// mounted makes a volume with a file system and mounts it at target.
func (b box) mounted() volume.Device {
	b.t.Helper()
	ctx := b.t.Context()
	_, err := b.LVM.Create(ctx, spec(volume.Layout{Type: volume.Linear}))
	b.ok(err)
	d, err := b.LVM.Device(ctx, ref)
	b.ok(err)
	b.ok(b.Filesystems.Format(ctx, d, volume.Format{FS: volume.Ext4}))
	_, err = b.Paths.Make(ctx, target, false)
	b.ok(err)
	b.ok(b.Mounts.Mount(ctx, d, target, volume.MountOptions{FS: volume.Ext4}))
	d, err = b.LVM.Device(ctx, ref)
	b.ok(err)
	return d
}

func TestContentSurvivesUnmountAndReboot(t *testing.T) {
	b := newBox(t)
	ctx := t.Context()
	if d := b.mounted(); d.Open != 1 {
		t.Errorf("open count %d of a mounted device", d.Open)
	}
	b.ok(b.WriteFile(target+"/data", "kept"))
	b.is(b.LVM.Remove(ctx, ref, volume.Persistent), volume.ErrBusy)
	b.Reboot(false)
	if b.there(target + "/data") {
		t.Error("the file is visible without a mount")
	}
	_, err := b.LVM.Device(ctx, ref)
	b.is(err, volume.ErrNotFound)
	b.ok(b.LVM.Activate(ctx, ref))
	d, err := b.LVM.Device(ctx, ref)
	b.ok(err)
	b.ok(b.Mounts.Mount(ctx, d, target, volume.MountOptions{FS: volume.Ext4, ReadOnly: true}))
	if got, err := b.ReadFile(target + "/data"); got != "kept" {
		t.Errorf("read %q, %v", got, err)
	}
	b.is(b.WriteFile(target+"/data", "x"), syscall.EROFS)
}

func TestBusy(t *testing.T) {
	b := newBox(t)
	ctx := t.Context()
	d := b.mounted()
	b.ok(b.WriteFile(target+"/data", "x"))
	_, release := b.Hold("open file", target+"/data")
	b.is(b.Mounts.Unmount(ctx, target), volume.ErrBusy)
	if hs, _ := b.Mounts.Holders(ctx, d, target); len(hs) != 1 || hs[0].PID == 0 {
		t.Errorf("holders %v", hs)
	}
	release()
	b.is(b.Paths.Remove(ctx, target), volume.ErrBusy)

	_, end := b.PrivateNamespace()
	b.ok(b.Mounts.Unmount(ctx, target))
	b.is(b.LVM.Remove(ctx, ref, volume.Persistent), volume.ErrBusy)
	end()
	b.ok(b.LVM.Remove(ctx, ref, volume.Persistent))
}

// The kernel takes a mount of another namespace away with the folder it lies on; seen with Linux 6.1.
func TestRemovedFolderTakesPrivateMountAlong(t *testing.T) {
	b := newBox(t)
	b.mounted()
	b.PrivateNamespace()
	b.ok(b.Mounts.Unmount(t.Context(), target))
	b.ok(b.Paths.Remove(t.Context(), target))
	b.ok(b.LVM.Remove(t.Context(), ref, volume.Persistent))
}

func TestStackAndBindAndLinks(t *testing.T) {
	b := newBox(t)
	ctx := t.Context()
	d := b.mounted()
	b.ok(b.Mkdir("/data"))
	b.ok(b.Symlink("../var/lib/kubelet", "/data/k"))
	if got, err := b.Paths.Resolve("/data/k/pods/p/mount/no/where"); got != target+"/no/where" {
		t.Errorf("resolved %q, %v", got, err)
	}
	b.ok(b.Mounts.Bind(ctx, target, "/data/k/pods/p/mount", volume.MountOptions{ReadOnly: true}))
	b.is(b.WriteFile(target+"/x", ""), syscall.EROFS)
	b.ok(b.Mounts.Unmount(ctx, target))
	b.ok(b.WriteFile(target+"/x", ""))

	dev := "/var/lib/kubelet/pods/p/dev"
	_, err := b.Paths.Make(ctx, dev, true)
	b.ok(err)
	b.ok(b.Mounts.Bind(ctx, d.Path, dev, volume.MountOptions{}))
	list, err := b.Mounts.List(ctx)
	b.ok(err)
	if last := list[len(list)-1]; !last.Block || !d.Same(last) || last.Target != dev {
		t.Errorf("row of a device node: %+v", last)
	}
	b.is(b.Paths.Remove(ctx, dev), volume.ErrPrecondition)
}

func TestReusedExtentsHoldOldSignature(t *testing.T) {
	b := newBox(t)
	ctx := t.Context()
	b.mounted()
	b.ok(b.Mounts.Unmount(ctx, target))
	b.ok(b.LVM.Remove(ctx, ref, volume.Persistent))
	b.Tear("lvcreate")
	if _, err := b.LVM.Create(ctx, spec(volume.Layout{Type: volume.Linear})); err == nil {
		t.Fatal("a killed lvcreate succeeded")
	}
	_, err := b.LVM.Create(ctx, spec(volume.Layout{Type: volume.Linear}))
	b.is(err, volume.ErrExists)
	b.ok(b.LVM.Activate(ctx, ref))
	d, err := b.LVM.Device(ctx, ref)
	b.ok(err)
	if c, err := b.Filesystems.Probe(ctx, d); err != nil || c.Blank || c.FS != "ext4" {
		t.Errorf("an LV that was not wiped: %+v, %v", c, err)
	}
	b.ok(b.LVM.Remove(ctx, ref, volume.Persistent))
	_, err = b.LVM.Create(ctx, spec(volume.Layout{Type: volume.Linear}))
	b.ok(err)
	d, _ = b.LVM.Device(ctx, ref)
	if c, err := b.Filesystems.Probe(ctx, d); err != nil || !c.Blank {
		t.Errorf("a new LV: %+v, %v", c, err)
	}
}

func TestInventoryRunsOneReportPerChange(t *testing.T) {
	b := newBox(t)
	ctx := t.Context()
	reports := func() int { return b.Commands()["fullreport"] }
	for range 3 {
		_, err := b.Groups(ctx)
		b.ok(err)
	}
	_, err := b.LVM.Create(ctx, spec(volume.Layout{Type: volume.Linear}))
	b.ok(err)
	_, err = b.LVM.Lookup(ctx, ref)
	b.ok(err)
	if reports() != 1 {
		t.Errorf("%d reports; one at the start is enough", reports())
	}
	b.AddLV(volume.Ref{VG: "vg", LV: "foreign"}, volume.Layout{Type: volume.Linear}, 4*mib)
	_, err = b.LVM.Lookup(ctx, volume.Ref{LV: "foreign"})
	b.is(err, volume.ErrPrecondition)
	if reports() != 2 {
		t.Errorf("%d reports after a foreign change", reports())
	}
	b.FailReads("vg", errors.New("I/O error"))
	if _, err := b.LVM.Lookup(ctx, volume.Ref{VG: "vg", LV: "none"}); err == nil || errors.Is(err, volume.ErrNotFound) {
		t.Errorf("not found in a group that could not be read: %v", err)
	}
}

// Groups gives the groups, for tests.
func (b box) Groups(ctx context.Context) ([]volume.Group, error) { return b.LVM.Groups(ctx) }

func TestSeamAndBlock(t *testing.T) {
	m := fake.New()
	m.AddGroup("vg", 4*mib, 1024*mib)
	var ops []string
	seam := func(_ context.Context, e effect.Effect, do func() error) error {
		ops = append(ops, e.Op)
		return do()
	}
	b := box{m, m.Connect(fake.Config{Owner: owner, Groups: []string{"vg"}, Effects: seam}), t}
	b.mounted()
	b.ok(b.Mounts.Unmount(t.Context(), target))
	if got := strings.Join(ops, " "); got != "run fsync run mkdir mkdir mount unmount" {
		t.Errorf("effects: %s", got)
	}

	came, release := b.Block("lvremove")
	done := make(chan error, 1)
	go func() { done <- b.LVM.Remove(context.Background(), ref, volume.Persistent) }()
	<-came
	b.AddLV(volume.Ref{VG: "vg", LV: "x"}, volume.Layout{Type: volume.Linear}, 4*mib) // so that a report is needed
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := b.LVM.Lookup(ctx, ref) // it waits for the lock of the group
	b.is(err, context.DeadlineExceeded)
	release()
	b.ok(<-done)
}

func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		layout volume.Layout
		free   int64 // MiB that 64 MiB take from 3 GiB
	}{
		{volume.Layout{Type: volume.Linear}, 64},
		{volume.Layout{Type: volume.Striped, Stripes: 2}, 64},
		{volume.Layout{Type: volume.RAID1, Mirrors: 1}, 136},
		{volume.Layout{Type: volume.RAID5, Stripes: 2}, 3 * 36},
		{volume.Layout{Type: volume.Thin, Pool: "pool"}, 0},
	} {
		b := newBox(t)
		b.AddPool("vg", "pool", 128*mib)
		_, err := b.LVM.Create(t.Context(), spec(c.layout))
		b.ok(err)
		gs, err := b.Groups(t.Context())
		b.ok(err)
		if used := 3072 - 128 - gs[0].FreeBytes/mib; used != c.free {
			t.Errorf("%s takes %d MiB, want %d", c.layout.Type, used, c.free)
		}
	}
	b := newBox(t)
	_, err := b.LVM.Create(t.Context(), spec(volume.Layout{Type: volume.RAID6, Stripes: 3}))
	b.is(err, volume.ErrNoSpace)
	s := spec(volume.Layout{Type: volume.Linear})
	s.RequiredBytes = 1 << 40
	_, err = b.LVM.Create(t.Context(), s)
	b.is(err, volume.ErrOutOfRange)
}

func TestRemoveNeedsTagAndKind(t *testing.T) {
	b := newBox(t)
	ctx := t.Context()
	foreign := volume.Ref{VG: "vg", LV: "foreign"}
	b.AddLV(foreign, volume.Layout{Type: volume.Linear}, 4*mib, volume.OwnerTag("other"), volume.KindTag(volume.Inline))
	before := b.World()
	b.is(b.LVM.Remove(ctx, foreign, volume.Inline), volume.ErrPrecondition)
	_, err := b.LVM.Create(ctx, spec(volume.Layout{Type: volume.Linear}))
	b.ok(err)
	b.is(b.LVM.Remove(ctx, ref, volume.Inline), volume.ErrPrecondition)
	b.AddSnapshot(ref, "snap", 4*mib)
	b.is(b.LVM.Remove(ctx, ref, volume.Persistent), volume.ErrPrecondition)
	b.DropLV(volume.Ref{VG: "vg", LV: "snap"})
	b.LosePV("vg", "/dev/vg2")
	if err := b.LVM.Remove(ctx, volume.Ref{VG: "vg", LV: "none"}, volume.Persistent); err == nil {
		t.Error("gone from a group that lacks a disk")
	}
	b.DropLV(ref)
	if after := b.World(); after != before {
		t.Errorf("world before:\n%s\nafter:\n%s", before, after)
	}
}

// What the driver's arithmetic says can be made, the machine makes; and no unit more, where the arithmetic is exact.
func TestMakesWhatIsAvailable(t *testing.T) {
	for _, l := range []volume.Layout{
		{Type: volume.Linear}, {Type: volume.Striped, Stripes: 3}, {Type: volume.RAID1, Mirrors: 2}, {Type: volume.RAID5, Stripes: 2},
		{Type: volume.Thin, Pool: "pool"},
	} {
		b := newBox(t)
		b.AddPool("vg", "pool", 96*mib)
		gs, err := b.Groups(t.Context())
		b.ok(err)
		_, most := volume.Available(gs[0], l, 1)
		s := spec(l)
		s.RequiredBytes = most + 1
		if _, err := b.LVM.Create(t.Context(), s); err == nil {
			t.Errorf("%s: %d bytes were made, available are %d", l.Type, s.RequiredBytes, most)
		}
		s.RequiredBytes = most
		_, err = b.LVM.Create(t.Context(), s)
		b.ok(err)
	}
}
