package run

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, script   string
		stdout, stderr string
		exit           int
	}{
		{name: "nothing", script: "true"},
		{name: "both", script: "echo a; echo b >&2; echo c; echo d >&2", stdout: "a\nc\n", stderr: "b\nd\n"},
		{name: "many lines", script: "for i in $(seq 1 5000); do echo $i; done | sed s/^/line/", stdout: "\nline5000\n"},
		{name: "failed", script: "echo a; echo b >&2; exit 5", stdout: "a\n", stderr: "b\n", exit: 5},
	} {
		for name, run := range map[string]func(*Local) (Result, error){
			"Read":  func(l *Local) (Result, error) { return l.Read(t.Context(), "sh", "-c", c.script) },
			"Write": func(l *Local) (Result, error) { return l.Write(t.Context(), "sh", "-c", c.script) },
		} {
			res, err := run(&Local{})
			var failed *Error
			if errors.As(err, &failed) {
				res = Result{Stdout: failed.Stdout, Stderr: failed.Stderr}
			}
			if (c.exit != 0) != (failed != nil) || failed != nil && failed.ExitCode != c.exit {
				t.Errorf("%s, %s: %v", name, c.name, err)
			}
			if !strings.Contains(res.Stdout, c.stdout) || res.Stderr != c.stderr || c.stdout == "" && res.Stdout != "" {
				t.Errorf("%s, %s: %q, %q", name, c.name, res.Stdout, res.Stderr)
			}
		}
	}
}

// A child that a program leaves behind, with the output open, keeps nobody waiting.
func TestChildLeftBehind(t *testing.T) {
	res, err := (&Local{}).Write(t.Context(), "sh", "-c", "sleep 600 & echo $!")
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(res.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Errorf("the child had to end first: %v", err)
	}
}
