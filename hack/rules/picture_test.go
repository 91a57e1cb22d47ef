package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"
)

// The picture of the dashboard in the documentation is of the dashboard as it is: "make picture" writes into it which one it shows.
func TestPictureShowsTheDashboard(t *testing.T) {
	want := fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, "../../deploy/charts/csi-local-lvm/dashboard.json"))))
	if got := textOf([]byte(read(t, "../../docs/dashboard.png")), "dashboard.json"); got != want {
		t.Errorf("docs/dashboard.png shows another dashboard, %q, and not %s: make picture", got, want)
	}
}

// textOf gives the text that a PNG has under that keyword (PNG, second edition, 5.3 and 11.3.4.3).
func textOf(png []byte, keyword string) string {
	for at := 8; at+8 <= len(png); {
		length, kind, data := int(binary.BigEndian.Uint32(png[at:])), string(png[at+4:at+8]), png[at+8:]
		if length > len(data) {
			break
		}
		if key, text, _ := bytes.Cut(data[:length], []byte{0}); kind == "tEXt" && string(key) == keyword {
			return string(text)
		}
		at += 8 + length + 4
	}
	return ""
}
