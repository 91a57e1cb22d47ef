package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// Lengths, in bytes. A device-mapper name has at most 127 (DM_NAME_LEN in linux/dm-ioctl.h, with its final NUL), and
// holds the VG and LV names with each "-" doubled and one "-" between. 16 are kept for what LVM appends to the names
// of internal volumes ("_rimage_10", "-tpool", "-real", ...). A volume_id has at most 128 (CSI spec, "Size Limits").
const (
	maxID            = 128
	maxNode          = 46
	maxVG            = 32
	maxVGEncoded     = 40
	maxLVEncoded     = 127 - 16 - 1 - maxVGEncoded // 70
	maxPersistentLV  = maxID - 2 - maxNode - maxVG // 48
	maxInlineLV      = 68                          // "csi-" and 64 hex digits, as kubelet makes them
	hashedNameDigits = 32
)

// Names LVM keeps for itself: lvm2 lib/misc/lvm-string.c, lvm(8) "VALID NAMES".
var (
	reservedPrefixes   = []string{"pvmove", "snapshot"}
	reservedSubstrings = []string{
		"_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_wcorig", "_mimage", "_mlog", "_rimage", "_rmeta",
		"_tdata", "_tmeta", "_vdata", "_imeta", "_iorig", "_pmspare", "_vorigin",
	}
	lvmName    = regexp.MustCompile(`^[a-zA-Z0-9+_.][a-zA-Z0-9+_.-]*$`)
	hashedName = regexp.MustCompile(`^[vistg]-[0-9a-f]{32}$`)
	nodeName   = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_.-]*[a-zA-Z0-9])?$`)
)

const inlinePrefix = "csi-"

// encodedLen is the length of a VG or LV name within a device-mapper name.
func encodedLen(name string) int { return len(name) + strings.Count(name, "-") }

// DMName gives the name of the device-mapper device of an LV: both names with "-" doubled, and a "-" between
// (libdm: dm_build_dm_name).
func DMName(r Ref) string {
	return strings.ReplaceAll(r.VG, "-", "--") + "-" + strings.ReplaceAll(r.LV, "-", "--")
}

// usableLV reports whether LVM takes the name for an LV, and the device-mapper name cannot become too long.
func usableLV(name string) bool {
	if !lvmName.MatchString(name) || name == "." || name == ".." || encodedLen(name) > maxLVEncoded {
		return false
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	for _, s := range reservedSubstrings {
		if strings.Contains(name, s) {
			return false
		}
	}
	return true
}

// LVName gives the name of the logical volume for a name that the CO chose: that name where LVM takes it as it is and
// it fits, else a hashed one. The same kind and name always give the same LV name, and no two give one: a CO's name
// that looks like a hashed or an inline one is hashed as well.
func LVName(kind Kind, name string) string {
	if usableLV(name) && !hashedName.MatchString(name) {
		inline := strings.HasPrefix(name, inlinePrefix)
		switch {
		case kind == Inline && inline && len(name) <= maxInlineLV:
			return name
		case kind == Persistent && !inline && len(name) <= maxPersistentLV:
			return name
		}
	}
	sum := sha256.Sum256([]byte(string(kind) + "\x00" + name))
	return kind.letter() + "-" + hex.EncodeToString(sum[:])[:hashedNameDigits]
}

// KindByName tells for which kind a logical volume of this name would have been made: no two kinds have names in common. One
// that was taken over, or renamed, may have any name; its tag tells.
func KindByName(lv string) Kind {
	for _, k := range []Kind{Inline, Snapshot} {
		if hashedName.MatchString(lv) && strings.HasPrefix(lv, k.letter()+"-") {
			return k
		}
	}
	if strings.HasPrefix(lv, inlinePrefix) {
		return Inline
	}
	return Persistent
}

func (k Kind) letter() string {
	switch k {
	case Inline:
		return "i"
	case Snapshot:
		return "s"
	case Temporary:
		return "t"
	case Together:
		return "g"
	default:
		return "v"
	}
}

// CheckVG checks the name of a volume group that the driver is to use; field names it in the error.
func CheckVG(field, vg string) error {
	if !lvmName.MatchString(vg) || vg == "." || vg == ".." {
		return Invalid(field, vg, "not a name LVM takes for a volume group: letters, digits, + _ . and - (not first)")
	}
	if len(vg) > maxVG || encodedLen(vg) > maxVGEncoded {
		return Invalid(field, vg, fmt.Sprintf("too long for device names and volume ids: at most %d bytes, and at most %d "+
			"with each - counted twice; rename the group with vgrename", maxVG, maxVGEncoded))
	}
	return nil
}

// CheckLV checks the name of a logical volume before it goes into an argument vector or a path.
func CheckLV(field, lv string) error {
	if !usableLV(lv) {
		return Invalid(field, lv, "not a usable name of a logical volume (lvm(8), VALID NAMES)")
	}
	return nil
}

// ShortNode gives the node's name as it stands in volume ids and topology: the name itself where it has at most 46
// bytes, else its beginning and a hash. It is always a valid label value (at most 63 bytes).
func ShortNode(name string) (string, error) {
	if !nodeName.MatchString(name) || len(name) > 253 {
		return "", Invalid("--node-name", name, "give the name of the Kubernetes node: letters, digits, - _ and ., at most 253 bytes")
	}
	if len(name) <= maxNode {
		return name, nil
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:maxNode-17], "-._") + "-" + hex.EncodeToString(sum[:])[:16], nil
}
