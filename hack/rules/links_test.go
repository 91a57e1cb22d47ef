package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	marks   = regexp.MustCompile("[^a-z0-9 _-]")
)

// Each link of the documentation to a file of this source leads to one, and to a heading that is there.
func TestLinksLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../../README.md", "../../CONTRIBUTING.md")
	seen := 0
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			seen++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			} else if anchor != "" && !anchors(read(t, to))[anchor] {
				t.Errorf("%s: %s: there is no such heading", page, m[1])
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d links; are the pages read?", seen)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors are the names that headings have in links, as GitHub and others make them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all[strings.ReplaceAll(marks.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return all
}

func TestAnchors(t *testing.T) {
	got := anchors("# A page\n\n## Which call expands: `--expansion`\n```sh\n# no heading\n```\n")
	if !got["a-page"] || !got["which-call-expands---expansion"] || len(got) != 2 {
		t.Errorf("%v", got)
	}
}
