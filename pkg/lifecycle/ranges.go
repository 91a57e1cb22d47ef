package lifecycle

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Scratch is a place for what does not fit into memory. It is gone when it is closed, or the process ends.
type Scratch interface {
	io.Writer
	io.ReaderAt
	io.Closer
}

// ranges is a long list of ranges: the most of it in a scratch file, in two to six bytes each as a rule.
type ranges struct {
	open func() (Scratch, error)

	end  int64 // of the last range
	tail []byte
	file Scratch // nil: all is in tail
	size int64   // of file
}

// rangesInMemory is how many bytes of a list are kept in memory; some 50,000 ranges.
const rangesInMemory = 256 << 10

// add adds a range, which lies behind the last one.
func (l *ranges) add(r volume.Range) error {
	if r.Offset < l.end || r.Bytes <= 0 {
		return fmt.Errorf("range %d+%d is out of order: the last one ends at %d", r.Offset, r.Bytes, l.end)
	}
	l.tail = binary.AppendUvarint(l.tail, uint64(r.Offset-l.end))
	l.tail = binary.AppendUvarint(l.tail, uint64(r.Bytes))
	if l.end = r.End(); len(l.tail) < rangesInMemory {
		return nil
	}
	return l.spill()
}

func (l *ranges) spill() (err error) {
	if l.file == nil {
		if l.file, err = l.open(); err != nil {
			return fmt.Errorf("a place for a list of ranges that is too long for memory: %w", err)
		}
	}
	n, err := l.file.Write(l.tail)
	l.size += int64(n)
	l.tail = l.tail[:0]
	if err != nil {
		return fmt.Errorf("keeping a list of ranges that is too long for memory: %w", err)
	}
	return nil
}

// each gives all ranges, in their order, until emit returns an error.
func (l *ranges) each(emit func(volume.Range) error) error {
	var all io.Reader = bytes.NewReader(l.tail)
	if l.file != nil {
		all = io.MultiReader(io.NewSectionReader(l.file, 0, l.size), all)
	}
	var end int64
	for in := bufio.NewReaderSize(all, 64<<10); ; {
		gap, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		n, short := binary.ReadUvarint(in)
		if err := errors.Join(err, short); err != nil {
			return fmt.Errorf("reading back a list of ranges: %w", err)
		}
		r := volume.Range{Offset: end + int64(gap), Bytes: int64(n)}
		if end = r.End(); r.Bytes <= 0 || r.Offset < 0 {
			return errors.New("reading back a list of ranges: it is not what was written")
		}
		if err := emit(r); err != nil {
			return err
		}
	}
}

func (l *ranges) close() {
	if l.file != nil {
		_ = l.file.Close() // nothing in it is wanted any more
	}
}
