package volume

import (
	"math"
	"slices"
)

// maxExtents is how many extents a logical volume can have: LVM counts them in 32 bits (lvm2 lib/metadata/lv.h).
const maxExtents = math.MaxUint32

// Available tells, in bytes and whole units of the layout (Layout.UnitBytes), what can still be made in the group:
// available in all, in volumes as small as one likes, and maxVolume in one volume. Neither is negative. Both are 0
// where LVM would make nothing: a physical volume is missing (LVM changes no partial group), there are fewer physical
// volumes than the layout has images, or the thin pool is not there.
//
// overcommit bounds the virtual sizes in a thin pool to that many times the pool's size; 0 is 1, no overcommit.
//
// maxVolume can really be made when nobody else takes the space first. It is exact for linear and thin. For the others
// it is on the safe side: each image is counted on one physical volume. LVM can continue an image on another one, and
// so sometimes makes more, but what it finds there depends on the order in which its allocator looks
// (lvm2 lib/metadata/lv_manip.c, _find_max_parallel_space_for_one_policy).
func Available(g Group, l Layout, overcommit float64) (available, maxVolume int64) {
	if g.MissingPVs > 0 || g.ExtentBytes <= 0 {
		return 0, 0
	}
	if l.Type == Thin {
		n := thinExtents(g, l.Pool, overcommit)
		return n * g.ExtentBytes, min(n, maxExtents) * g.ExtentBytes
	}
	images, data, meta := l.images(), int64(max(1, l.Stripes)), l.metaExtents(g.ExtentBytes)
	free := freeExtents(g)
	if len(free) < images {
		return 0, 0
	}
	all := max(0, rows(free, images)-meta)
	one := all
	if images > 1 {
		one = max(0, free[images-1]-meta)
	}
	if one == 0 { // not even the smallest volume
		return 0, 0
	}
	return all * data * g.ExtentBytes, min(one, maxExtents/data) * data * g.ExtentBytes
}

// thinExtents gives the extents that may still be promised to thin volumes.
func thinExtents(g Group, pool string, overcommit float64) int64 {
	if !(overcommit > 0) { // also NaN
		overcommit = 1
	}
	for _, p := range g.Pools {
		if p.Name != pool {
			continue
		}
		limit := float64(p.SizeBytes) * overcommit
		if limit >= math.MaxInt64 {
			limit = math.MaxInt64 / 2
		}
		return max(0, int64(limit)-p.VirtualBytes) / g.ExtentBytes
	}
	return 0
}

// freeExtents gives the free extents of each physical volume that can be allocated from, most first.
func freeExtents(g Group) []int64 {
	var free []int64
	for _, pv := range g.PVs {
		if n := pv.FreeBytes / g.ExtentBytes; pv.Allocatable && n > 0 {
			free = append(free, n)
		}
	}
	slices.Sort(free)
	slices.Reverse(free)
	return free
}

// rows tells how often one can take one extent from each of n different physical volumes. free is sorted, most first,
// and has at least n elements. A physical volume with more than its share of the rows, which is in every row, does not
// bound the others: it is left out, with its place in the row.
func rows(free []int64, n int) int64 {
	var sum int64
	for _, f := range free {
		sum += f
	}
	for n > 1 && free[0] > sum/int64(n) {
		sum -= free[0]
		free, n = free[1:], n-1
	}
	return sum / int64(n)
}

// images is how many physical volumes a row lies on, each with one extent: data stripes, copies and parity (lvmraid(7)).
func (l Layout) images() int {
	switch l.Type {
	case Striped:
		return l.Stripes
	case RAID1:
		return l.Mirrors + 1
	case RAID5:
		return l.Stripes + 1
	case RAID6:
		return l.Stripes + 2
	case RAID10:
		return l.Stripes * (l.Mirrors + 1)
	}
	return 1
}

// metaExtents is the size of the rmeta volume beside each raid image: two superblocks of 4 KiB, and a bitmap with a bit
// for each region, of which there are at most 2^21 (lvm2 raid_rmeta_extents; kernel drivers/md/dm-raid.c).
func (l Layout) metaExtents(extentBytes int64) int64 {
	switch l.Type {
	case RAID1, RAID5, RAID6, RAID10:
		const most = 2*4096 + (1<<21)/8
		return (most + extentBytes - 1) / extentBytes
	}
	return 0
}

// SmallestBytes is the size of the smallest volume of the layout that takes the file system; "" is none.
func (l Layout) SmallestBytes(extentBytes int64, fs FS) int64 {
	n, _ := roundUp(max(1, MinFSBytes(fs)), l.UnitBytes(extentBytes))
	return n
}
