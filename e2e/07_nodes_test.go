package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/wait"
)

// Volumes stay on their node. While it is gone, and after it was removed, a pod that needs one waits and says why; no
// step is taken that could be unsafe when the node is in fact running. A node that returns cleans up.
func TestNodeLost(t *testing.T) {
	scenario(t)
	n2 := c.Nodes[1]
	if err := n2.PowerOn(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WaitNode(n2), wait.For(bound, driverReady(2))); err != nil {
		t.Fatal(err)
	}

	const script = "echo found $(cat /data/words 2>/dev/null); echo words > /data/words; sync; echo written" + stays
	onN2 := pod("mover", script, []vol{{name: "data", claim: "stays"}}, "nodeSelector: {kubernetes.io/hostname: n2}")
	anywhere := pod("mover", script, []vol{{name: "data", claim: "stays"}}, tolerant)
	apply(t, claim("stays", "local-lvm", "64Mi"), claim("dropped", "local-lvm", "64Mi"), onN2,
		pod("dropped", script, []vol{{name: "data", claim: "dropped"}}, "nodeSelector: {kubernetes.io/hostname: n2}"))
	said(t, n2, running(t, "mover"), "written")
	said(t, n2, running(t, "dropped"), "written")
	remove(t, "pod/mover")
	gone(t, "pods/mover")
	apply(t, anywhere)
	again := running(t, "mover")
	if again.Spec.NodeName != "n2" {
		t.Errorf("the pod went to %s", again.Spec.NodeName)
	}
	said(t, n2, again, "found words")

	n2.PowerCut()
	eventually(t, "the node is known to be gone", func() error { return condition("n2", core.ConditionUnknown) })
	if _, err := c.API.Kubectl("", "taint", "node", "n2", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"); err != nil {
		t.Fatal(err)
	}
	gone(t, "pods/mover")
	gone(t, "pods/dropped")
	apply(t, anywhere)
	event(t, "mover", "FailedScheduling", "didn't match PersistentVolume's node affinity")

	if _, err := c.API.Kubectl("", "delete", "node", "n2"); err != nil {
		t.Fatal(err)
	}
	remove(t, "pvc/dropped")
	stillPending(t, "mover")

	if err := n2.PowerOn(); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitNode(n2); err != nil {
		t.Fatal(err)
	}
	back := running(t, "mover")
	said(t, n2, back, "found words")
	eventually(t, "the volume of the deleted claim is gone", func() error {
		_, err := n2.Run(`test $(lvs --noheadings -o lv_name -S 'lv_name!=pool' data | wc -l) = 1`)
		return err
	})
	remove(t, "pod/mover", "pvc/stays")
	nothingIsLeft(t, n2)
	remove(t, "node/n2")
	n2.PowerCut()
}

// tolerant lets a pod be evicted at once.
const tolerant = `tolerations:
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}`

// condition is no error when the node's readiness is this.
func condition(name string, want core.ConditionStatus) error {
	var node core.Node
	if err := c.API.Get("/api/v1/nodes/"+name, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == core.NodeReady && condition.Status != want {
			return fmt.Errorf("ready is %s", condition.Status)
		}
	}
	return nil
}

// stillPending looks for some time that a pod stays where it is.
func stillPending(t *testing.T, name string) {
	t.Helper()
	for range 20 {
		p, err := getPod(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Status.Phase != core.PodPending || p.Spec.NodeName != "" {
			t.Fatalf("pod %s is %s on %q", name, p.Status.Phase, p.Spec.NodeName)
		}
		time.Sleep(250 * time.Millisecond)
	}
}
