package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ThinMetadata is what the lifecycle asks of the metadata of thin pools. Implemented by pkg/lvm, and by pkg/fake for
// tests. No LVM command is run. ErrNotFound, of each method: the pool has no device; it is not active, or not there.
type ThinMetadata interface {
	// Reserved tells whether the pool's metadata snapshot is reserved, by whomever. There is one at most, and it outlives
	// who reserved it.
	Reserved(ctx context.Context, pool volume.Ref) (bool, error)
	// Reserve reserves it: from here on Blocks answers of this moment. ErrBusy: it is reserved already.
	Reserve(ctx context.Context, pool volume.Ref) error
	// Release releases it; nil as well where it is not reserved.
	Release(ctx context.Context, pool volume.Ref) error
	// Blocks gives emit the ranges that the query asks for, from the reserved metadata snapshot: in order, and no two
	// touch. The error of emit ends it. Only after nil were these all.
	Blocks(ctx context.Context, q volume.BlockQuery, emit func(volume.Range) error) error
}

// BlockQuery asks for ranges of a thin volume, as a lookup has found it.
type BlockQuery struct {
	Target volume.LV
	Base   volume.LV // in the same pool: what the target is compared with; zero: with nothing, all that was written is meant
	Within volume.Range
}

// Blocks gives emit the ranges of a thin volume that were written, or in which it differs from another: in order, and no
// two touch. The error of emit ends it. Only after nil were these all. ErrPrecondition: somebody else has reserved the
// pool's metadata snapshot. ErrPending: too many calls wait for this pool. ErrNotFound: a volume has gone meanwhile.
//
// The pool's metadata can be read while it is in use only under a metadata snapshot, of which the kernel keeps one for each
// pool, until it is released, over kills and reboots. So:
//
//  1. Calls on a pool come one after the other; a bounded number waits.
//
//  2. That the driver is about to reserve is recorded, durably. This is what tells its own reservation from that of somebody
//     else, such as an administrator's own thin_delta: the kernel does not tell who made it.
//
//  3. Reserve, read, release, forget the record. What is read is kept aside, so that this takes as long as one program
//     needs, however slowly the caller takes it.
//
//  4. Look again whether the volumes are those that were meant: LVM gives the number of a thin volume that is gone to
//     another one. One that is there now, of the same uuid, was there all the time.
//
// Killed at any point after 2, the next start of the driver releases what is reserved. A reservation without a record is
// not ours, and is left alone. One that somebody else makes between a kill of the driver and its next start is taken for
// ours.
func (l *Lifecycle) Blocks(ctx context.Context, q BlockQuery, emit func(volume.Range) error) error {
	pool := volume.Ref{VG: q.Target.VG, LV: q.Target.Pool}
	kept := &ranges{open: func() (Scratch, error) { return l.Scratch(ctx) }}
	defer kept.close()
	err := l.collect(ctx, volume.BlockQuery{Pool: pool, Base: q.Base.ThinID, Target: q.Target.ThinID, Within: q.Within}, kept)
	if gone := l.gone(ctx, q.Target, q.Base); gone != nil { // 4; it may be why they could not be read
		return gone
	}
	if err != nil {
		return err
	}
	return kept.each(emit)
}

// gone is nil where the logical volumes are still those that were found.
func (l *Lifecycle) gone(ctx context.Context, lvs ...volume.LV) error {
	for _, lv := range lvs {
		if lv.UUID == "" {
			continue
		}
		now, err := l.LVM.Lookup(ctx, lv.Ref)
		if err != nil {
			return err
		}
		if now.UUID != lv.UUID {
			return fmt.Errorf("%w: logical volume %s has gone, and another one has its name now", volume.ErrNotFound, lv.Ref)
		}
	}
	return nil
}

// collect is steps 1 to 3.
func (l *Lifecycle) collect(ctx context.Context, q volume.BlockQuery, kept *ranges) (err error) {
	done, err := l.pools.turn(ctx, q.Pool)
	if err != nil {
		return err
	}
	defer done()
	id := poolID(q.Pool)
	unlock, err := l.Locks.Try(volume.LockKey(id), "reading the metadata of its thin pool") // against the retries
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.unreserved(ctx, q.Pool); err != nil {
		return err
	}
	rec := journal.Record{VolumeID: id, Kind: journal.Pool, VG: q.Pool.VG, LV: q.Pool.LV, Intent: journal.Reserve, Since: time.Now()}
	defer l.settle(id)
	defer func() { // a panic is answered Internal, which is final
		if p := recover(); p != nil {
			_ = l.unreserve(ctx, rec) // tried again where it fails; the panic is the answer
			panic(p)
		}
	}()
	if err := l.Journal.Put(ctx, rec); err != nil { // 2; without it, a kill would leave a reservation that nobody dares to release
		return errors.Join(fmt.Errorf("nothing was reserved: %w", err), l.Journal.Forget(ctx, id))
	}
	if err := l.Thin.Reserve(ctx, q.Pool); err != nil { // 3
		if held, look := l.Thin.Reserved(ctx, q.Pool); errors.Is(err, volume.ErrBusy) && look == nil && held { // since the look
			l.forget(ctx, rec)
			return l.reservedElsewhere(q.Pool)
		}
		return errors.Join(err, l.unreserve(ctx, rec))
	}
	err = l.Thin.Blocks(ctx, q, kept.add)
	if failed := l.unreserve(ctx, rec); failed != nil { // what was read is good; the release is tried again
		l.Log("the metadata snapshot of a thin pool is not released yet", "pool", q.Pool.String(), "err", failed)
	}
	return err
}

// unreserved makes sure that the pool is active and its metadata snapshot not reserved.
func (l *Lifecycle) unreserved(ctx context.Context, pool volume.Ref) error {
	rec, ok, err := l.Journal.Get(poolID(pool))
	if err != nil {
		return err
	}
	if ok && rec.Intent == journal.Reserve { // left by an earlier call
		if err := l.unreserve(ctx, rec); err != nil {
			return fmt.Errorf("%w: a metadata snapshot that an earlier call reserved is not released yet: %v", volume.ErrPending, err) //nolint:errorlint // the class of the cause is not that of this call
		}
	}
	held, err := l.Thin.Reserved(ctx, pool)
	if errors.Is(err, volume.ErrNotFound) {
		if err := l.LVM.Activate(ctx, pool); err != nil {
			return fmt.Errorf("activate thin pool %s: %v", pool, err) //nolint:errorlint // as above
		}
		held, err = l.Thin.Reserved(ctx, pool)
	}
	if err == nil && held {
		return l.reservedElsewhere(pool)
	}
	return err
}

func (l *Lifecycle) reservedElsewhere(pool volume.Ref) error {
	return fmt.Errorf("%w: the metadata snapshot of thin pool %s is reserved, and not by this driver; there can be one only. "+
		"If nobody uses it (thin_dump, thin_delta, thin_ls), release it: dmsetup message %s-tpool 0 release_metadata_snap",
		volume.ErrPrecondition, pool, volume.DMName(pool))
}

// unreserve releases what the record says is reserved, and forgets the record. It goes on without its caller. On an error
// the record stands, and it is tried again.
func (l *Lifecycle) unreserve(ctx context.Context, rec journal.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), effectBound)
	defer cancel()
	err := l.Thin.Release(ctx, rec.Ref())
	if errors.Is(err, volume.ErrNotFound) { // inactive, and reserved all the same: that is on disk
		if err = l.LVM.Activate(ctx, rec.Ref()); err == nil {
			err = l.Thin.Release(ctx, rec.Ref())
		}
		if errors.Is(err, volume.ErrNotFound) { // the pool is gone and its metadata with it; or it is a new one, that holds nothing yet
			err = nil
		}
	}
	if err != nil {
		return err
	}
	l.forget(ctx, rec)
	return nil
}

// poolID is what the record of a thin pool has in place of a volume id.
func poolID(pool volume.Ref) string { return "thin pool " + pool.String() }

// pools lets calls on a thin pool come one after the other. The zero value is ready for use.
type pools struct {
	mu     sync.Mutex
	queues map[volume.Ref]*poolQueue
}

type poolQueue struct {
	turn    chan struct{} // full while a call is at it
	waiting chan struct{} // one for each call that waits, or is at it
}

// poolCalls bounds how many calls wait for a pool, or are at it.
const poolCalls = 16

// turn waits until no other call is at the pool; at most until ctx ends.
func (p *pools) turn(ctx context.Context, pool volume.Ref) (done func(), err error) {
	p.mu.Lock()
	q := p.queues[pool]
	if q == nil {
		if p.queues == nil {
			p.queues = map[volume.Ref]*poolQueue{}
		}
		q = &poolQueue{turn: make(chan struct{}, 1), waiting: make(chan struct{}, poolCalls)}
		p.queues[pool] = q
	}
	p.mu.Unlock()
	select {
	case q.waiting <- struct{}{}:
	default:
		return nil, fmt.Errorf("%w: %d calls wait for the metadata of thin pool %s already", volume.ErrPending, poolCalls, pool)
	}
	select {
	case q.turn <- struct{}{}:
		return func() { <-q.turn; <-q.waiting }, nil
	case <-ctx.Done():
		<-q.waiting
		return nil, fmt.Errorf("waiting for other calls on thin pool %s: %w", pool, ctx.Err())
	}
}
