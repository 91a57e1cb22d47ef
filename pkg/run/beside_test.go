package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBeside(t *testing.T) {
	heard := filepath.Join(t.TempDir(), "heard")
	b, err := StartBeside(t.Context(), "sh", "-c", `echo ready; cat > "$0"`, heard)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"one", "two"} {
		if err := b.Tell(line); err != nil {
			t.Error(err)
		}
	}
	if err := b.End("three"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(heard); string(text) != "one\ntwo\nthree\n" {
		t.Errorf("heard %q, %v", text, err)
	}
}

// One that is gone is told nothing, and that is said.
func TestBesideIsGone(t *testing.T) {
	b, err := StartBeside(t.Context(), "sh", "-c", "echo ready; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	for b.Tell("line") == nil { // until the pipe has no reader
	}
	if err := b.End("last"); err == nil || !strings.Contains(err.Error(), "3") {
		t.Errorf("ended with %v", err)
	}
}

func TestBesideDoesNotBegin(t *testing.T) {
	for _, argv := range [][]string{{"/nowhere/guard"}, {"sh", "-c", "exit 7"}, {"sh", "-c", "exec 1>&-; sleep 0"}} {
		if _, err := StartBeside(t.Context(), argv...); err == nil {
			t.Errorf("%v has begun", argv)
		}
	}
}
