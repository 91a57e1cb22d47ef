package volume

import "testing"

func TestPatterns(t *testing.T) {
	for _, list := range [][]string{nil, {""}, {"vg", ""}, {"-x"}, {"a/b"}, {"vg["}, {"a/*"}, {"a *"}, {`\*`}, {"vg,other*"}} {
		_, err := ParsePatterns(list)
		wantField(t, err, "--volume-groups")
	}
	ps, err := ParsePatterns([]string{"vg0", "data-*", "ssd[0-9]"})
	if err != nil {
		t.Fatal(err)
	}
	for vg, want := range map[string]bool{
		"vg0": true, "data-1": true, "data-": true, "ssd1": true, "vg1": false, "VG0": false, "vg00": false, "xdata-1": false, "ssd": false, "": false, "data-1/x": false,
	} {
		if ps.Match(vg) != want {
			t.Errorf("Match(%q) is %v", vg, !want)
		}
	}
}

func TestDefaultGroup(t *testing.T) {
	groups := []Group{{Name: "data-b"}, {Name: "vg1"}, {Name: "data-a"}}
	for _, tt := range []struct {
		ps   Patterns
		want string
	}{
		{Patterns{"vg1", "data-*"}, "vg1"},
		{Patterns{"vg0", "data-*"}, "vg0"}, // missing, and still the default
		{Patterns{"data-*", "vg1"}, "data-a"},
		{Patterns{"ssd*", "vg1"}, ""},
	} {
		if got := tt.ps.Default(groups); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.ps, got, tt.want)
		}
	}
}
