package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// maxSocketPath is what fits into sun_path with its final NUL (unix(7)).
const maxSocketPath = 107

// ParseEndpoint gives the path of the socket of an endpoint: unix:///csi/csi.sock, unix:/csi/csi.sock or /csi/csi.sock.
// There is no network port, by design. The error is a volume.ErrInvalid that names --endpoint.
func ParseEndpoint(endpoint string) (string, error) {
	const field, remedy = "--endpoint", "give the path of a unix socket, such as unix:///csi/csi.sock"
	path := endpoint
	if rest, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		path = rest
		if rest, ok := strings.CutPrefix(rest, "//"); ok {
			path = rest // "unix://csi/csi.sock" has lost its third slash, and fails below
		}
	}
	switch {
	case !filepath.IsAbs(path) || strings.Contains(endpoint, "://") && !strings.HasPrefix(endpoint, "unix:///"):
		return "", volume.Invalid(field, endpoint, remedy)
	case len(path) > maxSocketPath:
		return "", volume.Invalid(field, endpoint, fmt.Sprintf("too long; a socket's path has at most %d bytes", maxSocketPath))
	}
	return filepath.Clean(path), nil
}

// Socket is a listening unix socket. Close stops listening and leaves the file; Remove removes it.
type Socket struct {
	*net.UnixListener
	path string
	file fs.FileInfo
}

// Listen listens at the endpoint, mode 0600. What is at its path decides (case B20): nothing, fine; a socket that
// nobody listens at, left behind by a kill, is removed; a live one, or anything that is no socket, is an error and is
// left alone. The folder must exist.
//
// Two that start in the same instant at one stale socket could both find it stale. The lock of the state folder, which is
// taken before, is what keeps two drivers apart; this check is for the one that has another state folder by mistake.
func Listen(ctx context.Context, endpoint string) (*Socket, error) {
	path, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if err := clearPath(ctx, path); err != nil {
		return nil, err
	}
	// The kernel gives the file the mode of the socket, less the umask (unix_bind in net/unix/af_unix.c): it is never open
	// to others, not even for a moment, as it would be with a chmod afterwards.
	private := func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}
	l, err := (&net.ListenConfig{Control: private}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at the endpoint: %w; its folder must exist and be writable", err)
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	file, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return &Socket{UnixListener: u, path: path, file: file}, nil
}

// Remove removes the socket file, if it is still the one that Listen made. Inode numbers are used again; the time tells.
func (s *Socket) Remove() {
	now, err := os.Lstat(s.path)
	if err == nil && os.SameFile(now, s.file) && now.ModTime().Equal(s.file.ModTime()) {
		_ = os.Remove(s.path) // what is left behind is stale, and the next start clears it away
	}
}

// clearPath makes way for a socket at the path, or says why it cannot.
func clearPath(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot look at the endpoint: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("endpoint %s is there and is no socket (%s): it is left alone; remove it, or give another --endpoint", path, info.Mode())
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another driver is serving on %s; stop it, or give another --endpoint", path)
	case errors.Is(err, syscall.ECONNREFUSED): // nobody listens
		klog.FromContext(ctx).Info("removing the socket that an earlier driver left behind", "path", path)
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist): // its driver has ended just now
		return nil
	default: // EAGAIN among them: somebody listens and has no time
		return fmt.Errorf("cannot tell whether another driver is serving on %s: %w", path, err)
	}
}
