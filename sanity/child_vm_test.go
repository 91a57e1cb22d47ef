//go:build vm

package sanity

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// The test binary is also the driver under test: with these in its environment it runs one. Its seam is told by files
// of the control folder what to do, so that the test can change it while the driver runs:
//
//	fault       the contract.Fault; its rename into place begins the count anew
//	effects     each effect that has begun, a line of JSON each; the harness empties it when it arms
//	killed      made just before a fault kills the driver
//	block/NAME  an effect of this name waits as long as the file is there; each adds a byte to block/NAME.came
const (
	childConfig  = "CSI_TEST_DRIVER_CONFIG"
	childControl = "CSI_TEST_DRIVER_CONTROL"
)

func TestMain(m *testing.M) {
	run := runDriver
	switch {
	case len(os.Args) == 2 && os.Args[1] == driver.GuardCommand:
		run = driver.Guard
	case os.Getenv(childConfig) == "":
		os.Exit(m.Run())
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runDriver() error {
	var cfg driver.Config
	if err := json.Unmarshal([]byte(os.Getenv(childConfig)), &cfg); err != nil {
		return err
	}
	c := &child{control: os.Getenv(childControl)}
	c.die = c.killSelf
	backend, err := driver.Real(cfg, c.seam)
	if err != nil {
		return err
	}
	d, err := driver.New(cfg, backend, c.seam)
	if err != nil {
		return err
	}
	d.Timing = lifecycle.Timing{BusyWait: 300 * time.Millisecond, FirstRetry: 50 * time.Millisecond, BusyRetry: 200 * time.Millisecond, FailedRetry: 200 * time.Millisecond,
		CreateGrace: time.Second}
	d.StopBound = stopBound
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return d.Run(ctx)
}

// child is the seam of the driver in a process of its own.
type child struct {
	faults
	control string

	mu    sync.Mutex
	since time.Time // of the fault that was read last
}

func (c *child) in(name string) string { return filepath.Join(c.control, name) }

func (c *child) seam(ctx context.Context, e effect.Effect, do func() error) error {
	if err := c.follow(e); err != nil {
		return err
	}
	return c.faults.seam(ctx, e, func() error {
		c.wait(contract.EffectName(e))
		return do()
	})
}

// follow takes a new fault over, and takes note of the effect.
func (c *child) follow(e effect.Effect) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if info, err := os.Stat(c.in("fault")); err == nil && !info.ModTime().Equal(c.since) {
		var f contract.Fault
		text, err := os.ReadFile(c.in("fault"))
		if err == nil {
			err = json.Unmarshal(text, &f)
		}
		if err != nil {
			return err
		}
		c.since = info.ModTime()
		c.arm(f)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return appendTo(c.in("effects"), string(line)+"\n")
}

func (c *child) wait(name string) {
	gate := c.in("block/" + name)
	for came := false; ; <-time.Tick(5 * time.Millisecond) {
		if _, err := os.Stat(gate); err != nil {
			return
		}
		if !came {
			came = appendTo(gate+".came", ".") == nil
		}
	}
}

func (c *child) killSelf() {
	_ = os.WriteFile(c.in("killed"), nil, 0o600)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal has come
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
