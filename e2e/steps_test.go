package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/cluster"
	"github.com/csi-local-lvm/csi-local-lvm/e2e/wait"
)

// bound is how long anything may take that is expected to happen. It is long, because the node is emulated; a test that
// passes does not wait for it.
const bound = 10 * time.Minute

// eventually fails the test unless the answer becomes no error.
func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	begin := time.Now()
	if err := wait.For(bound, ask); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%6.1f s  %s", time.Since(begin).Seconds(), what)
}

func apply(t *testing.T, objects ...string) {
	t.Helper()
	if err := c.API.Apply(strings.Join(objects, "\n---\n")); err != nil {
		t.Fatal(err)
	}
}

// remove deletes an object and does not wait: "pod/a".
func remove(t *testing.T, objects ...string) {
	t.Helper()
	if _, err := c.API.Kubectl("", append([]string{"delete", "--wait=false"}, objects...)...); err != nil {
		t.Fatal(err)
	}
}

// sh runs a script on the node, outside of all containers.
func sh(t *testing.T, n *cluster.Node, script string) string {
	t.Helper()
	out, err := n.Run(script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

const pods = "/api/v1/namespaces/default/pods/"

func getPod(name string) (core.Pod, error) {
	var p core.Pod
	err := c.API.Get(pods+name, &p)
	return p, err
}

func getClaim(name string) (core.PersistentVolumeClaim, error) {
	var claim core.PersistentVolumeClaim
	err := c.API.Get("/api/v1/namespaces/default/persistentvolumeclaims/"+name, &claim)
	return claim, err
}

// running waits until a pod's containers run, and gives the pod.
func running(t *testing.T, name string) (p core.Pod) {
	t.Helper()
	eventually(t, "pod "+name+" runs", func() (err error) {
		if p, err = getPod(name); err != nil {
			return err
		}
		if p.Status.Phase != core.PodRunning {
			return fmt.Errorf("%s: %s; %s", p.Status.Phase, waitingFor(p), lastEvents(name))
		}
		return nil
	})
	return p
}

func waitingFor(p core.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return s.State.Waiting.Reason + " " + s.State.Waiting.Message
		}
	}
	return p.Status.Message
}

// gone waits until an object is not there: "pods/a" in the default namespace.
func gone(t *testing.T, object string) {
	t.Helper()
	eventually(t, object+" is gone", func() error { return c.API.Gone("/api/v1/namespaces/default/" + object) })
}

// said waits until a container's log has a text. It is read on the node, which needs no kubelet.
func said(t *testing.T, n *cluster.Node, p core.Pod, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("pod %s says %q", p.Name, text), func() error {
		out, err := n.Run(fmt.Sprintf("cat /var/log/pods/default_%s_%s/*/*.log", p.Name, p.UID))
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
}

func lastEvents(object string) string {
	var list core.EventList
	if err := c.API.Get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+object, &list); err != nil {
		return err.Error()
	}
	var all []string
	for _, e := range list.Items {
		all = append(all, e.Reason+": "+e.Message)
	}
	return strings.Join(all, " | ")
}

// event waits until there is one about an object that has all of the texts.
func event(t *testing.T, object string, texts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("an event of %s with %q", object, texts), func() error {
		all := lastEvents(object)
		for _, text := range texts {
			if !strings.Contains(all, text) {
				return fmt.Errorf("there are: %s", all)
			}
		}
		return nil
	})
}

// leftovers is a script that prints everything on a node that belongs to a volume: logical volumes, mounts, records of
// the driver, folders of kubelet.
const leftovers = `lvs --noheadings -o lv_name -S 'lv_name!=pool' data | sed 's/^ */lv /'
grep -E ' (/dev/mapper/data-|/dev/dm-)' /proc/self/mountinfo | cut -d' ' -f5 | sed 's/^/mount /'
find /var/lib/csi-local-lvm/journal -type f ! -name '.*' 2>/dev/null | sed 's/^/record /'
find /var/lib/kubelet/pods -maxdepth 4 -path '*kubernetes.io~csi/*' 2>/dev/null | sed 's/^/folder /'
find /var/lib/kubelet/plugins/kubernetes.io/csi -name 'globalmount' 2>/dev/null | sed 's/^/staging /'`

// nothingIsLeft waits until a node has nothing of any volume.
func nothingIsLeft(t *testing.T, n *cluster.Node) {
	t.Helper()
	eventually(t, "nothing is left on "+n.Name, func() error {
		out, err := n.Run(leftovers)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("there is\n%s", out)
		}
		return err
	})
}

// lvs gives the names of the volumes on a node.
func lvs(t *testing.T, n *cluster.Node) []string {
	t.Helper()
	return strings.Fields(sh(t, n, `lvs --noheadings -o lv_name -S 'lv_name!=pool' data`))
}
