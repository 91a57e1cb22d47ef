// Command csi-local-lvm is the CSI driver for local storage on LVM. This package turns flags and environment into
// values, and serves until a signal; everything else is in pkg.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/show"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	root := command(os.Getenv)
	if filepath.Base(os.Args[0]) == pluginName {
		root = pluginCommand(os.Getenv, &run.Local{})
	}
	err := mainErr(root, signals)
	var silent exitStatus
	if errors.As(err, &silent) {
		os.Exit(int(silent))
	}
	if err != nil {
		fmt.Fprintln(show.Guarded(os.Stderr), "csi-local-lvm:", err) //nolint:errcheck // there is nobody else to tell
		os.Exit(1)
	}
}

// mainErr runs the command. The first signal asks it to finish what it does; the second one ends it here and now, in the
// middle of whatever runs, which the journal is made for.
func mainErr(root *cobra.Command, signals <-chan os.Signal) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()

	select {
	case err := <-ended:
		return err
	case s := <-signals:
		klog.Background().Info("stopping: calls that run are finished and answered; a second signal ends at once", "signal", s.String())
		stop()
	}
	select {
	case err := <-ended:
		return err
	case s := <-signals:
		return fmt.Errorf("second signal (%s): ended at once; what was not finished is taken up at the next start", s)
	}
}

func command(env func(string) string) *cobra.Command {
	root := &cobra.Command{
		Use:           "csi-local-lvm",
		Short:         "CSI driver for local storage on LVM",
		SilenceUsage:  true,
		SilenceErrors: true, // main prints them
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(serveCommand(env), statusCommand(env), doctorCommand(env), adoptCommand(env), versionCommand(), guardCommand())
	return root
}

// guardCommand is run by the driver beside itself, while it holds volumes for the snapshots of a group.
func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    driver.GuardCommand,
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return driver.Guard() },
	}
}
