//go:build vm

package sanity

import (
	"crypto/rand"
	"errors"
	"os"
	"strconv"
	"testing"

	pools "github.com/csi-local-lvm/csi-local-lvm/pkg/lvm"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func (h *realHarness) WriteThin(t *testing.T, r volume.Ref, part volume.Range) {
	t.Helper()
	data := make([]byte, part.Bytes)
	_, err := rand.Read(data)
	must(t, err)
	f, err := os.OpenFile("/dev/mapper/"+volume.DMName(r), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(data, part.Offset)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

func (h *realHarness) DiscardThin(t *testing.T, r volume.Ref, part volume.Range) {
	t.Helper()
	sh(t, "blkdiscard", "-o", strconv.FormatInt(part.Offset, 10), "-l", strconv.FormatInt(part.Bytes, 10), "/dev/mapper/"+volume.DMName(r))
}

// poolDevice is the device-mapper name of the thin pool.
var poolDevice = volume.DMName(volume.Ref{VG: realVG, LV: realPool}) + "-tpool"

func (h *realHarness) HoldPool(t *testing.T, yes bool) {
	t.Helper()
	if yes {
		sh(t, "dmsetup", "message", poolDevice, "0", "reserve_metadata_snap")
	} else {
		sh(t, "dmsetup", "message", poolDevice, "0", "release_metadata_snap")
	}
}

// PoolHeld asks the kernel itself, which costs no program: it is asked at each World.
func (h *realHarness) PoolHeld(t *testing.T) bool {
	t.Helper()
	asker, err := pools.New(&run.Local{}, pools.Config{Owner: "harness", VolumeGroups: []string{realVG}})
	must(t, err)
	held, err := asker.Reserved(t.Context(), volume.Ref{VG: realVG, LV: realPool})
	if !errors.Is(err, volume.ErrNotFound) {
		must(t, err)
	}
	return held
}
