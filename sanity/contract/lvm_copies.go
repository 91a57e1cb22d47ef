package contract

import (
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What a copy is made with: a volume that is not whole until its tags say so, and a temporary snapshot to copy from, of which there is a device at once.
func lvmCopies(t *testing.T, m LVMMachine) {
	f := newLVMFixture(t, m, 1)
	m.NewPool(t, f.ref("pool"), 16*LVMExtentBytes)
	thin := volume.Layout{Type: volume.Thin, Pool: "pool"}
	f.create(f.linear("thick", 4))
	f.create(f.spec("thin", 8, thin))
	snap := f.create(f.snapshotSpec("snap", "thin")) // now the pool may hold no more
	for _, c := range []struct {
		origin string
		want   error
	}{{"thick", nil}, {"thin", volume.ErrNoSpace}, {snap.LV, nil}} {
		s := volume.Spec{
			Ref: f.ref(volume.TemporaryLV(c.origin)), Kind: volume.Temporary, Name: c.origin, Origin: volume.LV{Ref: f.ref(c.origin)},
		}
		if c.want != nil {
			_, err := f.Create(t.Context(), s)
			f.fails("a temporary snapshot of "+c.origin, err, c.want)
			continue
		}
		var lv volume.LV
		f.cost("a temporary snapshot", 1, func() { lv = f.create(s) })
		if lv.Tags.Kind != volume.Temporary || lv.Name() != c.origin || lv.Origin != c.origin {
			t.Errorf("the temporary snapshot of %s is %+v", c.origin, lv)
		}
		d, err := f.Device(t.Context(), lv.Ref)
		if err != nil || d.SizeBytes != f.lookup(f.ref(c.origin)).ContentBytes() {
			t.Errorf("its device is %+v, %v", d, err)
		}
		f.fails("Remove as a snapshot", f.Remove(t.Context(), s.Ref, volume.Snapshot), volume.ErrPrecondition)
		f.cost("its removal", 1, func() {
			if err := f.Remove(t.Context(), s.Ref, volume.Temporary); err != nil {
				t.Fatal(err)
			}
		})
	}

	s := f.linear("copied", 4)
	s.Source, s.Copying = volume.Source{Kind: volume.Persistent, Ref: f.ref("thick")}, true
	made := f.create(s)
	if made.Tags.State != volume.Copying || made.Tags.From != s.Source.String() || made.Whole() == nil {
		t.Errorf("while it is copied onto it is %+v", made)
	}
	whole := made.Tags
	whole.State = ""
	add, remove := made.Tags.Changes(whole)
	if err := f.Retag(t.Context(), made.Ref, made.Tags.Kind, add, remove); err != nil {
		t.Fatal(err)
	}
	if lv := f.lookup(made.Ref); lv.Tags != whole || lv.Whole() != nil {
		t.Errorf("then it is %+v", lv)
	}
}
