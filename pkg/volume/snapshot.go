package volume

import (
	"fmt"
	"strconv"
	"strings"
)

// KeySnapshotSize is the key of VolumeSnapshotClass parameters: how large the store of a thick snapshot is.
const KeySnapshotSize = "snapshotSize"

// CopyOnWrite is the size of the store of a thick snapshot: what was there before is copied into it when the origin is
// written. When it is full the snapshot is lost. The zero value is large enough never to be full.
type CopyOnWrite struct {
	Bytes   int64 // 0: not said
	Percent int   // of the origin; 0: not said
}

// ParseSnapshotParameters reads the parameters of CreateSnapshot. For thin volumes the size is passed over: their
// snapshots have no store, and one VolumeSnapshotClass serves both.
func ParseSnapshotParameters(params map[string]string) (c CopyOnWrite, err error) {
	if err := checkKeys("parameters", params, []string{KeySnapshotSize}); err != nil {
		return c, err
	}
	const field = "parameters[" + KeySnapshotSize + "]"
	v, given := params[KeySnapshotSize]
	percent, isPercent := strings.CutSuffix(v, "%")
	switch {
	case !given:
		return c, nil
	case !isPercent:
		c.Bytes, err = ParseSize(field, v)
		return c, err
	}
	n, err := strconv.ParseUint(percent, 10, 31)
	if err != nil || n < 1 || n > 1000 {
		return c, Invalid(field, v, `give a size such as "1Gi", or a percentage of the origin from "1%" to "1000%"`)
	}
	return CopyOnWrite{Percent: int(n)}, nil
}

// String gives the size in one form; "" is the zero value's.
func (c CopyOnWrite) String() string {
	if c.Percent != 0 {
		return strconv.Itoa(c.Percent) + "%"
	}
	return decimal(c.Bytes)
}

// cowChunk is the unit of copying, in bytes, that lvcreate is told: LVM's own default.
const cowChunk = 4 << 10

// StoreBytes gives the size of the store for an origin of so many bytes, a multiple of the extent: as asked for, but not
// more than can ever be used, which is also the default. That is every chunk of the origin, an entry of 16 bytes for each in
// tables, and a header (Documentation/admin-guide/device-mapper/snapshot; drivers/md/dm-snap-persistent.c; lvm2
// lib/metadata/snapshot_manip.c, _cow_max_size).
func (c CopyOnWrite) StoreBytes(origin, extent int64) int64 {
	up := func(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
	chunks := up(origin, cowChunk) / cowChunk
	most := up(chunks*cowChunk+up(chunks*16, cowChunk)+2*cowChunk, extent)
	asked := c.Bytes
	if c.Percent != 0 {
		asked = origin / 100 * int64(min(c.Percent, 110)) // more is more than can be used
	}
	if asked == 0 {
		return most
	}
	return min(up(min(asked, most), extent), most)
}

// Thick reports whether the logical volume is a copy-on-write snapshot: LVM drops it with its origin.
func (lv LV) Thick() bool { return lv.Origin != "" && lv.Type != Thin }

// Whole is nil where the snapshot is one. A thick one may have been cut off after its store was made and before that was
// tied to the origin: then it is a plain logical volume with a snapshot's tags, which holds nothing.
func (lv LV) Whole() error {
	switch {
	case lv.Tags.State != "":
		return fmt.Errorf("%w: logical volume %s is not whole yet (%s)", ErrPending, lv.Ref, lv.Tags.State)
	case lv.Tags.Kind == Snapshot && lv.Type != Thin && lv.Origin == "":
		return fmt.Errorf("%w: logical volume %s was to become a snapshot of %s, and is none", ErrPending, lv.Ref, lv.Tags.Origin)
	}
	return nil
}

// matchesSnapshot is Matches for a snapshot (CSI spec, CreateSnapshot: same name, compatible arguments).
func (s Spec) matchesSnapshot(lv LV, differs func(what, has, asked string) error) error {
	said := func(v string) string {
		if v == "" {
			return "not said"
		}
		return v
	}
	switch origin, cow := s.Origin.Ref.String(), s.CopyOnWrite.String(); {
	case lv.Tags.Origin != origin:
		return differs("source volume", lv.Tags.Origin, origin)
	case lv.Tags.CopyOnWrite != cow:
		return differs(KeySnapshotSize, said(lv.Tags.CopyOnWrite), said(cow))
	}
	return nil
}

// Source gives what a snapshot was made of. ok is false where the tags do not tell.
func (t Tags) Source() (r Ref, ok bool) {
	r.VG, r.LV, ok = strings.Cut(t.Origin, "/")
	return r, ok
}
