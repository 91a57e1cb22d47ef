package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// fill makes five volumes, in no order, in two groups, and two that are no persistent ones.
func fill(t *testing.T, c *Controller, v *volumes) (ids []string) {
	t.Helper()
	for i, vg := range []string{"vg0", "data-1", "vg0", "data-1", "vg0"} {
		ids = append(ids, make1(t, c, v, func(r *csi.CreateVolumeRequest) {
			r.Name, r.Parameters = fmt.Sprintf("pvc-%d", 9-i), map[string]string{"volumeGroup": vg}
		}).GetVolumeId())
	}
	v.lvs = append(v.lvs,
		volume.LV{Ref: volume.Ref{VG: "vg0", LV: "csi-1"}, Tags: volume.Tags{Kind: volume.Inline}},
		volume.LV{Ref: volume.Ref{VG: "vg0", LV: "s-1"}, Tags: volume.Tags{Kind: volume.Snapshot}})
	slices.Sort(ids)
	return ids
}

func list(t *testing.T, c *Controller, most int32, token string) (ids []string, next string) {
	t.Helper()
	res, err := c.ListVolumes(bg, &csi.ListVolumesRequest{MaxEntries: most, StartingToken: token})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.GetEntries() {
		ids = append(ids, e.GetVolume().GetVolumeId())
	}
	return ids, res.GetNextToken()
}

func TestListVolumes(t *testing.T) {
	c, v := newController()
	if ids, next := list(t, c, 0, ""); len(ids) != 0 || next != "" {
		t.Errorf("nothing: %q, token %q", ids, next)
	}
	wanted := fill(t, c, v)
	for most := range int32(7) {
		var got []string
		token, pages := "", 0
		for {
			ids, next := list(t, c, most, token)
			if most != 0 && len(ids) > int(most) {
				t.Fatalf("at most %d: got %d", most, len(ids))
			}
			got, pages = append(got, ids...), pages+1
			if next == "" {
				break
			}
			token = next
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("pages of %d: got %q, want %q", most, got, wanted)
		}
		if most != 0 && pages != (len(wanted)+int(most)-1)/int(most) {
			t.Errorf("pages of %d: %d of them", most, pages)
		}
	}
}

// A token holds although the volume it names, or one of the next page, is deleted, or a new one comes.
func TestListVolumesWhileTheyChange(t *testing.T) {
	c, v := newController()
	ids := fill(t, c, v)
	first, token := list(t, c, 2, "")
	for _, id := range []string{ids[1], ids[2]} {
		if _, err := c.DeleteVolume(bg, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Fatal(err)
		}
	}
	rest, next := list(t, c, 0, token)
	if !slices.Equal(first, ids[:2]) || !slices.Equal(rest, ids[3:]) || next != "" {
		t.Errorf("got %q, then %q", first, rest)
	}
	if after, next := list(t, c, 1, ids[4]); len(after) != 0 || next != "" {
		t.Errorf("after the last: %q, token %q", after, next)
	}
}

func TestBadListVolumes(t *testing.T) {
	c, v := newController()
	_, err := c.ListVolumes(bg, &csi.ListVolumesRequest{MaxEntries: -1})
	wantField(t, err, "max_entries")
	for _, token := range []string{"invalid-token", "5", "node-2/vg0/pvc-1", "node-1/vg0/", strings.Repeat("x", 10<<10), "\xff", "a\x00"} {
		_, err := c.ListVolumes(bg, &csi.ListVolumesRequest{StartingToken: token})
		want(t, err, volume.ErrToken)
		if len(err.Error()) > 1000 || strings.Contains(err.Error(), "\xff") {
			t.Errorf("message %q", err)
		}
	}
	v.untouched(t)
}

func TestControllerGetVolumeKinds(t *testing.T) {
	c, v := newController()
	fill(t, c, v)
	for _, id := range []string{"node-1/vg0/csi-1", "node-1/vg0/s-1", "node-1/vg0/none"} {
		_, err := c.ControllerGetVolume(bg, &csi.ControllerGetVolumeRequest{VolumeId: id})
		want(t, err, volume.ErrNotFound)
	}
	_, err := c.ControllerGetVolume(bg, nil)
	wantField(t, err, "volume_id")
}
