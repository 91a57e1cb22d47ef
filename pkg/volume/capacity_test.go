package volume

import (
	"math"
	"slices"
	"testing"
)

// group makes a group of 4 MiB extents with so many of them free on each physical volume.
func group(free ...int64) Group {
	g := Group{Name: "vg", ExtentBytes: 4 * mi}
	for _, f := range free {
		g.PVs = append(g.PVs, PV{SizeBytes: 100 * 4 * mi, FreeBytes: f * 4 * mi, Allocatable: true})
	}
	return g
}

func TestAvailable(t *testing.T) {
	missing := group(10, 10)
	missing.MissingPVs = 1
	frozen := group(10, 7)
	frozen.PVs[0].Allocatable = false
	broken := group(10)
	broken.ExtentBytes = 0
	tiny := Group{ExtentBytes: 64 << 10, PVs: []PV{{FreeBytes: mi, Allocatable: true}, {FreeBytes: mi, Allocatable: true}}}
	vast := Group{ExtentBytes: 4 * mi, PVs: []PV{{FreeBytes: 1 << 62, Allocatable: true}}}
	pools := func(size, virtual int64) Group {
		g := group(50)
		g.Pools = []Pool{{Name: "other", SizeBytes: 1 << 50}, {Name: "pool", SizeBytes: size, VirtualBytes: virtual}}
		return g
	}
	linear, striped2, raid1 := Layout{Type: Linear}, Layout{Type: Striped, Stripes: 2}, Layout{Type: RAID1, Mirrors: 1}
	raid5, raid6 := Layout{Type: RAID5, Stripes: 2}, Layout{Type: RAID6, Stripes: 3}
	raid10, thin := Layout{Type: RAID10, Stripes: 2, Mirrors: 1}, Layout{Type: Thin, Pool: "pool"}
	const x = 4 * mi
	for name, tt := range map[string]struct {
		g          Group
		l          Layout
		overcommit float64
		all, one   int64
	}{
		"linear":                   {group(3, 0, 5), linear, 0, 8 * x, 8 * x},
		"linear, full":             {group(0, 0), linear, 0, 0, 0},
		"linear, no PVs":           {group(), linear, 0, 0, 0},
		"linear, not allocatable":  {frozen, linear, 0, 7 * x, 7 * x},
		"linear, partial group":    {missing, linear, 0, 0, 0},
		"no extent size":           {broken, linear, 0, 0, 0},
		"more than LVM can count":  {vast, linear, 0, 1 << 62, math.MaxUint32 * x},
		"striped, even":            {group(5, 5), striped2, 0, 10 * x, 10 * x},
		"striped, uneven":          {group(8, 4, 4), striped2, 0, 16 * x, 8 * x},
		"striped, odd":             {group(3, 3, 3), striped2, 0, 8 * x, 6 * x},
		"striped, one large":       {group(100, 1, 1), striped2, 0, 4 * x, 2 * x},
		"striped, one PV":          {group(100), striped2, 0, 0, 0},
		"striped, one PV free":     {group(100, 0), striped2, 0, 0, 0},
		"raid1":                    {group(5, 5), raid1, 0, 4 * x, 4 * x},
		"raid1, four PVs":          {group(5, 5, 5, 5), raid1, 0, 9 * x, 4 * x},
		"raid1, three copies":      {group(5, 4, 3, 2), Layout{Type: RAID1, Mirrors: 2}, 0, 3 * x, 2 * x},
		"raid1, only metadata":     {group(1, 1), raid1, 0, 0, 0},
		"raid1, small extents":     {tiny, raid1, 0, mi - 5*(64<<10), mi - 5*(64<<10)},
		"raid1, not allocatable":   {frozen, raid1, 0, 0, 0},
		"raid5":                    {group(5, 5, 5), raid5, 0, 8 * x, 8 * x},
		"raid5, two PVs":           {group(5, 5), raid5, 0, 0, 0},
		"raid6":                    {group(5, 5, 5, 5, 3), raid6, 0, 6 * x, 6 * x},
		"raid6, four PVs":          {group(5, 5, 5, 5), raid6, 0, 0, 0},
		"raid10":                   {group(9, 5, 5, 3), raid10, 0, 4 * x, 4 * x},
		"thin":                     {pools(10*x, 4*x), thin, 0, 6 * x, 6 * x},
		"thin, 1.0":                {pools(10*x, 4*x), thin, 1, 6 * x, 6 * x},
		"thin, 2.0":                {pools(10*x, 4*x), thin, 2, 16 * x, 16 * x},
		"thin, 1.55: whole":        {pools(10*x, 4*x), thin, 1.55, 11 * x, 11 * x},
		"thin, 0.5":                {pools(10*x, 4*x), thin, 0.5, 1 * x, 1 * x},
		"thin, promised too much":  {pools(10*x, 40*x), thin, 1, 0, 0},
		"thin, not a number":       {pools(10*x, 4*x), thin, math.NaN(), 6 * x, 6 * x},
		"thin, negative":           {pools(10*x, 4*x), thin, -1, 6 * x, 6 * x},
		"thin, other pool":         {group(50), thin, 1, 0, 0},
		"thin, partial group":      {Group{ExtentBytes: x, MissingPVs: 1, Pools: []Pool{{Name: "pool", SizeBytes: 10 * x}}}, thin, 1, 0, 0},
		"thin, full group is fine": {Group{ExtentBytes: x, Pools: []Pool{{Name: "pool", SizeBytes: 10 * x}}}, thin, 1, 10 * x, 10 * x},
	} {
		all, one := Available(tt.g, tt.l, tt.overcommit)
		if all != tt.all || one != tt.one {
			t.Errorf("%s: got %d, %d extents; want %d, %d", name, all/x, one/x, tt.all/x, tt.one/x)
		}
	}
	if all, one := Available(pools(1<<60, 0), thin, 1); all != 1<<60 || one != math.MaxUint32*x {
		t.Errorf("a pool of more extents than a volume can have: got %d, %d", all, one)
	}
	if all, one := Available(pools(math.MaxInt64/2, 0), thin, math.Inf(1)); all <= 0 || one <= 0 || one%x != 0 {
		t.Errorf("endless overcommit: got %d, %d", all, one)
	}
}

// What can be had is found by trying: always taking a row from the PVs with most left is optimal.
func TestRows(t *testing.T) {
	try := func(free []int64, n int) (rows int64) {
		left := slices.Clone(free)
		for {
			slices.SortFunc(left, func(a, b int64) int { return int(b - a) })
			if left[n-1] == 0 {
				return rows
			}
			for i := range n {
				left[i]--
			}
			rows++
		}
	}
	for a := int64(0); a <= 7; a++ {
		for b := int64(0); b <= a; b++ {
			for c := int64(0); c <= b; c++ {
				for d := int64(0); d <= c; d++ {
					free := []int64{a, b, c, d}
					for n := 1; n <= 4; n++ {
						if got, want := rows(free, n), try(free, n); got != want {
							t.Fatalf("rows(%v, %d) = %d, want %d", free, n, got, want)
						}
					}
				}
			}
		}
	}
}

// One volume is never more than all of them, and both are whole units.
func FuzzAvailable(f *testing.F) {
	f.Add(uint32(5), uint32(5), uint32(5), uint32(3), uint8(2), uint8(1), uint32(4<<10))
	f.Fuzz(func(t *testing.T, a, b, c, d uint32, stripes, mirrors uint8, extentKiB uint32) {
		g := group()
		g.ExtentBytes = max(1, int64(extentKiB)) << 10
		for _, n := range []uint32{a, b, c, d} {
			g.PVs = append(g.PVs, PV{FreeBytes: int64(n%(1<<20)) * g.ExtentBytes, Allocatable: true})
		}
		for kind := range layoutRules {
			l := Layout{Type: kind}
			if rule := layoutRules[kind]; rule.stripes.most != 0 {
				l.Stripes = max(rule.stripes.least, int(stripes)%5)
			}
			if rule := layoutRules[kind]; rule.mirrors.most != 0 {
				l.Mirrors = max(rule.mirrors.least, int(mirrors)%4)
			}
			all, one := Available(g, l, 1)
			unit := l.UnitBytes(g.ExtentBytes)
			if all < one || one < 0 || all%unit != 0 || one%unit != 0 || (all == 0) != (one == 0) {
				t.Fatalf("%s: %d in all, %d in one, units of %d", l, all, one, unit)
			}
		}
	})
}

// case B51
func TestSmallestBytes(t *testing.T) {
	for _, tt := range []struct {
		l    Layout
		fs   FS
		want int64
	}{
		{Layout{Type: Linear}, "", 4 * mi}, {Layout{Type: Linear}, Ext4, 4 * mi}, {Layout{Type: Linear}, XFS, 300 * mi},
		{Layout{Type: Linear}, Btrfs, 256 * mi}, {Layout{Type: RAID5, Stripes: 7}, XFS, 308 * mi}, {Layout{Type: Striped, Stripes: 2}, "", 8 * mi},
	} {
		if got := tt.l.SmallestBytes(4*mi, tt.fs); got != tt.want {
			t.Errorf("%s %s: %d, want %d", tt.l, tt.fs, got, tt.want)
		}
	}
}
