package lvm

import (
	"errors"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// sentinels are all that a failed command can stand for.
var sentinels = []error{
	volume.ErrExists, volume.ErrNoSpace, volume.ErrBusy, volume.ErrNotFound, volume.ErrPrecondition, volume.ErrOutOfRange,
	volume.ErrInvalid, volume.ErrPending, errNoGroup, errNoLV,
}

func TestClassify(t *testing.T) {
	real := func(name string) string { return string(recorded(t, name+".stderr")) }
	for _, c := range []struct {
		name, stderr string
		want         error // nil: none
	}{
		{"exists", real("exists"), volume.ErrExists},
		{"exists, a historical one", `  Historical Logical Volume "v" already exists in volume group "data"`, volume.ErrExists},
		{"read-ahead of a thick origin", "  Command on LV data/v uses options that are invalid with LV properties: lv_is_thick_origin .\n  Command not permitted on LV data/v.", volume.ErrPrecondition},
		{"exists, of a raid", "  Logical Volume v_rmeta_0 already exists in volume group data.", volume.ErrExists},
		{"no extents", real("insufficient"), volume.ErrNoSpace},
		{"no extents on separate disks", real("allocatable"), volume.ErrNoSpace},
		{"no contiguous extents", "  Insufficient suitable contiguous allocatable extents for logical volume v: 5 more required", volume.ErrNoSpace},
		{"no extents for raid", "  Insufficient free space: 12 extents needed, but only 4 available", volume.ErrNoSpace},
		{"no extents for a log", "  Insufficient free space for log allocation for logical volume v.", volume.ErrNoSpace},
		{"too few disks", real("stripes"), volume.ErrNoSpace},
		{"pool at its threshold", real("threshold"), volume.ErrNoSpace},
		{"pool above its threshold", "  Free space in pool data/pool is above threshold, new volumes are not allowed.", volume.ErrNoSpace},
		{"metadata area full", real("metadatafull"), volume.ErrNoSpace},
		{"metadata area full, older", "  VG data 5 metadata on /dev/vda (600000 bytes) too large for circular buffer (1044480 bytes with 550000 used)", volume.ErrNoSpace},
		{"number of volumes", real("maxlv"), volume.ErrNoSpace},
		{"no pool", real("nopool"), volume.ErrNoSpace},
		{"an origin of thick snapshots", "  Snapshot origin volumes can be resized only while inactive: try lvchange -an.", volume.ErrPrecondition},
		{"no volume to extend", "  Logical volume v not found in volume group data.", errNoLV},
		{"open", real("open"), volume.ErrBusy},
		{"opened in the middle", "  Unable to deactivate open csi--test-v (253:10).\n  Cannot deactivate logical volume csi-test/v.", volume.ErrBusy},
		{"mounted", real("mounted"), volume.ErrBusy},
		{"under another device", real("device"), volume.ErrBusy},
		{"no group", real("nogroup"), errNoGroup},
		{"no volume", real("nolv"), errNoLV},
		{"disks missing", real("partialcreate"), nil},
		{"reserved name", real("reserved"), nil},
		{"a pool in use, which is no fault of the volume", "  Cache pool data/pool is already in use.", nil},
		{"nothing said", "", nil},
	} {
		err := classify(&run.Error{ExitCode: 5, Stderr: c.stderr, Err: errors.New("exit status 5")})
		for _, s := range sentinels {
			if errors.Is(err, s) != (s == c.want) { //nolint:errorlint // the sentinels themselves are compared
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		}
		var failed *run.Error
		if !errors.As(err, &failed) {
			t.Errorf("%s: the command's own error is lost", c.name)
		}
	}
	if classify(nil) != nil {
		t.Error("no error is an error")
	}
	// A usage error, a signal and a program that was not started mean nothing of the kind, whatever they print.
	for _, code := range []int{3, -1, 1} {
		if err := classify(&run.Error{ExitCode: code, Stderr: real("open"), Err: errors.New("x")}); errors.Is(err, volume.ErrBusy) {
			t.Errorf("exit code %d: %v", code, err)
		}
	}
}
