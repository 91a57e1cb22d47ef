package doctor

import (
	"fmt"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
)

// node is the subject of what concerns every volume.
const node = "node"

func notKnown(f *Facts) (out []Finding) {
	for _, u := range f.Report.Unknown {
		out = append(out, Finding{Severity: Fault, Subject: node, Sentence: "It could not be found out: " + u + ".",
			Remedy: "See what hangs or fails: the kernel's log, then the disks, then vgs by hand. What depends on it is not told here."})
	}
	return out
}

func driverDown(f *Facts) []Finding {
	switch {
	case f.Report.Driver != nil:
		return nil
	case f.Report.DriverUnknown != "":
		return []Finding{{Severity: Fault, Subject: node, Sentence: "No driver answers on the state folder: it is not known whether one runs (" + f.Report.DriverUnknown + ").",
			Remedy: "Ask as root. If its process is stopped or hangs, delete its pod: what it has begun, it finishes when it starts again."}}
	}
	return []Finding{{Severity: Fault, Subject: node, Sentence: "No driver runs on the state folder: nothing is published here, and no teardown is carried on.",
		Remedy: "Look at the driver's pod on this node: kubectl describe, kubectl logs --previous. If it does run, give its --state-dir."}}
}

func driverNotReady(f *Facts) []Finding {
	if f.Report.Driver == nil || f.Report.Driver.NotReady == "" {
		return nil
	}
	return []Finding{{Severity: Fault, Subject: node, Sentence: "The driver is not ready: " + f.Report.Driver.NotReady + ".",
		Remedy: "Mend what it names; it is ready again by itself, and a restart is no help."}}
}

func versionSkew(f *Facts) []Finding {
	if f.Report.Driver == nil || f.Report.Driver.Version == f.Version {
		return nil
	}
	return []Finding{{Severity: Warning, Subject: node,
		Sentence: fmt.Sprintf("The running driver is %s, and this command is %s: one may not know what the other writes.", f.Report.Driver.Version, f.Version),
		Remedy:   "Use the command of the driver's own image (kubectl exec), or roll the DaemonSet out."}}
}

// needs tells for what a tool or a module is.
var needs = map[string]string{
	"lvm": "everything", "blkid": "each first stage or publish", "thin_dump": "changed blocks of thin snapshots, and LVM needs its package for thin pools",
	"mkfs.ext4": "ext4", "resize2fs": "larger ext4", "mkfs.xfs": "XFS", "xfs_growfs": "larger XFS", "mkfs.btrfs": "btrfs", "btrfs": "larger btrfs",
	"dm_mod": "everything", "dm_thin_pool": "thin pools", "dm_raid": "RAID volumes", "dm_snapshot": "thick snapshots", "ext4": "ext4", "xfs": "XFS",
}

func missing(all []string, what, remedy string) (out []Finding) {
	for _, name := range all {
		severity := Warning
		if needs[name] == "everything" {
			severity = Fault
		}
		need := needs[name]
		if need == "" {
			need = name
		}
		out = append(out, Finding{Severity: severity, Subject: node, Sentence: fmt.Sprintf("The %s %s is missing; it is needed for %s.", what, name, need), Remedy: remedy})
	}
	return out
}

func toolMissing(f *Facts) []Finding {
	if f.Report.Driver != nil && f.Report.Driver.LVMExec == "host" {
		return nil // LVM's are the host's
	}
	return missing(f.Machine.MissingTools, "program", "Use the driver's own image, which has it; outside of that, install its package. Where this is not used, nothing has to be done.")
}

func moduleMissing(f *Facts) []Finding {
	return missing(f.Machine.MissingModules, "kernel module", "Install the package of the kernel's further modules, or take another kernel, and modprobe it. Where this is not used, nothing has to be done.")
}

func locksApart(f *Facts) []Finding {
	if !f.Machine.LocksApart || f.Report.Driver != nil && f.Report.Driver.LVMExec == "host" {
		return nil
	}
	return []Finding{{Severity: Warning, Subject: node, Sentence: "The folder of LVM's locks, /run/lock/lvm, is not the host's: an LVM command on the host and one of the driver's may change a group at the same time.",
		Remedy: "Mount the host's /run/lock/lvm into the driver's container, as the chart does, or use --lvm-exec=host."}}
}

func udevWaits(f *Facts) []Finding {
	if f.Machine.Cookies == 0 {
		return nil
	}
	return []Finding{{Severity: Warning, Subject: node, Sentence: fmt.Sprintf("%d LVM commands have waited for udev for more than a minute.", f.Machine.Cookies),
		Remedy: "Look at systemd-udevd on the host: systemctl status, udevadm settle. dmsetup udevcookies lists them; when udev works again, dmsetup udevcomplete_all lets them end."}}
}

func journalDamaged(f *Facts) (out []Finding) {
	for _, p := range f.Report.Problems {
		out = append(out, Finding{Severity: Fault, Subject: node, Sentence: "A file of the journal cannot be used, and its volume is left alone: " + p + ".",
			Remedy: "Look at the file, make sure of the state of its volume, remove the file, and restart the driver. If a newer driver wrote it, run that one."})
	}
	return out
}

// judged makes a finding of a condition. The message of one ends with what to do.
func judged(subject string, c status.Condition) Finding {
	f := Finding{Severity: Fault, Subject: subject, Sentence: c.Message, Remedy: health.Remedy(health.Reason(c.Reason))}
	if c.Status == health.Degraded.String() {
		f.Severity = Warning
	}
	if c.Reason == string(health.RaidResyncing) {
		f.Severity = Note
	}
	if said, ok := strings.CutSuffix(c.Message, ": "+f.Remedy); ok {
		f.Sentence = said
	}
	f.Sentence = c.Reason + ": " + f.Sentence + "."
	f.Remedy += "; docs/health.md has it in full."
	return f
}

func storageHealth(f *Facts) (out []Finding) {
	for _, c := range f.Report.Storage {
		out = append(out, judged(node, c))
	}
	return out
}

func volumeHealth(f *Facts) (out []Finding) {
	for _, v := range f.Report.Volumes {
		for _, c := range v.Conditions {
			if c.Reason != string(health.DeviceSuspended) { // a rule of its own
				out = append(out, judged(v.ID, c))
			}
		}
	}
	return out
}
