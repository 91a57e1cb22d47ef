package lvm

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// errNoGroup: LVM does not find the volume group. What that means depends on the question, so it is no sentinel of
// pkg/volume: for Create another node may have it; for Remove and Lookup it never means that the volume is gone.
var errNoGroup = errors.New("volume group not found by LVM")

// errReadAheadIs: the read-ahead is so already. LVM has done whatever else was asked for, or has not.
var errReadAheadIs = errors.New("read-ahead unchanged")

// errThickOrigin: LVM does not change this of a logical volume that has thick snapshots. It has changed nothing.
var errThickOrigin = fmt.Errorf("%w: it has thick snapshots, and LVM does not change the read-ahead of their origin; delete its snapshots first", volume.ErrPrecondition)

// errNoLV: LVM read the group and does not find the logical volume.
var errNoLV = errors.New("logical volume not found by LVM")

// messages maps what LVM prints to what it means. Exit codes do not tell: every operational failure is 5. Patterns are
// narrow and cite the lvm2 source (v2.03.16) that prints them. What matches none stays as it is, and is answered
// Internal: an unknown failure must not look like a known one.
var messages = []struct {
	pattern *regexp.Regexp
	means   error
}{
	// lib/metadata/lv_manip.c, _lv_create_an_lv and lv_rename; lib/metadata/raid_manip.c prints it without quotes
	{regexp.MustCompile(`ogical Volume "?[^" ]+"? already exists in volume group`), volume.ErrExists},

	// lib/metadata/lv_manip.c, _lv_create_an_lv
	{regexp.MustCompile(`Volume group "[^"]+" has insufficient free space \(\d+ extents\): \d+ required`), volume.ErrNoSpace},
	// lib/metadata/lv_manip.c, _allocate; "contiguous " and other words may stand before "allocatable"
	{regexp.MustCompile(`Insufficient suitable (\S+ )?allocatable extents`), volume.ErrNoSpace},
	// lib/metadata/lv_manip.c, _sufficient_pes_free and _allocate (log)
	{regexp.MustCompile(`Insufficient free space(: \d+ extents needed| for log allocation)`), volume.ErrNoSpace},
	// lib/metadata/lv_manip.c, _lv_create_an_lv
	{regexp.MustCompile(`Number of stripes \(\d+\) must not exceed number of physical volumes`), volume.ErrNoSpace},
	// lib/metadata/lv_manip.c, _lv_create_an_lv, and lib/metadata/thin_manip.c, _check_pool_create: data or metadata of
	// the pool above thin_pool_autoextend_threshold
	{regexp.MustCompile(`Cannot create new thin volume, free space in thin pool \S+ reached threshold`), volume.ErrNoSpace},
	{regexp.MustCompile(`Free space in pool \S+ is above threshold, new volumes are not allowed`), volume.ErrNoSpace},
	// tools/lvchange.c, _lvchange_readahead
	{regexp.MustCompile(`Read ahead is already \S+ for`), errReadAheadIs},

	// tools/toollib.c, _check_lv_rules; the rule is one of tools/command-lines.in for "lvchange --readahead" and its like
	{regexp.MustCompile(`uses options that are invalid with LV properties: lv_is_thick_origin`), errThickOrigin},

	// lib/format_text/format-text.c, _vg_write_raw: the metadata area of the physical volumes is full
	{regexp.MustCompile(`metadata on \S+ \(\d+ bytes\) exceeds maximum metadata size`), volume.ErrNoSpace},
	{regexp.MustCompile(`metadata on .* too large for circular buffer`), volume.ErrNoSpace},
	// lib/metadata/lv_manip.c, _lv_create_an_lv (vgchange -l)
	{regexp.MustCompile(`Maximum number of logical volumes \(\d+\) reached`), volume.ErrNoSpace},
	// tools/lvcreate.c, _lvcreate_single: another node may have the pool
	{regexp.MustCompile(`Pool \S+ not found in Volume group`), volume.ErrNoSpace},

	// lib/metadata/lv_manip.c, _lv_create_an_lv
	{regexp.MustCompile(`Snapshot origin LV \S+ not found in Volume group`), volume.ErrNotFound},
	// lib/metadata/lv_manip.c, _lv_resize_adjust_size and its like: thick snapshots (case B42)
	{regexp.MustCompile(`Snapshot origin volumes can be resized only while inactive`), volume.ErrPrecondition},

	// lib/activate/activate.c, lv_check_not_in_use
	{regexp.MustCompile(`Logical volume \S+ contains a filesystem in use`), volume.ErrBusy},
	{regexp.MustCompile(`Logical volume \S+ is used by another device`), volume.ErrBusy},
	{regexp.MustCompile(`Logical volume \S+ in use\.`), volume.ErrBusy},
	// libdm/libdm-deptree.c, _dm_tree_deactivate_children: opened after lv_check_not_in_use
	{regexp.MustCompile(`Unable to deactivate open \S+ \(\d+:\d+\)`), volume.ErrBusy},

	// lib/metadata/metadata.c, vg_read; tools/toollib.c, _process_vgnameid_list
	{regexp.MustCompile(`Volume group "[^"]+" not found`), errNoGroup},
	// tools/toollib.c, process_each_lv_in_vg
	{regexp.MustCompile(`Failed to find logical volume "[^"]+"`), errNoLV},
	// tools/lvresize.c, _lvresize_single
	{regexp.MustCompile(`Logical volume \S+ not found in volume group`), errNoLV},
}

// classify wraps the sentinel that the text of a failed command stands for. LVM explains a failure in several lines;
// the first row of the table that is found decides.
func classify(err error) error {
	var failed *run.Error
	if !errors.As(err, &failed) || failed.ExitCode != exitFailed {
		return err
	}
	for _, m := range messages {
		if m.pattern.MatchString(failed.Stderr) {
			return fmt.Errorf("%w: %w", m.means, err)
		}
	}
	return err
}

// exitFailed is ECMD_FAILED (lvm2 lib/commands/errors.h). A usage error is 3: a fault of ours, never the world's.
const exitFailed = 5
