package e2e

import (
	"errors"
	"fmt"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/cluster"
)

// Three replicas with a volume each. A replica that was scaled away finds its volume when it comes back. A claim that is
// deleted under its pod stays until the pod has gone.
func TestStatefulSet(t *testing.T) {
	scenario(t)
	apply(t, fmt.Sprintf(`apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  serviceName: db
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      containers:
        - name: c
          image: %s
          imagePullPolicy: Never
          command: [sh, -c, "echo found $(cat /data/name); echo $HOSTNAME > /data/name; sync; echo written%s"]
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {storageClassName: local-lvm, accessModes: [ReadWriteOncePod], resources: {requests: {storage: 32Mi}}}
`, cluster.WorkImage, stays))
	names := []string{"db-0", "db-1", "db-2"}
	for _, name := range names {
		said(t, n1, running(t, name), "written")
	}
	scale(t, 1)
	gone(t, "pods/db-1")
	gone(t, "pods/db-2")
	if got := lvs(t, n1); len(got) != 3 {
		t.Errorf("scaled down, there are the logical volumes %v", got)
	}
	scale(t, 3)
	for _, name := range names[1:] {
		said(t, n1, running(t, name), "found "+name)
	}

	remove(t, "pvc/data-db-0")
	p := running(t, "db-0")
	out, err := c.API.Kubectl("", "get", "pvc", "data-db-0", "-o", "jsonpath={.metadata.deletionTimestamp}")
	if err != nil || out == "" {
		t.Errorf("the claim in use is gone: %v", errors.Join(err, errorOf(out)))
	}
	if p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("its pod was restarted")
	}
	remove(t, "statefulset/db")
	gone(t, "pods/db-0")
	gone(t, "persistentvolumeclaims/data-db-0")
	remove(t, "pvc/data-db-1", "pvc/data-db-2")
}

func scale(t *testing.T, replicas int) {
	t.Helper()
	if _, err := c.API.Kubectl("", "scale", "statefulset/db", fmt.Sprintf("--replicas=%d", replicas)); err != nil {
		t.Fatal(err)
	}
}
