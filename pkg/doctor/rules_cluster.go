package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// pvs gives the PersistentVolumes by handle; none where Kubernetes was not asked.
func (f *Facts) pvs() map[string][]PV {
	out := map[string][]PV{}
	if f.Cluster != nil {
		for _, pv := range f.Cluster.PVs {
			out[pv.Handle] = append(out[pv.Handle], pv)
		}
	}
	return out
}

func pvTwice(f *Facts) (out []Finding) {
	for handle, all := range f.pvs() {
		if len(all) < 2 {
			continue
		}
		var names []string
		for _, pv := range all {
			names = append(names, pv.Name)
		}
		slices.Sort(names)
		out = append(out, Finding{Severity: Fault, Subject: handle,
			Sentence: fmt.Sprintf("The PersistentVolumes %s name one volume, %s: two claims write into it, and to delete one takes the other's data.", strings.Join(names, " and "), handle),
			Remedy:   "Set persistentVolumeReclaimPolicy: Retain on all of them, and delete those that are not the true one. The chart's policy of unique handles refuses the second one from the start."})
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.Subject, b.Subject) })
	return out
}

func pvWithoutVolume(f *Facts) (out []Finding) {
	if f.Cluster == nil {
		return nil
	}
	for _, pv := range f.Cluster.PVs {
		r, missing := f.missing(pv.Handle)
		if !missing {
			continue
		}
		out = append(out, Finding{Severity: Fault, Subject: pv.Handle,
			Sentence: fmt.Sprintf("PersistentVolume %s (claim %s) names %s on this node, and LVM has no such volume of the driver.", pv.Name, pv.Claim, r),
			Remedy:   "If its group was renamed, rename it back (vgrename). If it lost its tag, see csi-local-lvm adopt. If it was removed by hand, its data is gone, but perhaps for vgcfgrestore(8): delete the claim."})
	}
	return out
}

func pvWithoutNode(f *Facts) (out []Finding) {
	if f.Cluster == nil || len(f.Cluster.Nodes) == 0 {
		return nil
	}
	nodes := map[string]bool{}
	for _, n := range f.Cluster.Nodes {
		if short, err := volume.ShortNode(n); err == nil {
			nodes[short] = true
		}
	}
	for _, pv := range f.Cluster.PVs {
		id, err := volume.ParseID(pv.Handle)
		if err != nil || nodes[id.Node] {
			continue
		}
		out = append(out, Finding{Severity: Fault, Subject: pv.Handle,
			Sentence: fmt.Sprintf("PersistentVolume %s (claim %s) is on node %s, and there is no such node in the cluster: no pod that uses it can be placed.", pv.Name, pv.Claim, id.Node),
			Remedy:   "Bring the node back under its name; the volume is on its disks. If these are lost, so is the data: delete the claim and the PersistentVolume."})
	}
	return out
}

func volumeWithoutPV(f *Facts) (out []Finding) {
	if f.Cluster == nil {
		return nil
	}
	pvs := f.pvs()
	for _, v := range f.Report.Volumes {
		if v.Kind != volume.Persistent || v.Boundary == status.Creating || len(pvs[v.ID]) != 0 || f.maybeNamed(v) {
			continue
		}
		out = append(out, Finding{Severity: Warning, Subject: v.ID,
			Sentence: fmt.Sprintf("No PersistentVolume names %s. A PersistentVolume with policy Retain that was deleted leaves one like this, and so does a claim whose creation was never repeated.", v.Ref()),
			Remedy:   "It may hold the only copy of data, so it is not touched. To use it, make a static PersistentVolume with this volumeHandle; if nobody needs it, lvremove."})
	}
	return out
}

func snapshotMissing(f *Facts) (out []Finding) {
	if f.Cluster == nil {
		return nil
	}
	for _, c := range f.Cluster.Contents {
		r, missing := f.missing(c.Handle)
		if !missing {
			continue
		}
		out = append(out, Finding{Severity: Fault, Subject: c.Handle,
			Sentence: fmt.Sprintf("VolumeSnapshotContent %s names the snapshot %s on this node, and LVM has none.", c.Name, r),
			Remedy:   "It was removed by hand, or lost with its origin. Delete the VolumeSnapshot."})
	}
	return out
}

func attachmentStuck(f *Facts) (out []Finding) {
	if f.Cluster == nil {
		return nil
	}
	pvs := map[string]PV{} // by name
	for _, pv := range f.Cluster.PVs {
		pvs[pv.Name] = pv
	}
	for _, a := range f.Cluster.Attachments {
		pv, known := pvs[a.PV]
		if !known || a.Deleting == nil && a.Error == "" || a.Deleting != nil && f.Report.Time.Sub(*a.Deleting) < settled {
			continue
		}
		if id, err := volume.ParseID(pv.Handle); err != nil || id.Node != f.Report.Node {
			continue
		}
		why := a.Error
		if why == "" {
			why = "it is to be deleted, and is not"
		}
		out = append(out, Finding{Severity: Warning, Subject: pv.Handle, Sentence: fmt.Sprintf("VolumeAttachment %s: %s.", a.Name, why),
			Remedy: "external-attacher carries it out with the driver; see the log of both. While the volume is staged or published, it stays attached."})
	}
	return out
}
