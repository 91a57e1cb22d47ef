//go:build vm

package lvm

import (
	"fmt"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// BenchmarkCreateRemove runs the driver's Create and Remove and the bare tools in turn, so that both see the same machine.
// Run it with -bench CreateRemove -benchtime 10x.
func BenchmarkCreateRemove(b *testing.B) {
	m := newMachine(b)
	vg := m.newGroup(b, 1)
	l := m.lvmOf(b, vg)
	if err := l.Check(b.Context()); err != nil {
		b.Fatal(err)
	}
	var create, remove, lvcreate, lvremove time.Duration
	timed := func(sum *time.Duration, do func()) {
		start := time.Now()
		do()
		*sum += time.Since(start)
	}
	for b.Loop() {
		var r volume.Ref
		timed(&create, func() { r = m.linear(b, l, vg, "v", 1) })
		timed(&remove, func() {
			if err := l.Remove(b.Context(), r, volume.Persistent); err != nil {
				b.Fatal(err)
			}
		})
		timed(&lvcreate, func() { sh(b, "lvm", "lvcreate", "-q", "-y", "-W", "y", "-L", "4m", "-n", "v", vg) })
		timed(&lvremove, func() { sh(b, "lvm", "lvremove", "-q", "-y", vg+"/v") })
	}
	for name, sum := range map[string]time.Duration{"ms/create": create, "ms/remove": remove, "ms/lvcreate": lvcreate, "ms/lvremove": lvremove} {
		b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), name)
	}
}

// BenchmarkLookup asks among many volumes: when nothing has changed, and when somebody has just changed something.
func BenchmarkLookup(b *testing.B) {
	const volumes = 300
	m := newMachine(b)
	vg := m.newGroup(b, 3)
	l := m.lvmOf(b, vg)
	var command []string
	for i := range volumes { // one command for all, or the benchmark is about making them
		command = append(command, fmt.Sprintf("lvcreate -qq -an -Zn -Wn -y -l 1 --addtag %s --addtag %s -n v%d %s",
			volume.OwnerTag("vm.local-lvm.csi.internal"), volume.KindTag(volume.Persistent), i, vg))
	}
	shell(b, command)
	find := func(b *testing.B) {
		if lv, err := l.Lookup(b.Context(), volume.Ref{VG: vg, LV: "v250"}); err != nil || lv.SizeBytes != contract.LVMExtentBytes {
			b.Fatalf("%+v, %v", lv, err)
		}
	}
	find(b)
	b.Run("unchanged", func(b *testing.B) {
		before := m.Commands()
		for b.Loop() {
			find(b)
		}
		if n := m.Commands() - before; n != 0 {
			b.Errorf("%d LVM commands", n)
		}
	})
	b.Run("changed", func(b *testing.B) {
		before := m.Commands()
		for b.Loop() {
			s := *l.inventory.state.Load()
			g := *s.groups[vg]
			g.marks = map[string]commitMark{"/dev/none": {}}
			l.inventory.state.Store(&state{groups: map[string]*group{vg: &g}, reported: s.reported})
			find(b)
		}
		if n := m.Commands() - before; n != 0 {
			b.Errorf("%d LVM commands", n)
		}
	})
	b.Run("report", func(b *testing.B) {
		for b.Loop() {
			if _, err := l.inventory.report(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("create and remove", func(b *testing.B) {
		for b.Loop() {
			r := m.linear(b, l, vg, "v", 1)
			if err := l.Remove(b.Context(), r, volume.Persistent); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lvcreate and lvremove", func(b *testing.B) {
		for b.Loop() {
			sh(b, "lvm", "lvcreate", "-q", "-y", "-W", "y", "-L", "4m", "-n", "v", vg)
			sh(b, "lvm", "lvremove", "-q", "-y", vg+"/v")
		}
	})
}
