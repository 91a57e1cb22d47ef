package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// How deep below the root the cgroup of a pod can be: kubelet.slice/kubelet-kubepods.slice/...-burstable.slice/...-pod<uid>.slice
// is what kind makes.
const podDepth = 5

// IOLimits implements lifecycle.Cgroups.
func (h *Host) IOLimits(_ context.Context, pod string, d volume.Device) (volume.IOLimits, error) {
	file, err := h.ioMax(pod)
	if err != nil {
		return volume.IOLimits{}, err
	}
	return readIOMax(file, d)
}

// SetIOLimits implements lifecycle.Cgroups: it writes io.max of the pod's cgroup (cgroup v2, Documentation/admin-guide/cgroup-v2.rst
// "IO"), and reads it again. Nothing is written where it says so already.
func (h *Host) SetIOLimits(ctx context.Context, pod string, d volume.Device, l volume.IOLimits) error {
	file, err := h.ioMax(pod)
	if err != nil {
		return err
	}
	if is, err := readIOMax(file, d); err != nil || is == l {
		return err
	}
	line := fmt.Sprintf("%d:%d rbps=%s wbps=%s riops=%s wiops=%s", d.Major, d.Minor,
		ioMaxValue(l.ReadBytes), ioMaxValue(l.WriteBytes), ioMaxValue(l.ReadOps), ioMaxValue(l.WriteOps))
	err = h.effects.Do(ctx, "iomax", file+" "+line, func() error { return writeTo(file, line) })
	if err != nil {
		return fmt.Errorf("limit the I/O of pod %s on %s: %w", pod, d, err)
	}
	is, err := readIOMax(file, d)
	if err == nil && is != l {
		err = fmt.Errorf("%s was written to %s, which then says %+v", line, file, is)
	}
	return err
}

// writeTo writes to a file of the kernel's, which must be there; one write is one command to it.
func writeTo(file, line string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

func ioMaxValue(n uint64) string {
	if n == 0 {
		return "max"
	}
	return strconv.FormatUint(n, 10)
}

// readIOMax reads the line of the device, "253:3 rbps=1048576 wbps=max riops=max wiops=max"; without one nothing is limited.
func readIOMax(file string, d volume.Device) (l volume.IOLimits, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return l, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != fmt.Sprintf("%d:%d", d.Major, d.Minor) {
			continue
		}
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil && value != "max" {
				return l, fmt.Errorf("%s: %q is not understood", file, strings.TrimSpace(line))
			}
			switch key {
			case "rbps":
				l.ReadBytes = n
			case "wbps":
				l.WriteBytes = n
			case "riops":
				l.ReadOps = n
			case "wiops":
				l.WriteOps = n
			}
		}
	}
	return l, nil
}

func (h *Host) cgroupRoot() string { return filepath.Join(h.sys, "fs/cgroup") }

// ioMax gives the file io.max of the pod's cgroup. Its errors are those of lifecycle.Cgroups.
func (h *Host) ioMax(pod string) (string, error) {
	if _, err := os.Stat(filepath.Join(h.cgroupRoot(), "cgroup.controllers")); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s is no cgroup v2, without which I/O cannot be limited", volume.ErrPrecondition, h.cgroupRoot())
	} else if err != nil {
		return "", err
	}
	folder, kubelets, err := findPod(h.cgroupRoot(), pod, 0)
	switch {
	case err != nil:
		return "", err
	case folder == "" && !kubelets:
		return "", fmt.Errorf("%w: kubelet has no cgroups below %s; the driver's pod must see the host's: mount the host's /sys/fs/cgroup there", volume.ErrPrecondition, h.cgroupRoot())
	case folder == "":
		return "", fmt.Errorf("%w: pod %s has no cgroup below %s", volume.ErrNotFound, pod, h.cgroupRoot())
	}
	file := filepath.Join(folder, "io.max")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf(`%w: the controller "io" is not enabled for the cgroups of pods (%s is missing); on the host: systemctl set-property kubepods.slice IOAccounting=yes, or write "+io" to cgroup.subtree_control of each cgroup above`,
			volume.ErrPrecondition, file)
	} else if err != nil {
		return "", err
	}
	return file, nil
}

// findPod looks for the cgroup of the pod, in the forms of cgroup.go. kubelets: there are cgroups of a kubelet.
func findPod(folder, pod string, depth int) (found string, kubelets bool, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", false, err
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".slice")
		switch i := strings.LastIndex(name, "pod"); {
		case !e.IsDir():
		case depth > 0 && i >= 0 && strings.ReplaceAll(name[i+len("pod"):], "_", "-") == pod:
			return filepath.Join(folder, e.Name()), true, nil
		case depth < podDepth && (strings.Contains(name, "kubepods") || depth == 0 && strings.HasPrefix(name, "kubelet") || isQoS(name)):
			below, there, err := findPod(filepath.Join(folder, e.Name()), pod, depth+1)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a cgroup that is gone by now
				return "", true, err
			}
			kubelets = kubelets || there || strings.Contains(name, "kubepods")
			if below != "" {
				return below, true, nil
			}
		}
	}
	return "", kubelets, nil
}

func isQoS(name string) bool { return name == "burstable" || name == "besteffort" }
