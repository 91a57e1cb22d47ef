package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/doctor"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/show"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// consultation is what the flags of "doctor" say, and what comes of them.
type consultation struct {
	told       driver.Config
	output     string
	cluster    bool
	kubeconfig string
	fix, yes   bool
	bundle     string
	word       string // what is asked about; "": everything

	cfg   driver.Config
	look  func(context.Context) (*doctor.Facts, error)
	hands doctor.Hands // nil: the driver's own
	in    io.Reader
	out   io.Writer
	says  io.Writer // hears what --fix does, as it does it
	env   func(string) string
}

func doctorCommand(env func(string) string) *cobra.Command {
	c := &consultation{told: driver.Config{NodeName: env("NODE_NAME")}, output: outputTable, env: env}
	cmd := &cobra.Command{
		Use:   "doctor [VOLUME|TARGET|POD-UID]",
		Short: "Say what does not fit together, and mend what is safe to mend",
		Long: "Lay side by side what kubelet and Kubernetes want, what the journal intends, what the kernel shows and what LVM holds, and name each disagreement with its remedy.\n" +
			"Without --fix it changes nothing. The exit status is 0: nothing is wrong; 2: warnings; 3: faults; 1: it could not be found out.",
		Args: cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&c.output, "output", "o", c.output, "table, json or yaml")
	flags.BoolVar(&c.cluster, "cluster", false, "ask Kubernetes too, with kubectl as it is set up here: PersistentVolumes, pods, attachments, snapshots")
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "as --cluster, with this kubeconfig")
	flags.BoolVar(&c.fix, "fix", false, "carry out the safe remedies, one by one, each after a question")
	flags.BoolVar(&c.yes, "yes", false, "with --fix: without questions")
	flags.StringVar(&c.bundle, "bundle", "", "pack all facts and logs, without secrets, into this new file (tar.gz; - is standard output), for a bug report; with --cluster also the logs that kubectl gives")
	besideFlags(flags, &c.told)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.in, c.out, c.says = cmd.InOrStdin(), cmd.OutOrStdout(), show.Guarded(cmd.OutOrStdout())
		if c.output != outputTable { // one document is all that is on standard output
			c.says = show.Guarded(cmd.ErrOrStderr())
		}
		for _, name := range []string{"bundle", "kubeconfig"} {
			if f := flags.Lookup(name); f.Changed && f.Value.String() == "" {
				return volume.Invalid("--"+name, "", "it is empty; give a file, or leave it out")
			}
		}
		if len(args) == 1 {
			if c.word = strings.TrimRight(args[0], "/"); c.word == "" {
				return volume.Invalid("VOLUME|TARGET|POD-UID", args[0], "it names nothing; give a volume, a path or the uid of a pod, or leave it out for everything")
			}
		}
		return c.run(cmd.Context())
	}
	return cmd
}

func (c *consultation) run(ctx context.Context) error {
	if err := checkOutput(c.output); err != nil {
		return err
	}
	if c.yes && !c.fix {
		return volume.Invalid("--yes", "true", "it is for --fix")
	}
	if _, ok := asTerminal(c.in); c.fix && !c.yes && !ok {
		return volume.Invalid("--fix", "true", "there is no terminal to ask on; give --yes, after a look at what it would do")
	}
	if c.fix && c.bundle == bundleOut {
		return volume.Invalid("--bundle", c.bundle, "name a file, since --fix says here what it does")
	}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	facts, err := c.look(ctx)
	if err != nil {
		return err
	}
	all := doctor.Examine(facts)
	if c.bundle != "" {
		if err := c.pack(ctx, facts, all); err != nil {
			return err
		}
	}
	volumes, findings := []status.Volume(nil), all
	if c.word != "" {
		if volumes = doctor.About(facts, c.word); len(volumes) == 0 {
			if findings = doctor.Of(facts, all, c.word, nil); !mentions(findings, c.word) {
				return fmt.Errorf("%w: neither a volume of the driver nor a path or pod of one is named %s; csi-local-lvm status lists them", volume.ErrNotFound, c.word)
			}
		}
		findings = doctor.Of(facts, all, c.word, volumes)
	}
	if c.bundle == bundleOut {
		c.out = io.Discard // it has the bundle
	}
	if c.output == outputTable {
		if err := show.Doctor(c.out, facts, volumes, findings, terminal(c.out, c.env)); err != nil {
			return err
		}
	}
	left := findings
	if c.fix {
		if left, err = c.mend(ctx, findings); err != nil {
			return err
		}
	}
	if c.output != outputTable { // with what came of each fix
		err := writeAs(c.out, c.output, struct {
			Volumes  []status.Volume  `json:"volumes,omitempty"`
			Findings []doctor.Finding `json:"findings"`
		}{volumes, findings})
		if err != nil {
			return err
		}
	}
	if worst := doctor.Worst(left); worst != doctor.Note {
		return exitStatus(worst)
	}
	return nil
}

func mentions(findings []doctor.Finding, word string) bool {
	for _, f := range findings {
		if strings.Contains(f.Subject+f.Sentence, word) {
			return true
		}
	}
	return false
}

// prepare finds out whom to ask.
func (c *consultation) prepare(ctx context.Context) error {
	if c.look != nil {
		return nil
	}
	look, err := lookBeside(ctx, c.told)
	if err != nil {
		return err
	}
	c.cfg = look.cfg
	c.look = func(ctx context.Context) (*doctor.Facts, error) {
		where := doctor.Here(c.cfg.KubeletDir, c.cfg.DriverName)
		where.NodeGuessed, where.KubeletGuessed = look.guessed.Node, look.guessed.KubeletDir
		f := doctor.Gather(ctx, where, builtVersion(), look.collector, look.report)
		if where.NodeGuessed && !f.NodeGuessed {
			c.cfg.NodeName = f.Report.Node
		}
		if !c.cluster && c.kubeconfig == "" {
			return f, nil
		}
		var err error
		f.Cluster, err = doctor.AskCluster(ctx, &run.Local{}, c.kubeconfig, c.cfg.DriverName, c.cfg.NodeName)
		return f, err
	}
	return nil
}

// bundleOut as the file of the bundle is standard output: so it comes out of a container in which nothing can be written.
const bundleOut = "-"

// pack writes the bundle into a new file that only the owner may read, or to standard output.
func (c *consultation) pack(ctx context.Context, facts *doctor.Facts, all []doctor.Finding) error {
	var kubectl []string // nil: it is not asked
	if c.cluster || c.kubeconfig != "" {
		if kubectl = []string{}; c.kubeconfig != "" {
			kubectl = []string{"--kubeconfig=" + c.kubeconfig}
		}
	}
	logs := doctor.LogsHere(&run.Local{}, kubectl, c.cfg.NodeName)
	if c.bundle == bundleOut {
		return doctor.Bundle(ctx, c.out, facts, all, c.cfg.StateDir, logs)
	}
	f, err := os.OpenFile(c.bundle, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	done, err := begin(ctx) // half of it is worth nothing
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(c.bundle))
	}
	defer done()
	err = doctor.Bundle(ctx, f, facts, all, c.cfg.StateDir, logs)
	return errors.Join(err, f.Close())
}

// mend carries out the fixes, takes note with each finding of what came of it, and gives what is left.
func (c *consultation) mend(ctx context.Context, findings []doctor.Finding) ([]doctor.Finding, error) {
	if c.hands == nil {
		backend, err := driver.Real(c.cfg, nil)
		if err != nil {
			return nil, err
		}
		c.hands = driver.Hands{Backend: backend}
	}
	return c.mendWith(ctx, findings, c.hands)
}

func (c *consultation) mendWith(ctx context.Context, findings []doctor.Finding, h doctor.Hands) (left []doctor.Finding, err error) {
	lines := bufio.NewReader(c.in)
	for i, f := range findings {
		if f.Fix == nil {
			left = append(left, f)
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !c.agreed(lines, f) {
			findings[i].Outcome = "not done: not agreed to"
			left = append(left, f)
			continue
		}
		mended, err := c.mendOne(ctx, &findings[i], h)
		if err != nil {
			return nil, err
		}
		if !mended {
			left = append(left, f)
		}
	}
	return left, nil
}

// mendOne looks again, and carries out the fix of a finding that is still found. A signal ends the look, and not the fix. The error is that of the signal.
func (c *consultation) mendOne(ctx context.Context, f *doctor.Finding, h doctor.Hands) (mended bool, err error) {
	fix, err := doctor.Still(ctx, *f, c.look)
	if err == nil && fix != nil {
		done, stopped := begin(ctx)
		if stopped != nil {
			return false, stopped
		}
		defer done()
		err = fix.Do(context.WithoutCancel(ctx), h)
	}
	switch {
	case err != nil:
		f.Outcome = "not done: " + err.Error()
	case fix == nil:
		f.Outcome = "nothing was done: a fresh look does not find it any more"
	default:
		f.Outcome = "done"
	}
	fmt.Fprintln(c.says, "  "+f.Outcome) //nolint:errcheck // who has left hears nothing
	return err == nil, nil
}

// agreed says what is to be done, and asks.
func (c *consultation) agreed(lines *bufio.Reader, f doctor.Finding) bool {
	if c.yes {
		fmt.Fprintf(c.says, "%s: %s\n", f.Subject, f.Fix.Says) //nolint:errcheck // as in mendWith
		return true
	}
	fmt.Fprintf(c.says, "%s: %s? [y/N] ", f.Subject, f.Fix.Says) //nolint:errcheck // as in mendWith
	answer, _ := lines.ReadString('\n')                          // an end is no
	return strings.EqualFold(strings.TrimSpace(answer), "y")
}

// exitStatus ends the program without a word: all was said.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }
