// Command deploy renders the Helm chart into the plain manifests of deploy/kubernetes ("make manifests"). Its tests are what
// judges the chart. It is a module of its own, because Helm and the types of Kubernetes have no place in the driver's.
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	chartDir     = "deploy/charts/csi-local-lvm"
	manifestsDir = "deploy/kubernetes"
	release      = "csi-local-lvm" // name and namespace
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: deploy ROOT\nrenders ROOT/"+chartDir+" into ROOT/"+manifestsDir)
		os.Exit(2)
	}
	if err := renderAll(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "deploy:", err)
		os.Exit(1)
	}
}

// renderAll writes the manifests of each variant, and removes files that are none any more.
func renderAll(root string) error {
	names, err := variants(root)
	if err != nil {
		return err
	}
	for _, name := range names {
		want, err := variant(root, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		dir := filepath.Join(root, manifestsDir, name)
		old, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			return err
		}
		for _, file := range old {
			if base := filepath.Base(file); base != "values.yaml" && want[base] == nil {
				if err := os.Remove(file); err != nil {
					return err
				}
			}
		}
		for base, text := range want {
			if err := os.WriteFile(filepath.Join(dir, base), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// variants are the folders of deploy/kubernetes that hold a values.yaml.
func variants(root string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(root, manifestsDir, "*", "values.yaml"))
	var names []string
	for _, f := range found {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no */values.yaml in %s", filepath.Join(root, manifestsDir))
	}
	return names, err
}

// variant gives the files of one folder of deploy/kubernetes by name: what its values.yaml makes of the chart, and a
// kustomization with all of them.
func variant(root, name string) (map[string][]byte, error) {
	values, err := common.ReadValuesFile(filepath.Join(root, manifestsDir, name, "values.yaml"))
	if err != nil {
		return nil, err
	}
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		return nil, err
	}
	rendered, err := render(c, values)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for base, text := range rendered {
		files[base] = []byte("# Rendered from " + chartDir + " with the values.yaml beside this file. Change those, then \"make manifests\".\n" + text)
	}
	kustomization, err := kustomization(slices.Sorted(maps.Keys(rendered)))
	files["kustomization.yaml"] = kustomization
	return files, err
}

// render gives the chart's objects with the values over its own, by the file they are from. The schema judges the values.
func render(c *chart.Chart, values common.Values) (map[string]string, error) {
	return renderAs(c, values, release)
}

// renderAs gives those of a release of another name, in a namespace of that name.
func renderAs(c *chart.Chart, values common.Values, name string) (map[string]string, error) {
	options := common.ReleaseOptions{Name: name, Namespace: name, IsInstall: true, Revision: 1}
	all, err := util.ToRenderValues(c, values, options, nil)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, text := range rendered {
		if text = tidy(text); text != "" && strings.HasSuffix(name, ".yaml") {
			files[path.Base(name)] = text
		}
	}
	return files, nil
}

var blanks = regexp.MustCompile(`[ \t]+\n`)

// tidy takes away what templates leave behind: a separator at the beginning, and blanks at the ends of lines.
func tidy(text string) string {
	text = strings.TrimSpace(blanks.ReplaceAllString(text+"\n", "\n"))
	text = strings.TrimSpace(strings.TrimPrefix(text, "---\n"))
	if text == "" {
		return ""
	}
	return text + "\n"
}

func kustomization(resources []string) ([]byte, error) {
	// The namespace first: what is in it comes after it.
	if i := slices.Index(resources, "namespace.yaml"); i > 0 {
		resources = slices.Insert(slices.Delete(resources, i, i+1), 0, "namespace.yaml")
	}
	body, err := yaml.Marshal(map[string]any{"resources": resources})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("# kubectl apply -k deploy/kubernetes/..., or a base of a kustomization of your own (docs/install.md). Written by \"make manifests\".\n")
	b.WriteString("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	b.Write(body)
	return b.Bytes(), nil
}
