//go:build vm

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// moreFaults are all others.
var moreFaults = []fault{
	{name: "a process holds an inline volume", finds: []string{"warning teardown-pending " + inlineID("held")}, says: "(sleep)",
		does: func(m *machine) func() {
			id, target := m.inline("held")
			m.must(os.WriteFile(target+"/file", nil, 0o600))
			end := m.hold(target + "/file")
			if m.unpublish(id, target) == nil {
				m.t.Error("unpublished while it is held")
			}
			return func() { end(); m.tornDown("held") }
		}},
	{name: "a target left behind", finds: []string{"warning target-left " + prefix + "left"}, says: "where kubelet wanted " + prefix + "left", fixes: `path .*/pods/left/\S*/mount `,
		does: func(m *machine) func() {
			id, target := m.published("left")
			forget := m.wanted(target, id)
			m.must(m.unpublish(id, target))
			m.must(os.Mkdir(target, 0o755))
			return func() { forget(); m.gone(id, target) }
		}},
	{name: "a target left behind that holds a file", finds: []string{"warning target-left " + prefix + "full"}, refuses: "not empty",
		does: func(m *machine) func() {
			id, target := m.published("full")
			forget := m.wanted(target, id)
			m.must(m.unpublish(id, target))
			m.must(os.Mkdir(target, 0o755))
			m.must(os.WriteFile(target+"/precious", nil, 0o600))
			return func() {
				m.must(os.Remove(target + "/precious"))
				forget()
				m.gone(id, target)
			}
		}},
	{name: "a leaked mount that is in use", finds: []string{"warning leaked-mount " + prefix + "busy"}, refuses: "in use",
		does: func(m *machine) func() {
			id, target := m.published("busy")
			m.must(os.WriteFile(target+"/file", nil, 0o600))
			end := m.hold(target + "/file")
			return func() { end(); m.gone(id, target) }
		}},
	{name: "inactive", finds: []string{"warning inactive " + prefix + "inactive"}, says: "faults/inactive is not active", fixes: `(lv|device) faults[-/]inactive `,
		does: func(m *machine) func() {
			id := m.create("inactive")
			forget := m.wanted(m.target("inactive"), id)
			m.lvm("lvchange", "-an", vg+"/inactive")
			return func() { forget(); m.delete(id); m.dropPod("inactive") }
		}},
	{name: "suspended as a killed LVM command leaves it, and no driver", finds: []string{"fault suspended " + prefix + "suspended", "fault driver-down node"}, says: "whoever touches it hangs", fixes: `device faults-suspended `,
		does: func(m *machine) func() {
			id := m.create("suspended")
			m.stop(syscall.SIGTERM) // it would resume it within a minute
			m.sh("dmsetup", "suspend", "--noflush", "--nolockfs", "faults-suspended")
			return func() { m.start(); m.delete(id) }
		}},
	{name: "something else is mounted at a target", finds: []string{"fault foreign-mount " + prefix + "foreign"}, says: "which is not it",
		does: func(m *machine) func() {
			id, target := m.create("foreign"), m.target("foreign")
			m.stage(id)
			forget := m.wanted(target, id)
			m.must(os.Mkdir(target, 0o755))
			m.sh("mount", "-t", "tmpfs", "none", target)
			return func() {
				m.sh("umount", target)
				m.must(os.Remove(target))
				forget()
				m.gone(id, target)
			}
		}},
	{name: "something else is mounted at a staging path", finds: []string{"fault foreign-mount " + prefix + "stage"}, says: "globalmount kubelet wants faults/stage",
		does: func(m *machine) func() {
			id := m.create("stage")
			forget := m.wanted(m.staging("stage"), id)
			m.sh("mount", "-t", "tmpfs", "none", m.staging("stage"))
			return func() { m.sh("umount", m.staging("stage")); forget(); m.delete(id); m.dropStaging("stage") }
		}},
	{name: "a process holds what is mounted nowhere", finds: []string{"warning held " + prefix + "open"}, says: "(sleep)",
		does: func(m *machine) func() {
			id := m.create("open")
			end := m.hold("/dev/" + vg + "/open")
			return func() { end(); m.delete(id) }
		}},
	{name: "a device lies on what is mounted nowhere", finds: []string{"warning held " + prefix + "below"}, says: "loop",
		does: func(m *machine) func() {
			id := m.create("below")
			loop := strings.TrimSpace(m.sh("losetup", "-f", "--show", "/dev/"+vg+"/below"))
			return func() { m.sh("losetup", "-d", loop); m.delete(id) }
		}},
	{name: "a teardown that fails", finds: []string{"fault teardown-pending " + inlineID("stuck")}, says: "is not empty",
		does: func(m *machine) func() {
			id, target := m.inline("stuck")
			below := m.in("below") // what is in kubelet's folder beneath the mount
			m.must(os.Mkdir(below, 0o755))
			m.must(unix.Mount(filepath.Dir(target), below, "", unix.MS_BIND, ""))
			m.must(os.WriteFile(below+"/mount/precious", nil, 0o600))
			if m.unpublish(id, target) == nil {
				m.t.Error("a folder that is not empty is gone")
			}
			m.must(unix.Unmount(below, unix.UMOUNT_NOFOLLOW))
			m.must(os.Remove(below))
			return func() { m.must(os.Remove(target + "/precious")); m.tornDown("stuck") }
		}},
	{name: "a record without a logical volume, and no driver", finds: []string{"fault driver-down node", "warning teardown-pending " + inlineID("record")}, says: "No driver runs",
		does: func(m *machine) func() {
			id, target := m.inline("record")
			end := m.hold(target)
			if m.unpublish(id, target) == nil {
				m.t.Error("unpublished while it is held")
			}
			m.stop(syscall.SIGKILL)
			end()
			m.sh("umount", target)
			m.lvm("lvremove", "-y", vg+"/"+id)
			return func() { m.start(); m.tornDown("record") }
		}},
	{name: "LVM has it not", finds: []string{"fault volume-missing " + prefix + "lost"}, says: "LVM has no such volume",
		does: func(m *machine) func() {
			id := m.create("lost")
			forget := m.wanted(m.target("lost"), id)
			m.lvm("lvremove", "-y", vg+"/lost")
			return func() { forget(); m.delete(id); m.dropPod("lost") }
		}},
	{name: "an inline volume that was never made", finds: []string{"warning volume-missing " + inlineID("never")}, says: "LVM has no such volume",
		does: func(m *machine) func() {
			forget := m.wanted(m.target("never"), inlineID("never"))
			return func() { forget(); m.dropPod("never") }
		}},
	{name: "a damaged record", finds: []string{"fault journal-damaged node"}, says: strings.Repeat("0", 32) + ".json",
		does: func(m *machine) func() {
			file := m.in("state/journal/" + strings.Repeat("0", 32) + ".json")
			m.must(os.WriteFile(file, []byte(`{"version":1,"volumeID":"x"`), 0o600))
			return func() { m.must(os.Remove(file)) }
		}},
	{name: "a record of a newer driver", finds: []string{"fault journal-damaged node"}, says: "newer driver",
		does: func(m *machine) func() {
			file := m.in("state/journal/" + strings.Repeat("0", 32) + ".json")
			m.must(os.WriteFile(file, []byte(`{"version":99}`), 0o600))
			return func() { m.must(os.Remove(file)) }
		}},
	{name: "the state folder is read-only", finds: []string{"fault driver-not-ready node"}, says: "read-only file system",
		does: func(m *machine) func() {
			state := m.in("state")
			m.must(unix.Mount(state, state, "", unix.MS_BIND, ""))
			m.must(unix.Mount("", state, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
			return func() { m.must(unix.Unmount(state, unix.UMOUNT_NOFOLLOW)); m.ready() }
		}},
	{name: "another version", finds: []string{"warning version-skew node"}, says: "is v1, and this command is v2", as: consulting{version: "v2"},
		does: func(*machine) func() { return func() {} }},
	{name: "a program is missing", finds: []string{"warning tool-missing node"}, says: "The program mkfs.xfs is missing; it is needed for XFS.",
		does: func(m *machine) func() {
			path := strings.TrimSpace(m.sh("sh", "-c", "command -v mkfs.xfs"))
			m.must(os.Rename(path, path+".away"))
			return func() { m.must(os.Rename(path+".away", path)) }
		}},
	{name: "a module is missing", finds: []string{"warning module-missing node"}, says: "The kernel module btrfs is missing",
		does: func(m *machine) func() {
			lists, err := filepath.Glob("/lib/modules/*/modules.dep")
			m.must(err)
			before, err := os.ReadFile(lists[0])
			m.must(err)
			m.must(os.WriteFile(lists[0], regexp.MustCompile(`(?m)^\S*/btrfs\.ko.*\n`).ReplaceAll(before, nil), 0o600))
			return func() { m.must(os.WriteFile(lists[0], before, 0o600)) }
		}},
	{name: "locks of LVM of its own", finds: []string{"warning lvm-locks-apart node"}, says: "is not the host's",
		as:   consulting{within: []string{"unshare", "-m", "--propagation", "private", "sh", "-c", `mount -t tmpfs none /run/lock/lvm && exec "$@"`, "sh"}},
		does: func(*machine) func() { return func() {} }},
	{name: "somebody holds LVM's lock", as: consulting{late: true}, finds: []string{"fault not-known node", "fault storage-health node"}, says: "It could not be found out: ",
		does: func(m *machine) func() {
			f, err := os.OpenFile("/run/lock/lvm/V_"+vg, os.O_RDWR|os.O_CREATE, 0o600)
			m.must(err)
			m.must(unix.Flock(int(f.Fd()), unix.LOCK_EX)) // lvm2 lib/misc/lvm-flock.c
			return func() { m.must(f.Close()) }
		}},
	{name: "a disk is missing, and nothing is on it", finds: []string{"fault driver-not-ready node", "warning storage-health node"}, says: "DiskMissing: volume group faults: 1 of 3 disks are missing.",
		does: func(m *machine) func() {
			m.sh("dmsetup", "remove", "--retry", disks[2])
			return func() { m.plug(2); m.ready() }
		}},
	{name: "a volume is partial", finds: []string{"fault volume-health " + prefix + "partial", "fault driver-not-ready node", "warning storage-health node"}, says: "DiskMissing: a disk of the volume is missing.",
		does: func(m *machine) func() {
			m.lvm("lvcreate", "-y", "-q", "-L", "8m", "-n", "partial", "--addtag", owner, "--addtag", volume.KindTag(volume.Persistent), vg, "/dev/mapper/"+disks[2])
			m.lvm("lvchange", "-an", vg+"/partial")
			forget := m.wanted(m.target("partial"), prefix+"partial")
			m.sh("dmsetup", "remove", "--retry", disks[2])
			return func() { m.plug(2); m.ready(); forget(); m.delete(prefix + "partial"); m.dropPod("partial") }
		}},
}

func TestMoreFaults(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.bystanders()
	for _, f := range moreFaults {
		t.Run(f.name, func(t *testing.T) { m.diagnose(t, f) })
	}
	m.isWell()
}
