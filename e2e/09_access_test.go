package e2e

import (
	"strings"
	"testing"
)

// A claim for one pod only: a second pod waits, and says why, until the first has gone.
func TestReadWriteOncePod(t *testing.T) {
	scenario(t)
	apply(t, strings.Replace(claim("one", "local-lvm", "32Mi"), "ReadWriteOnce]", "ReadWriteOncePod]", 1),
		pod("first", "echo here"+stays, []vol{{name: "data", claim: "one"}}))
	running(t, "first")
	apply(t, pod("second", "echo here"+stays, []vol{{name: "data", claim: "one"}}))
	event(t, "second", "FailedScheduling", "ReadWriteOncePod")
	remove(t, "pod/first")
	running(t, "second")
	remove(t, "pod/second", "pvc/one")
}

// Two pods of one node share a ReadWriteOnce volume. One of them goes, and the other goes on.
func TestSharedOnANode(t *testing.T) {
	scenario(t)
	apply(t, claim("shared", "local-lvm", "32Mi"),
		pod("writer", "echo words > /data/words; sync; echo written"+stays, []vol{{name: "data", claim: "shared"}}))
	said(t, n1, running(t, "writer"), "written")
	apply(t, pod("reader", "while :; do echo has $(cat /data/words); sleep 1; done", []vol{{name: "data", claim: "shared"}}))
	reader := running(t, "reader")
	said(t, n1, reader, "has words")
	remove(t, "pod/writer")
	gone(t, "pods/writer")
	sh(t, n1, "echo others > /var/lib/kubelet/pods/"+string(reader.UID)+"/volumes/kubernetes.io~csi/*/mount/words")
	said(t, n1, reader, "has others")
	remove(t, "pod/reader", "pvc/shared")
}

// A pod that is not root writes to a volume of its group; a read-only mount takes nothing; the class's mount options hold.
func TestGroupReadOnlyAndMountOptions(t *testing.T) {
	scenario(t)
	apply(t, `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: options}
provisioner: local-lvm.csi.internal
volumeBindingMode: WaitForFirstConsumer
mountOptions: [noatime, nodiscard]`,
		claim("data", "options", "32Mi"),
		pod("user", "id; echo words > /data/words && stat -c '%u:%g %a' /data /data/words; sync; echo written; while read -r dev at type options rest; do test $at != /data || echo mounted with $options; done < /proc/mounts"+stays,
			[]vol{{name: "data", claim: "data"}}, "securityContext: {runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000}"))
	user := running(t, "user")
	for _, part := range []string{"written", "1000:2000", "mounted with rw,noatime"} {
		said(t, n1, user, part)
	}
	apply(t, strings.Replace(pod("reader", "echo reads $(cat /data/words); echo others > /data/words || echo refused"+stays, []vol{{name: "data", claim: "data"}}),
		"claimName: data}", "claimName: data, readOnly: true}", 1))
	reader := running(t, "reader")
	said(t, n1, reader, "reads words")
	said(t, n1, reader, "Read-only file system")
	remove(t, "pod/user", "pod/reader", "pvc/data", "storageclass/options")
}
