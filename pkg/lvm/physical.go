package lvm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layout of a physical volume: a label in one of the first four sectors, the header of the physical volume behind
// it, which tells where the metadata area is; the area begins with a header of one sector, and that tells where in the
// area the committed text is. LVM commits by writing this one sector. (lvm2 lib/label/label.h,
// lib/format_text/layout.h; all numbers are little-endian.)
const (
	labelSectors   = 4
	labelMagic     = "LABELONE"
	labelType      = "LVM2 001"
	mdaMagic       = " LVM2 x[5A%r0N*>"
	mdaHeaderBytes = 512
	idBytes        = 32
	rawIgnored     = 1          // RAW_LOCN_IGNORED
	crcInitial     = 0xf597a6cf // lib/misc/crc.h
	headBytes      = 8192       // label and, where LVM puts it by default, the header of the metadata area
	maxTextBytes   = 64 << 20
)

// commitMark tells one committed metadata text of a physical volume from any other.
type commitMark struct {
	pv       string // uuid of the physical volume, without dashes
	area     int64  // start of the metadata area in bytes; 0: none, or it is not in use
	areaSize int64
	offset   int64 // of the text within the area
	size     int64
	checksum uint32
}

// hasText reports whether the physical volume keeps the text of its group.
func (m commitMark) hasText() bool { return m.area != 0 && m.size != 0 }

var errTorn = errors.New("metadata area changed while it was read")

// disks reads physical volumes. A read of a broken disk can hang for minutes; the caller does not wait for it, and no
// further one is begun there.
type disks struct {
	mu      sync.Mutex
	last    int
	reading map[string]map[int]time.Time // when the reads under way were begun, by path
}

func (d *disks) begin(path string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reading == nil {
		d.reading = map[string]map[int]time.Time{}
	}
	if d.reading[path] == nil {
		d.reading[path] = map[int]time.Time{}
	}
	d.last++
	d.reading[path][d.last] = time.Now()
	return d.last
}

func (d *disks) end(path string, id int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.reading[path], id)
}

// isStuck reports whether a read has been under way for longer than anybody waits.
func (d *disks) isStuck(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, since := range d.reading[path] {
		if time.Since(since) > diskLimit {
			return true
		}
	}
	return false
}

// diskLimit bounds the wait for one disk. A healthy one answers within milliseconds, a sleeping one within seconds.
const diskLimit = 10 * time.Second

// mark reads which metadata text is committed on the physical volume at path.
func (d *disks) mark(ctx context.Context, path string) (commitMark, error) {
	return onDisk(ctx, d, path, readMark)
}

// text reads the metadata text of a mark. errTorn: it was replaced meanwhile.
func (d *disks) text(ctx context.Context, path string, m commitMark) ([]byte, error) {
	return onDisk(ctx, d, path, func(f io.ReaderAt) ([]byte, error) { return readText(f, m) })
}

func onDisk[T any](ctx context.Context, d *disks, path string, read func(io.ReaderAt) (T, error)) (T, error) {
	var none T
	if d.isStuck(path) {
		return none, fmt.Errorf("%s: an earlier read has not ended", path)
	}
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	id := d.begin(path)
	go func() {
		value, err := openAndRead(path, read)
		done <- answer{value, err}
		d.end(path, id)
	}()
	limit := time.NewTimer(diskLimit)
	defer limit.Stop()
	select {
	case a := <-done:
		return a.value, a.err
	case <-limit.C:
		return none, fmt.Errorf("%s: no answer within %v", path, diskLimit)
	case <-ctx.Done():
		return none, fmt.Errorf("reading %s: %w", path, ctx.Err())
	}
}

// openAndRead reads past the page cache, as LVM writes: another program's old pages of the device must not be seen.
func openAndRead[T any](path string, read func(io.ReaderAt) (T, error)) (T, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) { // a file system without it; only in tests
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		var none T
		return none, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	return read(aligned{device{fd, path}})
}

// device reads an open block device. An os.File would first try to wait for it as for a socket, with four system calls more.
type device struct {
	fd   int
	path string
}

func (d device) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := unix.Pread(d.fd, p[n:], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return n, &fs.PathError{Op: "read", Path: d.path, Err: err}
		case m == 0:
			return n, io.EOF
		default:
			n += m
		}
	}
	return n, nil
}

// aligned reads in whole blocks of 4 KiB, which suits every disk for O_DIRECT (open(2)).
type aligned struct{ f io.ReaderAt }

const block = 4096

func (a aligned) ReadAt(p []byte, off int64) (int, error) {
	begin := off / block * block
	end := (off + int64(len(p)) + block - 1) / block * block
	buf := make([]byte, end-begin+block)
	shift := 0
	if rest := int(uintptr(unsafe.Pointer(&buf[0])) % block); rest != 0 {
		shift = block - rest
	}
	n, err := a.f.ReadAt(buf[shift:shift+int(end-begin)], begin)
	if n < int(off-begin)+len(p) {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return 0, err
	}
	return copy(p, buf[shift+int(off-begin):]), nil
}

func readMark(f io.ReaderAt) (commitMark, error) {
	head := make([]byte, headBytes)
	if _, err := f.ReadAt(head, 0); err != nil {
		return commitMark{}, err
	}
	m, err := parseLabel(head)
	if err != nil || m.area == 0 {
		return m, err
	}
	header := make([]byte, mdaHeaderBytes)
	if m.area+mdaHeaderBytes <= headBytes {
		copy(header, head[m.area:])
	} else if _, err := f.ReadAt(header, m.area); err != nil {
		return m, err
	}
	return parseArea(m, header)
}

// parseLabel finds the label of a physical volume, and in the header behind it the first metadata area.
func parseLabel(head []byte) (commitMark, error) {
	le := binary.LittleEndian
	for i := range labelSectors {
		s := head[i*sectorBytes : (i+1)*sectorBytes]
		if string(s[:8]) != labelMagic || string(s[24:32]) != labelType {
			continue
		}
		if crc(crcInitial, s[20:]) != le.Uint32(s[16:]) || le.Uint64(s[8:]) != uint64(i) {
			return commitMark{}, errors.New("label of the physical volume: wrong checksum")
		}
		at := int(le.Uint32(s[20:]))
		if at < 32 || at+idBytes+8 > sectorBytes {
			return commitMark{}, errors.New("label of the physical volume: header outside the sector")
		}
		m := commitMark{pv: string(s[at : at+idBytes])}
		// Two lists of (offset, size) follow, each ended by zeros: data areas, and metadata areas.
		lists := 0
		for at += idBytes + 8; at+16 <= sectorBytes; at += 16 {
			offset, size := le.Uint64(s[at:]), le.Uint64(s[at+8:])
			switch {
			case offset == 0 && lists == 1:
				return m, nil
			case offset == 0:
				lists++
			case lists == 1:
				if offset > 1<<62 || size > 1<<62 || size < 2*mdaHeaderBytes || offset%sectorBytes != 0 {
					return m, errors.New("header of the physical volume: impossible metadata area")
				}
				m.area, m.areaSize = int64(offset), int64(size)
				return m, nil
			}
		}
		return m, errors.New("header of the physical volume: list of areas without an end")
	}
	return commitMark{}, errors.New("no label of a physical volume")
}

// parseArea reads the header of the metadata area.
func parseArea(m commitMark, h []byte) (commitMark, error) {
	le := binary.LittleEndian
	if string(h[4:20]) != mdaMagic || le.Uint32(h[20:]) != 1 {
		return m, errors.New("metadata area: no header of version 1")
	}
	if crc(crcInitial, h[4:]) != le.Uint32(h) {
		return m, errTorn
	}
	locn := h[40:]
	offset, size := le.Uint64(locn), le.Uint64(locn[8:])
	if le.Uint32(locn[20:])&rawIgnored != 0 {
		m.area, m.areaSize = 0, 0 // pvchange --metadataignore: not kept up to date
		return m, nil
	}
	if size > maxTextBytes || offset > uint64(m.areaSize) || size > uint64(m.areaSize) {
		return m, errors.New("metadata area: text outside the area")
	}
	m.offset, m.size, m.checksum = int64(offset), int64(size), le.Uint32(locn[16:])
	return m, nil
}

// readText reads the text of a mark. The area is a ring: what reaches its end goes on behind its header.
func readText(f io.ReaderAt, m commitMark) ([]byte, error) {
	text := make([]byte, m.size)
	first := min(m.size, m.areaSize-m.offset)
	if _, err := f.ReadAt(text[:first], m.area+m.offset); err != nil {
		return nil, err
	}
	if first < m.size {
		if _, err := f.ReadAt(text[first:], m.area+mdaHeaderBytes); err != nil {
			return nil, err
		}
	}
	if crc(crcInitial, text) != m.checksum {
		return nil, errTorn
	}
	return bytes.TrimRight(text, "\x00"), nil
}

// crc is LVM's calc_crc: CRC-32 of IEEE, without its final complement.
func crc(initial uint32, p []byte) uint32 { return ^crc32.Update(^initial, crc32.IEEETable, p) }
