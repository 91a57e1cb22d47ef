package contract

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What the journal does to keep a record, and a folder or file to make a path.
const (
	keep       = "write fsync rename fsync"
	forget     = "remove"
	keepCreate = "write fsync" // of a create, whose name says all
	// copied: in two halves, then the temporary snapshot goes, and the volume is whole.
	copied = " copy copy flush lvremove flush lvchange flush " + forget + " fsync"
)

// scenarios are all calls that change something, each with what it can meet.
var scenarios = []scenario{
	{"CreateVolume", "linear", keepCreate + " lvcreate flush " + forget + " fsync", owesUndone, creating("linear")},
	{"CreateVolume", "thin", keepCreate + " lvcreate flush " + forget + " fsync", owesUndone, creating("thin")},
	{"CreateVolume", "raid1", keepCreate + " lvcreate flush " + forget + " fsync", owesUndone, creating("raid1")},
	{"NodePublishVolume", "inline", keep + " mkdir lvcreate flush mkfs.ext4 mount", owesNothing, publishingInline(0)},
	{"NodePublishVolume", "inline with a group", keep + " mkdir lvcreate flush mkfs.ext4 mount setgroup", owesNothing, publishingInline(4321)},
	{"NodeUnpublishVolume", "inline", keep + " unmount remove lvremove flush " + forget, owesDone, unpublishingInline},
	{"NodeStageVolume", "blank", "mkfs.ext4 mount", owesNothing, staging(mountCapability(""), false)},
	{"NodeStageVolume", "with data", "mount", owesNothing, staging(mountCapability(""), true)},
	{"NodeStageVolume", "larger than its file system", "mount resize2fs", owesNothing, stagingLarger},
	{"NodeStageVolume", "block", "create bind", owesNothing, staging(blockCapability(), true)},
	{"NodePublishVolume", "mount", "mkdir bind", owesNothing, publishing(mountCapability(""), false)},
	{"NodePublishVolume", "read-only", "mkdir bind", owesNothing, publishing(mountCapability(""), true)},
	{"NodePublishVolume", "block", "create bind", owesNothing, publishing(blockCapability(), false)},
	{"NodePublishVolume", "block read-only", "blkroset create bind", owesNothing, publishing(blockCapability(), true)},
	{"NodeUnpublishVolume", "mount", keep + " unmount remove " + forget, owesDone, unpublishing(mountCapability(""))},
	{"NodeUnpublishVolume", "block", keep + " unmount remove " + forget, owesDone, unpublishing(blockCapability())},
	{"NodeUnstageVolume", "mount", keep + " unmount " + forget, owesDone, unstaging(mountCapability(""))},
	{"NodeUnstageVolume", "block", keep + " unmount remove " + forget, owesDone, unstaging(blockCapability())},
	{"CreateVolume", "with mutable parameters", keepCreate + " lvcreate flush lvchange flush " + forget + " fsync", owesUndone, creatingMutable},
	{"ControllerModifyVolume", "linear", keep + " lvchange flush " + forget, owesDone, modifying(false)},
	{"ControllerModifyVolume", "published", keep + " lvchange flush iomax " + forget, owesDone, modifying(true)},
	{"NodePublishVolume", "with I/O limits", "iomax mkdir bind", owesNothing, publishingLimited},
	{"ControllerPublishVolume", "linear", "lvchange flush", owesNothing, attaching},
	{"ControllerUnpublishVolume", "linear", "lvchange flush", owesEither, detaching},
	{"DeleteVolume", "linear", "lvremove flush", owesEither, deleting("linear")},
	{"DeleteVolume", "thin", "lvremove flush", owesEither, deleting("thin")},
	{"CreateVolume", "thin of a thin snapshot", keepCreate + " lvcreate flush " + forget + " fsync", owesUndone, restoring("thin", "thin", false)},
	{"CreateVolume", "thin of a thin volume", keepCreate + " lvcreate flush " + forget + " fsync", owesUndone, restoring("thin", "thin", true)},
	{"CreateVolume", "btrfs of a thin volume", "syncfs " + keepCreate + " lvcreate flush identity lvchange flush " + forget + " fsync", owesUndone, restoringBtrfs},
	{"CreateVolume", "linear of a linear snapshot", keepCreate + " lvcreate flush copy copy flush lvchange flush " + forget + " fsync", owesUndone, restoring("linear", "linear", false)},
	{"CreateVolume", "linear of a thin snapshot", keepCreate + " lvcreate flush lvcreate flush" + copied, owesUndone, restoring("thin", "linear", false)},
	{"CreateVolume", "linear of a thin volume", keepCreate + " lvcreate flush lvcreate flush" + copied, owesUndone, restoring("thin", "linear", true)},
	{"CreateVolume", "thin of a linear volume", keepCreate + " lvcreate flush lvcreate flush" + copied, owesUndone, restoring("linear", "thin", true)},
	{"CreateSnapshot", "linear", keepCreate + " lvcreate flush " + forget + " fsync", owesUndone, snapshotting("linear")},
	{"CreateSnapshot", "thin", keepCreate + " lvcreate flush " + forget + " fsync", owesUndone, snapshotting("thin")},
	{"DeleteSnapshot", "linear", "lvremove flush", owesEither, deletingSnapshot("linear")},
	{"DeleteSnapshot", "thin", "lvremove flush", owesEither, deletingSnapshot("thin")},
	{"CreateVolumeGroupSnapshot", "thin and linear", "syncfs syncfs " + keepCreate + " lvcreate suspend suspend message message resume lvcreate resume lvchange flush " + forget + " fsync", owesUndone, grouping},
	{"DeleteVolumeGroupSnapshot", "thin and linear", keepCreate + " lvremove flush lvremove flush " + forget, owesDone, deletingGroup},
	{"GetMetadataDelta", "thin", keep + " message message " + forget, owesUndone, changedBlocks},
	{"ControllerExpandVolume", "linear", "lvextend flush", owesEither, expanding("linear")},
	{"ControllerExpandVolume", "thin", "lvextend flush", owesEither, expanding("thin")},
	{"NodeExpandVolume", "mount", "lvextend flush resize2fs", owesEither, expandingOnNode(mountCapability(""))},
	{"NodeExpandVolume", "block", "lvextend flush", owesEither, expandingOnNode(blockCapability())},
}

// written is what the tests write into a volume.
const written = "not to be lost"

// swept is a persistent volume under the sweep.
type swept struct {
	pv
	target string
	filled bool // with what was written
}

func layout(c caller, kind string) map[string]string {
	p := map[string]string{"type": kind}
	if kind == "thin" {
		p["thinPool"] = c.Pool()
	}
	return p
}

func (c caller) swept(kind string, cap *csi.VolumeCapability) swept {
	c.t.Helper()
	size := int64(16 << 20)
	if cap.GetBlock() != nil {
		size = 4 << 20
	}
	return swept{pv: c.create("swept", size, cap, layout(c, kind)), target: c.Target(c.t, "swept")}
}

// path is where the data is while the volume is staged.
func (v swept) path() string {
	if v.capability.GetBlock() != nil {
		return v.staging + "/csi-local-lvm-device"
	}
	return v.staging + "/data"
}

// fill writes into the volume, which is staged for it.
func (v *swept) fill() {
	v.t.Helper()
	v.filled = true
	v.ok(v.stage())
	v.ok(v.WriteFile(v.path(), written))
}

// holds compares what is in the staged volume.
func (v swept) holds() error {
	got, err := v.ReadFile(v.path())
	if err == nil && v.filled && !strings.HasPrefix(got, written) {
		return fmt.Errorf("the staged volume holds %.20q", got)
	}
	return err
}

// takeBack takes the volume away, from whatever state it is in; its data is looked at on the way.
func (v swept) takeBack() error {
	err := errors.Join(v.unpublish(v.target), v.unstage())
	if err != nil {
		return err
	}
	if v.filled && v.there(v.ref()) {
		if err := errors.Join(v.stage(), v.holds(), v.unstage()); err != nil {
			return err
		}
	}
	return v.delete()
}

// visible checks that so many mounts are at the path.
func (c caller) visible(path string, want int) error {
	if n := len(c.Mounts(c.t, path)); n != want {
		return fmt.Errorf("%d mounts at %s, want %d", n, path, want)
	}
	return nil
}

func creating(kind string) func(c caller) act {
	return func(c caller) act {
		req := c.createRequest("swept", 16<<20, blockCapability(), layout(c, kind))
		id := volume.ID{Node: c.NodeName(), Ref: volume.Ref{VG: c.VG(), LV: "swept"}}
		return act{
			call: func() error { _, err := c.Controller().CreateVolume(c.t.Context(), req); return err },
			verify: func() error {
				if !c.there(id.Ref) {
					return errors.New("the volume is not there")
				}
				return nil
			},
			undo: func() error { return c.delete(id.String()) },
		}
	}
}

func publishingInline(group int) func(c caller) act {
	return func(c caller) act {
		e := c.inline("swept")
		if group != 0 {
			e.capability = groupCapability(strconv.Itoa(group))
		}
		return act{
			call: e.publish,
			verify: func() error {
				if got := c.Lstat(c.t, e.target).GID; got != group {
					return fmt.Errorf("the volume is group %d's, not %d's", got, group)
				}
				return errors.Join(c.visible(e.target, 1), c.WriteFile(e.target+"/data", written))
			},
			undo: e.unpublish,
			vanish: func() {
				if len(c.Mounts(c.t, e.target)) != 0 {
					c.Unmount(c.t, e.target)
				}
				c.removePod(e.target)
			},
		}
	}
}

func unpublishingInline(c caller) act {
	e := c.inline("swept")
	c.ok(c.repeat(e.publish))
	c.ok(c.WriteFile(e.target+"/data", written))
	return act{call: e.unpublish, verify: func() error { return c.visible(e.target, 0) }, undo: e.unpublish}
}

func staging(cap *csi.VolumeCapability, filled bool) func(c caller) act {
	return func(c caller) act {
		v := c.swept("linear", cap)
		if filled {
			v.fill()
			c.ok(v.unstage())
		}
		verify := v.holds
		if !filled {
			verify = func() error { return c.WriteFile(v.path(), written) }
		}
		return act{call: v.stage, verify: verify, undo: v.takeBack}
	}
}

func publishing(cap *csi.VolumeCapability, readOnly bool) func(c caller) act {
	return func(c caller) act {
		v := c.swept("linear", cap)
		v.fill()
		return act{
			call:   func() error { return v.publishAs(v.target, v.capability, readOnly) },
			verify: func() error { return errors.Join(c.visible(v.target, 1), v.holds()) },
			undo:   v.takeBack,
		}
	}
}

func unpublishing(cap *csi.VolumeCapability) func(c caller) act {
	return func(c caller) act {
		v := c.swept("linear", cap)
		v.fill()
		c.ok(v.publish(v.target))
		return act{
			call:   func() error { return v.unpublish(v.target) },
			verify: func() error { return errors.Join(c.visible(v.target, 0), v.holds()) },
			undo:   v.takeBack,
		}
	}
}

func unstaging(cap *csi.VolumeCapability) func(c caller) act {
	return func(c caller) act {
		v := c.swept("linear", cap)
		v.fill()
		staged := strings.TrimSuffix(v.path(), "/data")
		return act{call: v.unstage, verify: func() error { return c.visible(staged, 0) }, undo: v.takeBack}
	}
}

func deleting(kind string) func(c caller) act {
	return func(c caller) act {
		v := c.swept(kind, mountCapability(""))
		v.fill()
		c.ok(v.unstage())
		return act{
			call: v.delete,
			verify: func() error {
				if c.there(v.ref()) {
					return errors.New("the volume is there")
				}
				return nil
			},
			undo: v.takeBack,
		}
	}
}

// changedBlocks asks which blocks have changed between two snapshots; nothing of it may stay reserved.
func changedBlocks(c caller) act {
	v := c.thinVolume("swept", 16<<20)
	base := v.cut("swept-base")
	v.write(3*ThinChunk, 2*ThinChunk)
	target := v.cut("swept-target")
	return act{
		call: func() error {
			got := c.delta(base.id, target.id, target.bytes, 0, 0)
			if got.err == nil && !slices.Equal(got.ranges, target.since(base.chunks, 0)) {
				return fmt.Errorf("told of %v", got.ranges)
			}
			return got.err
		},
		verify: func() error { return nil },
		undo:   func() error { return errors.Join(c.deleteSnapshot(target.id), c.deleteSnapshot(base.id), v.delete()) },
	}
}
