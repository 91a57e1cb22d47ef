package mount

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// List gives the mount table of this namespace. Of several mounts at one target the last in the list is the one on top.
//
// What is mounted is told by device number: for a file system the number of its block device, also for btrfs, whose
// mounts carry a number of the file system's own in mountinfo; for a block volume the number its device node stands for.
func (h *Host) List(ctx context.Context) ([]volume.Mount, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rows, err := h.table("self")
	if err != nil {
		return nil, err
	}
	t := h.newTranslator(rows)
	out := make([]volume.Mount, len(rows))
	for i, r := range rows {
		out[i] = t.mount(r)
	}
	return out, nil
}

// table reads the mount table that a process sees, in stack order. /proc/self is that of the first thread; no thread of the
// driver has a namespace of its own.
func (h *Host) table(process string) ([]*mountinfo.Info, error) {
	f, err := os.Open(filepath.Join(h.proc, process, "mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	return parseTable(f)
}

func parseTable(r io.Reader) ([]*mountinfo.Info, error) {
	rows, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	sortStacks(rows)
	return rows, nil
}

// sortStacks puts the mounts at one target in the order in which they lie on each other. The table is almost always in this
// order; only where the kernel slid a propagated mount below an older one (attach_recursive_mnt in fs/namespace.c) it is not.
// The parent of a mount that covers another one at the same target is that other one.
func sortStacks(rows []*mountinfo.Info) {
	places := map[string][]int{}
	byID := make(map[int]*mountinfo.Info, len(rows))
	for i, r := range rows {
		places[r.Mountpoint] = append(places[r.Mountpoint], i)
		byID[r.ID] = r
	}
	depths := map[int]int{}
	var depth func(r *mountinfo.Info) int
	depth = func(r *mountinfo.Info) int {
		n, known := depths[r.ID]
		if p := byID[r.Parent]; !known && p != nil && p.Mountpoint == r.Mountpoint {
			depths[r.ID] = 0 // ends a loop of parents, which a table read while ids were used again could show
			n = depth(p) + 1
		}
		depths[r.ID] = n
		return n
	}
	for _, at := range places {
		if len(at) < 2 {
			continue
		}
		stack := make([]*mountinfo.Info, len(at))
		for i, place := range at {
			stack[i] = rows[place]
		}
		slices.SortStableFunc(stack, func(a, b *mountinfo.Info) int { return depth(a) - depth(b) })
		for i, place := range at {
			rows[place] = stack[i]
		}
	}
}

// translator turns rows of a mount table into values, and remembers what it asked for on the way.
type translator struct {
	host    *Host
	rows    map[int]*mountinfo.Info
	folders map[devno]string // where the root of a devtmpfs or tmpfs is mounted, by the number of that file system
	sources map[string]devno // btrfs: the device number of a source
}

func (h *Host) newTranslator(rows []*mountinfo.Info) *translator {
	t := &translator{host: h, rows: make(map[int]*mountinfo.Info, len(rows)), folders: map[devno]string{}, sources: map[string]devno{}}
	for _, r := range rows {
		t.rows[r.ID] = r
		if holdsNodes(r) && r.Root == "/" {
			if _, ok := t.folders[rowDev(r)]; !ok {
				t.folders[rowDev(r)] = r.Mountpoint
			}
		}
	}
	return t
}

func rowDev(r *mountinfo.Info) devno { return devno{uint32(r.Major), uint32(r.Minor)} }

// holdsNodes reports whether device nodes live on such a file system: /dev of a host is devtmpfs, of a container tmpfs.
func holdsNodes(r *mountinfo.Info) bool { return r.FSType == "devtmpfs" || r.FSType == "tmpfs" }

func (t *translator) mount(r *mountinfo.Info) volume.Mount {
	dev, block := t.device(r)
	perMount, super := strings.Split(r.Options, ","), strings.Split(r.VFSOptions, ",")
	m := volume.Mount{
		Target:   r.Mountpoint,
		Major:    dev.major,
		Minor:    dev.minor,
		Block:    block,
		Root:     r.Root,
		FS:       r.FSType,
		ReadOnly: slices.Contains(perMount, "ro") || slices.Contains(super, "ro"),
		Forced:   !block && slices.Contains(perMount, "rw") && (slices.Contains(super, "ro") || slices.Contains(super, "emergency_ro")),
		Options:  perMount,
		Place:    t.place(r),
	}
	for _, o := range super {
		if o != "rw" && o != "ro" && !slices.Contains(perMount, o) {
			m.Options = append(m.Options, o)
		}
	}
	return m
}

// place names where the mount lies in what it lies on, which peers show each at its own path: the peer group, or for a
// slave that of its master, and the path within that file system. case B1
func (t *translator) place(r *mountinfo.Info) string {
	on := t.rows[r.Parent]
	if on == nil {
		return ""
	}
	var group string
	for field := range strings.FieldsSeq(on.Optional) {
		kind, id, _ := strings.Cut(field, ":")
		if kind == "shared" || kind == "master" && group == "" {
			group = id
		}
	}
	if group == "" {
		return ""
	}
	return group + " " + filepath.Join(on.Root, strings.TrimPrefix(r.Mountpoint, on.Mountpoint))
}

// device tells what is mounted, and whether it is a device node.
func (t *translator) device(r *mountinfo.Info) (devno, bool) {
	switch {
	case holdsNodes(r) && r.Root != "/":
		if n, ok := t.node(r); ok {
			return n, true
		}
	case r.FSType == string(volume.Btrfs):
		return t.source(r), false
	}
	return rowDev(r), false
}

// node gives the device of a bind-mounted device node. The target shows it where this very mount is visible there. Below
// another mount it is not, and then the node is looked up by its place in /dev, which is what Root is; its name may have gone
// meanwhile ("//deleted"), or even be another device's: then it is the kernel's name for it that counts.
func (t *translator) node(r *mountinfo.Info) (devno, bool) {
	if n, block, id, err := nodeAt(r.Mountpoint); err == nil && id == r.ID {
		return n, block
	}
	root, gone := strings.CutSuffix(r.Root, "//deleted")
	if folder, ok := t.folders[rowDev(r)]; ok && !gone {
		if n, block, _, err := nodeAt(filepath.Join(folder, root)); err == nil {
			return n, block
		}
	}
	if r.FSType != "devtmpfs" {
		return devno{}, false // anybody may give a folder of a tmpfs a device's name
	}
	return t.host.byName(filepath.Base(root))
}

// byName gives the device with the kernel's name, such as dm-3.
func (h *Host) byName(name string) (devno, bool) {
	text, err := sysfs.Read(filepath.Join(h.sys, "class/block", name, "dev"))
	if err != nil {
		return devno{}, false
	}
	n, err := parseDevno(text)
	return n, err == nil
}

// nodeAt tells what lies at a path, without following a link there, and in which mount. It never waits for a server:
// AT_STATX_DONT_SYNC.
func nodeAt(path string) (n devno, block bool, mountID int, err error) {
	var st unix.Statx_t
	err = retry(func() error {
		return unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID|unix.STATX_TYPE, &st)
	})
	return devno{st.Rdev_major, st.Rdev_minor}, st.Mode&unix.S_IFMT == unix.S_IFBLK, int(st.Mnt_id), err
}

// source gives the device of a btrfs mount. Its own number (st_dev) is an anonymous one, because a btrfs can lie on several
// devices; the volumes of the driver lie on one, and that is the mount's source. The source is a path in /dev as it was when it
// was mounted or scanned, maybe in another namespace: where it is not there now, the kernel's or device-mapper's name helps.
func (t *translator) source(r *mountinfo.Info) devno {
	if n, ok := t.sources[r.Source]; ok {
		return n
	}
	n, ok := t.host.deviceOfPath(r.Source)
	if !ok {
		n = rowDev(r)
	}
	t.sources[r.Source] = n
	return n
}

func (h *Host) deviceOfPath(path string) (devno, bool) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(path, &st) }); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return split(st.Rdev), true
	}
	name := filepath.Base(path)
	if n, ok := h.byName(name); ok {
		return n, true
	}
	found, _ := filepath.Glob(filepath.Join(h.sys, "class/block/dm-*/dm/name")) // the pattern is right
	for _, f := range found {
		if is, err := sysfs.Read(f); err == nil && is == name {
			return h.byName(filepath.Base(filepath.Dir(filepath.Dir(f))))
		}
	}
	return devno{}, false
}
