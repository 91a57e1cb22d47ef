package e2e

import (
	"fmt"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

// Forty pods with inline volumes at once on one node: all run, all go, and nothing is left.
func TestFortyInlinePods(t *testing.T) {
	scenario(t)
	const many = 40
	var objects []string
	for i := range many {
		objects = append(objects, pod(fmt.Sprintf("many-%d", i), "echo words > /scratch/data"+stays, []vol{{name: "scratch", size: "16Mi"}}, "hostNetwork: true"))
	}
	begin := time.Now()
	apply(t, objects...)
	eventually(t, "all run", func() error { return count(core.PodRunning, many) })
	t.Logf("%d pods run after %s", many, time.Since(begin).Round(time.Second))
	begin = time.Now()
	if _, err := c.API.Kubectl("", "delete", "pods", "--all", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "none is there", func() error { return count("", 0) })
	nothingIsLeft(t, n1)
	t.Logf("nothing is left after %s", time.Since(begin).Round(time.Second))
}

// count is no error when there are so many pods in a phase, or at all.
func count(phase core.PodPhase, want int) error {
	var list core.PodList
	if err := c.API.Get(pods, &list); err != nil {
		return err
	}
	n := 0
	for _, p := range list.Items {
		if phase == "" || p.Status.Phase == phase {
			n++
		}
	}
	if n != want {
		return fmt.Errorf("%d of %d", n, want)
	}
	return nil
}
