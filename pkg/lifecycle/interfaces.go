package lifecycle

import (
	"context"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// LVM is what the lifecycle asks of LVM and device-mapper. Implemented by pkg/lvm, and by pkg/fake for tests.
type LVM interface {
	// Create makes the logical volume with the tags of the spec, activates it, and clears old signatures from it.
	// The size is chosen within RequiredBytes and LimitBytes (volume.Size). One LVM command. Of the mutable parameters
	// only the tag is made; Tune sets them.
	// Errors: ErrExists, the name is taken in the VG (whatever it is); ErrNoSpace; ErrOutOfRange; ErrInvalid, the VG
	// is not one of --volume-groups. An error that is none of these may leave a part of the LV behind.
	Create(ctx context.Context, s volume.Spec) (volume.LV, error)
	// CreateTogether makes the snapshots, each with its origin as looked up, so that all show their origins at one moment:
	// who writes to any of them is held until all are cut, at most for some seconds. The error leaves nobody held, but perhaps some of the snapshots; those
	// of thin volumes have the state Cutting until they are cut. A kill in the middle can leave origins suspended, which Resume
	// mends. Errors as Create's.
	CreateTogether(ctx context.Context, specs []volume.Spec) ([]volume.LV, error)
	// Remove removes the logical volume if it carries our owner tag and the kind. One LVM command where it is there.
	// nil: it is gone, or was not there and the VG was read well. ErrBusy: it is open or mounted somewhere.
	// ErrPrecondition: it is not ours, is of another kind, or LVM would drop others with it; nothing was changed.
	Remove(ctx context.Context, r volume.Ref, k volume.Kind) error
	// Retag gives the logical volume the tags to add and takes those to remove away, if it carries our owner tag and the
	// kind; these two stay as they are. volume.Tags.Changes makes the lists. One LVM command, none where both are empty. All
	// changes at once: a kill leaves all or nothing of it. To have a tag already, or to lack one, is fine. It is durable when
	// it returns nil; with empty lists, so is what an earlier call changed that was killed before it had flushed. ErrNotFound: the group was read well and it is not there. ErrPrecondition: it is not ours, or is of
	// another kind; nothing was changed.
	Retag(ctx context.Context, r volume.Ref, k volume.Kind, add, remove []string) error
	// Tune is Retag that besides sets what LVM itself holds of the mutable parameters: read-ahead, recovery rates and
	// write-mostly; others are none of its business. One LVM command; where the read-ahead is so already, three. A kill can
	// leave part of it; repeated, it ends well. ErrInvalid: a physical volume on which it does not lie. ErrPrecondition: as of Retag, or
	// another read-ahead for the origin of thick snapshots. Nothing was changed then.
	Tune(ctx context.Context, r volume.Ref, k volume.Kind, add, remove []string, m volume.Mutable) error
	// Extend makes the logical volume larger if it carries our owner tag and the kind: to at least required bytes, and at
	// most limit (volume.ExpandedSize; 0 is not said). Where it is large enough already no LVM command is run, and it is as OK.
	// It is never made smaller, its layout stays, and nothing is written into it: what the new extents hold is theirs. Its
	// device, where it has one, has the size on return. A kill leaves it as it was, or larger, be it with a device that is
	// suspended or not yet as large; a repeated call, or Resume, mends that.
	// Errors: ErrNotFound, the group was read well and it is not there. ErrPrecondition: it is not ours, is of another kind,
	// or cannot grow as it is now, having thick snapshots. ErrNoSpace; ErrOutOfRange, also where the group could not hold it if it
	// were empty. After these it is unaltered. ErrInvalid.
	Extend(ctx context.Context, r volume.Ref, k volume.Kind, required, limit int64) (volume.LV, error)
	// Activate makes the device of an inactive logical volume, also where LVM would skip it (-K).
	Activate(ctx context.Context, r volume.Ref) error
	// Lookup finds one of our logical volumes; with an empty VG, in any of --volume-groups. No LVM command where
	// nothing has changed. ErrNotFound: every group in question was read well and it is not there. ErrPrecondition: an LV of
	// this name is there, but without our owner tag.
	Lookup(ctx context.Context, r volume.Ref) (volume.LV, error)
	// Device gives the device of an active logical volume; no LVM command. ErrNotFound: it has none. A missing device
	// node is made good.
	Device(ctx context.Context, r volume.Ref) (volume.Device, error)
	// Resume resumes the devices of ours that a killed LVM command left suspended, and gives their logical volumes. One LVM
	// command for each; none where no device is suspended. The error names those of ours that stay suspended.
	Resume(ctx context.Context) ([]volume.Ref, error)
}

// Mounts is what the lifecycle asks of the mount table. Implemented by pkg/mount, and by pkg/fake for tests.
type Mounts interface {
	// List gives the mount table of this namespace, in mount order: of several mounts at one target the last is on top.
	List(ctx context.Context) ([]volume.Mount, error)
	// Mount mounts the file system on the device at target, an existing folder, with all its options from the first
	// moment on. It is all or nothing: an error, or a kill in the middle, leaves no mount.
	Mount(ctx context.Context, d volume.Device, target string, o volume.MountOptions) error
	// Bind shows source (a folder in a mounted file system, or a device node) at target (an existing folder, or
	// file) with the flags of its own in o that apply to a single mount. All or nothing, as Mount.
	Bind(ctx context.Context, source, target string, o volume.MountOptions) error
	// Unmount takes away the topmost mount at target; never lazily, never by force. ErrBusy: it is in use.
	// nil as well where nothing is mounted there.
	Unmount(ctx context.Context, target string) error
	// Holders finds who keeps the device busy, and says so in words. It looks for a bounded time and number; an empty
	// answer means that none was found, not that there is none. target is what was to be unmounted; may be empty.
	Holders(ctx context.Context, d volume.Device, target string) ([]volume.Holder, error)
}

// Cgroups is what the lifecycle asks of the cgroups of pods. Implemented by pkg/mount, and by pkg/fake for tests. Both methods:
// ErrNotFound, kubelet has no cgroup for the pod, so that nothing of it runs; ErrPrecondition, I/O cannot be limited here, with
// what to do about it.
type Cgroups interface {
	// IOLimits gives how the I/O of the pod on the device is limited (cgroup v2, io.max).
	IOLimits(ctx context.Context, pod string, d volume.Device) (volume.IOLimits, error)
	// SetIOLimits limits it. It lasts until the pod or the device goes.
	SetIOLimits(ctx context.Context, pod string, d volume.Device, l volume.IOLimits) error
}

// Paths is what the lifecycle asks of the files and folders that the CO's paths name.
type Paths interface {
	// Resolve gives the path with all symbolic links of its parent folder resolved, as the mount table shows it. Parts that
	// do not exist stay as they are. The last part is not followed; that it is a link is ErrPrecondition.
	Resolve(path string) (string, error)
	// Make makes the target: a folder, or an empty file for a block volume, its parent too where it is missing.
	// made is false where it was there and is fit: an empty folder, or a regular file of size 0. ErrPrecondition where
	// something else is there; it is left alone.
	Make(ctx context.Context, path string, block bool) (made bool, err error)
	// Remove removes an empty folder or an empty regular file; nil where nothing is there. Anything else is left alone: a folder
	// with something in it, or a file with content, is ErrPrecondition. ErrBusy: EBUSY. It never removes more than the
	// one name.
	Remove(ctx context.Context, path string) error
	// Lacks reports whether the folder has surely nothing of that name in it: the folder was read well and holds
	// something else. That it is missing, is no folder, cannot be read or is empty, as a disk's mount point is when the
	// disk is not mounted, is an error.
	Lacks(folder, name string) (bool, error)
}

// Filesystems is what the lifecycle asks of what is on a device.
type Filesystems interface {
	// Probe looks what is on the device.
	Probe(ctx context.Context, d volume.Device) (volume.Content, error)
	// Format makes the file system. The caller has made sure that the device is ours, blank and not open.
	Format(ctx context.Context, d volume.Device, f volume.Format) error
	// Grow makes the mounted file system as large as its device; nothing is run where it is already.
	Grow(ctx context.Context, d volume.Device, fs volume.FS, mountpoint string) error
	// SetGroup gives everything below the folder to the group, with the mode bits that kubelet's fsGroup sets. Nothing is
	// walked where the folder itself has them: it is done last, so that an interrupted walk is begun again.
	SetGroup(ctx context.Context, folder string, gid int) error
	// Distinguish gives the file system on the device, a copy of another, an identity of its own where two of one may not be
	// mounted together (btrfs). The same id gives the same identity, and a second time changes nothing. ErrBusy: the device is
	// open. ErrPrecondition: it cannot be done; nothing was changed. A kill leaves one or the other.
	Distinguish(ctx context.Context, d volume.Device, id string) error
	// Sync has the file system mounted at mountpoint write out all that was written to it (syncfs(2)).
	Sync(ctx context.Context, mountpoint string) error
	// SetReadOnly makes the whole block device read-only, or writable again (BLKROSET).
	SetReadOnly(ctx context.Context, d volume.Device, readOnly bool) error
}
