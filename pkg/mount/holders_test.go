package mount

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// process makes up /proc/PID. Its links lead to files of this machine; "" leaves one out.
func process(t *testing.T, proc string, pid int, links map[string]string, files map[string]string) {
	t.Helper()
	folder := filepath.Join(proc, strconv.Itoa(pid))
	all := map[string]string{"cwd": "/proc", "root": "/proc", "exe": "/proc/version", "ns/mnt": "mnt:[1]"}
	for name, to := range links {
		all[name] = to
	}
	write(t, folder, map[string]string{"comm": fmt.Sprintf("process-%d\n", pid), "cgroup": "0::/\n", "maps": ""})
	write(t, folder, files)
	for name, to := range all {
		if to == "" {
			continue
		}
		p := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, p); err != nil {
			t.Fatal(err)
		}
	}
}

// holderBench is a /proc in which the device is the one that t.TempDir lies on.
func holderBench(t *testing.T) (h *Host, d volume.Device, proc, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	n := split(st.Dev)
	h, proc, sys := fakeHost(t, "999999999 1 4095:4095 / / rw - rootfs rootfs rw\n") // neither number is that of a mount of this machine
	write(t, sys, map[string]string{"class/block/none": ""})
	if err := os.MkdirAll(filepath.Join(proc, "self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("mnt:[1]", filepath.Join(proc, "self/ns/mnt")); err != nil {
		t.Fatal(err)
	}
	return h, volume.Device{Major: n.major, Minor: n.minor, Path: "/dev/x"}, proc, file
}

func TestHoldersProcesses(t *testing.T) {
	h, d, proc, file := holderBench(t)
	folder := filepath.Dir(file)
	pod := "0::/kubepods.slice/kubepods-pod" + podLine + ".slice/cri-containerd-" + testID + ".scope\n"
	maps := fmt.Sprintf("00400000-00401000 r-xp 00000000 %02x:%02x 12 /data/a file\n", d.Major, d.Minor)
	process(t, proc, 10, nil, nil)                                                                      // holds nothing
	process(t, proc, 11, map[string]string{"fd/3": file}, map[string]string{"cgroup": pod})             // an open file, in a pod
	process(t, proc, 12, map[string]string{"cwd": folder, "fd/3": file}, nil)                           // named once
	process(t, proc, 13, map[string]string{"root": folder}, nil)                                        //
	process(t, proc, 14, map[string]string{"exe": file}, nil)                                           //
	process(t, proc, 15, nil, map[string]string{"maps": "torn\n7f00-7f01 r--p 0 00:00 0\n" + maps})     //
	process(t, proc, 16, map[string]string{"exe": "", "cwd": folder}, nil)                              // a kernel thread, or one that has ended
	process(t, proc, 17, map[string]string{"fd/3": "/no/such/file", "cwd": "/no/such/folder"}, nil)     // vanishes while it is looked at
	process(t, proc, os.Getpid(), map[string]string{"fd/9": file}, map[string]string{"comm": "driver"}) // must not happen
	write(t, proc, map[string]string{"18/x": "", "notaprocess/comm": ""})                               // nothing of it can be read

	found, err := h.Holders(t.Context(), d, "")
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]volume.Holder{}
	for _, f := range found {
		if _, twice := got[f.PID]; twice {
			t.Errorf("pid %d is named twice", f.PID)
		}
		got[f.PID] = f
	}
	want := map[int]volume.Holder{
		11:          {PID: 11, Command: "process-11", Via: "open file " + file, Container: testID, Pod: testPod},
		12:          {PID: 12, Command: "process-12", Via: "working directory " + folder},
		13:          {PID: 13, Command: "process-13", Via: "root directory " + folder},
		14:          {PID: 14, Command: "process-14", Via: "running program " + file},
		15:          {PID: 15, Command: "process-15", Via: "mapped file /data/a file"},
		os.Getpid(): {PID: os.Getpid(), Command: "driver, this driver itself", Via: "open file " + file},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestHoldersMountsAndDevices(t *testing.T) {
	h, _, proc, _ := holderBench(t)
	d := volume.Device{Major: 253, Minor: 3, Path: "/dev/dm-3"}
	const table = "999999999 0 4095:4095 / / rw - rootfs rootfs rw\n999999920 999999999 253:3 / /target rw - ext4 /dev/dm-3 rw\n"
	write(t, proc, map[string]string{"self/mountinfo": table +
		"999999921 999999999 253:3 / /elsewhere rw - ext4 /dev/dm-3 rw\n999999922 999999920 0:99 / /target/inside rw - tmpfs tmpfs rw\n999999923 999999999 253:4 / /other rw - ext4 /dev/dm-4 rw\n"})
	inNamespace := func(ns, mountinfo string) (map[string]string, map[string]string) {
		return map[string]string{"ns/mnt": ns}, map[string]string{"mountinfo": mountinfo}
	}
	for pid, p := range map[int][2]string{
		30: {"mnt:[1]", table},                                                    // our own namespace
		31: {"mnt:[2]", table},                                                    // another
		32: {"mnt:[2]", table},                                                    // the same again: not named
		33: {"mnt:[3]", "999999999 0 4095:4095 / / rw - rootfs rootfs rw\n"},      // without it
		34: {"mnt:[4]", "999999998 0 253:3 / /a rw - ext4 /dev/x rw\ntorn row\n"}, // cannot be read
	} {
		links, files := inNamespace(p[0], p[1])
		process(t, proc, pid, links, files)
	}
	write(t, h.sys, map[string]string{
		"dev/block/253:3/holders/dm-7":   "",
		"class/block/dm-7/dm/name":       "guest-root\n",
		"dev/block/253:3/holders/md0":    "",
		"class/block/loop3/loop/another": "",
	})
	for target, want := range map[string][]volume.Holder{
		"/target": {{Command: "mount at /target/inside"}},
		"": {
			{Command: "mount at /target"},
			{Command: "mount at /elsewhere"},
			{PID: 31, Command: "process-31", Via: "mount in another namespace, at /target"},
			{Command: "device dm-7 (guest-root)", Via: "lies on the device"},
			{Command: "device md0", Via: "lies on the device"},
		},
	} {
		found, err := h.Holders(t.Context(), d, target)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(found, want) {
			t.Errorf("%q: got %+v\nwant %+v", target, found, want)
		}
	}
}

// Who uses the mount at the target is named, and nobody else is, wherever else the device is mounted and used.
func TestHoldersAtTheTarget(t *testing.T) {
	h, d, proc, file := holderBench(t)
	mount := func(path string) int {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st); err != nil || st.Mask&unix.STATX_MNT_ID == 0 {
			t.Fatalf("the mount of %s: %v", path, err)
		}
		return int(st.Mnt_id)
	}
	const atTarget = "/proc/version" // a file of another mount than the device's
	row := func(id int, at string) string {
		return fmt.Sprintf("%d 1 %d:%d / %s rw - ext4 x rw\n", id, d.Major, d.Minor, at)
	}
	rootRow := "999999999 1 4095:4095 / / rw - rootfs rootfs rw\n"
	write(t, proc, map[string]string{"self/mountinfo": rootRow + row(mount(file), "/staging") + row(mount(atTarget), "/target")})
	maps := func(addresses string) map[string]string {
		return map[string]string{"maps": fmt.Sprintf("%s r-xp 00000000 %02x:%02x 12 /data/a\n", addresses, d.Major, d.Minor)}
	}
	links := func(more map[string]string) map[string]string {
		all := map[string]string{"cwd": "", "root": "", "exe": "/no/such/program"}
		for name, to := range more {
			all[name] = to
		}
		return all
	}
	process(t, proc, 20, links(map[string]string{"fd/3": file}), nil)
	process(t, proc, 21, links(map[string]string{"fd/3": atTarget}), nil)
	process(t, proc, 22, links(map[string]string{"cwd": filepath.Dir(file), "fd/3": atTarget}), nil)
	process(t, proc, 23, links(map[string]string{"fd/3": file, "map_files/40a000-0": atTarget}), maps("0040a000-00000000"))
	process(t, proc, 24, links(map[string]string{"map_files/40a000-40b000": file}), maps("0040a000-0040b000"))
	for _, tc := range []struct {
		target string
		want   []int
	}{
		{"/target", []int{21, 22, 23}},
		{"/staging", []int{20, 22, 23, 24}},
		{"", []int{20, 21, 22, 23, 24}},
		{"/nowhere", []int{20, 21, 22, 23, 24}},
	} {
		found, err := h.Holders(t.Context(), d, tc.target)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, f := range found {
			if f.PID != 0 {
				got = append(got, f.PID)
			}
		}
		if slices.Sort(got); !slices.Equal(got, tc.want) {
			t.Errorf("%q: processes %v, want %v (%+v)", tc.target, got, tc.want, found)
		}
	}

	// With nobody at the target all others are named: who can be in the way is not known better.
	for _, pid := range []int{21, 22, 23} {
		if err := os.RemoveAll(filepath.Join(proc, strconv.Itoa(pid))); err != nil {
			t.Fatal(err)
		}
	}
	found, err := h.Holders(t.Context(), d, "/target")
	if err != nil || len(found) != 3 || found[0].Command != "mount at /staging" || found[1].PID != 20 || found[2].PID != 24 {
		t.Errorf("%+v, %v", found, err)
	}
}

// A propagated copy of the mount at the target, in another namespace, keeps it busy as well; a copy of the staging mount does not.
func TestHoldersOfACopy(t *testing.T) {
	h, d, proc, file := holderBench(t)
	const copied = "/proc/version"
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, copied, 0, unix.STATX_MNT_ID, &st); err != nil {
		t.Fatal(err)
	}
	row := func(id int, at, optional string) string {
		return fmt.Sprintf("%d 1 %d:%d / %s rw %s - ext4 x rw\n", id, d.Major, d.Minor, at, optional)
	}
	rootRow := "999999999 1 4095:4095 / / rw - rootfs rootfs rw\n"
	for at, want := range map[string]int{"/host/pods/1/mount": 41, "/host/globalmount": 40} {
		write(t, proc, map[string]string{"self/mountinfo": rootRow + row(999999990, "/globalmount", "shared:7") + row(999999991, "/pods/1/mount", "shared:7")})
		for pid, to := range map[int]string{40: file, 41: copied} {
			if err := os.RemoveAll(filepath.Join(proc, strconv.Itoa(pid))); err != nil {
				t.Fatal(err)
			}
			process(t, proc, pid, map[string]string{"cwd": "", "root": "", "exe": "/no/such/program", "ns/mnt": "mnt:[2]", "fd/3": to},
				map[string]string{"mountinfo": rootRow + row(int(st.Mnt_id), at, "master:7")})
		}
		found, err := h.Holders(t.Context(), d, "/pods/1/mount")
		if err != nil || len(found) == 0 {
			t.Fatalf("%+v, %v", found, err)
		}
		if only := len(found) == 1 && found[0].PID == 41; only != (want == 41) {
			t.Errorf("a copy at %s: %+v", at, found)
		}
	}
}

func TestHoldersLoopAndSwap(t *testing.T) {
	h, d, proc, file := holderBench(t)
	write(t, h.sys, map[string]string{
		"class/block/loop9998/loop/backing_file": file + "\n",
		"class/block/loop9999/loop/backing_file": "/proc/version\n",
	})
	write(t, proc, map[string]string{"swaps": "Filename Type Size Used Priority\n" + file + " file 1 0 -2\n/proc/version file 1 0 -2\n"})
	found, err := h.Holders(t.Context(), d, "")
	want := []volume.Holder{
		{Command: "loop device /dev/loop9998", Via: "backed by " + file},
		{Command: "swap", Via: "swap on " + file},
	}
	if err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("got %+v, %v\nwant %+v", found, err, want)
	}
}

func TestHoldersBounds(t *testing.T) {
	h, d, proc, file := holderBench(t)
	for pid := range 3 * maxHolders {
		process(t, proc, 100+pid, map[string]string{"fd/3": file}, nil)
	}
	found, err := h.Holders(t.Context(), d, "")
	if err != nil || len(found) != maxHolders {
		t.Errorf("%d holders, %v, want %d", len(found), err, maxHolders)
	}

	// A process whose maps cannot be read for now, as that of one that hangs in the kernel.
	process(t, proc, 50, map[string]string{"fd/3": file}, nil)
	process(t, proc, 51, nil, nil)
	maps := filepath.Join(proc, "51/maps")
	if err := os.Remove(maps); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(maps, 0o600); err != nil {
		t.Fatal(err)
	}
	for pid := range 3 * maxHolders {
		if err := os.RemoveAll(filepath.Join(proc, strconv.Itoa(100+pid))); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	found, err = h.Holders(ctx, d, "")
	if err != nil || len(found) != 1 || found[0].PID != 50 {
		t.Errorf("%+v, %v", found, err)
	}
	if took := time.Since(start); took > searchTime {
		t.Errorf("took %v", took)
	}
	// let the reader go
	if f, err := os.OpenFile(maps, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
		_ = f.Close()
	}
}

// A full node: the one holder is found among 2,000 processes, within the time that an answer may wait for it.
func TestHoldersAmongMany(t *testing.T) {
	h, d, proc, file := holderBench(t)
	for pid := range 2000 {
		process(t, proc, 1000+pid, nil, nil)
	}
	process(t, proc, 3000, map[string]string{"fd/3": file}, nil)
	start := time.Now()
	found, err := h.Holders(t.Context(), d, "")
	if took := time.Since(start); err != nil || len(found) != 1 || found[0].PID != 3000 || took > searchTime {
		t.Errorf("%+v, %v, after %v", found, err, took)
	}
}

func TestHoldersNoTable(t *testing.T) {
	h, d, proc, _ := holderBench(t)
	if err := os.Remove(filepath.Join(proc, "self/mountinfo")); err != nil {
		t.Fatal(err)
	}
	if found, err := h.Holders(t.Context(), d, ""); err == nil {
		t.Errorf("without a mount table: %+v", found)
	}
}
