package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The identities of a cluster, each with the groups that Kubernetes knows it by. Nodes have more, see nodeToken.
var identities = map[string]string{
	"admin":      "system:masters",
	"controller": "",
	"scheduler":  "",
}

// users are the names that the built-in roles are bound to.
var users = map[string]string{
	"admin":      "admin",
	"controller": "system:kube-controller-manager",
	"scheduler":  "system:kube-scheduler",
}

// pki is what proves who is who: a certificate authority, the API server's certificate, the key that signs the tokens of
// service accounts, and a token for each identity.
type pki struct {
	dir    string
	tokens map[string]string
}

func (p pki) path(name string) string { return filepath.Join(p.dir, name) }

// newPKI makes them in a folder. addresses are those under which the API server is reached.
func newPKI(dir string, addresses, nodes []string) (*pki, error) {
	p := &pki{dir, map[string]string{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := p.certificates(addresses); err != nil {
		return nil, err
	}
	signer, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	if err := p.pem("accounts.key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(signer)); err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&signer.PublicKey)
	if err != nil {
		return nil, err
	}
	if err := p.pem("accounts.pub", "PUBLIC KEY", public); err != nil {
		return nil, err
	}
	lines := ""
	for name, group := range identities {
		lines += p.token(name, users[name], group)
	}
	for _, node := range nodes {
		lines += p.token(node, "system:node:"+node, "system:nodes")
	}
	return p, os.WriteFile(p.path("tokens.csv"), []byte(lines), 0o600)
}

// token makes one, and gives its line of the API server's file of tokens.
func (p *pki) token(name, user, group string) string {
	p.tokens[name] = rand.Text()
	return fmt.Sprintf("%s,%s,%s,%q\n", p.tokens[name], user, name, group)
}

// certificates makes the authority's and the API server's.
func (p *pki) certificates(addresses []string) error {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "e2e"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	if err := p.pem("ca.crt", "CERTIFICATE", der); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:  []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, address := range addresses {
		server.IPAddresses = append(server.IPAddresses, net.ParseIP(address))
	}
	if der, err = x509.CreateCertificate(rand.Reader, server, authority, &key.PublicKey, authorityKey); err != nil {
		return err
	}
	if err := p.pem("server.crt", "CERTIFICATE", der); err != nil {
		return err
	}
	if der, err = x509.MarshalECPrivateKey(key); err != nil {
		return err
	}
	return p.pem("server.key", "EC PRIVATE KEY", der)
}

func (p *pki) pem(name, kind string, der []byte) error {
	return os.WriteFile(p.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfig lets an identity reach the API server at a URL.
func (p *pki) kubeconfig(name, url string) string {
	ca, err := os.ReadFile(p.path("ca.crt"))
	if err != nil {
		panic(err) // newPKI wrote it
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: %s, user: {token: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: %s}}]
current-context: e2e
`, url, base64Of(ca), name, p.tokens[name], name)
}
