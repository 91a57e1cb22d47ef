package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// recover looks what the last cut left:
//
//  1. A persistent volume that the CO was told of is there, and one that it was told is deleted is not.
//  2. What was cut off is repeated, and converges; of inline volumes also given up, by a pod that is gone.
//  3. Each volume can be staged and published again, and holds what was durable.
//  4. Nothing else is there: no logical volume, no record, no suspended device.
func (n *Node) recover() error {
	if err := n.whatIsThere(); err != nil { // 1
		return err
	}
	errs := make([]error, len(slots))
	var wg sync.WaitGroup
	for i, s := range slots { // 2, 3
		random := rand.New(rand.NewPCG(n.random.Uint64(), 0))
		wg.Go(func() { errs[i] = n.recoverSlot(s, random) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return until(settled, nothingElse) // 4
}

func (n *Node) whatIsThere() error {
	lvs, err := logicalVolumes()
	if err != nil {
		return err
	}
	r, err := csi.NewControllerClient(n.conn).ListVolumes(context.Background(), &csi.ListVolumesRequest{})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	var listed []string
	for _, e := range r.GetEntries() {
		listed = append(listed, e.GetVolume().GetVolumeId())
	}
	var faults []error
	for _, s := range slots {
		if s.gen == 0 || s.doing != "" {
			continue
		}
		there := slices.Contains(lvs, s.ref().LV)
		switch {
		case s.there && !there:
			faults = append(faults, fmt.Errorf("%s: %s was there for sure, and is gone", s.name, s.coName()))
		case !s.inline && !s.there && there:
			faults = append(faults, fmt.Errorf("%s: %s was deleted for sure, and is there again", s.name, s.coName()))
		case !s.inline && s.there != slices.Contains(listed, s.id()):
			faults = append(faults, fmt.Errorf("%s: %s is there: %t, but listed are %v", s.name, s.coName(), s.there, listed))
		}
	}
	return errors.Join(faults...)
}

func (n *Node) recoverSlot(s *Slot, random *rand.Rand) error {
	switch s.doing {
	case doCreate:
		if err := n.create(s); err != nil {
			return err
		}
	case doDelete:
		return n.delete(s)
	case doAbandon:
		return n.abandon(s)
	case doUnpublish:
		if random.IntN(2) == 0 {
			return n.abandon(s)
		}
		return n.unpublish(s)
	}
	switch {
	case s.inline && (s.there || s.doing == doPublish):
		switch random.IntN(3) {
		case 0:
			return n.abandon(s)
		case 1:
			return n.unpublish(s)
		}
		return n.publish(s)
	case !s.there || s.inline:
		return nil
	}
	if random.IntN(2) == 0 { // the pod has gone meanwhile; kubelet knows only that they were there
		if err := errors.Join(n.unpublish(s), n.unstage(s)); err != nil {
			return err
		}
	}
	if err := n.stage(s); err != nil {
		return err
	}
	return n.publish(s)
}

// abandon removes the pod's folder, as kubelet does with those of pods that it does not know any more. The driver must
// see to the rest.
func (n *Node) abandon(s *Slot) error {
	return n.do(s, doAbandon, s.gen, func() error {
		if err := os.RemoveAll(s.podDir()); err != nil { //nolint:forbidigo // nothing is mounted after a boot
			return err
		}
		return until(settled, func() error {
			lvs, err := logicalVolumes()
			if err == nil && slices.Contains(lvs, s.ref().LV) {
				err = fmt.Errorf("logical volume %s is left", s.ref())
			}
			return err
		})
	})
}

// logicalVolumes asks LVM. Names have a prefix, since LVM says on standard output too that it reads torn metadata again.
func logicalVolumes() (names []string, err error) {
	out, err := output("lvm", "lvs", "--config", byHand, "--noheadings", "--nameprefixes", "--unquoted", "-o", "lv_name", group)
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "LVM2_LV_NAME="); ok {
			names = append(names, name)
		}
	}
	return names, err
}

// nothingElse compares all there is with what the slots say.
func nothingElse() error {
	want, records := map[string]bool{pool: true}, 0
	for _, s := range slots {
		if s.there {
			want[s.ref().LV] = true
		}
		if s.there && s.inline {
			records++
		}
	}
	lvs, err := logicalVolumes()
	if err != nil {
		return err
	}
	slices.Sort(lvs)
	if w := slices.Sorted(maps.Keys(want)); !slices.Equal(w, lvs) {
		return fmt.Errorf("the logical volumes are %v, and should be %v", lvs, w)
	}
	files, err := os.ReadDir(state + "/journal")
	if err != nil {
		return err
	}
	var names []string
	for _, f := range files {
		if !f.IsDir() && !strings.HasPrefix(f.Name(), ".") {
			names = append(names, f.Name())
		}
	}
	if damaged, err := os.ReadDir(state + "/journal/damaged"); err == nil && len(damaged) != 0 {
		return fmt.Errorf("records were damaged: %v", damaged)
	}
	if len(names) != records {
		return fmt.Errorf("%d inline volumes are published, and the journal has %v", records, names)
	}
	suspended, err := output("dmsetup", "info", "-c", "--noheadings", "-o", "name", "-S", "suspended=Suspended")
	if err == nil && strings.TrimSpace(suspended) != "" && !strings.Contains(suspended, "No devices") {
		err = fmt.Errorf("devices are suspended: %s", suspended)
	}
	return err
}

// takeAll takes all away, and looks whether anything is left.
func (n *Node) takeAll() error {
	for _, s := range slots {
		var err error
		if s.published {
			err = n.unpublish(s)
		}
		if s.staged && err == nil {
			err = n.unstage(s)
		}
		if s.there && err == nil {
			err = n.delete(s)
		}
		if err != nil {
			return err
		}
	}
	if err := until(settled, nothingElse); err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err == nil && strings.Contains(string(mounts), kubelet) {
		err = fmt.Errorf("mounts are left:\n%s", mounts)
	}
	return err
}
