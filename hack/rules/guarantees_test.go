package rules

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var (
	promise  = regexp.MustCompile(`(?m)^\| [0-9]+ \|.*\| ([^|]*) \|$`)
	testName = regexp.MustCompile("`([A-Z][A-Za-z]+)(…?)`")
)

// Each test that docs/guarantees.md names for a promise is there: as a test, or as one of a suite of sanity/contract.
func TestGuaranteesNameTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, row := range promise.FindAllStringSubmatch(string(text), -1) {
		for _, name := range testName.FindAllStringSubmatch(row[1], -1) {
			named++
			suite := `\{"` + name[1] + `",`
			if name[2] != "" { // all that begin so
				suite = strings.TrimSuffix(suite, `",`)
			}
			if err := exec.Command("grep", "-rqE", "--include=*.go", suite+"|^func "+name[1]+`\(`, "../../sanity", "../../pkg", "../../cmd").Run(); err != nil {
				t.Errorf("docs/guarantees.md names a test %s, and there is none", name[1])
			}
		}
	}
	if named < 20 {
		t.Errorf("docs/guarantees.md names %d tests; is its table read?", named)
	}
}
