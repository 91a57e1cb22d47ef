package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// kinds are the objects that chart and examples may hold.
var kinds = map[string]any{
	"v1/Namespace": corev1.Namespace{}, "v1/ServiceAccount": corev1.ServiceAccount{}, "v1/PersistentVolumeClaim": corev1.PersistentVolumeClaim{},
	"v1/PersistentVolume": corev1.PersistentVolume{}, "v1/Pod": corev1.Pod{}, "v1/Service": corev1.Service{},
	"apps/v1/DaemonSet": appsv1.DaemonSet{}, "apps/v1/Deployment": appsv1.Deployment{}, "apps/v1/StatefulSet": appsv1.StatefulSet{},
	"rbac.authorization.k8s.io/v1/ClusterRole": rbacv1.ClusterRole{}, "rbac.authorization.k8s.io/v1/ClusterRoleBinding": rbacv1.ClusterRoleBinding{},
	"rbac.authorization.k8s.io/v1/Role": rbacv1.Role{}, "rbac.authorization.k8s.io/v1/RoleBinding": rbacv1.RoleBinding{},
	"storage.k8s.io/v1/CSIDriver": storagev1.CSIDriver{}, "storage.k8s.io/v1/StorageClass": storagev1.StorageClass{},
	"storage.k8s.io/v1/VolumeAttributesClass":                          storagev1.VolumeAttributesClass{},
	"snapshot.storage.k8s.io/v1/VolumeSnapshotClass":                   snapshotv1.VolumeSnapshotClass{},
	"snapshot.storage.k8s.io/v1/VolumeSnapshot":                        snapshotv1.VolumeSnapshot{},
	"groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshotClass":         groupsnapshotv1.VolumeGroupSnapshotClass{},
	"groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshot":              groupsnapshotv1.VolumeGroupSnapshot{},
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy":        admissionv1.ValidatingAdmissionPolicy{},
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": admissionv1.ValidatingAdmissionPolicyBinding{},
}

var separator = regexp.MustCompile(`(?m)^---\n`)

// decode reads YAML documents as the API server does that knows every field: one that is unknown is an error.
func decode(t *testing.T, where, text string) (all []any) {
	t.Helper()
	for _, doc := range separator.Split(text, -1) {
		var meta struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if meta.Kind == "" {
			continue // comments
		}
		kind, known := kinds[meta.APIVersion+"/"+meta.Kind]
		if !known {
			t.Errorf("%s: %s/%s: is that what it is called? If so, add it to kinds", where, meta.APIVersion, meta.Kind)
			continue
		}
		object := reflect.New(reflect.TypeOf(kind))
		text, err := yaml.YAMLToJSONStrict([]byte(doc))
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		// As the API server does: other than encoding/json it tells upper from lower case.
		strict, err := json.UnmarshalStrict(text, object.Interface())
		for _, err := range append(strict, err) {
			if err != nil {
				t.Errorf("%s: %s: %v", where, meta.Kind, err)
			}
		}
		all = append(all, object.Interface())
	}
	return all
}

// only gives the objects of one type.
func only[T any](all []any) (some []*T) {
	for _, o := range all {
		if o, ok := o.(*T); ok {
			some = append(some, o)
		}
	}
	return some
}

// container is one of the DaemonSet, with everything on.
func container(t *testing.T, name string, set ...string) corev1.Container {
	t.Helper()
	pod := only[appsv1.DaemonSet](decode(t, "full", mustRender(t, "full", set...)))[0].Spec.Template.Spec
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no container %s", name)
	}
	return pod.Containers[i]
}

func TestObjectsAreKnown(t *testing.T) {
	for _, set := range [][]string{{}, {"driver.attach=true"}, {"driver.lvmExec=host"}, {"driver.hostLVMConfig=true"}, {"sidecars.seLinuxType=spc_t", "imagePullSecrets={a}", "node.affinity.nodeAffinity=null"}} {
		if all := decode(t, "full", mustRender(t, "full", set...)); len(all) < 18 {
			t.Errorf("%v: only %d objects", set, len(all))
		}
	}
	examples, err := filepath.Glob(filepath.Join(root, "deploy/examples/*.yaml"))
	if err != nil || len(examples) < 9 {
		t.Fatalf("%v %v", examples, err)
	}
	classes := map[string]bool{}
	full := decode(t, "full", mustRender(t, "full"))
	for _, c := range only[storagev1.StorageClass](full) {
		classes[c.Name] = true
	}
	for _, file := range examples {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, claim := range only[corev1.PersistentVolumeClaim](decode(t, file, string(text))) {
			if name := ptr(claim.Spec.StorageClassName); !classes[name] {
				t.Errorf("%s: the chart has no StorageClass %q", file, name)
			}
		}
	}
	d := only[storagev1.CSIDriver](full)[0].Spec
	if d.AttachRequired == nil || *d.AttachRequired || !ptr(d.PodInfoOnMount) || !ptr(d.StorageCapacity) || !ptr(d.SELinuxMount) || ptr(d.RequiresRepublish) || len(d.VolumeLifecycleModes) != 2 {
		t.Errorf("the CSIDriver is %+v", d)
	}
}

// Names that YAML takes for something else, where Kubernetes allows them, are names all the same.
func TestNamesAreStrings(t *testing.T) {
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1", "1e3", "true", "null"} {
		values := map[string]any{
			"imagePullSecrets": []any{name}, "driver": map[string]any{"name": name, "attach": true}, "namespace": map[string]any{"create": true},
			"node": map[string]any{"priorityClassName": name}, "controller": map[string]any{"priorityClassName": name},
			"storageClasses": []any{map[string]any{"name": name, "parameters": map[string]any{"type": "striped", "stripeSize": 4194304, "stripes": 3}}},
			"snapshots":      map[string]any{"enabled": true, "classes": []any{map[string]any{"name": name}}},
			"sidecars":       map[string]any{"seLinuxType": name}, "uniqueHandles": map[string]any{"enabled": true},
		}
		files, err := renderAs(c, values, name)
		if err != nil {
			t.Fatal(err)
		}
		all := decode(t, name, joined(files))
		if len(all) < 15 {
			t.Errorf("%s: only %d objects", name, len(all))
		}
		class := only[storagev1.StorageClass](all)[0]
		if class.Name != name || class.Parameters["stripeSize"] != "4194304" || class.Parameters["stripes"] != "3" {
			t.Errorf("%s: the class is %+v", name, class)
		}
	}
}

// ptr gives what is pointed at; of nil the zero value.
func ptr[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// The objects in the pages have no field that Kubernetes does not know.
func TestObjectsOfThePagesAreKnown(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(block[1], "kind: Kustomization") { // kubectl's own, which no API server sees
				found += len(decode(t, page, block[1]))
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d objects", found)
	}
}

// What each container is given, and no more.
func TestLeastPrivilege(t *testing.T) {
	all := decode(t, "full", mustRender(t, "full", "driver.attach=true"))
	var specs []corev1.PodSpec
	for _, d := range only[appsv1.DaemonSet](all) {
		specs = append(specs, d.Spec.Template.Spec)
		if d.Spec.Template.Spec.AutomountServiceAccountToken == nil || *d.Spec.Template.Spec.AutomountServiceAccountToken {
			t.Error("the token is mounted into all containers")
		}
	}
	for _, d := range only[appsv1.Deployment](all) {
		specs = append(specs, d.Spec.Template.Spec)
	}
	if len(specs) != 2 {
		t.Fatalf("%d pod templates", len(specs))
	}
	tokens := []string{"provisioner", "snapshotter"}
	for _, spec := range specs {
		if spec.HostNetwork || spec.HostIPC {
			t.Error("host network or IPC")
		}
		for _, c := range spec.Containers {
			s := c.SecurityContext
			if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: its root can be written to", c.Name)
				continue
			}
			if token := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "token" }); token != slices.Contains(tokens, c.Name) {
				t.Errorf("%s: has a token: %v", c.Name, token)
			}
			if c.Resources.Requests == nil {
				t.Errorf("%s: requests nothing", c.Name)
			}
			if c.Name == "driver" {
				continue
			}
			if s.Privileged != nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.SeccompProfile == nil {
				t.Errorf("%s: may do more than it needs: %+v", c.Name, s)
			}
			for _, m := range c.VolumeMounts {
				if !slices.Contains([]string{"plugin-dir", "registration-dir", "token"}, m.Name) {
					t.Errorf("%s: sees %s", c.Name, m.Name)
				}
			}
		}
	}
	for _, role := range only[rbacv1.ClusterRole](all) {
		rules(t, role.Name, role.Rules)
	}
	for _, role := range only[rbacv1.Role](all) {
		rules(t, role.Name, role.Rules)
	}
}

func rules(t *testing.T, name string, all []rbacv1.PolicyRule) {
	t.Helper()
	for _, r := range all {
		for _, word := range slices.Concat(r.Verbs, r.Resources, r.APIGroups) {
			if slices.Contains([]string{"*", "secrets", "nodes", "deletecollection", "escalate", "bind", "impersonate"}, word) {
				t.Errorf("%s: %s", name, word)
			}
		}
	}
}

// Without attach there is no trace of attachments, without snapshots none of snapshots.
func TestWhatIsOffAsksForNothing(t *testing.T) {
	base := mustRender(t, "base")
	for _, word := range []string{"volumeattachments", "csi-attacher", "csi-snapshotter", "snapshot.storage.k8s.io", "ValidatingAdmission", "containerPort: 9810"} {
		if strings.Contains(base, word) {
			t.Errorf("base has %s", word)
		}
	}
	for _, word := range []string{"volumeattachments", "csi-attacher", "attachRequired: true", "--attach=true"} {
		if !strings.Contains(mustRender(t, "base", "driver.attach=true"), word) {
			t.Errorf("with attach there is no %s", word)
		}
	}
}

// The paths of the driver's arguments are mounted, and at the places they name.
func TestDriverSeesItsPaths(t *testing.T) {
	mounts := map[string]corev1.VolumeMount{}
	c := container(t, "driver", "kubeletDir=/k", "driver.stateDir=/s")
	for _, m := range c.VolumeMounts {
		mounts[m.MountPath] = m
	}
	for _, p := range []string{"/csi", "/k", "/s", "/dev", "/sys/fs/cgroup", "/run/lock/lvm", "/run/lvm"} {
		if mounts[p].Name == "" {
			t.Errorf("nothing at %s", p)
		}
	}
	if p := mounts["/k"].MountPropagation; p == nil || *p != corev1.MountPropagationBidirectional {
		t.Error("mounts do not reach the pods")
	}
	for _, arg := range []string{"--kubelet-dir=/k", "--state-dir=/s", "--endpoint=unix:///csi/csi.sock"} {
		if !slices.Contains(c.Args, arg) {
			t.Errorf("no %s in %v", arg, c.Args)
		}
	}
	if !slices.Contains(container(t, "registrar", "kubeletDir=/k").Args, "--kubelet-registration-path=/k/plugins/local-lvm.csi.internal/csi.sock") {
		t.Error("kubelet is told another socket")
	}
}
