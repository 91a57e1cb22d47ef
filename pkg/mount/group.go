package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Mode bits that kubelet's fsGroup sets: kubernetes pkg/volume/volume_linux.go (rwMask, execMask, setgid on folders).
const (
	fileBits   = 0o660
	folderBits = 0o2770
)

// SetGroup gives everything below the folder to the group, and sets the mode bits that kubelet's fsGroup sets: folders |= 02770, all
// else |= 0660; symbolic links get the group only. Nothing is walked where the folder itself has group and bits: it is done
// last, after everything below it, so that an interrupted walk is begun again.
//
// A pod may rename and link below the folder while it is walked. So no path is ever looked up twice: each entry is opened
// by its name in its folder, without following a link, and then changed through that descriptor. Other mounts below the folder
// are not entered, nor changed.
//
// The whole walk is one effect. When ctx ends it stops between two entries.
func (h *Host) SetGroup(ctx context.Context, folder string, gid int) error {
	fd, err := openEntry(unix.AT_FDCWD, folder)
	if err != nil {
		return fmt.Errorf("set group of %s: %w", folder, err)
	}
	defer unix.Close(fd) //nolint:errcheck // O_PATH
	top, err := entryAt(fd)
	switch {
	case err != nil:
		return fmt.Errorf("set group of %s: %w", folder, err)
	case !top.isFolder():
		return fmt.Errorf("set group of %s: %w", folder, unix.ENOTDIR)
	case top.has(gid):
		return nil
	}
	err = h.effects.Do(ctx, "setgroup", fmt.Sprintf("%s %d", folder, gid), func() error {
		return groupWalk{ctx: ctx, gid: gid, mountID: top.st.Mnt_id, proc: h.proc}.entry(fd)
	})
	if err != nil {
		return fmt.Errorf("set group %d of all in %s: %w", gid, folder, err)
	}
	return nil
}

type groupWalk struct {
	ctx     context.Context
	gid     int
	mountID uint64
	proc    string
}

// entry does what is below the entry, and then the entry itself.
func (w groupWalk) entry(fd int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	e, err := entryAt(fd)
	if err != nil || e.st.Mnt_id != w.mountID {
		return err
	}
	if e.isFolder() {
		if err := w.below(fd); err != nil {
			return err
		}
	}
	return w.change(e)
}

func (w groupWalk) below(fd int) error {
	// An O_PATH descriptor cannot be read; "." is this very folder whatever it is called by now.
	readable, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	folder := os.NewFile(uintptr(readable), "folder")
	defer folder.Close() //nolint:errcheck // opened for reading
	for {
		names, err := folder.Readdirnames(1000)
		for _, name := range names {
			if err := w.named(fd, name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// named does one entry of a folder; one that has gone meanwhile needs nothing.
func (w groupWalk) named(folder int, name string) error {
	fd, err := openEntry(folder, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // O_PATH
	return w.entry(fd)
}

// change gives the entry the group and then the mode: chown(2) takes setuid and setgid away, and kubelet puts them back.
func (w groupWalk) change(e entry) error {
	if e.has(w.gid) {
		return nil
	}
	if int(e.st.Gid) != w.gid {
		if err := unix.Fchownat(e.fd, "", -1, w.gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if e.isLink() {
		return nil
	}
	// fchmod(2) does not take an O_PATH descriptor; its link in /proc leads to this very file and nowhere else.
	return unix.Chmod(w.proc+"/self/fd/"+strconv.Itoa(e.fd), e.mode()|e.bits())
}

// entry is an open file of any kind.
type entry struct {
	fd int
	st unix.Statx_t
}

// openEntry opens neither a device nor a pipe, nor the target of a link: O_PATH only gets hold of what is there.
func openEntry(folder int, name string) (int, error) {
	return unix.Openat(folder, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func entryAt(fd int) (entry, error) {
	e := entry{fd: fd}
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_MODE|unix.STATX_GID|unix.STATX_MNT_ID, &e.st)
	return e, err
}

func (e entry) isFolder() bool { return e.st.Mode&unix.S_IFMT == unix.S_IFDIR }
func (e entry) isLink() bool   { return e.st.Mode&unix.S_IFMT == unix.S_IFLNK }
func (e entry) mode() uint32   { return uint32(e.st.Mode) &^ unix.S_IFMT }

func (e entry) bits() uint32 {
	switch {
	case e.isFolder():
		return folderBits
	case e.isLink():
		return 0
	}
	return fileBits
}

func (e entry) has(gid int) bool { return int(e.st.Gid) == gid && e.mode()&e.bits() == e.bits() }
