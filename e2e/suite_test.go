// Package e2e judges the driver by the components it is for: the real kubelet, scheduler, controllers, containerd and
// sidecars, with the manifests of deploy/ as they are. "make e2e" runs it; see docs/e2e.md.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/cluster"
	"github.com/csi-local-lvm/csi-local-lvm/e2e/wait"
)

// The cluster of all tests, and its first node. They boot once.
var (
	home cluster.Home
	c    *cluster.Cluster
	n1   *cluster.Node
)

// The folders of the manifests under test.
const (
	installation = "deploy/kubernetes/full"
	examples     = "deploy/examples"
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	begin := time.Now()
	if home, err = cluster.FindHome(); err != nil {
		return 0, err
	}
	dir := filepath.Join(home.Root, ".cache/e2e")
	release, err := cluster.Alone(dir)
	if err != nil {
		return 0, err
	}
	defer release()
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return 0, err
	}
	manifests, err := allManifests(filepath.Join(home.Root, installation), filepath.Join(home.Root, examples))
	if err != nil {
		return 0, err
	}
	c, err = cluster.Start(home, dir, manifests, "n1", "n2")
	if err != nil {
		return 0, err
	}
	defer c.Stop()
	n1 = c.Nodes[0]
	if err := install(); err != nil {
		return 0, errors.Join(err, keepLogs("set-up"))
	}
	record("set-up", time.Since(begin), true)
	code = m.Run()
	printTable()
	return code, nil
}

// install boots the first node while the manifests are applied, as an administrator would apply them.
func install() error {
	if err := n1.PowerOn(); err != nil {
		return err
	}
	if err := c.StartSnapshotController(); err != nil {
		return err
	}
	if _, err := c.API.Kubectl("", "apply", "--validate=strict", "-k", filepath.Join(home.Root, installation)); err != nil {
		return err
	}
	if err := c.WaitNode(n1); err != nil {
		return err
	}
	return wait.For(10*time.Minute, driverReady(1))
}

// driverReady tells whether the DaemonSet runs on so many nodes, and is up to date.
func driverReady(nodes int32) func() error {
	return func() error {
		var d apps.DaemonSet
		if err := c.API.Get("/apis/apps/v1/namespaces/csi-local-lvm/daemonsets/csi-local-lvm-node", &d); err != nil {
			return err
		}
		if s := d.Status; s.NumberReady < nodes || s.UpdatedNumberScheduled < nodes || s.ObservedGeneration < d.Generation {
			return fmt.Errorf("the driver runs on %d of %d nodes", s.NumberReady, nodes)
		}
		return nil
	}
}

// allManifests is the text of all files in folders.
func allManifests(folders ...string) (string, error) {
	var all strings.Builder
	for _, dir := range folders {
		files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			return "", err
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			all.Write(text)
			all.WriteString("\n---\n")
		}
	}
	return all.String(), nil
}

// A run ends with a table of these.
var table []string

func record(name string, took time.Duration, passed bool) {
	table = append(table, fmt.Sprintf("%-44s %-6s %7.1f s", name, map[bool]string{true: "ok", false: "FAILED"}[passed], took.Seconds()))
}

func printTable() {
	fmt.Printf("\n%s\n\n", strings.Join(table, "\n"))
}

// scenario makes a test one of the table, keeps all logs if it fails, and looks that it leaves nothing on the node.
func scenario(t *testing.T) {
	begin := time.Now()
	t.Cleanup(func() {
		record(t.Name(), time.Since(begin), !t.Failed())
		if t.Failed() {
			if err := keepLogs(t.Name()); err != nil {
				t.Logf("not all logs could be kept: %v", err)
			}
			t.Logf("logs: %s", filepath.Join(c.Dir, "logs", t.Name()))
			mopUp(t)
		}
	})
	// This runs before the other one. It is by itself, because a function that fails the test is not gone on with.
	t.Cleanup(func() {
		if !t.Failed() {
			nothingIsLeft(t, n1)
		}
	})
}

// mopUp takes away what a failed test left, so that the next one begins with nothing.
func mopUp(t *testing.T) {
	for _, n := range c.Nodes[1:] { // of one test only; pods of the next are not to go there
		if n.Running() {
			n.PowerCut()
		}
		_, err := c.API.Kubectl("", "delete", "node", n.Name, "--ignore-not-found")
		t.Logf("taking %s away: %v", n.Name, err)
	}
	if !n1.Running() {
		err := n1.PowerOn()
		if err == nil {
			err = c.WaitNode(n1)
		}
		t.Logf("giving %s its power again: %v", n1.Name, err)
	}
	t.Logf("starting the kubelet on %s: %v", n1.Name, n1.Start("kubelet"))
	if _, err := c.API.Kubectl("", "delete", "statefulsets,pods,pvc,volumesnapshots", "--all", "--wait=false"); err != nil {
		t.Logf("mopping up: %v", err)
	}
	err := wait.For(bound, func() error {
		out, err := n1.Run(leftovers)
		return errors.Join(err, errorOf(strings.TrimSpace(out)))
	})
	t.Logf("mopped up: %v", err)
}

// keepLogs keeps what tells about a failure: the logs of each node, those of the control plane, and what the API holds.
func keepLogs(name string) error {
	dir := filepath.Join(c.Dir, "logs", name)
	err := os.MkdirAll(dir, 0o755)
	for _, n := range c.Nodes {
		if n.Running() {
			err = errors.Join(err, n.Logs(filepath.Join(dir, n.Name)))
		}
	}
	for _, kind := range []string{"pods,pvc,pv,daemonsets,deployments,statefulsets,nodes", "events,csistoragecapacities", "csinodes,csidrivers,volumeattachments", "volumesnapshots,volumesnapshotcontents"} {
		text, e := c.API.Kubectl("", "get", "-A", "-o", "yaml", kind)
		err = errors.Join(err, e, os.WriteFile(filepath.Join(dir, strings.SplitN(kind, ",", 2)[0]+".yaml"), []byte(text), 0o644))
	}
	return errors.Join(err, c.KeepLogs(dir))
}
