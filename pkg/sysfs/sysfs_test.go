package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRead(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "uuid")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an attribute that is not there: %v", err)
	}
	if err := os.WriteFile(path, []byte("LVM-a b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := Read(path); text != "LVM-a b" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Read(folder); err == nil || errors.Is(err, fs.ErrNotExist) {
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

func TestNumber(t *testing.T) {
	path := filepath.Join(t.TempDir(), "count")
	for text, want := range map[string]int64{"0\n": 0, "41943040\n": 41943040, "0x1f\n": 31, " 7 \n": 7, "-1\n": -1} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := Number(path); n != want || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "none\n", "1 2\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := Number(path); err == nil {
			t.Errorf("%q: %d", text, n)
		}
	}
	if _, err := Number(path + "-none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an attribute that is not there: %v", err)
	}
}
