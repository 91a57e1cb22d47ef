package cluster

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRootIsReadFromACpio(t *testing.T) {
	tree := t.TempDir()
	for _, folder := range []string{"usr/bin", "usr/lib/modules/6.1", "box"} {
		if err := os.MkdirAll(filepath.Join(tree, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"usr/bin/lvm", "usr/lib/modules/6.1/x.ko", "init"} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte("content of "+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("usr/bin", filepath.Join(tree, "bin")), os.Link(filepath.Join(tree, "usr/bin/lvm"), filepath.Join(tree, "usr/bin/lvs"))); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "root.cpio")
	cmd := exec.Command("bash", "-c", "find . | cpio -o -H newc --quiet > "+archive)
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l := NewLayer()
	if err := l.AddRoot(archive); err != nil {
		t.Fatal(err)
	}
	files := untar(t, l.content.Bytes())
	for name, want := range map[string]string{"usr/bin/lvm": "content of usr/bin/lvm", "usr/bin/lvs": "content of usr/bin/lvm", "bin": "-> usr/bin"} {
		if files[name] != want {
			t.Errorf("%s is %q", name, files[name])
		}
	}
	for name := range files {
		if strings.Contains(name, "modules") || name == "init" || name == "box/" {
			t.Errorf("%s is in the layer", name)
		}
	}
}

func TestImagesShareLayers(t *testing.T) {
	l := NewLayer()
	l.Link("bin/sh", "busybox")
	var out bytes.Buffer
	if err := Save(&out, []Image{{[]string{"a:1"}, l, []string{"/a"}}, {[]string{"b:1", "b:2"}, l, []string{"/b"}}}); err != nil {
		t.Fatal(err)
	}
	files := untar(t, out.Bytes())
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 2 || manifest[0].Layers[0] != manifest[1].Layers[0] || manifest[0].Config == manifest[1].Config || len(manifest[1].RepoTags) != 2 {
		t.Errorf("the manifest is %+v", manifest)
	}
	if len(files) != 4 { // two configurations, a layer, the manifest
		t.Errorf("there are %d files", len(files))
	}
	if files = untar(t, []byte(files[manifest[0].Layers[0]])); files["bin/sh"] != "-> busybox" {
		t.Errorf("the layer has %v", files)
	}
}

// untar gives the content of files, and where links lead to.
func untar(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			files[h.Name] = "-> " + h.Linkname
		case tar.TypeLink:
			files[h.Name] = files[h.Linkname]
		default:
			files[h.Name] = string(content)
		}
	}
}

func TestVersionFlags(t *testing.T) {
	const want = "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1" +
		" -X k8s.io/component-base/version.gitMinor=37 -X k8s.io/component-base/version.gitTreeState=clean"
	if got := versionFlags("v1.37.2"); got != want {
		t.Errorf("%s", got)
	}
}

func TestImagesOfManifests(t *testing.T) {
	var found []string
	for _, m := range images.FindAllStringSubmatch("  image: a/b:v1\n  - image: \"c:2\"\n  images: x\n  # image: none\n", -1) {
		found = append(found, m[1])
	}
	if strings.Join(found, " ") != "a/b:v1 c:2" {
		t.Errorf("%v", found)
	}
}

// One run at a time fills the cache, and takes away what a killed one left half made. A folder is used by one run only.
func TestRunsBesideEachOther(t *testing.T) {
	h := Home{Cache: filepath.Join(t.TempDir(), "cache")}
	left := filepath.Join(h.Cache, "making-1/lib")
	kept := filepath.Join(h.Cache, "tools-1")
	if err := errors.Join(os.MkdirAll(left, 0o755), os.MkdirAll(kept, 0o755), os.WriteFile(filepath.Join(h.Cache, "making-2.img"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := filepath.Glob(filepath.Join(h.Cache, "*")); strings.Join(found, " ") != filepath.Join(h.Cache, "lock")+" "+kept {
		t.Errorf("there are %v", found)
	}
	second := make(chan func())
	go func() {
		unlock, err := h.lock()
		if err != nil {
			t.Error(err)
		}
		second <- unlock
	}()
	select {
	case <-second:
		t.Fatal("two have the cache")
	case <-time.After(100 * time.Millisecond):
	}
	unlock()
	(<-second)()

	release, err := Alone(h.Cache)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Alone(h.Cache); err == nil || !strings.Contains(err.Error(), "another run is using "+h.Cache) {
		t.Errorf("the second is told %v", err)
	}
	release()
	if release, err = Alone(h.Cache); err != nil {
		t.Fatal(err)
	}
	release()
}
