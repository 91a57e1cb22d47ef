package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Usage tells how full the file system at path is (statfs(2)), or how large the block device is whose node is at path. No
// program is run. ErrNotFound: nothing is there. ErrPrecondition: block is asked for, and it is not a block device node.
func (h *Host) Usage(ctx context.Context, path string, block bool) (volume.Usage, error) {
	if err := ctx.Err(); err != nil {
		return volume.Usage{}, err
	}
	ask := statUsage
	if block {
		ask = h.blockUsage
	}
	u, err := ask(path)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w: %w", volume.ErrNotFound, err)
	}
	if err != nil {
		return volume.Usage{}, fmt.Errorf("usage of %s: %w", path, err)
	}
	return u, nil
}

func statUsage(path string) (volume.Usage, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(path, &st) }); err != nil {
		return volume.Usage{}, err
	}
	unit := st.Frsize // statfs counts in fragments; f_bsize is only the best size to read
	return volume.Usage{
		Bytes:           int64(st.Blocks) * unit,
		UsedBytes:       int64(st.Blocks-st.Bfree) * unit,
		AvailableBytes:  int64(st.Bavail) * unit, // without what is reserved for root, as df(1)
		Inodes:          int64(st.Files),         // 0 on btrfs, which makes them as it goes
		UsedInodes:      int64(st.Files - st.Ffree),
		AvailableInodes: int64(st.Ffree),
	}, nil
}

func (h *Host) blockUsage(path string) (volume.Usage, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(path, &st) }); err != nil {
		return volume.Usage{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return volume.Usage{}, fmt.Errorf("%w: it is not the node of a block device", volume.ErrPrecondition)
	}
	size, err := h.sizeBytes(split(st.Rdev))
	return volume.Usage{Bytes: size}, err
}
