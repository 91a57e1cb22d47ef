// Package doctor names what does not fit together on a node, in a sentence each with its remedy, and carries out the remedies that are safe. It lays
// beside the report of pkg/status what kubelet wants, what the machine offers, and, where it may ask, what Kubernetes has.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Severity says how bad a finding is. It is also the exit status of the command.
type Severity int

// The severities. 1 is the exit status of a command that could not do its work.
const (
	Note    Severity = 0 // to be known; nothing has to be done
	Warning Severity = 2 // it works, and will not for ever, or costs something
	Fault   Severity = 3 // somebody cannot use a volume, or may lose data
)

// String gives the word that people read.
func (s Severity) String() string {
	return map[Severity]string{Note: "note", Warning: "warning", Fault: "fault"}[s]
}

// MarshalText writes the word.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing that does not fit.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // the volume's id, or what else it is about
	Sentence string   `json:"sentence"`
	Remedy   string   `json:"remedy"`
	Fix      *Fix     `json:"fix,omitempty"` // nil: nothing that may be done without thinking
	// Outcome is what came of the fix where it was to be carried out.
	Outcome string `json:"outcome,omitempty"`
}

// Fix is a remedy that is safe: it takes away nothing that somebody uses, or that holds data somebody may want.
type Fix struct {
	Says string `json:"says"` // what it will do
	do   func(ctx context.Context, h Hands) error
}

// Hands are what fixes are carried out with, by the same means as the driver's own: LVM checks owner and kind under its lock, nothing is unmounted
// lazily or by force, and nothing is removed but one empty folder or file.
type Hands interface {
	Activate(ctx context.Context, r volume.Ref) error
	Resume(ctx context.Context) ([]volume.Ref, error)
	// RemoveInline removes an inline volume that is open nowhere.
	RemoveInline(ctx context.Context, r volume.Ref) error
	// Unmount takes away the topmost mount at the path.
	Unmount(ctx context.Context, path string) error
	// RemoveTarget removes an empty folder or file.
	RemoveTarget(ctx context.Context, path string) error
}

// rule is a pattern of facts, and what it means. docs/doctor.md has a section for each name.
type rule struct {
	name string
	find func(f *Facts) []Finding
}

// rules are in the order in which one would look: first whether it can be told at all, then the node, then each volume.
var rules = []rule{
	{"not-known", notKnown},
	{"driver-down", driverDown},
	{"driver-not-ready", driverNotReady},
	{"version-skew", versionSkew},
	{"tool-missing", toolMissing},
	{"module-missing", moduleMissing},
	{"lvm-locks-apart", locksApart},
	{"udev-waits", udevWaits},
	{"journal-damaged", journalDamaged},
	{"storage-health", storageHealth},
	{"volume-health", volumeHealth},
	{"suspended", suspended},
	{"inactive", inactive},
	{"teardown-pending", teardownPending},
	{"held", held},
	{"orphan", orphan},
	{"leaked-mount", leakedMount},
	{"foreign-mount", foreignMount},
	{"target-left", targetLeft},
	{"volume-missing", volumeMissing},
	{"pv-twice", pvTwice},
	{"pv-without-volume", pvWithoutVolume},
	{"pv-without-node", pvWithoutNode},
	{"volume-without-pv", volumeWithoutPV},
	{"snapshot-missing", snapshotMissing},
	{"attachment-stuck", attachmentStuck},
}

// Rules gives the names of all rules, in their order.
func Rules() (out []string) {
	for _, r := range rules {
		out = append(out, r.name)
	}
	return out
}

// Examine applies all rules to the facts: the worst findings first. It asks nothing.
func Examine(f *Facts) []Finding {
	f.index()
	out := []Finding{}
	for _, r := range rules {
		for _, found := range r.find(f) {
			found.Rule = r.name
			found.Subject, found.Sentence, found.Remedy = volume.Printable(found.Subject), volume.Printable(found.Sentence), volume.Printable(found.Remedy)
			if found.Fix != nil {
				found.Fix.Says = volume.Printable(found.Fix.Says)
			}
			out = append(out, found)
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return out
}

// Worst gives the severity of the worst finding.
func Worst(all []Finding) (worst Severity) {
	for _, f := range all {
		worst = max(worst, f.Severity)
	}
	return worst
}

// About gives the volumes that a word names: the id of a volume, its logical volume, with or without its group, the CO's name, a path where it
// is mounted or should be, or the uid of a pod that uses it.
func About(f *Facts, word string) (out []status.Volume) {
	word = strings.TrimRight(word, "/")
	if word == "" {
		return nil
	}
	pending := map[volume.Ref][]string{}
	var wanted []string // the ids under which kubelet wants it
	for _, k := range f.Kubelet {
		if word == k.Handle || word == k.Path || word == k.PodUID {
			wanted = append(wanted, k.Handle)
		}
	}
	for _, p := range f.Report.Pending {
		pending[p.Ref()] = append(pending[p.Ref()], p.Paths...)
	}
	for _, v := range f.Report.Volumes {
		names := []string{v.ID, v.LV, v.Ref().String(), v.Name, v.PodUID}
		for _, m := range v.Mounts {
			names = append(names, m.Path, m.PodUID)
		}
		names = append(names, pending[v.Ref()]...)
		if slices.Contains(names, word) || slices.ContainsFunc(wanted, func(id string) bool { return f.Names(id, v) }) {
			out = append(out, v)
		}
	}
	return out
}

// Of gives the findings about one of the volumes or about the word itself, and those about the node, which concern every volume.
func Of(f *Facts, all []Finding, word string, volumes []status.Volume) (out []Finding) {
	word = strings.TrimRight(word, "/")
	for _, n := range all {
		about := strings.Contains(n.Subject, word) || !strings.Contains(n.Subject, "/") && !strings.HasPrefix(n.Subject, "csi-")
		for _, v := range volumes {
			about = about || f.Names(n.Subject, v)
		}
		if about {
			out = append(out, n)
		}
	}
	return out
}

// Still gives the fix of a finding, if a fresh look still finds it. again makes that look. The answer nil is that there is nothing to mend any more.
func Still(ctx context.Context, found Finding, again func(context.Context) (*Facts, error)) (*Fix, error) {
	f, err := again(ctx)
	if err != nil {
		return nil, err
	}
	for _, now := range Examine(f) {
		if now.Rule == found.Rule && now.Subject == found.Subject && now.Fix != nil && now.Fix.Says == found.Fix.Says {
			return now.Fix, nil
		}
	}
	return nil, nil
}

// Do carries out the fix.
func (x *Fix) Do(ctx context.Context, h Hands) error {
	if err := x.do(ctx, h); err != nil {
		return fmt.Errorf("%s: %w", x.Says, err)
	}
	return nil
}
