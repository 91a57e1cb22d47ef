//go:build vm

package copy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/lvm"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

const (
	vg      = "copies"
	mib     = 1 << 20
	srcSize = 32 * mib
	dstSize = 40 * mib
)

func sh(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return strings.TrimSpace(string(out))
}

func lv(t *testing.T, args ...string) {
	t.Helper()
	sh(t, append([]string{"lvm", "lvcreate", "-q", "-y", "--config", "backup{backup=0 archive=0} activation{udev_sync=0 udev_rules=0 monitoring=0}"}, args...)...)
}

// machine is a volume group with a pool that zeroes and one that does not, on disks full of what others left.
type machine struct{ *lvm.LVM }

func newMachine(t *testing.T) machine {
	disk, err := os.OpenFile("/dev/vda", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < 320*mib; at += mib {
		if _, err := disk.WriteAt(former, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(disk.Sync(), disk.Close()); err != nil {
		t.Fatal(err)
	}
	sh(t, "lvm", "vgcreate", "-q", "-ff", "-y", vg, "/dev/vda")
	t.Cleanup(func() { sh(t, "lvm", "vgremove", "-q", "-ff", "-y", vg) })
	lv(t, "--type", "thin-pool", "-c", "64k", "-Zy", "-L", "64m", "-n", "zeroing", vg)
	lv(t, "--type", "thin-pool", "-c", "128k", "-Zn", "-L", "64m", "-n", "leaving", vg)
	l, err := lvm.New(&run.Local{}, lvm.Config{Owner: "copy.test", VolumeGroups: []string{vg}})
	if err != nil {
		t.Fatal(err)
	}
	return machine{l}
}

func (m machine) device(t *testing.T, name string) volume.Device {
	t.Helper()
	d, err := m.Device(t.Context(), volume.Ref{VG: vg, LV: name})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (m machine) make(t *testing.T, name, kind, size string) volume.Device {
	t.Helper()
	if kind == "thick" {
		lv(t, "-Wn", "-Zn", "-L", size, "-n", name, vg)
	} else {
		lv(t, "-kn", "-V", size, "--thinpool", vg+"/"+kind, "-n", name)
	}
	t.Cleanup(func() { sh(t, "lvm", "lvremove", "-q", "-y", vg+"/"+name) })
	return m.device(t, name)
}

// content is data, zeros, and data that ends in the middle of a chunk.
func content() []byte {
	p := make([]byte, srcSize)
	for _, part := range [][2]int{{0, 4096}, {3 * mib, 5*mib + 4096}, {9*mib - 512, 9*mib + 512}, {srcSize - 70<<10, srcSize}} {
		for i := part[0]; i < part[1]; i++ {
			p[i] = byte(i>>9) | 1
		}
	}
	return p
}

func TestCopyOnRealDevices(t *testing.T) {
	m := newMachine(t)
	want := content()
	copier := New(Config{Unwritten: m.Unwritten})
	for _, c := range []struct {
		from, to string
		unit     int64
	}{
		{"thick", "thick", 0},
		{"thick", "zeroing", 512},
		{"thick", "leaving", 128 << 10},
		{"zeroing", "thick", 0},
		{"zeroing", "leaving", 128 << 10},
	} {
		t.Run(c.from+" to "+c.to, func(t *testing.T) {
			src, dst := m.make(t, "src", c.from, "32m"), m.make(t, "dst", c.to, "40m")
			write(t, src.Path, want)
			if unit, err := m.Unwritten(dst); err != nil || unit != c.unit {
				t.Fatalf("a new %s volume: %d, %v; want %d", c.to, unit, err, c.unit)
			}
			before := read(t, dst.Path)
			if err := copier.Copy(t.Context(), src, dst, nil); err != nil {
				t.Fatal(err)
			}
			got := read(t, dst.Path)
			if len(got) != dstSize || !bytes.Equal(got[:srcSize], want) {
				t.Error("the destination is not what the source is")
			}
			if !bytes.Equal(got[srcSize:], before[srcSize:]) {
				t.Error("what lies beyond the source was changed")
			}
			if unit, err := m.Unwritten(dst); err != nil || unit != 0 {
				t.Errorf("written to: %d, %v", unit, err)
			}
			if used := sh(t, "lvm", "lvs", "--noheadings", "-o", "data_percent", vg+"/dst"); c.to != "thick" && !(used >= "5." && used < "9.") {
				t.Errorf("%s %% of the thin volume is allocated", used) // 2.2 of 40 MiB, and what of chunks is beside it
			}
		})
	}
	t.Run("an external origin is no blank", func(t *testing.T) {
		m.make(t, "origin", "thick", "32m")
		sh(t, "lvm", "lvchange", "-q", "-an", vg+"/origin")
		sh(t, "lvm", "lvchange", "-q", "-pr", vg+"/origin")
		lv(t, "-s", "-kn", "-ay", "--thinpool", vg+"/zeroing", "-n", "child", vg+"/origin")
		t.Cleanup(func() { sh(t, "lvm", "lvremove", "-q", "-y", vg+"/child") })
		if unit, err := m.Unwritten(m.device(t, "child")); err != nil || unit != 0 {
			t.Errorf("%d, %v", unit, err)
		}
	})
	t.Run("another device", func(t *testing.T) {
		src, dst := m.make(t, "src", "thick", "32m"), m.make(t, "dst", "thick", "32m")
		wrong := src
		wrong.Minor = dst.Minor
		if err := copier.Copy(t.Context(), wrong, dst, nil); err == nil || !strings.Contains(err.Error(), "not the device node") {
			t.Errorf("of a node that is another device: %v", err)
		}
		wrong = src
		wrong.SizeBytes = 28 * mib
		dst.SizeBytes = 36 * mib
		if err := copier.Copy(t.Context(), wrong, dst, nil); err == nil || !strings.Contains(err.Error(), "33554432 bytes, not 37748736") {
			t.Errorf("onto a device that has become smaller: %v", err)
		}
	})
	t.Run("throttled", func(t *testing.T) {
		src, dst := m.make(t, "src", "thick", "32m"), m.make(t, "dst", "thick", "32m")
		start := time.Now()
		if err := New(Config{Unwritten: m.Unwritten, BytesPerSecond: 8 * mib}).Copy(t.Context(), src, dst, nil); err != nil {
			t.Fatal(err)
		}
		took, implied := time.Since(start), time.Duration(srcSize-blockBytes)*time.Second/(8*mib) // the first block is free
		t.Logf("32 MiB at 8 MiB a second: %s", took)
		if took < implied {
			t.Errorf("32 MiB at 8 MiB a second took %s, not %s", took, implied)
		}
	})
	t.Run("full pool", func(t *testing.T) {
		sh(t, "lvm", "lvchange", "-q", "--errorwhenfull", "y", vg+"/zeroing")
		src, dst := m.make(t, "src", "thick", "100m"), m.make(t, "dst", "zeroing", "100m")
		write(t, src.Path, bytes.Repeat(former, 100))
		err := copier.Copy(t.Context(), src, dst, nil)
		if !errors.Is(err, volume.ErrNoSpace) || !strings.Contains(err.Error(), dst.String()) {
			t.Errorf("got %v", err)
		}
	})
}

func TestContract(t *testing.T) {
	m, serial := newMachine(t), 0
	contract.Copy(t, contract.CopyBench{
		Copier: New(Config{Unwritten: m.Unwritten}),
		Device: func(t *testing.T, thin bool, bytes int64) volume.Device {
			serial++
			kind := "thick"
			if thin {
				kind = "zeroing"
			}
			return m.make(t, fmt.Sprint("lv", serial), kind, fmt.Sprintf("%db", bytes))
		},
		Hold: func(t *testing.T, d volume.Device) func() {
			f, err := os.OpenFile(d.Path, os.O_RDONLY|unix.O_EXCL, 0)
			if err != nil {
				t.Fatal(err)
			}
			return func() { _ = f.Close() }
		},
		WriteFile: func(path, content string) error { return os.WriteFile(path, []byte(content), 0o600) },
		ReadFile: func(path string) (string, error) {
			data, err := os.ReadFile(path)
			return string(data), err
		},
	})
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close()) // not synced: what is in the page cache is copied too
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
