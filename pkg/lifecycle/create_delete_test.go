package lifecycle

import (
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// The volume group of a create that was cut off has been taken out of --volume-groups: what is left there is not forgotten,
// or it would be handed out as whole when the group is back.
func TestCutOffCreateInAGroupTakenOut(t *testing.T) {
	b := newBench(t)
	b.m.AddGroup("apart", 4<<20, 512<<20)
	cut := volume.Ref{VG: "apart", LV: "cut-off"}
	b.make(cut, volume.Tags{Owner: owner, Kind: volume.Persistent})
	rec := journal.Record{VolumeID: "node-1/apart/cut-off", Kind: volume.Persistent, VG: cut.VG, LV: cut.LV, Intent: journal.Create}
	b.must(b.Journal.Put(t.Context(), rec))
	b.retry(rec.VolumeID)
	if _, kept, err := b.Journal.Get(rec.VolumeID); !kept || err != nil {
		t.Errorf("the record is gone (%v)", err)
	}
	if !b.there(cut) {
		t.Error("a logical volume in a group that is not ours was removed")
	}
}
