package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// stateFolder is the folder that holds the journal, locked: no two live drivers share one.
type stateFolder struct {
	path string
	lock *os.File
}

// lockState makes the folder if it is not there, and takes its lock, which the kernel gives back when the process
// ends however it ends. A second driver is refused before it has touched anything (case B20). The lock file stays: it
// means nothing by itself.
//
// It works on a full file system, and, if the lock file is there, on a read-only one: a teardown must go on there.
func lockState(path string) (*stateFolder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w; see --state-dir", err)
	}
	// Opened for reading: flock(2) asks for no more. Programs that the driver runs do not inherit it (O_CLOEXEC), and so
	// cannot keep the lock beyond its end.
	f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state folder: %w; see --state-dir", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another driver is running on the state folder %s (fuser %s tells which): stop it, or give another --state-dir", path, f.Name())
		}
		return nil, fmt.Errorf("lock the state folder %s: %w", path, err)
	}
	return &stateFolder{path: path, lock: f}, nil
}

// unlock lets another driver have the folder.
func (s *stateFolder) unlock() { _ = s.lock.Close() }

// scratch gives a file in the state folder that has no name (O_TMPFILE, open(2)): nothing of it outlives the process, however
// it ends.
func (s *stateFolder) scratch(ctx context.Context, effects effect.Seam) (f *os.File, err error) {
	err = effects.Do(ctx, "open", s.path, func() (err error) {
		f, err = os.OpenFile(s.path, unix.O_TMPFILE|os.O_RDWR, 0o600)
		return err
	})
	return f, err
}

// check tells whether a record could be written now. A folder that is not the locked one any more is a
// volume.ErrPrecondition: only a new start can mend that.
func (s *stateFolder) check() error {
	mine, err := s.lock.Stat()
	if err != nil {
		return fmt.Errorf("look at the lock of the state folder: %w", err)
	}
	there, err := os.Lstat(s.lock.Name())
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at the state folder: %w", err)
	case err != nil || !os.SameFile(mine, there):
		return fmt.Errorf("%w: the state folder %s was removed or replaced while the driver runs; start the driver again", volume.ErrPrecondition, s.path)
	}
	if err := unix.Access(s.path, unix.W_OK); err != nil {
		return fmt.Errorf("state folder %s: %w; no volume can be published", s.path, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.path, &st); err != nil {
		return fmt.Errorf("state folder %s: %w", s.path, err)
	}
	if st.Blocks != 0 && st.Bavail == 0 || st.Files != 0 && st.Ffree == 0 {
		return fmt.Errorf("state folder %s: %w; no volume can be published", s.path, unix.ENOSPC)
	}
	return nil
}
