package mount

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestContent(t *testing.T) {
	put := func(at int, s string) []byte {
		head := make([]byte, headBytes)
		copy(head[at:], s)
		return head
	}
	xfs := put(0, "XFSB")
	xfs[xfsInProgress] = 1
	for _, tc := range []struct {
		name string
		head []byte
		tags string
		want volume.Content
	}{
		{"blank", put(0, ""), "", volume.Content{Blank: true}},
		{"old data behind the first 4 KiB", put(4096, "x"), "", volume.Content{Blank: true}},
		{"old data in them", put(4095, "x"), "", volume.Content{}},
		{"xfs", put(0, "XFSB"), "TYPE=xfs\n", volume.Content{FS: "xfs"}},
		{"xfs in progress", xfs, "TYPE=xfs\n", volume.Content{FS: "xfs", Unfinished: true}},
		{"xfs in progress, which blkid passes over", xfs, "", volume.Content{FS: "xfs", Unfinished: true}},
		{"btrfs in progress", put(btrfsMagicAt, btrfsTemporary), "", volume.Content{FS: "btrfs", Unfinished: true}},
		{"btrfs", put(btrfsMagicAt, "_BHRfS_M"), "UUID=a=b\nTYPE=btrfs\n", volume.Content{FS: "btrfs"}},
		{"a partition table", put(510, "\x55\xaa"), "PTUUID=1\nPTTYPE=dos\n", volume.Content{FS: "dos"}},
		{"both", put(0, ""), "TYPE=vfat\nPTTYPE=dos\n", volume.Content{FS: "vfat"}},
		{"a raid member's at the end, behind ext4", put(ext4MagicAt, "\x53\xef"), "TYPE=linux_raid_member\n", volume.Content{FS: "linux_raid_member", Head: "ext4"}},
		{"behind xfs", put(0, "XFSB"), "TYPE=linux_raid_member\n", volume.Content{FS: "linux_raid_member", Head: "xfs"}},
		{"behind btrfs", put(btrfsMagicAt, btrfsFinished), "TYPE=" + contradictory + "\n", volume.Content{FS: contradictory, Head: "btrfs"}},
		{"behind nothing", put(0, ""), "TYPE=linux_raid_member\n", volume.Content{FS: "linux_raid_member"}},
		{"found, but not named", put(0, ""), "USAGE=other\n", volume.Content{FS: "unknown"}},
	} {
		if got := content(tc.head, parseTags(tc.tags), tc.tags != ""); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

type fakeRunner struct {
	res run.Result
	err error
}

func (f fakeRunner) Read(context.Context, string, ...string) (run.Result, error) { return f.res, f.err }

func (f fakeRunner) Write(context.Context, string, ...string) (run.Result, error) {
	return run.Result{}, errors.New("a question must not change anything")
}

// "Don't know" is never "no": only code 2 without a word means that nothing is there.
func TestBlkid(t *testing.T) {
	failed := func(code int, stderr string) error {
		return &run.Error{Argv: []string{"blkid"}, ExitCode: code, Stderr: stderr, Err: errors.New("exit")}
	}
	for _, tc := range []struct {
		name        string
		err         error
		found, fail bool
	}{
		{"found", nil, true, false},
		{"nothing", failed(2, ""), false, false},
		{"cannot be opened", failed(2, "blkid: error: /dev/x: No such file or directory"), false, true},
		{"several", failed(8, ""), true, false},
		{"usage", failed(4, ""), false, true},
		{"other", failed(1, ""), false, true},
		{"killed", failed(-1, ""), false, true},
		{"not run", context.DeadlineExceeded, false, true},
	} {
		_, found, err := New(fakeRunner{err: tc.err}, nil).blkid(t.Context(), volume.Device{Path: "/dev/x"})
		if found != tc.found || (err != nil) != tc.fail {
			t.Errorf("%s: %v, %v", tc.name, found, err)
		}
	}
}

// A path is only a name: nothing is probed, mounted or formatted behind it that is not the device meant.
func TestWrongNode(t *testing.T) {
	h := New(fakeRunner{err: errors.New("a program was run")}, nil)
	ctx := t.Context()
	for _, d := range []volume.Device{
		{Major: 253, Minor: 1, Path: "/dev/null"},
		{Major: 253, Minor: 1, Path: t.TempDir()},
		{Major: 253, Minor: 1, Path: "/no/such/node"},
	} {
		_, err := h.Probe(ctx, d)
		for what, err := range map[string]error{
			"Probe":       err,
			"Format":      h.Format(ctx, d, volume.Format{FS: volume.Ext4}),
			"Mount":       h.Mount(ctx, d, t.TempDir(), volume.MountOptions{FS: volume.Ext4}),
			"SetReadOnly": h.SetReadOnly(ctx, d, true),
			"Grow":        h.Grow(ctx, d, volume.Ext4, t.TempDir()),
		} {
			if err == nil || strings.Contains(err.Error(), "was run") || !strings.Contains(err.Error(), "253:1") {
				t.Errorf("%s of %v: %v", what, d, err)
			}
		}
	}
}

func TestAboutDevice(t *testing.T) {
	for record, want := range map[string]bool{
		"6,1,2,-;XFS (dm-3): Superblock has unknown incompatible features\n SUBSYSTEM=x\n": true,
		"3,1,2,-;EXT4-fs (dm-3): VFS: Can't find ext4 filesystem\n":                        true,
		"3,1,2,-;BTRFS error (device dm-3): superblock checksum mismatch\n":                true,
		"3,1,2,-;BTRFS error (device dm-3 state E): x\n":                                   true,
		"3,1,2,-;BTRFS error (device <unknown>): unrecognized mount option 'bogus'\n":      true,
		"3,1,2,-;XFS (dm-31): x\n": false,
		"3,1,2,-;XFS (dm-33) dm-3": false,
		"torn":                     false,
		"":                         false,
	} {
		if text, ok := aboutDevice(record, "dm-3"); ok != want || ok && (text == "" || strings.Contains(text, ";") || strings.Contains(text, "\n")) {
			t.Errorf("%q: %q, %v", record, text, ok)
		}
	}
}
