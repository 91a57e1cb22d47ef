// Package fleet asks the drivers on all nodes of a cluster for their reports, with kubectl: so it needs what kubectl needs, and no more.
package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
)

// Selector finds the pods of the driver's DaemonSet, as the chart labels them.
const Selector = "app.kubernetes.io/name=csi-local-lvm,app.kubernetes.io/component=node"

// Node is what one node tells.
type Node struct {
	Name   string         `json:"node"`
	Pod    string         `json:"pod"` // namespace/name
	Report *status.Report `json:"report,omitempty"`
	Error  string         `json:"error,omitempty"` // why there is no report
}

const (
	atOnce = 8
	// bound is how long one node may take; a report that meets storage that hangs takes some times 8 s.
	bound = time.Minute
)

// Ask asks all nodes, some at a time, and gives them by name. kubectl are arguments for each kubectl, such as --context. That a node does not
// answer is told with the node; the error is that the pods could not be found.
func Ask(ctx context.Context, r run.Runner, kubectl []string, selector string) ([]Node, error) {
	res, err := r.Read(ctx, "kubectl", append(slices.Clone(kubectl), "get", "pods", "--all-namespaces", "-l", selector, "-o", "json")...)
	if err != nil {
		return nil, fmt.Errorf("find the driver's pods: %w", err)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name, Namespace string }
			Spec     struct{ NodeName string }
		}
	}
	if err := json.Unmarshal([]byte(res.Stdout), &list); err != nil {
		return nil, fmt.Errorf("find the driver's pods: %w", err)
	}
	var nodes []Node
	for _, p := range list.Items {
		if p.Spec.NodeName != "" { // else it is nowhere yet
			nodes = append(nodes, Node{Name: p.Spec.NodeName, Pod: p.Metadata.Namespace + "/" + p.Metadata.Name})
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no pod has the labels %s; is the driver installed, and may you see its namespace?", selector)
	}
	ask.EachOf(nodes, atOnce, func(n *Node) {
		var err error
		if n.Report, err = report(ctx, r, kubectl, n.Pod); err != nil {
			n.Error = err.Error()
		}
	})
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Pod, b.Pod)) })
	return nodes, nil
}

func report(ctx context.Context, r run.Runner, kubectl []string, pod string) (*status.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	namespace, name, _ := strings.Cut(pod, "/")
	res, err := r.Read(ctx, "kubectl", append(slices.Clone(kubectl), "exec", "-n", namespace, name, "-c", "driver", "--", "csi-local-lvm", "status", "-o", "json")...)
	if err != nil {
		return nil, err
	}
	var out status.Report
	if err := json.Unmarshal([]byte(res.Stdout), &out); err != nil {
		return nil, fmt.Errorf("its answer is not understood: %w", err)
	}
	if out.Time.IsZero() {
		return nil, errors.New("its answer is no report")
	}
	return &out, nil
}
