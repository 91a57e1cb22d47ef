package copy

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// block is a block device of this machine.
type block struct{ *os.File }

// openBlock opens the node of a device past the page cache (O_DIRECT): what is copied once need not be kept, and pages of others need
// not make room for it. The kernel writes back dirty pages of the source before it reads below them, and drops pages of the destination. To be written, the device
// is opened exclusively (O_EXCL of open(2), "in use by the system"): EBUSY where it is mounted, or another device lies on it.
func openBlock(d volume.Device, write bool) (device, error) {
	flags := os.O_RDONLY
	if write {
		flags = os.O_WRONLY | unix.O_EXCL
	}
	f, err := os.OpenFile(d.Path, flags|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	if err := check(f, d); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return block{f}, nil
}

// check makes sure that what was opened is the device, and as large as was said.
func check(f *os.File, d volume.Device) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || unix.Major(st.Rdev) != d.Major || unix.Minor(st.Rdev) != d.Minor {
		return fmt.Errorf("%s is not the device node of %d:%d", d.Path, d.Major, d.Minor)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil && size < d.SizeBytes {
		err = fmt.Errorf("it has %d bytes, not %d", size, d.SizeBytes)
	}
	return err
}
