package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestPlugin(t *testing.T) {
	for _, c := range []struct {
		n    *node
		want []csi.PluginCapability_Service_Type
	}{
		{&node{}, []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE}},
		{nil, []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}},
	} {
		d := serve(t, c.n, nil)
		info, err := d.GetPluginInfo(t.Context(), nil)
		wantCode(t, err, codes.OK)
		if info.GetName() != "d.example" || info.GetVendorVersion() != "v1" {
			t.Error(info)
		}
		caps, err := d.GetPluginCapabilities(t.Context(), nil)
		wantCode(t, err, codes.OK)
		var got []csi.PluginCapability_Service_Type
		for _, p := range caps.GetCapabilities() {
			if e := p.GetVolumeExpansion(); e != nil {
				if e.GetType() != csi.PluginCapability_VolumeExpansion_ONLINE {
					t.Errorf("volumes are expanded %s", e.GetType())
				}
				continue
			}
			got = append(got, p.GetService().GetType())
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}

func TestProbeTellsTheTruth(t *testing.T) {
	var now atomic.Pointer[error]
	d := serve(t, nil, func(context.Context) error { return *now.Load() })
	for _, c := range []struct {
		err   error
		code  codes.Code
		ready bool
	}{
		{nil, codes.OK, true},
		{errors.New("no volume group"), codes.OK, false},
		{fmt.Errorf("no lvm: %w", volume.ErrPrecondition), codes.FailedPrecondition, false},
		{nil, codes.OK, true},
	} {
		now.Store(&c.err)
		reply, err := d.Probe(t.Context(), nil)
		wantCode(t, err, c.code)
		if got := reply.GetReady().GetValue(); got != c.ready {
			t.Errorf("%v: ready %v", c.err, got)
		}
	}
}

func TestProbeCatchesPanics(t *testing.T) {
	d := serve(t, nil, func(context.Context) error { panic("on purpose") })
	reply, err := d.Probe(t.Context(), nil)
	wantCode(t, err, codes.OK)
	if reply.GetReady().GetValue() {
		t.Error("ready")
	}
}

func TestProbeNeverHangs(t *testing.T) {
	hang := make(chan struct{})
	var checks atomic.Int32
	i := NewIdentity("d", "v", true, func(context.Context) error {
		checks.Add(1)
		<-hang // and does not listen to its context
		return nil
	})
	i.health.bound = 50 * time.Millisecond
	ctx, log := logged(t, 0)
	for range 5 {
		reply, err := i.Probe(ctx, nil)
		if err != nil || reply.GetReady().GetValue() {
			t.Errorf("%v %v", reply, err)
		}
	}
	if n := checks.Load(); n != 1 {
		t.Errorf("%d checks run side by side", n)
	}
	close(hang)
	eventually(t, "ready again", func() bool {
		reply, err := i.Probe(ctx, nil)
		return err == nil && reply.GetReady().GetValue()
	})
	if out := log.String(); strings.Count(out, "driver is not ready") != 1 || strings.Count(out, "driver is ready again") != 1 {
		t.Errorf("not logged once each:\n%s", out)
	}
}

// The answer must come before the caller has gone: livenessprobe waits for one second.
func TestProbeAnswersWithinTheCallersDeadline(t *testing.T) {
	hang := make(chan struct{})
	d := serve(t, nil, func(context.Context) error { <-hang; return nil })
	defer close(hang)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	reply, err := d.Probe(ctx, nil)
	wantCode(t, err, codes.OK)
	if reply.GetReady().GetValue() {
		t.Error("ready")
	}
}
