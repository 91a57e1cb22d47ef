package show

import (
	"bytes"
	"strings"
	"testing"
)

// Whatever a name or an error holds, it is text on the page.
func TestHTML(t *testing.T) {
	r := full()
	r.Unknown = []string{`<script>alert("x")</script>`}
	var out bytes.Buffer
	if err := HTML(&out, r); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, want := range []string{"<title>node-1: csi-local-lvm</title>", "data/snap-1", "&lt;script&gt;alert", `value="0.9"`, "DiskMissing", "the next in 4s", "of the legs of <code>data/pvc-", "copy of <code>data/pvc-a</code>", "mkfs", "As of 2023-11-14 22:13:20 UTC"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	for _, bad := range []string{"<script", "http://", "https://", "\x1b"} {
		if strings.Contains(page, bad) {
			t.Errorf("%s in\n%s", bad, page)
		}
	}
}
