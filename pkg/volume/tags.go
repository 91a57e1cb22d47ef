package volume

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Tags is what the driver keeps in the LVM tags of a logical volume: atomically with the LV itself, so that nothing of
// it can be lost while the LV is there. LVM's tags hold at most 1024 bytes of [a-zA-Z0-9_+.-/=!:&#] (lvm(8)).
type Tags struct {
	Owner  string // the driver's name; empty: not ours, never touched
	Kind   Kind
	Name   string // the CO's name, where the LV has another
	Spec   string // layout and file system as asked for: what a repeated call is compared with
	Mkfs   string // the options of mkfs, separated by blanks
	PodUID string // inline: the pod
	State  string // why the LV is not yet whole; empty: it is whole
	From   string // what its content was made of, as Source.String writes it; that may be gone

	Attached string // the Attachment, as its String gives it; empty: none
	Mutable  string // the mutable parameters, as Mutable.String gives them; empty: none

	// Of snapshots.
	Origin      string // what it was made of, "VG/LV"; stays when that is gone
	Created     int64  // when, in nanoseconds since 1970
	Bytes       int64  // the size of the origin then; a copy-on-write store has another
	CopyOnWrite string // the size of the store as asked for
	Group       string // the snapshots it was made together with, as Membership.String writes it
}

const (
	tagPrefix = "csi."
	maxTag    = 1024
)

// OwnerTag is the tag that makes an LV the driver's. It is the first of the two keys without which none is removed.
func OwnerTag(owner string) string { return tagPrefix + "owner=" + owner }

// KindTag is the tag that tells the kind.
func KindTag(k Kind) string { return tagPrefix + "kind=" + string(k) }

// Strings gives the tags to hand to lvcreate --addtag. ParseTags reads them back.
func (t Tags) Strings() []string {
	out := []string{OwnerTag(t.Owner), KindTag(t.Kind)}
	for _, f := range []struct{ key, value string }{
		{"name", t.Name}, {"spec", t.Spec}, {"mkfs", t.Mkfs}, {"pod", t.PodUID}, {"state", t.State}, {"from", t.From},
		{"attached", t.Attached}, {"mutable", t.Mutable},
		{"origin", t.Origin}, {"created", decimal(t.Created)}, {"bytes", decimal(t.Bytes)}, {"cow", t.CopyOnWrite}, {"group", t.Group},
	} {
		if f.value != "" {
			out = append(out, tagPrefix+f.key+"="+escapeTag(f.value))
		}
	}
	return out
}

// Changes gives the tags to add and those to remove that make t of one LV into to. Owner and kind are never among them.
func (t Tags) Changes(to Tags) (add, remove []string) {
	to.Owner, to.Kind = t.Owner, t.Kind
	before, after := t.Strings(), to.Strings()
	for _, tag := range after {
		if !slices.Contains(before, tag) {
			add = append(add, tag)
		}
	}
	for _, tag := range before {
		if !slices.Contains(after, tag) {
			remove = append(remove, tag)
		}
	}
	return add, remove
}

var tagForm = regexp.MustCompile(`^[a-zA-Z0-9_+.][a-zA-Z0-9_+./=!:&#-]*$`)

// CheckRetag checks tags that are to be added and removed: LVM takes them, none is in both lists, and none is the owner or
// the kind, the keys without which nothing is removed.
func CheckRetag(add, remove []string) error {
	for _, tag := range slices.Concat(add, remove) {
		key, _, _ := strings.Cut(tag, "=")
		switch {
		case !tagForm.MatchString(tag) || len(tag) > maxTag:
			return Invalid("tag", tag, fmt.Sprintf("LVM takes letters, digits, _ + . - / = ! : & # (no - first), at most %d", maxTag))
		case key == tagPrefix+"owner" || key == tagPrefix+"kind":
			return Invalid("tag", tag, "owner and kind stay as they are")
		case slices.Contains(add, tag) && slices.Contains(remove, tag):
			return Invalid("tag", tag, "it cannot be added and removed at once")
		}
	}
	return nil
}

// ParseTags reads the tags of an LV. Tags that are not the driver's are passed over.
func ParseTags(tags []string) Tags {
	var t Tags
	for _, tag := range tags {
		key, value, ok := strings.Cut(strings.TrimPrefix(tag, tagPrefix), "=")
		if !ok || !strings.HasPrefix(tag, tagPrefix) {
			continue
		}
		value = unescapeTag(value)
		switch key {
		case "owner":
			t.Owner = value
		case "kind":
			t.Kind = Kind(value)
		case "name":
			t.Name = value
		case "spec":
			t.Spec = value
		case "mkfs":
			t.Mkfs = value
		case "pod":
			t.PodUID = value
		case "attached":
			t.Attached = value
		case "mutable":
			t.Mutable = value
		case "state":
			t.State = value
		case "from":
			t.From = value
		case "origin":
			t.Origin = value
		case "created":
			t.Created, _ = strconv.ParseInt(value, 10, 64)
		case "bytes":
			t.Bytes, _ = strconv.ParseInt(value, 10, 64)
		case "cow":
			t.CopyOnWrite = value
		case "group":
			t.Group = value
		}
	}
	return t
}

// decimal writes a number; 0 is not said.
func decimal(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

var ownerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// CheckOwner checks a driver name: it must be a CSI plugin name (CSI spec, GetPluginInfo: domain name notation), which is
// also a valid tag as it is. Lower case, and at most 54 bytes of the spec's 63, because "topology." and the name make the
// prefix of the topology key, for which the spec has these bounds.
func CheckOwner(name string) error {
	if len(name) > 54 || !ownerName.MatchString(name) {
		return Invalid("--driver-name", name, "give a domain name, at most 54 bytes of lower-case letters, digits, - and .")
	}
	return nil
}

// escapeTag writes each byte that LVM does not take in a tag, and ":", as :xx.
func escapeTag(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("_+.-/=!&#", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, ":%02x", c)
		}
	}
	return b.String()
}

func unescapeTag(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == ':' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// String gives the layout in one form: equal layouts have equal strings.
func (l Layout) String() string {
	parts := []string{"type=" + string(l.Type)}
	add := func(key, value string) { parts = append(parts, key+"="+value) }
	if l.Pool != "" {
		add("pool", l.Pool)
	}
	if l.Stripes != 0 {
		add("stripes", strconv.Itoa(l.Stripes))
	}
	if l.StripeBytes != 0 {
		add("stripeSize", strconv.FormatInt(l.StripeBytes, 10))
	}
	if l.Mirrors != 0 {
		add("mirrors", strconv.Itoa(l.Mirrors))
	}
	return strings.Join(parts, "&")
}

const (
	specFS    = "fs="
	specBlock = "mode=block"
)

// canonical gives layout and file system in one form: the layout, "&", the file system.
func (s Spec) canonical() string {
	if s.Format.FS == "" {
		return s.Layout.String() + "&" + specBlock
	}
	return s.Layout.String() + "&" + specFS + string(s.Format.FS)
}

// Layout gives the layout that the LV was made with, as Layout.String writes it; "" where the tags do not tell, as with
// an LV that the driver did not make.
func (t Tags) Layout() string {
	if i := strings.LastIndexByte(t.Spec, '&'); i >= 0 {
		return t.Spec[:i]
	}
	return ""
}

// Format gives what the LV was made to carry. ok is false where the tags do not tell.
func (t Tags) Format() (f Format, ok bool) {
	last := t.Spec[strings.LastIndexByte(t.Spec, '&')+1:]
	fs, isFS := strings.CutPrefix(last, specFS)
	if !isFS {
		return Format{}, last == specBlock
	}
	return Format{FS: FS(fs), MkfsOptions: strings.Fields(t.Mkfs)}, true
}

// Matches checks that an existing LV of the same name is what the spec asks for, as a repeated call must find it
// (CSI spec, CreateVolume: same name, compatible arguments). The error is an ErrExists that names the difference.
func (s Spec) Matches(lv LV) error {
	differs := func(what, has, asked string) error {
		return fmt.Errorf("%w: logical volume %s of this name has %s %s, asked for is %s; delete it or use another name",
			ErrExists, lv.Ref, what, has, asked)
	}
	mkfs := strings.Join(s.Format.MkfsOptions, " ")
	if made, ok := lv.Tags.Format(); s.AnyFS && s.Source != (Source{}) && ok && made.FS != "" && s.Format.FS != "" {
		s.Format.FS = made.FS // its source's, which may be gone
	}
	switch {
	case lv.Tags.Kind != s.Kind:
		return differs("kind", string(lv.Tags.Kind), string(s.Kind))
	case lv.Name() != s.Name:
		return differs("name", strconv.Quote(lv.Name()), strconv.Quote(s.Name))
	case s.Kind == Snapshot:
		return s.matchesSnapshot(lv, differs)
	case lv.Tags.Spec != s.canonical():
		return differs("layout and file system", lv.Tags.Spec, s.canonical())
	case lv.Tags.From != s.Source.String():
		return differs("content", strconv.Quote(lv.Tags.From), strconv.Quote(s.Source.String()))
	case lv.Tags.Mkfs != mkfs:
		return differs("mkfs options", strconv.Quote(lv.Tags.Mkfs), strconv.Quote(mkfs))
	case lv.Tags.Mutable != s.Mutable.String():
		return differs("mutable parameters", strconv.Quote(lv.Tags.Mutable), strconv.Quote(s.Mutable.String()))
	case lv.SizeBytes < s.RequiredBytes:
		return differs("size", fmt.Sprintf("%d bytes", lv.SizeBytes), fmt.Sprintf("at least %d bytes", s.RequiredBytes))
	case s.LimitBytes != 0 && lv.SizeBytes > s.LimitBytes:
		return differs("size", fmt.Sprintf("%d bytes", lv.SizeBytes), fmt.Sprintf("at most %d bytes", s.LimitBytes))
	}
	return nil
}

// Name is the CO's name for the volume.
func (lv LV) Name() string {
	if lv.Tags.Name != "" {
		return lv.Tags.Name
	}
	return lv.LV
}

// AdoptedTags are those of a persistent volume that the driver did not make: nothing is said of its layout.
func AdoptedTags(owner string, f Format) Tags {
	spec := specBlock
	if f.FS != "" {
		spec = specFS + string(f.FS)
	}
	return Tags{Owner: owner, Kind: Persistent, Spec: spec}
}
