package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Mount mounts the file system on the device at target, an existing folder. It is all or nothing.
//
// The file system itself is mounted writable even where o is read-only: read-only is a property of the one mount, so that
// another target can be writable beside it. Only on a device that refuses writes is the file system read-only; a journal
// that would have to be replayed is then left alone, and the mount shows what was written last without it.
//
// Errors: ErrBusy, the device is in exclusive use, for example by another device on it. All others are plain and hold
// the path, the device and what the kernel said.
func (h *Host) Mount(ctx context.Context, d volume.Device, target string, o volume.MountOptions) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkNode(d); err != nil {
		return err
	}
	readOnly, err := h.isReadOnly(numberOf(d))
	if err != nil {
		return err
	}
	a, params := splitOptions(o)
	err = h.effects.Do(ctx, "mount", target, func() error {
		return mountOne(d, target, o.FS, a, params, readOnly)
	})
	if err != nil {
		return asBusy(fmt.Errorf("mount %s of device %s at %s: %w", o.FS, d, target, err))
	}
	return nil
}

// always are the options each file system is mounted with.
var always = map[volume.FS][]parameter{
	// XFS refuses a second file system with the same UUID beside the first, and a snapshot has that of its origin. The
	// check is all that nouuid takes away (xfs(5)); devices are told apart by number here. case B50
	volume.XFS: {{key: "nouuid", flag: true}},
}

// noReplay keeps a file system that was not unmounted from replaying its log, which it must do even when mounted read-only,
// and cannot on a device that refuses writes: ext4(5), xfs(5), btrfs(5).
var noReplay = map[volume.FS]parameter{
	volume.Ext4:  {key: "noload", flag: true},
	volume.XFS:   {key: "norecovery", flag: true},
	volume.Btrfs: {key: "rescue", value: "nologreplay"},
}

// mountOne tries without noReplay first: what is recorded in a log is lost with it.
func mountOne(d volume.Device, target string, fs volume.FS, a attributes, params []parameter, readOnlyDevice bool) error {
	params = append(slices.Clone(always[fs]), params...)
	if !readOnlyDevice {
		return mountNew(d, target, fs, a, params)
	}
	// case B53
	a.set |= ro
	params = append(params, parameter{key: "ro", flag: true})
	err := mountNew(d, target, fs, a, params)
	// btrfs says EIO ("log replay required on RO media")
	if skip, ok := noReplay[fs]; ok && (errors.Is(err, unix.EROFS) || fs == volume.Btrfs && errors.Is(err, unix.EIO)) {
		err = mountNew(d, target, fs, a, append(params, skip))
	}
	return err
}

// mountNew makes a mount with all its flags and then shows it at target. Up to the last step it hangs on a file descriptor
// only, and is gone with it.
func mountNew(d volume.Device, target string, fs volume.FS, a attributes, params []parameter) error {
	log := openKernelLog()
	defer log.close()
	ctx, err := unix.Fsopen(string(fs), unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("this kernel does not know the file system: %w", err)
	}
	defer unix.Close(ctx) //nolint:errcheck // nothing is written through it
	if err := configure(ctx, d, params); err != nil {
		return explain(err, contextMessages(ctx), log.about(d))
	}
	mnt, err := fsmount(ctx, a.set)
	if err != nil {
		return explain(err, contextMessages(ctx), log.about(d))
	}
	defer unix.Close(mnt) //nolint:errcheck // as above; the attached mount stays
	return show(mnt, target)
}

func configure(ctx int, d volume.Device, params []parameter) error {
	if err := unix.FsconfigSetString(ctx, "source", d.Path); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	for _, p := range params {
		var err error
		if p.flag {
			err = unix.FsconfigSetFlag(ctx, p.key)
		} else {
			err = unix.FsconfigSetString(ctx, p.key, p.value)
		}
		if err != nil {
			return fmt.Errorf("mount option %q: %w", p, err)
		}
	}
	return retry(func() error { return unix.FsconfigCreate(ctx) })
}

// String gives the option as mount(8) writes it.
func (p parameter) String() string {
	if p.flag {
		return p.key
	}
	return p.key + "=" + p.value
}

// fsmount sets the flags in two steps, because fsmount(2) takes fewer of them than mount_setattr(2).
func fsmount(ctx int, set uint64) (int, error) {
	mnt, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := setAttributes(mnt, attributes{set: set, clear: set & unix.MOUNT_ATTR__ATIME}); err != nil {
		_ = unix.Close(mnt)
		return -1, err
	}
	return mnt, nil
}

func setAttributes(mnt int, a attributes) error {
	if a.set&unix.MOUNT_ATTR__ATIME != 0 || a.clear&unix.MOUNT_ATTR__ATIME != 0 {
		a.clear |= unix.MOUNT_ATTR__ATIME // the kernel wants all of the field
	}
	if a == (attributes{}) {
		return nil
	}
	err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: a.set, Attr_clr: a.clear})
	if err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// show attaches the mount at target, whose last part is not followed if it is a link. Where target lies on a shared mount,
// the new one is shared too, and appears in every namespace that gets the mounts of this one, as with mount(8).
func show(mnt int, target string) error {
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// Bind shows source at target: a folder at a folder, or a device node at a file. Options of the file system are passed over
// in o: they were given when it was mounted. What source's mount does not allow, such as writing, the new one does not
// allow either unless o says so. Mounts below source are not shown. All or nothing, as Mount; errors likewise.
func (h *Host) Bind(ctx context.Context, source, target string, o volume.MountOptions) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	a, _ := splitOptions(o)
	err := h.effects.Do(ctx, "bind", target, func() error { return bind(source, target, a) })
	if err != nil {
		return asBusy(fmt.Errorf("bind %s at %s: %w", source, target, err))
	}
	return nil
}

func bind(source, target string, a attributes) error {
	mnt, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.O_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(mnt) //nolint:errcheck // nothing is written through it
	if err := setAttributes(mnt, a); err != nil {
		return err
	}
	// A clone is a peer of what it was cloned from: where /dev is shared, what somebody mounts over a device node at a target
	// would cover that node in /dev as well, and the driver would take the one device for the other.
	if _, node, _, err := nodeAt(source); err == nil && node {
		if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
			return fmt.Errorf("mount_setattr: %w", err)
		}
	}
	return show(mnt, target)
}

// Unmount takes away the topmost mount at target. ErrBusy: it is in use. nil as well where nothing is mounted there, or
// nothing is there. A link at target is not followed. Neither MNT_DETACH nor MNT_FORCE are ever used: a lazily detached
// file system is still mounted, only that nobody sees it any more, and lvremove would meet it.
func (h *Host) Unmount(ctx context.Context, target string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := h.effects.Do(ctx, "unmount", target, func() error {
		return retry(func() error { return unix.Unmount(target, unix.UMOUNT_NOFOLLOW) })
	})
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.EINVAL):
		err = h.reallyUnmounted(target)
	}
	if err != nil {
		return asBusy(fmt.Errorf("unmount %s: %w", target, err))
	}
	return nil
}

// reallyUnmounted looks whether EINVAL means "not a mount point". umount(2) gives it also for a mount that came from a
// more privileged namespace and is locked to others.
func (h *Host) reallyUnmounted(target string) error {
	rows, err := h.table("self")
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Mountpoint == target {
			return fmt.Errorf("it is mounted, and this process cannot take it away (locked by another namespace?): %w", unix.EINVAL)
		}
	}
	return nil
}

// asBusy makes an ErrBusy of EBUSY.
func asBusy(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", volume.ErrBusy, err)
	}
	return err
}

// explain adds what the kernel said to an error number, which alone is "invalid argument" for nearly everything.
func explain(err error, messages ...[]string) error {
	text := strings.Join(slices.Concat(messages...), "; ")
	if text == "" {
		return err
	}
	return fmt.Errorf("%w (kernel: %s)", err, text)
}
