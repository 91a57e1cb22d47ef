package copy

import (
	"bytes"
	"iter"
)

// holes tells how to treat zeros, by Config.Unwritten: grain is the length in which blocks are looked at, skip whether runs of zeros are
// left out. They are, in whole units of the destination. A unit that is no part of a block could be written in part, and its rest would
// then read as anything: such a destination is treated as one that holds old bytes. On those a block is written as one.
func holes(unit int64) (grain int, skip bool) {
	switch {
	case unit > 0 && unit <= grainBytes && grainBytes%unit == 0:
		return grainBytes, true
	case unit > grainBytes && unit <= blockBytes && blockBytes%unit == 0:
		return int(unit), true
	default:
		return blockBytes, false
	}
}

// piece is a part of a block: all of it is zero, or no grain of it is.
type piece struct {
	off, end int
	zero     bool
}

// pieces cuts a block into pieces, as few as there can be.
func pieces(block []byte, grain int) iter.Seq[piece] {
	return func(yield func(piece) bool) {
		var p piece
		for p.end < len(block) {
			next := min(p.end+grain, len(block))
			zero := isZero(block[p.end:next])
			if zero != p.zero && p.off < p.end {
				if !yield(p) {
					return
				}
				p.off = p.end
			}
			p.end, p.zero = next, zero
		}
		if p.off < p.end {
			yield(p)
		}
	}
}

// isZero reports whether all bytes are zero: the first one is, and each is like its neighbour. bytes.Equal looks at many at a time.
func isZero(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[:len(p)-1], p[1:])
}
