package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// illness is the health of all volumes of a machine in memory: all are degraded.
type illness struct{ *volumes }

var degraded = []health.Condition{{Status: health.Degraded, Reason: health.RaidDegraded, Message: "m"}}

func (i illness) Volume(_ context.Context, r volume.Ref, _ ...string) ([]health.Condition, error) {
	_, err := i.Lookup(bg, r)
	return degraded, err
}

func (i illness) List(_ context.Context, k volume.Kind) (out []health.Ill, err error) {
	for _, lv := range i.lvs {
		if lv.Tags.Kind == k {
			out = append(out, health.Ill{LV: lv, Conditions: degraded})
		}
	}
	return out, i.called("health")
}

func TestListVolumeHealth(t *testing.T) {
	c, v := newController()
	wanted := fill(t, c, v)
	for most := range int32(7) {
		var got []string
		for token := ""; ; {
			res, err := c.ControllerListVolumeHealth(bg, &csi.ControllerListVolumeHealthRequest{MaxEntries: most, StartingToken: token})
			if err != nil || most != 0 && len(res.GetEntries()) > int(most) {
				t.Fatalf("at most %d: got %v, %v", most, res, err)
			}
			for _, e := range res.GetEntries() {
				got = append(got, e.GetVolumeId())
				if s := e.GetHealthStatuses(); len(s) != 1 || s[0].GetStatus() != csi.VolumeHealthErrorType_DEGRADED || s[0].GetReason() != "RaidDegraded" || s[0].GetMessage() != "m" {
					t.Errorf("got %v", e)
				}
			}
			if token = res.GetNextToken(); token == "" {
				break
			}
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("pages of %d: got %q, want %q", most, got, wanted)
		}
	}
	v.err = fmt.Errorf("broken")
	if _, err := c.ControllerListVolumeHealth(bg, nil); err == nil {
		t.Error("an error was swallowed")
	}
}

func TestBadVolumeHealth(t *testing.T) {
	c, v := newController()
	_, err := c.ControllerListVolumeHealth(bg, &csi.ControllerListVolumeHealthRequest{MaxEntries: -1})
	wantField(t, err, "max_entries")
	_, err = c.ControllerListVolumeHealth(bg, &csi.ControllerListVolumeHealthRequest{StartingToken: "node-2/vg0/pvc-1"})
	want(t, err, volume.ErrToken)
	_, err = c.ControllerGetVolumeHealth(bg, nil)
	wantField(t, err, "volume_id")
	v.untouched(t)
	_, err = c.ControllerGetVolumeHealth(bg, &csi.ControllerGetVolumeHealthRequest{VolumeId: "node-1/vg0/none"})
	want(t, err, volume.ErrNotFound)
}
