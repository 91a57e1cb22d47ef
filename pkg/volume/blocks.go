package volume

// Range is a part of a volume.
type Range struct {
	Offset, Bytes int64
}

// End is the offset behind the range.
func (r Range) End() int64 { return r.Offset + r.Bytes }

// BlockQuery asks which blocks of a thin volume were written, or in which two of them differ.
type BlockQuery struct {
	Pool   Ref   // the thin pool they are in
	Base   int64 // LV.ThinID of what the target is compared with; 0: with nothing, so that all that was written is meant
	Target int64 // LV.ThinID
	Within Range // only what lies in it; ranges that reach out of it are cut
}
