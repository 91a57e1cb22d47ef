package doctor

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	target  = "/k/pods/uid-1/volumes/kubernetes.io~csi/pv/mount"
	handle  = "node-1/data/pvc-1"
	inlined = "csi-1"
)

var (
	now = time.Unix(1700000000, 0)
	old = now.Add(-time.Hour)
)

// well is a node on which nothing is wrong: one volume that a pod has, as everybody says.
func well() *Facts {
	return &Facts{
		Version: "v1", Pods: []string{"uid-1"}, PodsKnown: true,
		Report: &status.Report{
			Time: now, Node: "node-1", Driver: &status.Live{Version: "v1", LVMExec: "container"},
			Groups: []status.Group{{Name: "data"}},
			Volumes: []status.Volume{
				{ID: handle, Name: "pvc-1", Kind: volume.Persistent, VG: "data", LV: "pvc-1", Active: true, Open: 1, Device: "253:3", Boundary: status.Published,
					Mounts: []status.Mount{{Path: target, Role: status.TargetRole, PodUID: "uid-1"}}},
			},
			Mounts: []volume.Mount{{Target: target, Major: 253, Minor: 3}},
		},
		Kubelet: []Wanted{{Handle: handle, Path: target, PodUID: "uid-1", Written: old, IsFolder: true}},
		Cluster: &Cluster{
			PVs: []PV{{Name: "pv", Handle: handle, Claim: "ns/claim", Phase: "Bound"}}, Nodes: []string{"node-1"}, Pods: []Pod{{UID: "uid-1", Name: "ns/pod"}},
			Attachments: []Attachment{{Name: "a", Node: "node-1", PV: "pv"}},
		},
	}
}

// alone adds an inline volume that nobody uses.
func alone(f *Facts) *status.Volume {
	f.Report.Volumes = append(f.Report.Volumes, status.Volume{ID: inlined, Name: inlined, Kind: volume.Inline, VG: "data", LV: inlined, Active: true, Device: "253:4", Boundary: status.Provisioned, PodUID: "uid-2"})
	return &f.Report.Volumes[1]
}

func first(f *Facts) *status.Volume { return &f.Report.Volumes[0] }

// Each row changes one thing on a well node, and gives what is found: the severity, the rule, the subject, and a part of the sentence.
var cases = []struct {
	name   string
	change func(f *Facts)
	want   string // severity rule subject; "": nothing
	part   string
	fix    string
}{
	{"all is well", func(*Facts) {}, "", "", ""},
	{"without Kubernetes", func(f *Facts) { f.Cluster = nil }, "", "", ""},

	{"a question failed", func(f *Facts) { f.Report.Unknown = []string{"the mount table: no answer in time"} }, "fault not-known node", "the mount table: no answer in time.", ""},
	{"no driver", func(f *Facts) { f.Report.Driver = nil }, "fault driver-down node", "No driver runs", ""},
	{"a driver that does not answer", func(f *Facts) { f.Report.Driver, f.Report.DriverUnknown = nil, "deadline exceeded" }, "fault driver-down node",
		"No driver answers on the state folder: it is not known whether one runs (deadline exceeded).", ""},
	{"not ready", func(f *Facts) { f.Report.Driver.NotReady = "LVM is not there" }, "fault driver-not-ready node", "LVM is not there", ""},
	{"another version", func(f *Facts) { f.Version = "v2" }, "warning version-skew node", "is v1, and this command is v2", ""},
	{"no mkfs", func(f *Facts) { f.Machine.MissingTools = []string{"mkfs.xfs"} }, "warning tool-missing node", "mkfs.xfs is missing; it is needed for XFS", ""},
	{"no lvm", func(f *Facts) { f.Machine.MissingTools = []string{"lvm"} }, "fault tool-missing node", "needed for everything", ""},
	{"no lvm, but that of the host", func(f *Facts) { f.Machine.MissingTools, f.Report.Driver.LVMExec = []string{"lvm"}, "host" }, "", "", ""},
	{"no dm-raid", func(f *Facts) { f.Machine.MissingModules = []string{"dm_raid"} }, "warning module-missing node", "needed for RAID volumes", ""},
	{"locks of its own", func(f *Facts) { f.Machine.LocksApart = true }, "warning lvm-locks-apart node", "is not the host's", ""},
	{"udev is stuck", func(f *Facts) { f.Machine.Cookies = 3 }, "warning udev-waits node", "3 LVM commands", ""},
	{"a torn record", func(f *Facts) { f.Report.Problems = []string{"0.json: torn"} }, "fault journal-damaged node", "0.json: torn", ""},
	{"a disk is missing", func(f *Facts) {
		f.Report.Storage = []status.Condition{{Status: "degraded", Reason: "DiskMissing", Message: "volume group data: 1 of 2 disks are missing: bring the disk back, or replace it"}}
	}, "warning storage-health node", "DiskMissing: volume group data: 1 of 2 disks are missing.", ""},
	{"a leg failed", func(f *Facts) {
		first(f).Conditions = []status.Condition{{Status: "inaccessible", Reason: "RaidFailed", Message: "x: bring disks back; lvchange --refresh"}}
	}, "fault volume-health " + handle, "RaidFailed: x.", ""},
	{"it is built up again", func(f *Facts) {
		first(f).Conditions = []status.Condition{{Status: "degraded", Reason: "RaidResyncing", Message: "x: wait"}}
	}, "note volume-health " + handle, "RaidResyncing: x.", ""},

	{"suspended", func(f *Facts) {
		first(f).Suspended = true
		first(f).Conditions = []status.Condition{{Status: "inaccessible", Reason: "DeviceSuspended", Message: "x"}}
	}, "fault suspended " + handle, "whoever touches it hangs", ""},
	{"inactive, and wanted", func(f *Facts) {
		v := first(f)
		v.Active, v.Mounts, v.Boundary, v.Open, f.Report.Mounts, f.Kubelet[0].IsFolder = false, nil, status.Provisioned, 0, nil, false
	}, "warning inactive " + handle, "is not active", "activate data/pvc-1"},
	{"inactive, and nobody's", func(f *Facts) { alone(f).Active, f.Pods = false, append(f.Pods, "uid-2") }, "", "", ""},

	{"held", func(f *Facts) {
		f.Report.Pending = []status.Pending{{VolumeID: inlined, VG: "data", LV: inlined, Intent: journal.Reclaim, Paths: []string{"/t"}, Holders: []string{"pid 7 (sh)"}, Busy: true}}
	}, "warning teardown-pending " + inlined, "at /t: it is in use by pid 7 (sh).", ""},
	{"failed", func(f *Facts) {
		f.Report.Pending = []status.Pending{{VolumeID: inlined, VG: "data", LV: inlined, Intent: journal.Reclaim, Error: "I/O error", Tries: 4}}
	}, "fault teardown-pending " + inlined, "after 4 tries: I/O error.", ""},
	{"in use in another namespace", func(f *Facts) {
		alone(f).Open, f.Pods = 1, append(f.Pods, "uid-2")
		f.Held = map[string][]string{inlined: {"pid 9 (pause), mount in another namespace"}}
	}, "warning held " + inlined, "mounted nowhere here, and in use all the same, by pid 9", ""},

	{"an orphan", func(f *Facts) { alone(f) }, "warning orphan " + inlined, "its pod uid-2 has no folder", "remove logical volume data/csi-1"},
	{"its pod has a folder", func(f *Facts) { alone(f); f.Pods = append(f.Pods, "uid-2") }, "", "", ""},
	{"the pods are not known", func(f *Facts) { alone(f); f.PodsKnown = false }, "", "", ""},
	{"it is open", func(f *Facts) { alone(f).Open = 1 }, "", "", ""},
	{"its pod is not known", func(f *Facts) { alone(f).PodUID = "" }, "", "", ""},
	{"kubelet's folder is a guess", func(f *Facts) { alone(f); f.KubeletGuessed = true }, "warning orphan " + inlined, "If kubelet's folder is where it was looked for, ", ""},
	{"it has another name", func(f *Facts) { alone(f).LV = "csi-2" }, "", "", ""},
	{"it is being torn down", func(f *Facts) { alone(f).Boundary = status.InTeardown }, "", "", ""},

	{"kubelet has forgotten it", func(f *Facts) { f.Forgotten, f.Kubelet = []string{target}, nil }, "warning leaked-mount " + handle, "kubelet has forgotten it", "unmount " + target},
	{"and kubelet's folder is a guess", func(f *Facts) { f.Forgotten, f.Kubelet, f.KubeletGuessed = []string{target}, nil, true }, "warning leaked-mount " + handle, "kubelet has forgotten it", ""},
	{"and it is being torn down", func(f *Facts) {
		f.Forgotten, f.Kubelet = []string{target}, nil
		first(f).Boundary = status.InTeardown
	}, "", "", ""},
	{"another device", func(f *Facts) { f.Report.Mounts[0].Minor = 9 }, "fault foreign-mount " + handle, "mounted there is device 253:9", ""},
	{"another device on top", func(f *Facts) {
		f.Report.Mounts = append(f.Report.Mounts, volume.Mount{Target: target, Major: 8, Minor: 1})
	}, "fault foreign-mount " + handle, "device 8:1", ""},
	{"a target that was left", func(f *Facts) {
		f.Report.Mounts, first(f).Mounts, first(f).Boundary, f.Cluster.Pods = nil, nil, status.Provisioned, nil
	}, "warning target-left " + handle, "Nothing is mounted at " + target, "remove the folder " + target},
	{"a target in a folder that is a guess", func(f *Facts) {
		f.Report.Mounts, first(f).Mounts, first(f).Boundary, f.Cluster.Pods, f.KubeletGuessed = nil, nil, status.Provisioned, nil, true
	}, "warning target-left " + handle, "Nothing is mounted at " + target, ""},
	{"a pod that starts", func(f *Facts) {
		f.Report.Mounts, first(f).Mounts, first(f).Boundary, f.Cluster.Pods, f.Kubelet[0].Written = nil, nil, status.Provisioned, nil, now
	}, "", "", ""},
	{"LVM has it not", func(f *Facts) {
		f.Report.Volumes, f.Cluster = nil, nil
	}, "fault volume-missing " + handle, "LVM has no such volume", ""},
	{"nobody knows the node's name", func(f *Facts) { // which is node-1
		f.NodeGuessed, f.Report.Node, first(f).ID = true, "host", "host/data/pvc-1"
	}, "", "", ""},
	{"nobody knows what LVM has", func(f *Facts) {
		f.Report.Volumes, f.Cluster = nil, nil
		f.Report.Storage = []status.Condition{{Status: "inaccessible", Reason: "GroupMissing", Message: "x"}}
	}, "fault storage-health node", "GroupMissing", ""},

	{"two PVs", func(f *Facts) { f.Cluster.PVs = append(f.Cluster.PVs, PV{Name: "copy", Handle: handle}) }, "fault pv-twice " + handle, "The PersistentVolumes copy and pv name one volume", ""},
	{"a PV of nothing", func(f *Facts) {
		f.Cluster.PVs = append(f.Cluster.PVs, PV{Name: "lost", Handle: "node-1/data/gone", Claim: "ns/c"})
	}, "fault pv-without-volume node-1/data/gone", "PersistentVolume lost (claim ns/c)", ""},
	{"a PV of another node", func(f *Facts) {
		f.Cluster.PVs, f.Cluster.Nodes = append(f.Cluster.PVs, PV{Name: "other", Handle: "node-2/data/x"}), append(f.Cluster.Nodes, "node-2")
	}, "", "", ""},
	{"its node is gone", func(f *Facts) { f.Cluster.PVs = append(f.Cluster.PVs, PV{Name: "other", Handle: "node-2/data/x"}) },
		"fault pv-without-node node-2/data/x", "there is no such node", ""},
	{"no PV", func(f *Facts) { f.Cluster.PVs, f.Cluster.Attachments = nil, nil }, "warning volume-without-pv " + handle, "No PersistentVolume names data/pvc-1", ""},
	{"a snapshot of nothing", func(f *Facts) { f.Cluster.Contents = []Content{{"content", "node-1/data/snap"}} }, "fault snapshot-missing node-1/data/snap", "VolumeSnapshotContent content", ""},
	{"it cannot be attached", func(f *Facts) { f.Cluster.Attachments[0].Error = "no" }, "warning attachment-stuck " + handle, "VolumeAttachment a: no.", ""},
	{"it cannot be detached", func(f *Facts) { f.Cluster.Attachments[0].Deleting = &old }, "warning attachment-stuck " + handle, "is to be deleted, and is not", ""},
	{"it is just being detached", func(f *Facts) { f.Cluster.Attachments[0].Deleting = &now }, "", "", ""},
}

func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases {
		f := well()
		c.change(f)
		found := Examine(f)
		if c.want == "" {
			if len(found) != 0 {
				t.Errorf("%s: %+v", c.name, found)
			}
			continue
		}
		if len(found) != 1 {
			t.Errorf("%s: %d findings: %+v", c.name, len(found), found)
			continue
		}
		n := found[0]
		seen[n.Rule] = true
		if got := n.Severity.String() + " " + n.Rule + " " + n.Subject; got != c.want || !strings.Contains(n.Sentence, c.part) || !strings.HasSuffix(n.Sentence, ".") || n.Remedy == "" {
			t.Errorf("%s: %s: %+v", c.name, got, n)
		}
		if fix := n.Fix; (fix != nil) != (c.fix != "") || fix != nil && !strings.HasPrefix(fix.Says, c.fix) {
			t.Errorf("%s: fix %+v", c.name, fix)
		}
	}
	for _, name := range Rules() {
		if !seen[name] {
			t.Errorf("rule %s is never seen to find something", name)
		}
	}
}

// docs/doctor.md has a section for each rule, in the order of the rules, and none besides.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^### `([a-z-]+)`").FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(got, Rules()) {
		t.Errorf("docs/doctor.md has\n%q, the rules are\n%q", got, Rules())
	}
}

// What rests on a guess of kubelet's folder is not mended, and says what would make it sure.
func TestGuessedFolder(t *testing.T) {
	for _, c := range cases {
		f := well()
		c.change(f)
		if !f.KubeletGuessed {
			continue
		}
		if n := Examine(f)[0]; n.Fix != nil || !strings.Contains(n.Remedy, "Give --kubelet-dir first") {
			t.Errorf("%s: %+v", c.name, n)
		}
	}
}

// The node's name is learnt from whoever knows it, if they agree; then all ids have it. Else the rest of an id decides.
func TestLearnNode(t *testing.T) {
	create := status.Pending{VolumeID: "host/data/new", VG: "data", LV: "new", Intent: journal.Create} // as read with the guess
	reclaim := status.Pending{VolumeID: handle, VG: "data", LV: "pvc-1", Intent: journal.Reclaim}
	for _, c := range []struct {
		name    string
		kubelet []string
		pending []status.Pending
		node    string
	}{
		{"kubelet", []string{handle, inlined}, []status.Pending{create}, "node-1"},
		{"the journal", nil, []status.Pending{create, reclaim}, "node-1"},
		{"nobody", []string{inlined}, []status.Pending{create}, "host"},
		{"they disagree", []string{handle, "node-2/data/x"}, nil, "host"},
	} {
		f := well()
		alone(f)
		f.NodeGuessed, f.Report.Node, first(f).ID, f.Kubelet, f.Report.Pending = true, "host", "host/data/pvc-1", nil, slices.Clone(c.pending)
		for _, id := range c.kubelet {
			f.Kubelet = append(f.Kubelet, Wanted{Handle: id, Path: target, Written: old})
		}
		f.learnNode()
		if f.Report.Node != c.node || f.NodeGuessed != (c.node == "host") || first(f).ID != c.node+"/data/pvc-1" || f.Report.Volumes[1].ID != inlined {
			t.Errorf("%s: %s, %v, %+v", c.name, f.Report.Node, f.NodeGuessed, f.Report.Volumes)
		}
		for _, p := range f.Report.Pending {
			if p.Intent == journal.Create && p.VolumeID != c.node+"/data/new" {
				t.Errorf("%s: create of %s", c.name, p.VolumeID)
			}
		}
		for _, n := range Examine(f) {
			if n.Rule == "volume-missing" || n.Rule == "volume-without-pv" || n.Rule == "pv-without-volume" {
				t.Errorf("%s: %+v", c.name, n)
			}
		}
		if len(c.kubelet) != 0 && c.kubelet[0] == handle {
			if about := About(f, handle); len(about) != 1 || about[0].LV != "pvc-1" || !f.Names(handle, about[0]) {
				t.Errorf("%s: %s is about %+v", c.name, handle, about)
			}
		}
	}
}

func TestAbout(t *testing.T) {
	f := well()
	alone(f)
	f.Report.Pending = []status.Pending{{VG: "data", LV: inlined, Paths: []string{"/t"}}}
	for word, want := range map[string]string{
		handle: handle, "data/pvc-1": handle, "pvc-1": handle, target: handle, target + "/": handle, "uid-1": handle, "uid-2": inlined, "/t": inlined, "nothing": "", "": "", "/": "",
	} {
		var got []string
		for _, v := range About(f, word) {
			got = append(got, v.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q", word, got)
		}
	}
	f.Machine.Cookies = 1
	first(f).Suspended = true
	all := Examine(f) // about pvc-1, csi-1 and the node
	var got []string
	for _, n := range Of(f, all, "pvc-1", About(f, "pvc-1")) {
		got = append(got, n.Rule)
	}
	if !slices.Equal(got, []string{"suspended", "udev-waits"}) || Worst(all) != Fault || Worst(nil) != Note {
		t.Errorf("%q of %+v", got, all)
	}
}

var coded = regexp.MustCompile("`([^`]+)`")

// quoted reads the tables of docs/troubleshooting.md under "doctor says": a rule, and its sentence, with … for what differs.
func quoted(t *testing.T) (rules []string, sentences map[string]*regexp.Regexp) {
	t.Helper()
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	sentences = map[string]*regexp.Regexp{}
	inTable := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "| doctor says |"):
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			says := coded.FindAllStringSubmatch(strings.Split(line, " | ")[0], -1)
			if len(says) != 2 {
				t.Fatalf("not a rule and a sentence: %s", line)
			}
			rule := says[0][1]
			rules = append(rules, rule)
			sentences[rule] = regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(says[1][1]), "…", ".*") + "$")
		}
	}
	return rules, sentences
}

// docs/troubleshooting.md has each rule once, with what it says word for word, and none besides.
func TestTroubleshooting(t *testing.T) {
	rules, sentences := quoted(t)
	slices.Sort(rules)
	if want := slices.Sorted(slices.Values(Rules())); !slices.Equal(rules, want) {
		t.Errorf("docs/troubleshooting.md has\n%q, the rules are\n%q", rules, want)
	}
	for _, c := range cases {
		f := well()
		c.change(f)
		for _, n := range Examine(f) {
			if says := sentences[n.Rule]; says == nil || !says.MatchString(n.Sentence) {
				t.Errorf("%s says %q, and docs/troubleshooting.md has %v", n.Rule, n.Sentence, says)
			}
		}
	}
}

// What a finding says goes to a terminal: nothing in it, such as a handle that somebody made up, moves the cursor or makes lines of its own.
func TestFindingsArePrintable(t *testing.T) {
	all := rules
	defer func() { rules = all }()
	rules = []rule{{"made-up", func(*Facts) []Finding {
		return []Finding{{Subject: "a\nfault", Sentence: "\x1b[2J", Remedy: "\a", Fix: &Fix{Says: "\r"}}}
	}}}
	f := Examine(&Facts{Report: &status.Report{}})[0]
	if got := fmt.Sprint(f.Subject, f.Sentence, f.Remedy, f.Fix.Says); got != `a\nfault\x1b[2J\a\r` {
		t.Errorf("%q", got)
	}
}
