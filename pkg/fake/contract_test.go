package fake_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func TestLVMContract(t *testing.T) { contract.LVM(t, &administrator{fake.New(), 0}) }

// administrator is the contract's view of the machine.
type administrator struct {
	*fake.Machine
	serial int
}

func (a *administrator) name(prefix string) string {
	a.serial++
	return fmt.Sprint(prefix, a.serial)
}

func (a *administrator) NewLVM(_ *testing.T, o contract.LVMOptions) contract.LVMSurface {
	return a.Connect(fake.Config{Owner: o.Owner, Groups: o.VolumeGroups, Overcommit: o.ThinOvercommit}).LVM
}

func (a *administrator) NewGroup(t *testing.T, pvs int) string {
	vg := a.name("vg")
	sizes := make([]int64, pvs)
	for i := range sizes {
		sizes[i] = contract.LVMExtentsPerPV * contract.LVMExtentBytes
	}
	a.AddGroup(vg, contract.LVMExtentBytes, sizes...)
	t.Cleanup(func() { a.DropGroup(vg) })
	return vg
}

func (a *administrator) NewPool(_ *testing.T, pool volume.Ref, bytes int64) {
	a.AddPool(pool.VG, pool.LV, bytes)
}

func (a *administrator) Make(_ *testing.T, r volume.Ref, bytes int64, tags ...string) {
	a.AddLV(r, volume.Layout{Type: volume.Linear}, bytes, tags...)
}

func (a *administrator) MakeSnapshot(_ *testing.T, origin volume.Ref, name string) {
	a.AddSnapshot(origin, name, contract.LVMExtentBytes)
}

func (a *administrator) Destroy(_ *testing.T, r volume.Ref) { a.DropLV(r) }

func (a *administrator) Deactivate(_ *testing.T, r volume.Ref) {
	a.EditLV(r, func(s *fake.State) { s.Active = false })
}

func (a *administrator) Hold(_ *testing.T, r volume.Ref) (release func()) { return a.HoldDevice(r) }

func (a *administrator) Mount(t *testing.T, r volume.Ref) (release func()) {
	tools := a.Connect(fake.Config{Groups: []string{"*"}})
	d, err := tools.LVM.Device(t.Context(), r)
	if err == nil {
		err = tools.Filesystems.Format(t.Context(), d, volume.Format{FS: volume.Ext4})
	}
	place := "/tmp/" + a.name("mount")
	if err == nil {
		_, err = tools.Paths.Make(t.Context(), place, false)
	}
	if err == nil {
		err = tools.Mounts.Mount(t.Context(), d, place, volume.MountOptions{FS: volume.Ext4})
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tools.Mounts.Unmount(t.Context(), place); err != nil {
			t.Error(err)
		}
	}
}

func (a *administrator) Scribble(_ *testing.T, r volume.Ref, what string) {
	if what == "group of the same name" {
		what = "LVM2_member"
	}
	a.SetSignature(r, what)
}

func (a *administrator) Signature(t *testing.T, r volume.Ref) string {
	tools := a.Connect(fake.Config{Groups: []string{"*"}})
	d, err := tools.LVM.Device(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tools.Filesystems.Probe(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return c.FS
}

func (a *administrator) Break(_ *testing.T, vg string) { a.LosePV(vg, "/dev/"+vg+"0") }

func (a *administrator) Facts(_ *testing.T, r volume.Ref) (contract.LVMFacts, bool) {
	f, ok := a.LV(r)
	return contract.LVMFacts{UUID: f.UUID, SizeBytes: f.SizeBytes, SegType: string(f.Type), Stripes: f.Stripes, Tags: f.Tags}, ok
}

func (a *administrator) Settings(_ *testing.T, r volume.Ref) (volume.Mutable, []string) {
	return a.Machine.Settings(r)
}

func (a *administrator) Commands() int {
	n := 0
	for program, count := range a.Machine.Commands() {
		if strings.HasPrefix(program, "lv") || program == "fullreport" {
			n += count
		}
	}
	return n
}

func TestMountContract(t *testing.T) { contract.Mount(t, newBench) }

func newBench(t *testing.T) contract.MountBench {
	m := fake.New()
	m.AddGroup("vg", 4*mib, 1<<40)
	tools := m.Connect(fake.Config{Owner: owner, Groups: []string{"vg"}})
	if err := m.Mkdir("/tmp/bench"); err != nil {
		t.Fatal(err)
	}
	byMinor := map[uint32]volume.Ref{}
	device := func(t *testing.T, r volume.Ref) volume.Device {
		d, err := tools.LVM.Device(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		byMinor[d.Minor] = r
		return d
	}
	return contract.MountBench{
		Mounter: mounter{tools.Mounts, tools.Paths, tools.Filesystems},
		Dir:     "/tmp/bench",
		Device: func(t *testing.T, bytes int64) volume.Device {
			r := volume.Ref{VG: "vg", LV: fmt.Sprint("lv", len(byMinor))}
			m.AddLV(r, volume.Layout{Type: volume.Linear}, bytes)
			return device(t, r)
		},
		Enlarge: func(t *testing.T, d volume.Device, bytes int64) volume.Device {
			r := byMinor[d.Minor]
			m.EditLV(r, func(s *fake.State) { s.SizeBytes = bytes })
			return device(t, r)
		},
		Put: func(t *testing.T, d volume.Device, signature string) {
			put(t, m, tools, d, byMinor[d.Minor], signature)
		},
		Hold: func(_ *testing.T, how string, _ volume.Device, path string) (int, func()) {
			if how == contract.HoldNamespace {
				return m.PrivateNamespace()
			}
			return m.Hold(how, path)
		},
		Mkdir:     m.Mkdir,
		WriteFile: m.WriteFile,
		ReadFile:  m.ReadFile,
		Symlink:   m.Symlink,
		Chmod:     m.Chmod,
		Lstat: func(path string) (contract.File, error) {
			f, err := m.Lstat(path)
			return contract.File(f), err
		},
	}
}

type mounter struct {
	*fake.Mounts
	*fake.Paths
	*fake.Filesystems
}

func put(t *testing.T, m *fake.Machine, tools fake.Tools, d volume.Device, r volume.Ref, signature string) {
	t.Helper()
	var err error
	switch signature {
	case "xfs-unfinished":
		m.Tear("mkfs.xfs")
		if tools.Filesystems.Format(t.Context(), d, volume.Format{FS: volume.XFS}) == nil {
			t.Fatal("a killed mkfs succeeded")
		}
	case "ext4", "xfs", "btrfs":
		err = tools.Filesystems.Format(t.Context(), d, volume.Format{FS: volume.FS(signature)})
	case "garbage":
		err = m.WriteFile(d.Path, "garbage")
	case "last-byte":
		err = m.WriteFile(d.Path, strings.Repeat("\x00", 4095)+"x")
	case "after-4k":
		err = m.WriteFile(d.Path, strings.Repeat("\x00", 4096)+"x")
	default:
		m.SetSignature(r, signature)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCopyContract(t *testing.T) {
	m := fake.New()
	m.AddGroup("vg", 4<<20, 1<<30)
	m.AddPool("vg", "pool", 256<<20)
	tools := m.Connect(fake.Config{Groups: []string{"vg"}})
	serial := 0
	contract.Copy(t, contract.CopyBench{
		Copier: tools.Copier, WriteFile: m.WriteFile, ReadFile: m.ReadFile,
		Device: func(t *testing.T, thin bool, bytes int64) volume.Device {
			serial++
			r, layout := volume.Ref{VG: "vg", LV: fmt.Sprint("lv", serial)}, volume.Layout{Type: volume.Linear}
			if thin {
				layout = volume.Layout{Type: volume.Thin, Pool: "pool"}
			}
			m.AddLV(r, layout, bytes)
			t.Cleanup(func() { m.DropLV(r) })
			d, err := tools.LVM.Device(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Hold: func(_ *testing.T, d volume.Device) func() {
			_, release := m.Hold("open device", d.Path)
			return release
		},
	})
}
