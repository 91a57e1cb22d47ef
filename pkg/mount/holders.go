package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// maxHolders bounds the answer; an error message shows fewer.
const maxHolders = 32

// Holders finds who keeps the device, or what is mounted at target, busy: devices on it, loop devices and swap files in it,
// other mounts of it in this namespace and in others, and processes that have something on it open, mapped, or as working or root folder, or run
// from it. The mount at target itself does not count; target may be empty.
//
// The search is bounded in time (2 s, or ctx) and in number, and it is not complete: it does not see what this process may not see,
// nor other threads' own file tables, nor sockets. An empty answer means that none was found. Processes that end meanwhile, and
// those that cannot be read, are passed over. The error is never that of one process.
func (h *Host) Holders(ctx context.Context, d volume.Device, target string) ([]volume.Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, h.search)
	defer cancel()
	rows, err := h.table("self")
	if err != nil {
		return nil, err
	}
	s := newSearch(ctx, h, d, target)
	done := make(chan struct{})
	// On its own, because a read below /proc waits for a process that hangs in the kernel.
	go func() {
		defer close(done)
		s.run(rows)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return s.result(), nil
}

// search is one search for holders.
type search struct {
	host   *Host
	ctx    context.Context
	dev    devno
	target string

	devs   map[devno]bool // st_dev of files on the device: its own number, for btrfs an anonymous one as well
	mounts map[int]bool   // mounts of the device, in all namespaces seen
	named  map[int]bool   // processes that are in found for more than a mount

	mu    sync.Mutex
	found []volume.Holder
}

func newSearch(ctx context.Context, h *Host, d volume.Device, target string) *search {
	n := numberOf(d)
	return &search{host: h, ctx: ctx, dev: n, target: target,
		devs: map[devno]bool{n: true}, mounts: map[int]bool{}, named: map[int]bool{}}
}

func (s *search) result() []volume.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.found)
}

func (s *search) add(h volume.Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.found) < maxHolders {
		s.found = append(s.found, h)
	}
}

func (s *search) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.found) >= maxHolders || s.ctx.Err() != nil
}

// run goes from what is cheap to ask to what is not. Mounts come first, because they tell which numbers the file system has;
// maps come last, because they cost most.
func (s *search) run(rows []*mountinfo.Info) {
	pids := s.host.processes()
	s.ownMounts(rows)
	s.otherNamespaces(pids)
	s.deviceHolders()
	s.loopDevices()
	s.swaps()
	s.each(pids, s.openFiles)
	s.each(pids, s.mapped)
}

func (s *search) each(pids []int, look func(pid int) (via string)) {
	for _, pid := range pids {
		if s.over() {
			return
		}
		if s.named[pid] || s.host.isKernelThread(pid) {
			continue
		}
		if via := look(pid); via != "" {
			s.named[pid] = true
			s.add(s.host.holder(pid, via))
		}
	}
}

// ownMounts names other mounts of the device in this namespace, and what is mounted below the target.
func (s *search) ownMounts(rows []*mountinfo.Info) {
	t := s.host.newTranslator(rows)
	at := -1 // the mount that is asked about: the topmost at target
	for i, r := range rows {
		if r.Mountpoint == s.target {
			at = i
		}
	}
	for i, r := range rows {
		n, block := t.device(r)
		same := n == s.dev
		if same && !block {
			s.devs[rowDev(r)], s.mounts[r.ID] = true, true
		}
		inside := at >= 0 && r.Parent == rows[at].ID
		if i != at && (same || inside) {
			s.add(volume.Holder{Command: "mount at " + r.Mountpoint})
		}
	}
}

// otherNamespaces names one process of each other mount namespace in which the device is mounted. The devices of its rows are
// told by number, and for btrfs by the source's.
func (s *search) otherNamespaces(pids []int) {
	seen := map[string]bool{}
	if own, err := os.Readlink(filepath.Join(s.host.proc, "self/ns/mnt")); err == nil {
		seen[own] = true
	}
	for _, pid := range pids {
		if s.over() {
			return
		}
		process := strconv.Itoa(pid)
		ns, err := os.Readlink(filepath.Join(s.host.proc, process, "ns/mnt"))
		if err != nil || seen[ns] {
			continue
		}
		rows, err := s.host.table(process)
		if err != nil || len(rows) == 0 {
			continue // it is ending; another process of the namespace may answer
		}
		seen[ns] = true
		s.otherNamespace(pid, rows)
	}
}

func (s *search) otherNamespace(pid int, rows []*mountinfo.Info) {
	t := &translator{host: s.host, sources: map[string]devno{}}
	via := ""
	for _, r := range rows {
		n := rowDev(r)
		if r.FSType == string(volume.Btrfs) {
			n = t.source(r)
		}
		if n != s.dev {
			continue
		}
		s.devs[rowDev(r)], s.mounts[r.ID] = true, true
		if via == "" {
			via = "mount in another namespace, at " + r.Mountpoint
		}
	}
	if via != "" {
		s.add(s.host.holder(pid, via))
	}
}

// deviceHolders names devices that lie on this one: a guest's volume group, a crypt or RAID device.
func (s *search) deviceHolders() {
	entries, _ := os.ReadDir(filepath.Join(s.host.sys, "dev/block", s.dev.String(), "holders")) // none is no holder
	for _, e := range entries {
		command := "device " + e.Name()
		if b, err := os.ReadFile(filepath.Join(s.host.sys, "class/block", e.Name(), "dm/name")); err == nil {
			command += " (" + strings.TrimSpace(string(b)) + ")"
		}
		s.add(volume.Holder{Command: command, Via: "lies on the device"})
	}
}

func (s *search) loopDevices() {
	found, _ := filepath.Glob(filepath.Join(s.host.sys, "class/block/loop*/loop/backing_file")) // the pattern is right
	for _, file := range found {
		name := filepath.Base(filepath.Dir(filepath.Dir(file)))
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		backing := strings.TrimSuffix(string(b), "\n")
		if s.backs(name, backing) {
			s.add(volume.Holder{Command: "loop device /dev/" + name, Via: "backed by " + backing})
		}
	}
}

// backs asks the loop device itself, because the path of its backing file is that of another namespace perhaps, and the
// file may be deleted. Where its node cannot be opened the path must do, and where it tells an anonymous number (major 0): that
// of a btrfs file is its subvolume's, which is not the number of the mount.
func (s *search) backs(name, backing string) bool {
	f, err := os.OpenFile("/dev/"+name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		defer f.Close() //nolint:errcheck // opened for reading
		if info, err := unix.IoctlLoopGetStatus64(int(f.Fd())); err == nil && split(info.Device).major != 0 {
			return s.devs[split(info.Device)] || split(info.Rdevice) == s.dev
		}
	}
	_, held := s.statHeld(backing, unix.AT_SYMLINK_NOFOLLOW)
	return held
}

func (s *search) swaps() {
	b, _ := os.ReadFile(filepath.Join(s.host.proc, "swaps")) // a kernel without swap has none
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) > 1 && filepath.IsAbs(fields[0]) {
			if _, held := s.statHeld(fields[0], 0); held {
				s.add(volume.Holder{Command: "swap", Via: "swap on " + fields[0]})
			}
		}
	}
}

// openFiles looks for working folder, root, program, and open files of a process.
func (s *search) openFiles(pid int) (via string) {
	folder := filepath.Join(s.host.proc, strconv.Itoa(pid))
	for _, l := range []struct{ name, via string }{{"cwd", "working directory"}, {"root", "root directory"}, {"exe", "running program"}} {
		if _, held := s.statHeld(filepath.Join(folder, l.name), 0); held {
			return l.via + " " + readlink(filepath.Join(folder, l.name))
		}
	}
	fds, _ := os.ReadDir(filepath.Join(folder, "fd")) // a process that is gone, or not ours to see
	for _, fd := range fds {
		if kind, held := s.statHeld(filepath.Join(folder, "fd", fd.Name()), 0); held {
			return "open " + kind + " " + readlink(filepath.Join(folder, "fd", fd.Name()))
		}
	}
	return ""
}

// statHeld reports whether what a path leads to is the device, or lies on it. The links below /proc/PID lead to the very
// file, in whatever namespace. The file system is not asked (AT_STATX_DONT_SYNC): a dead NFS server of another volume
// must not keep this one waiting.
func (s *search) statHeld(path string, flags int) (kind string, held bool) {
	var st unix.Statx_t
	err := retry(func() error {
		return unix.Statx(unix.AT_FDCWD, path, flags|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	})
	switch {
	case err != nil:
		return "", false
	case st.Mode&unix.S_IFMT == unix.S_IFBLK && devno{st.Rdev_major, st.Rdev_minor} == s.dev:
		return "device", true
	case s.devs[devno{st.Dev_major, st.Dev_minor}], st.Mask&unix.STATX_MNT_ID != 0 && s.mounts[int(st.Mnt_id)]:
		return "file", true
	}
	return "", false
}

// mapped looks for mapped files of a process: proc_pid_maps(5), "address perms offset dev inode pathname".
func (s *search) mapped(pid int) (via string) {
	b, err := os.ReadFile(filepath.Join(s.host.proc, strconv.Itoa(pid), "maps"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		major, minor, _ := strings.Cut(fields[3], ":")
		a, err1 := strconv.ParseUint(major, 16, 32)
		b, err2 := strconv.ParseUint(minor, 16, 32)
		if err1 == nil && err2 == nil && s.devs[devno{uint32(a), uint32(b)}] {
			return "mapped file " + strings.Join(fields[5:], " ")
		}
	}
	return ""
}

// processes gives all processes, in order.
func (h *Host) processes() []int {
	entries, _ := os.ReadDir(h.proc) // without /proc there was no mount table either
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// isKernelThread: a kernel thread has no program; neither has a process that has ended.
func (h *Host) isKernelThread(pid int) bool {
	_, err := os.Readlink(filepath.Join(h.proc, strconv.Itoa(pid), "exe"))
	return errors.Is(err, os.ErrNotExist)
}

// holder describes a process. That this process holds a volume must not happen, and must be seen when it does.
func (h *Host) holder(pid int, via string) volume.Holder {
	folder := filepath.Join(h.proc, strconv.Itoa(pid))
	comm, _ := os.ReadFile(filepath.Join(folder, "comm")) // it may have ended
	cgroup, _ := os.ReadFile(filepath.Join(folder, "cgroup"))
	hd := volume.Holder{PID: pid, Command: strings.TrimSpace(string(comm)), Via: via}
	hd.Container, hd.Pod = parseCgroup(string(cgroup))
	if hd.Command == "" {
		hd.Command = "?"
	}
	if pid == os.Getpid() {
		hd.Command = fmt.Sprintf("%s, this driver itself", hd.Command)
	}
	return hd
}

func readlink(path string) string {
	to, err := os.Readlink(path)
	if err != nil {
		return "?"
	}
	return to
}
