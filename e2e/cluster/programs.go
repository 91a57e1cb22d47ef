// Package cluster is a Kubernetes for tests: etcd, API server, controllers and scheduler are processes of this machine,
// each node is an emulated one with a kubelet, containerd and disks of its own. Everything that runs in it is built from
// Go modules or comes from Debian packages; there is no registry, no Docker and no KVM in it.
package cluster

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Home is the project's folder, and Cache where what takes long to make is kept.
type Home struct{ Root, Cache string }

// FindHome looks for the project around the current folder.
func FindHome() (Home, error) {
	out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return Home{}, fmt.Errorf("not in the project's repository: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Home{}, err
	}
	return Home{strings.TrimSpace(string(out)), filepath.Join(cache, "csi-local-lvm", "e2e")}, nil
}

// buildTags leave out of containerd what needs C libraries, or devices that no node of ours has.
const buildTags = "no_btrfs no_zfs no_devmapper no_aufs"

// Programs gives the folders with the programs of Kubernetes, and of containerd and the sidecars. They are two modules,
// because the newest sidecars want newer versions of what Kubernetes is made of than the newest Kubernetes was made with.
func (h Home) Programs() (Programs, error) {
	unlock, err := h.lock()
	if err != nil {
		return Programs{}, err
	}
	defer unlock()
	kubernetes, err := h.module("components", ".")
	if err != nil {
		return Programs{}, err
	}
	tools, err := h.module("tools")
	return Programs{kubernetes, tools}, err
}

// lock keeps others on this machine from changing what is kept: two runs would build the same twice, and one would take
// away a disk that the other one is copying.
func (h Home) lock() (unlock func(), err error) {
	unlock, err = lockFile(filepath.Join(h.Cache, "lock"), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	// What is being made now is left from a run that was killed.
	left, err := filepath.Glob(filepath.Join(h.Cache, "making-*"))
	for _, name := range left {
		err = errors.Join(err, os.RemoveAll(name))
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// Alone makes sure that no other run uses a folder. It is an error if one does.
func Alone(dir string) (release func(), err error) {
	release, err = lockFile(dir+".lock", syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("another run is using %s; wait for it, or use another clone", dir)
	}
	return release, err
}

// lockFile locks a file until unlock is called, or this program ends in whatever way.
func lockFile(name string, how int) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), how); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// Programs are folders.
type Programs struct{ Kubernetes, Tools string }

// module gives the folder with the tools and packages of a module, and builds them if no folder has been made of the same
// sources, by the same Go, before. From nothing that takes a quarter of an hour of two cores for each module.
func (h Home) module(name string, packages ...string) (string, error) {
	source := filepath.Join(h.Root, "e2e", name)
	done, err := h.cached(source)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(done); err == nil {
		return done, nil
	}
	making, err := os.MkdirTemp(h.Cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(making)
	tools, err := output(source, "go", "list", "tool")
	if err != nil {
		return "", err
	}
	args := []string{"-n", "10", "go", "build", "-trimpath", "-buildvcs=false", "-tags", buildTags}
	flags := "-s -w"
	if version, err := output(source, "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"); err == nil {
		flags = versionFlags(version)
	}
	args = append(append(args, "-ldflags", flags, "-o", making+"/"), packages...)
	if _, err := output(source, "nice", append(args, strings.Fields(tools)...)...); err != nil {
		return "", err
	}
	return done, errors.Join(os.Chmod(making, 0o755), os.Rename(making, done))
}

// cached names the folder in the cache for what is built from a module.
func (h Home) cached(source string) (string, error) {
	key := sha256.New()
	fmt.Fprintln(key, runtime.Version(), buildTags)
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(source, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // tools has no program of its own
			return "", err
		}
		key.Write(content)
	}
	return filepath.Join(h.Cache, fmt.Sprintf("%s-%x", filepath.Base(source), key.Sum(nil)[:8])), nil
}

// versionFlags tell the components which release they are, which they else do not know: the API server refuses to start
// without, and the kubelet reports it.
func versionFlags(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	flags := "-s -w"
	for _, pair := range [][2]string{{"gitVersion", version}, {"gitMajor", parts[0]}, {"gitMinor", parts[1]}, {"gitTreeState", "clean"}} {
		flags += " -X k8s.io/component-base/version." + pair[0] + "=" + pair[1]
	}
	return flags
}

// Own builds a program of this module, or of the driver's.
func (h Home) Own(folder, pkg, to string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", to, pkg)
	cmd.Dir, cmd.Env = filepath.Join(h.Root, folder), static()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

func static() []string { return append(os.Environ(), "CGO_ENABLED=0") }

// output runs a program, and says what it said if it fails.
func output(dir, name string, args ...string) (string, error) {
	var complaint bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, static(), &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", name, err, out, complaint.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}
