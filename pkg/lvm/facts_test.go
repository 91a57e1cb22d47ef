package lvm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// watched is a watcher of a made-up sysfs and /dev. Devices are files.
func watched(t *testing.T) (*watcher, dmSys) {
	t.Helper()
	s := dmSys{t, t.TempDir()}
	dev := t.TempDir()
	w := &watcher{dm: newDeviceMapper(s.sys, dev, nil), open: ask.Open{Bound: 10 * time.Second}, settle: 20 * time.Millisecond}
	now := time.Unix(1e9, 0)
	w.errors.now = func() time.Time { return now }
	w.dm.status = func(string) (dmStatus, error) {
		return dmStatus{uuid: dmPrefix + groupData + lvRaid1, minor: 1, open: 1}, nil
	}
	w.dm.told = func(name string) ([]target, error) {
		return map[string][]target{
			"the-dm-1": {{"raid", "raid1 2 AA 8/8 idle 0 0 -"}}, "the-dm-2": {{"linear", ""}}, "the-dm-3": {{"linear", ""}},
		}[name], nil
	}
	s.device("dm-1", dmPrefix+groupData+lvRaid1, false, "dm-2", "dm-3")
	s.device("dm-2", dmPrefix+groupData+lvInternal, false, "sda1")
	s.device("dm-3", dmPrefix+groupData+lvInternal+"-x", false, "dm-4")
	s.device("dm-4", "CRYPT-1", false, "sdb")
	for _, name := range []string{"dm-1", "sda1", "dm-4"} {
		s.node(dev, name)
	}
	return w, s
}

// node makes a device of the name.
func (s dmSys) node(dev, name string) {
	s.t.Helper()
	folder := filepath.Join(s.sys, "devices", name)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(folder, "device"), 0o700), os.MkdirAll(filepath.Join(s.sys, "class/block"), 0o700),
		os.Symlink(folder, filepath.Join(s.sys, "class/block", name)), os.WriteFile(filepath.Join(dev, name), make([]byte, 2*block), 0o600),
	} {
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

func TestDeviceFacts(t *testing.T) {
	healthy := volume.DeviceFacts{
		Active: true, Minor: 1, Open: 1, UUID: dmPrefix + groupData + lvRaid1,
		Raids: []volume.RaidStatus{{Device: "the-dm-1", Type: "raid1", Legs: "AA", Synced: 8, Total: 8, Action: "idle"}},
	}
	for name, c := range map[string]struct {
		harm func(w *watcher, s dmSys)
		want func(f *volume.DeviceFacts)
	}{
		"well":       {func(*watcher, dmSys) {}, func(*volume.DeviceFacts) {}},
		"disk short": {func(w *watcher, _ dmSys) { _ = os.Truncate(filepath.Join(w.dm.dev, "sda1"), 10) }, func(f *volume.DeviceFacts) { f.Failed = []volume.Fault{{Device: "sda1", Disk: true, Text: "EOF"}} }},
		"disk gone": {func(w *watcher, s dmSys) {
			_ = os.Remove(filepath.Join(s.sys, "class/block/dm-4"))
			_ = os.Remove(filepath.Join(w.dm.dev, "dm-4")) // a node that is left would answer ENXIO
		}, func(f *volume.DeviceFacts) {
			f.Failed = []volume.Fault{{Device: "dm-4", Disk: true, Text: "the kernel has it no more"}}
		}},
		"no node":   {func(w *watcher, _ dmSys) { _ = os.Remove(filepath.Join(w.dm.dev, "sda1")) }, func(*volume.DeviceFacts) {}},
		"suspended": {func(_ *watcher, s dmSys) { s.put("dm-2", "dm/suspended", "1") }, func(f *volume.DeviceFacts) { f.Suspended = []string{"dm-2"} }},
		"suspended itself": {func(w *watcher, s dmSys) {
			s.put("dm-1", "dm/suspended", "1")
			running := w.dm.status
			w.dm.status = func(name string) (dmStatus, error) {
				st, err := running(name)
				st.suspended = true
				return st, err
			}
		}, func(f *volume.DeviceFacts) { f.Suspended = []string{"dm-1"} }},
		"suspended below": {func(_ *watcher, s dmSys) { s.device("dm-4", "CRYPT-1", false, "dm-5"); s.device("dm-5", "x", true) }, func(f *volume.DeviceFacts) { f.Suspended = []string{"dm-4"} }},
		"suspended shortly": {func(w *watcher, s dmSys) {
			w.settle = 10 * time.Second
			s.put("dm-2", "dm/suspended", "1")
			time.AfterFunc(50*time.Millisecond, func() { s.put("dm-2", "dm/suspended", "0") })
		}, func(*volume.DeviceFacts) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := watched(t)
			c.harm(w, s)
			want := healthy
			c.want(&want)
			if got := (&sight{watcher: w}).device(t.Context(), "the-dm-1"); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// A device that hangs is told in time, costs one asker, and nothing above it is touched.
func TestHungDevice(t *testing.T) {
	w, _ := watched(t)
	w.open.Bound = time.Second
	if err := os.Truncate(filepath.Join(w.dm.dev, "dm-1"), 10); err != nil { // a read of it would be told
		t.Fatal(err)
	}
	healthy := w.dm.told
	release := make(chan struct{})
	var asked atomic.Int32
	w.dm.told = func(name string) ([]target, error) {
		if name == "the-dm-2" {
			asked.Add(1)
			<-release
		}
		return healthy(name)
	}
	for i := range 5 {
		start := time.Now()
		f := (&sight{watcher: w}).device(t.Context(), "the-dm-1")
		if len(f.Hung) != 1 || f.Hung[0].Device != "the-dm-2" || !f.Hangs() || len(f.Failed) != 0 {
			t.Errorf("got %+v", f)
		}
		if took := time.Since(start); i > 0 && took > 800*time.Millisecond {
			t.Errorf("the %d. question took %s", i+1, took)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	close(release)
	for end := time.Now().Add(10 * time.Second); (&sight{watcher: w}).device(t.Context(), "the-dm-1").Hangs(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it hangs no more, and that is not seen")
		}
	}
}

// A thick snapshot is found from its origin, and lies on its store.
func TestStackOfASnapshot(t *testing.T) {
	s := dmSys{t, t.TempDir()}
	own := dmPrefix + groupData
	s.device("dm-0", own+lvLinear, false, "dm-1")
	s.device("dm-1", own+lvLinear+"-real", false, "sda")
	s.device("dm-2", own+lvRaid1, false, "dm-1", "dm-3")
	s.device("dm-3", own+lvRaid1+"-cow", false, "sdb")
	layers, disks := (&sight{watcher: &watcher{dm: newDeviceMapper(s.sys, "/nonexistent", nil)}}).stack("dm-0")
	slices.Sort(layers)
	slices.Sort(disks)
	if strings.Join(layers, " ") != "dm-0 dm-1 dm-2 dm-3" || strings.Join(disks, " ") != "sda sdb" {
		t.Errorf("got %q on %q", layers, disks)
	}
}

// Errors of a disk are told while they are new: old ones may be harmless, and the kernel forgets none.
func TestDiskErrors(t *testing.T) {
	s := dmSys{t, t.TempDir()}
	s.node(t.TempDir(), "sda")
	now := time.Unix(1e9, 0)
	e := diskErrors{now: func() time.Time { return now }}
	set := func(text string) {
		if err := os.WriteFile(filepath.Join(s.sys, "devices/sda/device/ioerr_cnt"), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	step := func(what string, want bool) {
		t.Helper()
		if got := e.recent(s.sys, "sda"); (got != "") != want {
			t.Errorf("%s: %q", what, got)
		}
	}
	step("a disk that does not count", false)
	set("0x1f")
	step("at first", false)
	step("as before", false)
	set("0x20")
	step("one more", true)
	now = now.Add(9 * time.Minute)
	step("after a while", true)
	now = now.Add(2 * time.Minute)
	step("after a long while", false)
}
