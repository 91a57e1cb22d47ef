package mount

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// attributes are what can differ from mount to mount of one file system: bits of mount_setattr(2) to set and to clear.
type attributes struct {
	set, clear uint64
}

// parameter is an option of the file system itself, for fsconfig(2). A flag has no value.
type parameter struct {
	key, value string
	flag       bool
}

const (
	ro  = unix.MOUNT_ATTR_RDONLY
	all = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// perMount are the options of mount(8) that belong to a single mount. Their opposites clear the bits. The three for access
// times exclude each other, so each first clears them all; relatime is 0 of them.
var perMount = map[string]attributes{
	"defaults":    {},
	"rw":          {}, // read-only if any source says so: rw takes nothing back, neither a "ro" beside it nor the source's
	"ro":          {set: ro},
	"nosuid":      {set: unix.MOUNT_ATTR_NOSUID},
	"suid":        {clear: unix.MOUNT_ATTR_NOSUID},
	"nodev":       {set: unix.MOUNT_ATTR_NODEV},
	"dev":         {clear: unix.MOUNT_ATTR_NODEV},
	"noexec":      {set: unix.MOUNT_ATTR_NOEXEC},
	"exec":        {clear: unix.MOUNT_ATTR_NOEXEC},
	"nosymfollow": {set: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"symfollow":   {clear: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"nodiratime":  {set: unix.MOUNT_ATTR_NODIRATIME},
	"diratime":    {clear: unix.MOUNT_ATTR_NODIRATIME},

	"noatime":       {set: unix.MOUNT_ATTR_NOATIME, clear: unix.MOUNT_ATTR__ATIME},
	"strictatime":   {set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME},
	"relatime":      {clear: unix.MOUNT_ATTR__ATIME},
	"atime":         {clear: unix.MOUNT_ATTR__ATIME},
	"norelatime":    {clear: unix.MOUNT_ATTR__ATIME},
	"nostrictatime": {clear: unix.MOUNT_ATTR__ATIME},

	// mount(8): who but root may mount it, and what this implies.
	"user": {set: all}, "users": {set: all},
	"owner": {set: all &^ unix.MOUNT_ATTR_NOEXEC}, "group": {set: all &^ unix.MOUNT_ATTR_NOEXEC},
	"nouser": {}, "nousers": {}, "noowner": {}, "nogroup": {},
}

// comments are options that speak to mount(8), fstab readers and init, not to the kernel.
var comments = []string{"_netdev", "auto", "noauto", "nofail", "comment", "helper", "uhelper", "silent", "loud"}

// splitOptions takes mount options as mount(8) writes them apart into what belongs to the single mount and what to the
// file system. Of two that contradict each other the later counts, as with mount(8); ro always counts.
func splitOptions(o volume.MountOptions) (attributes, []parameter) {
	var a attributes
	var params []parameter
	if o.ReadOnly {
		a.set |= ro
	}
	for _, f := range volume.SplitFlags(o.Flags) {
		key, value, hasValue := strings.Cut(f, "=")
		if slices.Contains(comments, key) || strings.HasPrefix(strings.ToLower(key), "x-") {
			continue
		}
		if bits, ok := perMount[f]; ok {
			a = a.with(bits)
			continue
		}
		p := parameter{key: key, value: strings.Trim(value, `"`), flag: !hasValue}
		if !slices.Contains(params, p) {
			params = append(params, p)
		}
	}
	return a, params
}

func (a attributes) with(b attributes) attributes {
	a.set = a.set&^b.clear | b.set
	a.clear = a.clear&^b.set | b.clear
	return a
}
