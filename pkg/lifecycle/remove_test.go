package lifecycle

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// lookedAt is a machine on which somebody opens a volume, for a moment, just when it is removed.
type lookedAt struct {
	LVM
	m       *fake.Machine
	once    sync.Once
	forGood bool
	removes int
}

func (o *lookedAt) Remove(ctx context.Context, r volume.Ref, k volume.Kind) error {
	o.removes++
	o.once.Do(func() {
		release := o.m.HoldDevice(r)
		if !o.forGood {
			time.AfterFunc(20*time.Millisecond, release)
		}
	})
	return o.LVM.Remove(ctx, r, k)
}

func TestRemoveOfWhatIsLookedAt(t *testing.T) {
	for _, forGood := range []bool{false, true} {
		b := newBench(t)
		b.Timing.BusyWait = 300 * time.Millisecond
		o := &lookedAt{LVM: b.Lifecycle.LVM, m: b.m, forGood: forGood}
		b.Lifecycle.LVM = o
		err := b.removeLV(t.Context(), inlineRef, volume.Inline)
		if (err != nil) != forGood || b.there(inlineRef) != forGood {
			t.Errorf("held for good: %t; %v", forGood, err)
		}
		if want := map[bool]int{false: 2, true: 1}[forGood]; o.removes != want {
			t.Errorf("held for good: %t; removed %d times", forGood, o.removes)
		}
	}
}
