package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/relay"
)

// kubelets is the API server's way to the kubelets, for "kubectl exec" and "kubectl logs": their addresses are known in
// the machines' own networks only. It is a proxy as the API server knows it, for what it calls the egress to the cluster.
type kubelets struct {
	folder string
	server http.Server

	mu sync.Mutex
	to map[string]string // by the kubelet's name and port
}

func startKubelets() (*kubelets, error) {
	folder, err := os.MkdirTemp("", "e2e-") // a short path, for the socket
	if err != nil {
		return nil, err
	}
	k := &kubelets{folder: folder, to: map[string]string{}}
	l, err := net.Listen("unix", k.socket())
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	k.server.Handler = k
	go func() { _ = k.server.Serve(l) }() // ends with "closed"
	return k, nil
}

func (k *kubelets) socket() string { return filepath.Join(k.folder, "s") }

// config is the API server's --egress-selector-config-file.
func (k *kubelets) config() string {
	return fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport: {uds: {udsName: %q}}
`, k.socket())
}

// lead says where the kubelet of a node is reached from here.
func (k *kubelets) lead(node, to string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.to[net.JoinHostPort(node, "10250")] = to
}

// ServeHTTP answers CONNECT.
func (k *kubelets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	to := k.to[r.Host]
	k.mu.Unlock()
	if r.Method != http.MethodConnect || to == "" {
		http.Error(w, fmt.Sprintf("%s %s: there is no such kubelet", r.Method, r.Host), http.StatusBadGateway)
		return
	}
	d, err := net.Dial("tcp", to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, errors.Join(err, d.Close()).Error(), http.StatusInternalServerError)
		return
	}
	if _, err := c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")); err != nil {
		_, _ = c.Close(), d.Close()
		return
	}
	relay.Both(c, d)
}

func (k *kubelets) stop() {
	_ = k.server.Close()
	_ = os.RemoveAll(k.folder)
}
