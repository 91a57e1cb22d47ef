package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
)

// Cluster is what Kubernetes has of the driver's. Only what rules look at is kept: so there is no secret in it.
type Cluster struct {
	PVs         []PV         `json:"persistentVolumes"`
	Nodes       []string     `json:"nodes"`
	Pods        []Pod        `json:"pods"` // of this node
	Attachments []Attachment `json:"volumeAttachments"`
	Contents    []Content    `json:"volumeSnapshotContents"`
}

// PV is a PersistentVolume of the driver.
type PV struct {
	Name   string `json:"name"`
	Handle string `json:"volumeHandle"`
	Claim  string `json:"claim,omitempty"` // namespace/name
	Phase  string `json:"phase"`
}

// Pod is a pod on this node.
type Pod struct {
	UID   string `json:"uid"`
	Name  string `json:"name"` // namespace/name
	Phase string `json:"phase"`
}

// Attachment is a VolumeAttachment of the driver.
type Attachment struct {
	Name     string     `json:"name"`
	Node     string     `json:"node"`
	PV       string     `json:"persistentVolume"`
	Deleting *time.Time `json:"deleting,omitempty"`
	Error    string     `json:"error,omitempty"`
}

// Content is a VolumeSnapshotContent of the driver.
type Content struct {
	Name   string `json:"name"`
	Handle string `json:"snapshotHandle"`
}

// object has the fields of all kinds that are looked at.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string     `json:"name"`
		Namespace string     `json:"namespace"`
		UID       string     `json:"uid"`
		Deletion  *time.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		CSI struct {
			Driver string `json:"driver"`
			Handle string `json:"volumeHandle"`
		} `json:"csi"`
		ClaimRef struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"claimRef"`
		Attacher string `json:"attacher"`
		NodeName string `json:"nodeName"`
		Driver   string `json:"driver"`
		Source   struct {
			PV       string `json:"persistentVolumeName"`
			Snapshot string `json:"snapshotHandle"`
		} `json:"source"`
	} `json:"spec"`
	Status struct {
		Phase    string `json:"phase"`
		Snapshot string `json:"snapshotHandle"`
		Attach   struct {
			Message string `json:"message"`
		} `json:"attachError"`
		Detach struct {
			Message string `json:"message"`
		} `json:"detachError"`
	} `json:"status"`
}

// AskCluster asks Kubernetes, with kubectl: it knows every way to log in that a kubeconfig can name, and the driver's binary need not hold a client or touch a
// credential. Nothing is changed. An empty kubeconfig is that of kubectl.
func AskCluster(ctx context.Context, r run.Runner, kubeconfig, driver, node string) (*Cluster, error) {
	get := func(args ...string) ([]object, error) {
		if kubeconfig != "" {
			args = append([]string{"--kubeconfig=" + kubeconfig}, args...)
		}
		res, err := r.Read(ctx, "kubectl", append(args, "-o", "json", "--request-timeout=10s")...)
		if err != nil {
			return nil, fmt.Errorf("ask Kubernetes: %w", err)
		}
		var list struct {
			Items []object `json:"items"`
		}
		if err := json.Unmarshal([]byte(res.Stdout), &list); err != nil {
			return nil, fmt.Errorf("ask Kubernetes: %w", err)
		}
		return list.Items, nil
	}
	all, err := get("get", "persistentvolumes,nodes,volumeattachments")
	if err != nil {
		return nil, err
	}
	pods, err := get("get", "pods", "--all-namespaces", "--field-selector=spec.nodeName="+node)
	if err != nil {
		return nil, err
	}
	contents, err := get("get", "volumesnapshotcontents")
	if err != nil && !strings.Contains(err.Error(), "doesn't have a resource type") { // a cluster without snapshots
		return nil, err
	}
	c := &Cluster{}
	for _, o := range append(append(all, pods...), contents...) {
		c.add(o, driver)
	}
	return c, nil
}

func (c *Cluster) add(o object, driver string) {
	switch {
	case o.Kind == "Node":
		c.Nodes = append(c.Nodes, o.Metadata.Name)
	case o.Kind == "Pod":
		c.Pods = append(c.Pods, Pod{o.Metadata.UID, o.Metadata.Namespace + "/" + o.Metadata.Name, o.Status.Phase})
	case o.Kind == "PersistentVolume" && o.Spec.CSI.Driver == driver:
		pv := PV{Name: o.Metadata.Name, Handle: o.Spec.CSI.Handle, Phase: o.Status.Phase}
		if o.Spec.ClaimRef.Name != "" {
			pv.Claim = o.Spec.ClaimRef.Namespace + "/" + o.Spec.ClaimRef.Name
		}
		c.PVs = append(c.PVs, pv)
	case o.Kind == "VolumeAttachment" && o.Spec.Attacher == driver:
		c.Attachments = append(c.Attachments, Attachment{
			Name: o.Metadata.Name, Node: o.Spec.NodeName, PV: o.Spec.Source.PV, Deleting: o.Metadata.Deletion, Error: o.Status.Attach.Message + o.Status.Detach.Message,
		})
	case o.Kind == "VolumeSnapshotContent" && o.Spec.Driver == driver:
		handle := o.Status.Snapshot
		if handle == "" {
			handle = o.Spec.Source.Snapshot
		}
		if handle != "" { // else it is not made yet
			c.Contents = append(c.Contents, Content{o.Metadata.Name, handle})
		}
	}
}
