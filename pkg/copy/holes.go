package copy

import (
	"encoding/binary"
	"iter"
)

// holes tells how to treat zeros, by Config.Unwritten: in which length blocks are looked at, to leave out those that are zero; 0: none are
// left out. They are in whole units of the destination. A unit that is no part of a block could be written in part, and its rest would
// then read as anything: such a destination is treated as one that holds old bytes.
func holes(unit int64) (grain int) {
	switch {
	case unit > 0 && unit <= grainBytes && grainBytes%unit == 0:
		return grainBytes
	case unit > grainBytes && unit <= blockBytes && blockBytes%unit == 0:
		return int(unit)
	default:
		return 0
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

// isZero reports whether all bytes are zero. It looks at 64 at a time.
func isZero(p []byte) bool {
	for ; len(p) >= 64; p = p[64:] {
		if word(p)|word(p[8:])|word(p[16:])|word(p[24:])|word(p[32:])|word(p[40:])|word(p[48:])|word(p[56:]) != 0 {
			return false
		}
	}
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func word(p []byte) uint64 { return binary.NativeEndian.Uint64(p) }
