// Package sysfs reads attributes of devices and file systems: small files that the kernel makes when they are read (sysfs(5)).
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mostBytes is what an attribute gives at most (linux Documentation/filesystems/sysfs.rst).
const mostBytes = 4096

// Read gives the text of an attribute, without the end of its line. fs.ErrNotExist: there is no such attribute, or its device is being
// removed.
//
// It does with three system calls what os.ReadFile needs six for: a look at 1,000 volumes reads thousands of attributes.
func Read(path string) (string, error) {
	fd, err := retried(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return "", goneIfGoing(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading
	var page [mostBytes]byte
	n, err := retried(func() (int, error) { return unix.Read(fd, page[:]) })
	if err != nil {
		return "", goneIfGoing(&fs.PathError{Op: "read", Path: path, Err: err})
	}
	return strings.TrimSuffix(string(page[:n]), "\n"), nil
}

// Number reads an attribute that is a number, written as in C. Errors: as Read's, and that of a text that is none.
func Number(path string) (int64, error) {
	text, err := Read(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

func retried(call func() (int, error)) (n int, err error) {
	for n, err = call(); err == unix.EINTR; n, err = call() { //nolint:errorlint // a system call gives it as it is
	}
	return n, err
}

// goneIfGoing makes fs.ErrNotExist of the answers to who has opened an attribute of a device that is being removed: EINVAL of
// device-mapper (dm_attr_show in linux/drivers/md/dm-sysfs.c), ENODEV of sysfs (kernfs_seq_start in linux/fs/kernfs/file.c).
func goneIfGoing(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
