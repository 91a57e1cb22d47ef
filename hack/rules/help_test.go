package rules

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// "make help" lists every target of the Makefile.
func TestHelpListsAllTargets(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", "../..", "help").Output()
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindStringSubmatch(string(text))
	if targets == nil {
		t.Fatal("no .PHONY in the Makefile")
	}
	for _, target := range strings.Fields(targets[1]) {
		if !strings.Contains(string(help), "  make "+target+" ") {
			t.Errorf("make help does not list %s", target)
		}
	}
}
