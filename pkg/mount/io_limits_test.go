package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// The pod's cgroup is found in each of the forms in use, and only its own.
func TestSetIOLimits(t *testing.T) {
	const uid = "0b6e2f0c-1111-2222-3333-444455556666"
	d := volume.Device{Major: 253, Minor: 3}
	limits := volume.IOLimits{ReadBytes: 1 << 20, WriteOps: 7}
	for _, path := range []string{
		"kubepods/pod" + uid,
		"kubepods/burstable/pod" + uid,
		"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
		"kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
		"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
	} {
		sys := t.TempDir()
		h := New(nil, nil, WithRoots("/proc", sys))
		fails := func(when string, want error) {
			t.Helper()
			_, err := h.IOLimits(t.Context(), uid, d)
			if err2 := h.SetIOLimits(t.Context(), uid, d, limits); !errors.Is(err, want) || !errors.Is(err2, want) {
				t.Errorf("%s: %v, %v; want %v", when, err, err2, want)
			}
		}
		write := func(file, text string) {
			t.Helper()
			file = filepath.Join(sys, "fs/cgroup", file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		fails("without cgroup v2", volume.ErrPrecondition)
		write("cgroup.controllers", "io")
		write("system.slice/pod"+uid+"/io.max", "")
		fails("without kubelet", volume.ErrPrecondition)
		write(filepath.Dir(path)+"/pod0b6e2f0c-1111-2222-3333-444455556667/io.max", "")
		fails("without the pod", volume.ErrNotFound)
		write(path+"/cgroup.procs", "")
		fails("without the controller", volume.ErrPrecondition)
		// A file holds one line, where the kernel has one for each device: what is there of another device is not taken for ours.
		write(path+"/io.max", "253:30 rbps=1 wbps=max riops=max wiops=max\n")
		if is, err := h.IOLimits(t.Context(), uid, d); err != nil || is != (volume.IOLimits{}) {
			t.Errorf("%s: %+v, %v", path, is, err)
		}
		write(path+"/io.max", "")
		if err := h.SetIOLimits(t.Context(), uid, d, limits); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if is, err := h.IOLimits(t.Context(), uid, d); err != nil || is != limits {
			t.Errorf("%s: %+v, %v", path, is, err)
		}
		write(path+"/io.max", "253:3 rbps=what\n")
		if err := h.SetIOLimits(t.Context(), uid, d, limits); err == nil {
			t.Errorf("%s: no error where io.max is not understood", path)
		}
	}
}
