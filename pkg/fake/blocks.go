package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ThinChunk is the size of a chunk in every thin pool.
const ThinChunk = 64 << 10

// WriteThin writes other bytes than were there before to a thin LV, behind the driver's back.
func (m *Machine) WriteThin(r volume.Ref, part volume.Range) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := part.Offset / ThinChunk; c*ThinChunk < part.End(); c++ {
		m.volume(r).written[c] = int64(m.next())
	}
}

// DiscardThin discards the whole chunks of a part of a thin LV, behind the driver's back.
func (m *Machine) DiscardThin(r volume.Ref, part volume.Range) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := (part.Offset + ThinChunk - 1) / ThinChunk; (c+1)*ThinChunk <= part.End(); c++ {
		delete(m.volume(r).written, c)
	}
}

// HoldPool reserves the metadata snapshot of a thin pool behind the driver's back, or releases it; PoolHeld tells.
func (m *Machine) HoldPool(pool volume.Ref, yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volume(pool).held = yes
}

// PoolHeld tells whether the metadata snapshot of a thin pool is reserved.
func (m *Machine) PoolHeld(pool volume.Ref) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.volume(pool).held
}

// nextThinID gives the number for a new thin volume, as LVM does: the highest is given again when its volume is gone.
func (g *group) nextThinID(pool string) int64 {
	var last int64
	for _, v := range g.lvs {
		if v.poolName == pool {
			last = max(last, v.thinID)
		}
	}
	return last + 1
}

// thinPool finds a pool that has a device: it is active, or a thin volume in it is. With m.mu held.
func (c *LVM) thinPool(r volume.Ref) (*lv, error) {
	v := c.volume(r)
	if v == nil || !v.pool {
		return nil, fmt.Errorf("%w: thin pool %s", volume.ErrNotFound, r)
	}
	active := v.active
	for _, o := range v.group.lvs {
		active = active || o.active && o.poolName == r.LV
	}
	if !active {
		return nil, fmt.Errorf("%w: device of thin pool %s", volume.ErrNotFound, r)
	}
	return v, nil
}

// Reserved implements lifecycle.ThinMetadata.
func (c *LVM) Reserved(_ context.Context, pool volume.Ref) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.thinPool(pool)
	return err == nil && v.held, err
}

// Reserve implements lifecycle.ThinMetadata.
func (c *LVM) Reserve(ctx context.Context, pool volume.Ref) error {
	return c.change(ctx, "message", pool.String()+" reserve_metadata_snap", func() error {
		v, err := c.thinPool(pool)
		if err != nil {
			return err
		}
		if v.held {
			return fmt.Errorf("%w: metadata snapshot of thin pool %s", volume.ErrBusy, pool)
		}
		v.held = true
		return nil
	})
}

// Release implements lifecycle.ThinMetadata.
func (c *LVM) Release(ctx context.Context, pool volume.Ref) error {
	held, err := c.Reserved(ctx, pool)
	if err != nil || !held {
		return err
	}
	return c.change(ctx, "message", pool.String()+" release_metadata_snap", func() error {
		v, err := c.thinPool(pool)
		if err == nil {
			v.held = false
		}
		return err
	})
}

// Blocks implements lifecycle.ThinMetadata.
func (c *LVM) Blocks(ctx context.Context, q volume.BlockQuery, emit func(volume.Range) error) error {
	program := "thin_dump"
	if q.Base != 0 {
		program = "thin_delta"
	}
	c.count(program)
	if err := c.pass(ctx, program); err != nil {
		return err
	}
	chunks, err := c.changed(q)
	if err != nil {
		return err
	}
	var last volume.Range
	for _, n := range chunks {
		begin, end := max(n*ThinChunk, q.Within.Offset), min((n+1)*ThinChunk, q.Within.End())
		switch {
		case begin >= end:
		case last.Bytes != 0 && last.End() == begin:
			last.Bytes += end - begin
		case last.Bytes != 0:
			if err := emit(last); err != nil {
				return err
			}
			fallthrough
		default:
			last = volume.Range{Offset: begin, Bytes: end - begin}
		}
	}
	if last.Bytes == 0 {
		return nil
	}
	return emit(last)
}

// changed gives the chunks that are asked for, in order.
func (c *LVM) changed(q volume.BlockQuery) ([]int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pool, err := c.thinPool(q.Pool)
	if err != nil {
		return nil, err
	}
	if !pool.held {
		return nil, fmt.Errorf("no current metadata snapshot of thin pool %s", q.Pool)
	}
	written := map[int64]map[int64]int64{0: {}}
	for _, v := range pool.group.lvs {
		if v.poolName == q.Pool.LV {
			written[v.thinID] = v.written
		}
	}
	base, target := written[q.Base], written[q.Target]
	if base == nil || target == nil {
		return nil, fmt.Errorf("thin pool %s has no devices %d and %d", q.Pool, q.Base, q.Target)
	}
	changed := map[int64]bool{}
	for _, side := range []map[int64]int64{base, target} {
		for n := range side {
			if base[n] != target[n] {
				changed[n] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(changed)), nil
}
