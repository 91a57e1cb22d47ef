package lvm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadAttr(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "uuid")
	if _, err := readAttr(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an attribute that is not there: %v", err)
	}
	if err := os.WriteFile(path, []byte("LVM-a b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := readAttr(path); text != "LVM-a b" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := readAttr(folder); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder: %v", err)
	}
	for _, c := range []struct {
		errno unix.Errno
		gone  bool
	}{{unix.ENOENT, true}, {unix.EINVAL, true}, {unix.ENODEV, true}, {unix.EIO, false}, {unix.EACCES, false}} {
		err := goneIfGoing(&fs.PathError{Op: "read", Path: path, Err: c.errno})
		if errors.Is(err, fs.ErrNotExist) != c.gone || !errors.Is(err, c.errno) {
			t.Errorf("%v becomes %v", c.errno, err)
		}
	}
	if err := goneIfGoing(nil); err != nil {
		t.Error(err)
	}
}
