package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const copiedBytes = 64 << 20

// copier is a Copier of which the test decides when it goes on.
type copier struct {
	begun chan volume.Device // the destinations
	step  chan int64         // so many bytes are done
	fail  error              // at the end
}

func (c *copier) Copy(ctx context.Context, from, to volume.Device, progress func(int64)) error {
	c.begun <- to
	for left := from.SizeBytes; left > 0; {
		select {
		case n := <-c.step:
			progress(n)
			left -= n
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.fail
}

// copyBench is a bench whose lifecycle copies with that, between the logical volumes "from", and "to0", "to1"... of two groups.
type copyBench struct {
	*bench
	*copier
	mu sync.Mutex
}

func newCopyBench(t *testing.T) *copyBench {
	b := &copyBench{bench: newBench(t), copier: &copier{begun: make(chan volume.Device, 100), step: make(chan int64)}}
	b.m.AddGroup("more", 4<<20, 1<<30)
	b.Copier = b.copier
	b.Log = func(msg string, kv ...any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.told = append(b.told, msg+" "+fmt.Sprint(kv...))
	}
	b.thick("data", "from")
	return b
}

func (b *copyBench) thick(vg, lv string) volume.Ref {
	r := volume.Ref{VG: vg, LV: lv}
	b.m.AddLV(r, volume.Layout{Type: volume.Linear}, copiedBytes, volume.Tags{Owner: owner, Kind: volume.Persistent}.Strings()...)
	return r
}

// start begins a copy; ended gets its result.
func (b *copyBench) start(to volume.Ref) (ended chan error) {
	ended = make(chan error, 1)
	ctx, cancel := context.WithCancel(b.t.Context())
	cancel() // nobody waits for it: it goes on all the same
	go func() { ended <- b.copyOnto(ctx, volume.Ref{VG: "data", LV: "from"}, to) }()
	return ended
}

func (b *copyBench) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.told, "\n")
}

func TestCopyIsSeen(t *testing.T) {
	b := newCopyBench(t)
	to := b.thick("data", "to")
	ended := b.start(to)
	<-b.begun
	for range 4 {
		b.step <- copiedBytes / 8
	}
	want := Copy{From: volume.Ref{VG: "data", LV: "from"}, To: to, Done: copiedBytes / 2, Of: copiedBytes}
	for end := time.Now().Add(20 * time.Second); ; <-time.Tick(time.Millisecond) {
		got := b.Copies()
		if len(got) == 1 {
			got[0].Since = time.Time{}
			if got[0] == want {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	for range 4 {
		b.step <- copiedBytes / 8
	}
	b.must(<-ended)
	if got := b.Copies(); len(got) != 0 {
		t.Errorf("after the end: %v", got)
	}
	for _, says := range []string{"copying a volume from", "done10 %", "done50 %", "done80 %", "rate", "copied a volume"} {
		if !strings.Contains(b.logged(), says) {
			t.Errorf("the log does not say %q:\n%s", says, b.logged())
		}
	}
	if n := strings.Count(b.logged(), "\n"); n > 12 {
		t.Errorf("%d lines for one copy", n)
	}
}

func TestCopyIsGivenUpForADelete(t *testing.T) {
	b := newCopyBench(t)
	ended := b.start(b.thick("data", "to"))
	other := b.start(b.thick("more", "other"))
	<-b.begun
	<-b.begun
	for _, other := range []string{"node-1/data/from", "node-1/more/to", "node-2/data/to", "to", ""} {
		if b.CancelCopy(other) {
			t.Errorf("given up for a delete of %q", other)
		}
	}
	if !b.CancelCopy("node-1/data/to") {
		t.Error("not given up")
	}
	if err := <-ended; !errors.Is(err, volume.ErrPending) || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("got %v", err)
	}
	if b.CancelCopy("node-1/data/to") {
		t.Error("there is none any more")
	}
	b.step <- copiedBytes
	b.must(<-other)
}

func TestStopGivesCopiesUp(t *testing.T) {
	b := newCopyBench(t)
	var ended []chan error
	for i := range copiesPerGroup + 2 { // the last two wait for their turn
		ended = append(ended, b.start(b.thick("data", fmt.Sprint("to", i))))
	}
	for range copiesPerGroup {
		<-b.begun
	}
	b.Stop(t.Context())
	for _, e := range ended {
		if err := <-e; !errors.Is(err, volume.ErrPending) || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("got %v", err)
		}
	}
	if err := <-b.start(volume.Ref{VG: "data", LV: "to0"}); !errors.Is(err, volume.ErrPending) {
		t.Errorf("a copy after the stop: %v", err)
	}
	if len(b.begun) != 0 {
		t.Error("one began all the same")
	}
}

// So many at a time onto one group; another group does not wait for it.
func TestCopiesTakeTurns(t *testing.T) {
	b := newCopyBench(t)
	var ended []chan error
	for i := range copiesPerGroup + 1 {
		ended = append(ended, b.start(b.thick("data", fmt.Sprint("to", i))))
	}
	for range copiesPerGroup {
		<-b.begun
	}
	other := b.start(b.thick("more", "other"))
	<-b.begun
	select {
	case d := <-b.begun:
		t.Fatalf("a copy too many, onto %s", d)
	case <-time.After(20 * time.Millisecond):
	}
	waiting := 0
	for _, c := range b.Copies() {
		if c.Of == 0 {
			waiting++
		}
	}
	if waiting != 1 {
		t.Errorf("%d wait", waiting)
	}
	for range copiesPerGroup + 2 {
		b.step <- copiedBytes
	}
	for _, e := range append(ended, other) {
		b.must(<-e)
	}
	if len(b.begun) != 1 { // the one that waited
		t.Errorf("%d began after the others", len(b.begun))
	}
}

// What the copier says comes through, and the next copy finds its turn.
func TestCopyFails(t *testing.T) {
	b := newCopyBench(t)
	to := b.thick("data", "to")
	b.fail = volume.ErrNoSpace
	for range copiesPerGroup + 1 {
		ended := b.start(to)
		<-b.begun
		b.step <- copiedBytes
		if err := <-ended; !errors.Is(err, volume.ErrNoSpace) || !strings.Contains(err.Error(), "data/to") {
			t.Fatalf("got %v", err)
		}
	}
	if err := <-b.start(volume.Ref{VG: "data", LV: "none"}); err == nil {
		t.Error("onto nothing")
	}
	b.m.EditLV(to, func(s *fake.State) { s.Suspended = true })
	if err := <-b.start(to); !errors.Is(err, volume.ErrPending) {
		t.Errorf("onto a suspended device: %v", err)
	}
	if !slices.ContainsFunc(b.told, func(s string) bool { return strings.HasPrefix(s, "a copy has failed") }) {
		t.Errorf("the log does not say so: %q", b.told)
	}
}
