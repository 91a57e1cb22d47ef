package cluster

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Node is an emulated machine with a kubelet. Its disks outlive its power.
type Node struct {
	Name    string
	dir     string // disks and logs
	vmExec  string
	program string // what runs first in it
	net     string
	args    []string
	agent   string // where that program serves
	machine *process
	client  *http.Client
}

// gateway is where the i-th node finds this machine, and address its own address. Each node has a network of its own.
func gateway(i int) string { return fmt.Sprintf("10.0.%d.2", 10+i) }
func address(i int) string { return fmt.Sprintf("10.0.%d.15", 10+i) }

// nodeMemory is in MiB; the root is in it.
const nodeMemory = 3072

// nodeLimit ends a machine that was forgotten.
const nodeLimit = 4 * time.Hour

// newNode makes the node's disks: a copy of base, and a blank one for volumes.
func newNode(home Home, name string, i int, dir, base, program string, control *Control) (*Node, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	n := &Node{
		Name: name, dir: dir, vmExec: filepath.Join(home.Root, "hack/vm-exec"), program: program,
		net: fmt.Sprintf("net=10.0.%d.0/24,hostfwd=tcp:127.0.0.1:%d-%s:80,hostfwd=tcp:127.0.0.1:%d-%[3]s:81",
			10+i, ports[0], address(i), ports[1]),
		args:   []string{"-name", name, "-address", address(i) + "/24", "-gateway", gateway(i), "-api", fmt.Sprint(control.port)},
		agent:  fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		client: &http.Client{},
	}
	control.kubelets.lead(name, fmt.Sprintf("127.0.0.1:%d", ports[1]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := output("", "cp", "--sparse=always", base, n.disk("state")); err != nil {
		return nil, err
	}
	if _, err := output("", "truncate", "-s", "8G", n.disk("volumes")); err != nil {
		return nil, err
	}
	config := control.pki.kubeconfig(name, fmt.Sprintf("https://%s:%d", gateway(i), control.port))
	return n, n.put("/kubelet.conf", config)
}

func (n *Node) disk(name string) string { return filepath.Join(n.dir, name+".img") }

// put writes a file on the node's disk while it is off.
func (n *Node) put(name, content string) error {
	file := filepath.Join(n.dir, "put")
	if err := writeFile(file, content); err != nil {
		return err
	}
	_, err := output("", "debugfs", "-w", "-R", fmt.Sprintf("write %s %s", file, name), n.disk("state"))
	return err
}

// PowerOn starts the machine. It is up when Up says so.
func (n *Node) PowerOn() (err error) {
	args := []string{"-m", fmt.Sprint(nodeMemory), "-t", fmt.Sprint(int(nodeLimit.Seconds())), "-n", n.net,
		"-D", n.disk("state"), "-D", n.disk("volumes"), n.program}
	cmd := exec.Command(n.vmExec, append(args, n.args...)...)
	cmd.Dir = n.dir
	n.machine, err = start(n.Name, filepath.Join(n.dir, "machine.log"), cmd)
	return err
}

// PowerCut ends the machine as a power cut does.
func (n *Node) PowerCut() {
	n.machine.kill()
	n.client.CloseIdleConnections()
}

// Running says whether the machine has power.
func (n *Node) Running() bool { return n.machine != nil && n.machine.running() == nil }

// Up is no error when the node has booted, to where the kubelet was started.
func (n *Node) Up() error {
	if err := n.machine.running(); err != nil {
		return err
	}
	_, err := n.Run("true")
	return err
}

// Run runs a script in the node, outside of any container, and gives what it printed.
func (n *Node) Run(script string) (string, error) {
	var answer struct{ Output, Error string }
	body, err := n.post("/run", script)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", err
	}
	if answer.Error != "" {
		err = fmt.Errorf("on %s: %s: %s\n%s", n.Name, script, answer.Error, answer.Output)
	}
	return answer.Output, err
}

// Start starts the kubelet or containerd, Kill kills it.
func (n *Node) Start(service string) error { _, err := n.post("/start/"+service, ""); return err }
func (n *Node) Kill(service string) error  { _, err := n.post("/kill/"+service, ""); return err }

func (n *Node) post(path, text string) ([]byte, error) {
	response, err := n.client.Post(n.agent+path, "text/plain", strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s on %s: %s", path, n.Name, body)
	}
	return body, err
}

// Logs unpacks the node's logs into a folder: those of kubelet, containerd, the kernel and each container.
func (n *Node) Logs(to string) error {
	text, err := n.Run("dmesg > /var/log/kernel.log; tar -C /var/log --exclude ./pods/*/*/*.gz -cz . 2>/dev/null | base64 -w0")
	if err != nil {
		return err
	}
	packed, err := fromBase64(text)
	if err != nil {
		return err
	}
	archive := tar.NewReader(packed)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			continue
		}
		name := filepath.Join(to, h.Name)
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, bytes.ToValidUTF8(content, nil), 0o644)); err != nil {
			return err
		}
	}
}
