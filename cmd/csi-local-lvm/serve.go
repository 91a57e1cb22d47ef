package main

import (
	"context"
	"flag"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
)

func serveCommand(env func(string) string) *cobra.Command {
	cfg := driver.Default()
	cfg.NodeName, cfg.Version = env("NODE_NAME"), builtVersion()
	format := formatText
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve CSI calls until SIGTERM",
		Args:  cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	configFlags(flags, &cfg)
	flags.StringVar(&format, "logging-format", format, "format of the log on standard error: text or json")
	verbosity := verbosityFlag(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := setUpLogging(cmd.ErrOrStderr(), format, verbosity); err != nil {
			return err
		}
		if err := cfg.Validate(); err != nil {
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
		if env("GOGC") == "" { // who set it, knows better
			debug.SetGCPercent(garbage)
		}
		ctx := cmd.Context()
		if _, err := begin(ctx); err != nil {
			return err
		}
		said := context.AfterFunc(ctx, func() {
			klog.Background().Info("stopping: calls that run are finished and answered; a second signal ends at once", "why", context.Cause(ctx).Error())
		})
		defer said()
		return d.Run(ctx)
	}
	return cmd
}

// garbage is how much memory may be wasted before it is collected, in percent of what is kept. The process is on every node and mostly idle: less
// than Go's 100 costs it little.
const garbage = 50

// configFlags binds a flag to each field.
func configFlags(flags *pflag.FlagSet, c *driver.Config) {
	flags.StringVar(&c.Endpoint, "endpoint", c.Endpoint, "unix socket to serve on")
	flags.StringVar(&c.NodeName, "node-name", c.NodeName, "name of the Kubernetes node (default: the environment's NODE_NAME)")
	flags.StringSliceVar(&c.VolumeGroups, "volume-groups", c.VolumeGroups,
		"volume groups the driver may use, names or globs, separated by commas; the first is the default; others do not exist for it (required)")
	flags.StringVar(&c.StateDir, "state-dir", c.StateDir, "folder of the journal; must survive a restart of the machine")
	flags.StringVar(&c.KubeletDir, "kubelet-dir", c.KubeletDir, "kubelet's root folder (its --root-dir)")
	flags.StringSliceVar(&c.Services, "services", c.Services, "CSI services to offer: controller, node")
	flags.StringVar(&c.DriverName, "driver-name", c.DriverName, "name of the driver; also marks its logical volumes, so do not change it later")
	flags.StringVar(&c.LVMExec, "lvm-exec", c.LVMExec,
		"where LVM's programs run: container, or host (in the namespaces of process 1, through nsenter; the pod needs hostPID and privileges)")
	flags.Float64Var(&c.ThinOvercommit, "thin-overcommit", c.ThinOvercommit, "thin volumes of a pool may have this many times its size in all; 1 is no overcommit")
	flags.Int64Var(&c.MaxVolumes, "max-volumes", c.MaxVolumes, "most volumes the scheduler may put on this node; 0 is no limit")
	flags.StringVar(&c.CopyRate, "copy-rate", c.CopyRate,
		"most bytes per second that all copies of volumes read together, such as 200Mi; 0 is no bound")
	flags.BoolVar(&c.Attach, "attach", c.Attach,
		"record with each volume to which node the CO publishes it (ControllerPublishVolume), and let no call use it without; needs attachRequired in the CSIDriver object and external-attacher")
	flags.StringVar(&c.Expansion, "expansion", c.Expansion,
		"which call makes logical volumes larger: controller (ControllerExpandVolume), or node (NodeExpandVolume; for clusters of several nodes, since external-resizer does not know which node a volume is on)")
	flags.StringVar(&c.MetricsAddress, "metrics-address", c.MetricsAddress,
		"address to serve Prometheus metrics on, at /metrics, such as :9810 (default: nowhere)")
	flags.BoolVar(&c.Profiling, "profiling", c.Profiling, "serve profiles of the driver's own program there too, at /debug/pprof/; they tell of its memory")
	flags.StringVar(&c.OrphanPolicy, "orphan-policy", c.OrphanPolicy,
		"what becomes of inline volumes whose pod is surely gone and that nothing uses: remove, or report (in the log)")
	flags.DurationVar(&c.OrphanGrace, "orphan-grace", c.OrphanGrace,
		"how long that must hold before they are removed; also how long what is left of a create that was cut off waits to be repeated")
}

// verbosityFlag adds klog's -v, and none of its flags for log files.
func verbosityFlag(flags *pflag.FlagSet) *flag.Flag {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	v := all.Lookup("v")
	v.DefValue = "2"
	_ = v.Value.Set(v.DefValue) // a number, as it must be
	v.Usage = "verbosity of the log: 0 failures, 2 every call, 4 chatter and programs, 5 requests and replies"
	flags.AddGoFlag(v)
	return v
}
