package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
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

// A program that changes nothing ends with the process that runs it, and one that changes something does not: it is finished.
func TestProgramsOfADeadProcess(t *testing.T) {
	if how := os.Getenv("TEST_RUN_AS"); how != "" {
		l := &Local{}
		run := map[string]func(context.Context, string, ...string) (Result, error){"Read": l.Read, "Write": l.Write}[how]
		_, err := run(t.Context(), "sh", "-c", "echo $$ >$TEST_RUN_PID; exec sleep 600")
		t.Fatalf("it ended: %v", err)
	}
	for how, ends := range map[string]bool{"Read": true, "Write": false} {
		file := filepath.Join(t.TempDir(), "pid")
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProgramsOfADeadProcess$")
		cmd.Env = append(os.Environ(), "TEST_RUN_AS="+how, "TEST_RUN_PID="+file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		within(t, how+": the program starts", func() bool {
			text, _ := os.ReadFile(file)
			_, err := fmt.Sscanln(string(text), &pid)
			return err == nil
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		if ends {
			within(t, how+": the program ends", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("%s: the program did not go on: %v", how, err)
		}
	}
}

// within waits until something is so.
func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
