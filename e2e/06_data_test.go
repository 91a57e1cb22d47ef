package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Claims grow while their pod runs: a file system, and a block device. The pod sees it.
func TestExpansion(t *testing.T) {
	scenario(t)
	const script = `while :; do echo sizes $(df -k /data | tail -1 | { read d k rest; echo $k; }) $(blockdev --getsize64 /dev/raw); sleep 1; done`
	apply(t, claim("data", "local-lvm", "64Mi"), claim("raw", "local-lvm", "16Mi", "volumeMode: Block"),
		pod("grows", script, []vol{{name: "data", claim: "data"}, {name: "raw", claim: "raw", block: true}}))
	p := running(t, "grows")
	said(t, n1, p, fmt.Sprint(" ", 16<<20))
	sizes := map[string]string{"data": "128Mi", "raw": "32Mi"}
	for name, size := range sizes {
		grow(t, name, size)
	}
	for name, size := range sizes {
		grown(t, name, size)
	}
	said(t, n1, p, fmt.Sprint(" ", 32<<20))
	eventually(t, "the pod sees a file system of more than 100 MiB", func() error {
		out, err := n1.Run(fmt.Sprintf(`cat /var/log/pods/default_grows_%s/*/*.log | tail -1`, p.UID))
		var kib, bytes int
		_, text, _ := strings.Cut(out, "sizes ")
		if _, e := fmt.Sscan(text, &kib, &bytes); err == nil && e == nil && kib > 100<<10 {
			return nil
		}
		return errors.Join(err, errorOf("it sees "+text))
	})
	remove(t, "pod/grows", "pvc/data", "pvc/raw")
}

// grow asks for a larger claim.
func grow(t *testing.T, name, size string) {
	t.Helper()
	if _, err := c.API.Kubectl("", "patch", "pvc", name, "-p", fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)); err != nil {
		t.Fatal(err)
	}
}

// grown waits until it is larger.
func grown(t *testing.T, name, size string) {
	t.Helper()
	eventually(t, "claim "+name+" has "+size, func() error {
		claim, err := getClaim(name)
		if has := claim.Status.Capacity.Storage().String(); err == nil && has != size {
			err = fmt.Errorf("it has %s; %v; %s", has, claim.Status.Conditions, lastEvents(name))
		}
		return err
	})
}

// A snapshot, a volume restored from it, and a clone, thick and thin. What is written to the first volume after the
// snapshot is not in the restored one.
func TestSnapshotRestoreClone(t *testing.T) {
	for _, class := range []string{"local-lvm-thin", "local-lvm"} {
		t.Run(class, func(t *testing.T) {
			scenario(t)
			apply(t, claim("first", class, "64Mi"),
				pod("writer", "echo before > /data/words; sync; echo written; while test ! -e /data/go; do sleep 1; done; echo after > /data/words; sync; echo changed"+stays, []vol{{name: "data", claim: "first"}}))
			writer := running(t, "writer")
			said(t, n1, writer, "written")
			apply(t, `apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: shot}
spec: {volumeSnapshotClassName: local-lvm, source: {persistentVolumeClaimName: first}}`)
			ready(t, "shot")
			sh(t, n1, fmt.Sprintf("cd /var/lib/kubelet/pods/%s/volumes/kubernetes.io~csi/*/mount && touch go", writer.UID))
			said(t, n1, writer, "changed")
			apply(t,
				claim("restored", class, "64Mi", "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: shot}"),
				claim("clone", class, "64Mi", "dataSource: {kind: PersistentVolumeClaim, name: first}"),
				pod("reader", "echo restored has $(cat /restored/words), clone has $(cat /clone/words)"+stays,
					[]vol{{name: "restored", claim: "restored"}, {name: "clone", claim: "clone"}}))
			said(t, n1, running(t, "reader"), "restored has before, clone has after")
			remove(t, "pod/writer", "pod/reader", "pvc/restored", "pvc/clone", "volumesnapshot/shot", "pvc/first")
		})
	}
}

// ready waits until a snapshot is.
func ready(t *testing.T, snapshot string) {
	t.Helper()
	eventually(t, "the snapshot is ready", func() error {
		out, err := c.API.Kubectl("", "get", "volumesnapshot", snapshot, "-o", "jsonpath={.status.readyToUse}{.status.error.message}")
		if err == nil && out != "true" {
			err = fmt.Errorf("it is not: %s", out)
		}
		return err
	})
}
