package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/wait"
)

// Cluster is a control plane and nodes.
type Cluster struct {
	*Control
	Dir   string
	Nodes []*Node
	home  Home
}

// WorkImage is the image of the tests' pods: busybox.
const WorkImage = "localhost/busybox:1"

// Start builds what is not built, and starts a cluster whose nodes have the images that manifests name: those of the
// sidecars, and the driver's. The nodes boot in the background; see WaitNode.
func Start(home Home, dir, manifests string, nodes ...string) (c *Cluster, err error) {
	programs, err := home.Programs()
	if err != nil {
		return nil, err
	}
	own := filepath.Join(dir, "bin")
	for _, program := range []struct{ folder, pkg, name string }{
		{"e2e", "./cmd/node", "node"}, {"e2e", "./cmd/sidecars", "sidecars"}, {"", "./cmd/csi-local-lvm", "csi-local-lvm"},
	} {
		if err := home.Own(program.folder, program.pkg, filepath.Join(own, program.name)); err != nil {
			return nil, err
		}
	}
	archive := filepath.Join(dir, "images.tar")
	if err := home.saveImages(archive, programs, own, manifests); err != nil {
		return nil, err
	}
	unlock, err := home.lock()
	if err != nil {
		return nil, err
	}
	defer unlock() // when the nodes have their copies
	base, err := home.stateDisk(programs, archive)
	if err != nil {
		return nil, err
	}
	c = &Cluster{Dir: dir, home: home}
	if c.Control, err = StartControl(programs, dir, nodes); err != nil {
		return nil, err
	}
	for i, name := range nodes {
		// The program is in a folder of its own, because the machine sees all of it.
		program := filepath.Join(dir, name, "bin", "node")
		if err := errors.Join(os.MkdirAll(filepath.Dir(program), 0o755), os.Link(filepath.Join(own, "node"), program)); err != nil {
			return nil, err
		}
		n, err := newNode(home, name, i, filepath.Join(dir, name), base, program, c.Control)
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c, nil
}

// StartSnapshotController makes the kinds of snapshots known, and starts their controller beside the others.
func (c *Cluster) StartSnapshotController() error {
	tools := filepath.Join(c.home.Root, "e2e/tools")
	kinds, err := output(tools, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8")
	if err != nil {
		return err
	}
	if _, err := c.API.Kubectl("", "apply", "-k", filepath.Join(kinds, "config/crd")); err != nil {
		return err
	}
	if _, err := c.API.Kubectl("", "wait", "--for=condition=Established", "--timeout=2m", "crd", "--all"); err != nil {
		return err
	}
	return c.run("snapshot-controller", exec.Command(filepath.Join(c.programs.Tools, "snapshot-controller"),
		"--kubeconfig", c.API.Config, "--enable-distributed-snapshotting", "--leader-election=false"))
}

// KeepLogs copies those of the control plane into a folder.
func (c *Cluster) KeepLogs(dir string) error {
	var err error
	for _, p := range c.processes {
		_, e := output("", "cp", p.log, dir)
		err = errors.Join(err, e)
	}
	for _, n := range c.Nodes {
		if n.machine == nil {
			continue
		}
		_, e := output("", "cp", n.machine.log, filepath.Join(dir, n.Name+"-machine.log"))
		err = errors.Join(err, e)
	}
	return err
}

// Stop ends all of it, at once.
func (c *Cluster) Stop() {
	for _, n := range c.Nodes {
		if n.machine != nil {
			n.PowerCut()
		}
	}
	c.Control.Stop()
}

// WaitNode waits until a node is ready for pods. It gives up when the machine has ended.
func (c *Cluster) WaitNode(n *Node) error {
	var dead error
	err := wait.For(10*time.Minute, func() error {
		if dead = n.machine.running(); dead != nil {
			return nil
		}
		var node core.Node
		if err := c.API.Get("/api/v1/nodes/"+n.Name, &node); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == core.NodeReady && condition.Status != core.ConditionTrue {
				return fmt.Errorf("%s is not ready: %s", n.Name, condition.Message)
			}
		}
		return n.Up()
	})
	return errors.Join(dead, err)
}

// images finds those that manifests name.
var images = regexp.MustCompile(`(?m)^\s*(?:- )?image: "?([^"\s]+)"?$`)

// saveImages writes an archive with all images that the cluster needs: what manifests name, the sandbox, and the image of
// the tests' pods, which is the examples' too. There is no registry; each image has the name that the manifests call it by.
func (h Home) saveImages(archive string, programs Programs, own, manifests string) error {
	names := map[string][]string{} // by the name without registry and tag
	for _, match := range images.FindAllStringSubmatch(manifests, -1) {
		base, _, _ := cutLast(path.Base(match[1]), ":")
		if !slices.Contains(names[base], match[1]) {
			names[base] = append(names[base], match[1])
		}
	}
	driver, err := h.driverLayer(own)
	if err != nil {
		return err
	}
	work, sidecars := NewLayer(), NewLayer()
	if err := addBusybox(work); err != nil {
		return err
	}
	all := []Image{
		{[]string{"localhost/pause:1"}, work, []string{"/bin/sleep", "2147483647"}},
		{[]string{WorkImage}, work, nil},
	}
	if err := sidecars.Add("sidecars", filepath.Join(own, "sidecars")); err != nil {
		return err
	}
	for _, base := range slices.Sorted(maps.Keys(names)) {
		switch base {
		case "csi-local-lvm":
			entry := []string{"/usr/local/bin/csi-local-lvm"}
			all = append(all, Image{names[base], driver, entry}, Image{[]string{NextDriver}, driver, entry})
			continue
		case "busybox": // of the examples
			for _, name := range names[base] {
				all[1].Names = append(all[1].Names, "docker.io/library/"+name)
			}
			continue
		case "csi-node-driver-registrar", "livenessprobe":
			sidecars.Link(base, "sidecars")
		default:
			if err := sidecars.Add(base, filepath.Join(programs.Tools, base)); err != nil {
				return fmt.Errorf("image %s: %w", names[base], err)
			}
		}
		all = append(all, Image{names[base], sidecars, []string{"/" + base}})
	}
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	return errors.Join(Save(file, all), file.Close())
}

// driverLayer is what the Dockerfile describes, of the same packages.
func (h Home) driverLayer(own string) (*Layer, error) {
	root, err := h.machineRoot()
	if err != nil {
		return nil, err
	}
	l := NewLayer()
	return l, errors.Join(l.AddRoot(root), l.Add("usr/local/bin/csi-local-lvm", filepath.Join(own, "csi-local-lvm")))
}

// addBusybox adds Debian's static busybox under the names of its programs that the tests use.
func addBusybox(l *Layer) error {
	busybox, err := lookUp("busybox")
	if err != nil {
		return err
	}
	for _, name := range []string{"sh", "sleep", "cat", "echo", "ls", "mkdir", "rm", "mount", "df", "dd", "sync", "date", "id", "stat", "touch", "true", "test", "blockdev", "tail", "wc", "md5sum"} {
		l.Link("bin/"+name, "busybox")
	}
	return l.Add("bin/busybox", busybox)
}

func lookUp(program string) (string, error) {
	name, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("%w: run hack/setup e2e", err)
	}
	return filepath.EvalSymlinks(name)
}

// NextDriver is a second name of the driver's image, with another digest: an update.
const NextDriver = "localhost/csi-local-lvm:next"
