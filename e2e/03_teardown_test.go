package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/cluster"
)

// The story that the driver is made around: the kubelet is restarted while a pod with an inline volume ends, the pod is
// gone from the API meanwhile, and something in the pod still holds the volume when the new kubelet unpublishes it.
// Nobody asks again. Logical volume, mount and folder must go when the holder does.
func TestKubeletRestartedInTermination(t *testing.T) {
	scenario(t)
	abandoned(t, "ending")
	// The container is ended by the new kubelet, in its own time; the volume is unpublished in between.
	nothingIsLeft(t, n1)
}

// As above, but what holds the volume outlives the container for as long as the test wants.
func TestHeldLonger(t *testing.T) {
	scenario(t)
	p := abandoned(t, "held")
	p.isHeld(t)
	p.letGo(t)
	nothingIsLeft(t, n1)
}

// The driver is killed at the same time.
func TestHeldLongerAndDriverKilled(t *testing.T) {
	scenario(t)
	const killDriver = "pkill -KILL -x csi-local-lvm"
	p := abandoned(t, "both", killDriver)
	p.isHeld(t)
	sh(t, n1, killDriver) // and once more, with the volume in teardown
	p.letGo(t)
	nothingIsLeft(t, n1)
}

// The kubelet calls once and never runs again. The driver finishes alone.
func TestKubeletKilledForGood(t *testing.T) {
	scenario(t)
	p := abandoned(t, "alone")
	p.isHeld(t)
	kill(t, n1, "kubelet")
	p.isTried(t)
	p.letGo(t)
	// The kubelet may have ended the container before it was killed. If not, nobody else does.
	sh(t, n1, fmt.Sprintf("ctr -n k8s.io tasks kill --signal KILL %[1]s || ! ctr -n k8s.io tasks ls | grep %[1]s", p.container))
	eventually(t, "logical volume, mount, folder and record are gone without a kubelet", func() error {
		out, err := n1.Run(leftovers + `; find /var/lib/kubelet/pods -path '*kubernetes.io~csi/*/mount' | sed 's/^/target /'`)
		for _, line := range strings.Split(out, "\n") {
			// The folder above the target is the kubelet's own.
			if err == nil && line != "" && !strings.HasPrefix(line, "folder ") {
				err = fmt.Errorf("there is\n%s", out)
			}
		}
		return err
	})
	start(t, n1, "kubelet")
	nothingIsLeft(t, n1)
}

// dying is a pod in termination, whose container does not mind its SIGTERM and whose volume a process holds that is in
// the container's mount namespace only: no kubelet ends it.
type dying struct {
	container string // its id
	holder    string // its process id
}

// ending makes one.
func ending(t *testing.T, name string) *dying {
	t.Helper()
	apply(t, strings.Replace(pod(name, "echo words > /scratch/data && sync && echo written"+stays, []vol{{name: "scratch", size: "64Mi"}}),
		"terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 600", 1))
	p := running(t, name)
	said(t, n1, p, "written")
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	d := &dying{container: id}
	if name != "ending" {
		d.holder = sh(t, n1, fmt.Sprintf(`pid=$(ctr -n k8s.io tasks ls | awk '$1 == "%s" { print $2 }')
			setsid nsenter -t $pid -m /bin/sh -c 'cd /scratch && exec /bin/sleep 1000000' </dev/null >/dev/null 2>&1 & echo $!`, id))
		d.holds(t)
	}
	remove(t, "pod/"+name)
	event(t, name, "Killing")
	return d
}

// abandoned makes one, whose kubelet is killed and started again when the pod is no more in the API. What else is to be
// done on the node meanwhile are scripts.
func abandoned(t *testing.T, name string, meanwhile ...string) *dying {
	t.Helper()
	d := ending(t, name)
	kill(t, n1, "kubelet")
	for _, script := range meanwhile {
		sh(t, n1, script)
	}
	forget(t, name)
	start(t, n1, "kubelet")
	return d
}

// isHeld waits until the driver has been called and has refused, and looks that it names the holder, and that the
// holder's data is there.
func (d *dying) isHeld(t *testing.T) {
	t.Helper()
	eventually(t, "the driver says that the volume is held", func() error {
		p, err := pending(n1)
		if err == nil && (!p.Busy || !strings.Contains(strings.Join(p.Holders, ", "), "sleep")) {
			err = fmt.Errorf("it says %+v", p)
		}
		return err
	})
	d.holds(t)
	if got := lvs(t, n1); len(got) != 1 {
		t.Errorf("there are the logical volumes %v", got)
	}
}

// isTried waits until the driver has tried twice more.
func (d *dying) isTried(t *testing.T) {
	t.Helper()
	before, err := pending(n1)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the driver tries again by itself", func() error {
		p, err := pending(n1)
		if err == nil && p.Tries < before.Tries+2 {
			err = fmt.Errorf("%d tries, there were %d", p.Tries, before.Tries)
		}
		return err
	})
}

// unfinished is what the driver's status tells of a teardown.
type unfinished struct {
	Holders []string
	Tries   int
	Busy    bool
}

// pending asks for the only one there is. The command runs where "kubectl exec" would run it.
func pending(n *cluster.Node) (unfinished, error) {
	out, err := n.Run("nsenter --mount --target $(pgrep -o -x csi-local-lvm) /usr/local/bin/csi-local-lvm status --node-name n1 -o json")
	if err != nil {
		return unfinished{}, err
	}
	var report struct{ Pending []unfinished }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return unfinished{}, fmt.Errorf("%w: %s", err, out)
	}
	if len(report.Pending) != 1 {
		return unfinished{}, fmt.Errorf("%d teardowns are pending", len(report.Pending))
	}
	return report.Pending[0], nil
}

// holds waits until the holder is in its folder, and looks that its data is there.
func (d *dying) holds(t *testing.T) {
	t.Helper()
	eventually(t, "the holder reads its data", func() error {
		got, err := n1.Run("cat /proc/" + d.holder + "/cwd/data")
		if err == nil && strings.TrimSpace(got) != "words" {
			err = fmt.Errorf("it reads %q", got)
		}
		return err
	})
}

func (d *dying) letGo(t *testing.T) { t.Helper(); sh(t, n1, "kill -KILL "+d.holder) }

// forget takes a pod out of the API, whatever its node does.
func forget(t *testing.T, name string) {
	t.Helper()
	if _, err := c.API.Kubectl("", "delete", "pod", name, "--grace-period=0", "--force"); err != nil {
		t.Fatal(err)
	}
	gone(t, "pods/"+name)
}

func kill(t *testing.T, n *cluster.Node, service string) {
	t.Helper()
	if err := n.Kill(service); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, n *cluster.Node, service string) {
	t.Helper()
	if err := n.Start(service); err != nil {
		t.Fatal(err)
	}
}
