//go:build vm && amd64

package mount_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/mount"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

var filesystems = []volume.FS{volume.Ext4, volume.XFS, volume.Btrfs}

const mib = int64(1) << 20

// case B52: a feature that the kernel does not know is named, not only "wrong fs type"
func TestUnknownFeature(t *testing.T) {
	d, target := newDisks().device(t, 512*mib), tempDir(t)
	contract.PutSignature(t, d, "xfs")
	f, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_SYNC, 0)
	check(t, err)
	super := make([]byte, 512)
	_, err = f.ReadAt(super, 0)
	check(t, err)
	super[216] |= 0x80 // sb_features_incompat, big-endian
	binary.LittleEndian.PutUint32(super[224:], 0)
	binary.LittleEndian.PutUint32(super[224:], crc32.Checksum(super, crc32.MakeTable(crc32.Castagnoli)))
	_, err = f.WriteAt(super, 0)
	check(t, err)
	check(t, f.Close())
	err = newHost().Mount(t.Context(), d, target, volume.MountOptions{FS: volume.XFS})
	if err == nil || !strings.Contains(err.Error(), "incompatible features") {
		t.Errorf("got %v", err)
	}
	t.Log(err)
}

// cases B50 and B53: a copy of a file system in use has a log to replay and the UUID of the origin. LVM freezes what it takes
// a snapshot of, and then all is in its place but for the log's mark; without that, what is in the log only is not seen without replay.
func TestCopyOfMounted(t *testing.T) {
	for _, fs := range filesystems {
		for _, frozen := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, frozen %v", fs, frozen), func(t *testing.T) { copyOfMounted(t, fs, frozen) })
		}
	}
}

func copyOfMounted(t *testing.T, fs volume.FS, frozen bool) {
	ctx, h, k, dir := t.Context(), newHost(), newDisks(), tempDir(t)
	size := max(64*mib, volume.MinFSBytes(fs)+4*mib)
	origin, clone := k.device(t, size), k.device(t, size)
	at, cloneAt := filepath.Join(dir, "origin"), filepath.Join(dir, "clone")
	for _, p := range []string{at, cloneAt} {
		_, err := h.Make(ctx, p, false)
		check(t, err)
	}
	check(t, h.Format(ctx, origin, volume.Format{FS: fs}))
	o := volume.MountOptions{FS: fs}
	check(t, h.Mount(ctx, origin, at, o))
	f, err := os.Create(filepath.Join(at, "f"))
	check(t, err)
	_, err = f.WriteString("content")
	check(t, err)
	check(t, f.Sync())
	check(t, f.Close())
	if frozen {
		sh(t, "fsfreeze", "-f", at)
	}
	sh(t, "dd", "if="+origin.Path, "of="+clone.Path, "bs=1M", "iflag=direct", "oflag=direct", "status=none")
	if frozen {
		sh(t, "fsfreeze", "-u", at)
	}
	for range 2 { // it tells file systems apart by UUID alone: a btrfs beside its origin needs a new one, and keeps its log
		check(t, h.Distinguish(ctx, clone, "clone"))
	}
	check(t, h.SetReadOnly(ctx, clone, true))
	check(t, h.Mount(ctx, clone, cloneAt, o))
	if frozen {
		want(t, cloneAt, "f", "content")
	}
	check(t, h.Unmount(ctx, cloneAt))
	check(t, h.SetReadOnly(ctx, clone, false))
	check(t, h.Mount(ctx, clone, cloneAt, o))
	want(t, cloneAt, "f", "content")
	check(t, os.WriteFile(filepath.Join(cloneAt, "own"), nil, 0o600))
	check(t, h.Unmount(ctx, cloneAt))
	check(t, h.Unmount(ctx, at))
}

func want(t *testing.T, dir, name, content string) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != content {
		t.Errorf("%s holds %q, %v", name, b, err)
	}
}

// A new mount appears in every peer of the place it is mounted at.
func TestPropagation(t *testing.T) {
	ctx, h, dir := t.Context(), newHost(), tempDir(t)
	d := newDisks().device(t, 512*mib)
	shared, peer := filepath.Join(dir, "shared"), filepath.Join(dir, "peer")
	for _, p := range []string{shared, peer} {
		check(t, os.Mkdir(p, 0o755))
	}
	check(t, unix.Mount(shared, shared, "", unix.MS_BIND, ""))
	check(t, unix.Mount("", shared, "", unix.MS_PRIVATE, "")) // no peer of what it lies on, where that is shared
	check(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
	check(t, unix.Mount(shared, peer, "", unix.MS_BIND, ""))
	target := filepath.Join(shared, "target")
	_, err := h.Make(ctx, target, false)
	check(t, err)
	check(t, h.Format(ctx, d, volume.Format{FS: volume.Ext4}))
	check(t, h.Mount(ctx, d, target, volume.MountOptions{FS: volume.Ext4}))
	count := func() (n int) {
		mounts, err := h.List(ctx)
		check(t, err)
		for _, m := range mounts {
			if d.Same(m) {
				n++
			}
		}
		return n
	}
	if n := count(); n != 2 {
		t.Errorf("mounted at %d places, want 2", n)
	}
	check(t, h.Unmount(ctx, target))
	if n := count(); n != 0 {
		t.Errorf("still mounted at %d places", n)
	}
	check(t, h.Unmount(ctx, peer))
	check(t, h.Unmount(ctx, shared))
}

// A mkfs killed before any of its writes leaves what Probe calls blank or unfinished, or else a whole file system; and
// mkfs can be run again on it.
func TestKilledFormat(t *testing.T) {
	commands := map[volume.FS][]string{ // as Format runs them
		volume.Ext4:  {"mkfs.ext4", "-q", "-F", "-E", "nodiscard"},
		volume.XFS:   {"mkfs.xfs", "-q", "-f", "-K"},
		volume.Btrfs: {"mkfs.btrfs", "-q", "-f", "-K"},
	}
	for _, fs := range filesystems {
		t.Run(string(fs), func(t *testing.T) {
			h, k := newHost(), newDisks()
			d := k.device(t, 512*mib)
			argv := append(slices.Clone(commands[fs]), d.Path)
			writes := killBeforeWrite(t, 1<<30, argv)
			if writes < 20 {
				t.Fatalf("%v made %d writes; the test does not see them", argv, writes)
			}
			seen := map[string]int{}
			for n := 1; n <= writes; n++ {
				if n%20 != 0 && n > 2 && n < writes-4 {
					continue
				}
				sh(t, "blkdiscard", "-z", d.Path)
				killBeforeWrite(t, n, argv)
				c, err := h.Probe(t.Context(), d)
				check(t, err)
				seen[fmt.Sprintf("%+v", c)]++
				if c.Blank || c.Unfinished {
					continue
				}
				checkFilesystem(t, fs, d) // what was still to come are copies of the superblock, and syncs
			}
			t.Logf("%d writes: %v", writes, seen)
			sh(t, "blkdiscard", "-z", d.Path)
			killBeforeWrite(t, writes/2, argv)
			check(t, h.Format(t.Context(), d, volume.Format{FS: fs}))
			checkFilesystem(t, fs, d)
		})
	}
}

func checkFilesystem(t *testing.T, fs volume.FS, d volume.Device) {
	t.Helper()
	switch fs {
	case volume.Ext4:
		sh(t, "e2fsck", "-f", "-n", d.Path)
	case volume.XFS:
		sh(t, "xfs_repair", "-n", d.Path)
	case volume.Btrfs:
		sh(t, "btrfs", "check", d.Path)
	}
}

// killBeforeWrite runs a program and kills it when it is about to write for the n-th time. It gives how often it wrote.
func killBeforeWrite(t *testing.T, n int, argv []string) (writes int) {
	t.Helper()
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	check(t, cmd.Start())
	pid := cmd.Process.Pid
	var ws unix.WaitStatus
	_, err := unix.Wait4(pid, &ws, 0, nil)
	check(t, err)
	check(t, unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL))
	for entry, sig := true, 0; ; {
		check(t, unix.PtraceSyscall(pid, sig))
		_, err := unix.Wait4(pid, &ws, 0, nil)
		check(t, err)
		if ws.Exited() || ws.Signaled() {
			_ = cmd.Wait()
			return writes
		}
		if sig = 0; ws.StopSignal() != unix.SIGTRAP|0x80 {
			sig = int(ws.StopSignal())
			continue
		}
		var regs unix.PtraceRegs
		check(t, unix.PtraceGetRegs(pid, &regs))
		if entry && slices.Contains([]uint64{unix.SYS_PWRITE64, unix.SYS_WRITE, unix.SYS_PWRITEV, unix.SYS_FSYNC}, regs.Orig_rax) {
			if writes++; writes == n {
				check(t, cmd.Process.Kill())
				_ = cmd.Wait()
				return writes
			}
		}
		entry = !entry
	}
}

// MinFSBytes is right for the tools that are here: this size can be made, mounted and written, 1 MiB less cannot.
func TestMinimum(t *testing.T) {
	for _, fs := range filesystems {
		t.Run(string(fs), func(t *testing.T) {
			if fs != volume.Btrfs && useful(t, fs, volume.MinFSBytes(fs)-mib) == nil { // for the reason of the btrfs see TestSmallBtrfs
				t.Error("it could be less")
			}
			for size := volume.MinFSBytes(fs); size < 600*mib; size += mib {
				err := useful(t, fs, size)
				if err == nil {
					t.Logf("smallest: %d MiB", size/mib)
					return
				}
				t.Errorf("%d MiB: %v", size/mib, err)
			}
		})
	}
}

// A btrfs that somebody made on a smaller device than the driver would stays as it is, until its device is large enough for the kernel.
func TestSmallBtrfs(t *testing.T) {
	ctx, h, k, dir := t.Context(), newHost(), newDisks(), tempDir(t)
	d := k.device(t, 128*mib)
	check(t, h.Format(ctx, d, volume.Format{FS: volume.Btrfs}))
	check(t, h.Mount(ctx, d, dir, volume.MountOptions{FS: volume.Btrfs}))
	least := volume.MinFSBytes(volume.Btrfs)
	for _, step := range [][2]int64{{least - mib, 128 * mib}, {least, least}} {
		bytes, want := step[0], step[1]
		d = k.enlarge(t, d, bytes)
		check(t, h.Grow(ctx, d, volume.Btrfs, dir))
		u, err := h.Usage(ctx, dir, false)
		if check(t, err); u.Bytes != want {
			t.Errorf("on %d bytes it has %d, want %d", bytes, u.Bytes, want)
		}
	}
	check(t, h.Unmount(ctx, dir))
}

// useful makes a file system of that many bytes and writes to it; ext4 must have a journal.
func useful(t *testing.T, fs volume.FS, size int64) (err error) {
	t.Run(fmt.Sprint(size/mib), func(t *testing.T) {
		ctx, h, dir := t.Context(), newHost(), tempDir(t)
		d := newDisks().device(t, size)
		if err = h.Format(ctx, d, volume.Format{FS: fs}); err != nil {
			return
		}
		if err = h.Mount(ctx, d, dir, volume.MountOptions{FS: fs}); err != nil {
			return
		}
		err = os.WriteFile(filepath.Join(dir, "f"), make([]byte, 256<<10), 0o600)
		u, _ := h.Usage(ctx, dir, false)
		t.Logf("%+v", u)
		check(t, h.Unmount(ctx, dir))
		if fs == volume.Ext4 && !strings.Contains(sh(t, "dumpe2fs", "-h", d.Path), "has_journal") {
			err = errors.New("no journal")
		}
	})
	return err
}

// Whatever the size of the device, the file system ends as large as it can be, and then nothing is run any more.
func TestGrowRuns(t *testing.T) {
	for _, fs := range filesystems {
		t.Run(string(fs), func(t *testing.T) {
			ctx, k, dir := t.Context(), newDisks(), tempDir(t)
			programs := 0
			seam := func(_ context.Context, e effect.Effect, do func() error) error {
				if e.Op == "run" {
					programs++
				}
				return do()
			}
			h := mount.New(&run.Local{Effects: seam}, seam)
			d := k.device(t, 384*mib+12<<10)
			check(t, h.Format(ctx, d, volume.Format{FS: fs}))
			check(t, h.Mount(ctx, d, dir, volume.MountOptions{FS: fs}))
			programs = 0
			check(t, h.Grow(ctx, d, fs, dir))
			if programs != 0 {
				t.Errorf("%d programs run on a file system that was just made", programs)
			}
			for _, more := range []int64{4 << 10, 100 << 10, 384<<10 + 512, mib, 5 * mib, 33*mib + 20<<10, 128 * mib, 129*mib + 4<<10} {
				d = k.enlarge(t, d, 384*mib+12<<10+more)
				check(t, h.Grow(ctx, d, fs, dir))
				first := programs
				check(t, h.Grow(ctx, d, fs, dir))
				u, err := h.Usage(ctx, dir, false)
				check(t, err)
				t.Logf("%d bytes more: %d programs, then %d; file system of %d bytes", more, first, programs-first, u.Bytes)
				if first > 1 || programs != first || more >= 5*mib && first != 1 {
					t.Errorf("%d bytes more: %d programs, then %d", more, first, programs-first)
				}
				programs = 0
			}
			check(t, h.Unmount(ctx, dir))
			checkFilesystem(t, fs, d)
		})
	}
}

// Times with 1,000 mounts, to be read.
func TestManyMounts(t *testing.T) {
	ctx, h, dir := t.Context(), newHost(), tempDir(t)
	d := newDisks().device(t, 512*mib)
	check(t, h.Format(ctx, d, volume.Format{FS: volume.Ext4}))
	o := volume.MountOptions{FS: volume.Ext4}
	timed := func(what string, n int, do func(i int)) time.Duration {
		start := time.Now()
		for i := range n {
			do(i)
		}
		each := time.Since(start) / time.Duration(n)
		t.Logf("%s: %v", what, each.Round(time.Microsecond))
		return each
	}
	target := func(i int) string { return fmt.Sprintf("%s/t%d", dir, i) }
	for i := range 1002 {
		_, err := h.Make(ctx, target(i), i < 500)
		check(t, err)
	}
	list := func(int) {
		_, err := h.List(ctx)
		check(t, err)
	}
	last, other := target(1000), target(1001)
	mount := func(int) { check(t, h.Mount(ctx, d, last, o)); check(t, h.Unmount(ctx, last)) }
	timed("List, no mounts", 20, list)
	timed("Mount and Unmount, no mounts", 20, mount)
	check(t, h.Mount(ctx, d, last, o))
	timed("Bind", 1000, func(i int) {
		source := d.Path
		if i >= 500 {
			source = last
		}
		check(t, h.Bind(ctx, source, target(i), volume.MountOptions{ReadOnly: true}))
	})
	if each := timed("List, 1000 mounts", 20, list); each > time.Second {
		t.Errorf("List takes %v", each)
	}
	timed("Holders, 1000 mounts of it", 1, func(int) { _, _ = h.Holders(ctx, d, last) })
	timed("mount(8) and umount(8), 1000 mounts", 5, func(int) {
		sh(t, "mount", "-t", "ext4", d.Path, other)
		sh(t, "umount", other)
	})
	timed("Mount and Unmount, 1000 mounts", 20, mount)
	timed("Unmount", 1000, func(i int) { check(t, h.Unmount(ctx, target(i))) })
	check(t, h.Unmount(ctx, last))
}
