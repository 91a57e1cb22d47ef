package lvm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// parseMetadata reads the metadata text of a volume group as it stands on its physical volumes (lvm2
// lib/format_text/import_vsn1.c, export.c), and gives the group as a report would. The devices of the physical volumes
// are not in it (only a hint): PV.Device holds the uuid, and whether one is missing is not known.
// It is strict: what it does not understand is an error, and LVM is asked instead.
func parseMetadata(text string) (g *group, err error) {
	defer func() {
		if wrong, ok := recover().(wrongField); ok {
			g, err = nil, fmt.Errorf("metadata text: %s", string(wrong))
		}
	}()
	root, err := parseTree(text)
	if err != nil {
		return nil, err
	}
	for name, v := range root {
		if vg, ok := v.(section); ok {
			if g != nil {
				return nil, fmt.Errorf("metadata text: two groups")
			}
			g = readGroup(name, vg)
		}
	}
	if g == nil {
		return nil, fmt.Errorf("metadata text: no group")
	}
	return g, nil
}

// wrongField is thrown by the readers of fields, and caught by parseMetadata.
type wrongField string

func field[T any](s section, key string) T {
	v, ok := s[key].(T)
	if !ok {
		panic(wrongField(fmt.Sprintf("%s is %v", key, s[key])))
	}
	return v
}

// words gives a list of strings; none where the key is not there.
func words(s section, key string) []string {
	if _, ok := s[key]; !ok {
		return nil
	}
	var out []string
	for _, v := range field[[]any](s, key) {
		w, ok := v.(string)
		if !ok {
			panic(wrongField(key + " holds something else than words"))
		}
		out = append(out, w)
	}
	return out
}

// count reads a number of extents or sectors. The bound keeps products with the extent size within int64.
func count(s section, key string) int64 {
	n := field[int64](s, key)
	if n < 0 || n > 1<<40 {
		panic(wrongField(fmt.Sprintf("%s is %d", key, n)))
	}
	return n
}

func readGroup(name string, vg section) *group {
	g := &group{lvs: map[string]volume.LV{}, seqno: count(vg, "seqno")}
	g.Name, g.UUID = name, field[string](vg, "id")
	g.ExtentBytes = count(vg, "extent_size") * sectorBytes
	if g.ExtentBytes == 0 || g.ExtentBytes > 1<<44 {
		panic(wrongField("extent_size is impossible"))
	}
	lvs := section{}
	if _, ok := vg["logical_volumes"]; ok {
		lvs = field[section](vg, "logical_volumes")
	}
	used := map[string]int64{} // extents by the name of the physical volume within the text
	lies := map[string][]string{}
	for lvName := range lvs {
		lies[lvName] = readAreas(field[section](lvs, lvName), used)
	}
	pvs := field[section](vg, "physical_volumes")
	uuids := map[string]string{}
	for pvName := range pvs {
		pv := field[section](pvs, pvName)
		extents := count(pv, "pe_count")
		uuids[pvName] = field[string](pv, "id")
		g.PVs = append(g.PVs, volume.PV{
			Device:      uuids[pvName],
			SizeBytes:   g.bytes(extents),
			FreeBytes:   g.bytes(extents - used[pvName]),
			Allocatable: slices.Contains(words(pv, "status"), "ALLOCATABLE"),
		})
		delete(used, pvName)
	}
	for _, pv := range g.PVs {
		g.SizeBytes += pv.SizeBytes
		g.FreeBytes += pv.FreeBytes
	}
	readVolumes(g, lvs)
	g.lies = map[string][]string{}
	for lvName := range g.lvs {
		g.lies[lvName] = restsOn(lvName, lies, uuids, 0)
	}
	return g
}

// bytes gives the size of so many extents.
func (g *group) bytes(extents int64) int64 {
	if extents < 0 || extents > (1<<63-1)/g.ExtentBytes {
		panic(wrongField(fmt.Sprintf("%d extents", extents)))
	}
	return extents * g.ExtentBytes
}

// readAreas gives the names of all that the segments of a logical volume lie on, physical volumes and other logical
// ones, and counts the extents it takes of each.
func readAreas(lv section, used map[string]int64) (on []string) {
	for _, seg := range segments(lv) {
		extents := count(seg, "extent_count")
		for key, v := range seg {
			if key == "type" {
				continue
			}
			switch list := v.(type) {
			case string: // pool, metadata, data, origin, cow_store, thin_pool, ...: names of other logical volumes
				on = append(on, list)
			case []any:
				on = append(on, names(list)...)
				if areas := int64(len(list) / 2); areas > 0 && (key == "stripes" || key == "mirrors") {
					per := extents
					if key == "stripes" {
						per = extents / areas
					}
					for _, n := range names(list) {
						used[n] += per
					}
				}
			}
		}
	}
	return on
}

func names(list []any) (out []string) {
	for _, v := range list {
		if n, ok := v.(string); ok {
			out = append(out, n)
		}
	}
	return out
}

// segments gives the segments of a logical volume in their order.
func segments(lv section) []section {
	n := count(lv, "segment_count")
	var out []section
	for i := int64(1); i <= n && i <= int64(len(lv)); i++ {
		out = append(out, field[section](lv, "segment"+strconv.FormatInt(i, 10)))
	}
	if int64(len(out)) != n {
		panic(wrongField("segment_count is wrong"))
	}
	return out
}

// restsOn gives the uuids of the physical volumes that a logical volume lies on, directly or through others.
func restsOn(lv string, lies map[string][]string, uuids map[string]string, depth int) (out []string) {
	if depth > maxDepth {
		return nil
	}
	for _, n := range lies[lv] {
		if uuid, ok := uuids[n]; ok {
			out = append(out, uuid)
		} else if _, ok := lies[n]; ok && n != lv {
			out = append(out, restsOn(n, lies, uuids, depth+1)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// visible gives the names of the logical volumes that reports show (lvm2 lib/metadata/lv_manip.c, lv_is_visible), and of
// thick snapshots the names of their origins.
func visible(lvs section) (out []string, origins map[string]string) {
	origins = map[string]string{}
	flagged := func(name string) bool {
		lv, ok := lvs[name].(section)
		return ok && slices.Contains(words(lv, "status"), "VISIBLE")
	}
	for name := range lvs {
		// "snapshotN" is no logical volume: it ties a thick snapshot, which has no flag of its own, to its origin. One that
		// is being merged stands as merging_store, and is not shown.
		if seg := segments(field[section](lvs, name)); len(seg) == 1 && field[string](seg[0], "type") == "snapshot" {
			cow, ok := seg[0]["cow_store"].(string)
			if origin := field[string](seg[0], "origin"); ok && (flagged(origin) || strings.HasSuffix(origin, "_vorigin")) {
				out, origins[cow] = append(out, cow), origin
			}
		} else if flagged(name) {
			out = append(out, name)
		}
	}
	return out, origins
}

// readVolumes fills in the logical volumes that reports show, and the pools.
func readVolumes(g *group, lvs section) {
	pools := map[string]int64{}
	virtual := map[string]int64{}
	g.layouts = map[string]volume.Layout{}
	names, origins := visible(lvs)
	for _, name := range names {
		lv := field[section](lvs, name)
		segs := segments(lv)
		v := volume.LV{Ref: volume.Ref{VG: g.Name, LV: name}, UUID: field[string](lv, "id"), Origin: origins[name], Tags: volume.ParseTags(words(lv, "tags"))}
		var extents int64
		for i, s := range segs {
			extents += count(s, "extent_count")
			if t := segmentType(s); i == 0 {
				v.Type = t
			} else if v.Type != t {
				v.Type = ""
			}
			switch field[string](s, "type") {
			case "thin":
				v.Pool, v.ThinID = field[string](s, "thin_pool"), count(s, "device_id")
				for _, key := range []string{"origin", "external_origin"} {
					if o, ok := s[key].(string); ok {
						v.Origin = o
					}
				}
			case "thin-pool":
				pools[name] = 0
			}
		}
		v.SizeBytes = g.bytes(extents)
		g.lvs[name] = v
		if len(segs) != 0 {
			g.layouts[name] = segmentLayout(segs[len(segs)-1])
		}
		virtual[v.Pool] += v.SizeBytes
	}
	for name := range pools {
		g.Pools = append(g.Pools, volume.Pool{Name: name, SizeBytes: g.lvs[name].SizeBytes, VirtualBytes: virtual[name]})
	}
}

// segmentType gives the type of a segment as a StorageClass names it. "raid5_ls" and its like are variants of where the
// parity is (lvmraid(7)).
func segmentType(s section) volume.Type {
	switch t := field[string](s, "type"); {
	case t == "striped":
		if count(s, "stripe_count") == 1 {
			return volume.Linear
		}
		return volume.Striped
	case t == "raid1":
		return volume.RAID1
	case t == "raid5" || strings.HasPrefix(t, "raid5_"):
		return volume.RAID5
	case t == "raid6" || strings.HasPrefix(t, "raid6_"):
		return volume.RAID6
	case t == "raid10" || strings.HasPrefix(t, "raid10_"):
		return volume.RAID10
	case t == "thin":
		return volume.Thin
	}
	return ""
}

// segmentLayout gives the layout of a segment as far as sizes depend on it (lvm2 lib/striped/striped.c, lib/raid/raid.c). Where
// the text does not say how many devices there are, the numbers are 0.
func segmentLayout(s section) volume.Layout {
	number := func(key string) int {
		n, _ := s[key].(int64)
		return int(min(max(n, 0), 1<<10))
	}
	l := volume.Layout{Type: segmentType(s)}
	devices := number("device_count")
	switch l.Type {
	case volume.Striped:
		l.Stripes = number("stripe_count")
	case volume.RAID1:
		l.Mirrors = max(0, devices-1)
	case volume.RAID5:
		l.Stripes = max(0, devices-1)
	case volume.RAID6:
		l.Stripes = max(0, devices-2)
	case volume.RAID10:
		copies := max(2, number("data_copies"))
		l.Stripes, l.Mirrors = devices/copies, copies-1
	case volume.Thin:
		l.Pool = field[string](s, "thin_pool")
	}
	return l
}
