//go:build vm

package lvm

import (
	"testing"
)

// Whatever an administrator does, the inventory says what LVM reports; and it asks LVM only where it must.
func TestInventoryFollows(t *testing.T) {
	m := newMachine(t)
	vg := m.NewGroup(t, 3)
	spare := m.NewGroup(t, 1)
	sparePV := "/dev/mapper/" + m.groups[spare][0]
	pv := func(i int) string { return "/dev/mapper/" + m.groups[vg][i] }
	l := m.lvmOf(t, vg)
	check := func(what string, most int) {
		t.Helper()
		before := m.Commands()
		s, err := l.inventory.current(t.Context(), vg)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := m.Commands() - before; n > most {
			t.Errorf("%s took %d LVM commands, at most %d are needed", what, n, most)
		}
		groups, err := l.commands.report(t.Context(), vg, l.cfg.allows)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !same(groups[vg], s.groups[vg]) {
			t.Errorf("%s:\nreport    %+v\n%+v\ninventory %+v\n%+v", what, groups[vg].Group, groups[vg].lvs, s.groups[vg].Group, s.groups[vg].lvs)
		}
	}
	check("begin", 1)
	area := t.TempDir() + "/area"
	sh(t, "dd", "if="+pv(1), "of="+area, "bs=1M", "count=1", "iflag=direct")
	lvm(t, "lvcreate", "-y", "-l", "4", "-n", "cut", vg)
	sh(t, "dd", "if="+area, "of="+pv(1), "bs=1M", "oflag=direct", "conv=notrunc")
	check("a commit that reached some of the disks", 0)
	lvm(t, "lvremove", "-y", vg+"/cut")
	check("the next commit", 0)
	for _, c := range []struct {
		most int
		argv []string
	}{
		{0, []string{"lvcreate", "-y", "-l", "4", "-n", "a", vg, pv(0)}},
		{0, []string{"lvextend", "-l", "+4", vg + "/a", pv(1)}},
		{0, []string{"lvextend", "-i", "2", "-l", "+4", vg + "/a", pv(1), pv(2)}}, // linear and striped in one
		{0, []string{"lvchange", "--addtag", "x=y/z!&#:", vg + "/a"}},
		{0, []string{"lvrename", vg + "/a", vg + "/b-c"}},
		{0, []string{"lvcreate", "-y", "-l", "4", "-n", "r", vg}},
		{0, []string{"lvconvert", "-y", "--type", "raid1", "-m", "1", vg + "/r"}},
		{0, []string{"lvconvert", "-y", "-m", "2", vg + "/r"}},
		{0, []string{"lvcreate", "-y", "--type", "mirror", "-m", "1", "-l", "2", "-n", "old", vg}},
		{0, []string{"lvcreate", "-y", "--type", "thin-pool", "-l", "4", "-n", "pool", vg}},
		{0, []string{"lvcreate", "-y", "-V", "8m", "--thinpool", vg + "/pool", "-n", "t"}},
		{0, []string{"lvcreate", "-y", "-s", "-n", "ts", vg + "/t"}},
		{0, []string{"lvextend", "-l", "+2", vg + "/pool"}},
		{0, []string{"lvcreate", "-y", "-s", "-l", "1", "-n", "s", vg + "/b-c"}},
		{0, []string{"lvcreate", "-y", "-s", "-V", "100m", "-l", "2", "-n", "sparse", vg}},
		{0, []string{"pvchange", "-x", "n", pv(2)}},
		{0, []string{"pvchange", "--metadataignore", "y", pv(1)}},
		{0, []string{"lvcreate", "-y", "-l", "1", "-n", "after", vg}},
	} {
		if _, err := try(append([]string{"lvm", c.argv[0], "--config", byHand}, c.argv[1:]...)...); err != nil {
			t.Fatalf("%v: %v", c.argv, err)
		}
		check(c.argv[0]+" "+c.argv[len(c.argv)-1], c.most)
	}
	lvm(t, "vgmerge", vg, spare)
	m.groups[vg] = append(m.groups[vg], m.groups[spare]...)
	check("another physical volume", 1)
	lvm(t, "vgsplit", vg, spare, sparePV)
	m.groups[vg] = m.groups[vg][:3]
	check("one physical volume less", 1)
}
