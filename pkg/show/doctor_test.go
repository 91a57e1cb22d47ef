package show

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/doctor"
)

func TestDoctor(t *testing.T) {
	r := full()
	r.Volumes[0].ID, r.Volumes[0].Active, r.Volumes[0].Device, r.Volumes[0].Open = "csi-4f1c", true, "253:3", 2
	r.Volumes[0].LV, r.Pending[0].LV = "csi-4f1c", "csi-4f1c"
	f := &doctor.Facts{
		Report: r, Kubelet: []doctor.Wanted{{Handle: "csi-4f1c", Path: "/k/target"}},
		Cluster: &doctor.Cluster{PVs: []doctor.PV{{Name: "pv", Handle: "csi-4f1c", Phase: "Bound", Claim: "ns/c"}}},
	}
	findings := []doctor.Finding{{Rule: "orphan", Severity: doctor.Warning, Subject: "csi-4f1c", Sentence: strings.Repeat("It is long. ", 20) + "It ends.", Remedy: "Wait.", Fix: &doctor.Fix{Says: "remove it"}}}
	for _, o := range []Options{{}, {Width: 80, Color: true, Unicode: true}} {
		var out bytes.Buffer
		if err := Doctor(&out, f, r.Volumes[:1], findings, o); err != nil {
			t.Fatal(err)
		}
		page := text.StripEscape(out.String())
		for _, want := range []string{
			"is in teardown\n", "  CO wants  kubelet: published at /k/target\n            Kubernetes: PersistentVolume pv, Bound, claim ns/c\n", "  journal   teardown",
			"  kernel    device 253:3, open 2 times\n", "  LVM       inline, linear, 64Mi\n", "warning orphan: csi-4f1c\n", "It ends.\n", "  Remedy: Wait.\n", "  --fix would: remove it\n",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("%+v: no %q in\n%s", o, want, page)
			}
		}
		for line := range strings.Lines(page) {
			if n := text.StringWidthWithoutEscSequences(strings.TrimSuffix(line, "\n")); o.Width != 0 && n > o.Width {
				t.Errorf("%d columns: %q", n, line)
			}
		}
		if !o.Color && strings.Contains(out.String(), "\x1b") {
			t.Error("colours without a terminal")
		}
	}
	var out bytes.Buffer
	if err := Doctor(&out, f, nil, nil, Options{}); err != nil || out.String() != "nothing is wrong that doctor knows of\n" {
		t.Errorf("%v %q", err, out.String())
	}
}
