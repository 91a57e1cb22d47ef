// Package contract holds the suites that every implementation of a surface must pass: the real ones in the test
// machine, and pkg/fake anywhere. What passes here may be put in place of the other.
package contract

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Mounter is the surface under test: everything about mounts, paths and file systems.
type Mounter interface {
	lifecycle.Mounts
	lifecycle.Paths
	lifecycle.Filesystems
	Usage(ctx context.Context, path string, block bool) (volume.Usage, error)
}

// File is what lies at a path; links are not followed.
type File struct {
	Kind byte   // 'd' folder, 'f' regular file, 'l' symbolic link, 'b' block device node; 0: nothing is there
	Mode uint32 // permission bits with setuid, setgid and sticky, as chmod(2) takes them
	GID  int
	Size int64
}

// MountBench is the machine that a Mounter works on, with what a test must do to it by other means than the Mounter.
type MountBench struct {
	Mounter
	// Dir is an empty folder that holds no symbolic link in its path; tests make their targets below it.
	Dir string
	// Device gives a device of that many bytes that is not in use and reads as zeros.
	Device func(t *testing.T, bytes int64) volume.Device
	// Enlarge makes a device from Device larger; what is on it, and mounted of it, stays.
	Enlarge func(t *testing.T, d volume.Device, bytes int64) volume.Device
	// Put writes one of MountSignatures on the device.
	Put func(t *testing.T, d volume.Device, signature string)
	// Hold keeps the device or the path busy, by a process of its own where that makes sense, until release is called.
	// how is one of the Hold constants. pid is 0 where no process holds it.
	Hold func(t *testing.T, how string, d volume.Device, path string) (pid int, release func())

	// Mkdir, WriteFile, ReadFile and Symlink are those of package os. Lstat of what is not there is a File of Kind 0.
	Mkdir     func(path string) error
	WriteFile func(path, content string) error
	ReadFile  func(path string) (string, error)
	Symlink   func(to, path string) error
	Chmod     func(path string, mode uint32) error
	Lstat     func(path string) (File, error)
}

// Ways to keep a volume busy.
const (
	HoldFile      = "open file"                  // path is a file on the volume: opened; Via is this and the path
	HoldCwd       = "working directory"          // path is a folder on the volume
	HoldMapped    = "mapped file"                // path is a file on the volume: mapped into memory, then closed
	HoldNamespace = "mount in another namespace" // a process with a mount namespace of its own, private, with all mounts
	// HoldElsewhere is HoldFile by a process with a mount namespace of its own, private: it keeps nothing from being
	// unmounted here, and the device open.
	HoldElsewhere = "open file in another namespace"
	HoldLoop      = "loop device" // path is a file on the volume: the backing file of a loop device
	HoldDevice    = "open device" // the device node is open
)

// MountSignatures are those for Put, with what Probe must say.
var MountSignatures = []struct {
	Name string
	Want volume.Content
}{
	{"blank", volume.Content{Blank: true}},
	{"ext4", volume.Content{FS: "ext4"}},
	{"xfs", volume.Content{FS: "xfs"}},
	{"xfs-unfinished", volume.Content{FS: "xfs", Unfinished: true}}, // sb_inprogress set
	{"btrfs", volume.Content{FS: "btrfs"}},
	{"LVM2_member", volume.Content{FS: "LVM2_member"}},
	{"crypto_LUKS", volume.Content{FS: "crypto_LUKS"}},
	{"swap", volume.Content{FS: "swap"}},
	{"gpt", volume.Content{FS: "gpt"}},
	{"dos", volume.Content{FS: "dos"}},
	{"garbage", volume.Content{}},             // no signature, but the first 4 KiB are not all zero
	{"last-byte", volume.Content{}},           // only byte 4095 is not zero
	{"after-4k", volume.Content{Blank: true}}, // no signature, zeros up to 4 KiB, old data behind
}

const mountBytes = int64(512) << 20 // enough for each file system

// Mount is the suite. bench is called once for each of its tests, and may clean up with t.Cleanup.
func Mount(t *testing.T, bench func(t *testing.T) MountBench) {
	for _, tc := range []struct {
		name string
		test func(*testing.T, MountBench)
	}{
		{"Filesystems", mountEachFilesystem},
		{"Flags", mountFlags},
		{"AllOrNothing", mountAllOrNothing},
		{"ReadOnlyBesideWritable", mountReadOnlyBesideWritable},
		{"ReadOnlyDevice", mountReadOnlyDevice},
		{"Stacks", mountStacks},
		{"Block", mountBlockBind},
		{"Busy", mountBusy},
		{"Paths", MountPaths},
		{"Probe", mountProbe},
		{"Grow", mountGrow},
		{"SetGroup", mountSetGroup},
		{"Usage", mountUsage},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, bench(t)) })
	}
}

// MountPaths is the part of the suite that needs no privilege: Resolve, Make, Remove and Lacks.
func MountPaths(t *testing.T, b MountBench) {
	t.Run("Resolve", func(t *testing.T) { mountResolve(t, b) })
	t.Run("MakeRemove", func(t *testing.T) { mountMakeRemove(t, b) })
	t.Run("Lacks", func(t *testing.T) { mountLacks(t, b) })
}

// Only a folder that was read, and holds something, can be said to lack anything.
func mountLacks(t *testing.T, b MountBench) {
	dir := path.Join(b.Dir, "lacks")
	for _, err := range []error{
		b.Mkdir(dir), b.Mkdir(dir + "/full"), b.Mkdir(dir + "/full/folder"), b.WriteFile(dir+"/full/file", "x"),
		b.Symlink("nowhere", dir+"/full/link"), b.Mkdir(dir + "/empty"), b.Symlink("full", dir+"/to-full"),
	} {
		mountMust(t, err)
	}
	for _, c := range []struct {
		folder, name string
		want, wrong  bool
	}{
		{"full", "other", true, false},
		{"full", "folder", false, false},
		{"full", "file", false, false},
		{"full", "link", false, false}, // that it leads nowhere does not matter
		{"empty", "other", false, true},
		{"missing", "other", false, true},
		{"full/file", "other", false, true},
		{"to-full", "other", false, true}, // who made the link could make another
		{"full", "", false, true},
		{"full", ".", false, true},
		{"full", "..", false, true},
		{"full", "folder/other", false, true},
	} {
		got, err := b.Lacks(path.Join(dir, c.folder), c.name)
		if got != c.want || (err != nil) != c.wrong {
			t.Errorf("%s lacks %q: %t, %v", c.folder, c.name, got, err)
		}
	}
}

var mountFileSystems = []volume.FS{volume.Ext4, volume.XFS, volume.Btrfs}

// options are those a file system is mounted with in this suite.
func mountOptions(fs volume.FS, flags ...string) volume.MountOptions {
	return volume.MountOptions{FS: fs, Flags: flags}
}

func mountMust(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mountMustBe(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want one that is %v", err, want)
	}
}

// at gives the mounts at a target, the topmost last.
func (b MountBench) at(t *testing.T, target string) []volume.Mount {
	t.Helper()
	all, err := b.List(t.Context())
	mountMust(t, err)
	return slices.DeleteFunc(all, func(m volume.Mount) bool { return m.Target != target })
}

func (b MountBench) wantMounts(t *testing.T, target string, n int) []volume.Mount {
	t.Helper()
	at := b.at(t, target)
	if len(at) != n {
		t.Fatalf("%d mounts at %s, want %d: %+v", len(at), target, n, at)
	}
	return at
}

// target makes a folder or file below Dir.
func (b MountBench) target(t *testing.T, name string, block bool) string {
	t.Helper()
	p := path.Join(b.Dir, name)
	made, err := b.Make(t.Context(), p, block)
	mountMust(t, err)
	if !made {
		t.Fatalf("%s was there before", p)
	}
	return p
}

// formatted gives a device with a file system, of mountBytes.
func (b MountBench) formatted(t *testing.T, fs volume.FS) volume.Device {
	t.Helper()
	d := b.Device(t, mountBytes)
	mountMust(t, b.Format(t.Context(), d, volume.Format{FS: fs}))
	return d
}

// mounted gives a device with a file system, mounted at a new target.
func (b MountBench) mounted(t *testing.T, fs volume.FS, name string, flags ...string) (volume.Device, string) {
	t.Helper()
	d, target := b.formatted(t, fs), b.target(t, name, false)
	mountMust(t, b.Mount(t.Context(), d, target, mountOptions(fs, flags...)))
	return d, target
}

func mountEachFilesystem(t *testing.T, b MountBench) {
	for _, fs := range mountFileSystems {
		t.Run(string(fs), func(t *testing.T) {
			ctx := t.Context()
			d := b.Device(t, mountBytes)
			if c, err := b.Probe(ctx, d); err != nil || !c.Blank {
				t.Fatalf("new device: %+v, %v", c, err)
			}
			mountMust(t, b.Format(ctx, d, volume.Format{FS: fs}))
			if c, err := b.Probe(ctx, d); err != nil || c != (volume.Content{FS: string(fs)}) {
				t.Fatalf("formatted device: %+v, %v", c, err)
			}
			target := b.target(t, "fs-"+string(fs), false)
			mountMust(t, b.Mount(ctx, d, target, mountOptions(fs)))
			m := b.wantMounts(t, target, 1)[0]
			if !d.Same(m) || m.Block || m.Root != "/" || m.FS != string(fs) || m.ReadOnly {
				t.Errorf("mount of %v is %+v", d, m)
			}
			mountMust(t, b.WriteFile(path.Join(target, "f"), "kept"))
			mountMust(t, b.Unmount(ctx, target))
			b.wantMounts(t, target, 0)
			if f, err := b.Lstat(path.Join(target, "f")); err != nil || f.Kind != 0 {
				t.Errorf("after the unmount the file is still seen: %+v, %v", f, err)
			}
			mountMust(t, b.Mount(ctx, d, target, mountOptions(fs)))
			if s, err := b.ReadFile(path.Join(target, "f")); err != nil || s != "kept" {
				t.Errorf("mounted again: %q, %v", s, err)
			}
			mountMust(t, b.Unmount(ctx, target))
			mountMust(t, b.Unmount(ctx, target)) // case B5: not mounted
			mountMust(t, b.Remove(ctx, target))
			mountMust(t, b.Unmount(ctx, target)) // case B5: not there
		})
	}
}

// case B56
func mountFlags(t *testing.T, b MountBench) {
	ctx := t.Context()
	d, target := b.mounted(t, volume.Ext4, "flags", "noatime,nodev", "noexec", "noatime", "defaults", "_netdev", "x-csi.test=1", "errors=remount-ro")
	m := b.wantMounts(t, target, 1)[0]
	for _, want := range []string{"noatime", "nodev", "noexec"} {
		if !slices.Contains(m.Options, want) {
			t.Errorf("options %v lack %s", m.Options, want)
		}
	}
	bound := b.target(t, "flags-bound", false)
	mountMust(t, b.Bind(ctx, target, bound, mountOptions("", "nosuid", "errors=remount-ro", "rw")))
	m = b.wantMounts(t, bound, 1)[0]
	for _, want := range []string{"noatime", "nodev", "noexec", "nosuid"} {
		if !slices.Contains(m.Options, want) {
			t.Errorf("options of the bind %v lack %s", m.Options, want)
		}
	}
	if staged := b.wantMounts(t, target, 1)[0]; slices.Contains(staged.Options, "nosuid") {
		t.Errorf("the bind changed its source: %v", staged.Options)
	}
	mountMust(t, b.Unmount(ctx, bound))
	mountMust(t, b.Unmount(ctx, target))
	for _, o := range []volume.MountOptions{mountOptions(volume.Ext4, "ro"), {FS: volume.Ext4, ReadOnly: true}} {
		mountMust(t, b.Mount(ctx, d, target, o))
		if !b.wantMounts(t, target, 1)[0].ReadOnly {
			t.Errorf("%+v: not read-only", o)
		}
		if b.WriteFile(path.Join(target, "f"), "x") == nil {
			t.Errorf("%+v: could write", o)
		}
		mountMust(t, b.Unmount(ctx, target))
	}
}

func mountAllOrNothing(t *testing.T, b MountBench) {
	ctx := t.Context()
	target := b.target(t, "target", false)
	file := b.target(t, "file", true)
	missing := path.Join(b.Dir, "missing")
	for _, fs := range mountFileSystems {
		d := b.formatted(t, fs)
		// case B56: the option is named
		err := b.Mount(ctx, d, target, mountOptions(fs, "noatime", "bogus"))
		if err == nil || !strings.Contains(err.Error(), "bogus") {
			t.Errorf("%s with a bogus flag: %v", fs, err)
		}
		for _, at := range []string{file, missing} {
			if err := b.Mount(ctx, d, at, mountOptions(fs)); err == nil || !strings.Contains(err.Error(), at) {
				t.Errorf("%s at %s: %v", fs, at, err)
			}
		}
		other := mountFileSystems[(slices.Index(mountFileSystems, fs)+1)%len(mountFileSystems)]
		if err := b.Mount(ctx, d, target, mountOptions(other)); err == nil || !strings.Contains(err.Error(), d.Path) {
			t.Errorf("%s as %s: %v", fs, other, err)
		}
		for _, at := range []string{target, file, missing} {
			b.wantMounts(t, at, 0)
		}
		// and nothing of it keeps the device
		mountMust(t, b.Mount(ctx, d, target, mountOptions(fs)))
		mountMust(t, b.Unmount(ctx, target))
	}
	if err := b.Mount(ctx, b.Device(t, mountBytes), target, mountOptions(volume.Ext4)); err == nil {
		t.Error("a blank device was mounted")
	}
	if err := b.Bind(ctx, missing, target, volume.MountOptions{}); err == nil {
		t.Error("bound what is not there")
	}
	b.wantMounts(t, target, 0)
}

// case B56: the second target is independent of the first, and of the staged mount
func mountReadOnlyBesideWritable(t *testing.T, b MountBench) {
	for _, fs := range mountFileSystems {
		t.Run(string(fs), func(t *testing.T) {
			ctx := t.Context()
			name := "beside-" + string(fs)
			d, staged := b.mounted(t, fs, name)
			rw, ro := b.target(t, name+"-rw", false), b.target(t, name+"-ro", false)
			mountMust(t, b.Bind(ctx, staged, ro, volume.MountOptions{ReadOnly: true}))
			mountMust(t, b.Bind(ctx, staged, rw, volume.MountOptions{}))
			mountMust(t, b.WriteFile(path.Join(rw, "f"), "shared"))
			mountMust(t, b.WriteFile(path.Join(staged, "g"), "staged"))
			if b.WriteFile(path.Join(ro, "f"), "no") == nil {
				t.Error("wrote through the read-only target")
			}
			if s, err := b.ReadFile(path.Join(ro, "f")); err != nil || s != "shared" {
				t.Errorf("the read-only target shows %q, %v", s, err)
			}
			for at, want := range map[string]bool{staged: false, rw: false, ro: true} {
				if m := b.wantMounts(t, at, 1)[0]; m.ReadOnly != want || !d.Same(m) || m.Block || m.FS != string(fs) || m.Root != "/" {
					t.Errorf("%s: %+v", at, m)
				}
			}
			for _, at := range []string{ro, staged, rw} {
				mountMust(t, b.Unmount(ctx, at))
				mountMust(t, b.Remove(ctx, at))
			}
		})
	}
}

// case B53: a device that cannot be written is mounted read-only
func mountReadOnlyDevice(t *testing.T, b MountBench) {
	for _, fs := range mountFileSystems {
		t.Run(string(fs), func(t *testing.T) {
			ctx := t.Context()
			d, target := b.mounted(t, fs, "rodev-"+string(fs))
			mountMust(t, b.WriteFile(path.Join(target, "f"), "kept"))
			mountMust(t, b.Unmount(ctx, target))
			mountMust(t, b.SetReadOnly(ctx, d, true))
			mountMust(t, b.SetReadOnly(ctx, d, true))
			mountMust(t, b.Mount(ctx, d, target, mountOptions(fs)))
			if !b.wantMounts(t, target, 1)[0].ReadOnly {
				t.Error("not mounted read-only")
			}
			if s, err := b.ReadFile(path.Join(target, "f")); err != nil || s != "kept" {
				t.Errorf("%q, %v", s, err)
			}
			mountMust(t, b.Unmount(ctx, target))
			mountMust(t, b.SetReadOnly(ctx, d, false))
			mountMust(t, b.Mount(ctx, d, target, mountOptions(fs)))
			mountMust(t, b.WriteFile(path.Join(target, "f"), "new"))
			mountMust(t, b.Unmount(ctx, target))
		})
	}
}

// cases B1 and B25: each unmount takes one layer, the topmost
func mountStacks(t *testing.T, b MountBench) {
	ctx := t.Context()
	d, target := b.mounted(t, volume.Ext4, "stack")
	mountMust(t, b.WriteFile(path.Join(target, "f"), "lower"))
	upper := b.formatted(t, volume.XFS)
	mountMust(t, b.Mount(ctx, upper, target, mountOptions(volume.XFS)))
	mountMust(t, b.Bind(ctx, target, target, volume.MountOptions{ReadOnly: true}))
	at := b.wantMounts(t, target, 3)
	if !d.Same(at[0]) || !upper.Same(at[1]) || !upper.Same(at[2]) || at[1].ReadOnly || !at[2].ReadOnly {
		t.Errorf("the stack is %+v", at)
	}
	mountMustBe(t, b.Remove(ctx, target), volume.ErrBusy)
	for n := 2; n >= 0; n-- {
		mountMust(t, b.Unmount(ctx, target))
		b.wantMounts(t, target, n)
	}
	mountMust(t, b.Remove(ctx, target))

	// block volumes pile up in the same way
	e := b.Device(t, mountBytes)
	node := b.target(t, "stack-block", true)
	mountMust(t, b.Bind(ctx, d.Path, node, volume.MountOptions{}))
	mountMust(t, b.Bind(ctx, e.Path, node, volume.MountOptions{}))
	if at := b.wantMounts(t, node, 2); !d.Same(at[0]) || !at[0].Block || !e.Same(at[1]) || !at[1].Block {
		t.Errorf("the stack of block volumes is %+v", at)
	}
	mountMust(t, b.Unmount(ctx, node))
	if at := b.wantMounts(t, node, 1); !d.Same(at[0]) {
		t.Errorf("the wrong one was taken away: %+v", at)
	}
	mountMust(t, b.Unmount(ctx, node))
	mountMust(t, b.Remove(ctx, node))
}

func mountBlockBind(t *testing.T, b MountBench) {
	ctx := t.Context()
	d := b.Device(t, mountBytes)
	target := b.target(t, "block", true)
	mountMust(t, b.Bind(ctx, d.Path, target, volume.MountOptions{}))
	m := b.wantMounts(t, target, 1)[0]
	if !m.Block || !d.Same(m) || m.ReadOnly {
		t.Errorf("block volume %v is %+v", d, m)
	}
	if f, err := b.Lstat(target); err != nil || f.Kind != 'b' {
		t.Errorf("at the target is %+v, %v", f, err)
	}
	mountMustBe(t, b.Remove(ctx, target), volume.ErrPrecondition)
	mountMust(t, b.Unmount(ctx, target))
	mountMust(t, b.Remove(ctx, target))

	folder := b.target(t, "folder", false)
	if b.Bind(ctx, d.Path, folder, volume.MountOptions{}) == nil {
		t.Error("a device node was bound at a folder")
	}
	b.wantMounts(t, folder, 0)
	mountMust(t, b.Remove(ctx, folder))
}

// case B1: busy is busy, names the holder, and ends with it
func mountBusy(t *testing.T, b MountBench) {
	for _, fs := range mountFileSystems {
		for _, how := range []string{HoldFile, HoldCwd, HoldMapped, HoldLoop} {
			t.Run(string(fs)+"/"+how, func(t *testing.T) {
				ctx := t.Context()
				name := "busy-" + string(fs) + "-" + strings.ReplaceAll(how, " ", "-")
				d, target := b.mounted(t, fs, name)
				if found, err := b.Holders(ctx, d, target); err != nil || len(found) != 0 {
					t.Errorf("nobody holds it: %+v, %v", found, err)
				}
				file := path.Join(target, "f")
				mountMust(t, b.WriteFile(file, strings.Repeat("x", 1<<20)))
				if how == HoldCwd {
					file = path.Join(target, "sub")
					mountMust(t, b.Mkdir(file))
				}
				pid, release := b.Hold(t, how, d, file)
				mountMustBe(t, b.Unmount(ctx, target), volume.ErrBusy)
				b.wantMounts(t, target, 1)
				b.wantHolder(t, d, target, how, pid)
				release()
				mountMust(t, b.Unmount(ctx, target))
				mountMust(t, b.Remove(ctx, target))
			})
		}
		t.Run(string(fs)+"/"+HoldNamespace, func(t *testing.T) {
			ctx := t.Context()
			d, target := b.mounted(t, fs, "busy-ns-"+string(fs))
			pid, release := b.Hold(t, HoldNamespace, d, target)
			mountMust(t, b.Unmount(ctx, target)) // it is gone here, but not there
			b.wantMounts(t, target, 0)
			b.wantHolder(t, d, "", HoldNamespace, pid)
			release()
			mountMust(t, b.Remove(ctx, target))
		})
	}
	t.Run(HoldDevice, func(t *testing.T) {
		ctx := t.Context()
		d := b.Device(t, mountBytes)
		target := b.target(t, "busy-block", true)
		mountMust(t, b.Bind(ctx, d.Path, target, volume.MountOptions{}))
		pid, release := b.Hold(t, HoldDevice, d, target)
		mountMustBe(t, b.Unmount(ctx, target), volume.ErrBusy)
		b.wantHolder(t, d, target, HoldDevice, pid)
		release()
		mountMust(t, b.Unmount(ctx, target))
		mountMust(t, b.Remove(ctx, target))
	})
	t.Run("another mount", func(t *testing.T) { // case B10
		ctx := t.Context()
		d, target := b.mounted(t, volume.Ext4, "busy-alien")
		alien := b.target(t, "alien", false)
		mountMust(t, b.Bind(ctx, target, alien, volume.MountOptions{}))
		found, err := b.Holders(ctx, d, target)
		if err != nil || len(found) != 1 || found[0].PID != 0 || found[0].Command != "mount at "+alien {
			t.Errorf("holders %+v, %v", found, err)
		}
		mountMust(t, b.Unmount(ctx, alien))
		mountMust(t, b.Unmount(ctx, target))
	})
}

func (b MountBench) wantHolder(t *testing.T, d volume.Device, target, how string, pid int) {
	t.Helper()
	found, err := b.Holders(t.Context(), d, target)
	mountMust(t, err)
	if !slices.ContainsFunc(found, func(h volume.Holder) bool {
		if how == HoldLoop {
			return h.PID == 0 && strings.HasPrefix(h.Command, how)
		}
		return h.PID == pid && h.Command != "" && strings.HasPrefix(h.Via, how)
	}) {
		t.Errorf("nobody is named for %q by pid %d: %+v", how, pid, found)
	}
}

func mountResolve(t *testing.T, b MountBench) {
	real, link := path.Join(b.Dir, "real"), path.Join(b.Dir, "link")
	mountMust(t, b.Mkdir(real))
	mountMust(t, b.Mkdir(path.Join(real, "sub")))
	mountMust(t, b.Symlink("real", link))
	mountMust(t, b.Symlink("/nowhere/at/all", path.Join(b.Dir, "dangling")))
	for in, want := range map[string]string{
		real + "/sub":             real + "/sub",
		real + "/sub/":            real + "/sub",
		real + "/./sub":           real + "/sub",
		real + "/missing":         real + "/missing",
		real + "/missing/deeper":  real + "/missing/deeper",
		link + "/sub":             real + "/sub",
		link + "/missing/deeper":  real + "/missing/deeper",
		link:                      "", // the last part is a link
		b.Dir + "/dangling":       "",
		b.Dir + "/dangling/below": "",
	} {
		got, err := b.Resolve(in)
		if want == "" {
			if !errors.Is(err, volume.ErrPrecondition) {
				t.Errorf("Resolve(%s) = %q, %v", in, got, err)
			}
		} else if err != nil || got != want {
			t.Errorf("Resolve(%s) = %q, %v, want %q", in, got, err, want)
		}
	}
}

func mountMakeRemove(t *testing.T, b MountBench) {
	ctx := t.Context()
	n := 0
	// Each thing that can lie in the way, what Make says of it for a folder and for a file, and what Remove says.
	for _, tc := range []struct {
		name                 string
		put                  func(p string) error
		folder, file, remove error
	}{
		{"nothing", func(string) error { return nil }, nil, nil, nil},
		{"empty folder", b.Mkdir, nil, volume.ErrPrecondition, nil},
		{"empty file", func(p string) error { return b.WriteFile(p, "") }, volume.ErrPrecondition, nil, nil}, // case B5
		{"file with content", func(p string) error { return b.WriteFile(p, "x") },
			volume.ErrPrecondition, volume.ErrPrecondition, volume.ErrPrecondition},
		{"folder with content", func(p string) error { return errors.Join(b.Mkdir(p), b.WriteFile(p+"/f", "")) },
			volume.ErrPrecondition, volume.ErrPrecondition, volume.ErrPrecondition},
		{"link to a folder", func(p string) error { return errors.Join(b.Mkdir(p+".to"), b.Symlink(p+".to", p)) },
			volume.ErrPrecondition, volume.ErrPrecondition, volume.ErrPrecondition},
		{"link to a file", func(p string) error { return errors.Join(b.WriteFile(p+".to", ""), b.Symlink(p+".to", p)) },
			volume.ErrPrecondition, volume.ErrPrecondition, volume.ErrPrecondition},
		{"dangling link", func(p string) error { return b.Symlink(p+".to", p) },
			volume.ErrPrecondition, volume.ErrPrecondition, volume.ErrPrecondition},
	} {
		for _, block := range []bool{false, true} {
			n++
			p := path.Join(b.Dir, "make"+string(rune('a'+n)))
			mountMust(t, tc.put(p))
			before, err := b.Lstat(p)
			mountMust(t, err)
			want := tc.folder
			if block {
				want = tc.file
			}
			made, err := b.Make(ctx, p, block)
			if !errors.Is(err, want) || (want == nil && err != nil) || made != (want == nil && before.Kind == 0) {
				t.Errorf("%s: Make(block %v) = %v, %v, want %v", tc.name, block, made, err, want)
			}
			after, err := b.Lstat(p)
			mountMust(t, err)
			if before.Kind == 0 {
				before = after
				kind, mode := byte('d'), uint32(0o750)
				if block {
					kind, mode = 'f', 0o640
				}
				if after.Kind != kind || after.Mode != mode || (block && after.Size != 0) {
					t.Errorf("%s: Make(block %v) made %+v", tc.name, block, after)
				}
			}
			if after != before {
				t.Errorf("%s: Make(block %v) changed %+v into %+v", tc.name, block, before, after)
			}
			if err := b.Remove(ctx, p); !errors.Is(err, tc.remove) || (tc.remove == nil && err != nil) {
				t.Errorf("%s: Remove = %v, want %v", tc.name, err, tc.remove)
			}
			after, err = b.Lstat(p)
			mountMust(t, err)
			if tc.remove == nil && after.Kind != 0 || tc.remove != nil && after != before {
				t.Errorf("%s: Remove turned %+v into %+v", tc.name, before, after)
			}
		}
	}
	if f, err := b.Lstat(path.Join(b.Dir, "missing")); err != nil || f.Kind != 0 {
		t.Errorf("a link was followed and made %+v, %v", f, err)
	}
	deep := path.Join(b.Dir, "parent", "target")
	if made, err := b.Make(ctx, deep, false); err != nil || !made {
		t.Errorf("Make without a parent: %v, %v", made, err)
	}
	mountMust(t, b.Remove(ctx, deep))
	if f, err := b.Lstat(path.Dir(deep)); err != nil || f.Kind != 'd' || f.Mode != 0o750 {
		t.Errorf("more than the one name was removed, or the parent is wrong: %+v, %v", f, err)
	}
	mountMust(t, b.Remove(ctx, path.Join(b.Dir, "no", "such", "path")))
	// a path of which a parent is a file: nothing is there
	mountMust(t, b.WriteFile(path.Join(b.Dir, "plain"), "x"))
	mountMust(t, b.Remove(ctx, path.Join(b.Dir, "plain", "below")))
	if _, err := b.Make(ctx, path.Join(b.Dir, "plain", "below"), false); err == nil {
		t.Error("made a folder below a file")
	}
}

func mountProbe(t *testing.T, b MountBench) {
	for _, s := range MountSignatures {
		t.Run(s.Name, func(t *testing.T) {
			d := b.Device(t, mountBytes)
			if s.Name != "blank" {
				b.Put(t, d, s.Name)
			}
			if got, err := b.Probe(t.Context(), d); err != nil || got != s.Want {
				t.Errorf("Probe = %+v, %v, want %+v", got, err, s.Want)
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		gone := volume.Device{Major: 4095, Minor: 1, Path: "/dev/no-such-device", SizeBytes: mountBytes}
		if got, err := b.Probe(t.Context(), gone); err == nil {
			t.Errorf("a device that is not there is %+v", got)
		}
	})
}

func mountGrow(t *testing.T, b MountBench) {
	for _, fs := range mountFileSystems {
		t.Run(string(fs), func(t *testing.T) {
			ctx := t.Context()
			d, target := b.mounted(t, fs, "grow-"+string(fs))
			mountMust(t, b.WriteFile(path.Join(target, "f"), "kept"))
			mountMust(t, b.Grow(ctx, d, fs, target))
			before, err := b.Usage(ctx, target, false)
			mountMust(t, err)
			d = b.Enlarge(t, d, 2*mountBytes)
			mountMust(t, b.Grow(ctx, d, fs, target))
			after, err := b.Usage(ctx, target, false)
			mountMust(t, err)
			if after.Bytes < before.Bytes+mountBytes*9/10 {
				t.Errorf("grown from %d to %d bytes on a device of %d", before.Bytes, after.Bytes, d.SizeBytes)
			}
			mountMust(t, b.Grow(ctx, d, fs, target))
			if s, err := b.ReadFile(path.Join(target, "f")); err != nil || s != "kept" {
				t.Errorf("%q, %v", s, err)
			}
			mountMust(t, b.Unmount(ctx, target))
		})
	}
}

// The result is that of kubelet's fsGroup (kubernetes pkg/volume/volume_linux.go): folders |= 02770, all else |= 0660,
// links get the group only.
func mountSetGroup(t *testing.T, b MountBench) {
	ctx := t.Context()
	_, top := b.mounted(t, volume.Ext4, "group")
	in := func(p string) string { return path.Join(top, p) }
	outside := path.Join(b.Dir, "outside")
	mountMust(t, b.Mkdir(outside))
	mountMust(t, b.Chmod(outside, 0o700))
	for _, p := range []string{"a", "a/b"} {
		mountMust(t, b.Mkdir(in(p)))
		mountMust(t, b.Chmod(in(p), 0o711))
	}
	for p, mode := range map[string]uint32{"f": 0o600, "a/x": 0o755, "a/b/s": 0o4711} {
		mountMust(t, b.WriteFile(in(p), p))
		mountMust(t, b.Chmod(in(p), mode))
	}
	mountMust(t, b.Symlink(outside, in("a/out")))
	mountMust(t, b.Symlink("nowhere", in("dangling")))
	mountMust(t, b.Chmod(top, 0o755))

	const gid = 1234
	mountMust(t, b.SetGroup(ctx, top, gid))
	for p, want := range map[string]File{
		"":      {Kind: 'd', Mode: 0o2775},
		"a":     {Kind: 'd', Mode: 0o2771},
		"a/b":   {Kind: 'd', Mode: 0o2771},
		"f":     {Kind: 'f', Mode: 0o660},
		"a/x":   {Kind: 'f', Mode: 0o775},
		"a/b/s": {Kind: 'f', Mode: 0o4771},
	} {
		f, err := b.Lstat(in(p))
		mountMust(t, err)
		if f.Kind != want.Kind || f.Mode != want.Mode || f.GID != gid {
			t.Errorf("%q is %c %o gid %d, want %c %o gid %d", p, f.Kind, f.Mode, f.GID, want.Kind, want.Mode, gid)
		}
	}
	for _, p := range []string{"a/out", "dangling"} {
		if f, err := b.Lstat(in(p)); err != nil || f.Kind != 'l' || f.GID != gid {
			t.Errorf("link %s is %+v, %v", p, f, err)
		}
	}
	if f, err := b.Lstat(outside); err != nil || f.Mode != 0o700 || f.GID == gid {
		t.Errorf("a link was followed: %+v, %v", f, err)
	}

	// the top folder has it: nothing is walked
	mountMust(t, b.Chmod(in("f"), 0o600))
	mountMust(t, b.SetGroup(ctx, top, gid))
	if f, err := b.Lstat(in("f")); err != nil || f.Mode != 0o600 {
		t.Errorf("walked again: %+v, %v", f, err)
	}
	// another group: walked
	mountMust(t, b.SetGroup(ctx, top, gid+1))
	if f, err := b.Lstat(in("f")); err != nil || f.Mode != 0o660 || f.GID != gid+1 {
		t.Errorf("not walked: %+v, %v", f, err)
	}
	mountMust(t, b.Unmount(ctx, top))
}

func mountUsage(t *testing.T, b MountBench) {
	ctx := t.Context()
	for _, fs := range mountFileSystems {
		t.Run(string(fs), func(t *testing.T) {
			_, target := b.mounted(t, fs, "usage-"+string(fs))
			u, err := b.Usage(ctx, target, false)
			mountMust(t, err)
			if u.Bytes <= mountBytes/2 || u.Bytes > mountBytes || u.UsedBytes < 0 || u.AvailableBytes <= 0 || u.UsedBytes+u.AvailableBytes > u.Bytes {
				t.Errorf("usage of a file system of %d bytes: %+v", mountBytes, u)
			}
			if fs != volume.Btrfs && (u.Inodes <= 0 || u.UsedInodes <= 0 || u.UsedInodes+u.AvailableInodes != u.Inodes) {
				t.Errorf("inodes: %+v", u)
			}
			mountMust(t, b.Unmount(ctx, target))
		})
	}
	d := b.Device(t, mountBytes)
	target := b.target(t, "usage-block", true)
	mountMust(t, b.Bind(ctx, d.Path, target, volume.MountOptions{}))
	if u, err := b.Usage(ctx, target, true); err != nil || u != (volume.Usage{Bytes: mountBytes}) {
		t.Errorf("block volume: %+v, %v", u, err)
	}
	mountMust(t, b.Unmount(ctx, target))
	if u, err := b.Usage(ctx, target, true); !errors.Is(err, volume.ErrPrecondition) {
		t.Errorf("a plain file as a block volume: %+v, %v", u, err)
	}
	if u, err := b.Usage(ctx, path.Join(b.Dir, "missing"), false); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("nothing there: %+v, %v", u, err)
	}
}
