//go:build vm

package lvm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// counting is a runner that counts LVM commands.
type counting struct {
	run.Local
	n atomic.Int64
}

func (c *counting) Read(ctx context.Context, name string, args ...string) (run.Result, error) {
	c.n.Add(1)
	return c.Local.Read(ctx, name, args...)
}

func (c *counting) Write(ctx context.Context, name string, args ...string) (run.Result, error) {
	c.n.Add(1)
	return c.Local.Write(ctx, name, args...)
}

// machine is the machine this test runs on. It cuts the disks /dev/vd? into slots, and gives each out as a physical
// volume: a linear device-mapper device, which can be made to fail.
type machine struct {
	runner counting
	free   []slot
	serial int
	groups map[string][]string // names of the device-mapper devices of a group
	slots  map[string]slot     // by these
}

type slot struct {
	disk  string
	start int64 // in sectors
}

// One extent is lost to metadata at the beginning of a physical volume (1 MiB) and to rounding.
const slotSectors = (contract.LVMExtentsPerPV*contract.LVMExtentBytes + 3<<20) / 512

var _ contract.LVMMachine = (*machine)(nil)

func newMachine(t testing.TB) *machine {
	t.Helper()
	m := &machine{groups: map[string][]string{}, slots: map[string]slot{}}
	disks, _ := filepath.Glob("/sys/block/[uv]*d?") // vda, or ubda in user-mode Linux
	for _, d := range disks {
		sectors, err := sysfs.Number(filepath.Join(d, "size"))
		if err != nil {
			t.Fatal(err)
		}
		// The first slot does not begin with the disk: its label must not be seen on the disk itself.
		for at := int64(8192); at+slotSectors <= sectors; at += slotSectors {
			m.free = append(m.free, slot{"/dev/" + filepath.Base(d), at})
		}
	}
	if len(m.free) < 5 {
		t.Fatalf("the disks %v hold %d physical volumes; at least 5 are needed (two disks of 2 GiB)", disks, len(m.free))
	}
	return m
}

// byHand keeps the commands of the tests from waiting for udev, and from looking into logical volumes.
const byHand = "backup{backup=0 archive=0} activation{udev_sync=0 udev_rules=0 monitoring=0} devices{scan_lvs=0}"

func sh(t testing.TB, argv ...string) string {
	t.Helper()
	out, err := try(argv...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return out
}

func try(argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// shell gives many commands to one lvm process.
func shell(t testing.TB, commands []string) {
	t.Helper()
	cmd := exec.Command("lvm")
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\nexit\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("lvm shell: %v: %s", err, out)
	}
}

func lvm(t testing.TB, args ...string) string {
	t.Helper()
	return sh(t, append([]string{"lvm", args[0], "--config", byHand}, args[1:]...)...)
}

func mapped(r volume.Ref) string { return "/dev/mapper/" + volume.DMName(r) }

func (m *machine) NewLVM(t *testing.T, o contract.LVMOptions) contract.LVMSurface {
	t.Helper()
	l, err := New(&m.runner, Config{Owner: o.Owner, VolumeGroups: o.VolumeGroups, ThinOvercommit: o.ThinOvercommit})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (m *machine) NewGroup(t *testing.T, pvs int) string {
	t.Helper()
	return m.newGroup(t, pvs)
}

func (m *machine) newGroup(t testing.TB, pvs int) string {
	t.Helper()
	if len(m.free) < pvs {
		t.Fatalf("%d physical volumes are wanted, %d left", pvs, len(m.free))
	}
	m.serial++
	vg := fmt.Sprintf("vg-%d", m.serial)
	var devices []string
	for i := range pvs {
		name, s := fmt.Sprintf("pv%d.%d", m.serial, i), m.free[0]
		m.free = m.free[1:]
		sh(t, "dmsetup", "create", name, "--table", s.table("linear"))
		sh(t, "wipefs", "-qa", "/dev/mapper/"+name)
		lvm(t, "pvcreate", "-q", "-ff", "-y", "/dev/mapper/"+name)
		m.groups[vg], m.slots[name] = append(m.groups[vg], name), s
		devices = append(devices, "/dev/mapper/"+name)
	}
	lvm(t, append([]string{"vgcreate", "-q", "-s", "4m", vg}, devices...)...)
	t.Cleanup(func() { m.removeGroup(t, vg) })
	return vg
}

func (s slot) table(target string) string {
	if target == "error" {
		return fmt.Sprintf("0 %d error", slotSectors)
	}
	return fmt.Sprintf("0 %d linear %s %d", slotSectors, s.disk, s.start)
}

func (m *machine) removeGroup(t testing.TB, vg string) {
	lvm(t, "vgremove", "-q", "-ff", "-y", vg)
	for _, name := range m.groups[vg] {
		sh(t, "dmsetup", "remove", name)
		m.free = append(m.free, m.slots[name])
		delete(m.slots, name)
	}
	delete(m.groups, vg)
}

func (m *machine) NewPool(t *testing.T, pool volume.Ref, bytes int64) {
	t.Helper()
	lvm(t, "lvcreate", "-q", "-y", "--type", "thin-pool", "-L", bytesArg(bytes), "-n", pool.LV, pool.VG)
}

func bytesArg(n int64) string { return strconv.FormatInt(n, 10) + "b" }

func (m *machine) Make(t *testing.T, r volume.Ref, bytes int64, tags ...string) {
	t.Helper()
	args := []string{"lvcreate", "-q", "-y", "-L", bytesArg(bytes), "-n", r.LV}
	for _, tag := range tags {
		args = append(args, "--addtag", tag)
	}
	lvm(t, append(args, r.VG)...)
}

func (m *machine) MakeSnapshot(t *testing.T, origin volume.Ref, name string) {
	t.Helper()
	lvm(t, "lvcreate", "-q", "-y", "-s", "-l", "1", "-n", name, origin.String())
}

func (m *machine) Destroy(t *testing.T, r volume.Ref) {
	t.Helper()
	lvm(t, "lvremove", "-q", "-y", r.String())
}

func (m *machine) Deactivate(t *testing.T, r volume.Ref) {
	t.Helper()
	lvm(t, "lvchange", "-an", r.String())
}

func (m *machine) Hold(t *testing.T, r volume.Ref) func() {
	t.Helper()
	f, err := os.Open(mapped(r))
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

func (m *machine) Mount(t *testing.T, r volume.Ref) func() {
	t.Helper()
	dir := t.TempDir()
	sh(t, "mkfs.ext4", "-q", "-F", mapped(r))
	if err := unix.Mount(mapped(r), dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *machine) Scribble(t *testing.T, r volume.Ref, what string) {
	t.Helper()
	dev := mapped(r)
	inside := `devices{scan_lvs=1 global_filter=["a|^` + dev + `$|","r|.*|"]} ` + strings.Replace(byHand, "scan_lvs=0", "", 1)
	switch what {
	case "ext4":
		sh(t, "mkfs.ext4", "-q", "-F", dev)
	case "xfs":
		sh(t, "mkfs.xfs", "-q", "-f", dev)
	case "swap":
		sh(t, "mkswap", dev)
	case "LVM2_member":
		sh(t, "lvm", "pvcreate", "--config", inside, "-q", "-y", dev)
	case "group of the same name":
		// LVM would refuse because of the folder /dev/VG, which a guest has not.
		elsewhere := strings.Replace(inside, "devices{", `devices{dir="`+t.TempDir()+`" scan="/dev" `, 1)
		sh(t, "lvm", "vgcreate", "--config", elsewhere, "-q", "-y", r.VG, dev)
	default:
		t.Fatalf("cannot scribble %s", what)
	}
}

func (m *machine) Signature(t *testing.T, r volume.Ref) string {
	t.Helper()
	out, err := try("blkid", "-p", "-o", "value", "-s", "TYPE", mapped(r))
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 2 { //nolint:errorlint // as os/exec gives it
		return ""
	} else if err != nil {
		t.Fatalf("blkid: %v: %s", err, out)
	}
	return out
}

func (m *machine) Break(t *testing.T, vg string) {
	t.Helper()
	name := m.groups[vg][1]
	m.reload(t, name, "error")
	t.Cleanup(func() { m.reload(t, name, "linear") })
}

func (m *machine) reload(t *testing.T, name, target string) {
	t.Helper()
	sh(t, "dmsetup", "reload", name, "--table", m.slots[name].table(target))
	sh(t, "dmsetup", "suspend", "--noflush", "--nolockfs", name)
	sh(t, "dmsetup", "resume", name)
}

func (m *machine) Facts(t *testing.T, r volume.Ref) (contract.LVMFacts, bool) {
	t.Helper()
	out := lvm(t, "lvs", "--noheadings", "--units", "b", "--nosuffix", "--separator", "|",
		"-o", "lv_name,lv_uuid,lv_size,segtype,stripes,lv_tags", r.VG)
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 6 || f[0] != r.LV {
			continue
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		stripes, err2 := strconv.Atoi(f[4])
		if err != nil || err2 != nil {
			t.Fatalf("lvs: %q", line)
		}
		tags := strings.Split(f[5], ",")
		slices.Sort(tags)
		return contract.LVMFacts{UUID: f[1], SizeBytes: size, SegType: f[3], Stripes: stripes, Tags: tags}, true
	}
	return contract.LVMFacts{}, false
}

func (m *machine) Settings(t *testing.T, r volume.Ref) (volume.Mutable, []string) {
	t.Helper()
	return contract.LVMSettings(func(args ...string) string { return lvm(t, append([]string{"lvs"}, args...)...) }, r)
}

func (m *machine) Commands() int { return int(m.runner.n.Load()) }
