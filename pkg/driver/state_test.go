package driver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// case B20
func TestLockState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	s, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, err := lockState(dir); err == nil || !strings.Contains(err.Error(), "another driver is running") {
		t.Errorf("a second driver is let in: %v", err)
	}
	if err := s.check(); err != nil {
		t.Error(err)
	}
	s.unlock()
	next, err := lockState(dir) // the file that is left means nothing
	if err != nil {
		t.Fatal(err)
	}
	next.unlock()
}

func TestStateFolderReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.unlock()
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := s.check(); !errors.Is(err, volume.ErrPrecondition) {
		t.Errorf("gone: %v", err)
	}
	next, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer next.unlock()
	if err := s.check(); !errors.Is(err, volume.ErrPrecondition) {
		t.Errorf("replaced: %v", err)
	}
}

func TestLockStateBadPlace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "linked")
	if err := errors.Join(os.Mkdir(link, 0o700), os.Symlink(file, filepath.Join(link, "lock"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below"), link} {
		if _, err := lockState(path); err == nil || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
