package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// The kinds of inodes.
const (
	folder = 'd'
	file   = 'f'
	link   = 'l'
	node   = 'b' // of a block device
)

// inode is a folder, file, link or device node of a file system.
type inode struct {
	kind     byte
	mode     uint32 // permission bits
	gid      int
	name     string
	parent   *inode // nil: the root of its file system
	children map[string]*inode
	data     []byte // of a file
	to       string // of a link
	minor    uint32 // of a node; the number may come to stand for another device
}

// at is a place: an inode as it is seen through a mount.
type at struct {
	mount *mount
	inode *inode
}

const setgid = 0o2000

func newFolder() *inode { return &inode{kind: folder, mode: 0o755, children: map[string]*inode{}} }

func (n *inode) add(name string, child *inode) *inode {
	child.name, child.parent = name, n
	if n.mode&setgid != 0 {
		child.gid = n.gid
	}
	n.children[name] = child
	return child
}

// path is where the inode lies in its file system.
func (n *inode) path() string {
	if n.parent == nil {
		return "/"
	}
	return filepath.Join(n.parent.path(), n.name)
}

func (n *inode) visit(path string, do func(path string, n *inode)) {
	do(path, n)
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		n.children[name].visit(path+"/"+name, do)
	}
}

func (n *inode) mark() string {
	switch n.kind {
	case folder:
		return "/"
	case link:
		return " -> " + n.to
	default:
		return fmt.Sprintf(" %d bytes", len(n.data))
	}
}

// top gives what is visible at a place: the root of the topmost mount on it.
func (m *Machine) top(a at) at {
	for t := m.over[a]; t != nil; t = m.over[a] {
		a = at{t, t.root}
	}
	return a
}

// walk goes along an absolute path, as the kernel does it, and gives the place, and the path without links. Where it
// ends before its time, real holds the rest as it was. With follow, the last part may be a link too.
func (m *Machine) walk(path string, follow bool) (place at, real string, err error) {
	return m.walkOn(path, follow, 0)
}

func (m *Machine) walkOn(path string, follow bool, links int) (at, string, error) {
	place, real := m.top(at{m.root, m.root.root}), "/"
	parts := strings.FieldsFunc(filepath.Clean(path), func(r rune) bool { return r == '/' })
	for i, part := range parts {
		whole := filepath.Join(append([]string{real}, parts[i:]...)...)
		if place.inode.kind != folder {
			return at{}, whole, fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
		}
		next := place.inode.children[part]
		if next == nil {
			return at{}, whole, fmt.Errorf("%s: %w", path, syscall.ENOENT)
		}
		if next.kind == link && (follow || i < len(parts)-1) {
			if links == 40 {
				return at{}, whole, fmt.Errorf("%s: %w", path, syscall.ELOOP)
			}
			to := next.to
			if !filepath.IsAbs(to) {
				to = filepath.Join(real, to)
			}
			if _, _, err := m.walkOn(to, true, links+1); isMissing(err) {
				return at{}, whole, fmt.Errorf("%w: %s is a link to nothing: %w", volume.ErrPrecondition, path, syscall.ENOENT)
			}
			return m.walkOn(filepath.Join(append([]string{to}, parts[i+1:]...)...), follow, links+1)
		}
		place, real = m.top(at{place.mount, next}), filepath.Join(real, part)
	}
	return place, real, nil
}

// folderOf gives the folder in which the last part of a path lies, that is ready to be changed.
func (m *Machine) folderOf(path string) (at, error) {
	parent, _, err := m.walk(filepath.Dir(path), true)
	switch {
	case err != nil:
		return at{}, err
	case parent.inode.kind != folder:
		return at{}, fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
	case parent.mount.isReadOnly():
		return at{}, fmt.Errorf("%s: %w", path, syscall.EROFS)
	}
	return parent, nil
}

// create makes a new inode at path; its parent must be there.
func (m *Machine) create(path string, n *inode) error {
	parent, err := m.folderOf(path)
	if err != nil {
		return err
	}
	if parent.inode.children[filepath.Base(path)] != nil {
		return fmt.Errorf("%s: %w", path, syscall.EEXIST)
	}
	parent.inode.add(filepath.Base(path), n)
	return nil
}

// remove is unlink(2) and rmdir(2). A mount in another namespace does not keep a folder: the kernel takes it away with it
// (detach_mounts in linux/fs/namespace.c).
func (m *Machine) remove(path string) error {
	parent, err := m.folderOf(path)
	if err != nil {
		return err
	}
	n := parent.inode.children[filepath.Base(path)]
	switch {
	case n == nil:
		return fmt.Errorf("%s: %w", path, syscall.ENOENT)
	case m.over[at{parent.mount, n}] != nil:
		return fmt.Errorf("%s: %w", path, syscall.EBUSY)
	case len(n.children) != 0:
		return fmt.Errorf("%s: %w", path, syscall.ENOTEMPTY)
	}
	delete(parent.inode.children, n.name)
	for _, ns := range m.namespaces {
		ns.mounts = slices.DeleteFunc(ns.mounts, func(t *mount) bool { return t.parent.inode == n })
	}
	return nil
}

// Mkdir makes a folder.
func (m *Machine) Mkdir(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.create(path, newFolder())
}

// Symlink makes a symbolic link at path.
func (m *Machine) Symlink(to, path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.create(path, &inode{kind: link, mode: 0o777, to: to})
}

// Remove removes one name that is no mount point and not a full folder.
func (m *Machine) Remove(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.remove(path)
}

// WriteFile makes the file, or overwrites it; on a device node it writes the first bytes of the device.
func (m *Machine) WriteFile(path, data string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	place, real, err := m.walk(path, true)
	if err != nil {
		if err := m.create(real, &inode{kind: file, mode: 0o644}); err != nil {
			return err
		}
		place, _, _ = m.walk(real, true)
	}
	switch {
	case place.inode.kind == folder:
		return fmt.Errorf("%s: %w", path, syscall.EISDIR)
	case place.mount.isReadOnly() && place.inode.kind != node: // a node of a read-only mount still writes to its device
		return fmt.Errorf("%s: %w", path, syscall.EROFS)
	case place.inode.kind == node:
		return m.writeDevice(path, place.inode.minor, data)
	case place.mount.fs.device != nil && place.mount.fs.device.suspended:
		return fmt.Errorf("%s: its device is suspended: this would hang", path)
	}
	place.inode.data = []byte(data)
	return nil
}

func (m *Machine) writeDevice(path string, minor uint32, data string) error {
	v := m.byMinor(minor)
	switch {
	case v == nil:
		return fmt.Errorf("%s: %w", path, syscall.ENXIO)
	case v.readOnly:
		return fmt.Errorf("%s: %w", path, syscall.EPERM)
	case v.suspended:
		return fmt.Errorf("%s: suspended: this would hang", path)
	}
	v.disk = disk{bytes: []byte(data)} // whatever was there began where these bytes are now
	return nil
}

// ReadFile gives what is in the file; of a device node what was written to the device.
func (m *Machine) ReadFile(path string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	place, _, err := m.walk(path, true)
	switch {
	case err != nil:
		return "", err
	case place.inode.kind == folder:
		return "", fmt.Errorf("%s: %w", path, syscall.EISDIR)
	case place.inode.kind == node:
		v := m.byMinor(place.inode.minor)
		if v == nil {
			return "", fmt.Errorf("%s: %w", path, syscall.ENXIO)
		}
		return string(v.disk.bytes), nil
	}
	return string(place.inode.data), nil
}

// Chmod sets the permission bits.
func (m *Machine) Chmod(path string, mode uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	place, _, err := m.walk(path, true)
	if err == nil {
		place.inode.mode = mode
	}
	return err
}

// File is what lies at a path.
type File struct {
	Kind byte // 'd' folder, 'f' file, 'l' link, 'b' block device node; 0: nothing is there
	Mode uint32
	GID  int
	Size int64
}

// Lstat tells what lies at a path; the last part is not followed.
func (m *Machine) Lstat(path string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	place, _, err := m.walk(path, false)
	if isMissing(err) {
		return File{}, nil
	}
	if err != nil {
		return File{}, err
	}
	n := place.inode
	return File{n.kind, n.mode, n.gid, int64(len(n.data))}, nil
}

// Paths implements lifecycle.Paths.
type Paths struct{ *conn }

// Resolve implements lifecycle.Paths.
func (p *Paths) Resolve(path string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	place, real, err := p.walk(path, false)
	switch {
	case err == nil && place.inode.kind == link:
		return "", fmt.Errorf("%w: %s is a symbolic link", volume.ErrPrecondition, path)
	case err == nil, isMissing(err) && !errors.Is(err, volume.ErrPrecondition):
		return real, nil
	}
	return "", err
}

// Make implements lifecycle.Paths.
func (p *Paths) Make(ctx context.Context, path string, block bool) (bool, error) {
	op, n := "mkdir", newFolder()
	n.mode = 0o750
	if block {
		op, n = "create", &inode{kind: file, mode: 0o640}
	}
	there, err := p.Lstat(path)
	switch {
	case err != nil:
		return false, err
	case there.Kind != 0:
		return false, p.fit(path, n.kind)
	}
	parent := filepath.Dir(path)
	if there, err := p.Lstat(parent); err == nil && there.Kind == 0 {
		if err := p.change(ctx, "mkdir", parent, func() error { return p.createAll(parent) }); err != nil {
			return false, err
		}
	}
	err = p.change(ctx, op, path, func() error { return p.create(path, n) })
	return err == nil, err
}

// createAll makes the folder, and its parents where they are missing.
func (p *Paths) createAll(path string) error {
	if _, _, err := p.walk(path, true); err == nil {
		return nil
	}
	if err := p.createAll(filepath.Dir(path)); err != nil {
		return err
	}
	n := newFolder()
	n.mode = 0o750
	return p.create(path, n)
}

// fit checks that what is at path can be a target of that kind.
func (p *Paths) fit(path string, want byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	place, _, err := p.walk(path, false)
	if err != nil {
		return err
	}
	if n := place.inode; n.kind != want || len(n.children) != 0 || len(n.data) != 0 {
		return fmt.Errorf("%w: something else is at %s", volume.ErrPrecondition, path)
	}
	return nil
}

// Remove implements lifecycle.Paths.
func (p *Paths) Remove(ctx context.Context, path string) error {
	there, err := p.Lstat(path)
	switch {
	case err != nil || there.Kind == 0:
		return err
	case there.Kind != folder && there.Kind != file || there.Size != 0:
		return fmt.Errorf("%w: %s is neither an empty folder nor an empty file; it is left alone", volume.ErrPrecondition, path)
	}
	return p.change(ctx, "remove", path, func() error {
		err := p.remove(path)
		switch {
		case errors.Is(err, syscall.ENOENT):
			return nil
		case errors.Is(err, syscall.EBUSY):
			return fmt.Errorf("%w: %w", volume.ErrBusy, err)
		case errors.Is(err, syscall.ENOTEMPTY):
			return fmt.Errorf("%w: %w", volume.ErrPrecondition, err)
		}
		return err
	})
}

// Lacks implements lifecycle.Paths.
func (p *Paths) Lacks(path, name string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	place, _, err := p.walk(path, false)
	switch {
	case err != nil:
		return false, err
	case name == "" || name == "." || name == ".." || strings.Contains(name, "/"):
		return false, volume.Invalid("name in "+path, name, "not a name of a file")
	case place.inode.kind != folder:
		return false, fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
	case len(place.inode.children) == 0:
		return false, fmt.Errorf("%s is empty", path)
	}
	return place.inode.children[name] == nil, nil
}

func isMissing(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
}
