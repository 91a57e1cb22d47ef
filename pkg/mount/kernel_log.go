package mount

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// A failed mount has two places to say why: the message queue of the file system context (fsopen(2)), and, for all that a
// file system finds wrong with what is on the device, only the kernel's log. Both are read for the error's text and for nothing else.

const maxMessages = 6

// contextMessages reads the messages of a file system context, each "e text", "w text" or "i text".
func contextMessages(ctx int) []string {
	var out []string
	buf := make([]byte, 1024)
	for len(out) < maxMessages {
		n, err := unix.Read(ctx, buf)
		if err != nil || n <= 0 { // ENODATA: no more
			return out
		}
		text := strings.TrimSpace(string(buf[:n]))
		if len(text) > 2 && text[1] == ' ' {
			text = text[2:]
		}
		out = append(out, text)
	}
	return out
}

// kernelLog is the kernel's log from the moment it was opened. A nil one, where it may not be read, is always empty.
type kernelLog struct{ f *os.File }

func openKernelLog() *kernelLog {
	// Without O_NONBLOCK a read waits for the next line.
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	return &kernelLog{os.NewFile(uintptr(fd), "/dev/kmsg")}
}

func (l *kernelLog) close() {
	if l != nil {
		_ = l.f.Close()
	}
}

// about gives the lines that name the device in brackets, as ext4, xfs and btrfs begin theirs: "XFS (dm-3): ...",
// "EXT4-fs (dm-3): ...", "BTRFS error (device dm-3): ...".
func (l *kernelLog) about(d volume.Device) []string {
	if l == nil {
		return nil
	}
	var out []string
	buf := make([]byte, 8192) // a record is at most this long; one read gives one
	for len(out) < maxMessages {
		n, err := unix.Read(int(l.f.Fd()), buf)
		if err == unix.EPIPE {
			continue
		}
		if err != nil || n <= 0 {
			return out
		}
		if text, ok := aboutDevice(string(buf[:n]), path.Base(d.Path)); ok {
			out = append(out, text)
		}
	}
	return out
}

// aboutDevice takes the text of a record of /dev/kmsg ("6,1234,5678,-;text\n KEY=value\n") that is about the device.
func aboutDevice(record, device string) (string, bool) {
	_, text, ok := strings.Cut(record, ";")
	if !ok {
		return "", false
	}
	text, _, _ = strings.Cut(text, "\n")
	for _, mark := range []string{"(" + device + ")", "(device " + device + ")", "(device " + device + " ", "(device " + device + ":"} {
		if strings.Contains(text, mark) {
			return text, true
		}
	}
	// btrfs says of a mount option only "unrecognized mount option 'x'", with or without a device
	return text, strings.HasPrefix(text, "BTRFS") && strings.Contains(text, "mount option")
}
