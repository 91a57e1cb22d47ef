package fake

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// dmMajor is the major number of device-mapper's devices.
const dmMajor = 253

// mount is one mount of one namespace.
type mount struct {
	parent   at // the place it lies on; zero for the root
	fs       *filesystem
	root     *inode // what is visible: a folder of fs, or a device node
	target   string
	readOnly bool
	options  []string
}

// open is what a process, or the kernel, holds: a file or folder in a mount, or a device.
type open struct {
	path   string
	mount  *mount
	device *lv // what is held is the device itself; nil: a file
	holder volume.Holder
}

func (t *mount) isReadOnly() bool { return t.readOnly || t.fs.readOnly || t.fs.sick.ForcedReadOnly }

func (t *mount) row() volume.Mount {
	r := volume.Mount{Target: t.target, Root: t.root.path(), FS: t.fs.kind, ReadOnly: t.isReadOnly(), Forced: t.fs.sick.ForcedReadOnly && !t.readOnly && t.root.kind != node, Options: t.options}
	switch {
	case t.root.kind == node:
		r.Major, r.Minor, r.Block = dmMajor, t.root.minor, true
	case t.fs.device != nil:
		r.Major, r.Minor = dmMajor, t.fs.device.minor
	default:
		r.Major, r.Minor = t.fs.major, t.fs.minor
	}
	return r
}

func (t *mount) describe(m *Machine) string {
	what := t.fs.kind + " " + t.root.path()
	if v := t.device(m); v != nil {
		what += " of " + v.ref.String()
	}
	if t.isReadOnly() {
		what += " ro"
	}
	return strings.Join(append([]string{what}, t.options...), " ")
}

// device gives the LV that is mounted; nil: another device.
func (t *mount) device(m *Machine) *lv {
	if t.root.kind == node {
		return m.byMinor(t.root.minor)
	}
	return t.fs.device
}

func (m *Machine) attach(t *mount) {
	m.mounts = append(m.mounts, t)
	m.over[t.parent] = t
}

// openCount is the kernel's count of who has the device open: a file system counts once, wherever it is mounted, and so
// long as a process has a file of it open.
func (m *Machine) openCount(v *lv) int {
	count := 0
	if v.disk.fs != nil && m.inUse(v.disk.fs) {
		count++
	}
	for _, o := range m.opens {
		if o.device == v {
			count++
		}
	}
	return count
}

func (m *Machine) inUse(fs *filesystem) bool {
	uses := func(t *mount) bool { return t != nil && t.fs == fs }
	return slices.ContainsFunc(m.mounts, uses) ||
		slices.ContainsFunc(m.namespaces, func(ns *namespace) bool { return slices.ContainsFunc(ns.mounts, uses) }) ||
		slices.ContainsFunc(m.opens, func(o *open) bool { return uses(o.mount) })
}

// RemountReadOnly makes the file system that is mounted at path read-only, at all its mounts.
func (m *Machine) RemountReadOnly(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	place, _, err := m.walk(path, true)
	m.must(err)
	place.mount.fs.readOnly = true
}

// Hold keeps the file, folder or device node at path busy, and the mount it lies on, until release is called. how is the
// Via of the holder: "open file", "working directory", "mapped file", "open device"; or "loop device", which is no
// process (pid 0).
func (m *Machine) Hold(how, path string) (pid int, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hold(how, path)
}

// hold is Hold, with m.mu held.
func (m *Machine) hold(how, path string) (pid int, release func()) {
	place, _, err := m.walk(path, true)
	m.must(err)
	o := &open{path: path, mount: place.mount}
	if o.holder.Command = how + " /dev/loop0"; how != "loop device" {
		pid = 1000 + m.next()
		o.holder = volume.Holder{PID: pid, Command: "holder", Via: how + " " + path}
	}
	if place.inode.kind == node {
		o.device = m.byMinor(place.inode.minor)
	}
	m.opens = append(m.opens, o)
	return pid, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.opens = slices.DeleteFunc(m.opens, func(x *open) bool { return x == o })
	}
}

// HoldElsewhere lets a process with a mount namespace of its own keep the file at path open, until release is called.
func (m *Machine) HoldElsewhere(path string) (pid int, release func()) {
	pid, end := m.PrivateNamespace()
	m.mu.Lock()
	defer m.mu.Unlock()
	place, _, err := m.walk(path, true)
	m.must(err)
	own := m.namespaces[len(m.namespaces)-1].mounts[slices.Index(m.mounts, place.mount)]
	o := &open{path: path, mount: own, holder: volume.Holder{PID: pid, Command: "holder", Via: "open file " + path}}
	m.opens = append(m.opens, o)
	return pid, func() {
		end()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.opens = slices.DeleteFunc(m.opens, func(x *open) bool { return x == o })
	}
}

// HoldDevice keeps the device of an active LV open until release is called.
func (m *Machine) HoldDevice(r volume.Ref) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, release = m.hold("open device", "/dev/"+m.volume(r).nodeName())
	return release
}

// namespace is a mount namespace of another process.
type namespace struct {
	pid    int
	mounts []*mount
}

// PrivateNamespace lets a process make a mount namespace of its own, with copies of all mounts. They stay when ours are
// unmounted: until end is called, or the folder they lie on is removed.
func (m *Machine) PrivateNamespace() (pid int, end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ns := &namespace{pid: 1000 + m.next()}
	for _, t := range m.mounts {
		copied := *t
		ns.mounts = append(ns.mounts, &copied)
	}
	m.namespaces = append(m.namespaces, ns)
	return ns.pid, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.namespaces = slices.DeleteFunc(m.namespaces, func(x *namespace) bool { return x == ns })
	}
}

// Mounts implements lifecycle.Mounts.
type Mounts struct{ *conn }

// List implements lifecycle.Mounts.
func (c *Mounts) List(ctx context.Context) ([]volume.Mount, error) {
	if err := c.pass(ctx, "mountinfo"); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []volume.Mount
	for _, t := range c.mounts {
		out = append(out, t.row())
	}
	return out, nil
}

// Mount implements lifecycle.Mounts. As for the kernel, all mounts of one device are of one file system, with one
// read-only flag.
func (c *Mounts) Mount(ctx context.Context, d volume.Device, target string, o volume.MountOptions) error {
	return c.change(ctx, "mount", target, func() error {
		v, err := c.device(d)
		if err != nil {
			return err
		}
		place, real, err := c.walk(target, false)
		if err != nil {
			return err
		}
		options, ro, err := mountOptions(nil, o, true)
		ro = ro || v.readOnly
		switch fs := v.disk.fs; {
		case err != nil:
			return fmt.Errorf("mounting %s: %w", d, err)
		case place.inode.kind != folder:
			return fmt.Errorf("%s: %w", target, syscall.ENOTDIR)
		case fs == nil || fs.kind != string(o.FS) || v.disk.unfinished:
			return fmt.Errorf("mounting %s as %s: wrong file system type, or none: %w", d, o.FS, syscall.EINVAL)
		case slices.ContainsFunc(c.opens, func(x *open) bool { return x.device == v }):
			return fmt.Errorf("%w: mounting %s: %w", volume.ErrBusy, d, syscall.EBUSY)
		case fs.kind == string(volume.Btrfs) && c.twin(fs):
			return fmt.Errorf("mounting %s: another device of this file system is mounted: %w", d, syscall.EEXIST)
		case c.inUse(fs) && fs.readOnly != ro:
			return fmt.Errorf("%w: %s is mounted with another read-only flag", volume.ErrBusy, d)
		}
		v.disk.fs.readOnly = ro
		c.attach(&mount{parent: place, fs: v.disk.fs, root: v.disk.fs.root, target: real, readOnly: ro, options: options})
		return nil
	})
}

// twin reports whether another file system of the same id is mounted.
func (m *Machine) twin(fs *filesystem) bool {
	return slices.ContainsFunc(m.mounts, func(t *mount) bool { return t.fs != fs && t.fs.id == fs.id && t.fs.kind == fs.kind })
}

// Bind implements lifecycle.Mounts.
func (c *Mounts) Bind(ctx context.Context, source, target string, o volume.MountOptions) error {
	return c.change(ctx, "bind", target, func() error {
		from, _, err := c.walk(source, true)
		if err != nil {
			return err
		}
		place, real, err := c.walk(target, false)
		switch {
		case err != nil:
			return err
		case place.inode.kind == link || (from.inode.kind == folder) != (place.inode.kind == folder):
			return fmt.Errorf("%s on %s: %w", source, target, syscall.ENOTDIR)
		}
		options, ro, _ := mountOptions(from.mount.options, o, false)
		ro = ro || from.mount.readOnly
		c.attach(&mount{parent: place, fs: from.mount.fs, root: from.inode, target: real, readOnly: ro, options: options})
		return nil
	})
}

// Unmount implements lifecycle.Mounts.
func (c *Mounts) Unmount(ctx context.Context, target string) error {
	return c.change(ctx, "unmount", target, func() error {
		place, _, err := c.walk(target, false)
		if isMissing(err) || err == nil && (place.inode != place.mount.root || place.mount == c.root) {
			return nil
		}
		if err != nil {
			return err
		}
		return c.unmount(place.mount)
	})
}

func (m *Machine) unmount(t *mount) error {
	if err := t.device(m).hangs(); err != nil {
		return err
	}
	for _, o := range m.opens {
		if o.mount == t {
			return fmt.Errorf("%w: unmounting %s: %w", volume.ErrBusy, t.target, syscall.EBUSY)
		}
	}
	for place := range m.over {
		if place.mount == t {
			return fmt.Errorf("%w: unmounting %s: %w", volume.ErrBusy, t.target, syscall.EBUSY)
		}
	}
	delete(m.over, t.parent)
	m.mounts = slices.DeleteFunc(m.mounts, func(x *mount) bool { return x == t })
	return nil
}

// Holders implements lifecycle.Mounts.
func (c *Mounts) Holders(_ context.Context, d volume.Device, target string) ([]volume.Holder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.device(d)
	if err != nil {
		return nil, err
	}
	var out, at []volume.Holder // at: by the mount at target
	for _, o := range c.opens {
		switch {
		case o.mount != nil && o.mount.target == target && o.mount.device(c.Machine) == v:
			at = append(at, o.holder)
		case o.device == v || o.mount.device(c.Machine) == v:
			out = append(out, o.holder)
		}
	}
	if len(at) != 0 {
		return at, nil
	}
	for _, ns := range c.namespaces {
		for _, t := range ns.mounts {
			if t.device(c.Machine) == v {
				out = append(out, volume.Holder{PID: ns.pid, Command: "holder", Via: "mount in another namespace at " + t.target})
			}
		}
	}
	for _, t := range c.mounts {
		if t.device(c.Machine) == v && t.target != target {
			out = append(out, volume.Holder{Command: "mount at " + t.target})
		}
	}
	return out, nil
}

// Options as mount(8) knows them: of a single mount, of a file system (a few of them), and those that are not the kernel's.
var (
	ownOptions = []string{"nodev", "dev", "nosuid", "suid", "noexec", "exec", "noatime", "relatime", "strictatime", "nodiratime", "diratime", "nosymfollow"}
	fsOptions  = []string{"discard", "nodiscard", "sync", "dirsync", "lazytime", "nouuid", "errors", "data", "commit", "barrier", "prjquota", "compress"}
	noOptions  = []string{"defaults", "async", "auto", "noauto", "nofail", "_netdev", "user", "nouser"}
)

// mountOptions gives the options of a mount: those it has from its source, and its own. One that the file system does not
// know is EINVAL; a bind has no say in those.
func mountOptions(has []string, o volume.MountOptions, whole bool) (options []string, readOnly bool, err error) {
	options, readOnly = slices.Clone(has), o.ReadOnly
	for _, f := range volume.SplitFlags(o.Flags) {
		key, _, _ := strings.Cut(f, "=")
		switch {
		case key == "ro":
			readOnly = true
		case key == "rw", slices.Contains(noOptions, key), strings.HasPrefix(key, "x-"):
		case slices.Contains(ownOptions, key), whole && slices.Contains(fsOptions, key):
			options = append(options, f)
		case whole:
			return nil, false, fmt.Errorf("option %s: %w", f, syscall.EINVAL)
		}
	}
	return options, readOnly, nil
}
