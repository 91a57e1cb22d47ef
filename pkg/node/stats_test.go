package node

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// vanishing is a volume that is unmounted while its file system is looked at.
type vanishing struct {
	Facts
	gone bool
}

func (v *vanishing) Visible(context.Context, lifecycle.Volume, string) (volume.Mount, error) {
	if v.gone {
		return volume.Mount{}, volume.ErrNotFound
	}
	return volume.Mount{Target: "/t"}, nil
}

func (v *vanishing) Usage(context.Context, string, bool) (volume.Usage, error) {
	v.gone = true
	return volume.Usage{Bytes: 1 << 40}, nil // of the disk that lies below
}

func TestStatsOfAVolumeThatVanishes(t *testing.T) {
	r, err := New(Config{ShortNode: "n"}, nil, &vanishing{}, nil).NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "n/vg/lv", VolumePath: "/t"})
	if !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("got %v, %v; want ErrNotFound", r, err)
	}
}
