package show

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// full has something of everything.
func full() *status.Report {
	now := time.Unix(1700000000, 0)
	half, most, next := 0.5, 0.9, now.Add(4*time.Second)
	used, of := int64(30<<20), int64(60<<20)
	target := "/var/lib/kubelet/pods/5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d/volumes/kubernetes.io~csi/scratch/mount"
	return &status.Report{
		Time: now, Node: "node-1", Owner: "local-lvm.csi.internal",
		Driver: &status.Live{
			Version: "v1.2.3", PID: 7, Since: now.Add(-3 * time.Hour),
			Copies:   []status.Copy{{From: "data/pvc-a", To: "data/pvc-b", Done: 1 << 30, Of: 4 << 30, Started: now.Add(-10 * time.Second)}, {From: "data/a", To: "data/b"}},
			Programs: []status.Program{{Argv: []string{"mkfs.ext4", "-q", "/dev/dm-3"}, Started: now.Add(-12 * time.Second)}},
			Orphans:  []status.Orphan{{VolumeID: "csi-9", Since: now.Add(-5 * time.Minute), Kept: true}},
		},
		Groups: []status.Group{{Name: "data", SizeBytes: 100 << 30, FreeBytes: 40 << 30, Disks: 2, Missing: 1,
			Pools: []status.Pool{{Name: "pool", SizeBytes: 10 << 30, VirtualBytes: 20 << 30, Data: &most, Metadata: &half}, {Name: "idle", SizeBytes: 10 << 30}}}},
		Volumes: []status.Volume{
			{VG: "data", LV: "csi-4f1c0e7f6a2f4c09b0a1e5d4c3b2a190807f6e5d4c3b2a1908f7e6d5c4b3a291", Kind: volume.Inline, SizeBytes: 64 << 20, Type: "linear", Boundary: status.InTeardown,
				UsedBytes: &used, FSBytes: &of, Mounts: []status.Mount{{Path: target, PodUID: "uid-1"}}},
			{VG: "data", LV: "pvc-5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d", Kind: volume.Persistent, SizeBytes: 1536 << 20, Type: "raid1", Boundary: status.Published, Sync: &status.Sync{Action: "recover", Done: half},
				Conditions: []status.Condition{{Status: "inaccessible", Reason: "RaidFailed", Message: "data-pvc: 2 of 2 legs have failed (DD), too many: bring disks back; lvchange --refresh"}}},
			{VG: "data", LV: "snap-1", Kind: volume.Snapshot, SizeBytes: 10 << 30, Type: "thin", Boundary: status.Provisioned, Unknown: "no answer"},
		},
		Pending: []status.Pending{{VolumeID: "csi-4f1c", VG: "data", LV: "csi-4f1c", Intent: journal.Reclaim, Since: now.Add(-10 * time.Minute), Paths: []string{target},
			Tries: 12, Next: &next, Busy: true, Holders: []string{"pid 4711 (postgres), open file /data/base/1/2, pod uid-1, container 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}},
		Storage:  []status.Condition{{Status: "degraded", Reason: "DiskMissing", Message: "volume group data: 1 of 2 disks are missing: bring the disk back, or replace it"}},
		Problems: []string{"0123.json: torn"},
		Unknown:  []string{"the mount table: no answer in time (8s)"},
	}
}

func render(t *testing.T, r *status.Report, o Options) string {
	t.Helper()
	var out bytes.Buffer
	if err := Status(&out, r, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Whatever the width of the terminal, no line is longer, and nothing that tells volumes apart is lost.
func TestWidths(t *testing.T) {
	for _, width := range []int{80, 100, 132, 200} {
		page := render(t, full(), Options{Width: width, Color: true, Unicode: true})
		for line := range strings.Lines(page) {
			if n := text.StringWidthWithoutEscSequences(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("at %d: %d columns: %q", width, n, line)
			}
		}
		for _, want := range []string{"data/", "c4b3a291", "0a1b2c3d", "in teardown", "inaccessible", "12 tries", "the next in 4s", "pid 4711"} {
			if !strings.Contains(page, want) {
				t.Errorf("at %d: no %q in\n%s", width, want, page)
			}
		}
	}
}

// Without a terminal there is one line for each volume, whole, and nothing but text.
func TestWithoutATerminal(t *testing.T) {
	page := render(t, full(), Options{})
	for _, want := range []string{
		"node node-1: driver local-lvm.csi.internal v1.2.3, ready, up 3h, pid 7\n",
		"VOLUME GROUP  SIZE   FREE  USED\n",
		"data          100Gi  40Gi  #######.....  60 %  2 disks, 1 missing\n",
		"  pool pool   10Gi   1Gi   ###########.  90 %  volumes of 20Gi, metadata 50 %\n",
		"  pool idle   10Gi         not active          volumes of 0\n",
		"\ndata/pvc-5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d                              persistent  1.5Gi  raid1   -     published    inaccessible\n",
		"  data/csi-4f1c: teardown, for 10m, 12 tries, the next in 4s\n",
		"\n  held by pid 4711 (postgres), open file /data/base/1/2, pod uid-1, container 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n",
		"\nUNDER WAY\n  copy of data/pvc-a to data/pvc-b: ###.........  25 % of 4Gi, 102.4Mi/s, 30s left\n  copy of data/a to data/b: waits for its turn\n",
		"\n  recover of the legs of data/pvc-5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d: ######......  50 % of 1.5Gi\n  for 12s: mkfs.ext4 -q /dev/dm-3\n",
		"  csi-9: its pod is gone, and nothing has used it for 5m; it is kept\n",
		"  degraded DiskMissing: volume group data: 1 of 2 disks are missing: bring the disk back, or replace it\n",
		"  journal: 0123.json: torn\n",
		"  not known: the mount table: no answer in time (8s)\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	for i, c := range page {
		if c != '\n' && (c < ' ' || c > '~') {
			t.Fatalf("character %q at %d of\n%s", c, i, page)
		}
	}
	down := full()
	down.Driver = nil
	if page := render(t, down, Options{}); !strings.Contains(page, "not running; what follows was found out without it") {
		t.Error(page)
	}
	down.DriverUnknown = "deadline exceeded"
	if page := render(t, down, Options{}); strings.Contains(page, "not running") || !strings.Contains(page, "does not answer (deadline exceeded)") {
		t.Error(page)
	}
	blind := &status.Report{Time: time.Now(), Node: "n", Owner: "d", Unknown: []string{"the logical volumes: no answer in time"}}
	if page := render(t, blind, Options{}); strings.Contains(page, "no volumes") || !strings.Contains(page, "volumes: not known") {
		t.Error(page)
	}
	empty := render(t, &status.Report{Time: time.Now(), Node: "n", Owner: "d"}, Options{})
	if !strings.Contains(empty, "no volumes") || strings.Contains(empty, "WRONG") {
		t.Error(empty)
	}
}

func TestSizes(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0", 1023: "1023", 1024: "1Ki", 1536 << 20: "1.5Gi", 1 << 62: "4Ei"} {
		if got := size(bytes); got != want {
			t.Errorf("%d: %s", bytes, got)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0s", 90 * time.Second: "90s", 90 * time.Minute: "90m", 47 * time.Hour: "47h", 72 * time.Hour: "3d"} {
		if got := span(d); got != want {
			t.Errorf("%s: %s", d, got)
		}
	}
}

func TestSnip(t *testing.T) {
	for most, want := range map[int]string{0: "abcdefghij", 10: "abcdefghij", 9: "abc...hij", 5: "a...j", 4: "abcd", 2: "ab"} {
		if got := (Options{}).snip("abcdefghij", most); got != want {
			t.Errorf("%d: %q", most, got)
		}
	}
}
