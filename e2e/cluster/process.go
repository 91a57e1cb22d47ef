package cluster

import (
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// process is a program of ours that runs in the background. It dies with this program.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

// start runs it in a process group of its own, with a log file.
func start(name, log string, cmd *exec.Cmd) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{name: name, log: log, cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Pdeathsig is about the thread that started it
		started <- cmd.Start()
		if cmd.Process != nil {
			p.err = cmd.Wait()
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// running says whether it is, and with what error it ended.
func (p *process) running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended: %w; see %s", p.name, p.err, p.log)
	default:
		return nil
	}
}

// stop asks it to end, and waits until it has.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	<-p.ended
	return p.err
}

// kill ends it and all that it started, at once.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// fromBase64 gives the reader of what was packed with gzip and then coded.
func fromBase64(text string) (io.Reader, error) {
	return gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
}

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// cutLast is strings.Cut at the last separator.
func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
