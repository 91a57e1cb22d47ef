package volume

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
)

// DefaultBytes is the size of a volume for which the CO named none.
const DefaultBytes = 1 << 30

// MinFSBytes gives the smallest device on which the file system can be made with its default options, and be made larger later, in bytes:
// mke2fs(8) is content with 2 MiB for ext4 with a journal, mkfs.xfs (xfsprogs 5.19 and later) refuses less than 300 MiB.
// mkfs.btrfs is content with 109 MiB, but the kernel resizes no btrfs to less than 256 MiB (fs/btrfs/ioctl.c, btrfs_ioctl_resize).
func MinFSBytes(fs FS) int64 {
	switch fs {
	case Ext4:
		return 2 << 20
	case XFS:
		return 300 << 20
	case Btrfs:
		return 256 << 20
	}
	return 0
}

// UnitBytes is what a size must be a multiple of: the extent, or a row of extents over all data stripes.
func (l Layout) UnitBytes(extentBytes int64) int64 { return extentBytes * int64(max(1, l.Stripes)) }

// Size gives the size for a request in bytes: the smallest multiple of unit that is at least required and at least
// least, but not above limit. required 0 is DefaultBytes, or limit where that is less; limit 0 is none.
// The error is an ErrInvalid or ErrOutOfRange.
func Size(required, limit, unit, least int64) (int64, error) {
	if err := CheckRange(required, limit); err != nil {
		return 0, err
	}
	if required == 0 {
		required = DefaultBytes
		if limit != 0 {
			required = min(required, limit/unit*unit)
		}
	}
	size, ok := roundUp(max(required, least, 1), unit)
	if !ok {
		return 0, fmt.Errorf("%w: capacity_range.required_bytes %d: no volume can be this large; ask for less", ErrOutOfRange, required)
	}
	if limit != 0 && size > limit {
		return 0, fmt.Errorf("%w: capacity_range.limit_bytes %d: the smallest possible size is %d bytes (required_bytes %d, file system at least %d, in units of %d); raise the limit",
			ErrOutOfRange, limit, size, required, least, unit)
	}
	return size, nil
}

// ExpandedSize gives the size for a request to make a volume of has bytes larger: has, where that is enough already, else as
// Size does. A volume never becomes smaller: a limit below has is an ErrOutOfRange.
func ExpandedSize(has, required, limit, unit int64) (int64, error) {
	if err := CheckRange(required, limit); err != nil {
		return 0, err
	}
	if limit != 0 && has > limit {
		return 0, fmt.Errorf("%w: capacity_range.limit_bytes %d: the volume has %d bytes, and is never made smaller; raise the limit",
			ErrOutOfRange, limit, has)
	}
	if required <= has {
		return has, nil
	}
	return Size(required, limit, unit, 0)
}

// CheckRange checks a capacity_range before anything of the volume group is known.
func CheckRange(required, limit int64) error {
	switch {
	case required < 0:
		return Invalid("capacity_range.required_bytes", strconv.FormatInt(required, 10), "must not be negative")
	case limit < 0:
		return Invalid("capacity_range.limit_bytes", strconv.FormatInt(limit, 10), "must not be negative")
	case limit != 0 && required > limit:
		return fmt.Errorf("%w: capacity_range: required_bytes %d is above limit_bytes %d; raise the limit", ErrOutOfRange, required, limit)
	}
	return nil
}

// roundUp is false where the result does not fit.
func roundUp(n, unit int64) (int64, bool) {
	if n > math.MaxInt64-unit {
		return 0, false
	}
	return (n + unit - 1) / unit * unit, true
}

var quantity = regexp.MustCompile(`^([0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$`)

var quantityUnits = map[string]int64{
	"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
	"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
}

// ParseSize reads a whole Kubernetes quantity ("64Mi", "1G", "1048576") as bytes, more than 0.
func ParseSize(field, v string) (int64, error) {
	m := quantity.FindStringSubmatch(v)
	if m == nil {
		return 0, Invalid(field, v, `give a whole number of bytes with a unit of Ki, Mi, Gi, Ti or k, M, G, T, such as "64Mi"`)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := quantityUnits[m[2]]
	if err != nil || n > math.MaxInt64/unit {
		return 0, Invalid(field, v, "too large")
	}
	if n == 0 {
		return 0, Invalid(field, v, "must be more than 0")
	}
	return n * unit, nil
}
