package cluster

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/wait"
)

// Control is the control plane.
type Control struct {
	API       *API
	programs  Programs
	dir       string // of logs
	pki       *pki
	port      int
	processes []*process
	kubelets  *kubelets
}

// serviceAddress is that of the service "kubernetes", the first of the range.
const serviceAddress, serviceRange = "10.96.0.1", "10.96.0.0/24"

// StartControl starts etcd, the API server, the controllers and the scheduler, on loopback. Nodes find the API server at
// their gateway's address.
func StartControl(programs Programs, dir string, nodes []string) (control *Control, err error) {
	addresses := []string{"127.0.0.1", serviceAddress}
	for i := range nodes {
		addresses = append(addresses, gateway(i))
	}
	c := &Control{programs: programs, dir: dir}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	if c.pki, err = newPKI(filepath.Join(dir, "pki"), addresses, nodes); err != nil {
		return nil, err
	}
	if c.kubelets, err = startKubelets(); err != nil {
		return nil, err
	}
	egress := filepath.Join(dir, "egress.yaml")
	if err := writeFile(egress, c.kubelets.config()); err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	c.port = ports[0]
	url := fmt.Sprintf("https://127.0.0.1:%d", c.port)
	if c.API, err = newAPI(url, c.pki, filepath.Join(programs.Kubernetes, "kubectl")); err != nil {
		return nil, err
	}
	run := func(name string, args ...string) error {
		cmd := exec.Command(filepath.Join(programs.Kubernetes, "components"), args...)
		cmd.Args[0] = name
		return c.run(name, cmd)
	}
	etcd, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1]), fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	if err := run("etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer); err != nil {
		return nil, err
	}
	if err := run("kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(c.port),
		"--tls-cert-file", c.pki.path("server.crt"), "--tls-private-key-file", c.pki.path("server.key"),
		"--token-auth-file", c.pki.path("tokens.csv"), "--authorization-mode", "Node,RBAC",
		"--enable-admission-plugins", "NodeRestriction", "--allow-privileged", "--egress-selector-config-file", egress,
		"--service-cluster-ip-range", serviceRange, "--endpoint-reconciler-type", "none",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", c.pki.path("accounts.pub"),
		"--service-account-signing-key-file", c.pki.path("accounts.key")); err != nil {
		return nil, err
	}
	if err := c.wait(func() error { return c.API.Get("/readyz", nil) }); err != nil {
		return nil, err
	}
	// The other two come after: the controllers give up when there is no API server within ten seconds.
	for name, args := range map[string][]string{
		"kube-controller-manager": {"--use-service-account-credentials", "--flex-volume-plugin-dir", filepath.Join(dir, "no-plugins"), "--service-account-private-key-file", c.pki.path("accounts.key"), "--root-ca-file", c.pki.path("ca.crt")},
		"kube-scheduler":          nil,
	} {
		identity := map[string]string{"kube-controller-manager": "controller", "kube-scheduler": "scheduler"}[name]
		config := c.pki.path(identity + ".conf")
		if err := writeFile(config, c.pki.kubeconfig(identity, url)); err != nil {
			return nil, err
		}
		args = append(args, "--kubeconfig", config, "--authentication-kubeconfig", config, "--authorization-kubeconfig", config,
			"--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", "0")
		if err := run(name, args...); err != nil {
			return nil, err
		}
	}
	return c, c.wait(func() error { return c.API.Get("/api/v1/namespaces/default/serviceaccounts/default", nil) })
}

// Programs is the folder with kubectl.
func (c *Control) Programs() string { return c.programs.Kubernetes }

// run starts a part of the control plane.
func (c *Control) run(name string, cmd *exec.Cmd) error {
	p, err := start(name, filepath.Join(c.dir, name+".log"), cmd)
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return err
}

// wait waits for a condition as long as all of the control plane runs.
func (c *Control) wait(ask func() error) error {
	var dead error
	err := wait.For(5*time.Minute, func() error {
		for _, p := range c.processes {
			if dead = p.running(); dead != nil {
				return nil
			}
		}
		return ask()
	})
	if dead != nil {
		return dead
	}
	return err
}

// Stop ends it at once.
func (c *Control) Stop() {
	for _, p := range c.processes {
		p.kill()
	}
	if c.kubelets != nil {
		c.kubelets.stop()
	}
}

// freePorts gives ports of loopback that nobody listens on. Somebody else may take one before we do; then a process
// says so and ends.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
