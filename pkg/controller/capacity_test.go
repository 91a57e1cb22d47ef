package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestGetCapacity(t *testing.T) {
	params := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	node := func(name string) *csi.Topology {
		return &csi.Topology{Segments: map[string]string{"topology.local-lvm.csi.internal/node": name}}
	}
	type answer struct{ available, most, least int64 }
	const gi = 1 << 30
	for name, tt := range map[string]struct {
		req  *csi.GetCapacityRequest
		want answer
	}{
		"nil":                   {nil, answer{2 * gi, 2 * gi, extent}},
		"default group":         {&csi.GetCapacityRequest{}, answer{2 * gi, 2 * gi, extent}},
		"other group":           {&csi.GetCapacityRequest{Parameters: params("volumeGroup", "data-1")}, answer{gi, gi, extent}},
		"group is not there":    {&csi.GetCapacityRequest{Parameters: params("volumeGroup", "data-2")}, answer{}},
		"raid1":                 {&csi.GetCapacityRequest{Parameters: params("type", "raid1")}, answer{gi - extent, gi - extent, extent}},
		"striped":               {&csi.GetCapacityRequest{Parameters: params("type", "striped")}, answer{2 * gi, 2 * gi, 2 * extent}},
		"raid5 on two disks":    {&csi.GetCapacityRequest{Parameters: params("type", "raid5")}, answer{0, 0, 2 * extent}},
		"thin, overcommit 2":    {&csi.GetCapacityRequest{Parameters: params("thinPool", "pool")}, answer{2*gi - 256*mi, 2*gi - 256*mi, extent}},
		"pool is not there":     {&csi.GetCapacityRequest{Parameters: params("thinPool", "none")}, answer{0, 0, extent}},
		"mount":                 {&csi.GetCapacityRequest{VolumeCapabilities: caps(mount(""))}, answer{2 * gi, 2 * gi, extent}},
		"xfs":                   {&csi.GetCapacityRequest{VolumeCapabilities: caps(mount("xfs"))}, answer{2 * gi, 2 * gi, 300 * mi}},
		"xfs by parameter":      {&csi.GetCapacityRequest{Parameters: params("csi.storage.k8s.io/fstype", "xfs")}, answer{2 * gi, 2 * gi, 300 * mi}},
		"block":                 {&csi.GetCapacityRequest{VolumeCapabilities: caps(block())}, answer{2 * gi, 2 * gi, extent}},
		"multi-node":            {&csi.GetCapacityRequest{VolumeCapabilities: caps(multiNode())}, answer{}},
		"block and mount":       {&csi.GetCapacityRequest{VolumeCapabilities: caps(mount(""), block())}, answer{}},
		"ntfs":                  {&csi.GetCapacityRequest{VolumeCapabilities: caps(mount("ntfs"))}, answer{}},
		"topology here":         {&csi.GetCapacityRequest{AccessibleTopology: node("node-1")}, answer{2 * gi, 2 * gi, extent}},
		"topology there":        {&csi.GetCapacityRequest{AccessibleTopology: node("node-2")}, answer{}},
		"topology not said":     {&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{}}, answer{2 * gi, 2 * gi, extent}},
		"topology of something": {&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "z"}}}, answer{}},
	} {
		c, _ := newController()
		res, err := c.GetCapacity(bg, tt.req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := answer{res.GetAvailableCapacity(), res.GetMaximumVolumeSize().GetValue(), res.GetMinimumVolumeSize().GetValue()}
		if got != tt.want || res.GetMaximumVolumeSize() == nil {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

// What is left but takes no volume is not available.
func TestGetCapacityTooLittleLeft(t *testing.T) {
	c, v := newController()
	v.groups[1].PVs = []volume.PV{{FreeBytes: 299 * mi, Allocatable: true}}
	res, err := c.GetCapacity(bg, &csi.GetCapacityRequest{VolumeCapabilities: caps(mount("xfs"))})
	if err != nil || res.GetAvailableCapacity() != 0 || res.GetMaximumVolumeSize().GetValue() != 0 {
		t.Errorf("got %v, %v", res, err)
	}
}

func TestBadGetCapacity(t *testing.T) {
	for _, tt := range []struct {
		req   *csi.GetCapacityRequest
		field string
	}{
		{&csi.GetCapacityRequest{Parameters: map[string]string{"x": "y"}}, "parameters[x]"},
		{&csi.GetCapacityRequest{Parameters: map[string]string{"volumeGroup": "rootvg"}}, "parameters[volumeGroup]"},
		{&csi.GetCapacityRequest{VolumeCapabilities: caps(nil)}, "volume_capability"},
		{&csi.GetCapacityRequest{VolumeCapabilities: caps(&csi.VolumeCapability{})}, "volume_capability.access_type"},
		{&csi.GetCapacityRequest{VolumeCapabilities: caps(mount("ext4")), Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"}}, "csi.storage.k8s.io/fstype"},
	} {
		c, v := newController()
		_, err := c.GetCapacity(bg, tt.req)
		wantField(t, err, tt.field)
		v.untouched(t)
	}
}

func TestCapabilities(t *testing.T) {
	c, _ := newController()
	res, err := c.ControllerGetCapabilities(bg, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, capability := range res.GetCapabilities() {
		got = append(got, capability.GetRpc().GetType().String())
	}
	wanted := []string{"CREATE_DELETE_VOLUME", "LIST_VOLUMES", "GET_CAPACITY", "CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "GET_SNAPSHOT", "CLONE_VOLUME", "GET_VOLUME", "EXPAND_VOLUME", "MODIFY_VOLUME", "SINGLE_NODE_MULTI_WRITER", "GET_VOLUME_HEALTH", "LIST_VOLUME_HEALTH"}
	if len(got) != len(wanted) {
		t.Fatalf("got %q", got)
	}
	for i := range wanted {
		if got[i] != wanted[i] {
			t.Errorf("got %q, want %q", got, wanted)
		}
	}
}
