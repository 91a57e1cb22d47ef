package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var thinPool = volume.Ref{VG: "data", LV: "pool"}

// newThinBench has two thin volumes in a pool, of which chunks are written.
func newThinBench(t *testing.T) (b *lateBench, base, target volume.LV) {
	t.Helper()
	b = newLateBench(t, Timing{FirstRetry: time.Millisecond, FailedRetry: 2 * time.Millisecond})
	b.m.AddPool("data", "pool", 256<<20)
	for _, lv := range []string{"base", "target"} {
		r := volume.Ref{VG: "data", LV: lv}
		b.m.AddLV(r, volume.Layout{Type: volume.Thin, Pool: "pool"}, 64<<20, volume.Tags{Owner: owner, Kind: volume.Snapshot}.Strings()...)
		b.m.WriteThin(r, chunksAt(2, 3))
	}
	b.m.WriteThin(volume.Ref{VG: "data", LV: "base"}, chunksAt(9, 1))
	for lv, r := range map[string]*volume.LV{"base": &base, "target": &target} {
		f, _ := b.m.LV(volume.Ref{VG: "data", LV: lv})
		*r = f.LV
	}
	return b, base, target
}

func chunksAt(first, n int64) volume.Range {
	return volume.Range{Offset: first * fake.ThinChunk, Bytes: n * fake.ThinChunk}
}

func (b *lateBench) blocks(ctx context.Context, base, target volume.LV) (out []volume.Range, err error) {
	err = b.Blocks(ctx, BlockQuery{Base: base, Target: target, Within: volume.Range{Bytes: target.SizeBytes}},
		func(r volume.Range) error { out = append(out, r); return nil })
	return out, err
}

// clean checks that the pool is not reserved, and nothing recorded.
func (b *lateBench) clean(t *testing.T, when string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); b.m.PoolHeld(thinPool) || len(b.Journal.All()) != 0; <-time.Tick(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: reserved %v, recorded %v", when, b.m.PoolHeld(thinPool), b.Journal.All())
		}
	}
}

func (b *lateBench) failing(op, detail string, with error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = func(e effect.Effect) error {
		if e.Op == op && strings.Contains(e.Detail, detail) {
			return with
		}
		return nil
	}
}

func TestBlocks(t *testing.T) {
	b, base, target := newThinBench(t)
	for _, active := range []bool{true, false} {
		for _, r := range []volume.Ref{base.Ref, target.Ref, thinPool} {
			b.m.EditLV(r, func(s *fake.State) { s.Active = active })
		}
		if got, err := b.blocks(t.Context(), volume.LV{}, target); err != nil || !slices.Equal(got, []volume.Range{chunksAt(2, 3)}) {
			t.Errorf("written: %v, %v", got, err)
		}
		if got, err := b.blocks(t.Context(), base, target); err != nil || !slices.Equal(got, []volume.Range{chunksAt(2, 3), chunksAt(9, 1)}) {
			t.Errorf("changed: %v, %v", got, err)
		}
		b.clean(t, "after it")
	}
	enough := errors.New("enough")
	err := b.Blocks(t.Context(), BlockQuery{Base: base, Target: target, Within: chunksAt(0, 5)}, func(volume.Range) error {
		if b.m.PoolHeld(thinPool) {
			t.Error("the pool is reserved while the caller takes his time")
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Errorf("the caller's own error: %v", err)
	}
}

// Whatever fails, nothing stays reserved, and what cannot be undone at once is undone later.
func TestBlocksThatFail(t *testing.T) {
	fault := errors.New("input/output error")
	for _, c := range []struct {
		name       string
		op, detail string
		ok         bool
	}{
		{"reserve", "message", "reserve_", false},
		{"release", "message", "release_", true}, // what was read is good
	} {
		b, base, target := newThinBench(t)
		b.failing(c.op, c.detail, fault)
		if _, err := b.blocks(t.Context(), base, target); (err == nil) != c.ok || err != nil && !errors.Is(err, fault) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.ok { // and the next call cannot begin before that
			if _, err := b.blocks(t.Context(), base, target); !errors.Is(err, volume.ErrPending) {
				t.Errorf("the call after %s: %v", c.name, err)
			}
		}
		b.failing("", "-", nil)
		b.clean(t, c.name)
	}
	b, base, target := newThinBench(t)
	missing := target
	missing.ThinID = 77
	if _, err := b.blocks(t.Context(), base, missing); err == nil {
		t.Error("a number that no thin volume has")
	}
	b.clean(t, "after it")
}

func TestBlocksPanic(t *testing.T) {
	b, base, target := newThinBench(t)
	b.mu.Lock()
	b.fail = func(e effect.Effect) error {
		if strings.Contains(e.Detail, "release_") {
			b.mu.Lock()
			b.fail = nil
			b.mu.Unlock()
			panic("fault")
		}
		return nil
	}
	b.mu.Unlock()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = b.blocks(t.Context(), base, target)
	}()
	b.clean(t, "after a panic")
}

// A reservation that is not ours is left alone.
func TestBlocksReservedElsewhere(t *testing.T) {
	b, base, target := newThinBench(t)
	b.m.HoldPool(thinPool, true)
	b.Start()
	_, err := b.blocks(t.Context(), base, target)
	if !errors.Is(err, volume.ErrPrecondition) || !strings.Contains(err.Error(), "dmsetup message data-pool-tpool 0 release_metadata_snap") {
		t.Errorf("got %v", err)
	}
	b.Stop(t.Context())
	if !b.m.PoolHeld(thinPool) || len(b.Journal.All()) != 0 {
		t.Errorf("reserved %v, recorded %v", b.m.PoolHeld(thinPool), b.Journal.All())
	}
	b.m.HoldPool(thinPool, false)

	b, base, target = newThinBench(t) // and one that is made between our look and our own
	b.m.HoldPool(thinPool, true)
	b.Thin = &sightless{ThinMetadata: b.Thin}
	if _, err := b.blocks(t.Context(), base, target); !errors.Is(err, volume.ErrPrecondition) {
		t.Errorf("got %v", err)
	}
	if !b.m.PoolHeld(thinPool) || len(b.Journal.All()) != 0 {
		t.Errorf("reserved %v, recorded %v", b.m.PoolHeld(thinPool), b.Journal.All())
	}
}

// sightless does not see at its first look that a pool is reserved.
type sightless struct {
	ThinMetadata
	looked bool
}

func (s *sightless) Reserved(ctx context.Context, pool volume.Ref) (bool, error) {
	held, err := s.ThinMetadata.Reserved(ctx, pool)
	held, s.looked = held && s.looked, true
	return held, err
}

// What a driver that was killed had reserved is released at the next start: also where the pool is not active, or gone.
func TestReservedByAnEarlierDriver(t *testing.T) {
	for _, c := range []struct {
		name         string
		held, active bool
		gone, anew   bool
	}{
		{name: "killed after the reservation", held: true, active: true}, {name: "killed before it", active: true}, {name: "rebooted", held: true},
		{name: "pool gone", gone: true}, {name: "pool made anew", gone: true, anew: true},
	} {
		b, base, target := newThinBench(t)
		for _, r := range []volume.Ref{base.Ref, target.Ref} {
			b.m.EditLV(r, func(s *fake.State) { s.Active = c.active })
		}
		b.m.HoldPool(thinPool, c.held)
		if err := b.Journal.Put(t.Context(), journal.Record{
			VolumeID: poolID(thinPool), Kind: journal.Pool, VG: "data", LV: "pool", Intent: journal.Reserve, Since: time.Now(),
		}); err != nil {
			t.Fatal(err)
		}
		if c.gone {
			for _, r := range []volume.Ref{base.Ref, target.Ref, thinPool} {
				b.m.DropLV(r)
			}
			if c.anew {
				b.m.AddPool("data", "pool", 4<<20)
				b.Thin = newPool{b.Thin}
			}
		}
		b.Start()
		for end := time.Now().Add(10 * time.Second); len(b.Journal.All()) != 0; <-time.Tick(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: recorded %v", c.name, b.Journal.All())
			}
		}
		if !c.gone && b.m.PoolHeld(thinPool) {
			t.Errorf("%s: reserved", c.name)
		}
	}
}

// newPool is a pool without volumes, for which LVM makes no device of a pool.
type newPool struct{ ThinMetadata }

func (newPool) Release(context.Context, volume.Ref) error { return volume.ErrNotFound }

// A thin volume that has gone meanwhile is not taken for one that has its number now.
func TestBlocksOfAVolumeThatGoes(t *testing.T) {
	b, base, target := newThinBench(t)
	entered, release := b.m.Block("thin_delta")
	failed := make(chan error, 1)
	go func() {
		_, err := b.blocks(t.Context(), base, target)
		failed <- err
	}()
	<-entered
	b.m.DropLV(target.Ref)
	b.m.AddLV(target.Ref, volume.Layout{Type: volume.Thin, Pool: "pool"}, 64<<20, volume.Tags{Owner: owner, Kind: volume.Snapshot}.Strings()...)
	release()
	if err := <-failed; !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	b.clean(t, "after it")
}

// Calls on a pool come one after the other; not any number waits.
func TestBlocksQueue(t *testing.T) {
	b, base, target := newThinBench(t)
	entered, release := b.m.Block("thin_delta")
	defer release()
	ended := make(chan error, poolCalls)
	for range poolCalls {
		go func() {
			_, err := b.blocks(t.Context(), base, target)
			ended <- err
		}()
	}
	<-entered
	full := func() bool { return len(b.pools.queues[thinPool].waiting) == poolCalls }
	for end := time.Now().Add(10 * time.Second); !full() && time.Now().Before(end); <-time.Tick(time.Millisecond) {
	}
	if _, err := b.blocks(t.Context(), base, target); !errors.Is(err, volume.ErrPending) {
		t.Errorf("one more: %v", err)
	}
	if len(entered) != 0 {
		t.Error("two at a time")
	}
	release()
	for range poolCalls {
		if err := <-ended; err != nil {
			t.Errorf("one that waited: %v", err)
		}
	}
	entered, release = b.m.Block("thin_delta")
	defer release()
	go func() { _, err := b.blocks(t.Context(), base, target); ended <- err }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, err := b.blocks(ctx, base, target); ended <- err }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("one that does not want to wait any more: %v", err)
	}
	release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.clean(t, "after all")
}
