package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

// Image is a container image of one layer, for "ctr images import".
type Image struct {
	Names      []string
	Layer      *Layer
	Entrypoint []string
}

// Layer is a tar of files.
type Layer struct {
	content bytes.Buffer
	tar     *tar.Writer
}

// NewLayer gives an empty one with the folders that a container cannot do without.
func NewLayer() *Layer {
	l := &Layer{}
	l.tar = tar.NewWriter(&l.content)
	for _, folder := range []string{"bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/bin", "var"} {
		l.add(&tar.Header{Name: folder + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	return l
}

// Add puts a file of this machine in the layer.
func (l *Layer) Add(name, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}, content)
	return nil
}

// Link adds a symbolic link.
func (l *Layer) Link(name, to string) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}, nil)
}

// add cannot fail: the tar is in memory, and the sizes are right.
func (l *Layer) add(h *tar.Header, content []byte) {
	if err := l.tar.WriteHeader(h); err != nil {
		panic(err)
	}
	if _, err := l.tar.Write(content); err != nil {
		panic(err)
	}
}

// Save writes images as one archive, in the format of "docker save". Each layer is in it once.
func Save(to io.Writer, images []Image) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	archive := tar.NewWriter(to)
	file := func(name string, content []byte) error {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	var manifest []entry
	var written []string
	for _, image := range images {
		if err := image.Layer.tar.Flush(); err != nil {
			return err
		}
		layer := append(slices.Clone(image.Layer.content.Bytes()), make([]byte, 1024)...) // the end of a tar
		sum := fmt.Sprintf("%x", sha256.Sum256(layer))
		if !slices.Contains(written, sum) {
			written = append(written, sum)
			if err := file(sum+".tar", layer); err != nil {
				return err
			}
		}
		config, err := json.Marshal(map[string]any{
			"architecture": "amd64", "os": "linux",
			"config":  map[string]any{"Entrypoint": image.Entrypoint, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
			"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
			"history": []any{map[string]any{"created_by": image.Names[0]}},
		})
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%x.json", sha256.Sum256(config))
		if err := file(name, config); err != nil {
			return err
		}
		manifest = append(manifest, entry{name, image.Names, []string{sum + ".tar"}})
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := file("manifest.json", text); err != nil {
		return err
	}
	return archive.Close()
}
