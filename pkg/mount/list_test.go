package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// write makes files below a folder, by their paths in it.
func write(t testing.TB, folder string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		p := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// fakeHost is a Host over a /proc and a /sys made up of files.
func fakeHost(t testing.TB, mountinfo string) (h *Host, proc, sys string) {
	t.Helper()
	proc, sys = t.TempDir(), t.TempDir()
	write(t, proc, map[string]string{"self/mountinfo": mountinfo})
	return New(nil, nil, WithRoots(proc, sys)), proc, sys
}

func TestList(t *testing.T) {
	recorded, err := os.ReadFile("testdata/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	h, _, sys := fakeHost(t, string(recorded))
	write(t, sys, map[string]string{"class/block/dm-7/dev": "253:7\n", "class/block/dm-9/dev": "253:9\n"})
	list, err := h.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := map[string][]volume.Mount{}
	for _, m := range list {
		at[m.Target] = append(at[m.Target], m)
	}
	one := func(target string, want volume.Mount) {
		t.Helper()
		want.Target, want.Place = target, "1 "+target // each lies on the root, which is shared
		if got := at[target]; len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%s: %+v, want %+v", target, got, want)
		}
	}
	one("/var/lib/kubelet/plugins/kubernetes.io/csi/local-lvm/aa/globalmount",
		volume.Mount{Major: 253, Minor: 3, Root: "/", FS: "ext4", Options: []string{"rw", "noatime", "errors=continue"}})
	one("/var/lib/kubelet/pods/p1/volumes/kubernetes.io~csi/pv1/mount",
		volume.Mount{Major: 253, Minor: 3, Root: "/", FS: "ext4", ReadOnly: true, Options: []string{"ro", "noatime", "errors=continue"}})
	one("/mnt/with space\ttab\nline\\back#hash",
		volume.Mount{Major: 253, Minor: 4, Root: "/sub dir", FS: "xfs", Options: []string{"rw", "relatime", "attr2", "inode64"}})
	one("/mnt/btrfs",
		volume.Mount{Major: 253, Minor: 7, Root: "/", FS: "btrfs", Options: []string{"rw", "relatime", "space_cache=v2", "subvolid=5", "subvol=/"}})
	one("/mnt/block",
		volume.Mount{Major: 253, Minor: 9, Block: true, Root: "/dm-9", FS: "devtmpfs", ReadOnly: true, Options: []string{"ro", "nosuid", "relatime", "size=1003284k", "mode=755"}})
	one("/mnt/stale",
		volume.Mount{Major: 253, Minor: 9, Block: true, Root: "/dm-9//deleted", FS: "devtmpfs", Options: []string{"rw", "nosuid", "relatime"}})
	one("/mnt/folder of a tmpfs", volume.Mount{Minor: 60, Root: "/dm-9", FS: "tmpfs", Options: []string{"rw"}})
	one("/mnt/fuse", volume.Mount{Minor: 70, Root: "/", FS: "fuse.sshfs", Options: []string{"rw", "user_id=0"}})

	// A mount that slid below another one is listed there: by parents the order is 4, 5, 6.
	slid := at["/mnt/slid"]
	if len(slid) != 3 || slid[0].Minor != 4 || slid[1].Minor != 5 || slid[2].Minor != 6 {
		t.Errorf("the stack is %+v", slid)
	}
	if !slid[0].ReadOnly || slid[1].ReadOnly {
		t.Errorf("a read-only file system makes a read-only mount: %+v", slid)
	}
}

// case B1: kubelet's folder lies in another place and is bound to where kubelet looks for it
func TestPlace(t *testing.T) {
	h, _, _ := fakeHost(t, `1 0 8:1 / / rw - ext4 x rw
32 1 0:29 / /data rw shared:12 - tmpfs tmpfs rw
33 1 0:29 /kubelet /var/lib/kubelet rw shared:12 - tmpfs tmpfs rw
34 33 253:8 / /var/lib/kubelet/stage rw shared:13 - ext4 /dev/dm-8 rw
35 32 253:8 / /data/kubelet/stage rw shared:13 - ext4 /dev/dm-8 rw
36 33 253:8 / /var/lib/kubelet/pod rw shared:13 - ext4 /dev/dm-8 rw
37 32 253:8 / /data/kubelet/pod rw shared:13 - ext4 /dev/dm-8 rw
40 1 0:29 /kubelet /slave rw master:12 - tmpfs tmpfs rw
41 40 253:8 / /slave/pod rw master:13 - ext4 /dev/dm-8 rw
50 1 0:29 /kubelet /private rw - tmpfs tmpfs rw
51 50 253:8 / /private/pod rw - ext4 /dev/dm-8 rw
52 1 253:8 / /alien rw shared:13 - ext4 /dev/dm-8 rw
53 34 253:9 / /var/lib/kubelet/stage rw shared:14 - xfs /dev/dm-9 rw
54 36 253:9 / /var/lib/kubelet/pod rw shared:14 - xfs /dev/dm-9 rw
60 77 253:8 / /lost rw - ext4 /dev/dm-8 rw
`)
	list, err := h.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, m := range list {
		if m.Place != "" {
			got[m.Place] = append(got[m.Place], m.Target)
		}
	}
	want := map[string][]string{
		"12 /kubelet/stage": {"/var/lib/kubelet/stage", "/data/kubelet/stage"},
		"12 /kubelet/pod":   {"/var/lib/kubelet/pod", "/data/kubelet/pod", "/slave/pod"},
		"13 /":              {"/var/lib/kubelet/stage", "/var/lib/kubelet/pod"}, // on top of peers
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("places %v, want %v", got, want)
	}
}

// "Don't know" is never "no": a table that cannot be read is an error, not an empty table.
func TestListUnreadable(t *testing.T) {
	h, proc, _ := fakeHost(t, "22 1 0:2 / / rw - rootfs rootfs rw\ntorn line\n")
	if list, err := h.List(t.Context()); err == nil {
		t.Errorf("a torn table gave %+v", list)
	}
	if err := os.Remove(filepath.Join(proc, "self/mountinfo")); err != nil {
		t.Fatal(err)
	}
	if list, err := h.List(t.Context()); err == nil {
		t.Errorf("no table gave %+v", list)
	}
}

func TestSortStacksLoop(t *testing.T) { // ids can be used again while the table is read
	rows := "1 2 8:1 / /a rw - ext4 x rw\n2 1 8:2 / /a rw - ext4 x rw\n3 3 8:3 / /a rw - ext4 x rw\n"
	if got, err := parseTable(strings.NewReader(rows)); err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

// 10,000 rows, one half of them one stack.
func TestListManyRows(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, "%d 1 253:%d / /var/lib/kubelet/pods/%d/mount rw,relatime shared:1 - ext4 /dev/dm-%d rw\n", i+10, i, i, i)
		fmt.Fprintf(&b, "%d %d 253:1 / /stack rw - btrfs /dev/dm-no rw\n", 20000+i, 20000+i-1)
	}
	h, _, _ := fakeHost(t, b.String())
	start := time.Now()
	list, err := h.List(t.Context())
	if err != nil || len(list) != 10000 {
		t.Fatalf("%d rows, %v", len(list), err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
}
