package run

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A program that changes something is known while it runs, and no longer; one that only reads is not.
func TestRunning(t *testing.T) {
	var none *Watch
	if got := none.Running(); len(got) != 0 {
		t.Errorf("of nobody: %v", got)
	}
	w := &Watch{}
	l := &Local{Watch: w}
	gate := filepath.Join(t.TempDir(), "gate")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-c", "while [ -e " + gate + " ]; do sleep 0.01; done"}
	ended := make(chan error, 2)
	go func() { _, err := l.Write(t.Context(), "sh", args...); ended <- err }()
	go func() { _, err := l.Read(t.Context(), "sh", args...); ended <- err }()
	begun := time.Now()
	for end := begun.Add(10 * time.Second); len(w.Running()) == 0; <-time.Tick(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not known")
		}
	}
	if got := w.Running(); len(got) != 1 || !slices.Equal(got[0].Argv, append([]string{"sh"}, args...)) || got[0].Since.After(time.Now()) || time.Since(got[0].Since) > time.Minute {
		t.Errorf("%+v", got)
	}
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if got := w.Running(); len(got) != 0 {
		t.Errorf("after its end: %v", got)
	}
}
