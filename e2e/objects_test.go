package e2e

import (
	"fmt"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/cluster"
)

// claim is a PersistentVolumeClaim. more is further YAML of its spec.
func claim(name, class, size string, more ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  storageClassName: %s
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}%s
`, name, class, size, indented(2, more))
}

// vol is a volume of a pod: of a claim, or inline.
type vol struct {
	name  string
	claim string // the claim's name
	block bool   // a device /dev/NAME, else a folder /NAME
	size  string // inline
}

// pod is a pod with one container that runs a script of busybox's sh. more is further YAML of its spec.
func pod(name, script string, volumes []vol, more ...string) string {
	var mounts, devices, sources strings.Builder
	for _, v := range volumes {
		if v.block {
			fmt.Fprintf(&devices, "\n        - {name: %s, devicePath: /dev/%s}", v.name, v.name)
		} else {
			fmt.Fprintf(&mounts, "\n        - {name: %s, mountPath: /%s}", v.name, v.name)
		}
		if v.claim != "" {
			fmt.Fprintf(&sources, "\n    - {name: %s, persistentVolumeClaim: {claimName: %s}}", v.name, v.claim)
		} else {
			fmt.Fprintf(&sources, "\n    - {name: %s, csi: {driver: local-lvm.csi.internal, volumeAttributes: {size: %s}}}", v.name, v.size)
		}
	}
	lists := ""
	if mounts.Len() > 0 {
		lists += "\n      volumeMounts:" + mounts.String()
	}
	if devices.Len() > 0 {
		lists += "\n      volumeDevices:" + devices.String()
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1%s
  containers:
    - name: c
      image: %s
      imagePullPolicy: Never
      command: [sh, -c, %q]%s
  volumes:%s
`, name, name, indented(2, more), cluster.WorkImage, script, lists, sources.String())
}

// indented puts lines below a key.
func indented(by int, lines []string) string {
	out := ""
	for _, l := range lines {
		for _, line := range strings.Split(strings.TrimSpace(l), "\n") {
			out += "\n" + strings.Repeat(" ", by) + line
		}
	}
	return out
}

// stays keeps a pod running until it is told to end.
const stays = "; exec sleep 1000000"
