package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/cluster"
)

// writes writes a line every moment, and says at the start how many there were.
const writes = `echo begins with $(cat /data/lines 2>/dev/null | wc -l) lines; while :; do date >> /data/lines; sleep 0.2; done`

// The driver is killed, and then updated, under pods that write. Nothing moves: the same containers, the same mounts,
// and the writing goes on. Afterwards everything works as before.
func TestDriverRestartedUnderLoad(t *testing.T) {
	scenario(t)
	apply(t, claim("data", "local-lvm", "64Mi"),
		pod("persistent", writes, []vol{{name: "data", claim: "data"}}),
		pod("inline", writes, []vol{{name: "data", size: "64Mi"}}))
	names := []string{"persistent", "inline"}
	for _, name := range names {
		running(t, name)
	}
	before := mounts(t)

	const find = "pgrep -x csi-local-lvm"
	first := strings.Fields(sh(t, n1, find))
	sh(t, n1, "pkill -KILL -x csi-local-lvm")
	eventually(t, "the killed driver runs again", func() error {
		now, err := n1.Run(find)
		for _, pid := range strings.Fields(now) {
			if slices.Contains(first, pid) {
				err = errors.New("the first is still dying")
			}
		}
		return err
	})
	unmoved(t, before, names)

	if _, err := c.API.Kubectl("", "-n", "csi-local-lvm", "set", "image", "daemonset/csi-local-lvm-node", "driver="+cluster.NextDriver); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the updated driver is ready", driverReady(1))
	unmoved(t, before, names)

	remove(t, "pod/persistent", "pod/inline", "pvc/data")
	nothingIsLeft(t, n1)
}

// mounts are those of volumes.
func mounts(t *testing.T) string {
	t.Helper()
	return sh(t, n1, `grep -E '/volumes/kubernetes.io~csi/|/globalmount' /proc/self/mountinfo | cut -d' ' -f1-6 | sort`)
}

// unmoved fails unless the pods' containers are the first ones, write, and the mounts are what they were.
func unmoved(t *testing.T, before string, names []string) {
	t.Helper()
	if after := mounts(t); after != before {
		t.Errorf("the mounts were\n%s\nand are\n%s", before, after)
	}
	for _, name := range names {
		p := running(t, name)
		if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("pod %s was restarted %d times", name, n)
		}
		lines := "cat /var/lib/kubelet/pods/" + string(p.UID) + "/volumes/kubernetes.io~csi/*/mount/lines | wc -l"
		had := sh(t, n1, lines)
		eventually(t, "pod "+name+" writes", func() error {
			has, err := n1.Run(lines)
			if err == nil && strings.TrimSpace(has) == had {
				err = errStands
			}
			return err
		})
	}
}
