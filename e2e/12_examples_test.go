package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// The examples of deploy/examples, each as it is, and in the order that their comments tell.
func TestExamples(t *testing.T) {
	scenario(t)
	example(t, "apply", "pod")
	writer := running(t, "writer")
	said(t, n1, writer, "UTC") // the time that it wrote
	example(t, "apply", "snapshot")
	ready(t, "data-monday")
	example(t, "apply", "restore", "clone")
	wrote := strings.Fields(sh(t, n1, "cat /var/log/pods/default_writer_"+string(writer.UID)+"/*/0.log"))
	for _, name := range []string{"restored", "clone"} {
		said(t, n1, running(t, name), strings.Join(wrote[3:], " "))
	}

	// A thick volume does not grow while it has snapshots. The kubelet takes the answer for "in use", and asks again
	// when the volume is mounted anew.
	example(t, "apply", "expand")
	eventually(t, "the claim says why it does not grow", func() error {
		claim, err := getClaim("data")
		if said := fmt.Sprint(claim.Status.Conditions); err == nil && !strings.Contains(said, "it has thick snapshots") {
			err = fmt.Errorf("it says %s", said)
		}
		return err
	})
	example(t, "delete", "restore", "clone", "snapshot")
	if _, err := c.API.Kubectl("", "delete", "pod", "writer", "--grace-period=1"); err != nil {
		t.Fatal(err)
	}
	apply(t, pod("grown", "echo here"+stays, []vol{{name: "data", claim: "data"}}))
	running(t, "grown")
	grown(t, "data", "2Gi")
	remove(t, "pod/grown")
	example(t, "delete", "pod")
	nothingIsLeft(t, n1)

	example(t, "apply", "block", "generic-ephemeral", "inline-ephemeral", "statefulset")
	for _, name := range []string{"raw", "scratch", "build", "db-0", "db-1", "db-2"} {
		running(t, name)
	}
	example(t, "delete", "block", "generic-ephemeral", "inline-ephemeral", "statefulset")
	remove(t, "pvc/data-db-0", "pvc/data-db-1", "pvc/data-db-2") // which the example keeps
}

// example applies files, or deletes what is in them.
func example(t *testing.T, verb string, names ...string) {
	t.Helper()
	args := []string{verb}
	if verb == "delete" {
		args = append(args, "--wait=false", "--grace-period=1", "--ignore-not-found")
	}
	for _, name := range names {
		args = append(args, "-f", filepath.Join(home.Root, examples, name+".yaml"))
	}
	if _, err := c.API.Kubectl("", args...); err != nil {
		t.Fatal(err)
	}
}
