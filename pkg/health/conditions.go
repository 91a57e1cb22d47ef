// Package health is the one place that knows what is healthy: facts of LVM, device-mapper and file systems become
// conditions, each with a stable reason, a status, and a message that says what to do. It gathers the facts without
// LVM commands where nothing has changed, and without hanging on what hangs.
package health

import (
	"cmp"
	"slices"
	"strings"
)

// Status says how bad a condition is.
type Status int

// The statuses of a volume; of the storage of a node there are the first two (CSI spec, VolumeHealthErrorType and
// StorageHealthErrorType).
const (
	Degraded     Status = iota + 1 // reads and writes go on, and something is less than it should be, or soon will be
	Inaccessible                   // reads or writes fail, or hang
	DataLoss                       // data is lost, or very likely so
)

// String gives the word that people read.
func (s Status) String() string {
	return map[Status]string{Degraded: "degraded", Inaccessible: "inaccessible", DataLoss: "data loss"}[s]
}

// Condition is something adverse.
type Condition struct {
	Status  Status
	Reason  Reason
	Message string // what was found, and what to do; at most 128 bytes (CSI spec, Size Limits)
}

// Reason is the stable word for a condition.
type Reason string

// The reasons. They are an interface: alerts are written on them. docs/health.md has them in a table.
const (
	DiskMissing      Reason = "DiskMissing"
	DiskUnreadable   Reason = "DiskUnreadable"
	DiskErrors       Reason = "DiskErrors"
	DeviceHung       Reason = "DeviceHung"
	DeviceSuspended  Reason = "DeviceSuspended"
	DeviceUnreadable Reason = "DeviceUnreadable"
	DeviceGone       Reason = "DeviceGone"
	VolumeGone       Reason = "VolumeGone"
	GroupMissing     Reason = "GroupMissing"
	GroupUnreadable  Reason = "GroupUnreadable"

	RaidDegraded  Reason = "RaidDegraded"
	RaidFailed    Reason = "RaidFailed"
	RaidResyncing Reason = "RaidResyncing"
	RaidMismatch  Reason = "RaidMismatch"

	ThinPoolNearlyFull         Reason = "ThinPoolNearlyFull"
	ThinPoolFull               Reason = "ThinPoolFull"
	ThinPoolMetadataNearlyFull Reason = "ThinPoolMetadataNearlyFull"
	ThinPoolReadOnly           Reason = "ThinPoolReadOnly"
	ThinPoolNeedsCheck         Reason = "ThinPoolNeedsCheck"
	ThinPoolFailed             Reason = "ThinPoolFailed"
	ThinVolumeFailed           Reason = "ThinVolumeFailed"

	SnapshotNearlyFull Reason = "SnapshotNearlyFull"
	SnapshotLost       Reason = "SnapshotLost"

	FilesystemReadOnly Reason = "FilesystemReadOnly"
	FilesystemShutdown Reason = "FilesystemShutdown"
	FilesystemErrors   Reason = "FilesystemErrors"
	FilesystemDamaged  Reason = "FilesystemDamaged"
	FilesystemHung     Reason = "FilesystemHung"
)

// remedies say what to do, in few words; docs/health.md says more.
var remedies = map[Reason]string{
	DiskMissing:      "bring the disk back, or replace it",
	DiskUnreadable:   "replace the disk",
	DiskErrors:       "look at the kernel's log; replace the disk",
	DeviceHung:       "look at the disk and the kernel's log",
	DeviceSuspended:  "see who suspended it; dmsetup resume",
	DeviceUnreadable: "look at its disks and the kernel's log",
	DeviceGone:       "unpublish the volume and publish it again",
	VolumeGone:       "save the data now; see vgcfgrestore(8)",
	GroupMissing:     "bring its disks back",
	GroupUnreadable:  "look at the driver's log; try vgs",

	RaidDegraded:  "lvconvert --repair, or lvchange --refresh",
	RaidFailed:    "bring disks back; lvchange --refresh",
	RaidResyncing: "wait",
	RaidMismatch:  "lvchange --syncaction repair",

	ThinPoolNearlyFull:         "lvextend the pool, or delete volumes",
	ThinPoolFull:               "lvextend the pool, or delete volumes",
	ThinPoolMetadataNearlyFull: "lvextend --poolmetadatasize",
	ThinPoolReadOnly:           "deactivate it; lvconvert --repair",
	ThinPoolNeedsCheck:         "deactivate it; lvconvert --repair; activate it with thin_check --clear-needs-check-flag",
	ThinPoolFailed:             "deactivate it; lvconvert --repair",
	ThinVolumeFailed:           "deactivate its pool; lvconvert --repair",

	SnapshotNearlyFull: "lvextend the snapshot",
	SnapshotLost:       "delete it",

	FilesystemReadOnly: "end its pods, so that it is checked and mounted anew",
	FilesystemShutdown: "end its pods, so that it is mounted anew",
	FilesystemErrors:   "end its pods and check it: fsck",
	FilesystemDamaged:  "restore what is damaged from a copy",
	FilesystemHung:     "look at its disks and the kernel's log",
}

// Remedy says what to do about a reason, in few words; "" for one that is not known.
func Remedy(r Reason) string { return remedies[r] }

// Reasons gives all reasons, sorted.
func Reasons() []Reason {
	var out []Reason
	for r := range remedies {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// list collects conditions.
type list []found

type found struct {
	status  Status
	reason  Reason
	details []string
}

// add adds what was found. Findings of one status and reason are one condition, as the CSI spec demands.
func (l *list) add(s Status, r Reason, detail string) {
	for i := range *l {
		if f := &(*l)[i]; f.status == s && f.reason == r {
			if !slices.Contains(f.details, detail) {
				f.details = append(f.details, detail)
			}
			return
		}
	}
	*l = append(*l, found{s, r, []string{detail}})
}

// conditions gives what was collected, the worst first.
func (l list) conditions() []Condition {
	var out []Condition
	for _, f := range l {
		out = append(out, Condition{f.status, f.reason, message(strings.Join(f.details, "; "), remedies[f.reason])})
	}
	slices.SortFunc(out, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(b.Status, a.Status), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// maxMessage is the CSI spec's limit for a string.
const maxMessage = 128

// message joins what was found and what to do. Where that is too long the former is cut: the rest is in the driver's log.
func message(detail, remedy string) string {
	const cut, join = "...", ": "
	detail = strings.ToValidUTF8(strings.ReplaceAll(detail, "\n", " "), "?")
	if room := maxMessage - len(join) - len(remedy); len(detail) > room {
		detail = strings.ToValidUTF8(detail[:room-len(cut)], "") + cut
	}
	return detail + join + remedy
}
