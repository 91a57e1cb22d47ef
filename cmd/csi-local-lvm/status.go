package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/show"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	outputTable = "table"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

func statusCommand(env func(string) string) *cobra.Command {
	told := driver.Config{NodeName: env("NODE_NAME")}
	output, watch := outputTable, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the volume groups, the volumes, and what is pending",
		Long: "Show the volume groups and pools, each volume, how far it has come and how it is, pending teardowns and who holds them, and what is under way.\n" +
			"It changes nothing, works beside the running driver and without one, and asks LVM and the kernel itself.",
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&output, "output", "o", output, "table, json or yaml")
	flags.DurationVar(&watch, "watch", watch, "show it again and again, this long apart (--watch alone: 2s)")
	flags.Lookup("watch").NoOptDefVal = "2s"
	besideFlags(flags, &told)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		write, err := printer(output, func() show.Options { return terminal(cmd.OutOrStdout(), env) })
		if err != nil {
			return err
		}
		if watch != 0 && watch < 100*time.Millisecond {
			return volume.Invalid("--watch", watch.String(), "give at least 100ms")
		}
		look, err := lookBeside(cmd.Context(), told)
		if err != nil {
			return err
		}
		return repeat(cmd.Context(), watch, env("TERM") != "dumb", cmd.OutOrStdout(), func(ctx context.Context, out io.Writer) error { return write(out, look.report(ctx)) })
	}
	return cmd
}

// besideFlags are those of commands beside the driver. What is not given is as the running driver has it.
func besideFlags(flags *pflag.FlagSet, c *driver.Config) {
	flags.StringVar(&c.StateDir, "state-dir", driver.Default().StateDir, "the driver's folder of the journal")
	flags.StringSliceVar(&c.VolumeGroups, "volume-groups", nil, "the driver's volume groups (default: as the running driver has them; without one, all that hold volumes of it)")
	flags.StringVar(&c.NodeName, "node-name", c.NodeName, "name of the Kubernetes node (default: the environment's NODE_NAME, else as the running driver has it, else the host's name)")
	flags.StringVar(&c.DriverName, "driver-name", "", "name of the driver (default: as the running driver has it, else "+driver.Default().DriverName+")")
	flags.StringVar(&c.KubeletDir, "kubelet-dir", "", "kubelet's root folder (default: as the running driver has it, else "+driver.Default().KubeletDir+")")
	flags.StringVar(&c.LVMExec, "lvm-exec", "", "where LVM's programs run: container, or host (default: as the running driver has it, else "+driver.Default().LVMExec+")")
}

// look is what a command beside the driver looks with; it can change nothing.
type look struct {
	cfg       driver.Config
	collector *status.Collector
	guessed   driver.Guessed
}

func lookBeside(ctx context.Context, told driver.Config) (l look, err error) {
	if l.cfg, _, l.guessed, err = driver.Beside(ctx, told); err != nil {
		return l, err
	}
	backend, err := driver.Reader(l.cfg)
	if err != nil {
		return l, err
	}
	sources, err := driver.Sources(l.cfg, backend, func(ctx context.Context) (*status.Live, error) { return status.AskDriver(ctx, l.cfg.StateDir) })
	l.collector = status.New(sources)
	return l, err
}

func (l look) report(ctx context.Context) *status.Report {
	return driver.Collect(ctx, l.collector, l.guessed.Groups)
}

// printer gives what writes a report in the format.
func printer(output string, screen func() show.Options) (func(io.Writer, *status.Report) error, error) {
	if err := checkOutput(output); err != nil {
		return nil, err
	}
	return func(w io.Writer, r *status.Report) error {
		if output == outputTable {
			return show.Status(w, r, screen())
		}
		return writeAs(w, output, r)
	}, nil
}

func checkOutput(output string) error {
	if output != outputTable && output != outputJSON && output != outputYAML {
		return volume.Invalid("--output", output, "known are table, json and yaml")
	}
	return nil
}

func writeAs(w io.Writer, output string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err == nil && output == outputYAML {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(text), "\n"))
	return err
}

// terminal tells what the reader can see. Without a terminal there is no width, and there are no colours; https://no-color.org.
func terminal(w io.Writer, env func(string) string) show.Options {
	f, ok := asTerminal(w)
	if !ok {
		return show.Options{}
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	locale := cmp.Or(env("LC_ALL"), env("LC_CTYPE"), env("LANG")) // the first that is set counts: locale(7)
	return show.Options{Width: width, Color: env("NO_COLOR") == "" && env("TERM") != "dumb", Unicode: strings.Contains(strings.ToUpper(locale), "UTF-8")}
}

// asTerminal gives the file of a reader or writer that is a terminal.
func asTerminal(stream any) (f *os.File, ok bool) {
	f, ok = stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// emptied makes a terminal empty, and begins at its top.
const emptied = "\x1b[H\x1b[2J"

// repeat writes once, or so long apart until ctx ends. A terminal that can be emptied shows one page at a time.
func repeat(ctx context.Context, apart time.Duration, canEmpty bool, w io.Writer, write func(context.Context, io.Writer) error) error {
	if apart == 0 {
		var page bytes.Buffer // a thousand volumes are not a thousand writes
		err := write(ctx, &page)
		_, writing := page.WriteTo(w)
		return cmp.Or(err, writing)
	}
	_, onTerminal := asTerminal(w)
	for {
		var page bytes.Buffer
		err := write(ctx, &page)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // whoever looked has seen enough
		}
		if err != nil {
			return err
		}
		if onTerminal && canEmpty {
			_, err = io.WriteString(w, emptied)
		}
		if err == nil {
			_, err = page.WriteTo(w)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(apart):
		}
	}
}
