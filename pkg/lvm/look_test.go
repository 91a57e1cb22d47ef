package lvm

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What many volumes lie on is asked once in a look: their pool, its devices, the disk, and the metadata of the group.
func TestLookAtManyVolumes(t *testing.T) {
	const volumes = 20
	r := newRig(t)
	text := r.reportText(t, "empty")
	r.answer = func(string, []string) (run.Result, error) { return run.Result{Stdout: text}, nil }
	disk := filepath.Join(r.dev, "vdf")
	if err := os.Truncate(disk, 10); err != nil { // its metadata cannot be read, so LVM is asked each time
		t.Fatal(err)
	}
	s := dmSys{t, r.dm.sys}
	s.node(t.TempDir(), "vdf") // known to sysfs; the file stands for the device
	own := dmPrefix + groupData
	s.device("dm-0", own+lvInternal+"-tdata", false, "vdf")
	s.device("dm-1", own+lvInternal+"-tpool", false, "dm-0")
	for i := range volumes {
		s.device(fmt.Sprintf("dm-%d", i+2), fmt.Sprintf("%s%032d", own, i), false, "dm-1")
		if err := os.WriteFile(filepath.Join(r.dev, fmt.Sprintf("dm-%d", i+2)), make([]byte, block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var pool, data, each atomic.Int32
	dm := &r.watcher.dm
	dm.status = func(name string) (dmStatus, error) {
		var i uint32
		_, err := fmt.Sscanf(name, "empty-v%d", &i)
		return dmStatus{uuid: fmt.Sprintf("%s%032d", own, i), major: 253, minor: i + 2}, err
	}
	dm.told = func(name string) ([]target, error) {
		switch name {
		case "the-dm-0":
			data.Add(1)
			return []target{{"linear", ""}}, nil
		case "the-dm-1":
			pool.Add(1)
			return []target{{"thin-pool", "1 2/1024 3/4096 - rw discard_passdown queue_if_no_space - 1024 "}}, nil
		}
		each.Add(1)
		return []target{{"thin", "0 -"}}, nil
	}
	facts := make([]volume.Facts, volumes)
	look := r.Look()
	var n atomic.Int32
	ask.EachOf(facts, 16, func(f *volume.Facts) {
		ref := volume.Ref{VG: "empty", LV: fmt.Sprintf("v%d", n.Add(1)-1)}
		var err error
		if *f, err = look(t.Context(), ref); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	})
	for _, f := range facts {
		if !f.Active || len(f.Pools) != 1 || f.Pools[0].UsedData != 3 || len(f.Failed) != 1 || f.Failed[0] != (volume.Fault{Device: "vdf", Disk: true, Text: "EOF"}) {
			t.Fatalf("%+v", f)
		}
	}
	if pool.Load() != 1 || data.Load() != 1 || each.Load() != volumes {
		t.Errorf("asked the pool %d times, its data %d times, and volumes %d times", pool.Load(), data.Load(), each.Load())
	}
	r.count(t, "one look", "fullreport")

	// The next look asks anew.
	if err := os.WriteFile(disk, make([]byte, block), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := look(t.Context(), facts[0].Ref); err != nil || len(f.Failed) != 1 {
		t.Errorf("the same look: %+v, %v", f, err)
	}
	if f, err := r.VolumeFacts(t.Context(), facts[0].Ref); err != nil || len(f.Failed) != 0 || pool.Load() != 2 {
		t.Errorf("another look: %+v, %v", f, err)
	}
}
