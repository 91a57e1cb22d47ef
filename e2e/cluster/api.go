package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// API is the API server, seen by an administrator. Objects are changed with kubectl, as people do; reading is done here,
// because the tests read several times a second.
type API struct {
	Config  string // a kubeconfig
	url     string
	token   string
	kubectl string
	client  *http.Client
}

// ErrNotFound is that there is no such object.
var ErrNotFound = errors.New("not found")

func newAPI(url string, p *pki, kubectl string) (*API, error) {
	ca, err := os.ReadFile(p.path("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	config := p.path("admin.conf")
	if err := writeFile(config, p.kubeconfig("admin", url)); err != nil {
		return nil, err
	}
	return &API{
		Config: config, url: url, token: p.tokens["admin"], kubectl: kubectl,
		client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}},
	}, nil
}

// Get reads an object, or a list, at a path of the API.
func (a *API) Get(path string, into any) error {
	request, err := http.NewRequest(http.MethodGet, a.url+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s: %w", path, ErrNotFound)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %.300s", path, response.Status, body)
	case into == nil:
		return nil
	}
	return json.Unmarshal(body, into)
}

// Gone is no error when there is no object at a path.
func (a *API) Gone(path string) error {
	err := a.Get(path, nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s is still there", path)
	}
	return err
}

// Kubectl runs it.
func (a *API) Kubectl(input string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.Command(a.kubectl, append([]string{"--kubeconfig", a.Config}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, complaint.Bytes())
	}
	return out.String(), nil
}

// Apply makes objects, or changes them, as their YAML says.
func (a *API) Apply(yaml string) error {
	_, err := a.Kubectl(yaml, "apply", "--validate=strict", "-f", "-")
	return err
}

func writeFile(name, content string) error { return os.WriteFile(name, []byte(content), 0o600) }
