package mount

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/sysfs"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// FilesystemFacts tells how a mounted file system is, by one of its mounts, the topmost at its target. It changes nothing and does not
// hang. What a file system does not tell is taken for good: no recorded errors.
func (h *Host) FilesystemFacts(ctx context.Context, m volume.Mount) volume.FilesystemFacts {
	f := volume.FilesystemFacts{Mount: m, ReadOnly: m.Forced}
	device := h.kernelName(devno{m.Major, m.Minor})
	switch volume.FS(m.FS) {
	case volume.Ext4: // Documentation/ABI/testing/sysfs-fs-ext4; they stand in the superblock until e2fsck takes them away
		f.Errors, _ = sysfs.Number(filepath.Join(h.sys, "fs/ext4", device, "errors_count"))
	case volume.Btrfs:
		f.Errors, f.Damages = h.btrfsErrors(device)
	}
	// A file system that has shut itself down refuses to open its folders (xfs_dir_open), or says so in its options (ext4
	// since kernel 6.11). To look at the folder is not enough: it is in memory.
	if slices.Contains(m.Options, "shutdown") {
		f.ShutDown = "mount option shutdown"
	}
	key := fmt.Sprintf("file system of device %d:%d at %s", m.Major, m.Minor, m.Target)
	type answer struct {
		stopped bool
		usage   volume.Usage
	}
	a, err := ask.Ask(ctx, &h.open, key, func() (a answer, err error) {
		a.stopped = f.Errors != 0 && m.FS == string(volume.Ext4) && h.ext4Stopped(device, m.Options)
		a.usage, err = lookInto(m.Target)
		return a, err
	})
	f.ReadOnly, f.Usage = f.ReadOnly || a.stopped, a.usage
	switch {
	case errors.Is(err, ask.ErrHung):
		f.Hung = true
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ESHUTDOWN):
		f.ShutDown = err.Error()
	}
	return f
}

// ext4Stopped reports whether an ext4 has stopped all changes after an error. Kernels before 2024 made it read-only then, those
// after 2025 have an option that shows it; between them (6.1.118 to 6.14: "ext4: don't set SB_RDONLY after filesystem errors") it looks
// writable, and only its errors tell: one since the file system was mounted stops it if it was mounted with errors=remount-ro, and
// that of an aborted journal does in any case.
func (h *Host) ext4Stopped(device string, options []string) bool {
	at := filepath.Join(h.sys, "fs/ext4", device)
	last, err := sysfs.Number(filepath.Join(at, "last_error_time"))
	if err != nil || last == 0 {
		return false
	}
	who, _ := sysfs.Read(filepath.Join(at, "last_error_func"))
	if who != "ext4_journal_check_start" && !slices.Contains(options, "errors=remount-ro") {
		return false
	}
	super := make([]byte, ext4SuperBytes)
	f, err := os.Open(filepath.Join(h.dev, device)) // through the page cache, where the file system itself has it
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if _, err := f.ReadAt(super, ext4SuperAt); err != nil || binary.LittleEndian.Uint16(super[0x38:]) != 0xef53 {
		return false
	}
	mounted := int64(binary.LittleEndian.Uint32(super[0x2c:])) | int64(super[0x274])<<32 // s_mtime, s_mtime_hi
	return last >= mounted
}

// Where the superblock of an ext4 is (linux Documentation/filesystems/ext4/super.rst).
const (
	ext4SuperAt    = 1024
	ext4SuperBytes = 1024
)

// lookInto opens a folder, and asks how full its file system is, which some answer only while they are well.
func lookInto(path string) (volume.Usage, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return volume.Usage{}, fmt.Errorf("open %s: %w", path, err)
	}
	_ = unix.Close(fd)
	u, err := statUsage(path)
	if err != nil {
		return u, fmt.Errorf("statfs of %s: %w", path, err)
	}
	return u, nil
}

// DeviceGone reports whether a mounted device is no more: a block volume shows a device node, which keeps no device.
func (h *Host) DeviceGone(m volume.Mount) bool { return h.kernelName(devno{m.Major, m.Minor}) == "" }

// kernelName gives the name of a device, such as dm-3; "" where there is none.
func (h *Host) kernelName(n devno) string {
	path, err := os.Readlink(filepath.Join(h.sys, "dev/block", n.String()))
	if err != nil {
		return ""
	}
	return filepath.Base(path)
}

// btrfsErrors sums up what a btrfs has counted on its devices (Documentation/ABI/testing/sysfs-fs-btrfs; kernel 5.14). The counts
// stand on the disk until "btrfs device stats -z".
func (h *Host) btrfsErrors(device string) (all, damages int64) {
	found, _ := filepath.Glob(filepath.Join(h.sys, "fs/btrfs/*/devices", device)) // the pattern is right
	if device == "" || len(found) == 0 {
		return 0, 0
	}
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(found[0])), "devinfo/*/error_stats"))
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var name string
			var n int64
			if _, err := fmt.Sscan(lines.Text(), &name, &n); err != nil {
				continue
			}
			all += n
			if strings.HasPrefix(name, "corruption") || strings.HasPrefix(name, "generation") {
				damages += n
			}
		}
		_ = f.Close()
	}
	return all, damages
}
