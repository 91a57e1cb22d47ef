package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fleet"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
)

// cluster answers kubectl for one of two nodes.
type cluster struct {
	t     *testing.T
	lines []string
	pods  string
	// What the pod b answers.
	silent string
	err    error
}

func (c *cluster) Read(_ context.Context, name string, args ...string) (run.Result, error) {
	line := name + " " + strings.Join(args, " ")
	switch {
	case strings.Contains(line, " get pods"):
		c.lines = append(c.lines, line)
		return run.Result{Stdout: c.pods}, nil
	case strings.HasSuffix(line, "exec -n ns a -c driver -- csi-local-lvm status -o json"):
		return run.Result{Stdout: `{"time":"2026-01-02T03:04:05Z","node":"node-2","driverName":"d","volumeGroups":[{"name":"data","sizeBytes":1024}],"volumes":[]}`}, nil
	case strings.HasSuffix(line, "exec -n ns b -c driver -- csi-local-lvm status -o json"):
		return run.Result{Stdout: c.silent}, c.err
	}
	c.t.Errorf("not expected: %s", line)
	return run.Result{}, errors.New("not expected")
}

func (c *cluster) Write(context.Context, string, ...string) (run.Result, error) {
	return run.Result{}, errors.New("it only looks")
}

func TestPlugin(t *testing.T) {
	const both = `{"items":[{"metadata":{"name":"a","namespace":"ns"},"spec":{"nodeName":"node-2"}},{"metadata":{"name":"b","namespace":"ns"},"spec":{"nodeName":"node-1"}},{"metadata":{"name":"new","namespace":"ns"},"spec":{}}]}`
	ask := func(pods string, args ...string) (string, *cluster, error) {
		c := &cluster{t: t, pods: pods, err: errors.New("container is not running")}
		cmd := pluginCommand(noEnv, c)
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), c, err
	}
	out, c, err := ask(both, "--context=prod")
	if err == nil || !strings.Contains(err.Error(), "node node-1 (pod ns/b): container is not running") || !strings.Contains(out, "node node-2: driver d") || !strings.Contains(out, "data") {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.HasPrefix(c.lines[0], "kubectl --context=prod get pods") {
		t.Error(c.lines)
	}
	out, _, _ = ask(both, "-o", "json")
	var nodes []map[string]any
	if err := json.Unmarshal([]byte(out), &nodes); err != nil || len(nodes) != 2 || nodes[0]["node"] != "node-1" || nodes[0]["error"] == nil || nodes[1]["report"] == nil {
		t.Errorf("%v\n%s", err, out)
	}
	for answer, why := range map[string]string{"null": "no report", "{}": "no report", "panic": "not understood"} {
		nodes, err := fleet.Ask(t.Context(), &cluster{t: t, pods: both, silent: answer}, nil, fleet.Selector)
		if err != nil || len(nodes) != 2 || !strings.Contains(nodes[0].Error, why) || nodes[0].Report != nil {
			t.Errorf("%s: %+v, %v", answer, nodes, err)
		}
	}
	for _, bad := range []struct {
		pods string
		args []string
	}{{`{"items":[]}`, nil}, {"no JSON", nil}, {both, []string{"-o=xml"}}, {both, []string{"extra"}}} {
		if _, _, err := ask(bad.pods, bad.args...); err == nil {
			t.Errorf("%+v passes", bad)
		}
	}
}
