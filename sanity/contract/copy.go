package contract

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// CopyBench is the machine that a Copier works on.
type CopyBench struct {
	lifecycle.Copier
	// Device gives the device of a new logical volume, which is there until the test ends.
	Device func(t *testing.T, thin bool, bytes int64) volume.Device
	// Hold keeps a device open, and claimed, as a mounted file system does.
	Hold      func(t *testing.T, d volume.Device) (release func())
	WriteFile func(path, content string) error
	ReadFile  func(path string) (string, error)
}

const copyBytes = int64(16) << 20

// Copy is the suite of a Copier.
func Copy(t *testing.T, b CopyBench) {
	for _, tc := range []struct {
		name string
		test func(*testing.T, CopyBench)
	}{
		{"Content", copyContent},
		{"Refused", copyRefused},
		{"Cancelled", copyCancelled},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, b) })
	}
}

func copyContent(t *testing.T, b CopyBench) {
	for _, from := range []bool{false, true} {
		for _, to := range []bool{false, true} {
			src, dst := b.Device(t, from, copyBytes), b.Device(t, to, copyBytes+8<<20)
			mountMust(t, b.WriteFile(src.Path, strings.Repeat("x", 4096)+strings.Repeat("\x00", 1<<20)+written))
			var done atomic.Int64
			mountMust(t, b.Copy(t.Context(), src, dst, func(n int64) { done.Add(n) }))
			if done.Load() != copyBytes {
				t.Errorf("%d bytes are said to be done, not %d", done.Load(), copyBytes)
			}
			want, err := b.ReadFile(src.Path)
			mountMust(t, err)
			got, err := b.ReadFile(dst.Path)
			mountMust(t, err)
			if !strings.HasPrefix(got, want) || len(want) < 1<<20+len(written) {
				t.Errorf("thin %t to thin %t: the destination does not hold what the source does", from, to)
			}
		}
	}
}

// What cannot be is refused, and the destination is not touched.
func copyRefused(t *testing.T, b CopyBench) {
	src, dst, small := b.Device(t, false, copyBytes), b.Device(t, false, copyBytes), b.Device(t, false, copyBytes/2)
	mountMust(t, b.WriteFile(src.Path, written))
	mountMust(t, b.WriteFile(dst.Path, "its own"))
	mountMust(t, b.WriteFile(small.Path, "its own"))
	none := func(int64) { t.Error("something is said to be done") }
	if err := b.Copy(t.Context(), src, small, none); err == nil {
		t.Error("onto a smaller device: OK")
	}
	release := b.Hold(t, dst)
	if err := b.Copy(t.Context(), src, dst, none); !errors.Is(err, volume.ErrBusy) || !strings.Contains(err.Error(), dst.Path) {
		t.Errorf("onto a device in use: %v", err)
	}
	release()
	for _, d := range []volume.Device{dst, small} {
		if got, err := b.ReadFile(d.Path); err != nil || !strings.HasPrefix(got, "its own") {
			t.Errorf("%s holds %.10q, %v", d, got, err)
		}
	}
	mountMust(t, b.Copy(t.Context(), src, dst, func(int64) {}))
}

func copyCancelled(t *testing.T, b CopyBench) {
	src, dst := b.Device(t, false, copyBytes), b.Device(t, true, copyBytes)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("for this reason")
	if err := b.Copy(ctx, src, dst, func(int64) { cancel(because) }); !errors.Is(err, because) {
		t.Errorf("got %v", err)
	}
	if err := b.Copy(ctx, src, dst, func(int64) { t.Error("it went on") }); !errors.Is(err, because) {
		t.Errorf("before it began: %v", err)
	}
}
