package sanity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// errDead is what a driver's effects meet after its end. It reaches nobody: the driver's clients are cut off before.
var errDead = errors.New("this driver was killed")

// faults is the seam of a driver under test: it takes note of each effect, and does what was armed. The zero value does no
// more than call through.
type faults struct {
	die func() // called once, when an armed kill is due

	mu    sync.Mutex
	dead  chan struct{} // nil: it lives; closed when it is dead and its clients are cut off
	armed contract.Fault
	seen  []effect.Effect
}

// aCommand is the seam of a command that is run once, and ends when it is killed: none of its effects is seen any more. It meets what was
// armed, which is then gone.
func aCommand(armed *contract.Fault) effect.Seam {
	f := &faults{armed: *armed}
	*armed = contract.Fault{}
	return f.seam
}

func (f *faults) seam(_ context.Context, e effect.Effect, do func() error) error {
	fault, errno, err := f.begin(e)
	if err != nil {
		return err
	}
	switch fault {
	case contract.KillBefore:
		f.kill()
		return errDead
	case contract.PanicAt:
		panic(fmt.Sprintf("injected at %s %s", e.Op, e.Detail))
	case contract.FailBefore:
		return fmt.Errorf("injected before %s %s: %w", e.Op, e.Detail, errno)
	}
	err = do()
	switch {
	case fault == contract.KillAfter:
		f.kill()
		return errDead
	case fault == contract.FailAfter && (e.Op == "run" || e.Op == "fsync"):
		return errors.Join(err, fmt.Errorf("injected after %s %s: %w", e.Op, e.Detail, errno))
	}
	return err
}

// begin counts an effect, and tells what it meets. Nothing begins any more once the driver is dead.
func (f *faults) begin(e effect.Effect) (contract.FaultKind, syscall.Errno, error) {
	f.mu.Lock()
	if dead := f.dead; dead != nil {
		f.mu.Unlock()
		<-dead
		return "", 0, errDead
	}
	defer f.mu.Unlock()
	f.seen = append(f.seen, e)
	named := slices.Contains(strings.Fields(f.armed.Each), contract.EffectName(e))
	below := f.armed.Each != "" && strings.HasPrefix(e.Detail+"/", f.armed.Each+"/")
	if named || below || len(f.seen) == f.armed.N {
		return f.armed.Do, cmp.Or(f.armed.Errno, syscall.EIO), nil
	}
	return "", 0, nil
}

func (f *faults) kill() {
	f.mu.Lock()
	already, dead := f.dead, make(chan struct{})
	if already == nil {
		f.dead = dead
	}
	f.mu.Unlock()
	if already != nil {
		<-already
		return
	}
	if f.die != nil {
		f.die()
	}
	close(dead)
}

func (f *faults) isDead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead != nil
}

func (f *faults) arm(fault contract.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.seen = fault, nil
}

func (f *faults) effects() []effect.Effect {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

// journalWorld describes the records of a journal's folder, without what differs from run to run.
func journalWorld(folder string) (string, error) {
	var lines []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == folder {
			return fs.SkipAll // no driver has run yet
		}
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasPrefix(d.Name(), ".") {
			return nil // a temporary file means nothing, whenever it was left behind
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone since the folder was read
		}
		if err != nil {
			return err
		}
		var record map[string]any
		if json.Unmarshal(text, &record) == nil {
			delete(record, "since")
			delete(record, "checksum")
			if text, err = json.Marshal(record); err != nil {
				return err
			}
		}
		lines = append(lines, fmt.Sprintf("journal %s %s\n", d.Name(), text))
		return nil
	})
	return strings.Join(lines, ""), err
}
