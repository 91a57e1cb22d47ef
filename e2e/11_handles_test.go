package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Two PersistentVolumes with one volumeHandle are one volume for the kubelet, and a pod with both never starts. The
// policy of the chart refuses the second, and says what to do instead.
func TestOneHandleTwice(t *testing.T) {
	scenario(t)
	volume := func(name string) string {
		return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: 64Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: local-lvm.csi.internal, volumeHandle: n1/data/by-hand}
`, name)
	}
	apply(t, volume("first"))
	t.Cleanup(func() {
		if _, err := c.API.Kubectl("", "delete", "pv/first", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	// The API server knows the first a moment after it was made.
	eventually(t, "the second is refused, with the remedy", func() error {
		_, err := c.API.Kubectl(volume("second"), "apply", "--dry-run=server", "-f", "-")
		for _, part := range []string{"PersistentVolume first has the volumeHandle n1/data/by-hand already", "Use the claim of first instead"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				return fmt.Errorf("%q is not in %w", part, cmp.Or(err, errors.New("an answer of yes")))
			}
		}
		return nil
	})
	remove(t, "pv/first")
	eventually(t, "pv first is gone", func() error { return c.API.Gone("/api/v1/persistentvolumes/first") })
}
