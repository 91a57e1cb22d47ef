package volume

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The keys of mutable parameters (CSI spec, ControllerModifyVolume; a VolumeAttributesClass in Kubernetes).
const (
	KeyReadAhead       = "readAhead"
	KeyMinRecoveryRate = "raidMinRecoveryRate"
	KeyMaxRecoveryRate = "raidMaxRecoveryRate"
	KeyWriteMostly     = "writeMostly"
	KeyReadBytes       = "readBytesPerSecond"
	KeyWriteBytes      = "writeBytesPerSecond"
	KeyReadOps         = "readOpsPerSecond"
	KeyWriteOps        = "writeOpsPerSecond"
)

const (
	readAheadAuto = "auto" // LVM chooses
	none          = "none"
	unlimited     = "max" // as in io.max
)

// mutableKeys are all keys, each with how its value is read. A value has one form: equal values have equal strings.
var mutableKeys = map[string]func(at, v string) (string, error){
	KeyReadAhead:       parseReadAhead,
	KeyMinRecoveryRate: parseRate,
	KeyMaxRecoveryRate: parseRate,
	KeyWriteMostly:     parseDevices,
	KeyReadBytes:       parseByteLimit,
	KeyWriteBytes:      parseByteLimit,
	KeyReadOps:         parseOpLimit,
	KeyWriteOps:        parseOpLimit,
}

// Mutable are mutable parameters, read and checked, each in its one form. A key that is not in it was never set.
type Mutable map[string]string

// ParseMutable reads mutable parameters. Which of them a volume can have its type decides: Check.
func ParseMutable(params map[string]string) (Mutable, error) {
	m := Mutable{}
	for _, key := range slices.Sorted(maps.Keys(params)) {
		at := mutableField(key)
		parse, ok := mutableKeys[key]
		if !ok {
			return nil, Invalid(at, params[key], "unknown key; known are "+strings.Join(slices.Sorted(maps.Keys(mutableKeys)), ", "))
		}
		v, err := parse(at, params[key])
		if err != nil {
			return nil, err
		}
		m[key] = v
	}
	return m, m.fits()
}

func mutableField(key string) string { return "mutable_parameters[" + key + "]" }

// fits checks that LVM takes them all as one tag.
func (m Mutable) fits() error {
	if n := len(tagPrefix + "mutable=" + escapeTag(m.String())); n > maxTag {
		return Invalid("mutable_parameters", m.String(), fmt.Sprintf("too long; they make an LVM tag of %d bytes, and at most %d can be kept", n, maxTag))
	}
	return nil
}

// Check checks that a volume of the type can have the parameters, all together.
func (m Mutable) Check(t Type) error {
	raid := t == RAID1 || t == RAID5 || t == RAID6 || t == RAID10
	for key, fit := range map[string]bool{KeyMinRecoveryRate: raid, KeyMaxRecoveryRate: raid, KeyWriteMostly: t == RAID1} {
		if v, given := m[key]; given && !fit {
			return Invalid(mutableField(key), v, fmt.Sprintf("has no meaning for a volume of type %s; leave it out", t))
		}
	}
	least, _ := strconv.Atoi(m[KeyMinRecoveryRate])
	most, _ := strconv.Atoi(m[KeyMaxRecoveryRate])
	if most != 0 && least > most {
		return Invalid(mutableField(KeyMinRecoveryRate), m[KeyMinRecoveryRate], fmt.Sprintf("is more than the %s of the volume, %d", KeyMaxRecoveryRate, most))
	}
	return m.fits()
}

// With gives the parameters with some of them changed, and the others as they are (CSI spec, ControllerModifyVolume).
func (m Mutable) With(changes Mutable) Mutable {
	out := maps.Clone(m)
	if out == nil {
		out = Mutable{}
	}
	maps.Copy(out, changes)
	return out
}

// String gives the one form of the parameters, k=v&k=v in order of the keys; "" for none.
func (m Mutable) String() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, key+"="+m[key])
	}
	return strings.Join(parts, "&")
}

// MutableParameters reads what the tags say. An error where that cannot be understood, which is not "none".
func (t Tags) MutableParameters() (Mutable, error) { return ReadMutable(t.Mutable) }

// ReadMutable reads what Mutable.String wrote.
func ReadMutable(text string) (Mutable, error) {
	params := map[string]string{}
	for part := range strings.SplitSeq(text, "&") {
		if key, value, ok := strings.Cut(part, "="); ok {
			params[key] = value
		}
	}
	m, err := ParseMutable(params)
	if err != nil || m.String() != text {
		return nil, fmt.Errorf("the mutable parameters %q of the volume are not understood; was it changed by a newer driver?", text)
	}
	return m, nil
}

// WriteMostly gives the devices; ok is false where nothing is said.
func (m Mutable) WriteMostly() (devices []string, ok bool) {
	v, ok := m[KeyWriteMostly]
	if !ok || v == none {
		return nil, ok
	}
	return strings.Split(v, ","), true
}

// IOLimits are what one pod may do on the device of a volume, per second. 0 is no limit.
type IOLimits struct {
	ReadBytes, WriteBytes, ReadOps, WriteOps uint64
}

// IOLimits gives the limits; set is false where nothing was ever said of them.
func (m Mutable) IOLimits() (l IOLimits, set bool) {
	for key, to := range map[string]*uint64{KeyReadBytes: &l.ReadBytes, KeyWriteBytes: &l.WriteBytes, KeyReadOps: &l.ReadOps, KeyWriteOps: &l.WriteOps} {
		v, given := m[key]
		set = set || given
		*to, _ = strconv.ParseUint(v, 10, 64) // "max": 0
	}
	return l, set
}

// parseReadAhead reads lvchange(8) --readahead: sectors, auto or none. LVM rounds to whole pages; what is kept is what holds.
func parseReadAhead(at, v string) (string, error) {
	if v == readAheadAuto || v == none {
		return v, nil
	}
	const most = 1 << 21 // 1 GiB
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n == 0 || n%8 != 0 || n > most {
		return "", Invalid(at, v, fmt.Sprintf(`give "auto", "none", or a number of sectors of 512 bytes: a multiple of 8, at most %d`, most))
	}
	return strconv.FormatUint(n, 10), nil
}

// parseRate reads lvchange(8) --minrecoveryrate and --maxrecoveryrate, in KiB per second and device; 0 is the kernel's default.
func parseRate(at, v string) (string, error) {
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return "", Invalid(at, v, "give a whole number of KiB per second and device; 0 is the kernel's default")
	}
	return strconv.FormatUint(n, 10), nil
}

var devicePath = regexp.MustCompile(`^/dev/[a-zA-Z0-9+_.:/-]+$`)

func parseDevices(at, v string) (string, error) {
	if v == none {
		return v, nil
	}
	devices := strings.Split(v, ",")
	for i := range devices {
		devices[i] = strings.TrimSpace(devices[i])
		if !devicePath.MatchString(devices[i]) || slices.Contains(strings.Split(devices[i], "/"), "..") {
			return "", Invalid(at, v, `give "none", or physical volumes by their device names, such as "/dev/sdb,/dev/sdc"`)
		}
	}
	slices.Sort(devices)
	return strings.Join(slices.Compact(devices), ","), nil
}

// parseByteLimit reads a number of bytes. A limit below a page would let nothing through.
func parseByteLimit(at, v string) (string, error) {
	if v == unlimited {
		return v, nil
	}
	n, err := ParseSize(at, v)
	if err != nil || n < 4<<10 {
		return "", Invalid(at, v, `give "max", or a number of bytes of at least 4Ki, such as "100Mi"`)
	}
	return strconv.FormatInt(n, 10), nil
}

func parseOpLimit(at, v string) (string, error) {
	if v == unlimited {
		return v, nil
	}
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n == 0 {
		return "", Invalid(at, v, `give "max", or a whole number, more than 0`)
	}
	return strconv.FormatUint(n, 10), nil
}
