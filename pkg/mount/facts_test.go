package mount

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestFilesystemFacts(t *testing.T) {
	h, _, sys := fakeHost(t, "")
	write(t, sys, map[string]string{
		"devices/dm-1/x":                       "",
		"dev/block/x":                          "",
		"fs/ext4/dm-1/errors_count":            "3\n",
		"fs/btrfs/uuid/devices/dm-1":           "",
		"fs/btrfs/uuid/devinfo/1/error_stats":  "write_errs 4\nread_errs 1\nflush_errs 0\ncorruption_errs 2\ngeneration_errs 1\n",
		"fs/btrfs/other/devices/dm-2":          "",
		"fs/btrfs/other/devinfo/1/error_stats": "write_errs 9\n",
	})
	if err := os.Symlink("../../devices/dm-1", filepath.Join(sys, "dev/block/253:1")); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for _, c := range []struct {
		m    volume.Mount
		want volume.FilesystemFacts
	}{
		{volume.Mount{FS: "ext4", Minor: 1}, volume.FilesystemFacts{Errors: 3}},
		{volume.Mount{FS: "ext4", Minor: 2}, volume.FilesystemFacts{}},
		{volume.Mount{FS: "btrfs", Minor: 1}, volume.FilesystemFacts{Errors: 8, Damages: 3}},
		{volume.Mount{FS: "btrfs", Minor: 2}, volume.FilesystemFacts{}},
		{volume.Mount{FS: "xfs", Minor: 1}, volume.FilesystemFacts{}},
		{volume.Mount{FS: "ext4", Minor: 2, Options: []string{"rw", "shutdown"}}, volume.FilesystemFacts{ShutDown: "mount option shutdown"}},
	} {
		c.m.Major, c.m.Target = 253, folder
		c.want.Mount = c.m
		got := h.FilesystemFacts(t.Context(), c.m)
		if got.Usage.Bytes == 0 || got.Usage.UsedBytes == 0 { // of the real file system of the folder
			t.Errorf("%+v: how full it is, is not told: %+v", c.m, got.Usage)
		}
		got.Usage = volume.Usage{}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("got %+v, want %+v", got, c.want)
		}
	}
	if h.DeviceGone(volume.Mount{Major: 253, Minor: 1}) || !h.DeviceGone(volume.Mount{Major: 253, Minor: 2}) {
		t.Error("which device is gone")
	}
}

// An ext4 that has stopped after an error, though it looks writable.
func TestStoppedExt4(t *testing.T) {
	super := make([]byte, ext4SuperAt+ext4SuperBytes)
	binary.LittleEndian.PutUint16(super[ext4SuperAt+0x38:], 0xef53)
	binary.LittleEndian.PutUint32(super[ext4SuperAt+0x2c:], 1000) // mounted
	for _, c := range []struct {
		when, who, option string
		want              bool
	}{
		{"0", "", "errors=remount-ro", false},
		{"999", "ext4_journal_check_start", "errors=remount-ro", false}, // before it was mounted
		{"1001", "trigger_test_error", "errors=continue", false},
		{"1001", "trigger_test_error", "errors=remount-ro", true},
		{"1001", "ext4_journal_check_start", "errors=continue", true},
	} {
		h, _, sys := fakeHost(t, "")
		h.dev = t.TempDir()
		write(t, sys, map[string]string{"devices/dm-1/x": "", "dev/block/x": "", "fs/ext4/dm-1/errors_count": "1\n", "fs/ext4/dm-1/last_error_time": c.when + "\n", "fs/ext4/dm-1/last_error_func": c.who + "\n"})
		write(t, h.dev, map[string]string{"dm-1": string(super)})
		if err := os.Symlink("../../devices/dm-1", filepath.Join(sys, "dev/block/253:1")); err != nil {
			t.Fatal(err)
		}
		m := volume.Mount{FS: "ext4", Major: 253, Minor: 1, Target: t.TempDir(), Options: []string{"rw", c.option}}
		if f := h.FilesystemFacts(t.Context(), m); f.ReadOnly != c.want {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// A file system that refuses writes is told apart from a mount that was made read-only.
func TestForcedReadOnly(t *testing.T) {
	const row = "30 1 253:%d / /m%d %s - ext4 /dev/dm-%d %s\n"
	var table string
	rows := []struct {
		mount, super string
		want         bool
	}{{"rw", "rw", false}, {"ro", "rw", false}, {"ro", "ro", false}, {"rw", "ro", true}, {"rw,noatime", "ro,errors=remount-ro", true}, {"rw", "rw,emergency_ro", true}}
	for i, r := range rows {
		table += fmt.Sprintf(row, i, i, r.mount, i, r.super)
	}
	h, _, _ := fakeHost(t, table)
	list, err := h.List(t.Context())
	if err != nil || len(list) != len(rows) {
		t.Fatalf("%v, %v", list, err)
	}
	for i, m := range list {
		if m.Forced != rows[i].want {
			t.Errorf("%+v: %t", rows[i], m.Forced)
		}
	}
}
