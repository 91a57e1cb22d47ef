package controller

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestValidateVolumeCapabilities(t *testing.T) {
	c, v := newController()
	params := map[string]string{"type": "striped", "mkfsOptions": "-m 0"}
	mounted := make1(t, c, v, func(r *csi.CreateVolumeRequest) { r.Name, r.Parameters = "mounted", params })
	raw := make1(t, c, v, func(r *csi.CreateVolumeRequest) { r.Name, r.VolumeCapabilities = "raw", caps(block()) })
	v.lvs = append(v.lvs, volume.LV{Ref: volume.Ref{VG: "vg0", LV: "adopted"}, Type: volume.RAID1, Tags: volume.Tags{Owner: driverName, Kind: volume.Persistent}})

	m, b, adopted := mounted.GetVolumeId(), raw.GetVolumeId(), "node-1/vg0/adopted"
	type request = csi.ValidateVolumeCapabilitiesRequest
	for name, tt := range map[string]struct {
		req     *request
		because string // in the message; "": confirmed
	}{
		"mount":                  {&request{VolumeId: m, VolumeCapabilities: caps(mount(""))}, ""},
		"ext4":                   {&request{VolumeId: m, VolumeCapabilities: caps(mount("ext4"), mount(""))}, ""},
		"all that was said":      {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), VolumeContext: mounted.GetVolumeContext(), Parameters: params}, ""},
		"context of provisioner": {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), VolumeContext: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "x"}}, ""},
		"block":                  {&request{VolumeId: b, VolumeCapabilities: caps(block())}, ""},
		"adopted, mount":         {&request{VolumeId: adopted, VolumeCapabilities: caps(mount("xfs"))}, ""},
		"adopted, block":         {&request{VolumeId: adopted, VolumeCapabilities: caps(block())}, ""},
		"adopted, its type":      {&request{VolumeId: adopted, VolumeCapabilities: caps(block()), Parameters: map[string]string{"type": "raid1"}}, ""},

		"xfs":                  {&request{VolumeId: m, VolumeCapabilities: caps(mount("xfs"))}, "ext4"},
		"xfs by parameter":     {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"}}, "ext4"},
		"mount as block":       {&request{VolumeId: m, VolumeCapabilities: caps(block())}, "no block volume"},
		"block as mount":       {&request{VolumeId: b, VolumeCapabilities: caps(mount(""))}, "block volume"},
		"multi-node":           {&request{VolumeId: m, VolumeCapabilities: caps(multiNode())}, "SINGLE_NODE"},
		"ntfs":                 {&request{VolumeId: m, VolumeCapabilities: caps(mount("ntfs"))}, "ntfs"},
		"block and mount":      {&request{VolumeId: m, VolumeCapabilities: caps(mount(""), block())}, "both"},
		"other context":        {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), VolumeContext: map[string]string{"mkfsOptions": "-m 1"}}, "-m 0"},
		"other type":           {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), Parameters: map[string]string{"type": "linear", "mkfsOptions": "-m 0"}}, "type=striped"},
		"other group":          {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), Parameters: map[string]string{"type": "striped", "volumeGroup": "data-1"}}, "data-1"},
		"other options":        {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), Parameters: map[string]string{"type": "striped"}}, "-m 0"},
		"mutable parameters":   {&request{VolumeId: m, VolumeCapabilities: caps(mount("")), MutableParameters: map[string]string{"iops": "1"}}, "mutable_parameters[iops]"},
		"adopted, other type":  {&request{VolumeId: adopted, VolumeCapabilities: caps(block()), Parameters: map[string]string{"type": "raid5"}}, "raid1"},
		"adopted, with a pool": {&request{VolumeId: adopted, VolumeCapabilities: caps(block()), Parameters: map[string]string{"thinPool": "pool"}}, "raid1"},
	} {
		res, err := c.ValidateVolumeCapabilities(bg, tt.req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if tt.because == "" {
			if got := res.GetConfirmed(); len(got.GetVolumeCapabilities()) != len(tt.req.GetVolumeCapabilities()) || res.GetMessage() != "" {
				t.Errorf("%s: not confirmed: %s", name, res.GetMessage())
			}
		} else if res.GetConfirmed() != nil || !strings.Contains(res.GetMessage(), tt.because) {
			t.Errorf("%s: got %v, want a message with %q", name, res, tt.because)
		}
	}
}

// case B21
func TestBadValidateVolumeCapabilities(t *testing.T) {
	type request = csi.ValidateVolumeCapabilitiesRequest
	const id = "node-1/vg0/pvc-1"
	for _, tt := range []struct {
		req   *request
		field string
	}{
		{nil, "volume_id"},
		{&request{VolumeCapabilities: caps(mount(""))}, "volume_id"},
		{&request{VolumeId: strings.Repeat("x", 10<<10), VolumeCapabilities: caps(mount(""))}, "volume_id"},
		{&request{VolumeId: id}, "volume_capabilities"},
		{&request{VolumeId: id, VolumeCapabilities: caps(nil)}, "volume_capability"},
		{&request{VolumeId: id, VolumeCapabilities: caps(&csi.VolumeCapability{})}, "volume_capability.access_type"},
		{&request{VolumeId: id, VolumeCapabilities: caps(mount("")), Parameters: map[string]string{"x": "y"}}, "parameters[x]"},
		{&request{VolumeId: id, VolumeCapabilities: caps(mount("")), VolumeContext: map[string]string{"x": "y"}}, "volume_context[x]"},
		{&request{VolumeId: id, VolumeCapabilities: caps(mount("ext4")), Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"}}, "csi.storage.k8s.io/fstype"},
		{&request{VolumeId: "node-1/rootvg/root", VolumeCapabilities: caps(mount(""))}, "volume_id"},
	} {
		c, v := newController()
		_, err := c.ValidateVolumeCapabilities(bg, tt.req)
		wantField(t, err, tt.field)
		v.untouched(t)
	}
	c, _ := newController()
	for _, capability := range caps(mount(""), multiNode()) {
		_, err := c.ValidateVolumeCapabilities(bg, &request{VolumeId: id, VolumeCapabilities: caps(capability)})
		want(t, err, volume.ErrNotFound)
	}
}
