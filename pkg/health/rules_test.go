package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func raid(kind, legs string) volume.DeviceFacts {
	return volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: "vg-lv", Type: kind, Legs: legs, Synced: 8, Total: 8, Action: "idle"}}}
}

func pool(p volume.PoolStatus) volume.DeviceFacts {
	p.Device = "vg-pool-tpool"
	return volume.DeviceFacts{Pools: []volume.PoolStatus{p}}
}

func snapshot(device, lost string, used int64) volume.DeviceFacts {
	return volume.DeviceFacts{Snapshots: []volume.SnapshotStatus{{Device: device, Lost: lost, Used: used, Total: 100}}}
}

func filesystem(f volume.FilesystemFacts) []volume.FilesystemFacts {
	f.Mount.FS = "ext4"
	return []volume.FilesystemFacts{f}
}

var fault = []volume.Fault{{Device: "sda", Text: "input/output error"}}
var diskFault = []volume.Fault{{Device: "sda", Disk: true, Text: "input/output error"}}

// Each row is one fact of a volume that is well otherwise, and what it means: "status reason", sorted by badness.
var volumeRows = []struct {
	name string
	seen Seen
	want string
}{
	{"well", Seen{}, ""},
	{"disk missing", Seen{Facts: volume.Facts{LV: volume.LV{Type: volume.Linear, Partial: true}}}, "Inaccessible DiskMissing"},
	{"disk of a mirror missing", Seen{Facts: volume.Facts{LV: volume.LV{Type: volume.RAID1, Partial: true}}}, "Degraded DiskMissing"},
	{"disk unreadable", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Failed: diskFault}}}, "Inaccessible DiskUnreadable"},
	{"disk of a mirror unreadable", Seen{Facts: volume.Facts{LV: volume.LV{Type: volume.RAID1}, DeviceFacts: volume.DeviceFacts{Failed: diskFault}}}, "Degraded DiskUnreadable"},
	{"disk errors", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Erring: diskFault}}}, "Degraded DiskErrors"},
	{"device unreadable", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Failed: fault}}}, "Inaccessible DeviceUnreadable"},
	{"device hung", Seen{Facts: volume.Facts{Unknown: errors.New("x"), DeviceFacts: volume.DeviceFacts{Hung: fault}}}, "Inaccessible DeviceHung"},
	{"device suspended", Seen{Facts: volume.Facts{Unknown: errors.New("x"), DeviceFacts: volume.DeviceFacts{Suspended: []string{"dm-1"}}}}, "Inaccessible DeviceSuspended"},
	{"device without a table", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Empty: []string{"vg-lv"}}}}, "Inaccessible DeviceGone"},
	{"a part without a table", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Empty: []string{"vg-lv_x"}}}}, "Inaccessible DeviceGone"},
	{"a leg without a table", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Empty: []string{"vg-lv_x"}, Raids: raid("raid1", "A-").Raids}}}, "Degraded RaidDegraded"},
	{"a stranger at its path", Seen{Strangers: []volume.Mount{{Major: 1, Minor: 2}}}, "Inaccessible DeviceGone"},
	{"gone", Seen{Facts: volume.Facts{Gone: true}}, "DataLoss VolumeGone"},
	{"another's device", Seen{Facts: volume.Facts{LV: volume.LV{UUID: "a-b"}, DeviceFacts: volume.DeviceFacts{UUID: "LVM-xyzac", Active: true}}}, "DataLoss VolumeGone"},
	{"its own device", Seen{Facts: volume.Facts{LV: volume.LV{UUID: "a-b"}, DeviceFacts: volume.DeviceFacts{UUID: "LVM-xyzab", Active: true}}}, ""},
	{"LVM does not tell", Seen{Facts: volume.Facts{Unknown: errors.New("x")}}, "Inaccessible GroupUnreadable"},
	{"LVM does not tell, it works", Seen{Facts: volume.Facts{Unknown: errors.New("x"), DeviceFacts: volume.DeviceFacts{Active: true}}}, "Degraded GroupUnreadable"},

	{"raid", Seen{Facts: volume.Facts{DeviceFacts: raid("raid1", "AA")}}, ""},
	{"raid1 2 of 3", Seen{Facts: volume.Facts{DeviceFacts: raid("raid1", "DAD")}}, "Degraded RaidDegraded"},
	{"raid1 all", Seen{Facts: volume.Facts{DeviceFacts: raid("raid1", "D-")}}, "Inaccessible RaidFailed"},
	{"raid5 1", Seen{Facts: volume.Facts{DeviceFacts: raid("raid5_ls", "ADA")}}, "Degraded RaidDegraded"},
	{"raid5 2", Seen{Facts: volume.Facts{DeviceFacts: raid("raid5_ls", "ADD")}}, "Inaccessible RaidFailed"},
	{"raid6 2", Seen{Facts: volume.Facts{DeviceFacts: raid("raid6_zr", "AD-AA")}}, "Degraded RaidDegraded"},
	{"raid6 3", Seen{Facts: volume.Facts{DeviceFacts: raid("raid6_zr", "AD-DA")}}, "Inaccessible RaidFailed"},
	{"raid10 of each pair one", Seen{Facts: volume.Facts{DeviceFacts: raid("raid10", "ADDA")}}, "Degraded RaidDegraded"},
	{"raid10 a pair", Seen{Facts: volume.Facts{DeviceFacts: raid("raid10_near", "AADD")}}, "Inaccessible RaidFailed"},
	{"raid0", Seen{Facts: volume.Facts{DeviceFacts: raid("raid0", "AD")}}, "Inaccessible RaidFailed"},
	{"raid resyncs", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: "vg-lv", Type: "raid1", Legs: "Aa", Synced: 4, Total: 8, Action: "recover"}}}}}, "Degraded RaidResyncing"},
	{"raid is checked", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: "vg-lv", Type: "raid1", Legs: "AA", Synced: 4, Total: 8, Action: "check"}}}}}, ""},
	{"raid waits for a leg", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: "vg-lv", Type: "raid1", Legs: "AD", Synced: 4, Total: 8, Action: "idle"}}}}}, "Degraded RaidDegraded"},
	{"raid copies differ", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: "vg-lv", Type: "raid1", Legs: "AA", Mismatches: 8}}}}}, "Degraded RaidMismatch"},

	{"thin failed", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{ThinFailed: true}}}, "Inaccessible ThinVolumeFailed"},
	{"pool", Seen{Facts: volume.Facts{DeviceFacts: pool(volume.PoolStatus{UsedData: 84, Data: 100, UsedMetadata: 84, Metadata: 100})}}, ""},
	{"pool nearly full", Seen{Facts: volume.Facts{DeviceFacts: pool(volume.PoolStatus{UsedData: 85, Data: 100})}}, "Degraded ThinPoolNearlyFull"},
	{"pool full", Seen{Facts: volume.Facts{DeviceFacts: pool(volume.PoolStatus{UsedData: 100, Data: 100})}}, "Degraded ThinPoolFull"},
	{"pool out of space", Seen{Facts: volume.Facts{DeviceFacts: pool(volume.PoolStatus{UsedData: 100, Data: 100, OutOfSpace: true})}}, "Inaccessible ThinPoolFull"},
	{"pool metadata", Seen{Facts: volume.Facts{DeviceFacts: pool(volume.PoolStatus{UsedMetadata: 90, Metadata: 100})}}, "Degraded ThinPoolMetadataNearlyFull"},
	{"pool read-only", Seen{Facts: volume.Facts{DeviceFacts: pool(volume.PoolStatus{ReadOnly: true, NeedsCheck: true})}}, "Inaccessible ThinPoolReadOnly, Degraded ThinPoolNeedsCheck"},
	{"pool failed", Seen{Facts: volume.Facts{DeviceFacts: pool(volume.PoolStatus{Failed: true})}}, "Inaccessible ThinPoolFailed"},

	{"is a snapshot", Seen{Facts: volume.Facts{DeviceFacts: snapshot("vg-lv", "", 84)}}, ""},
	{"is a full snapshot", Seen{Facts: volume.Facts{DeviceFacts: snapshot("vg-lv", "", 85)}}, "Degraded SnapshotNearlyFull"},
	{"is a lost snapshot", Seen{Facts: volume.Facts{DeviceFacts: snapshot("vg-lv", "Overflow", 0)}}, "DataLoss SnapshotLost"},
	{"has a lost snapshot", Seen{Facts: volume.Facts{DeviceFacts: snapshot("vg-snap", "Invalid", 0)}}, "Degraded SnapshotLost"},
	{"has a full snapshot", Seen{Facts: volume.Facts{DeviceFacts: snapshot("vg-snap", "", 99)}}, "Degraded SnapshotNearlyFull"},
	{"has a lost sibling", Seen{Facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Snapshots: append(snapshot("vg-lv", "", 1).Snapshots, snapshot("vg-snap", "Invalid", 0).Snapshots...)}}}, ""},

	{"read-only", Seen{Filesystems: filesystem(volume.FilesystemFacts{ReadOnly: true})}, "Inaccessible FilesystemReadOnly"},
	{"shut down", Seen{Filesystems: filesystem(volume.FilesystemFacts{ShutDown: "EIO", ReadOnly: true})}, "Inaccessible FilesystemShutdown"},
	{"file system hung", Seen{Filesystems: filesystem(volume.FilesystemFacts{Hung: true})}, "Inaccessible FilesystemHung"},
	{"file system errors", Seen{Filesystems: filesystem(volume.FilesystemFacts{Errors: 3})}, "Degraded FilesystemErrors"},
	{"file system damaged", Seen{Filesystems: filesystem(volume.FilesystemFacts{Errors: 3, Damages: 2})}, "DataLoss FilesystemDamaged"},
	{"read-only mount of a snapshot", Seen{Facts: volume.Facts{DeviceFacts: snapshot("vg-lv", "Invalid", 0)}, Filesystems: filesystem(volume.FilesystemFacts{ReadOnly: true})},
		"DataLoss SnapshotLost, Inaccessible FilesystemReadOnly"},
}

func TestVolumeRules(t *testing.T) {
	seen := map[Reason]bool{}
	for _, row := range volumeRows {
		row.seen.Ref = volume.Ref{VG: "vg", LV: "lv"}
		got := OfVolume(row.seen)
		if text := list2text(t, got); text != row.want {
			t.Errorf("%s: got %q, want %q", row.name, text, row.want)
		}
		for _, c := range got {
			seen[c.Reason] = true
		}
	}
	seen[GroupMissing] = true // of the storage only
	for _, r := range Reasons() {
		if !seen[r] {
			t.Errorf("no row has %s", r)
		}
	}
}

func list2text(t *testing.T, conditions []Condition) string {
	t.Helper()
	var out []string
	for _, c := range conditions {
		if c.Message == "" || len(c.Message) > maxMessage || strings.HasPrefix(c.Message, ":") || !strings.HasSuffix(c.Message, ": "+remedies[c.Reason]) || remedies[c.Reason] == "" {
			t.Errorf("%s: message %q", c.Reason, c.Message)
		}
		out = append(out, fmt.Sprintf("%s %s", map[Status]string{Degraded: "Degraded", Inaccessible: "Inaccessible", DataLoss: "DataLoss"}[c.Status], c.Reason))
	}
	return strings.Join(out, ", ")
}

func group(g volume.Group, d volume.DeviceFacts) volume.StorageFacts {
	g.Name = "vg"
	return volume.StorageFacts{Groups: []volume.GroupFacts{{Group: g, Devices: d}}}
}

// The same for the storage of a node.
var storageRows = map[string]struct {
	facts volume.StorageFacts
	want  string
}{
	"well":                      {group(volume.Group{}, volume.DeviceFacts{}), ""},
	"nothing known":             {volume.StorageFacts{Unknown: errors.New("x")}, "Inaccessible GroupUnreadable"},
	"group missing":             {volume.StorageFacts{Missing: []string{"a", "b"}}, "Inaccessible GroupMissing"},
	"disk missing":              {group(volume.Group{MissingPVs: 1}, volume.DeviceFacts{}), "Degraded DiskMissing"},
	"disk unreadable":           {group(volume.Group{}, volume.DeviceFacts{Failed: diskFault}), "Degraded DiskUnreadable"},
	"disk hung":                 {group(volume.Group{}, volume.DeviceFacts{Hung: diskFault}), "Inaccessible DeviceHung"},
	"disk errors":               {group(volume.Group{}, volume.DeviceFacts{Erring: diskFault}), "Degraded DiskErrors"},
	"pool full":                 {group(volume.Group{}, pool(volume.PoolStatus{UsedData: 100, Data: 100, OutOfSpace: true})), "Degraded ThinPoolFull"},
	"pool failed":               {group(volume.Group{}, pool(volume.PoolStatus{Failed: true})), "Inaccessible ThinPoolFailed"},
	"snapshot lost":             {group(volume.Group{}, snapshot("vg-s", "Invalid", 0)), "Degraded SnapshotLost"},
	"volumes' own RAID":         {group(volume.Group{}, volume.DeviceFacts{Raids: raid("raid1", "D-").Raids}), ""},
	"suspended":                 {group(volume.Group{}, volume.DeviceFacts{Suspended: []string{"dm-1"}}), "Inaccessible DeviceSuspended"},
	"pool does not answer well": {group(volume.Group{}, volume.DeviceFacts{Failed: fault}), "Inaccessible DeviceUnreadable"},
	"pool nearly full":          {group(volume.Group{}, pool(volume.PoolStatus{UsedData: 90, Data: 100, UsedMetadata: 90, Metadata: 100})), "Degraded ThinPoolMetadataNearlyFull, Degraded ThinPoolNearlyFull"},
	"pool read-only":            {group(volume.Group{}, pool(volume.PoolStatus{ReadOnly: true, NeedsCheck: true})), "Degraded ThinPoolNeedsCheck, Degraded ThinPoolReadOnly"},
	"snapshot full":             {group(volume.Group{}, snapshot("vg-s", "", 90)), "Degraded SnapshotNearlyFull"},
}

func TestStorageRules(t *testing.T) {
	for name, row := range storageRows {
		if got := list2text(t, OfStorage(row.facts)); got != row.want {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
}

// Findings of one status and reason are one condition (CSI spec, VolumeHealthEntry), within the limit of a string.
func TestOneConditionForAReason(t *testing.T) {
	var f volume.DeviceFacts
	for i := range 50 {
		f.Hung = append(f.Hung, volume.Fault{Device: fmt.Sprintf("sd-ä%d", i)})
	}
	f.Hung = append(f.Hung, f.Hung[0])
	got := OfVolume(Seen{Facts: volume.Facts{DeviceFacts: f}})
	if list2text(t, got) != "Inaccessible DeviceHung" || strings.Count(got[0].Message, "sd-ä0 ") != 1 || !slices.Contains([]int{maxMessage, maxMessage - 1}, len(got[0].Message)) {
		t.Errorf("got %+v", got)
	}
}
