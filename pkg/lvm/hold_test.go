package lvm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
)

// Two devices are held, and whatever is done with the third hangs: after the bound the first two are held no longer, and what comes then is
// told that it is late.
func TestHoldIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var done []string
		dead := make(chan struct{})
		seam := func(_ context.Context, e effect.Effect, _ func() error) error {
			if e.Detail == "a" {
				<-dead
			}
			mu.Lock()
			defer mu.Unlock()
			done = append(done, e.Op+" "+e.Detail)
			return nil
		}
		d := newDeviceMapper(t.TempDir(), t.TempDir(), seam)
		d.status = func(name string) (dmStatus, error) { return dmStatus{uuid: "LVM-" + name}, nil }
		h := &hold{dm: d, held: map[string]bool{}}
		if err := h.take(t.Context(), "other", "LVM-x"); err == nil {
			t.Error("a device with another uuid is held")
		}
		for _, name := range []string{"b", "c"} {
			if err := h.take(t.Context(), name, "LVM-"+name); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _ = h.take(t.Context(), "a", "LVM-a") }()
		time.Sleep(holdBound - time.Second) //nolint:forbidigo // the time of the bubble
		synctest.Wait()
		mu.Lock()
		if got := strings.Join(done, ", "); got != "suspend b, suspend c" || h.late() != nil {
			t.Errorf("before the bound: %s; %v", got, h.late())
		}
		mu.Unlock()
		time.Sleep(time.Second) //nolint:forbidigo // as above
		synctest.Wait()
		mu.Lock()
		slices.Sort(done)
		if got := strings.Join(done, ", "); got != "resume b, resume c, suspend b, suspend c" {
			t.Errorf("after the bound: %s", got)
		}
		mu.Unlock()
		if err := h.late(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("late: %v", err)
		}
		close(dead)
		synctest.Wait()
	})
}
