//go:build vm

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/doctor"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
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
	{name: "somebody holds LVM's lock", as: consulting{late: true}, finds: []string{"fault not-known node"}, may: []string{"fault storage-health node"}, says: "It could not be found out: ",
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
	{name: "a leg of a RAID has failed", finds: []string{"fault driver-not-ready node", "warning volume-health " + prefix + "raid", "warning storage-health node"}, says: "RaidDegraded",
		does: func(m *machine) func() {
			m.lvm("lvcreate", "-y", "-q", "--type", "raid1", "-L", "8m", "-n", "raid", "--addtag", owner, "--addtag", volume.KindTag(volume.Persistent), vg, "/dev/mapper/"+disks[1], "/dev/mapper/"+disks[2])
			m.until("the legs are in step", func() bool {
				return strings.TrimSpace(m.lvm("lvs", "--noheadings", "-o", "sync_percent", vg+"/raid")) == "100.00"
			})
			m.swap(2, fmt.Sprintf("0 %d error", pvBytes/512))
			m.sh("dd", "if=/dev/zero", "of=/dev/"+vg+"/raid", "bs=64k", "count=8", "oflag=direct", "conv=notrunc,nocreat")
			return func() {
				m.swap(2, m.table(2))
				m.lvm("lvchange", "-y", "--refresh", vg+"/raid")
				m.until("the legs are in step", func() bool {
					return strings.TrimSpace(m.lvm("lvs", "--noheadings", "-o", "sync_percent", vg+"/raid")) == "100.00"
				})
				m.delete(prefix + "raid")
			}
		}},
	{name: "a file system has an error", finds: []string{"warning volume-health " + prefix + "errors"}, says: "FilesystemErrors",
		does: func(m *machine) func() {
			id, target := m.published("errors")
			forget := m.wanted(target, id)
			kernel := strings.TrimSpace(m.sh("dmsetup", "info", "-c", "--noheadings", "-o", "blkdevname", "faults-errors"))
			m.must(os.WriteFile("/sys/fs/ext4/"+kernel+"/trigger_fs_error", []byte("1"), 0o600))
			return func() { forget(); m.gone(id, target) }
		}},
	{name: "a thin pool is nearly full", finds: []string{"warning storage-health node", "warning volume-health " + prefix + "thin"}, says: "ThinPoolNearlyFull",
		does: func(m *machine) func() { return m.fill(30) }},
	{name: "a thin pool is full", finds: []string{"warning storage-health node", "warning volume-health " + prefix + "thin"}, says: "ThinPoolFull",
		does: func(m *machine) func() { return m.fill(32) }},
}

// clusterFaults are what Kubernetes and the node do not agree about.
var clusterFaults = []fault{
	{name: "two PersistentVolumes", finds: []string{"fault pv-twice " + prefix + "watched"}, says: "The PersistentVolumes copy and watched name one volume",
		does: func(m *machine) func() {
			return m.kubernetes(persistentVolume("watched", "watched"), persistentVolume("copy", "watched"))
		}},
	{name: "its logical volume has lost its tag", finds: []string{"fault pv-without-volume " + prefix + "tagless"}, says: "PersistentVolume tagless (claim ns/tagless) names faults/tagless",
		does: func(m *machine) func() {
			id := m.create("tagless")
			m.lvm("lvchange", "-q", "--deltag", owner, vg+"/tagless")
			forget := m.kubernetes(persistentVolume("watched", "watched"), persistentVolume("tagless", "tagless"))
			return func() {
				m.lvm("lvchange", "-q", "--addtag", owner, vg+"/tagless")
				m.delete(id)
				forget()
			}
		}},
	{name: "its node is gone", finds: []string{"fault pv-without-node node-9/data/far"}, says: "there is no such node",
		does: func(m *machine) func() {
			far := persistentVolume("far", "far")
			far["spec"].(map[string]any)["csi"].(map[string]any)["volumeHandle"] = "node-9/data/far"
			return m.kubernetes(persistentVolume("watched", "watched"), far)
		}},
	{name: "no PersistentVolume", finds: []string{"warning volume-without-pv " + prefix + "retained"}, says: "No PersistentVolume names faults/retained",
		does: func(m *machine) func() {
			id, forget := m.create("retained"), m.kubernetes(persistentVolume("watched", "watched"))
			return func() { m.delete(id); forget() }
		}},
	{name: "a snapshot was removed by hand", finds: []string{"fault snapshot-missing " + prefix + "snap"}, says: "VolumeSnapshotContent content names the snapshot faults/snap",
		does: func(m *machine) func() {
			m.lvm("lvcreate", "-y", "-q", "-s", "-L", "8m", "-n", "snap", "--addtag", owner, "--addtag", volume.KindTag(volume.Snapshot), vg+"/watched")
			m.lvm("lvremove", "-y", vg+"/snap")
			return m.kubernetes(persistentVolume("watched", "watched"), map[string]any{"kind": "VolumeSnapshotContent", "metadata": map[string]any{"name": "content"},
				"spec": map[string]any{"driver": driver.Default().DriverName}, "status": map[string]any{"snapshotHandle": prefix + "snap"}})
		}},
	{name: "an attachment does not go", finds: []string{"warning attachment-stuck " + prefix + "watched"}, says: "VolumeAttachment a: in use.",
		does: func(m *machine) func() {
			return m.kubernetes(persistentVolume("watched", "watched"), map[string]any{"kind": "VolumeAttachment", "metadata": map[string]any{"name": "a"},
				"spec":   map[string]any{"attacher": driver.Default().DriverName, "nodeName": node, "source": map[string]any{"persistentVolumeName": "watched"}},
				"status": map[string]any{"detachError": map[string]any{"message": "in use"}}})
		}},
}

func persistentVolume(name, of string) map[string]any {
	return map[string]any{"kind": "PersistentVolume", "metadata": map[string]any{"name": name}, "status": map[string]any{"phase": "Bound"},
		"spec": map[string]any{"csi": map[string]any{"driver": driver.Default().DriverName, "volumeHandle": prefix + of}, "claimRef": map[string]any{"name": name, "namespace": "ns"}}}
}

// kubernetes has a program kubectl answer for a cluster of this node that holds these objects.
func (m *machine) kubernetes(objects ...map[string]any) (gone func()) {
	m.t.Helper()
	objects = append(objects, map[string]any{"kind": "Node", "metadata": map[string]any{"name": node}})
	text, err := json.Marshal(map[string]any{"items": objects})
	m.must(err)
	m.must(os.WriteFile(m.in("cluster.json"), text, 0o600))
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *persistentvolumes*) exec cat %s;; esac\necho '{\"items\":[]}'\n", m.in("cluster.json"))
	m.must(os.WriteFile(m.in("bin/kubectl"), []byte(script), 0o755))
	return func() { m.must(os.Remove(m.in("bin/kubectl"))); m.must(os.Remove(m.in("cluster.json"))) }
}

// swap gives a disk another table while it is in use.
func (m *machine) swap(i int, table string) {
	m.t.Helper()
	m.sh("dmsetup", "load", disks[i], "--table", table)
	m.sh("dmsetup", "suspend", "--noflush", "--nolockfs", disks[i])
	m.sh("dmsetup", "resume", disks[i])
}

// fill makes a thin volume, and writes into it, in MiB. The pool has 32.
func (m *machine) fill(mib int) (empty func()) {
	m.t.Helper()
	id := m.create("thin", "type", "thin", "thinPool", pool)
	m.sh("dd", "if=/dev/zero", "of=/dev/"+vg+"/thin", "bs=1M", fmt.Sprintf("count=%d", mib), "oflag=direct", "conv=notrunc,nocreat")
	return func() { m.delete(id) }
}

func TestMoreFaults(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.bystanders()
	waits := m.udevHangs()
	faults := slices.Clone(moreFaults)
	for _, f := range clusterFaults {
		f.as.args = []string{"--cluster"}
		faults = append(faults, f)
	}
	faults = append(faults, waits)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) { m.diagnose(t, f) })
	}
	m.isWell()
	t.Run("the bundle", func(t *testing.T) { m.packs(t) })
	told := map[string]bool{}
	for _, f := range slices.Concat(coreFaults, faults) {
		for _, line := range f.finds {
			told[strings.Fields(line)[1]] = true
		}
	}
	for _, rule := range doctor.Rules() {
		if !told[rule] {
			t.Errorf("no fault is made for rule %s", rule)
		}
	}
}

// packs has doctor pack a bundle, with the logs of the kernel and of the driver's container, and looks for a secret in it.
func (m *machine) packs(t *testing.T) {
	outer := m.t
	m.t = t
	defer func() { m.t = outer }()
	const folder = "/var/log/pods/ns_csi-local-lvm-node-x_0/driver"
	m.must(os.MkdirAll(folder, 0o755))
	t.Cleanup(func() { m.must(os.RemoveAll("/var/log/pods")) })
	m.must(os.WriteFile("/dev/kmsg", []byte("device-mapper: a test says password=hunter-two\n"), 0o600))
	text, err := os.ReadFile(m.log.Name())
	m.must(err)
	m.must(os.WriteFile(folder+"/0.log", append(text, "\ntoken: hunter-two\n"...), 0o600))
	m.doctor(consulting{args: []string{"--bundle", m.in("bundle.tar.gz")}})
	m.sh("tar", "-xzf", m.in("bundle.tar.gz"), "-C", m.dir)
	for name, part := range map[string]string{
		"logs/kernel.log": "device-mapper: a test says password=REMOVED\n", "logs/pods/ns_csi-local-lvm-node-x_0/driver/0.log": `method="NodePublishVolume"`,
		"facts.json": prefix + "watched", "findings.json": "[]", "mounts.txt": " ext4 ", "not-had.txt": "logs/journal.log: journalctl ",
	} {
		text, err := os.ReadFile(m.in("csi-local-lvm-bundle/" + name))
		if err != nil || !strings.Contains(string(text), part) {
			t.Errorf("%s: no %q: %v; it ends with\n%s", name, part, err, text[max(0, len(text)-2000):])
		}
		if strings.Contains(string(text), "hunter-two") {
			t.Errorf("%s holds a secret", name)
		}
	}
}

// udevHangs has an LVM command wait for a udev that does not answer, in a namespace of semaphores of its own. It is told of when it has waited for a minute:
// so it is begun first, and looked at last.
func (m *machine) udevHangs() fault {
	m.t.Helper()
	cmd := exec.Command("unshare", "--ipc", "--mount", "--propagation", "private", "sh", "-ec", // libudev knows by its socket that udevd runs
		"mkdir -p /run/udev; mount -t tmpfs none /run/udev; touch /run/udev/control; env -u DM_DISABLE_UDEV dmsetup udevcreatecookie; exec sleep 900")
	end := m.background(cmd, "sleep")
	m.t.Cleanup(end)
	within := []string{"nsenter", "--ipc", "-t", fmt.Sprint(cmd.Process.Pid)}
	return fault{name: "LVM commands wait for udev", finds: []string{"warning udev-waits node"}, says: "1 LVM commands have waited", as: consulting{within: within},
		does: func(m *machine) func() {
			m.until("a minute has passed", func() bool { return len(m.doctor(consulting{within: within, args: []string{"-o", "json"}}).lines) != 0 })
			return func() {
				m.sh(append(slices.Clone(within), "--mount", "env", "-u", "DM_DISABLE_UDEV", "dmsetup", "udevcomplete_all", "-y")...)
				if got := m.doctor(consulting{within: within, args: []string{"-o", "json"}}); got.exit != 0 {
					m.t.Errorf("after all, it finds\n%s", got.text)
				}
			}
		}}
}
