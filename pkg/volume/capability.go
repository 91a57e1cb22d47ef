package volume

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Capability is a CSI VolumeCapability as plain values.
type Capability struct {
	Block      bool
	FS         FS       // mount: as asked, "" where nothing was said
	MountFlags []string // mount: as asked
	Group      *int     // mount: volume_mount_group, a numeric gid; nil: none
	Mode       AccessMode
}

// AccessMode is one of the CSI access modes for a single node; a logical volume is on one node only.
type AccessMode string

// The access modes (CSI spec, VolumeCapability.AccessMode).
const (
	SingleNodeWriter       AccessMode = "SINGLE_NODE_WRITER"
	SingleNodeReaderOnly   AccessMode = "SINGLE_NODE_READER_ONLY"
	SingleNodeSingleWriter AccessMode = "SINGLE_NODE_SINGLE_WRITER"
	SingleNodeMultiWriter  AccessMode = "SINGLE_NODE_MULTI_WRITER"
)

// AccessModes are the modes the driver takes.
var AccessModes = []AccessMode{SingleNodeWriter, SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeMultiWriter}

// ReadOnly reports whether whatever is published with the capability must be read-only.
func (c Capability) ReadOnly() bool {
	return c.Mode == SingleNodeReaderOnly || slices.Contains(SplitFlags(c.MountFlags), "ro")
}

// Format gives the file system a volume of this capability carries.
func (c Capability) Format(p Parameters) (Format, error) {
	if c.Block {
		if len(p.MkfsOptions) != 0 {
			return Format{}, Invalid("parameters["+KeyMkfsOptions+"]", strings.Join(p.MkfsOptions, " "), "has no meaning for a block volume; leave it out")
		}
		return Format{}, nil
	}
	fs := c.FS
	if p.FS != "" {
		if fs != "" && fs != p.FS {
			return Format{}, Invalid(KeyFSType, string(p.FS), fmt.Sprintf("the capability's fs_type says %s; name one only", fs))
		}
		fs = p.FS
	}
	if fs == "" {
		fs = DefaultFS
	}
	return Format{FS: fs, MkfsOptions: p.MkfsOptions}, checkMkfsOptions(fs, p.MkfsOptions)
}

// ParseGroup reads a volume_mount_group; "" is none.
func ParseGroup(v string) (*int, error) {
	if v == "" {
		return nil, nil
	}
	gid, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return nil, Invalid("volume_capability.mount.volume_mount_group", v, "give a numeric group id")
	}
	n := int(gid)
	return &n, nil
}

// CheckMountFlags checks mount flags before they get near the kernel: at most 4 KiB in all (CSI spec, mount_flags). Flags
// that change what is mounted, or where, are the driver's business. Values of flags can be secret (same place), so the
// error shows only the part before "=".
func CheckMountFlags(flags []string) error {
	const field = "volume_capability.mount.mount_flags"
	joined := strings.Join(flags, ",")
	if len(joined) > 4096 {
		return Invalid(field, "", fmt.Sprintf("%d bytes; at most 4096 in all", len(joined)))
	}
	if strings.Count(joined, `"`)%2 != 0 {
		return Invalid(field, "", `a double quote (") without its second; a value with commas stands between two`)
	}
	for _, f := range splitFlags(flags) {
		key, _, _ := strings.Cut(f, "=")
		switch key {
		case "bind", "rbind", "move", "remount", "shared", "rshared", "private", "rprivate", "slave", "rslave", "unbindable", "runbindable":
			return Invalid(field, key, "changes how the volume is mounted, which is for the driver to do; leave it out")
		case "source", "device", "logdev", "rtdev", "journal_dev", "journal_path", "loop", "offset", "sizelimit":
			return Invalid(field, key, "names another device or file than the volume; leave it out")
		case "":
			return Invalid(field, key, "empty flag; leave it out")
		}
		if strings.ContainsFunc(f, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return Invalid(field, key, "holds blanks, control characters or others beyond ASCII")
		}
	}
	return nil
}

// splitFlags takes "a,b" as two flags: authors of StorageClasses write both forms. A comma between double quotes is part
// of a value, as for mount(8): context="system_u:object_r:container_file_t:s0:c1,c2". A flag that somebody split at such
// a comma is whole again.
func splitFlags(flags []string) []string {
	if len(flags) == 0 {
		return nil
	}
	var out []string
	joined, start, quoted := strings.Join(flags, ","), 0, false
	for i, r := range joined {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ',' && !quoted:
			out = append(out, joined[start:i])
			start = i + 1
		}
	}
	return append(out, joined[start:])
}

// SplitFlags gives the flags one by one, each once: where it stands last, since of two that contradict each other the
// later counts.
func SplitFlags(flags []string) []string {
	all := splitFlags(flags)
	var out []string
	for i, f := range all {
		if f != "" && !slices.Contains(all[i+1:], f) {
			out = append(out, f)
		}
	}
	return out
}

// CheckPath checks a path that the CO names: absolute, without "..", not the root, without control characters, at most
// 4095 bytes (PATH_MAX in linux/limits.h counts the final NUL), of which each name has at most 255 (NAME_MAX). It says nothing about what is there.
func CheckPath(field, path string) error {
	switch {
	case path == "":
		return Invalid(field, path, "missing; it is required")
	case len(path) > 4095:
		return Invalid(field, path, "too long; at most 4095 bytes")
	case !filepath.IsAbs(path):
		return Invalid(field, path, "must be an absolute path")
	case slices.Contains(strings.Split(path, "/"), ".."):
		return Invalid(field, path, `must not hold ".."`)
	case slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool { return len(name) > 255 }):
		return Invalid(field, path, "a name in it is too long; at most 255 bytes")
	case filepath.Clean(path) == "/":
		return Invalid(field, path, "must not be the root folder")
	case strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return Invalid(field, path, "holds control characters")
	}
	return nil
}
