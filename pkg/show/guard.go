package show

import (
	"io"
	"regexp"
	"unicode"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Guarded gives a writer to a terminal that lets through what shows as itself, ends of lines and colours. Everything else is written out: names
// come from pods, from other nodes and from programs, and must not move the cursor, change the window's title or hide what stands there. Each
// write is of whole lines.
func Guarded(w io.Writer) io.Writer { return guarded{w} }

type guarded struct{ w io.Writer }

// colour is "select graphic rendition" (ECMA-48, 8.3.117).
var colour = regexp.MustCompile(`\x1b\[[0-9;]*m`)

func (g guarded) Write(p []byte) (int, error) {
	text, out := string(p), ""
	for {
		at := colour.FindStringIndex(text)
		if at == nil {
			break
		}
		out += plain(text[:at[0]]) + text[at[0]:at[1]]
		text = text[at[1]:]
	}
	if _, err := io.WriteString(g.w, out+plain(text)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func plain(s string) string {
	return volume.Written(s, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
}
