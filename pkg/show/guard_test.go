package show

import (
	"strings"
	"testing"
)

func TestGuarded(t *testing.T) {
	for in, want := range map[string]string{
		"plain, äöü █░…\n":                   "plain, äöü █░…\n",
		"\x1b[31mred\x1b[0m and \x1b[1;32mx": "\x1b[31mred\x1b[0m and \x1b[1;32mx",
		"\x1b[2J\x1b[H\x1b]0;title\a":        `\x1b[2J\x1b[H\x1b]0;title\a`,
		"\x1b\x1b[31mm\r\n":                  `\x1b` + "\x1b[31mm" + `\r` + "\n",
		"\u202e\x00":                         `\u202e\x00`,
	} {
		var out strings.Builder
		if n, err := Guarded(&out).Write([]byte(in)); out.String() != want || n != len(in) || err != nil {
			t.Errorf("%q: %q, %d, %v, want %q", in, out.String(), n, err, want)
		}
	}
}
