// Package run runs one program honestly: an argument vector and no shell, the C locale, standard output and standard
// error apart, the exit code told, and the deadline of the caller kept only where the caller asks for it.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
)

// Runner runs a program to its end and returns what it printed.
//
// Read runs a program that changes nothing: it is killed when ctx ends, and it is not an effect.
// Write runs a program that changes something: it passes the effect seam, and it is never killed, because a
// half-done lvcreate or mkfs is worse than a late one. Write returns only when the program has ended. If ctx has
// ended before the start, the program is not started.
//
// A program that exits with a code other than 0, or by a signal, gives an *Error. Text on standard error with exit
// code 0 is a warning: it is logged, and it is in the Result.
type Runner interface {
	Read(ctx context.Context, name string, args ...string) (Result, error)
	Write(ctx context.Context, name string, args ...string) (Result, error)
}

// Streamer runs a program that changes nothing and may print more than is to be kept in memory.
type Streamer interface {
	// Stream is Read, but gives sink the standard output while the program runs. If sink returns an error before it has
	// read to the end, the program is killed, and the error returned. That what is read was all is known only when
	// Stream returns nil: a program that fails ends its output too.
	Stream(ctx context.Context, sink func(io.Reader) error, name string, args ...string) error
}

// Result is what a program printed.
type Result struct {
	Stdout, Stderr string
}

// Error is a program that did not end well. A program that could not be started has ExitCode -1 and the reason in Err.
type Error struct {
	Argv     []string
	ExitCode int // -1: not started, or ended by a signal
	Stdout   string
	Stderr   string
	Err      error
}

func (e *Error) Error() string {
	text := strings.Join(strings.Fields(e.Stderr), " ")
	if text == "" {
		text = strings.Join(strings.Fields(e.Stdout), " ")
	}
	if len(text) > 1000 {
		text = text[:1000] + "..."
	}
	return fmt.Sprintf("%s: %v: %s", strings.Join(e.Argv, " "), e.Err, text)
}

func (e *Error) Unwrap() error { return e.Err }

// Local runs programs on this machine.
type Local struct {
	// Prefix goes before every argument vector, for example nsenter with its flags to run the host's tools.
	Prefix []string
	// Effects is the seam that Write passes; nil calls through.
	Effects effect.Seam
	// Watch is told of each program that has ended, without the prefix; nil: nobody is.
	Watch *Watch
}

// Watch passes on which programs have ended, and how, and knows which run that change something. The zero value tells nobody. Safe for use by several goroutines.
type Watch struct {
	told atomic.Pointer[func(string, []string, time.Duration, error)]

	mu   sync.Mutex
	runs map[*Running]bool
}

// Running is a program that runs, and that changes something.
type Running struct {
	Argv  []string // without the prefix
	Since time.Time
}

// Running gives the programs that run now and change something, the oldest first. Of a nil one there are none.
func (w *Watch) Running() []Running {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]Running, 0, len(w.runs))
	for r := range w.runs {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Running) int { return a.Since.Compare(b.Since) })
	return out
}

// begins takes note of a program; the caller calls ended at its end. A nil one takes none.
func (w *Watch) begins(name string, args []string) (ended func()) {
	if w == nil {
		return func() {}
	}
	r := &Running{append([]string{name}, args...), time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs == nil {
		w.runs = map[*Running]bool{}
	}
	w.runs[r] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.runs, r)
	}
}

// Tell makes f be told from now on, instead of whoever was. It must not wait.
func (w *Watch) Tell(f func(name string, args []string, took time.Duration, err error)) {
	w.told.Store(&f)
}

var (
	_ Runner   = (*Local)(nil)
	_ Streamer = (*Local)(nil)
)

// Read implements Runner.
func (l *Local) Read(ctx context.Context, name string, args ...string) (Result, error) {
	return l.run(ctx, true, name, args)
}

// Write implements Runner.
func (l *Local) Write(ctx context.Context, name string, args ...string) (res Result, err error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	err = l.Effects.Do(ctx, "run", name+" "+strings.Join(args, " "), func() error {
		defer l.Watch.begins(name, args)()
		res, err = l.run(ctx, false, name, args)
		return err
	})
	return res, err
}

func (l *Local) run(ctx context.Context, killable bool, name string, args []string) (Result, error) {
	cmd := l.command(ctx, killable, name, args)
	var res Result
	start := time.Now()
	err := printed(func(stdout, stderr *os.File) error {
		cmd.Stdout, cmd.Stderr = stdout, stderr
		return cmd.Run()
	}, &res.Stdout, &res.Stderr)
	l.ended(name, args, start, err)
	told := tell(ctx, cmd, start, err, res.Stderr)
	if err == nil {
		return res, nil
	}
	if killable && ctx.Err() != nil {
		told.Err = ctx.Err() // killed by the deadline, not by a fault of its own
	}
	told.Stdout = res.Stdout
	return res, told
}

// printed runs do with two files in memory, and gives what was written to them. A pipe instead would wake this process at each line, of which
// LVM prints a thousand in as many writes; and a child that a program leaves behind could keep a pipe open.
func printed(do func(stdout, stderr *os.File) error, out, warned *string) error {
	files, texts := [2]*os.File{}, [2]*string{out, warned}
	for i := range files {
		fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("memfd_create for the output: %w", err)
		}
		files[i] = os.NewFile(uintptr(fd), "output")
		defer files[i].Close() //nolint:errcheck // it is in memory
	}
	err := do(files[0], files[1])
	for i, f := range files {
		text, reading := writtenTo(f)
		*texts[i], err = text, cmp.Or(err, reading)
	}
	return err
}

// writtenTo gives what is in the file now; a child may go on writing.
func writtenTo(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.Grow(int(info.Size()))
	_, err = io.Copy(&text, io.NewSectionReader(f, 0, info.Size()))
	return text.String(), err
}

// Stream implements Streamer.
func (l *Local) Stream(ctx context.Context, sink func(io.Reader) error, name string, args ...string) error {
	killable, kill := context.WithCancel(ctx)
	defer kill()
	cmd := l.command(killable, true, name, args)
	var stderr head
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		l.ended(name, args, start, err)
		return tell(ctx, cmd, start, err, "")
	}
	out := &ended{r: pipe}
	refused := sink(out)
	switch {
	case refused != nil && !out.eof:
		kill()
	case refused == nil:
		_, _ = io.Copy(io.Discard, pipe) // a program whose output nobody takes would not end
	}
	err = cmd.Wait()
	l.ended(name, args, start, err)
	told := tell(ctx, cmd, start, err, string(stderr.kept))
	switch {
	case ctx.Err() != nil:
		told.Err = ctx.Err()
		return told
	case err != nil && (refused == nil || out.eof): // what it printed is not all, and that is why the sink refused it
		return told
	default:
		return refused
	}
}

func (l *Local) ended(name string, args []string, start time.Time, err error) {
	if l.Watch == nil {
		return
	}
	if told := l.Watch.told.Load(); told != nil {
		(*told)(name, args, time.Since(start), err)
	}
}

// ended tells whether a reader has come to its end.
type ended struct {
	r   io.Reader
	eof bool
}

func (e *ended) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.eof = e.eof || err != nil
	return n, err
}

// head keeps the beginning of what is written to it.
type head struct{ kept []byte }

const headBytes = 64 << 10

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), headBytes-len(h.kept))]...)
	return len(p), nil
}

func (l *Local) command(ctx context.Context, killable bool, name string, args []string) *exec.Cmd {
	argv := append(append(append([]string(nil), l.Prefix...), name), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	if killable {
		cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.WaitDelay = 2 * time.Second // a child that keeps the pipes open must not keep the caller
	}
	// LVM asks udev for cookies that never come in a container with an IPC namespace of its own (dmsetup(8)).
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANG=C", "DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1")
	// A group of its own: a Ctrl-C at the driver's terminal must not interrupt an lvcreate.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if killable { // and what nobody waits for any more, such as a report that waits for LVM's lock, ends with this process (prctl(2))
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	return cmd
}

// tell logs how a program ended, and makes the error of one that did not end well.
func tell(ctx context.Context, cmd *exec.Cmd, start time.Time, err error, stderr string) *Error {
	log := klog.FromContext(ctx).V(4)
	log.Info("ran program", "argv", cmd.Args, "duration", time.Since(start).Round(time.Microsecond), "err", err)
	if text := strings.TrimSpace(stderr); err == nil && text != "" {
		log.Info("program warned", "argv", cmd.Args, "stderr", text)
	}
	code := -1
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	return &Error{Argv: cmd.Args, ExitCode: code, Stderr: stderr, Err: err}
}

// NotFound reports whether the error is that of a program which is not on this machine.
func NotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && (errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist))
}

// Found reports whether there is a program of that name in PATH.
func Found(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}
