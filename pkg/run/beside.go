package run

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Beside is a program that runs beside its caller, and is told over its standard input what there is to do. It is no effect: by
// itself it changes nothing. It outlives a caller that is killed, and then reads the end of its input.
type Beside struct {
	cmd   *exec.Cmd
	input io.WriteCloser
}

// besideBound is how long such a program may take to begin, and to end.
const besideBound = 5 * time.Second

// StartBeside starts a program, and waits until it has printed its first line: it is ready then.
func StartBeside(ctx context.Context, argv ...string) (*Beside, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as in command
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, tell(ctx, cmd, start, err, "")
	}
	late := time.AfterFunc(besideBound, func() { _ = cmd.Process.Kill() })
	_, err = bufio.NewReader(output).ReadString('\n')
	if late.Stop() && err == nil {
		return &Beside{cmd: cmd, input: input}, nil
	}
	_ = cmd.Process.Kill() // it may have ended by itself
	_ = input.Close()
	return nil, tell(ctx, cmd, start, fmt.Errorf("it did not begin: %w", cmd.Wait()), "")
}

// Tell writes a line. Once it is written the program will read it, whatever becomes of the caller.
func (b *Beside) Tell(line string) error {
	_, err := io.WriteString(b.input, line+"\n")
	return err
}

// End writes a last line, and waits for the end of the program. One that does not end is killed.
func (b *Beside) End(line string) error {
	late := time.AfterFunc(besideBound, func() { _ = b.cmd.Process.Kill() })
	defer late.Stop()
	told := b.Tell(line)
	_ = b.input.Close() // its error is that of the line
	if err := b.cmd.Wait(); err != nil {
		return err
	}
	return told
}
