package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// SocketName is the socket in the state folder at which the running driver tells of itself: HTTP, one answer, Live as JSON. It is there, and not
// in a file, because what it tells changes each moment and means nothing after a restart; and not at the CSI socket, whose calls are the CO's.
// Whoever may open the state folder may ask, and can change nothing by it.
const SocketName = "status.sock"

// ErrNotRunning says that no driver runs on the state folder.
var ErrNotRunning = errors.New("no driver is running")

// askBound is how long a driver may take to tell of itself.
const askBound = 5 * time.Second

// Serve tells what live gives, until ctx ends. The caller holds the lock of the state folder, so a socket that is there is nobody's.
func Serve(ctx context.Context, stateDir string, live func(context.Context) *Live) error {
	l, err := listen(stateDir)
	if err != nil {
		return fmt.Errorf("listen on %s in the state folder: %w", SocketName, err)
	}
	server := &http.Server{
		ReadHeaderTimeout: askBound,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				http.Error(w, "it can only be read", http.StatusMethodNotAllowed)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(live(r.Context())) // who has left hears nothing
		}),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// inFolder calls do with a path of the socket that is short enough for one, however long that of the folder is (unix(7): 108 bytes).
func inFolder(stateDir string, do func(path string) error) error {
	folder, err := os.Open(stateDir)
	if err != nil {
		return err
	}
	defer folder.Close() //nolint:errcheck // opened for reading
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), SocketName))
}

func listen(stateDir string) (l *net.UnixListener, err error) {
	err = inFolder(stateDir, func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			l.SetUnlinkOnClose(false) // the path is good here only; the next driver removes it
		}
		return err
	})
	return l, err
}

// AskDriver asks the driver that runs on the state folder. ErrNotRunning: none does.
func AskDriver(ctx context.Context, stateDir string) (live *Live, err error) {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = inFolder(stateDir, func(path string) error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
			return err
		})
		return conn, err
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://driver/", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w on %s", ErrNotRunning, filepath.Clean(stateDir))
	case err != nil:
		return nil, fmt.Errorf("ask the running driver: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	err = json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&live)
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask the running driver: %w", err)
	case resp.StatusCode != http.StatusOK, live == nil:
		return nil, fmt.Errorf("ask the running driver: what answers at %s is none (%s)", filepath.Join(stateDir, SocketName), resp.Status)
	}
	return live, nil
}
