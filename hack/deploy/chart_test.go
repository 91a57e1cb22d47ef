package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/strvals"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// rendering gives the chart's objects by file, with values as "helm --set" takes them over those of a variant.
func rendering(t *testing.T, variant string, set ...string) (map[string]string, error) {
	t.Helper()
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		t.Fatal(err)
	}
	values, err := common.ReadValuesFile(filepath.Join(root, manifestsDir, variant, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range set {
		if err := strvals.ParseInto(s, values); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return render(c, values)
}

// joined is a rendering in one text.
func joined(files map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b.WriteString("---\n" + files[name])
	}
	return b.String()
}

func mustRender(t *testing.T, variant string, set ...string) string {
	t.Helper()
	files, err := rendering(t, variant, set...)
	if err != nil {
		t.Fatalf("%v: %v", set, err)
	}
	return joined(files)
}

func TestChartIsLinted(t *testing.T) {
	for _, variant := range []string{"base", "full"} {
		values, err := common.ReadValuesFile(filepath.Join(root, manifestsDir, variant, "values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lint.RunAll(filepath.Join(root, chartDir), values, release).Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("%s: %v", variant, m)
			}
		}
	}
}

func TestManifestsAreRendered(t *testing.T) {
	names, err := variants(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		want, err := variant(root, name)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, manifestsDir, name)
		for base, text := range want {
			if got, err := os.ReadFile(filepath.Join(dir, base)); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%s/%s is not what the chart gives (%v): make manifests", name, base, err)
			}
		}
		found, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			if base := filepath.Base(file); base != "values.yaml" && want[base] == nil {
				t.Errorf("%s/%s: the chart gives no such file", name, base)
			}
		}
	}
}

// leaves gives the paths of all values that are no maps, as "helm --set" writes them.
func leaves(prefix string, values map[string]any) []string {
	var all []string
	for key, v := range values {
		p := strings.TrimPrefix(prefix+"."+key, ".")
		if m, ok := v.(map[string]any); ok && len(m) > 0 && !strings.HasSuffix(key, "esources") {
			all = append(all, leaves(p, m)...)
			continue
		}
		all = append(all, p)
	}
	return all
}

// changed has another value for each value of the chart.
var changed = map[string]string{
	"image.repository": "example.com/driver", "image.tag": "v9", "image.digest": "sha256:" + strings.Repeat("a", 64), "image.pullPolicy": "Always",
	"imagePullSecrets": "{secret}", "fullnameOverride": "other", "namespace.create": "false",
	"driver.name": "other.example.com", "driver.volumeGroups": "{nvme-*,data}", "driver.lvmExec": "host", "driver.hostLVMConfig": "true",
	"driver.thinOvercommit": "1.5", "driver.maxVolumes": "1000001", "driver.copyRate": "200Mi", "driver.attach": "true", "driver.expansion": "controller",
	"driver.orphanPolicy": "report", "driver.orphanGrace": "1h", "driver.stateDir": "/var/lib/other", "driver.loggingFormat": "json", "driver.verbosity": "4",
	"driver.extraArgs": "{--v=5}", "driver.resources": "null", "metrics.enabled": "false", "metrics.port": "9910", "metrics.profiling": "true", "metrics.monitoring.enabled": "false", "metrics.monitoring.interval": "1m", "metrics.monitoring.labels": ".release=prometheus", "kubeletDir": "/var/lib/k0s/kubelet", "inlineVolumeProfile": "privileged",
	"node.priorityClassName": "other", "node.nodeSelector": ".disk=nvme", "node.affinity": ".nodeAffinity.x=y", "node.tolerations": "null",
	"node.updateStrategy.type": "OnDelete", "node.updateStrategy.rollingUpdate.maxUnavailable": "2", "node.terminationGracePeriodSeconds": "60",
	"node.podLabels": ".a=b", "node.podAnnotations": ".a=b", "node.healthPort": "9908", "node.registrarPort": "9909",
	"controller.enabled": "false", "controller.replicas": "2", "controller.priorityClassName": "other", "controller.nodeSelector": ".a=b",
	"controller.tolerations": "[0].operator=Exists", "controller.podLabels": ".a=b", "controller.podAnnotations": ".a=b",
	"sidecars.registry": "example.com", "sidecars.pullPolicy": "Always", "sidecars.verbosity": "5", "sidecars.seLinuxType": "spc_t", "sidecars.resources": "null",
	"sidecars.registrar.resources": ".requests.cpu=1m", "sidecars.livenessprobe.resources": ".requests.cpu=1m",
	"storageClasses": "null", "snapshots.enabled": "false", "snapshots.classes": "null", "uniqueHandles.enabled": "false", "uniqueHandles.actions": "{Warn}",
}

// Each value of the chart does something, and the schema takes another value for it.
func TestEveryValueMatters(t *testing.T) {
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, sidecar := range []string{"registrar", "livenessprobe", "provisioner", "snapshotter", "resizer", "attacher"} {
		changed["sidecars."+sidecar+".image"], changed["sidecars."+sidecar+".tag"], changed["sidecars."+sidecar+".timeout"] = "other", "v9", "99s"
	}
	changed["sidecars.provisioner.capacityPollInterval"] = "77s"
	for _, p := range leaves("", c.Values) {
		to, known := changed[p]
		if !known {
			t.Errorf("no other value for %s: add it to this test", p)
			continue
		}
		var with []string
		if strings.HasPrefix(p, "sidecars.attacher") {
			with = []string{"driver.attach=true"}
		}
		if strings.HasPrefix(p, "metrics.monitoring.") {
			with = []string{"metrics.enabled=true", "metrics.monitoring.enabled=true"}
		}
		if to[0] != '.' && to[0] != '[' { // something in it, or itself
			to = "=" + to
		}
		if mustRender(t, "full", with...) == mustRender(t, "full", append(with, p+to)...) {
			t.Errorf("%s%s changes nothing", p, to)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	for _, set := range []string{
		"driver.volumeGroup=data", "driver.volumeGroups={}", "driver.volumeGroups={a b}", "driver.lvmExec=chroot", "driver.thinOvercommit=0.5", "driver.attach=maybe",
		"driver.stateDir=relative", "kubeletDir=/var/lib/kubelet/", "kubeletDir=/var/lib:/kubelet", "driver.stateDir=/var/lib/x:", "driver.orphanGrace=10", "driver.name=A_b", "driver.extraArgs={serve}",
		"node.terminationGracePeriodSeconds=10", "node.updateStrategy.rollingUpdate.maxSurge=1", "image.digest=latest", "storageClasses[0].parameters.type=thin", "snapshots.classes[0].name=A B", "uniqueHandles.actions={Refuse}", "uniqueHandles.actions={Deny,Warn}", "no=1",
		`node.podLabels.app\.kubernetes\.io/component=x`, `controller.podLabels.app\.kubernetes\.io/name=x`,
	} {
		if _, err := rendering(t, "base", set); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s passes: %v", set, err)
		}
	}
}

// What each value takes by itself, and what does not work together.
func TestChartRefuses(t *testing.T) {
	for _, c := range []struct{ set, why string }{
		{"driver.attach=true,controller.enabled=false", "external-attacher"},
		{"kubeletDir=/var/snap/microk8s/common/var/lib/kubelet,driver.name=a-name-that-is-itself-not-too-long.example.com", "the path of a socket"},
		{"metrics.enabled=false,metrics.monitoring.enabled=true", "set metrics.enabled"},
		{"node.healthPort=9809", "ports of one pod"},
		{"node.registrarPort=9810", "ports of one pod"},
	} {
		if _, err := rendering(t, "base", c.set); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.set, err)
		}
	}
}

// objects that the schema describes take no key that it does not name, so that a misspelt one is not silently nothing.
func TestSchemaIsClosed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var walk func(at string, s map[string]any)
	walk = func(at string, s map[string]any) {
		if p, ok := s["properties"].(map[string]any); ok {
			if s["additionalProperties"] != false {
				t.Errorf("%s takes any key", at)
			}
			for key, inner := range p {
				walk(at+"."+key, inner.(map[string]any))
			}
		}
		if items, ok := s["items"].(map[string]any); ok {
			walk(at+"[]", items)
		}
	}
	walk("", schema)
}

var flagLine = regexp.MustCompile(`(?m)^ +(?:-[a-z], )?--([a-z-]+)`)

// The driver's container is started with every flag that the driver has, and with no other.
func TestDriverFlags(t *testing.T) {
	program := filepath.Join(t.TempDir(), "csi-local-lvm")
	build := exec.Command("go", "build", "-o", program, "./cmd/csi-local-lvm")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	help, err := exec.Command(program, "serve", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	var known []string
	for _, m := range flagLine.FindAllStringSubmatch(string(help), -1) {
		if m[1] != "help" {
			known = append(known, m[1])
		}
	}
	if len(known) < 15 {
		t.Fatalf("only %d flags in the help: %v", len(known), known)
	}
	var used []string
	for _, arg := range container(t, "driver").Args[1:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		used = append(used, name)
		if !slices.Contains(known, name) {
			t.Errorf("the chart gives --%s, which the driver does not know", name)
		}
	}
	for _, name := range known {
		if !slices.Contains(used, name) {
			t.Errorf("the driver's --%s is not in the chart: add it to the arguments in templates/node.yaml and to values.yaml", name)
		}
	}
}

func TestDistributions(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, chartDir, "distributions", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		values, err := common.ReadValuesFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rendered, err := render(c, values)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		all, err := util.CoalesceValues(c, values)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"", "/plugins/local-lvm.csi.internal/csi.sock", "/plugins_registry"} {
			if want := all["kubeletDir"].(string) + dir; !strings.Contains(rendered["node.yaml"], want) {
				t.Errorf("%s: no %s", file, want)
			}
		}
	}
}

type versions struct {
	Kubernetes struct {
		Minimum, Tested string
		Features        []struct{ Feature, Since string }
	}
	Sidecars []struct{ Value, Image, Version, Module string }
	Cluster  []struct{ Image, Version, Module string }
}

func readVersions(t *testing.T) (v versions) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/versions.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestChartHasTheVersions(t *testing.T) {
	v := readVersions(t)
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		t.Fatal(err)
	}
	if want := ">=" + v.Kubernetes.Minimum + ".0-0"; c.Metadata.KubeVersion != want {
		t.Errorf("kubeVersion is %s, want %s", c.Metadata.KubeVersion, want)
	}
	sidecars := c.Values["sidecars"].(map[string]any)
	for _, s := range v.Sidecars {
		value, _ := sidecars[s.Value].(map[string]any)
		if value["image"] != s.Image || value["tag"] != s.Version {
			t.Errorf("sidecars.%s is %v:%v, want %s:%s", s.Value, value["image"], value["tag"], s.Image, s.Version)
		}
		delete(sidecars, s.Value)
	}
	for key, v := range sidecars {
		if m, ok := v.(map[string]any); ok && m["image"] != nil {
			t.Errorf("sidecars.%s is not in deploy/versions.yaml", key)
		}
	}
}

func TestInstallPageHasTheVersions(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	v := readVersions(t)
	want := map[string]string{"Kubernetes": v.Kubernetes.Minimum + " and newer; tested with " + v.Kubernetes.Tested}
	for _, s := range v.Sidecars {
		want[s.Image] = s.Version
	}
	for _, s := range v.Cluster {
		want[s.Image] = s.Version
	}
	for name, version := range want {
		if row := "| " + name + " | " + version + " |\n"; !strings.Contains(string(page), row) {
			t.Errorf("docs/install.md has no row %q", row)
		}
	}
	for _, f := range v.Kubernetes.Features {
		if !strings.Contains(string(page), f.Since) {
			t.Errorf("docs/install.md does not say that %s needs Kubernetes %s", f.Feature, f.Since)
		}
	}
}

// Modules of this source that build the same programs for tests build the same versions.
func TestModulesHaveTheVersions(t *testing.T) {
	v := readVersions(t)
	want := map[string]string{"k8s.io/kubernetes": "v" + v.Kubernetes.Tested}
	for _, s := range v.Sidecars {
		want[s.Module] = s.Version
	}
	for _, s := range v.Cluster {
		want[s.Module] = s.Version
	}
	files, err := exec.Command("git", "-C", root, "ls-files", "*go.mod", "go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^\s*(?:require )?(\S+) (v\S+)`)
	for _, file := range strings.Fields(string(files)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range required.FindAllStringSubmatch(string(text), -1) {
			if w := want[m[1]]; w != "" && w != m[2] {
				t.Errorf("%s: %s %s, deploy/versions.yaml says %s", file, m[1], m[2], w)
			}
		}
	}
}
