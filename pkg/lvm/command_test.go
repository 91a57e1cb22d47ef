package lvm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
)

type effectOf = effect.Effect

// Our filter goes where the administrator has none, or before his.
func TestFilter(t *testing.T) {
	ours := `"r|^/dev/loop0(p[0-9]+)?$|","r|^/dev/mapper/a\\.b(p[0-9]+)?$|"`
	for _, c := range []struct {
		admin adminFilter
		want  string
	}{
		{adminFilter{}, "global_filter=[" + ours + "]"},
		{adminFilter{filter: `"a|sd|","r|.*|"`}, "global_filter=[" + ours + "]"},
		{adminFilter{global: `"r|x|"`}, "filter=[" + ours + "]"},
		{adminFilter{filter: `"a|x|"`, global: `"r|x|"`}, "global_filter=[" + ours + `,"r|x|"]`},
	} {
		if got := c.admin.with([]string{"/dev/loop0", "/dev/mapper/a.b"}); got != c.want {
			t.Errorf("%+v:\n%s, want\n%s", c.admin, got, c.want)
		}
	}
}

// case B35
func TestGuestsAreFiltered(t *testing.T) {
	r := newRig(t)
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(r.commands.guests.sys, "block", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("sda/size", "1\n")
	put("loop0/size", "0\n") // free
	put("dm-0/dm/uuid", "LVM-x\n")
	put("dm-0/dm/name", "empty-v\n")
	put("dm-0/slaves/sda", "")
	put("dm-1/dm/uuid", "CRYPT-LUKS2-x\n") // a disk, encrypted: the administrator's
	put("dm-1/dm/name", "disk\n")
	put("dm-1/slaves/sda", "")
	put("dm-2/dm/uuid", "LVM-y\n") // another group, not ours
	put("dm-2/dm/name", "root--vg-lv\n")
	put("dm-2/slaves/sda", "")
	put("dm-3/dm/uuid", "\n")
	put("dm-3/dm/name", "onroot\n")
	put("dm-3/slaves/dm-2", "")
	if err := r.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.config[0] != tuned {
		t.Errorf("without guests: config %s", r.config[0])
	}
	put("dm-4/dm/uuid", "CRYPT-LUKS2-y\n")
	put("dm-4/dm/name", "guest\n")
	put("dm-4/slaves/dm-0", "")
	put("md0/slaves/dm-4", "")
	report := r.answer
	r.answer = func(verb string, args []string) (run.Result, error) {
		if verb == "lvmconfig" {
			return run.Result{Stdout: "devices {\n\tglobal_filter=[\"r|/dev/sdx|\"]\n\tscan_lvs=1\n}\n"}, nil
		}
		return report(verb, args)
	}
	if _, err := r.commands.report(t.Context(), "", all); err != nil {
		t.Fatal(err)
	}
	got := r.config[len(r.config)-1]
	for _, p := range []string{"dm-4", "mapper/guest", "md0"} {
		if !strings.Contains(got, `r|^`+r.dev+`/`+p+`(`) {
			t.Errorf("%s is not hidden: %s", p, got)
		}
	}
	for _, p := range []string{"dm-0(", "dm-1(", "dm-2(", "dm-3(", "sda", "loop0"} {
		if strings.Contains(got, p) {
			t.Errorf("%s is hidden: %s", p, got)
		}
	}
	if strings.Contains(got, "global_filter") {
		t.Errorf("the administrator's filter is replaced: %s", got)
	}
	r.count(t, "guests", "fullreport", "lvmconfig", "fullreport")
}

func TestGroupOfDMName(t *testing.T) {
	for name, want := range map[string]string{"vg-lv": "vg", "a--b-c--d": "a-b", "a----b-c": "a--b", "vg-lv_tdata": "vg"} {
		if got := groupOfDMName(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
