package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Resolve gives the path as the mount table shows it: with all links of its parent folder resolved. Parts that do not exist
// stay as they are. ErrPrecondition: the last part is a link, or a part before it is one that leads nowhere.
//
// Of the last part only readlink(2) is asked, which does not touch a file system mounted there: the path of one that is
// shut down after I/O errors must still be found, to be unmounted.
func (h *Host) Resolve(path string) (string, error) {
	path = filepath.Clean(path)
	parent, err := resolveExisting(filepath.Dir(path))
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	resolved := filepath.Join(parent, filepath.Base(path))
	link, err := isLink(resolved)
	if err == nil && link {
		err = fmt.Errorf("%w: it is a symbolic link; give the path that it leads to", volume.ErrPrecondition)
	}
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	return resolved, nil
}

// resolveExisting resolves as much of the path as there is.
func resolveExisting(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return resolved, err
	}
	switch link, err := isLink(path); {
	case err != nil:
		return "", err
	case link:
		return "", fmt.Errorf("%w: %s is a symbolic link that leads nowhere", volume.ErrPrecondition, path)
	}
	parent, err := resolveExisting(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// isLink reports whether a symbolic link is at path; where nothing is, there is none.
func isLink(path string) (bool, error) {
	_, err := os.Readlink(path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false, nil
	}
	return false, err
}
