package volume

import (
	"fmt"
	"strings"
)

// Source is what the content of a new volume is to be: that of a snapshot, or of another volume. The zero Source is none.
type Source struct {
	Kind Kind // Snapshot or Persistent
	Ref
}

// sourceWords are the kinds of sources in the tag "from".
var sourceWords = map[Kind]string{Snapshot: "snapshot", Persistent: "volume"}

// String gives the form of the tag, "snapshot:VG/LV" or "volume:VG/LV"; "" is no source.
func (s Source) String() string {
	if s == (Source{}) {
		return ""
	}
	return sourceWords[s.Kind] + ":" + s.Ref.String()
}

// ParseSource reads what String gives. ok is false for anything else.
func ParseSource(text string) (s Source, ok bool) {
	word, ref, _ := strings.Cut(text, ":")
	for kind, w := range sourceWords {
		if w == word {
			s.Kind = kind
		}
	}
	s.VG, s.LV, ok = strings.Cut(ref, "/")
	return s, ok && s.Kind != "" && s.VG != "" && usableLV(s.LV)
}

// Copying is the state of a volume while the content of its source is copied onto it.
const Copying = "copying"

// TemporaryLV names the snapshot that a volume is copied from, by the name of the logical volume that is copied onto.
func TemporaryLV(lv string) string { return LVName(Temporary, lv) }

// TakesNothing reports whether the logical volume never needs a chunk of its own: a temporary snapshot of a thin snapshot, of which
// neither is ever written. The overcommit limit does not count.
func (s Spec) TakesNothing() bool {
	return s.Kind == Temporary && s.Origin.Type == Thin && s.Origin.Tags.Kind == Snapshot
}

// ContentBytes is how much content the logical volume has: a thick snapshot's own size is that of its store.
func (lv LV) ContentBytes() int64 {
	if lv.Tags.Kind == Snapshot && lv.Tags.Bytes != 0 {
		return lv.Tags.Bytes
	}
	return lv.SizeBytes
}

// Unfinished reports whether the volume is not yet whole when LVM has made it: the content is to be copied onto it, or its file system needs
// an identity of its own before it can be mounted beside its source.
func (s Spec) Unfinished() bool {
	return s.Copying || s.Source != (Source{}) && s.Format.FS == Btrfs
}

// From gives the spec with the size that its source needs, and how it gets the content: a thin volume from a thin one of the same pool is
// made by LVM, at once; onto any other it is copied. ErrOutOfRange: it is asked to be smaller than its source (CSI spec,
// CreateVolume: the size of the volume MUST NOT be less than that of the source). ErrInvalid: it is asked to carry another file
// system than its source does.
func (s Spec) From(source LV) (Spec, error) {
	s, err := s.carrying(source)
	if err != nil {
		return s, err
	}
	need := source.ContentBytes()
	if s.RequiredBytes != 0 && s.RequiredBytes < need {
		return s, fmt.Errorf("%w: capacity_range.required_bytes %d is less than the %d bytes of its source %s; ask for as much", ErrOutOfRange, s.RequiredBytes, need, s.Source)
	}
	if s.RequiredBytes < need {
		s.RequiredBytes = need
		if s.LimitBytes != 0 && s.LimitBytes < need {
			return s, fmt.Errorf("%w: capacity_range.limit_bytes %d is less than the %d bytes of its source %s", ErrOutOfRange, s.LimitBytes, need, s.Source)
		}
	}
	if source.Type == Thin && s.Layout.Type == Thin && s.Layout.Pool == source.Pool && s.VG == source.VG {
		s.Origin = source
	} else {
		s.Copying = true
	}
	return s, nil
}

// carrying gives the spec with the file system of its source, if that tells one. A logical volume that the driver did not make
// tells none, and then it is as asked.
func (s Spec) carrying(source LV) (Spec, error) {
	has, told := source.Tags.Format()
	switch {
	case !told:
	case has.FS == "" && s.Format.FS != "":
		return s, Invalid("volume_capabilities", "mount", fmt.Sprintf("the source %s is a block volume, and so is what is made of it; ask for block", s.Source))
	case has.FS != "" && s.Format.FS == "":
		return s, Invalid("volume_capabilities", "block", fmt.Sprintf("the source %s carries %s, and so does what is made of it; ask for mount", s.Source, has.FS))
	case s.AnyFS:
		s.Format.FS = has.FS
	case has.FS != s.Format.FS:
		return s, Invalid("volume_capabilities.mount.fs_type", string(s.Format.FS), fmt.Sprintf("the source %s carries %s, and so does what is made of it; name that", s.Source, has.FS))
	}
	return s, nil
}
