package mount

import (
	"cmp"
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

	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// maxHolders bounds the answer; an error message shows fewer.
const maxHolders = 32

// Holders finds who keeps the device, or what is mounted at target, busy: devices on it, loop devices and swap files in it,
// other mounts of it in this namespace and in others, and processes that have something on it open, mapped, or as working or root folder, or run
// from it. The mount at target itself does not count; target may be empty.
//
// Where somebody is found who uses the very mount at target, or a propagated copy of it in another namespace, only such are
// given: umount(2) of the target fails because of them, and not because of who uses the staging path, or another target. Whom a
// process holds it by is told by the mounts of its files (statx(2), stx_mnt_id).
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

	devs   map[devno]bool  // st_dev of files on the device: its own number, for btrfs an anonymous one as well
	mounts map[int]bool    // mounts of the device, in all namespaces seen
	at     map[int]bool    // of these the one at target, and its copies
	peers  map[string]bool // the peer groups of the one at target, as its copies name them
	named  map[int]use     // processes that were found for more than a mount

	mu     sync.Mutex
	found  []volume.Holder // those at target
	others []volume.Holder
}

// use is how somebody uses the device: not at all, somewhere, or by the mount at target.
type use int

const (
	unused use = iota
	elsewhere
	atTarget
)

func newSearch(ctx context.Context, h *Host, d volume.Device, target string) *search {
	n := numberOf(d)
	return &search{host: h, ctx: ctx, dev: n, target: target,
		devs: map[devno]bool{n: true}, mounts: map[int]bool{}, at: map[int]bool{}, peers: map[string]bool{}, named: map[int]use{}}
}

func (s *search) result() []volume.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.found) != 0 {
		return slices.Clone(s.found)
	}
	return slices.Clone(s.others)
}

func (s *search) add(u use, h volume.Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &s.others
	if u == atTarget {
		list = &s.found
	}
	if len(*list) < maxHolders {
		*list = append(*list, h)
	}
}

func (s *search) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	enough := len(s.found) >= maxHolders || len(s.at) == 0 && len(s.others) >= maxHolders
	return enough || s.ctx.Err() != nil
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

func (s *search) each(pids []int, look func(pid int) (use, string)) {
	for _, pid := range pids {
		if s.over() {
			return
		}
		if s.best(s.named[pid]) || s.host.isKernelThread(pid) {
			continue
		}
		if u, via := look(pid); u > s.named[pid] {
			s.named[pid] = u
			s.add(u, s.host.holder(pid, via))
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
	if at >= 0 {
		s.at[rows[at].ID] = true
		for _, group := range peerGroups(rows[at]) {
			s.peers[group] = true
		}
	}
	for i, r := range rows {
		n, block := t.device(r)
		same := n == s.dev
		if same && !block {
			s.devs[rowDev(r)], s.mounts[r.ID] = true, true
		}
		inside := at >= 0 && r.Parent == rows[at].ID
		switch {
		case i == at:
		case inside:
			s.add(atTarget, volume.Holder{Command: "mount at " + r.Mountpoint})
		case same:
			s.add(elsewhere, volume.Holder{Command: "mount at " + r.Mountpoint})
		}
	}
}

// peerGroups gives the peer groups of a mount, by number (mount_namespaces(7), "shared:X" and "master:X"). A copy that was
// propagated to another namespace has one of them: it is a peer, or a slave.
func peerGroups(r *mountinfo.Info) []string {
	var out []string
	for _, f := range strings.Fields(r.Optional) {
		if name, group, ok := strings.Cut(f, ":"); ok && (name == "shared" || name == "master") {
			out = append(out, group)
		}
	}
	return out
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
		if slices.ContainsFunc(peerGroups(r), func(group string) bool { return s.peers[group] }) && s.isTarget(r) {
			s.at[r.ID] = true
		}
		if via == "" {
			via = "mount in another namespace, at " + r.Mountpoint
		}
	}
	if via != "" {
		s.add(elsewhere, s.host.holder(pid, via)) // a copy alone keeps nobody from unmounting the target
	}
}

// isTarget tells a copy of the mount at target from one of another mount of its peer group, as that at the staging path can be:
// in another namespace the path may begin otherwise, but it ends the same.
func (s *search) isTarget(r *mountinfo.Info) bool {
	return filepath.Base(r.Mountpoint) == filepath.Base(s.target) &&
		filepath.Base(filepath.Dir(r.Mountpoint)) == filepath.Base(filepath.Dir(s.target))
}

// deviceHolders names devices that lie on this one: a guest's volume group, a crypt or RAID device.
func (s *search) deviceHolders() {
	entries, _ := os.ReadDir(filepath.Join(s.host.sys, "dev/block", s.dev.String(), "holders")) // none is no holder
	for _, e := range entries {
		command := "device " + e.Name()
		if name, err := sysfs.Read(filepath.Join(s.host.sys, "class/block", e.Name(), "dm/name")); err == nil {
			command += " (" + name + ")"
		}
		s.add(elsewhere, volume.Holder{Command: command, Via: "lies on the device"})
	}
}

func (s *search) loopDevices() {
	found, _ := filepath.Glob(filepath.Join(s.host.sys, "class/block/loop*/loop/backing_file")) // the pattern is right
	for _, file := range found {
		name := filepath.Base(filepath.Dir(filepath.Dir(file)))
		backing, err := sysfs.Read(file)
		if err != nil {
			continue
		}
		if s.backs(name, backing) {
			s.add(s.byPath(backing), volume.Holder{Command: "loop device /dev/" + name, Via: "backed by " + backing})
		}
	}
}

// byPath tells by the path alone how a file that the kernel holds was opened. It may be one of another namespace, which then
// counts as elsewhere.
func (s *search) byPath(path string) use {
	if s.target != "" && strings.HasPrefix(path, s.target+"/") {
		return atTarget
	}
	return elsewhere
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
	u, _ := s.statHeld(backing, unix.AT_SYMLINK_NOFOLLOW)
	return u != unused
}

func (s *search) swaps() {
	b, _ := os.ReadFile(filepath.Join(s.host.proc, "swaps")) // a kernel without swap has none
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) > 1 && filepath.IsAbs(fields[0]) {
			if u, _ := s.statHeld(fields[0], 0); u != unused {
				s.add(s.byPath(fields[0]), volume.Holder{Command: "swap", Via: "swap on " + fields[0]})
			}
		}
	}
}

// openFiles looks for working folder, root, program, and open files of a process; for one at target above all.
func (s *search) openFiles(pid int) (u use, via string) {
	folder := filepath.Join(s.host.proc, strconv.Itoa(pid))
	look := func(name, as string) {
		path := filepath.Join(folder, name)
		if here, kind := s.statHeld(path, 0); here > u {
			if as == "" {
				as = "open " + kind
			}
			u, via = here, as+" "+readlink(path)
		}
	}
	for _, l := range []struct{ name, via string }{{"cwd", "working directory"}, {"root", "root directory"}, {"exe", "running program"}} {
		look(l.name, l.via)
	}
	fds, _ := os.ReadDir(filepath.Join(folder, "fd")) // a process that is gone, or not ours to see
	for _, fd := range fds {
		if s.best(u) {
			break
		}
		look(filepath.Join("fd", fd.Name()), "")
	}
	return u, via
}

// best reports whether no better use can be found than this one.
func (s *search) best(u use) bool { return u == atTarget || u == elsewhere && len(s.at) == 0 }

// statHeld tells how what a path leads to uses the device: it is its node, or lies on it. The links below /proc/PID lead to
// the very file, in whatever namespace and by whatever mount. The file system is not asked (AT_STATX_DONT_SYNC): a dead NFS
// server of another volume must not keep this one waiting.
func (s *search) statHeld(path string, flags int) (u use, kind string) {
	var st unix.Statx_t
	err := retry(func() error {
		return unix.Statx(unix.AT_FDCWD, path, flags|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	})
	if err != nil {
		return unused, ""
	}
	u, byMount := elsewhere, st.Mask&unix.STATX_MNT_ID != 0 && s.mounts[int(st.Mnt_id)]
	if st.Mask&unix.STATX_MNT_ID != 0 && s.at[int(st.Mnt_id)] {
		u = atTarget
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFBLK && devno{st.Rdev_major, st.Rdev_minor} == s.dev:
		return u, "device"
	case byMount, s.devs[devno{st.Dev_major, st.Dev_minor}]:
		return u, "file"
	}
	return unused, ""
}

// mapped looks for mapped files of a process: proc_pid_maps(5), "address perms offset dev inode pathname". By which mount
// a file was mapped its link in map_files tells; without it, it counts as elsewhere.
func (s *search) mapped(pid int) (u use, via string) {
	folder := filepath.Join(s.host.proc, strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(folder, "maps"))
	if err != nil {
		return unused, ""
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || s.best(u) {
			continue
		}
		major, minor, _ := strings.Cut(fields[3], ":")
		a, err1 := strconv.ParseUint(major, 16, 32)
		b, err2 := strconv.ParseUint(minor, 16, 32)
		if err1 != nil || err2 != nil || !s.devs[devno{uint32(a), uint32(b)}] {
			continue
		}
		here, _ := s.statHeld(filepath.Join(folder, "map_files", mapName(fields[0])), 0)
		if here = max(here, elsewhere); here > u {
			u, via = here, "mapped file "+strings.Join(fields[5:], " ")
		}
	}
	return u, via
}

// mapName gives the name in map_files of a range of addresses, which maps pads with zeros (fs/proc/base.c, "%lx-%lx").
func mapName(addresses string) string {
	from, to, _ := strings.Cut(addresses, "-")
	trim := func(hex string) string { return cmp.Or(strings.TrimLeft(hex, "0"), "0") }
	return trim(from) + "-" + trim(to)
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
