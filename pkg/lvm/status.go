package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// maxStatusBytes bounds what the targets of one device may tell: a table of 10,000 segments fits.
const maxStatusBytes = 1 << 20

// askTargets asks what the targets of the live table say of themselves; none where there is no table. A thin pool is told
// not to write its metadata out first (DM_NOFLUSH_FLAG), which could hang, and changes the world.
func (d deviceMapper) askTargets(name string) ([]target, error) {
	return d.targets(dmTarget{name: name}, dmNoFlushFlag)
}

// targets gives what the targets of the live table say of themselves, with dmStatusTable the table. errManyTargets: more than fit into
// maxStatusBytes.
func (d deviceMapper) targets(of dmTarget, flags uint32) ([]target, error) {
	buf, err := d.whole(dmTableStatus, of, flags, maxStatusBytes)
	if err != nil {
		return nil, fmt.Errorf("DM_TABLE_STATUS of %s: %w", of, err)
	}
	return parseTargets(buf)
}

// addTargets adds what the targets of a device tell to the facts. A text that is not understood is an error.
func addTargets(f *volume.DeviceFacts, device string, targets []target) error {
	if len(targets) == 0 || slices.ContainsFunc(targets, func(t target) bool { return t.kind == "error" }) {
		f.Empty = append(f.Empty, device)
	}
	for _, t := range targets {
		var err error
		t.params = strings.TrimSpace(t.params)
		switch t.kind {
		case "raid":
			err = add(&f.Raids, device, t.params, parseRaid)
		case "thin-pool":
			err = add(&f.Pools, device, t.params, parsePool)
		case "snapshot", "snapshot-merge":
			err = add(&f.Snapshots, device, t.params, parseSnapshot)
		case "thin":
			f.ThinFailed = f.ThinFailed || t.params == "Fail" || t.params == "Error"
		}
		if err != nil {
			return fmt.Errorf("status of device %s, %q: %w", device, t.kind+" "+t.params, err)
		}
	}
	return nil
}

func add[T any](list *[]T, device, status string, parse func(device, status string) (T, error)) error {
	s, err := parse(device, status)
	if err == nil {
		*list = append(*list, s)
	}
	return err
}

var errStatus = errors.New("not understood")

// parseRaid reads "raid1 2 AA 8192/8192 idle 0 0 -" (Documentation/admin-guide/device-mapper/dm-raid, "Status Output";
// since kernel 3.15 with action and mismatches).
func parseRaid(device, status string) (volume.RaidStatus, error) {
	w := strings.Fields(status)
	if len(w) < 6 {
		return volume.RaidStatus{}, errStatus
	}
	synced, total, ok1 := ratio(w[3])
	mismatches, err := strconv.ParseInt(w[5], 10, 64)
	if legs, err2 := strconv.Atoi(w[1]); !ok1 || err != nil || err2 != nil || legs != len(w[2]) {
		return volume.RaidStatus{}, errStatus
	}
	return volume.RaidStatus{Device: device, Type: w[0], Legs: w[2], Synced: synced, Total: total, Action: w[4], Mismatches: mismatches}, nil
}

// parsePool reads "1 12/1024 3/16 - rw discard_passdown queue_if_no_space needs_check 1024", or "Fail"
// (Documentation/admin-guide/device-mapper/thin-provisioning, "Status").
func parsePool(device, status string) (volume.PoolStatus, error) {
	p := volume.PoolStatus{Device: device}
	if status == "Fail" || status == "Error" {
		p.Failed = true
		return p, nil
	}
	w := strings.Fields(status)
	if len(w) < 5 {
		return p, errStatus
	}
	var ok1, ok2 bool
	p.UsedMetadata, p.Metadata, ok1 = ratio(w[1])
	p.UsedData, p.Data, ok2 = ratio(w[2])
	p.ReadOnly, p.OutOfSpace = w[4] == "ro", w[4] == "out_of_data_space"
	p.NeedsCheck = slices.Contains(w[5:], "needs_check")
	if !ok1 || !ok2 || !p.ReadOnly && !p.OutOfSpace && w[4] != "rw" {
		return p, errStatus
	}
	return p, nil
}

// parseSnapshot reads "16/8192 16", or one of the words for a snapshot that is lost (snapshot_status in
// drivers/md/dm-snap.c).
func parseSnapshot(device, status string) (volume.SnapshotStatus, error) {
	s := volume.SnapshotStatus{Device: device}
	switch status {
	case "Invalid", "Overflow", "Merge failed":
		s.Lost = status
		return s, nil
	case "Unknown": // its store cannot tell how full it is
		return s, nil
	}
	first, _, _ := strings.Cut(status, " ")
	var ok bool
	if s.Used, s.Total, ok = ratio(first); !ok {
		return s, errStatus
	}
	return s, nil
}

// ratio reads "used/total".
func ratio(text string) (used, total int64, ok bool) {
	a, b, cut := strings.Cut(text, "/")
	used, err1 := strconv.ParseInt(a, 10, 64)
	total, err2 := strconv.ParseInt(b, 10, 64)
	return used, total, cut && err1 == nil && err2 == nil && used >= 0 && total >= 0
}
