package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/wait"
)

// diskSize is that of a node's disk for programs, images, containers and logs. The file has holes.
const diskSize = "8G"

// stateDisk gives an ext4 image with the programs of a node, and containerd's folder with the images of an archive in
// it. It makes one if none with the same content has been made. Nodes get copies of it.
func (h Home) stateDisk(programs Programs, archive string) (string, error) {
	files, err := nodeFiles(programs)
	if err != nil {
		return "", err
	}
	key := sha256.New()
	for _, name := range sorted(files) {
		fmt.Fprintln(key, name)
		if err := addTo(key, files[name]); err != nil {
			return "", err
		}
	}
	if err := addTo(key, archive); err != nil {
		return "", err
	}
	done := filepath.Join(h.Cache, fmt.Sprintf("disk-%x.img", key.Sum(nil)[:8]))
	if _, err := os.Stat(done); err == nil {
		return done, nil
	}
	if err := h.removeDisks(); err != nil {
		return "", err
	}
	tree, err := os.MkdirTemp(h.Cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tree)
	for name, from := range files {
		if err := copyFile(filepath.Join(tree, name), from); err != nil {
			return "", err
		}
	}
	if err := importImages(programs, archive, filepath.Join(tree, "lib/containerd")); err != nil {
		return "", err
	}
	image := tree + ".img"
	defer os.Remove(image)
	if _, err := output("", "truncate", "-s", diskSize, image); err != nil {
		return "", err
	}
	if _, err := output("", "mkfs.ext4", "-q", "-d", tree, "-E", "root_owner=0:0", image); err != nil {
		return "", err
	}
	return done, os.Rename(image, done)
}

// removeDisks takes away those of earlier runs: they are large, and soon out of date.
func (h Home) removeDisks() error {
	old, err := filepath.Glob(filepath.Join(h.Cache, "disk-*.img"))
	for _, name := range old {
		if e := os.Remove(name); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// importImages lets a containerd of this machine unpack the images of an archive into a folder, where a node's will find
// them: in the emulated machine it would take minutes.
func importImages(programs Programs, archive, root string) (err error) {
	state, err := os.MkdirTemp("", "e2e-") // a short path, for the socket
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	address := filepath.Join(state, "s")
	config := filepath.Join(state, "config.toml")
	if err := writeFile(config, fmt.Sprintf(importConfig, root, filepath.Join(state, "run"), address)); err != nil {
		return err
	}
	log := filepath.Join(filepath.Dir(archive), "import.log")
	containerd, err := start("containerd", log, exec.Command(filepath.Join(programs.Tools, "containerd"), "--config", config))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, containerd.stop()) }()
	ctr := filepath.Join(programs.Tools, "ctr")
	if err := wait.For(time.Minute, func() error {
		if _, err := output("", ctr, "--address", address, "version"); err != nil {
			return errors.Join(err, containerd.running())
		}
		return nil
	}); err != nil {
		return err
	}
	_, err = output("", ctr, "--address", address, "--namespace", "k8s.io", "images", "import", archive)
	return err
}

const importConfig = `version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
`

// nodeFiles tells which files of this machine a node has, by their places on its disk.
func nodeFiles(programs Programs) (map[string]string, error) {
	files := map[string]string{"bin/kubelet": filepath.Join(programs.Kubernetes, "components")}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		files["bin/"+name] = filepath.Join(programs.Tools, name)
	}
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		files["cni/"+name] = filepath.Join(programs.Kubernetes, name)
	}
	runc, err := lookUp("runc")
	if err != nil {
		return nil, err
	}
	files["bin/runc"] = runc
	libraries, err := output("", "ldd", runc)
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(libraries, "\n") {
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == "=>" {
			files["lib64/"+filepath.Base(fields[2])] = fields[2]
		}
	}
	return files, nil
}

// addTo writes a file in a sum.
func addTo(sum io.Writer, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(sum, in)
	return err
}

// copyFile copies a program.
func copyFile(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
