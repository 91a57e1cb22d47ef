package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What an operator looks at: the plugin of kubectl shows all nodes, and status, doctor and the logs are asked for with
// kubectl in the driver's pod.
func TestStatusAndDoctorWithKubectl(t *testing.T) {
	scenario(t)
	apply(t, claim("data", "local-lvm", "64Mi"), pod("user", "echo here"+stays, []vol{{name: "data", claim: "data"}, {name: "scratch", size: "32Mi"}}))
	user := running(t, "user")

	programs := t.TempDir()
	if err := os.Symlink(filepath.Join(c.Dir, "bin/csi-local-lvm"), filepath.Join(programs, "kubectl-csi_local_lvm")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+c.Programs()+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", c.API.Config)
	for _, command := range [][]string{
		{"kubectl", "csi-local-lvm"},
		{"kubectl", "-n", "csi-local-lvm", "exec", "daemonset/csi-local-lvm-node", "-c", "driver", "--", "csi-local-lvm", "status"},
	} {
		out := looked(t, command...)
		for _, part := range []string{string(user.UID), "inline", "published"} {
			if !strings.Contains(out, part) {
				t.Errorf("%v does not say %q:\n%s", command, part, out)
			}
		}
	}
	looked(t, "kubectl", "-n", "csi-local-lvm", "exec", "daemonset/csi-local-lvm-node", "-c", "driver", "--", "csi-local-lvm", "doctor")
	if out := looked(t, "kubectl", "-n", "csi-local-lvm", "logs", "daemonset/csi-local-lvm-node", "-c", "driver"); !strings.Contains(out, "NodePublishVolume") {
		t.Errorf("the driver's log has no NodePublishVolume:\n%s", out)
	}
	remove(t, "pod/user", "pvc/data")
}

// looked runs a command that only looks, and fails the test unless it ends well: doctor does when nothing is wrong.
func looked(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v\n%s", command, err, out)
	}
	t.Logf("%v:\n%s", command, out)
	return string(out)
}
