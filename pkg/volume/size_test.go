package volume

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// cases B39, B40, B51
func TestSize(t *testing.T) {
	const odd = 221920847 // 211.6 MiB
	for name, tt := range map[string]struct {
		required, limit, unit, least int64
		want                         int64
		err                          error
	}{
		"B40 one byte":             {1, 0, 4 * mi, 0, 4 * mi, nil},
		"B40 odd bytes":            {odd, 0, 4 * mi, 0, 212 * mi, nil},
		"B40 odd bytes, 32M":       {odd, 0, 32 * mi, 0, 224 * mi, nil},
		"B40 exact, no multiple":   {4*mi + 1, 4*mi + 1, 4 * mi, 0, 0, ErrOutOfRange},
		"B40 5 to 6":               {5 * mi, 6 * mi, 4 * mi, 0, 0, ErrOutOfRange},
		"B40 5 to 8":               {5 * mi, 8 * mi, 4 * mi, 0, 8 * mi, nil},
		"B40 limit 8":              {0, 8 * mi, 4 * mi, 0, 8 * mi, nil},
		"B40 limit 3":              {0, 3 * mi, 4 * mi, 0, 0, ErrOutOfRange},
		"B40 limit 1":              {0, 1, 4 * mi, 0, 0, ErrOutOfRange},
		"B40 limit 8, 32M":         {0, 8 * mi, 32 * mi, 0, 0, ErrOutOfRange},
		"B40 limit below required": {8 * mi, 4 * mi, 4 * mi, 0, 0, ErrOutOfRange},
		"B40 required negative":    {-1, 0, 4 * mi, 0, 0, ErrInvalid},
		"B40 limit negative":       {0, -1, 4 * mi, 0, 0, ErrInvalid},
		"B40 largest number":       {math.MaxInt64, 0, 4 * mi, 0, 0, ErrOutOfRange},
		"B40 both the largest":     {math.MaxInt64, math.MaxInt64, 4 * mi, 0, 0, ErrOutOfRange},
		"largest multiple":         {math.MaxInt64/(4*mi)*(4*mi) - 4*mi, 0, 4 * mi, 0, math.MaxInt64/(4*mi)*(4*mi) - 4*mi, nil},
		"limit the largest":        {1, math.MaxInt64, 4 * mi, 0, 4 * mi, nil},
		"nothing said":             {0, 0, 4 * mi, 0, gi, nil},
		"nothing said, row of 3":   {0, 0, 12 * mi, 0, 1032 * mi, nil},
		"limit the default, row 3": {0, gi, 12 * mi, 0, 1020 * mi, nil},
		"limit above the default":  {0, 2 * gi, 4 * mi, 0, gi, nil},
		"B39 203 Mi":               {203 * mi, 0, 4 * mi, 0, 204 * mi, nil},
		"B51 xfs 1 Mi":             {mi, 0, 4 * mi, 300 * mi, 300 * mi, nil},
		"B51 xfs 299 Mi":           {299 * mi, 0, 4 * mi, 300 * mi, 300 * mi, nil},
		"B51 xfs 300 Mi":           {300 * mi, 0, 4 * mi, 300 * mi, 300 * mi, nil},
		"B51 xfs 100 to 200":       {100 * mi, 200 * mi, 4 * mi, 300 * mi, 0, ErrOutOfRange},
		"B51 xfs limit 200":        {0, 200 * mi, 4 * mi, 300 * mi, 0, ErrOutOfRange},
		"B51 xfs 32M":              {mi, 0, 32 * mi, 300 * mi, 320 * mi, nil},
		"B51 ext4 1 Mi":            {mi, 0, mi, MinFSBytes(Ext4), 2 * mi, nil},
		"stripe row of 64":         {1, 0, Layout{Type: Striped, Stripes: 64}.UnitBytes(4 * mi), 0, 256 * mi, nil},
	} {
		got, err := Size(tt.required, tt.limit, tt.unit, tt.least)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: got %d, %v; want %d, %v", name, got, err, tt.want, tt.err)
		}
	}
}

func TestUnitBytes(t *testing.T) {
	for _, tt := range []struct {
		l    Layout
		want int64
	}{
		{Layout{Type: Linear}, 4 * mi}, {Layout{Type: Thin, Pool: "p"}, 4 * mi}, {Layout{Type: RAID1, Mirrors: 2}, 4 * mi},
		{Layout{Type: Striped, Stripes: 3}, 12 * mi}, {Layout{Type: RAID5, Stripes: 3}, 12 * mi}, {Layout{Type: RAID6, Stripes: 3}, 12 * mi},
		{Layout{Type: RAID10, Stripes: 2, Mirrors: 1}, 8 * mi},
	} {
		if got := tt.l.UnitBytes(4 * mi); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.l, got, tt.want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "64Mi": 64 * mi, "1Gi": gi, "1G": 1e9, "5k": 5000, "007Ki": 7 << 10, "7Ei": 7 << 60, "9223372036854775807": math.MaxInt64, "9E": 9e18,
	} {
		if got, err := ParseSize("f", s); got != want || err != nil {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "0", "0Gi", "-1", "+1", "1.5Gi", "1e3", "Gi", "1 Gi", " 1Gi", "1Gi\n", "1gi", "1K", "1GB", "1m", "8Ei", "10E", "9223372036854775808",
		"99999999999999999999", "0x10", "١", strings.Repeat("9", 10<<10),
	} {
		_, err := ParseSize("f", s)
		wantField(t, err, "f")
	}
}

// cases B39, B40, B51
func FuzzSize(f *testing.F) {
	f.Add(int64(1), int64(0), int64(4*mi), int64(0))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(12*mi), int64(300*mi))
	f.Add(int64(0), int64(3*mi), int64(4*mi), int64(2*mi))
	f.Add(int64(-1), int64(-1), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, required, limit, unit, least int64) {
		if unit <= 0 || unit > 1<<40 || least < 0 || least > 1<<40 {
			return // an extent, and a file system's minimum
		}
		size, err := Size(required, limit, unit, least)
		if required < 0 || limit < 0 {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("negative: %v", err)
			}
			return
		}
		// The oracle: the smallest multiple of unit that is large enough, in numbers without end.
		smallest := new(big.Int).Div(new(big.Int).Add(big.NewInt(max(required, least, 1)), big.NewInt(unit-1)), big.NewInt(unit))
		smallest.Mul(smallest, big.NewInt(unit))
		possible := smallest.Cmp(big.NewInt(math.MaxInt64-unit)) <= 0 && (limit == 0 || smallest.Cmp(big.NewInt(limit)) <= 0) && (limit == 0 || required <= limit)
		if err != nil {
			if !errors.Is(err, ErrOutOfRange) || size != 0 {
				t.Fatalf("got %d, %v; want an ErrOutOfRange alone", size, err)
			}
			if possible {
				t.Fatalf("refused, but %v is in the range: %v", smallest, err)
			}
			return
		}
		if size <= 0 || size%unit != 0 || size < required || size < least || limit != 0 && size > limit {
			t.Fatalf("%d is not within %d, %d in units of %d, at least %d", size, required, limit, unit, least)
		}
		if required != 0 && smallest.Cmp(big.NewInt(size)) != 0 {
			t.Fatalf("%d, but %v is enough", size, smallest)
		}
		if again, err := Size(size, limit, unit, least); err != nil || again != size { // case B39
			t.Fatalf("asking for %d again gives %d, %v", size, again, err)
		}
	})
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"64Mi", "1G", "0", "8Ei", "-1", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize("f", s)
		if err != nil {
			wantField(t, err, "f")
			return
		}
		digits := strings.TrimRight(s, "KMGTPEik")
		want, ok := new(big.Int).SetString(digits, 10)
		if !ok || n <= 0 {
			t.Fatalf("%q is read as %d", s, n)
		}
		want.Mul(want, big.NewInt(quantityUnits[s[len(digits):]]))
		if want.Cmp(big.NewInt(n)) != 0 {
			t.Fatalf("%q is read as %d, not %v", s, n, want)
		}
	})
}
