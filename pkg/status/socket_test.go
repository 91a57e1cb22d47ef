package status

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSocket(t *testing.T) {
	folder := filepath.Join(t.TempDir(), strings.Repeat("long", 30)) // longer than a socket's path may be
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := AskDriver(t.Context(), folder); !errors.Is(err, ErrNotRunning) {
		t.Errorf("nobody there: %v", err)
	}
	for range 2 { // the second finds the socket of the first
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- Serve(ctx, folder, func(context.Context) *Live { return &Live{Version: "v1", NodeName: "n"} })
		}()
		for end := time.Now().Add(10 * time.Second); ; <-time.Tick(time.Millisecond) {
			live, err := AskDriver(t.Context(), folder)
			if err == nil && live.Version == "v1" && live.NodeName == "n" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%+v %v", live, err)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := AskDriver(t.Context(), folder); !errors.Is(err, ErrNotRunning) {
			t.Errorf("it has stopped: %v", err)
		}
	}
	if _, err := AskDriver(t.Context(), filepath.Join(folder, "missing")); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no state folder: %v", err)
	}
}
