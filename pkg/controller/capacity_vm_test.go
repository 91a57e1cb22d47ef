//go:build vm

package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lvm"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// These tests need root, LVM and loop devices. What GetCapacity says is tried on a group of six small disks.

const (
	capVG     = "captest"
	capDisks  = 6
	capExtent = 1 << 20
)

// plain is LVM without the lifecycle around it.
type plain struct{ *lvm.LVM }

func (p plain) Delete(ctx context.Context, r volume.Ref) error {
	return p.Remove(ctx, r, volume.Persistent)
}

func (p plain) CreateSnapshot(ctx context.Context, s volume.Spec) (volume.LV, error) {
	return p.Create(ctx, s)
}

func (p plain) DeleteSnapshot(ctx context.Context, r volume.Ref) error {
	return p.Remove(ctx, r, volume.Snapshot)
}
func (plain) Modify(context.Context, volume.Ref, volume.Mutable) error { return errors.ErrUnsupported }
func (plain) Attach(context.Context, volume.Ref, volume.Attachment) error {
	return errors.ErrUnsupported
}
func (plain) Detach(context.Context, volume.Ref, string) error { return errors.ErrUnsupported }

func (p plain) Expand(ctx context.Context, r volume.Ref, required, limit int64) (volume.LV, error) {
	return p.Extend(ctx, r, volume.Persistent, required, limit)
}

// disks is a volume group of loop devices, whose free extents can be set.
type disks struct {
	t       *testing.T
	devices []string
}

func (d *disks) sh(name string, args ...string) string {
	d.t.Helper()
	res, err := (&run.Local{}).Write(bg, name, args...)
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(res.Stdout)
}

func newDisks(t *testing.T, extents int) *disks {
	t.Helper()
	d := &disks{t: t}
	folder, err := os.MkdirTemp("/dev/shm", "captest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.sh("vgremove", "-f", "-y", capVG)
		for _, dev := range d.devices {
			d.sh("losetup", "-d", dev)
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	for i := range capDisks {
		file := filepath.Join(folder, fmt.Sprint(i))
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, int64(extents+1)*capExtent); err != nil { // the first MiB is LVM's
			t.Fatal(err)
		}
		d.devices = append(d.devices, d.sh("losetup", "-f", "--show", file))
	}
	d.sh("vgcreate", append([]string{"-s", fmt.Sprintf("%db", capExtent), capVG}, d.devices...)...)
	return d
}

// leave takes extents until so many of each disk are free; 0 for the disks not named. The free ones are at the beginning
// of the disk, but for the first so many pieces of one extent each, between which one is taken.
func (d *disks) leave(size, pieces int, free ...int) {
	d.t.Helper()
	for i, dev := range d.devices {
		left := 0
		if i < len(free) {
			left = free[i]
		}
		if left == size {
			continue
		}
		taken := dev
		gaps := min(pieces, left)
		for j := range gaps {
			taken += fmt.Sprintf(":%d", 2*j)
		}
		if left+gaps < size {
			taken += fmt.Sprintf(":%d-%d", left+gaps, size-1)
		}
		d.sh("lvcreate", "-qq", "-y", "-an", "-Zn", "-Wn", "--alloc", "anywhere", "-n", fmt.Sprintf("pin%d", i), "-l", fmt.Sprint(size-left), capVG, taken)
	}
}

func (d *disks) clear() { d.sh("lvremove", "-f", "-y", capVG) }

func newPlain(t *testing.T, overcommit float64) *Controller {
	t.Helper()
	l, err := lvm.New(&run.Local{}, lvm.Config{Owner: driverName, VolumeGroups: []string{capVG}, ThinOvercommit: overcommit})
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Node: "node-1", TopologyKey: request.TopologyKey(driverName), VolumeGroups: volume.Patterns{capVG}, Overcommit: overcommit}, plain{l}, nil)
}

// tryMaximum asks for the largest volume, makes it, and removes it. Where exact, one byte more must be refused.
func tryMaximum(t *testing.T, c *Controller, params map[string]string, exact bool) (most int64) {
	t.Helper()
	res, err := c.GetCapacity(bg, &csi.GetCapacityRequest{Parameters: params, VolumeCapabilities: caps(block())})
	if err != nil {
		t.Fatal(err)
	}
	most = res.GetMaximumVolumeSize().GetValue()
	create := func(bytes int64) (*csi.Volume, error) {
		r, err := c.CreateVolume(bg, &csi.CreateVolumeRequest{
			Name: "largest", VolumeCapabilities: caps(block()), Parameters: params, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		})
		return r.GetVolume(), err
	}
	if exact {
		if _, err := create(most + 1); !errors.Is(err, volume.ErrNoSpace) && !errors.Is(err, volume.ErrOutOfRange) {
			t.Errorf("%v: one byte more than %d: error is %v, want ErrNoSpace or ErrOutOfRange", params, most, err)
		}
	}
	if most == 0 {
		return 0
	}
	vol, err := create(most)
	if err != nil {
		t.Errorf("%v: %d bytes are said to be possible: %v", params, most, err)
		return most
	}
	if vol.GetCapacityBytes() != most {
		t.Errorf("%v: asked for %d bytes, got %d", params, most, vol.GetCapacityBytes())
	}
	if _, err := c.DeleteVolume(bg, &csi.DeleteVolumeRequest{VolumeId: vol.GetVolumeId()}); err != nil {
		t.Fatal(err)
	}
	return most
}

func TestMaximumVolumeSizeIsPossible(t *testing.T) {
	const size = 24
	d := newDisks(t, size)
	c := newPlain(t, 1)
	for _, shape := range []struct {
		pieces int
		free   []int
	}{
		{0, []int{20, 12, 9, 5, 3, 2}},
		{4, []int{12, 12, 10, 9, 9, 8}},
		{12, []int{12, 12, 12, 12, 12, 12}},
	} {
		d.leave(size, shape.pieces, shape.free...)
		for _, p := range []map[string]string{
			{"type": "linear"},
			{"type": "striped", "stripes": "3"},
			{"type": "raid1"},
			{"type": "raid5"},
			{"type": "raid6"},
			{"type": "raid10"},
		} {
			most := tryMaximum(t, c, p, p["type"] == "linear")
			t.Logf("free %v, %d of them single: %v: at most %d extents", shape.free, shape.pieces, p, most/capExtent)
		}
		d.clear()
	}
}

// Each volume takes what is left for the next, until there is nothing.
func TestMaximumVolumeSizeUntilFull(t *testing.T) {
	const size = 24
	d := newDisks(t, size)
	c := newPlain(t, 1)
	d.leave(size, 0, 24, 20, 13, 8)
	p := map[string]string{"type": "raid1"}
	for i := 0; ; i++ {
		res, err := c.GetCapacity(bg, &csi.GetCapacityRequest{Parameters: p})
		if err != nil {
			t.Fatal(err)
		}
		most := res.GetMaximumVolumeSize().GetValue()
		if most == 0 {
			if i < 2 {
				t.Errorf("full after %d volumes", i)
			}
			return
		}
		if _, err := c.CreateVolume(bg, &csi.CreateVolumeRequest{
			Name: fmt.Sprintf("v%d", i), VolumeCapabilities: caps(block()), Parameters: p, CapacityRange: &csi.CapacityRange{RequiredBytes: most},
		}); err != nil {
			t.Fatalf("volume %d of %d bytes, of %d available: %v", i, most, res.GetAvailableCapacity(), err)
		}
	}
}

func TestThinMaximum(t *testing.T) {
	d := newDisks(t, 24)
	d.sh("lvcreate", "-qq", "-y", "--type", "thin-pool", "-L", "20m", "-n", "pool", capVG)
	p := map[string]string{"thinPool": "pool"}
	for _, tt := range []struct {
		overcommit float64
		want       int64
	}{{1, 20}, {1.52, 30}, {3, 60}} {
		if most := tryMaximum(t, newPlain(t, tt.overcommit), p, true); most != tt.want*capExtent {
			t.Errorf("overcommit %g: at most %d bytes, want %d MiB", tt.overcommit, most, tt.want)
		}
	}
	d.sh("lvcreate", "-qq", "-y", "-V", "13m", "-T", capVG+"/pool", "-n", "other")
	if most := tryMaximum(t, newPlain(t, 1), p, true); most != 7*capExtent {
		t.Errorf("beside another thin volume: at most %d bytes, want 7 MiB", most)
	}
}
