package volume

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ID is the volume_id of a persistent volume: node/vg/lv. It is unique in the cluster, and tells an operator where
// the data is. Inline volumes keep the id that kubelet gives them.
type ID struct {
	Node string // as ShortNode gives it
	Ref
}

// String is the one printer of ids; ParseID reads what it writes.
func (id ID) String() string { return id.Node + "/" + id.VG + "/" + id.LV }

// ParseID is the one parser of persistent volume ids. What it returns holds only names that are safe in an argument
// vector and in a path below a folder of ours. The error is an ErrInvalid that names volume_id.
func ParseID(s string) (ID, error) {
	if err := CheckAnyID(s); err != nil {
		return ID{}, err
	}
	bad := func(why string) (ID, error) {
		return ID{}, Invalid("volume_id", s, why+"; this driver's ids are <node>/<vg>/<lv>, as CreateVolume returns them")
	}
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return bad("not three parts")
	}
	id := ID{Node: parts[0], Ref: Ref{VG: parts[1], LV: parts[2]}}
	switch {
	case !nodeName.MatchString(id.Node) || len(id.Node) > maxNode:
		return bad("no valid node name")
	case CheckVG("volume_id", id.VG) != nil:
		return bad("no valid volume group name")
	case !usableLV(id.LV):
		return bad("no valid logical volume name")
	}
	return id, nil
}

// CheckAnyID checks what holds for every volume_id, a foreign one too: it is there, at most 128 bytes of UTF-8 (CSI spec,
// "Size Limits"), and without control characters.
func CheckAnyID(s string) error { return CheckID("volume_id", s) }

// CheckID is CheckAnyID for an id in another field.
func CheckID(field, s string) error { return checkText(field, s, "") }

// CheckName checks a name that the CO chose for a volume. Blanks of every kind are allowed (CSI spec, CreateVolumeRequest).
func CheckName(s string) error { return checkText("name", s, "\t\n\r") }

// checkText checks a string of the CO. Control characters are those the spec bans in names, U+0000-U+001F and
// U+007F-U+009F, but for the allowed ones.
func checkText(field, s, allowed string) error {
	switch {
	case s == "":
		return Invalid(field, s, "missing; it is required")
	case len(s) > maxID:
		return Invalid(field, s, fmt.Sprintf("too long; at most %d bytes", maxID))
	case !utf8.ValidString(s):
		return Invalid(field, s, "not UTF-8")
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune(allowed, r) }):
		return Invalid(field, s, "holds control characters; leave them out")
	}
	return nil
}

// LockKey gives the key under which operations on a volume exclude each other: the name of its logical volume, which
// CreateVolume knows from the name alone and every other call from the id. An id that is not ours is its own key.
func LockKey(volumeID string) string {
	if id, err := ParseID(volumeID); err == nil {
		return id.LV
	}
	return LVName(Inline, volumeID)
}
