package main

import (
	"context"
	"encoding/json"
	"os/signal"
	"syscall"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
)

// runDriver is the driver, with waits that are short for a machine that lives for seconds.
func runDriver(config string) error {
	var cfg driver.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	backend, err := driver.Real(cfg, nil)
	if err != nil {
		return err
	}
	d, err := driver.New(cfg, backend, nil)
	if err != nil {
		return err
	}
	d.Timing = lifecycle.Timing{BusyWait: time.Second, FirstRetry: 50 * time.Millisecond, BusyRetry: 200 * time.Millisecond, FailedRetry: 500 * time.Millisecond}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return d.Run(ctx)
}
