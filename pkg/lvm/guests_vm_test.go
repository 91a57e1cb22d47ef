//go:build vm

package lvm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func (m *machine) linear(t testing.TB, l *LVM, vg, lv string, extents int64) volume.Ref {
	t.Helper()
	r := volume.Ref{VG: vg, LV: lv}
	_, err := l.Create(t.Context(), volume.Spec{Ref: r, Kind: volume.Persistent, Name: lv,
		Layout: volume.Layout{Type: volume.Linear}, RequiredBytes: extents * contract.LVMExtentBytes})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (m *machine) lvmOf(t testing.TB, vg string) *LVM {
	t.Helper()
	l, err := New(&m.runner, Config{Owner: "vm.local-lvm.csi.internal", VolumeGroups: []string{vg}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// case B35: a guest's group of the host's name, seen through a loop device as kubelet makes them for block volumes, and
// through an encrypted volume; with an lvm.conf that has LVM look everywhere, and one with a filter of its own.
func TestGuestGroups(t *testing.T) {
	m := newMachine(t)
	vg := m.NewGroup(t, 1)
	l := m.lvmOf(t, vg)
	inLoop, inMapper := m.linear(t, l, vg, "inloop", 10), m.linear(t, l, vg, "inmapper", 10)
	m.Scribble(t, inLoop, "group of the same name")
	m.Scribble(t, inMapper, "group of the same name")
	loop := sh(t, "losetup", "--find", "--show", mapped(inLoop))
	sh(t, "dmsetup", "create", "guest", "--table", fmt.Sprintf("0 %d linear %s 0", 10*contract.LVMExtentBytes/512, mapped(inMapper)))

	conf, err := os.ReadFile("/etc/lvm/lvm.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile("/etc/lvm/lvm.conf", conf, 0o644); err != nil {
			t.Error(err)
		}
	})
	for _, text := range []string{
		"devices { scan_lvs = 1 }",
		"devices { scan_lvs = 1 global_filter = [ \"a|.*|\" ] }",
		"devices { scan_lvs = 1 filter = [ \"a|.*|\" ] global_filter = [ \"r|/dev/sdx|\", \"a|.*|\" ] }",
		"log { silent = 1 prefix = \"x\" command_names = 1 } report { list_item_separator = \";\" output_format = \"json\" } global { suffix = 0 units = \"m\" }",
	} {
		if err := os.WriteFile("/etc/lvm/lvm.conf", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "scan_lvs") { // the trap is there: LVM as configured sees guests
			if out, _ := try("lvm", "pvs", "--noheadings", "-a", "-o", "pv_name,vg_name"); strings.Count(out, vg) < 2 {
				t.Fatalf("%s: no guest is seen, so the test tests nothing:\n%s", text, out)
			}
		}
		l := m.lvmOf(t, vg)
		groups, err := l.Groups(t.Context())
		if err != nil || len(groups) != 1 || len(groups[0].PVs) != 1 || groups[0].SizeBytes != contract.LVMExtentsPerPV*contract.LVMExtentBytes {
			t.Errorf("%s: Groups: %+v, %v", text, groups, err)
			continue
		}
		r := m.linear(t, l, vg, "other", 1)
		if err := l.Remove(t.Context(), r, volume.Persistent); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		for _, guest := range []volume.Ref{inLoop, inMapper} {
			if err := l.Remove(t.Context(), guest, volume.Persistent); !errors.Is(err, volume.ErrBusy) {
				t.Errorf("%s: Remove of %s, which a guest's device lies on: %v", text, guest, err)
			}
		}
	}
	sh(t, "losetup", "-d", loop)
	sh(t, "dmsetup", "remove", "guest")
	for _, guest := range []volume.Ref{inLoop, inMapper} {
		if err := l.Remove(t.Context(), guest, volume.Persistent); err != nil {
			t.Errorf("Remove of %s: %v", guest, err)
		}
	}
}

// A devices file takes the place of filters (lvmdevices(8)).
func TestDevicesFile(t *testing.T) {
	m := newMachine(t)
	vg := m.NewGroup(t, 1)
	conf, _ := os.ReadFile("/etc/lvm/lvm.conf")
	if err := os.MkdirAll("/etc/lvm/devices", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile("/etc/lvm/lvm.conf", conf, 0o644)
		_ = os.RemoveAll("/etc/lvm/devices")
	})
	if err := os.WriteFile("/etc/lvm/lvm.conf", []byte("devices { use_devicesfile = 1 scan_lvs = 1 }"), 0o644); err != nil {
		t.Fatal(err)
	}
	sh(t, "lvm", "lvmdevices", "-y", "--adddev", "/dev/mapper/"+m.groups[vg][0])
	l := m.lvmOf(t, vg)
	r := m.linear(t, l, vg, "v", 10)
	m.Scribble(t, r, "LVM2_member")
	loop := sh(t, "losetup", "--find", "--show", mapped(r))
	other := m.linear(t, l, vg, "w", 1)
	if err := l.Remove(t.Context(), other, volume.Persistent); err != nil {
		t.Error(err)
	}
	sh(t, "losetup", "-d", loop)
	if err := l.Remove(t.Context(), r, volume.Persistent); err != nil {
		t.Error(err)
	}
}

// case B23
func TestMissingNode(t *testing.T) {
	m := newMachine(t)
	vg := m.NewGroup(t, 1)
	l := m.lvmOf(t, vg)
	r := m.linear(t, l, vg, "v", 1)
	d, err := l.Device(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.Path); err != nil {
		t.Fatal(err)
	}
	if again, err := l.Device(t.Context(), r); err != nil || again != d {
		t.Errorf("%+v, %v; want %+v", again, err, d)
	}
	var st unix.Stat_t
	if err := unix.Stat(d.Path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		t.Errorf("%s: %o, %v", d.Path, st.Mode, err)
	}
}

// case B18: a suspended device is seen as such, and Activate resumes it.
func TestSuspended(t *testing.T) {
	m := newMachine(t)
	vg := m.NewGroup(t, 1)
	l := m.lvmOf(t, vg)
	r := m.linear(t, l, vg, "v", 1)
	sh(t, "dmsetup", "suspend", volume.DMName(r))
	if d, err := l.Device(t.Context(), r); err != nil || !d.Suspended {
		t.Errorf("%+v, %v; want it suspended", d, err)
	}
	if lvs, err := l.List(t.Context()); err != nil || len(lvs) != 1 {
		t.Errorf("List: %+v, %v", lvs, err)
	}
	sh(t, "dmsetup", "resume", volume.DMName(r))
}

// Devices of others come and go while the driver looks; one that is just going is no reason to stop. The kernel answers EINVAL or
// ENODEV then, to a reader that is there in the very moment.
func TestDevicesThatGo(t *testing.T) {
	m := newMachine(t)
	l := m.lvmOf(t, m.NewGroup(t, 1))
	over, looked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looked)
		for {
			if _, err := l.commands.guests.find(); err != nil {
				t.Errorf("find: %v", err)
				return
			}
			if _, err := l.dm.allSuspended(); err != nil {
				t.Errorf("allSuspended: %v", err)
				return
			}
			select {
			case <-over:
				return
			default:
			}
		}
	}()
	for range 100 {
		sh(t, "dmsetup", "create", "comes", "--table", "0 8 zero")
		sh(t, "dmsetup", "remove", "comes")
	}
	close(over)
	<-looked
}

// case B37: nothing is left behind in /etc/lvm, and nothing there need be writable.
func TestNoArchive(t *testing.T) {
	m := newMachine(t)
	vg := m.NewGroup(t, 1)
	if err := unix.Mount("tmpfs", "/etc/lvm", "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc/lvm", 0); err != nil {
			t.Error(err)
		}
	})
	l := m.lvmOf(t, vg)
	r := m.linear(t, l, vg, "v", 1)
	if err := l.Remove(t.Context(), r, volume.Persistent); err != nil {
		t.Error(err)
	}
}

// The list of devices is that of dmsetup(8), also where there is none.
func TestDeviceNames(t *testing.T) {
	want := func(n int, with string) {
		t.Helper()
		listed := map[string]bool{}
		for line := range strings.Lines(sh(t, "dmsetup", "ls")) {
			if name, _, ok := strings.Cut(line, "\t"); ok {
				listed[name] = true
			}
		}
		names, err := newDeviceMapper("/sys", "/dev", nil).listed()
		if err != nil || len(names) != len(listed) || len(names) < n {
			t.Fatalf("%v, %v; dmsetup lists %v", names, err, listed)
		}
		for name, kernel := range names {
			if text, err := sysfs.Read("/sys/block/" + kernel + "/dm/name"); !listed[name] || text != name || err != nil {
				t.Errorf("%s is %s, which is %q, %v", name, kernel, text, err)
			}
		}
		if with != "" && names[with] == "" {
			t.Errorf("%s is not in %v", with, names)
		}
	}
	want(0, "")
	name := strings.Repeat("n", dmNameLen-1)
	sh(t, "dmsetup", "create", name, "--table", "0 8 zero")
	t.Cleanup(func() { sh(t, "dmsetup", "remove", name) })
	want(1, name)
	const many = 40 // more than fit into the first answer
	for i := range many {
		name := fmt.Sprintf("%0*d", dmNameLen-1, i)
		sh(t, "dmsetup", "create", name, "--table", "0 8 zero")
		t.Cleanup(func() { sh(t, "dmsetup", "remove", name) })
	}
	want(1+many, name)
}
