// Command node is the first program in an emulated node. It does what a distribution does at boot: mounts, network, LVM,
// containerd, images, kubelet. Then it serves the tests, which cannot log in: it runs commands for them, stops and
// starts containerd and the kubelet, and hands out the logs.
//
// Disks: /dev/vda holds what outlives a boot (programs, images, the folders below /var), /dev/vdb is for volumes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/relay"
	"github.com/csi-local-lvm/csi-local-lvm/e2e/wait"
)

// state is where the disk with everything that outlives a boot is mounted.
const state = "/state"

type node struct {
	name, address, gateway, api string
	services                    map[string]*service
}

func main() {
	n := &node{services: map[string]*service{}}
	flag.StringVar(&n.name, "name", "", "of the node")
	flag.StringVar(&n.address, "address", "", "of eth0")
	flag.StringVar(&n.gateway, "gateway", "", "where the host is")
	flag.StringVar(&n.api, "api", "", "port of the API server at the gateway")
	flag.Parse()
	if err := n.boot(); err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(":80", n.handler()))
}

// boot brings the node up to where the kubelet runs.
func (n *node) boot() error {
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"root", changeRoot},
		{"disk", mountState},
		{"files", n.writeFiles},
		{"cgroups", delegateCgroups},
		{"network", n.network},
		{"volume group", volumeGroup},
		{"containerd", n.startContainerd},
		{"kubelet", func() error { return n.services["kubelet"].start() }},
	} {
		start := time.Now()
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		log.Printf("%s: %s", step.name, time.Since(start).Round(100*time.Millisecond))
	}
	return nil
}

// sh runs a script, and tells what it said if it fails.
func sh(script string) error {
	out, err := exec.Command("bash", "-euc", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// changeRoot puts a file system over the root that the machine started with, and makes it the root of this process and
// those that it will start. No container can be put into a root of its own from the first one: see pivot_root(2), "the
// current root is on the rootfs mount".
func changeRoot() error {
	if err := sh(`modprobe overlay; mkdir -p /new /upper; mount --make-rprivate /
		mount -t tmpfs upper /upper; mkdir /upper/data /upper/work
		mount -t overlay -o lowerdir=/,upperdir=/upper/data,workdir=/upper/work root /new
		findmnt -rno TARGET | while read -r m; do
			case $m in / | /new | /upper) ;; *) mkdir -p "/new$m"; mountpoint -q "/new$m" || mount --rbind "$m" "/new$m" ;; esac
		done`); err != nil {
		return err
	}
	return errors.Join(os.Chdir("/new"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/"), sh("mount --make-rshared /"))
}

// mountState mounts the disk; below it lie the folders that a node keeps over a boot. PATH gets its programs.
func mountState() error {
	if err := sh(`mkdir -p ` + state + `; mount -t ext4 -o noatime /dev/vda ` + state + `
		for d in lib log; do mkdir -p ` + state + `/$d /var/$d; mount --bind ` + state + `/$d /var/$d; done
		mkdir -p /var/lib/kubelet /var/lib/containerd /var/log/pods /opt/cni /etc/cni/net.d
		ln -sfn ` + state + `/cni /opt/cni/bin; cp -n ` + state + `/lib64/* /usr/lib/x86_64-linux-gnu/`); err != nil {
		return err
	}
	return os.Setenv("PATH", state+"/bin:"+os.Getenv("PATH"))
}

func (n *node) writeFiles() error {
	for name, content := range map[string]string{
		"/etc/hosts":                     "127.0.0.1 localhost\n",
		"/etc/resolv.conf":               "",
		"/etc/hostname":                  n.name + "\n",
		"/etc/machine-id":                fmt.Sprintf("%032x\n", n.name),
		"/etc/lvm/lvmlocal.conf":         lvmLocal,
		"/etc/cni/net.d/10-e2e.conflist": cni,
		"/etc/containerd.toml":           containerdConfig,
		"/etc/kubelet.yaml":              kubeletConfig,
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return unix.Sethostname([]byte(n.name))
}

// delegateCgroups lets the kubelet use every controller, as systemd would.
func delegateCgroups() error {
	const root = "/sys/fs/cgroup"
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

// network brings the card up, and makes the service "kubernetes" reachable: pods know the API server by the service's
// address, which kube-proxy would lead to it. Here the address is the node's own, and what connects to it is led on.
func (n *node) network() error {
	if err := sh(`modprobe -a virtio_net bridge veth
		ip link set eth0 up; ip addr add ` + n.address + ` dev eth0; ip route add default via ` + n.gateway + `
		ip addr add ` + serviceAddress + `/32 dev lo
		echo 1 > /proc/sys/net/ipv4/ip_forward
		echo 1 > /proc/sys/vm/overcommit_memory; echo 10 > /proc/sys/kernel/panic`); err != nil {
		return err
	}
	return errors.Join(
		relay.Listen(serviceAddress+":443", n.gateway+":"+n.api),
		relay.Listen(":81", "127.0.0.1:10250"), // the way from outside to the kubelet
	)
}

// volumeGroup makes the group at the first boot. Later ones find it, and activate what is in it, as a distribution does.
func volumeGroup() error {
	return sh(`mkdir -p /run/lock/lvm /run/lvm
		if vgs data >/dev/null 2>&1; then vgchange -aay data; else
			pvcreate /dev/vdb; vgcreate data /dev/vdb
			lvcreate --yes --type thin-pool --size 1G --name pool data
		fi`)
}

func (n *node) startContainerd() error {
	n.services["containerd"] = &service{name: "containerd", args: []string{"--config", "/etc/containerd.toml"}}
	address, _, _ := strings.Cut(n.address, "/")
	n.services["kubelet"] = &service{name: "kubelet", args: []string{
		"--config", "/etc/kubelet.yaml", "--kubeconfig", state + "/kubelet.conf", "--hostname-override", n.name,
		"--node-ip", address, "--root-dir", "/var/lib/kubelet", "--cert-dir", "/run/kubelet-pki", "-v=3",
	}}
	if err := n.services["containerd"].start(); err != nil {
		return err
	}
	return wait.For(3*time.Minute, func() error { return sh("ctr version") })
}
