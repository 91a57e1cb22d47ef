package rpc

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestParseEndpoint(t *testing.T) {
	long := "/" + strings.Repeat("x", maxSocketPath-1)
	for _, c := range []struct{ endpoint, want string }{
		{"unix:///csi/csi.sock", "/csi/csi.sock"},
		{"unix:/csi/csi.sock", "/csi/csi.sock"},
		{"/csi/csi.sock", "/csi/csi.sock"},
		{long, long},
		{long + "x", ""},
		{"", ""},
		{"unix:", ""},
		{"unix://", ""},
		{"unix://csi/csi.sock", ""},
		{"unix:csi.sock", ""},
		{"csi.sock", ""},
		{"@abstract", ""},
		{"unix:@abstract", ""},
		{"tcp://127.0.0.1:10000", ""},
		{"127.0.0.1:10000", ""},
	} {
		got, err := ParseEndpoint(c.endpoint)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v", c.endpoint, got, err)
		}
		if err != nil && (!errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), "--endpoint")) {
			t.Errorf("%q: %v", c.endpoint, err)
		}
	}
}

// case B20
func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false) // as a kill leaves it
	_ = old.Close()
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// case B20
func TestLiveSocketIsLeftAlone(t *testing.T) {
	d := serve(t, &node{}, nil)
	_, err := Listen(t.Context(), d.path)
	if err == nil || !strings.Contains(err.Error(), "another driver is serving on "+d.path) {
		t.Fatal(err)
	}
	_, err = d.GetPluginInfo(t.Context(), nil)
	wantCode(t, err, codes.OK)
}

// case B20
func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	dir := shortDir(t)
	for name, make := range map[string]func(string) error{
		"file":      func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
		"empty":     func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"folder":    func(p string) error { return os.Mkdir(p, 0o700) },
		"fifo":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		"link":      func(p string) error { return os.Symlink("/nowhere", p) },
		"no-folder": nil,
	} {
		path := filepath.Join(dir, name)
		if make == nil {
			path = filepath.Join(path, "s")
		} else if err := make(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		l, err := Listen(t.Context(), path)
		if err == nil {
			l.Close()
			t.Errorf("%s: no error", name)
		}
		if after, _ := os.Lstat(path); before != nil && (after == nil || !os.SameFile(before, after)) {
			t.Errorf("%s: it is not there any more", name)
		}
	}
}

func TestGracefulStop(t *testing.T) {
	g := newGate()
	d := serve(t, &node{publish: g.pass}, nil)
	answered := make(chan error, 1)
	go func() {
		_, err := d.NodePublishVolume(t.Context(), publishRequest("n/vg/a"))
		answered <- err
	}()
	<-g.begun
	wantCode(t, g.abandon(t.Context(), func(ctx context.Context) error {
		_, err := d.NodePublishVolume(ctx, publishRequest("n/vg/b"))
		return err
	}), codes.Canceled)

	d.stop()
	eventually(t, "new calls are refused", func() bool {
		c, err := net.Dial("unix", d.path)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case err := <-d.ended:
		t.Fatalf("stopped while two calls run: %v", err)
	default:
	}
	if _, err := os.Lstat(d.path); err != nil {
		t.Errorf("the socket file is gone before the end: %v", err)
	}

	g.end <- nil
	g.end <- nil
	wantCode(t, <-answered, codes.OK)
	if err := <-d.ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	close(d.ended)
	if _, err := os.Lstat(d.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file is left: %v", err)
	}
}

// The write that nobody waits for holds up the stop by itself too.
func TestGracefulStopWaitsForBackground(t *testing.T) {
	g := newGate()
	d := serve(t, &node{publish: g.pass}, nil)
	wantCode(t, g.abandon(t.Context(), func(ctx context.Context) error {
		_, err := d.NodePublishVolume(ctx, publishRequest("n/vg/v"))
		return err
	}), codes.Canceled)
	d.stop()
	select {
	case <-d.ended:
		t.Fatal("stopped while a write runs")
	case <-time.After(200 * time.Millisecond): // longer than a stop with nothing to wait for
	}
	g.end <- nil
	if err := <-d.ended; err != nil {
		t.Error(err)
	}
	close(d.ended)
}

// A driver that was replaced at its path does not take the file away from the other.
func TestRemoveOnlyItsOwnFile(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	next, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	l.Remove()
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	next.Remove()
	if _, err := os.Lstat(path); err == nil {
		t.Error("not removed")
	}
}

// A call that hangs does not hold up the end for ever, with a caller or without.
func TestStopIsBounded(t *testing.T) {
	g := newGate()
	d := serve(t, &node{publish: g.pass}, nil)
	answered := make(chan error, 1)
	go func() {
		_, err := d.NodePublishVolume(t.Context(), publishRequest("n/vg/a"))
		answered <- err
	}()
	<-g.begun
	wantCode(t, g.abandon(t.Context(), func(ctx context.Context) error {
		_, err := d.NodePublishVolume(ctx, publishRequest("n/vg/b"))
		return err
	}), codes.Canceled)

	d.stop()
	select {
	case err := <-d.ended:
		t.Fatalf("ended before it was late: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	d.late()
	wantCode(t, <-answered, codes.Unavailable) // not final: kubelet asks the next driver
	select {
	case err := <-d.ended:
		if err != nil {
			t.Errorf("Serve: %v", err)
		}
		close(d.ended)
	case <-time.After(10 * time.Second):
		t.Error("Serve waits for calls that hang")
	}
	if _, err := os.Lstat(d.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file is left: %v", err)
	}
	g.end <- nil
	g.end <- nil
}

func TestServeAfterTheEnd(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := NewServer(Services{Identity: csi.UnimplementedIdentityServer{}})
	s.grpc.GracefulStop() // as the end of ctx does, before Serve has got that far
	if err := s.Serve(ctx, context.Background(), l); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket file is left")
	}
}
