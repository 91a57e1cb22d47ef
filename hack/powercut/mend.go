package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
)

// text is a metadata text of LVM's that still is on a disk.
type text struct {
	disk       string
	at, length int64
	seqno      int
	data       []byte
}

// found is a line of pvck --dump metadata_search.
var found = regexp.MustCompile(`metadata at (\d+) length (\d+) crc \S+ vg (\S+) seqno (\d+)`)

// mend restores the volume group where the cut has torn LVM's own metadata on all disks. LVM writes a new text, and then the
// header that points to it, without a flush between (lvm2 lib/format_text/format-text.c), so a disk can keep the header
// and lose the text. No driver can help that; what it can is to flush the disks before it answers, so that the text before is
// whole and has all that was answered. This is what an administrator does then (docs/guarantees.md), and what is looked at
// afterwards is the same as after any other cut. seqno: of what was restored; 0: nothing was torn.
func mend(disks ...string) (seqno int, err error) {
	torn := lvm("vgs", "-q", group)
	if torn == nil {
		return 0, nil
	}
	var texts []text
	for _, disk := range disks {
		out, err := output("lvm", "pvck", "--config", byHand, "--dump", "metadata_search", disk)
		if err != nil {
			return 0, errors.Join(torn, err)
		}
		for _, x := range textsIn(disk, out) {
			if err := x.read(); err != nil { // all of them before any is restored, which overwrites others
				return 0, err
			}
			texts = append(texts, x)
		}
	}
	slices.SortStableFunc(texts, func(a, b text) int { return cmp.Compare(b.seqno, a.seqno) })
	for _, x := range texts {
		if err = x.restore(disks); err == nil {
			return x.seqno, nil
		}
	}
	return 0, errors.Join(torn, fmt.Errorf("none of %d texts can be restored: %w", len(texts), err))
}

func textsIn(disk, report string) []text {
	var texts []text
	for _, m := range found.FindAllStringSubmatch(report, -1) {
		at, err1 := strconv.ParseInt(m[1], 10, 64)
		length, err2 := strconv.ParseInt(m[2], 10, 64)
		seqno, err3 := strconv.Atoi(m[4])
		if m[3] == group && errors.Join(err1, err2, err3) == nil {
			texts = append(texts, text{disk: disk, at: at, length: length, seqno: seqno})
		}
	}
	return texts
}

func (x *text) read() error {
	disk, err := os.Open(x.disk)
	if err != nil {
		return err
	}
	x.data = make([]byte, x.length)
	_, err = disk.ReadAt(x.data, x.at)
	return errors.Join(err, disk.Close())
}

// restore writes the text and its header on all disks. It fails where the text is torn, or is of another form. Why not
// vgcfgrestore: it wants a disk whose metadata is whole.
func (x text) restore(disks []string) error {
	const file = "/run/metadata"
	if err := os.WriteFile(file, x.data, 0o600); err != nil {
		return err
	}
	for _, disk := range disks {
		if err := lvm("pvck", "-q", "-y", "--repairtype", "metadata", "--file", file, disk); err != nil {
			return err
		}
		if err := flush(disk); err != nil {
			return err
		}
	}
	return lvm("vgs", "-q", group)
}
