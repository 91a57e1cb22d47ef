package lvm

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Blocks implements lifecycle.ThinMetadata. One program of thin-provisioning-tools reads the reserved metadata snapshot,
// past the page cache; what it prints is read while it runs, so that memory does not grow with the volume.
func (l *LVM) Blocks(ctx context.Context, q volume.BlockQuery, emit func(volume.Range) error) error {
	device, err := l.thinMetadata(ctx, q.Pool)
	if err == nil {
		err = l.readBlocks(ctx, q, device, emit)
	}
	if err != nil {
		return fmt.Errorf("reading the metadata of thin pool %s: %w", q.Pool, err)
	}
	return nil
}

// thinMetadata gives the device node of the metadata of an active thin pool.
func (l *LVM) thinMetadata(ctx context.Context, pool volume.Ref) (path string, err error) {
	st, err := l.dm.status(volume.DMName(volume.Ref{VG: pool.VG, LV: pool.LV + "_tmeta"}))
	if err != nil {
		return "", err
	}
	d, err := l.dm.device(ctx, st)
	if err == nil && d.Suspended {
		err = fmt.Errorf("%w: device %s is suspended; an LVM command is at it, or was killed", volume.ErrPending, d)
	}
	return d.Path, err
}

func (l *LVM) readBlocks(ctx context.Context, q volume.BlockQuery, device string, emit func(volume.Range) error) error {
	program, args := thinProgram(q)
	err := l.tools.Stream(ctx, func(r io.Reader) error { return parseBlocks(r, q, emit) }, program, append(args, device)...)
	if run.NotFound(err) {
		return fmt.Errorf("%w; install thin-provisioning-tools where LVM runs", err)
	}
	return err
}

// thinProgram gives the program and its arguments but for the device. --metadata-snap may take a value; before another flag,
// it takes none in any version (0.9 in C++, 1.x in Rust).
func thinProgram(q volume.BlockQuery) (name string, args []string) {
	target := strconv.FormatInt(q.Target, 10)
	if q.Base == 0 {
		return "thin_dump", []string{"--metadata-snap", "--dev-id", target}
	}
	return "thin_delta", []string{"--metadata-snap", "--thin1", strconv.FormatInt(q.Base, 10), "--thin2", target}
}

// The elements that tell of blocks, with the attributes for the first and the number of them ("": one), and whether they
// are asked for (thin_dump(8), thin_delta(8)). A block that is in one of two volumes only was written, or discarded,
// since.
var blockElements = map[string]struct {
	begin, length string
	wanted        bool
}{
	"single_mapping": {"origin_block", "", true},
	"range_mapping":  {"origin_begin", "length", true},
	"same":           {"begin", "length", false},
	"different":      {"begin", "length", true},
	"left_only":      {"begin", "length", true},
	"right_only":     {"begin", "length", true},
}

// parseBlocks reads what the programs print:
//
//	<superblock ... data_block_size="128" ...>
//	  <device dev_id="2" ...>                 or   <diff left="2" right="3">
//	    <range_mapping origin_begin="0" .../>        <right_only begin="100" length="1"/>
//
// It is strict: what it does not understand, or what is not in order, is an error, and so is an end before all is closed.
func parseBlocks(r io.Reader, q volume.BlockQuery, emit func(volume.Range) error) error {
	p := blockParser{query: q, out: joiner{within: q.Within, emit: emit}}
	for d := xml.NewDecoder(r); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if e, ok := token.(xml.StartElement); ok {
			if err := p.element(e); err != nil {
				return fmt.Errorf("<%s>: %w", e.Name.Local, err)
			}
		}
	}
	if !p.found {
		return fmt.Errorf("there is no device %d in it", q.Target)
	}
	return p.out.flush()
}

type blockParser struct {
	query volume.BlockQuery
	chunk int64 // bytes in a block; 0: not told yet
	found bool  // the device that is asked for, or the difference
	next  int64 // blocks before this one have been told of
	out   joiner
}

func (p *blockParser) element(e xml.StartElement) error {
	a := attributes{list: e.Attr}
	switch e.Name.Local {
	case "superblock":
		p.chunk = a.number("data_block_size") * sectorBytes
		if a.err == nil && (p.chunk == 0 || p.chunk > 1<<40) {
			return errors.New("impossible size of blocks")
		}
	case "device":
		p.found = a.number("dev_id") == p.query.Target && p.query.Base == 0 && !p.found
		if !p.found {
			return errors.New("another device")
		}
	case "diff":
		p.found = a.number("left") == p.query.Base && a.number("right") == p.query.Target && !p.found
		if !p.found {
			return errors.New("another difference")
		}
	default:
		return p.blocks(e.Name.Local, &a)
	}
	return a.err
}

func (p *blockParser) blocks(name string, a *attributes) error {
	known, ok := blockElements[name]
	if !ok || !p.found || p.chunk == 0 {
		return errors.New("not expected here")
	}
	begin, length := a.number(known.begin), int64(1)
	if known.length != "" {
		length = a.number(known.length)
	}
	if a.err != nil {
		return a.err
	}
	if most := (1<<63 - 1) / p.chunk; length == 0 || length > most || begin < p.next || begin > most-length {
		return fmt.Errorf("%d blocks from %d on, after block %d", length, begin, p.next)
	}
	if p.next = begin + length; !known.wanted {
		return nil
	}
	return p.out.add(volume.Range{Offset: begin * p.chunk, Bytes: length * p.chunk})
}

// attributes reads attributes and keeps the first error.
type attributes struct {
	list []xml.Attr
	err  error
}

// number reads a number that is not negative.
func (a *attributes) number(name string) int64 {
	for _, attr := range a.list {
		if attr.Name.Local == name {
			n, err := strconv.ParseInt(attr.Value, 10, 64)
			if err == nil && n < 0 {
				err = errors.New("negative")
			}
			if err != nil && a.err == nil {
				a.err = fmt.Errorf("%s: %w", name, err)
			}
			return n
		}
	}
	if a.err == nil {
		a.err = fmt.Errorf("no %s", name)
	}
	return 0
}

// joiner makes one of ranges that touch, and cuts them to within.
type joiner struct {
	within volume.Range
	emit   func(volume.Range) error
	last   volume.Range // not yet emitted; no bytes: none
}

func (j *joiner) add(r volume.Range) error {
	begin, end := max(r.Offset, j.within.Offset), min(r.End(), j.within.End())
	switch {
	case begin >= end:
		return nil
	case j.last.Bytes != 0 && j.last.End() == begin:
		j.last.Bytes += end - begin
		return nil
	}
	err := j.flush()
	j.last = volume.Range{Offset: begin, Bytes: end - begin}
	return err
}

func (j *joiner) flush() error {
	if j.last.Bytes == 0 {
		return nil
	}
	r := j.last
	j.last = volume.Range{}
	return j.emit(r)
}
