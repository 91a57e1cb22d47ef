//go:build vm

package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// tmpfs mounts a small file system at a new folder.
func tmpfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A driver must start on a full state folder, to free space, and tell that it is not fit for more.
func TestFullStateFolder(t *testing.T) {
	dir := tmpfs(t)
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	s, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.unlock()
	if err := s.check(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("full: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	if err := s.check(); err != nil {
		t.Errorf("free again: %v", err)
	}
}

func TestReadOnlyStateFolder(t *testing.T) {
	dir := tmpfs(t)
	first, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	first.unlock()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	s, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.unlock()
	if err := s.check(); !errors.Is(err, unix.EROFS) {
		t.Errorf("read-only: %v", err)
	}
}
