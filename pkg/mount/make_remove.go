package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Make makes the target of a mount: a folder, mode 0750, or an empty file, mode 0640, for a block volume; its parents
// too where they are missing. made is false where it was there and is fit. ErrPrecondition: something else is there, a link
// among them, and is left as it is.
func (h *Host) Make(ctx context.Context, path string, block bool) (made bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := h.makeParent(ctx, path); err != nil {
		return false, fmt.Errorf("make target: %w", err)
	}
	op, create := "mkdir", func() error { return os.Mkdir(path, 0o750) }
	if block {
		op, create = "create", func() error { return createEmpty(path) }
	}
	switch err := fit(path, block); {
	case err == nil:
		return false, nil
	case !errors.Is(err, os.ErrNotExist):
		return false, fmt.Errorf("make target: %w", err)
	}
	if err := h.effects.Do(ctx, op, path, create); err != nil {
		return false, fmt.Errorf("make target: %w", err)
	}
	return true, nil
}

func (h *Host) makeParent(ctx context.Context, path string) error {
	parent := filepath.Dir(path)
	if _, err := os.Stat(parent); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return h.effects.Do(ctx, "mkdir", parent, func() error { return os.MkdirAll(parent, 0o750) })
}

// createEmpty never opens what is there, nor follows a link (O_EXCL).
func createEmpty(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o640) //nolint:gosec // kubelet and the pod's group look at a target; what is bound over it has a mode of its own
	if err != nil {
		return err
	}
	return f.Close()
}

// fit checks that what is at path can be a target: an empty folder, or an empty regular file.
func fit(path string, block bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	want := "an empty folder"
	if block {
		want = "an empty regular file"
	}
	switch {
	case block && info.Mode().IsRegular() && info.Size() == 0:
		return nil
	case !block && info.IsDir():
		empty, err := isEmpty(path)
		if err != nil || empty {
			return err
		}
	}
	return fmt.Errorf("%w: %s is %s, and not %s; look what it is, and take it away", volume.ErrPrecondition, path, describe(info), want)
}

func isEmpty(folder string) (bool, error) {
	f, err := openFolder(folder)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	return holdsNothing(f)
}

func openFolder(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

func holdsNothing(f *os.File) (bool, error) {
	names, err := f.Readdirnames(1)
	if len(names) == 0 && errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// Remove removes an empty folder or an empty regular file: this one name and nothing else. nil where nothing is there.
// ErrPrecondition: it is something else, and is left as it is. ErrBusy: the kernel says EBUSY, as for a mount point.
func (h *Host) Remove(ctx context.Context, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := h.remove(ctx, path)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		err = fmt.Errorf("%w: the folder is not empty, and nothing of the volume is in it any more; look what it is, and take it away: %w", volume.ErrPrecondition, err)
	}
	return asBusy(fmt.Errorf("remove target %s: %w", path, err))
}

func (h *Host) remove(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return h.effects.Do(ctx, "remove", path, func() error { return retry(func() error { return unix.Rmdir(path) }) })
	case info.Mode().IsRegular() && info.Size() == 0:
		return h.effects.Do(ctx, "remove", path, func() error { return retry(func() error { return unix.Unlink(path) }) })
	}
	return fmt.Errorf("%w: it is %s, and neither an empty folder nor an empty file; look what it is, and take it away", volume.ErrPrecondition, describe(info))
}

// Lacks reports whether the folder has surely nothing of that name in it: it was read well, and holds something else. All
// is asked of the one folder that was opened, so that nothing can be mounted or unmounted in between. An empty folder
// is an error: it is what an unmounted disk leaves.
func (h *Host) Lacks(folder, name string) (bool, error) {
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return false, volume.Invalid("name in "+folder, name, "not a name of a file")
	}
	f, err := openFolder(folder)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	switch empty, err := holdsNothing(f); {
	case err != nil:
		return false, err
	case empty:
		return false, fmt.Errorf("%s is empty; is what belongs there mounted?", folder)
	}
	var st unix.Stat_t
	err = retry(func() error { return unix.Fstatat(int(f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "lstat", Path: filepath.Join(folder, name), Err: err}
	}
	return false, nil
}

func describe(info os.FileInfo) string {
	switch mode := info.Mode(); {
	case mode.IsDir():
		return "a folder"
	case mode.IsRegular():
		return fmt.Sprintf("a regular file of %d bytes", info.Size())
	case mode&os.ModeSymlink != 0:
		return "a symbolic link"
	case mode&os.ModeCharDevice != 0:
		return "a character device node"
	case mode&os.ModeDevice != 0:
		return "a block device node"
	case mode&os.ModeNamedPipe != 0:
		return "a pipe"
	case mode&os.ModeSocket != 0:
		return "a socket"
	}
	return "something odd"
}
