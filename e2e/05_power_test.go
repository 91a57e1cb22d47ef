package e2e

import (
	"errors"
	"testing"
)

var errStands = errors.New("the file does not grow")

// The node loses its power under running pods. They come back with their data; what was deleted meanwhile is cleaned up.
func TestPowerCut(t *testing.T) {
	scenario(t)
	const script = `test ! -e /data/words || echo found $(cat /data/words); echo words > /data/words; sync; echo written` + stays
	apply(t, claim("kept", "local-lvm", "64Mi"), claim("deleted", "local-lvm-thin", "64Mi"),
		pod("kept", script, []vol{{name: "data", claim: "kept"}}),
		pod("scratch", script, []vol{{name: "data", size: "64Mi"}}),
		pod("deleted", script, []vol{{name: "data", claim: "deleted"}}),
		pod("inline", script, []vol{{name: "data", size: "64Mi"}}))
	for _, name := range []string{"kept", "scratch", "deleted", "inline"} {
		said(t, n1, running(t, name), "written")
	}
	before := len(lvs(t, n1))

	n1.PowerCut()
	forget(t, "deleted")
	forget(t, "inline")
	remove(t, "pvc/deleted")
	if err := n1.PowerOn(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is up", n1.Up)
	for _, name := range []string{"kept", "scratch"} {
		p, err := getPod(name)
		if err != nil {
			t.Fatal(err)
		}
		said(t, n1, p, "found words")
	}
	eventually(t, "what was deleted is gone", func() error {
		out, err := n1.Run(`test $(lvs --noheadings -o lv_name -S 'lv_name!=pool' data | wc -l) = 2`)
		return errors.Join(err, errorOf(out))
	})
	t.Logf("%d logical volumes before, 2 after", before)
	remove(t, "pod/kept", "pod/scratch", "pvc/kept")
	nothingIsLeft(t, n1)
}

func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
