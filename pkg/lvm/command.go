package lvm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
)

// Executor carries out one LVM command, given as its name and arguments. Today each runs in a process of its own; a
// resident lvm shell could serve them as well. Read and Write differ as in run.Runner.
type Executor interface {
	Read(ctx context.Context, args ...string) (run.Result, error)
	Write(ctx context.Context, args ...string) (run.Result, error)
}

// programs executes each command as a new process of the lvm program.
type programs struct{ runner run.Runner }

func (p programs) Read(ctx context.Context, args ...string) (run.Result, error) {
	return p.runner.Read(ctx, "lvm", args...)
}

func (p programs) Write(ctx context.Context, args ...string) (run.Result, error) {
	return p.runner.Write(ctx, "lvm", args...)
}

// tuned is what every command runs with, in place of what /etc/lvm/lvm.conf may say (lvm.conf(5), "lvm lvmconfig
// --type full --withcomments"). Keys that an LVM does not know are a warning to it, not an error.
const tuned = "" +
	// No copies of the metadata below /etc/lvm: there they grow with each change, or stop it when the disk is full (case
	// B37). The metadata is on each physical volume, and the last texts before the present one still are, too.
	"backup{backup=0 archive=0} " +
	"activation{" +
	// A container does not share the host's udev semaphores; waiting for them hangs (case B33). LVM makes the nodes itself.
	"udev_sync=0 udev_rules=0 verify_udev_operations=0 " +
	// An LV that is open is told at once. The driver waits and asks again by itself, with the volume's lock only.
	"retry_deactivation=0 " +
	// No dmeventd from here: it would be started inside the driver's container and die with it. The host's
	// lvm2-monitor.service, or "vgchange --monitor y", has pools and RAID watched where that is wanted.
	"monitoring=0} " +
	"devices{" +
	// A volume group that a volume's user made inside his volume is not the host's business (case B35; guests.go).
	"scan_lvs=0 " +
	// What udev knows may be stale or absent in a container. /dev is always there.
	"obtain_device_list_from_udev=0 external_device_info_source=\"none\"} " +
	// No message bus in a container; and a lock that is taken is waited for.
	"global{notify_dbus=0 wait_for_locks=1} " +
	// The shape of what is printed: it is parsed. With prefixes LVM 2.03.16 prints broken JSON. silent is of no avail where
	// lvm.conf sets it; then lvremove does not say that it removed, and a report has to tell.
	"log{silent=0 command_names=0 prefix=\"\" report_command_log=0} " +
	"report{prefixes=0 output_format=\"basic\" list_item_separator=\",\" mark_hidden_devices=0 binary_values_as_numeric=0 compact_output=0}"

// readLimit bounds commands that change nothing. A report waits for LVM's lock while a change of a group is under way.
const readLimit = 30 * time.Second

// commands runs LVM commands, tuned, and with the guests kept out of sight.
type commands struct {
	exec   Executor
	guests guests

	mu     sync.Mutex
	filter *adminFilter // what lvm.conf says; nil: not yet asked
}

func (c *commands) read(ctx context.Context, verb string, args ...string) (run.Result, error) {
	limited, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	config, err := c.config(limited)
	if err != nil {
		return run.Result{}, err
	}
	res, err := c.exec.Read(limited, append([]string{verb, "--config", config}, args...)...)
	return res, classify(err)
}

func (c *commands) write(ctx context.Context, verb string, args ...string) (run.Result, error) {
	config, err := c.config(ctx)
	if err != nil {
		return run.Result{}, err
	}
	res, err := c.exec.Write(ctx, append([]string{verb, "--config", config}, args...)...)
	return res, classify(err)
}

// config is the tuned configuration, with a filter where there are guests to be kept out.
func (c *commands) config(ctx context.Context) (string, error) {
	hidden, err := c.guests.find()
	if err != nil {
		return "", fmt.Errorf("looking for devices that lie on volumes: %w", err)
	}
	if len(hidden) == 0 {
		return tuned, nil
	}
	admin, err := c.adminFilter(ctx)
	if err != nil {
		return "", err
	}
	return tuned + " devices{" + admin.with(hidden) + "}", nil
}

// adminFilter is what the administrator set in lvm.conf, as LVM prints it: the part between the brackets.
type adminFilter struct{ filter, global string }

// adminFilter asks LVM for the filters of lvm.conf, once: only where there is something to be added.
func (c *commands) adminFilter(ctx context.Context) (adminFilter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filter != nil {
		return *c.filter, nil
	}
	res, err := c.exec.Read(ctx, "lvmconfig", "devices")
	// lvmconfig(8) fails where the section is not set at all.
	var failed *run.Error
	if err != nil && !(errors.As(err, &failed) && failed.ExitCode == 5 && strings.Contains(failed.Stderr, "not found")) {
		return adminFilter{}, fmt.Errorf("reading the device filters of lvm.conf: %w", err)
	}
	c.filter = &adminFilter{filter: between(res.Stdout, filterLine), global: between(res.Stdout, globalFilterLine)}
	return *c.filter, nil
}

var (
	filterLine       = regexp.MustCompile(`(?m)^\s*filter=\[?(.*?)\]?$`)
	globalFilterLine = regexp.MustCompile(`(?m)^\s*global_filter=\[?(.*?)\]?$`)
)

func between(text string, re *regexp.Regexp) string {
	if m := re.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// with gives the setting that hides the devices besides what the administrator hides. A device must pass both filters
// of LVM, so the one that he did not set is taken; where he set both, ours go before his, and the first match counts.
// With a devices file LVM ignores both, and guests are hidden by not being in that file (lvmdevices(8)).
func (a adminFilter) with(hidden []string) string {
	var rejects []string
	for _, h := range hidden {
		rejects = append(rejects, `"r|^`+regexp.QuoteMeta(h)+`(p[0-9]+)?$|"`)
	}
	ours := strings.ReplaceAll(strings.Join(rejects, ","), `\`, `\\`)
	switch {
	case a.global == "":
		return "global_filter=[" + ours + "]"
	case a.filter == "":
		return "filter=[" + ours + "]"
	default:
		return "global_filter=[" + ours + "," + a.global + "]"
	}
}
