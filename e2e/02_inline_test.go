package e2e

import "testing"

// An inline volume comes and goes with its pod.
func TestInlineVolume(t *testing.T) {
	scenario(t)
	apply(t, pod("inline", "echo words > /scratch/data && sync && echo written"+stays, []vol{{name: "scratch", size: "64Mi"}}))
	said(t, n1, running(t, "inline"), "written")
	if got := lvs(t, n1); len(got) != 1 {
		t.Errorf("there are the logical volumes %v", got)
	}
	remove(t, "pod/inline")
	gone(t, "pods/inline")
	nothingIsLeft(t, n1)
}
