package driver

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func valid() Config {
	c := Default()
	c.NodeName, c.VolumeGroups = "node-1", []string{"data"}
	return c
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		flag string // "": fine
		set  func(*Config)
	}{
		{"", func(*Config) {}},
		{"", func(c *Config) { c.Endpoint = "/run/csi.sock" }},
		{"--endpoint", func(c *Config) { c.Endpoint = "" }},
		{"--endpoint", func(c *Config) { c.Endpoint = "tcp://0.0.0.0:1" }},
		{"--endpoint", func(c *Config) { c.Endpoint = "unix://csi/csi.sock" }},
		{"--node-name", func(c *Config) { c.NodeName = "" }},
		{"--node-name", func(c *Config) { c.NodeName = "a/b" }},
		{"", func(c *Config) { c.NodeName = strings.Repeat("n", 253) }},
		{"--node-name", func(c *Config) { c.NodeName = strings.Repeat("n", 254) }},
		{"--driver-name", func(c *Config) { c.DriverName = "" }},
		{"--driver-name", func(c *Config) { c.DriverName = "a b" }},
		{"--driver-name", func(c *Config) { c.DriverName = strings.Repeat("d", 64) }},
		{"--volume-groups", func(c *Config) { c.VolumeGroups = nil }},
		{"--volume-groups", func(c *Config) { c.VolumeGroups = []string{"data", ""} }},
		{"--volume-groups", func(c *Config) { c.VolumeGroups = []string{"-y"} }},
		{"--volume-groups", func(c *Config) { c.VolumeGroups = []string{"a b"} }},
		{"--volume-groups", func(c *Config) { c.VolumeGroups = []string{"a[b"} }},
		{"--volume-groups", func(c *Config) { c.VolumeGroups = []string{"a/*"} }},
		{"--volume-groups", func(c *Config) { c.VolumeGroups = []string{strings.Repeat("x", 33)} }},
		{"", func(c *Config) { c.VolumeGroups = []string{"data", "csi-*", "nvme[0-9]?"} }},
		{"--state-dir", func(c *Config) { c.StateDir = "var/lib" }},
		{"--state-dir", func(c *Config) { c.StateDir = "/" }},
		{"--kubelet-dir", func(c *Config) { c.KubeletDir = "" }},
		{"--kubelet-dir", func(c *Config) { c.KubeletDir = "/a/../b" }},
		{"--services", func(c *Config) { c.Services = nil }},
		{"--services", func(c *Config) { c.Services = []string{"controler"} }},
		{"--services", func(c *Config) { c.Services = []string{"node", "node"} }},
		{"", func(c *Config) { c.Services = []string{"node"} }},
		{"--lvm-exec", func(c *Config) { c.LVMExec = "" }},
		{"--lvm-exec", func(c *Config) { c.LVMExec = "chroot" }},
		{"", func(c *Config) { c.LVMExec = ExecHost }},
		{"--thin-overcommit", func(c *Config) { c.ThinOvercommit = 0.9 }},
		{"--thin-overcommit", func(c *Config) { c.ThinOvercommit = math.NaN() }},
		{"--thin-overcommit", func(c *Config) { c.ThinOvercommit = math.Inf(1) }},
		{"", func(c *Config) { c.ThinOvercommit = 2.5 }},
		{"--max-volumes", func(c *Config) { c.MaxVolumes = -1 }},
		{"", func(c *Config) { c.MaxVolumes = 0 }},
		{"--copy-rate", func(c *Config) { c.CopyRate = "" }},
		{"--copy-rate", func(c *Config) { c.CopyRate = "200MB/s" }},
		{"--copy-rate", func(c *Config) { c.CopyRate = "1023Ki" }},
		{"", func(c *Config) { c.CopyRate = "0" }},
		{"", func(c *Config) { c.CopyRate = "1Mi" }},
		{"--expansion", func(c *Config) { c.Expansion = "" }},
		{"--expansion", func(c *Config) { c.Expansion = "both" }},
		{"", func(c *Config) { c.Expansion = ExpandNode }},
		{"--expansion", func(c *Config) { c.Expansion, c.Services = ExpandNode, []string{"controller"} }},
		{"--orphan-policy", func(c *Config) { c.OrphanPolicy = "" }},
		{"--orphan-policy", func(c *Config) { c.OrphanPolicy = "forget" }},
		{"", func(c *Config) { c.OrphanPolicy = OrphanReport }},
		{"--orphan-grace", func(c *Config) { c.OrphanGrace = 0 }},
		{"--orphan-grace", func(c *Config) { c.OrphanGrace = -time.Minute }},
	} {
		cfg := valid()
		c.set(&cfg)
		err := cfg.Validate()
		switch {
		case c.flag == "" && err != nil:
			t.Errorf("%+v: %v", cfg, err)
		case c.flag != "" && (!errors.Is(err, volume.ErrInvalid) || !strings.HasPrefix(err.Error(), c.flag+" ")):
			t.Errorf("%+v: %v, must name %s", cfg, err, c.flag)
		}
	}
}
