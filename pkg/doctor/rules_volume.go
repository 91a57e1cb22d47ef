package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// settled is how long something lasts that is no moment between two steps of kubelet.
const settled = 2 * time.Minute

// errNotResumed: what is suspended is neither a volume of the driver's nor LVM's below one, or is resumed by now.
var errNotResumed = errors.New("nothing was resumed: no volume of the driver's is suspended as LVM leaves it; dmsetup info -c shows what is")

// suspended has no fix while a driver runs, or may: that resumes by itself, and a device that it holds for the snapshots of a group must stay held.
func suspended(f *Facts) (out []Finding) {
	for _, v := range f.Report.Volumes {
		if !v.Suspended {
			continue
		}
		n := Finding{Severity: Fault, Subject: v.ID, Sentence: fmt.Sprintf("The device of %s, or one below it, is suspended: whoever touches it hangs.", v.Ref()),
			Remedy: "The driver resumes its own volumes within a minute, whether a killed LVM command left them so or somebody suspended them by hand. A device below that is not LVM's: find out who suspended it, then dmsetup resume."}
		if f.Report.Driver == nil && f.Report.DriverUnknown == "" {
			n.Fix = &Fix{"resume the driver's volumes that are suspended (lvchange --refresh), also those that somebody suspended by hand", resume}
		}
		out = append(out, n)
	}
	return out
}

func resume(ctx context.Context, h Hands) error {
	resumed, err := h.Resume(ctx)
	if err == nil && len(resumed) == 0 {
		return errNotResumed
	}
	return err
}

// inactive is about volumes that somebody is to have here. Others have no device after a start of the machine where nothing activates them, and need none.
func inactive(f *Facts) (out []Finding) {
	for _, v := range f.Report.Volumes {
		if v.Active || v.Partial || v.Unknown != "" || !f.wanted[v.ID] || v.Boundary == status.Creating || v.Boundary == status.InTeardown {
			continue
		}
		ref := v.Ref()
		out = append(out, Finding{Severity: Warning, Subject: v.ID, Sentence: fmt.Sprintf("%s is not active, and a pod here is to have it.", ref),
			Remedy: "The driver activates it when it is staged or published the next time; lvchange -ay -K does so now.",
			Fix:    &Fix{"activate " + ref.String(), func(ctx context.Context, h Hands) error { return h.Activate(ctx, ref) }}})
	}
	return out
}

func teardownPending(f *Facts) (out []Finding) {
	for _, p := range f.Report.Pending {
		if p.Intent != journal.Reclaim {
			continue
		}
		what := fmt.Sprintf("The teardown of %s is unfinished", p.Ref())
		if len(p.Paths) != 0 {
			what += " at " + strings.Join(p.Paths, ", ")
		}
		n := Finding{Severity: Warning, Subject: p.VolumeID, Sentence: what + "."}
		switch {
		case len(p.Holders) != 0:
			n.Sentence = what + ": it is in use by " + strings.Join(p.Holders, "; ") + "."
			n.Remedy = "End whoever holds it. The driver tries again by itself, and needs no restart."
		case f.Report.Driver == nil:
			n.Remedy = "Start the driver; it takes it up."
		case p.Error != "" && !p.Busy:
			n.Severity = Fault
			n.Sentence = fmt.Sprintf("%s after %d tries: %s.", what, p.Tries, p.Error)
			n.Remedy = "Mend what it names; waiting alone is no help. The driver tries again by itself."
		default:
			n.Remedy = "Wait: the driver tries again by itself."
		}
		out = append(out, n)
	}
	return out
}

func held(f *Facts) (out []Finding) {
	for _, v := range f.Report.Volumes {
		if who := f.Held[v.ID]; len(who) != 0 {
			out = append(out, Finding{Severity: Warning, Subject: v.ID,
				Sentence: fmt.Sprintf("%s is mounted nowhere here, and in use all the same, by %s. It cannot be deleted.", v.Ref(), strings.Join(who, "; ")),
				Remedy:   "End whoever holds it; for a mount in another namespace, that is the container it belongs to."})
		}
	}
	return out
}

// orphan asks what the driver's reaper asks (docs/architecture.md, Orphans), but for the time that it must hold: a person looks here.
func orphan(f *Facts) (out []Finding) {
	for _, v := range f.Report.Volumes {
		if v.Kind != volume.Inline || v.Boundary != status.Provisioned || !f.podGone(v.PodUID) || v.Open != 0 || v.Partial || v.Unknown != "" ||
			v.LV != volume.LVName(volume.Inline, v.ID) || len(f.Report.Problems) != 0 || len(f.Report.Unknown) != 0 {
			continue
		}
		ref := v.Ref()
		n := Finding{Severity: Warning, Subject: v.ID,
			Sentence: fmt.Sprintf("%s%s is an orphan: its pod %s has no folder on this node any more, and nothing uses it.", f.provided(), ref, v.PodUID),
			Remedy:   "The driver removes it after --orphan-grace, unless --orphan-policy=report keeps it.",
			Fix:      &Fix{"remove logical volume " + ref.String() + ", if LVM finds it to be an inline volume of the driver, and open nowhere", func(ctx context.Context, h Hands) error { return h.RemoveInline(ctx, ref) }}}
		out = append(out, f.sure(n))
	}
	return out
}

// leakedMount: kubelet unpublishes what it finds vol_data.json of. Where that is gone and the mount is there, nobody will come back for it.
func leakedMount(f *Facts) (out []Finding) {
	for _, v := range f.Report.Volumes {
		for _, m := range v.Mounts {
			if !f.forgotten[m.Path] || !f.PodsKnown || v.Boundary == status.InTeardown || v.Suspended {
				continue
			}
			path := m.Path
			out = append(out, f.sure(Finding{Severity: Warning, Subject: v.ID,
				Sentence: fmt.Sprintf("%s is mounted at %s, and kubelet has forgotten it there: its vol_data.json is gone. Nobody will unpublish it.", v.Ref(), path),
				Remedy:   "Unmount it, and remove the empty folder; what is in the volume stays.",
				Fix: &Fix{"unmount " + path + ", not lazily and not by force, and remove the empty folder", func(ctx context.Context, h Hands) error {
					if err := h.Unmount(ctx, path); err != nil {
						return err
					}
					return h.RemoveTarget(ctx, path)
				}}}))
		}
	}
	return out
}

func foreignMount(f *Facts) (out []Finding) {
	for _, k := range f.Kubelet {
		number, mounted := f.device(k.Path)
		v, known := f.volume(k.Handle)
		if !mounted || !known || v.Unknown != "" || number == v.Device {
			continue
		}
		out = append(out, Finding{Severity: Fault, Subject: k.Handle,
			Sentence: fmt.Sprintf("At %s kubelet wants %s, and mounted there is device %s, which is not it.", k.Path, v.Ref(), number),
			Remedy:   "Find out whose that is (findmnt, dmsetup info). End the pods there, and unmount it by hand. The driver takes away only what is its own."})
	}
	return out
}

func targetLeft(f *Facts) (out []Finding) {
	for _, k := range f.Kubelet {
		_, mounted := f.device(k.Path)
		if mounted || k.Staging || !k.IsFolder || f.Report.Time.Sub(k.Written) < settled || f.podRuns(k.PodUID) {
			continue
		}
		path := k.Path
		out = append(out, f.sure(Finding{Severity: Warning, Subject: k.Handle,
			Sentence: fmt.Sprintf("Nothing is mounted at %s, where kubelet wanted %s %s ago.", path, k.Handle, f.Report.Time.Sub(k.Written).Round(time.Minute)),
			Remedy:   "If pod " + k.PodUID + " is starting, see its events. If it is gone, kubelet cannot end it while the folder is there.",
			Fix:      &Fix{"remove the folder " + path + ", if it is empty", func(ctx context.Context, h Hands) error { return h.RemoveTarget(ctx, path) }}}))
	}
	return out
}

// podRuns reports whether Kubernetes has the pod on this node, or may have it.
func (f *Facts) podRuns(uid string) bool { return f.running[uid] }

func volumeMissing(f *Facts) (out []Finding) {
	if !f.knowsVolumes() {
		return nil
	}
	told := map[string]bool{}
	for _, k := range f.Kubelet {
		if _, known := f.volume(k.Handle); known || f.elsewhere(k.Handle) || told[k.Handle] || f.Report.Time.Sub(k.Written) < settled {
			continue
		}
		told[k.Handle] = true
		n := Finding{Severity: Fault, Subject: k.Handle, Sentence: fmt.Sprintf("Kubelet wants %s at %s, and LVM has no such volume.", k.Handle, k.Path),
			Remedy: "If it was removed by hand, its data is gone, but perhaps for vgcfgrestore(8). End the pod; delete its claim."}
		if strings.HasPrefix(k.Handle, "csi-") { // inline: it is made when it is published, and its pod may be waiting for that
			n.Severity, n.Remedy = Warning, "It is made when it is published: see the events of its pod for why it was not. If the pod is gone, kubelet clears up by itself."
		}
		out = append(out, n)
	}
	return out
}
