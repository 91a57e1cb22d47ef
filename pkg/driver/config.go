package driver

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/rpc"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Config is everything that can be said about a driver, one field per flag of "serve".
type Config struct {
	Endpoint       string   // --endpoint
	NodeName       string   // --node-name
	DriverName     string   // --driver-name; also the owner tag of logical volumes
	Version        string   // of the program; no flag
	VolumeGroups   []string // --volume-groups: names or globs; the first group is the default
	StateDir       string   // --state-dir
	KubeletDir     string   // --kubelet-dir
	Services       []string // --services: ServiceController, ServiceNode
	LVMExec        string   // --lvm-exec: ExecContainer or ExecHost
	ThinOvercommit float64  // --thin-overcommit: virtual size over real size of a thin pool
	Attach         bool     // --attach: ControllerPublishVolume and ControllerUnpublishVolume
	MaxVolumes     int64    // --max-volumes: what NodeGetInfo reports; 0 is no limit
	CopyRate       string   // --copy-rate: bytes per second that all copies read in all, as a quantity; "0" is no bound

	MetricsAddress string // --metrics-address: where metrics are served by HTTP; empty: nowhere
	Profiling      bool   // --profiling: Go's profiles there too

	Expansion    string        // --expansion: ExpandController or ExpandNode
	OrphanPolicy string        // --orphan-policy: OrphanRemove or OrphanReport
	OrphanGrace  time.Duration // --orphan-grace: how long it must be sure that nobody wants something before it is removed
}

// The services.
const (
	ServiceController = "controller"
	ServiceNode       = "node"
)

// Where LVM's programs run.
const (
	ExecContainer = "container" // as any program
	ExecHost      = "host"      // in the namespaces of process 1
)

// Which call makes logical volumes larger.
const (
	ExpandController = "controller" // ControllerExpandVolume; NodeExpandVolume grows the file system
	ExpandNode       = "node"       // NodeExpandVolume does both
)

// What becomes of inline volumes whose pod is gone and that no call will ever clean.
const (
	OrphanRemove = string(lifecycle.RemoveOrphans)
	OrphanReport = string(lifecycle.ReportOrphans) // in the log, once
)

// Default is the configuration of a driver to which nothing is said. Node name and volume groups have no default.
func Default() Config {
	return Config{
		Endpoint:       "unix:///csi/csi.sock",
		DriverName:     "local-lvm.csi.internal",
		StateDir:       "/var/lib/csi-local-lvm",
		KubeletDir:     "/var/lib/kubelet",
		Services:       []string{ServiceController, ServiceNode},
		LVMExec:        ExecContainer,
		ThinOvercommit: 1,
		MaxVolumes:     1000,
		CopyRate:       "0",
		Expansion:      ExpandController,
		OrphanPolicy:   OrphanRemove,
		OrphanGrace:    10 * time.Minute,
	}
}

// Validate checks each value. The error is a volume.ErrInvalid that names the flag, the value and the remedy.
func (c Config) Validate() error {
	if _, err := rpc.ParseEndpoint(c.Endpoint); err != nil {
		return err
	}
	if c.NodeName == "" {
		return volume.Invalid("--node-name", "", "missing; give the name of the Kubernetes node, or set NODE_NAME")
	}
	if _, err := volume.ShortNode(c.NodeName); err != nil {
		return err
	}
	if err := volume.CheckOwner(c.DriverName); err != nil {
		return err
	}
	if _, err := volume.ParsePatterns(c.VolumeGroups); err != nil {
		return err
	}
	if err := volume.CheckPath("--state-dir", c.StateDir); err != nil {
		return err
	}
	if err := volume.CheckPath("--kubelet-dir", c.KubeletDir); err != nil {
		return err
	}
	if err := checkServices(c.Services); err != nil {
		return err
	}
	if _, err := c.copyRate(); err != nil {
		return err
	}
	if err := checkAddress("--metrics-address", c.MetricsAddress); err != nil {
		return err
	}
	switch {
	case c.Profiling && c.MetricsAddress == "":
		return volume.Invalid("--profiling", "true", "profiles are served on --metrics-address; give that too")
	case c.LVMExec != ExecContainer && c.LVMExec != ExecHost:
		return volume.Invalid("--lvm-exec", c.LVMExec, "known are container and host")
	case !(c.ThinOvercommit >= 1 && c.ThinOvercommit <= 1000): // so that NaN is out too
		return volume.Invalid("--thin-overcommit", strconv.FormatFloat(c.ThinOvercommit, 'g', -1, 64), "give a factor from 1 (none) to 1000")
	case c.MaxVolumes < 0:
		return volume.Invalid("--max-volumes", strconv.FormatInt(c.MaxVolumes, 10), "must not be negative; 0 is no limit")
	case c.Expansion != ExpandController && c.Expansion != ExpandNode:
		return volume.Invalid("--expansion", c.Expansion, "known are controller and node")
	case c.Expansion == ExpandNode && !c.serves(ServiceNode):
		return volume.Invalid("--expansion", c.Expansion, "the node service expands, and --services is without it; give controller, or serve node")
	case c.OrphanPolicy != OrphanRemove && c.OrphanPolicy != OrphanReport:
		return volume.Invalid("--orphan-policy", c.OrphanPolicy, "known are remove and report")
	case c.OrphanGrace < time.Second:
		return volume.Invalid("--orphan-grace", c.OrphanGrace.String(), "give at least 1s; 10m is a good value")
	}
	return nil
}

func (c Config) serves(service string) bool { return slices.Contains(c.Services, service) }

// leastCopyRate is what --copy-rate takes at least: a block a second.
const leastCopyRate = 1 << 20

// copyRate gives --copy-rate in bytes; 0 is no bound.
func (c Config) copyRate() (int64, error) {
	const field = "--copy-rate"
	if c.CopyRate == "0" {
		return 0, nil
	}
	rate, err := volume.ParseSize(field, c.CopyRate)
	if err == nil && rate < leastCopyRate {
		err = volume.Invalid(field, c.CopyRate, "give at least 1Mi, or 0 for no bound")
	}
	return rate, err
}

// checkAddress checks an address to listen on; empty is none.
func checkAddress(flag, address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	n, numberErr := strconv.ParseUint(port, 10, 16)
	if err != nil || numberErr != nil || n == 0 || host != "" && net.ParseIP(host) == nil {
		return volume.Invalid(flag, address, "give an IP address and a port, such as 127.0.0.1:9810, or :9810 for all addresses")
	}
	return nil
}

func checkServices(services []string) error {
	const field, remedy = "--services", "give controller, node or both, separated by a comma"
	if len(services) == 0 {
		return volume.Invalid(field, "", remedy)
	}
	for i, s := range services {
		if s != ServiceController && s != ServiceNode || slices.Contains(services[:i], s) {
			return volume.Invalid(field, strings.Join(services, ","), remedy)
		}
	}
	return nil
}
