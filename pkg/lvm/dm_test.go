package lvm

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// namesList is what DM_LIST_DEVICES answers: each device is at a multiple of 8 bytes, and the last one has no next.
func namesList(names ...string) []byte {
	buf := make([]byte, dmIoctlSize)
	if len(names) == 0 {
		buf = append(buf, make([]byte, 16)...)
	}
	for i, name := range names {
		entry := make([]byte, (12+len(name)+1+7)/8*8)
		binary.NativeEndian.PutUint64(entry, unix.Mkdev(253, uint32(i+1)))
		if i+1 < len(names) {
			binary.NativeEndian.PutUint32(entry[8:], uint32(len(entry)))
		}
		copy(entry[12:], name)
		buf = append(buf, entry...)
	}
	binary.NativeEndian.PutUint32(buf[dmDataSize:], uint32(len(buf)))
	binary.NativeEndian.PutUint32(buf[dmDataStart:], dmIoctlSize)
	return buf
}

func TestParseNames(t *testing.T) {
	none := namesList()
	binary.NativeEndian.PutUint32(none[dmDataSize:], dmIoctlSize) // as a kernel without devices answers
	if got, err := parseNames(none); err != nil || len(got) != 0 {
		t.Errorf("no device: %v, %v", got, err)
	}
	for _, want := range []map[string]string{
		{},
		{"vg-a": "dm-1"},
		{"vg-a": "dm-1", "vg-a--b": "dm-2", strings.Repeat("x", dmNameLen-1): "dm-3"},
	} {
		names := slices.SortedFunc(maps.Keys(want), func(a, b string) int { return strings.Compare(want[a], want[b]) })
		if got, err := parseNames(namesList(names...)); err != nil || !maps.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
	whole := namesList("vg-a", "vg-b")
	for _, cut := range []int{dmIoctlSize + 4, len(whole) - 17} {
		if got, err := parseNames(whole[:cut]); err == nil {
			t.Errorf("cut to %d bytes: %v", cut, got)
		}
	}
	binary.NativeEndian.PutUint32(whole[dmIoctlSize+8:], 1<<30)
	if got, err := parseNames(whole); err == nil {
		t.Errorf("a step outside: %v", got)
	}
}

// Of a group, its pools and its thick snapshots are asked, whoever uses them; not its other devices, and none of another group.
func TestGroupFacts(t *testing.T) {
	w, s := watched(t)
	uuid := func(rest string) string { return dmPrefix + groupData + rest }
	names := map[string]string{}
	for i, d := range []struct{ name, uuid string }{
		{"data-linear", uuid(lvLinear)},
		{"data-pool-tpool", uuid(lvInternal + "-tpool")},
		{"data-snap", uuid(lvRaid1)},
		{"data-snap-cow", uuid(lvRaid1 + "-cow")},
		{"data-origin-real", uuid(lvLinear + "-real")},
		{"data--b-pool-tpool", dmPrefix + strings.Repeat("b", 32) + lvInternal + "-tpool"},
	} {
		kernel := "dm-" + string(rune('a'+i))
		names[d.name] = kernel
		s.put(kernel, "dm/uuid", d.uuid)
		s.put(kernel, "dm/name", d.name)
		s.put(kernel, "dm/suspended", "0")
	}
	w.dm.listed = func() (map[string]string, error) { return names, nil }
	w.dm.told = func(name string) ([]target, error) {
		switch name {
		case "data-pool-tpool":
			return []target{{"thin-pool", "1 2/1024 3/4096 - rw discard_passdown queue_if_no_space - 1024 "}}, nil
		case "data-snap":
			return []target{{"snapshot", "16/1024 8"}}, nil
		}
		t.Errorf("%s was asked", name)
		return nil, nil
	}
	f := (&sight{watcher: w}).group(t.Context(), volume.Group{Name: "data", UUID: groupData})
	if len(f.Pools) != 1 || f.Pools[0].Device != "data-pool-tpool" || len(f.Snapshots) != 1 || f.Snapshots[0].Device != "data-snap" || len(f.Failed) != 0 {
		t.Errorf("%+v", f)
	}
	w.dm.listed = func() (map[string]string, error) { return nil, unix.EACCES }
	if f := (&sight{watcher: w}).group(t.Context(), volume.Group{Name: "data", UUID: groupData}); len(f.Failed) != 1 || f.Failed[0].Device != "device-mapper" {
		t.Errorf("no list: %+v", f)
	}
}
