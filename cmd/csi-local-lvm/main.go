// Command csi-local-lvm is the CSI driver for local storage on LVM. This package turns flags and environment into
// values, and serves until a signal; everything else is in pkg.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := begin(cmd.Context()); err != nil {
				return err
			}
			return driver.Guard()
		},
	}
}
