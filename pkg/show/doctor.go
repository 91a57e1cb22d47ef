package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/doctor"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Doctor writes where the volumes stand, as the CO, the journal, the kernel and LVM have them, and then each finding with its remedy.
func Doctor(w io.Writer, f *doctor.Facts, volumes []status.Volume, findings []doctor.Finding, o Options) error {
	w = Guarded(w)
	for _, v := range volumes {
		if err := o.stands(w, f, v); err != nil {
			return err
		}
	}
	for _, n := range findings {
		if err := o.finding(w, n); err != nil {
			return err
		}
	}
	if len(findings) == 0 {
		return o.wrapped(w, "", o.paint("nothing is wrong", text.FgGreen)+" that doctor knows of")
	}
	return nil
}

// stands lays side by side what is known of a volume.
func (o Options) stands(w io.Writer, f *doctor.Facts, v status.Volume) error {
	var wants, intends []string
	for _, k := range f.Kubelet {
		if f.Names(k.Handle, v) && k.Staging {
			wants = append(wants, "kubelet: staged at "+k.Path)
		} else if f.Names(k.Handle, v) {
			wants = append(wants, "kubelet: published at "+k.Path)
		}
	}
	if f.Cluster != nil {
		for _, pv := range f.Cluster.PVs {
			if f.Names(pv.Handle, v) {
				wants = append(wants, fmt.Sprintf("Kubernetes: PersistentVolume %s, %s, claim %s", pv.Name, pv.Phase, pv.Claim))
			}
		}
	}
	for _, p := range f.Report.Pending {
		if p.Ref() == v.Ref() {
			intends = append(intends, intents[p.Intent]+" "+strings.Join(p.Paths, ", "))
		}
	}
	kernel := []string{"no device"}
	if v.Active {
		kernel = []string{fmt.Sprintf("device %s, open %d times", v.Device, v.Open)}
		if v.Suspended {
			kernel[0] += ", suspended"
		}
	}
	for _, m := range v.Mounts {
		kernel = append(kernel, fmt.Sprintf("%s at %s", m.Role, m.Path))
	}
	lvm := fmt.Sprintf("%s, %s, %s", v.Kind, v.Type, size(v.SizeBytes))
	if v.State != "" {
		lvm += ", " + v.State
	}
	if v.Partial {
		lvm += ", a disk is missing"
	}
	if err := o.wrapped(w, "", fmt.Sprintf("%s (%s) is %s", v.ID, v.Ref(), v.Boundary)); err != nil {
		return err
	}
	for _, part := range []struct {
		who  string
		says []string
	}{{"CO wants", wants}, {"journal", intends}, {"kernel", kernel}, {"LVM", []string{lvm}}} {
		if len(part.says) == 0 {
			part.says = []string{"nothing"}
		}
		for i, s := range part.says {
			part.says[i] = volume.Printable(s)
		}
		if err := o.wrapped(w, fmt.Sprintf("  %-9s ", part.who), strings.Join(part.says, "\n")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (o Options) finding(w io.Writer, n doctor.Finding) error {
	color := text.FgCyan
	switch n.Severity {
	case doctor.Fault:
		color = text.FgRed
	case doctor.Warning:
		color = text.FgYellow
	case doctor.Note:
	}
	if err := o.wrapped(w, "", fmt.Sprintf("%s %s: %s", o.paint(n.Severity.String(), color), n.Rule, n.Subject)); err != nil {
		return err
	}
	lines := []string{n.Sentence, "Remedy: " + n.Remedy}
	if n.Fix != nil {
		lines = append(lines, "--fix would: "+n.Fix.Says)
	}
	for _, line := range lines {
		if err := o.wrapped(w, "  ", line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}
