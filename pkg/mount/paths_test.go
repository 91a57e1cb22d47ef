package mount_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/mount"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// plainBench is this machine with what needs no device.
func plainBench(h *mount.Host, dir string) contract.MountBench {
	return contract.MountBench{
		Mounter:   h,
		Dir:       dir,
		Mkdir:     func(p string) error { return os.Mkdir(p, 0o755) },
		WriteFile: func(p, content string) error { return os.WriteFile(p, []byte(content), 0o644) },
		ReadFile: func(p string) (string, error) {
			b, err := os.ReadFile(p)
			return string(b), err
		},
		Symlink: os.Symlink,
		Chmod:   unix.Chmod,
		Lstat:   lstat,
	}
}

func lstat(p string) (contract.File, error) {
	var st unix.Stat_t
	switch err := unix.Lstat(p, &st); {
	case errors.Is(err, unix.ENOENT):
		return contract.File{}, nil
	case err != nil:
		return contract.File{}, err
	}
	kind := map[uint32]byte{unix.S_IFDIR: 'd', unix.S_IFREG: 'f', unix.S_IFLNK: 'l', unix.S_IFBLK: 'b'}[st.Mode&unix.S_IFMT]
	return contract.File{Kind: kind, Mode: st.Mode &^ unix.S_IFMT, GID: int(st.Gid), Size: st.Size}, nil
}

func resolvedTempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPaths(t *testing.T) {
	contract.MountPaths(t, plainBench(mount.New(nil, nil), resolvedTempDir(t)))
}

// recorder is a seam that keeps the effects.
type recorder struct {
	seen []string
	fail error // given in place of the effect
}

func (r *recorder) seam(_ context.Context, e effect.Effect, do func() error) error {
	r.seen = append(r.seen, e.Op+" "+e.Detail)
	if r.fail != nil {
		return r.fail
	}
	return do()
}

// Each change passes the seam; looking does not, nor does what is done already.
func TestPathEffects(t *testing.T) {
	r := &recorder{}
	h, dir, ctx := mount.New(nil, r.seam), resolvedTempDir(t), t.Context()
	folder, file := filepath.Join(dir, "parent/folder"), filepath.Join(dir, "file")
	for range 2 {
		_, err1 := h.Make(ctx, folder, false)
		_, err2 := h.Make(ctx, file, true)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := errors.Join(h.Remove(ctx, folder), h.Remove(ctx, file)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"mkdir " + dir + "/parent", "mkdir " + folder, "create " + file, "remove " + folder, "remove " + file}
	if !slices.Equal(r.seen, want) {
		t.Errorf("effects %q, want %q", r.seen, want)
	}

	r.fail = errors.New("refused")
	if _, err := h.Make(ctx, file, true); !errors.Is(err, r.fail) {
		t.Errorf("Make: %v", err)
	}
	for what, err := range map[string]error{
		"Unmount":  h.Unmount(ctx, file),
		"Bind":     h.Bind(ctx, dir, file, volume.MountOptions{}),
		"SetGroup": h.SetGroup(ctx, dir, 1<<20),
	} {
		if !errors.Is(err, r.fail) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestSetGroupInterrupted(t *testing.T) {
	h, dir := mount.New(nil, nil), resolvedTempDir(t)
	gid := os.Getgid()
	below := filepath.Join(dir, "below")
	if err := errors.Join(os.Chmod(dir, 0o700), os.Mkdir(below, 0o700), os.WriteFile(filepath.Join(below, "f"), nil, 0o600),
		os.Symlink("/", filepath.Join(below, "link"))); err != nil {
		t.Fatal(err)
	}
	mode := func(p string) uint32 {
		f, err := lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		return f.Mode
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.SetGroup(ctx, dir, gid); !errors.Is(err, context.Canceled) || mode(dir) != 0o700 {
		t.Errorf("interrupted: %v, the folder has %o", err, mode(dir))
	}
	if err := h.SetGroup(t.Context(), dir, gid); err != nil || mode(dir) != 0o2770 || mode(below) != 0o2770 || mode(filepath.Join(below, "f")) != 0o660 {
		t.Errorf("%v: %o %o %o", err, mode(dir), mode(below), mode(filepath.Join(below, "f")))
	}
	if err := h.SetGroup(t.Context(), filepath.Join(below, "link"), gid); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("of a link: %v", err)
	}
}
