package e2e

import (
	"testing"
)

// A claim waits for its pod, and gets a volume where the pod goes. The data outlives the pod, the volume not the claim.
// Four kinds of volumes in one pod: thick, thin, xfs and block.
func TestPersistentVolumes(t *testing.T) {
	scenario(t)
	apply(t,
		claim("thick", "local-lvm", "64Mi"),
		claim("thin", "local-lvm-thin", "64Mi"),
		claim("xfs", "local-lvm-xfs", "320Mi"),
		claim("block", "local-lvm", "16Mi", "volumeMode: Block"))
	event(t, "thick", "WaitForFirstConsumer")

	const script = `set -e
		for d in /thick /thin /xfs; do test ! -e $d/data || echo $d has $(cat $d/data); echo words > $d/data; done
		echo /dev/block has $(dd if=/dev/block bs=5 count=1 2>/dev/null)
		echo bytes | dd of=/dev/block conv=fsync 2>/dev/null
		sync; echo written` + stays
	user := pod("user", script, []vol{
		{name: "thick", claim: "thick"}, {name: "thin", claim: "thin"}, {name: "xfs", claim: "xfs"}, {name: "block", claim: "block", block: true}})
	apply(t, user)
	said(t, n1, running(t, "user"), "written")

	remove(t, "pod/user")
	gone(t, "pods/user")
	apply(t, user)
	again := running(t, "user")
	for _, has := range []string{"/thick has words", "/thin has words", "/xfs has words", "/dev/block has bytes"} {
		said(t, n1, again, has)
	}
	if got := lvs(t, n1); len(got) != 4 {
		t.Errorf("there are the logical volumes %v", got)
	}

	remove(t, "pod/user", "pvc/thick", "pvc/thin", "pvc/xfs", "pvc/block")
	gone(t, "pods/user")
	gone(t, "persistentvolumeclaims/thick")
	nothingIsLeft(t, n1)
}

// A claim that no node has room for is not sent to one; the pod's event says why.
func TestTooLarge(t *testing.T) {
	scenario(t)
	apply(t, claim("large", "local-lvm", "500Gi"), pod("large", "echo never"+stays, []vol{{name: "large", claim: "large"}}))
	event(t, "large", "FailedScheduling", "did not have enough free storage")
	remove(t, "pod/large", "pvc/large")
	gone(t, "persistentvolumeclaims/large")
}
