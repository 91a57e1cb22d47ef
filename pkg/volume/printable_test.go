package volume

import "testing"

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                            "",
		"pvc-1, pid 7 (postgres: ä…)": "pvc-1, pid 7 (postgres: ä…)",
		"\x1b[31mEVIL\x1b[2J":         `\x1b[31mEVIL\x1b[2J`,
		"a\nfault: b\tc\x07":          `a\nfault: b\tc\a`,
		"\u202egnp.exe":               `\u202egnp.exe`,
		"\u009b2J\x7f":                `\u009b2J\x7f`,
		"no \xff UTF-8":               `no \ufffd UTF-8`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
