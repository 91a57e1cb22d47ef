package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fleet"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/show"
)

// pluginName is how kubectl finds a plugin: "kubectl csi-local-lvm" runs a program of this name (kubectl writes _ for -).
const pluginName = "kubectl-csi_local_lvm"

func pluginCommand(env func(string) string, r run.Runner) *cobra.Command {
	output, selector := outputTable, fleet.Selector
	given := map[string]*string{"kubeconfig": new(string), "context": new(string)}
	cmd := &cobra.Command{
		Use:           "kubectl csi-local-lvm",
		Short:         "Show volume groups, volumes, and what is pending, of all nodes",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true, // main prints them
	}
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", output, "table, json or yaml")
	flags.StringVarP(&selector, "selector", "l", selector, "labels of the driver's pods")
	flags.StringVar(given["kubeconfig"], "kubeconfig", "", "as kubectl's")
	flags.StringVar(given["context"], "context", "", "as kubectl's")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(output); err != nil {
			return err
		}
		var kubectl []string
		for _, name := range []string{"kubeconfig", "context"} {
			if *given[name] != "" {
				kubectl = append(kubectl, "--"+name+"="+*given[name])
			}
		}
		nodes, err := fleet.Ask(cmd.Context(), r, kubectl, selector)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if output != outputTable {
			err = writeAs(out, output, nodes)
		}
		var silent []error
		for i, n := range nodes {
			if n.Error != "" {
				silent = append(silent, fmt.Errorf("node %s (pod %s): %s", n.Name, n.Pod, n.Error))
			} else if output == outputTable && err == nil {
				if i > 0 {
					_, err = fmt.Fprint(out, "\n\n")
				}
				err = errors.Join(err, show.Status(out, n.Report, terminal(out, env)))
			}
		}
		return errors.Join(append(silent, err)...)
	}
	return cmd
}
