package run

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestStream(t *testing.T) {
	refusal := errors.New("enough")
	whole := func(text *string) func(io.Reader) error {
		return func(r io.Reader) error {
			b, err := io.ReadAll(r)
			*text = string(b)
			return err
		}
	}
	var got string
	for _, c := range []struct {
		name, script string
		sink         func(io.Reader) error
		want         string // in got
		err          error
		exit         int // of an *Error; 0: none
		stderr       string
	}{
		{name: "all", script: "seq 1 50000", sink: whole(&got), want: "\n50000\n"},
		{name: "nothing taken", script: "seq 1 500000", sink: func(io.Reader) error { return nil }},
		{name: "failed", script: "echo a; echo no >&2; exit 3", sink: whole(&got), want: "a\n", exit: 3, stderr: "no\n"},
		{name: "failed after a refusal at the end", script: "echo a; sleep 0.1; echo no >&2; exit 3", exit: 3, stderr: "no\n",
			sink: func(r io.Reader) error { return errors.Join(whole(&got)(r), io.ErrUnexpectedEOF) }},
		{name: "refused", script: "yes", sink: func(r io.Reader) error { _, err := r.Read(make([]byte, 10)); return errors.Join(err, refusal) }, err: refusal},
		{name: "much said", script: "yes | head -c 1000000 >&2; exit 1", sink: whole(&got), exit: 1, stderr: strings.Repeat("y\n", headBytes/2)},
	} {
		got = ""
		err := (&Local{}).Stream(t.Context(), c.sink, "sh", "-c", c.script)
		var failed *Error
		switch {
		case !strings.Contains(got, c.want):
			t.Errorf("%s: read %q", c.name, got)
		case c.exit != 0 && (!errors.As(err, &failed) || failed.ExitCode != c.exit || failed.Stderr != c.stderr):
			t.Errorf("%s: %v", c.name, err)
		case c.exit == 0 && !errors.Is(err, c.err):
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
	}
	if err := (&Local{}).Stream(t.Context(), whole(&got), "no-such-program"); !NotFound(err) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// A program is killed when nobody waits for it any more, and what it printed until then is not taken for all.
func TestStreamIsKilled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	start := time.Now()
	err := (&Local{}).Stream(ctx, func(r io.Reader) error {
		_, err := r.Read(make([]byte, 2))
		cancel()
		_, rest := io.Copy(io.Discard, r)
		return errors.Join(err, rest)
	}, "sh", "-c", "echo; exec sleep 60")
	if !errors.Is(err, context.Canceled) || time.Since(start) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}
