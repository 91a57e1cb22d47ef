package lvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Unwritten tells what a device reads as where it was never written. unit is 0: as anything; it holds what was on its extents before. Else
// it is a thin volume without any chunk of its own, so that the whole of it reads as zero (linux Documentation/admin-guide/device-mapper/
// thin-provisioning.rst), and each unit of it goes on to do so until it is written itself. In a pool that zeroes new chunks that is any sector; in one
// that does not (lvmthin(7), "--zero n") a write into a chunk also shows what its extent held before, so there it is the chunk.
//
// The kernel is asked, not LVM; nothing is run.
func (l *LVM) Unwritten(d volume.Device) (unit int64, err error) {
	unit, err = l.dm.unwritten(d)
	if err != nil {
		return 0, fmt.Errorf("device %s: %w", d, err)
	}
	return unit, nil
}

func (d deviceMapper) unwritten(dev volume.Device) (unit int64, err error) {
	of := dmTarget{dev: unix.Mkdev(dev.Major, dev.Minor)}
	table, err := d.targets(of, dmStatusTable)
	if err != nil && !errors.Is(err, errManyTargets) { // many pieces of disks: a thin volume has one target
		return 0, err
	}
	if len(table) != 1 || table[0].kind != "thin" {
		return 0, nil
	}
	// "<pool device> <device id> [<external origin>]": what is not written reads as the origin.
	fields := strings.Fields(table[0].params)
	if len(fields) != 2 {
		return 0, nil
	}
	// "<mapped sectors> <highest mapped sector>"
	status, err := d.targets(of, 0)
	if err != nil || len(status) != 1 || !strings.HasPrefix(status[0].params, "0 ") {
		return 0, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(fields[0], "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("thin table %q: %w", table[0].params, err)
	}
	pool, err := d.targets(dmTarget{dev: unix.Mkdev(major, minor)}, dmStatusTable)
	if err != nil {
		return 0, fmt.Errorf("its pool: %w", err)
	}
	if len(pool) != 1 || pool[0].kind != "thin-pool" {
		return 0, fmt.Errorf("its pool %s is none: %v", fields[0], pool)
	}
	return unitOfPool(pool[0].params)
}

// unitOfPool reads "<metadata device> <data device> <chunk in sectors> <low water mark> [<number of features> <feature>...]".
func unitOfPool(params string) (int64, error) {
	fields := strings.Fields(params)
	if len(fields) < 4 {
		return 0, fmt.Errorf("thin-pool table %q is too short", params)
	}
	sectors, err := strconv.ParseInt(fields[2], 10, 64)
	switch {
	case err != nil || sectors <= 0:
		return 0, fmt.Errorf("thin-pool table %q: bad chunk size", params)
	case slices.Contains(fields[4:], "skip_block_zeroing"):
		return sectors * sectorBytes, nil
	default:
		return sectorBytes, nil
	}
}

// target is one target of a device.
type target struct{ kind, params string }

var errManyTargets = errors.New("more targets than were expected")

// parseTargets reads the answer of DM_TABLE_STATUS. Each target tells where the next one begins, counted from the first.
func parseTargets(buf []byte) ([]target, error) {
	if binary.NativeEndian.Uint32(buf[dmFlags:])&dmBufferFullFlag != 0 {
		return nil, fmt.Errorf("%w: more than %d bytes", errManyTargets, len(buf))
	}
	start, count := uint64(binary.NativeEndian.Uint32(buf[dmDataStart:])), binary.NativeEndian.Uint32(buf[dmTargetCount:])
	var out []target
	for at := start; count > 0; count-- {
		if at < dmIoctlSize || at+specSize > uint64(len(buf)) {
			return nil, fmt.Errorf("DM_TABLE_STATUS: a target at byte %d of %d", at, len(buf))
		}
		spec := buf[at : at+specSize]
		next := start + uint64(binary.NativeEndian.Uint32(spec[specNext:]))
		if next < at+specSize || next > uint64(len(buf)) {
			return nil, fmt.Errorf("DM_TABLE_STATUS: the target at byte %d ends at %d of %d", at, next, len(buf))
		}
		out = append(out, target{kind: text(spec[specKind:]), params: text(buf[at+specSize : next])})
		at = next
	}
	return out, nil
}

// text is what comes before the first zero byte.
func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}
