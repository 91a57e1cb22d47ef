package volume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The keys of StorageClass parameters and of inline volume attributes.
const (
	KeyVolumeGroup = "volumeGroup"
	KeyType        = "type"
	KeyThinPool    = "thinPool"
	KeyStripes     = "stripes"
	KeyStripeSize  = "stripeSize"
	KeyMirrors     = "mirrors"
	KeyMkfsOptions = "mkfsOptions"
	KeySize        = "size" // inline volumes only

	// KeyFSType may stand in a StorageClass; external-provisioner turns it into the capability's fs_type.
	KeyFSType = "csi.storage.k8s.io/fstype"
	// KeyEphemeral is "true" in the volume_context of an inline volume (kubelet, with podInfoOnMount).
	KeyEphemeral = "csi.storage.k8s.io/ephemeral"
	// KeyPodUID is the pod an inline volume belongs to (kubelet, with podInfoOnMount).
	KeyPodUID = "csi.storage.k8s.io/pod.uid"
)

// Parameters are the driver's own keys, read and checked.
type Parameters struct {
	VG     string // "": the default group
	Layout Layout
	FS     FS // "": not said
	// MkfsOptions goes to mkfs as an argument vector; there is no shell.
	MkfsOptions []string
	SizeBytes   int64 // inline only
}

var createKeys = []string{KeyFSType, KeyMirrors, KeyMkfsOptions, KeyStripeSize, KeyStripes, KeyThinPool, KeyType, KeyVolumeGroup}

// ParseParameters reads the parameters of CreateVolume or GetCapacity.
func ParseParameters(params map[string]string) (Parameters, error) {
	return parseParameters("parameters", params, createKeys)
}

// ParseInline reads the volume_context of an inline volume; size is required.
func ParseInline(attributes map[string]string) (Parameters, error) {
	p, err := parseParameters("volume_context", attributes, append(slices.Clone(createKeys), KeySize))
	if err == nil && p.SizeBytes == 0 {
		err = Invalid("volume_context["+KeySize+"]", attributes[KeySize], `missing; an inline volume needs a size such as "1Gi"`)
	}
	if uid := attributes[KeyPodUID]; err == nil && uid != "" {
		err = checkText("volume_context["+KeyPodUID+"]", uid, "") // it becomes a tag
	}
	return p, err
}

// ParseContext reads the volume_context of a persistent volume, which CreateVolume gave out or the author of a static
// PV wrote: how to make its file system.
func ParseContext(attributes map[string]string) (Parameters, error) {
	return parseParameters("volume_context", attributes, []string{KeyMkfsOptions})
}

// Context is the volume_context that CreateVolume returns: what a later NodeStageVolume must know and LVM does not hold.
func (p Parameters) Context() map[string]string {
	if len(p.MkfsOptions) == 0 {
		return nil
	}
	return map[string]string{KeyMkfsOptions: strings.Join(p.MkfsOptions, " ")}
}

// coKey reports whether the CO put the key there for purposes of its own (the names of PVC and pod, the provisioner's
// identity, tokens): not ours to judge. Values of such keys may be secret and are never put into messages.
func coKey(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	return ok && (domain == "k8s.io" || domain == "kubernetes.io" || strings.HasSuffix(domain, ".k8s.io") || strings.HasSuffix(domain, ".kubernetes.io"))
}

func checkKeys(field string, params map[string]string, known []string) error {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(known, key) && !coKey(key) {
			return Invalid(field+"["+key+"]", params[key], "unknown key; known are "+strings.Join(known, ", "))
		}
	}
	return nil
}

func parseParameters(field string, params map[string]string, known []string) (Parameters, error) {
	var p Parameters
	at := func(key string) string { return field + "[" + key + "]" }
	err := checkKeys(field, params, known)
	if err != nil {
		return p, err
	}
	if p.VG = params[KeyVolumeGroup]; p.VG != "" {
		if err := CheckVG(at(KeyVolumeGroup), p.VG); err != nil {
			return p, err
		}
	}
	if p.FS, err = ParseFS(at(KeyFSType), params[KeyFSType]); err != nil {
		return p, err
	}
	if p.MkfsOptions, err = parseMkfsOptions(at(KeyMkfsOptions), params[KeyMkfsOptions]); err != nil {
		return p, err
	}
	if v, ok := params[KeySize]; ok && slices.Contains(known, KeySize) {
		if p.SizeBytes, err = ParseSize(at(KeySize), v); err != nil {
			return p, err
		}
	}
	p.Layout, err = parseLayout(at, params)
	return p, err
}

// parseLayout checks each key against the type, so that a key that would have no effect is an error and not a surprise.
func parseLayout(at func(string) string, params map[string]string) (Layout, error) {
	l := Layout{Type: Type(params[KeyType])}
	if l.Type == "" {
		l.Type = Linear
		if params[KeyThinPool] != "" {
			l.Type = Thin
		}
	}
	rule, ok := layoutRules[l.Type]
	if !ok {
		return l, Invalid(at(KeyType), string(l.Type), "known are linear, striped, raid1, raid5, raid6, raid10, thin")
	}
	needless := func(key string) error {
		return Invalid(at(key), params[key], fmt.Sprintf("has no meaning for type %s; leave it out", l.Type))
	}
	count := func(key string, allowed span) (int, error) {
		v, given := params[key]
		switch {
		case allowed.most == 0 && given:
			return 0, needless(key)
		case !given:
			return allowed.least, nil
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < allowed.least || n > allowed.most {
			return 0, Invalid(at(key), v, fmt.Sprintf("give a whole number from %d to %d for type %s", allowed.least, allowed.most, l.Type))
		}
		return n, nil
	}
	var err error
	if l.Stripes, err = count(KeyStripes, rule.stripes); err != nil {
		return l, err
	}
	if l.Mirrors, err = count(KeyMirrors, rule.mirrors); err != nil {
		return l, err
	}
	if v, given := params[KeyStripeSize]; given {
		if rule.stripes.most == 0 {
			return l, needless(KeyStripeSize)
		}
		// lvcreate(8): a power of two of at least 4 KiB; LVM's own bound is the extent size, 4 MiB by default.
		if l.StripeBytes, err = ParseSize(at(KeyStripeSize), v); err != nil {
			return l, err
		}
		if n := l.StripeBytes; n < 4<<10 || n > 4<<20 || n&(n-1) != 0 {
			return l, Invalid(at(KeyStripeSize), v, `give a power of two from 4Ki to 4Mi`)
		}
	}
	l.Pool = params[KeyThinPool]
	switch {
	case l.Type == Thin && l.Pool == "":
		return l, Invalid(at(KeyThinPool), "", "missing; type thin needs the name of a thin pool in the volume group")
	case l.Type != Thin && l.Pool != "":
		return l, needless(KeyThinPool)
	case l.Pool != "":
		err = CheckLV(at(KeyThinPool), l.Pool)
	}
	return l, err
}

// span is a range of numbers; the least is what a type gets unless told. The zero span: the type has no such number.
type span struct{ least, most int }

// layoutRules gives the stripes and mirrors of the types. The least are lvmraid(7)'s; the most follow from LVM's limit
// of 64 images in all, 10 for raid1, and one mirror for raid10 (lvm2 lib/config/defaults.h, tools/lvcreate.c).
var layoutRules = map[Type]struct{ stripes, mirrors span }{
	Linear:  {},
	Striped: {stripes: span{2, 64}},
	RAID1:   {mirrors: span{1, 9}},
	RAID5:   {stripes: span{2, 63}},
	RAID6:   {stripes: span{3, 62}},
	RAID10:  {stripes: span{2, 32}, mirrors: span{1, 1}},
	Thin:    {},
}

// ParseFS reads a file system type; "" is not said.
func ParseFS(field, v string) (FS, error) {
	switch fs := FS(v); fs {
	case "", Ext4, XFS, Btrfs:
		return fs, nil
	}
	return "", Invalid(field, v, "known are ext4, xfs, btrfs")
}
