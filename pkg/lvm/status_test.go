package lvm

import (
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Texts as kernel 6.1 writes them.
func TestTargets(t *testing.T) {
	for _, c := range []struct {
		kind, status string
		want         volume.DeviceFacts
	}{
		{"linear", "", volume.DeviceFacts{}},
		{"error", "", volume.DeviceFacts{Empty: []string{"d"}}},
		{"raid", "raid1 2 AA 8192/8192 idle 0 0 -", volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: "d", Type: "raid1", Legs: "AA", Synced: 8192, Total: 8192, Action: "idle"}}}},
		{"raid", "raid5_ls 3 ADa 128/8192 recover 7 0 -", volume.DeviceFacts{Raids: []volume.RaidStatus{{Device: "d", Type: "raid5_ls", Legs: "ADa", Synced: 128, Total: 8192, Action: "recover", Mismatches: 7}}}},
		{"thin-pool", "1 12/1024 3/16 - rw discard_passdown queue_if_no_space - 1024", volume.DeviceFacts{Pools: []volume.PoolStatus{{Device: "d", UsedMetadata: 12, Metadata: 1024, UsedData: 3, Data: 16}}}},
		{"thin-pool", "1 12/1024 16/16 - out_of_data_space no_discard_passdown error_if_no_space - 1024", volume.DeviceFacts{Pools: []volume.PoolStatus{{Device: "d", UsedMetadata: 12, Metadata: 1024, UsedData: 16, Data: 16, OutOfSpace: true}}}},
		{"thin-pool", "1 12/1024 3/16 5 ro discard_passdown queue_if_no_space needs_check 1024", volume.DeviceFacts{Pools: []volume.PoolStatus{{Device: "d", UsedMetadata: 12, Metadata: 1024, UsedData: 3, Data: 16, ReadOnly: true, NeedsCheck: true}}}},
		{"thin-pool", "Fail", volume.DeviceFacts{Pools: []volume.PoolStatus{{Device: "d", Failed: true}}}},
		{"thin-pool", "Error", volume.DeviceFacts{Pools: []volume.PoolStatus{{Device: "d", Failed: true}}}},
		{"thin", "8192 8191", volume.DeviceFacts{}},
		{"thin", "0 -", volume.DeviceFacts{}},
		{"thin", "Fail", volume.DeviceFacts{ThinFailed: true}},
		{"snapshot", "16/16384 16", volume.DeviceFacts{Snapshots: []volume.SnapshotStatus{{Device: "d", Used: 16, Total: 16384}}}},
		{"snapshot", "Invalid", volume.DeviceFacts{Snapshots: []volume.SnapshotStatus{{Device: "d", Lost: "Invalid"}}}},
		{"snapshot", "Overflow", volume.DeviceFacts{Snapshots: []volume.SnapshotStatus{{Device: "d", Lost: "Overflow"}}}},
		{"snapshot-merge", "Merge failed", volume.DeviceFacts{Snapshots: []volume.SnapshotStatus{{Device: "d", Lost: "Merge failed"}}}},
		{"snapshot", "Unknown", volume.DeviceFacts{Snapshots: []volume.SnapshotStatus{{Device: "d"}}}},
	} {
		var got volume.DeviceFacts
		if err := addTargets(&got, "d", []target{{c.kind, c.status}}); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %q: got %+v, %v", c.kind, c.status, got, err)
		}
	}
	var none volume.DeviceFacts
	if err := addTargets(&none, "d", nil); err != nil || len(none.Empty) != 1 {
		t.Errorf("without a table: %+v, %v", none, err)
	}
}

// What is not understood is an error, never "well".
func TestOddTargets(t *testing.T) {
	for kind, texts := range map[string]string{
		"raid":      "|raid1|raid1 2 AA 8192 idle 0|raid1 3 AA 1/2 idle 0 0 -|raid1 2 AA 1/2 idle x 0 -|raid1 2 AA -1/2 idle 0 0 -",
		"thin-pool": "|1|1 12/1024 3/16 -|1 12 3/16 - rw|1 12/1024 3 - rw|1 12/1024 3/16 - wr",
		"snapshot":  "|16|16/|/16|a/b",
	} {
		for text := range strings.SplitSeq(texts, "|") {
			var f volume.DeviceFacts
			if err := addTargets(&f, "d", []target{{kind, text}}); err == nil {
				t.Errorf("%s %q: got %+v", kind, text, f)
			}
		}
	}
}

// answer makes an answer of DM_TABLE_STATUS.
func answer(targets ...target) []byte {
	buf := make([]byte, dmIoctlSize)
	binary.NativeEndian.PutUint32(buf[dmDataStart:], dmIoctlSize)
	binary.NativeEndian.PutUint32(buf[dmTargetCount:], uint32(len(targets)))
	for _, t := range targets {
		spec := make([]byte, specSize)
		text := append([]byte(t.params), make([]byte, 8-len(t.params)%8)...)
		copy(spec[specKind:], t.kind)
		binary.NativeEndian.PutUint32(spec[specNext:], uint32(len(buf)-dmIoctlSize+specSize+len(text)))
		buf = append(append(buf, spec...), text...)
	}
	return buf
}

func TestParseTargets(t *testing.T) {
	want := []target{{"linear", ""}, {"thin-pool", "1 12/1024 3/16 - rw - - - 1"}, {"error", ""}}
	if got, err := parseTargets(answer(want...)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := parseTargets(answer()); err != nil || got != nil {
		t.Errorf("no table: got %q, %v", got, err)
	}
	whole := answer(want...)
	for n := dmIoctlSize; n < len(whole); n++ {
		if got, err := parseTargets(whole[:n]); err == nil {
			t.Fatalf("cut at %d: got %q", n, got)
		}
	}
	for _, at := range []int{dmDataStart, dmIoctlSize + specNext} {
		for _, v := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
			odd := answer(want...)
			binary.NativeEndian.PutUint32(odd[at:], v)
			if got, err := parseTargets(odd); err == nil {
				t.Errorf("%d at %d: got %q", v, at, got)
			}
		}
	}
}

func FuzzParseTargets(f *testing.F) {
	f.Add(answer(target{"raid", "raid1 2 AA 8192/8192 idle 0 0 -"}, target{"snapshot", "16/16384 16"}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if len(b) < dmIoctlSize {
			return
		}
		targets, err := parseTargets(b)
		if err == nil {
			var facts volume.DeviceFacts
			_ = addTargets(&facts, "d", targets)
		}
	})
}
