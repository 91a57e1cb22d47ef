package doctor

import (
	"slices"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// learnNode takes the name of the node from the ids that kubelet and the journal have, if all of them have the same, and gives the volumes their ids
// by it.
func (f *Facts) learnNode() {
	names := map[string]bool{}
	note := func(id string) {
		if id, err := volume.ParseID(id); err == nil {
			names[id.Node] = true
		}
	}
	for _, k := range f.Kubelet {
		note(k.Handle)
	}
	for _, p := range f.Report.Pending {
		if p.Intent != journal.Create { // its id is made here, with the guess in it
			note(p.VolumeID)
		}
	}
	if len(names) != 1 {
		return
	}
	for name := range names {
		f.Report.Node = name
	}
	f.NodeGuessed = false
	f.Report.Volumes = slices.Clone(f.Report.Volumes) // a question that was not answered in time may still look at the old ones
	for i := range f.Report.Volumes {
		if v := &f.Report.Volumes[i]; v.Kind != volume.Inline {
			v.ID = volume.ID{Node: f.Report.Node, Ref: v.Ref()}.String()
		}
	}
	for i := range f.Report.Pending {
		if p := &f.Report.Pending[i]; p.Intent == journal.Create {
			p.VolumeID = volume.ID{Node: f.Report.Node, Ref: p.Ref()}.String()
		}
	}
}

// Names reports whether an id of Kubernetes', kubelet's or the journal's is that of the volume. While the node's name is a guess, the rest of the id
// decides.
func (f *Facts) Names(id string, v status.Volume) bool {
	if id == v.ID {
		return true
	}
	other, err := volume.ParseID(id)
	return f.NodeGuessed && err == nil && v.Kind != volume.Inline && other.Ref == v.Ref()
}

// elsewhere reports whether an id is of a node that may be this one or not.
func (f *Facts) elsewhere(handle string) bool {
	id, err := volume.ParseID(handle)
	return f.NodeGuessed && err == nil && id.Node != f.Report.Node
}

// sure takes the fix from a finding that rests on kubelet's folder where that is a guess.
func (f *Facts) sure(n Finding) Finding {
	if f.KubeletGuessed {
		n.Fix = nil
		n.Remedy += " Give --kubelet-dir first: without the driver it is a guess which folder is kubelet's, and nothing is mended on that."
	}
	return n
}

// provided begins a sentence that is true only if kubelet's folder was guessed well.
func (f *Facts) provided() string {
	if f.KubeletGuessed {
		return "If kubelet's folder is where it was looked for, "
	}
	return ""
}

// maybeNamed reports whether a PersistentVolume names the volume, but for a node that may be this one or not.
func (f *Facts) maybeNamed(v status.Volume) bool {
	return f.NodeGuessed && slices.ContainsFunc(f.Cluster.PVs, func(pv PV) bool { return f.Names(pv.Handle, v) })
}
