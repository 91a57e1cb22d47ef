// Package volume holds the values the rest of the driver speaks of: identifiers, logical volume names and tags,
// parameters, sizes, devices, mounts, and the errors that become answers. It has no effects and asks nothing of the
// world: pure values and functions.
package volume

import (
	"fmt"
	"strings"
	"time"
)

// Kind tells what a logical volume of ours is for. It is kept in a tag of the LV.
type Kind string

// The kinds. They are words because they are written into LVM tags and journal records, and outlive any build.
const (
	Persistent Kind = "persistent" // made by CreateVolume, removed by DeleteVolume
	Inline     Kind = "inline"     // made by NodePublishVolume of an ephemeral volume, removed by its NodeUnpublishVolume
	Snapshot   Kind = "snapshot"   // made by CreateSnapshot
	Together   Kind = "together"   // no logical volume, but the snapshots that CreateVolumeGroupSnapshot made together
	Temporary  Kind = "temporary"  // made to copy a volume from, and removed when that is done
)

// Ref names one logical volume on this node.
type Ref struct {
	VG, LV string
}

// String gives the form LVM's commands take, VG/LV.
func (r Ref) String() string { return r.VG + "/" + r.LV }

// Type is the layout of a logical volume, as the StorageClass parameter "type" names it.
type Type string

// The types; see lvmraid(7) and lvmthin(7).
const (
	Linear  Type = "linear"
	Striped Type = "striped"
	RAID1   Type = "raid1"
	RAID5   Type = "raid5"
	RAID6   Type = "raid6"
	RAID10  Type = "raid10"
	Thin    Type = "thin"
)

// Layout says how the extents of a logical volume lie on the physical volumes.
type Layout struct {
	Type        Type
	Pool        string // thin: the name of the thin pool in the same VG
	Stripes     int    // striped, raid5, raid6, raid10: data stripes, without parity; 0 elsewhere
	StripeBytes int64  // bytes per stripe and row; 0: LVM's default
	Mirrors     int    // raid1, raid10: copies beside the first; 0 elsewhere
}

// Format says which file system a volume carries. The zero Format is a block volume: no file system of ours.
type Format struct {
	FS          FS
	MkfsOptions []string
}

// FS is a file system type, by the name mount(8) knows it.
type FS string

// The file systems the driver makes.
const (
	Ext4  FS = "ext4"
	XFS   FS = "xfs"
	Btrfs FS = "btrfs"
)

// DefaultFS is made where a request names no file system.
const DefaultFS = Ext4

// Spec is a logical volume to be made.
type Spec struct {
	Ref
	// AnyVG: the request names no volume group. VG is then the default one, where a new logical volume is made; one that
	// is there already may be in another, since the default changes with the driver's flags and with what is on the node.
	AnyVG  bool
	Kind   Kind
	Name   string // the CO's name: CreateVolume's name, or the id of an inline volume
	Layout Layout
	Format Format
	AnyFS  bool   // with a source: the request names no file system; it is that of the source
	PodUID string // inline: the pod it belongs to, as kubelet tells it; may be empty

	// Origin: it is made of that logical volume of the same group, as LVM makes snapshots ("lvcreate -s"); zero: it is new
	// and empty. Of a thin origin it is one more thin volume in the pool, which shares its blocks and lives on without it. Of
	// any other it is a copy-on-write store, which depends on its origin.
	Origin      LV
	Created     time.Time   // snapshots: when
	CopyOnWrite CopyOnWrite // thick snapshots: the size of the store
	Group       Membership  // snapshots: with which others it is made; zero: alone
	Held        bool        // thin snapshots of a group: made empty, with the state Cutting, to be cut while the origins are suspended

	Source  Source  // what its content is to be; zero: nothing
	Copying bool    // the content of the source is to be copied onto it: until then its state is Copying
	Mutable Mutable // as asked for, the volume's later changes apart

	RequiredBytes int64 // at least this many bytes; 0: DefaultBytes
	LimitBytes    int64 // at most this many bytes; 0: no limit
}

// Tags gives the LVM tags the logical volume is made with.
func (s Spec) Tags(owner string) Tags {
	t := Tags{Owner: owner, Kind: s.Kind, Spec: s.canonical(), Mkfs: strings.Join(s.Format.MkfsOptions, " "), PodUID: s.PodUID, Mutable: s.Mutable.String()}
	if s.Kind == Snapshot { // what it holds is what its origin holds
		t.Spec, t.Mkfs = s.Origin.Tags.Spec, s.Origin.Tags.Mkfs
		t.Origin, t.Bytes, t.Created, t.CopyOnWrite = s.Origin.Ref.String(), s.Origin.SizeBytes, s.Created.UnixNano(), s.CopyOnWrite.String()
	}
	t.From, t.Group = s.Source.String(), s.Group.String()
	if s.Held {
		t.State = Cutting
	}
	if s.Unfinished() {
		t.State = Copying
	}
	if s.Name != s.LV {
		t.Name = s.Name
	}
	return t
}

// LV is a logical volume as LVM reports it.
type LV struct {
	Ref
	UUID      string // LVM's own id, unique for ever; "xxxxxx-xxxx-xxxx-xxxx-xxxx-xxxx-xxxxxx"
	SizeBytes int64
	Type      Type   // "" where LVM's segment type is none of ours
	Pool      string // thin: its pool
	Origin    string // of a snapshot, or of a thin volume made from another: that one's name; "" where it is no more
	ThinID    int64  // thin: the number of its device in the pool's own metadata; 0: it is no thin volume
	Tags      Tags
	Partial   bool // a physical volume it lies on is missing
}

// Group is a volume group as LVM reports it.
type Group struct {
	Name        string
	UUID        string
	ExtentBytes int64
	SizeBytes   int64 // all extents
	FreeBytes   int64 // unallocated extents
	PVs         []PV  // the physical volumes
	Pools       []Pool
	MissingPVs  int // physical volumes LVM cannot find; the group is partial when it is not 0
}

// PV is a physical volume of a group.
type PV struct {
	Device      string // its path
	SizeBytes   int64
	FreeBytes   int64
	Allocatable bool // pvchange -x
}

// Pool is a thin pool of a group.
type Pool struct {
	Name         string
	SizeBytes    int64 // its data
	VirtualBytes int64 // the sum of the sizes of all thin volumes in it, ours or not
}

// Device is the device-mapper device of an active logical volume, as the kernel shows it.
type Device struct {
	Major, Minor uint32
	Path         string // a device node that exists, /dev/dm-N
	SizeBytes    int64
	Open         int  // how often it is open; a mounted file system counts as one
	Suspended    bool // it, or a device that it lies on: each access would hang
	ReadOnly     bool
}

// Same reports whether a mount's file system lies on the device, or a mounted device node is its node.
func (d Device) Same(m Mount) bool { return d.Major == m.Major && d.Minor == m.Minor }

// String names the device as the kernel does, path and major:minor.
func (d Device) String() string { return fmt.Sprintf("%s (%d:%d)", d.Path, d.Major, d.Minor) }

// Mount is one row of the mount table of this mount namespace (proc_pid_mountinfo(5)).
type Mount struct {
	Target string // where, all symbolic links resolved
	// Major and Minor identify what is mounted: the device of a file system, or, where a device node is bind-mounted
	// as a block volume, the device that this node stands for.
	Major, Minor uint32
	Block        bool   // a bind-mounted device node, not a file system
	Root         string // the folder of the file system that is visible at Target, "/" for all of it
	FS           string // the type of the file system
	ReadOnly     bool   // this mount, or the whole file system, is read-only
	// Forced: the file system refuses writes although this mount was not made read-only. The driver makes single mounts
	// read-only, never the file system below them, so the kernel did that, or somebody by hand.
	Forced  bool
	Options []string
	// Place is the same for all appearances of a mount that the kernel shows at several paths, because what it lies on is
	// shared between them (mount_namespaces(7), SHARED SUBTREES): to unmount one unmounts all. "": it appears here only.
	Place string
}

// StagedDevice is the file in the staging folder at which a staged block volume shows its device. It is what tells a
// staged block volume from one that is not. An unstage removes a file of this name if it is empty, so it is one that
// nobody else gives to a file.
const StagedDevice = "csi-local-lvm-device"

// MountOptions say how a volume becomes visible at a path.
type MountOptions struct {
	FS       FS       // the file system to mount; unused for binds
	Flags    []string // mount options as mount(8) writes them: "noatime", "nodev", "discard", ...
	ReadOnly bool     // besides what Flags say
}

// Content is what a device holds.
type Content struct {
	// Blank is true only where every prober looked and found nothing, and the first 4 KiB are zero, as lvcreate
	// leaves them. A question that failed is an error, never blank.
	Blank bool
	FS    string // the type of the file system found, or of another signature ("LVM2_member", "crypto_LUKS", "dos", ...)
	// Head is the file system whose superblock stands at the beginning, where probers find something else besides. That may be
	// old: a volume that was expanded may end where another one ended, which had a signature there.
	Head FS
	// Unfinished is true for a file system whose mkfs was interrupted and says so itself (the XFS in-progress mark).
	Unfinished bool
}

// Holder is somebody that keeps a volume busy.
type Holder struct {
	PID       int    // 0: not a process
	Command   string // the name of the process, or what else holds it: "loop device /dev/loop3", "device dm-7 (vg-guest)", "mount at /mnt/x"
	Via       string // how: "open file /x/y", "working directory", "mapped file", "mount in another namespace", ...
	Container string // the container's id, where the cgroup path tells it
	Pod       string // the pod's uid, where the cgroup path tells it
}

// String gives the holder as an error message shows it.
func (h Holder) String() string {
	s := h.Command
	if h.PID != 0 {
		s = fmt.Sprintf("pid %d (%s)", h.PID, h.Command)
	}
	if h.Via != "" {
		s += ", " + h.Via
	}
	if h.Pod != "" {
		s += ", pod " + h.Pod
	}
	if h.Container != "" {
		s += ", container " + h.Container
	}
	return Printable(s) // what a process calls itself is its own choice
}

// Usage is what statfs(2) and the block device tell of a published volume.
type Usage struct {
	Bytes, UsedBytes, AvailableBytes    int64
	Inodes, UsedInodes, AvailableInodes int64 // 0 for block volumes, and where a file system has no such bound
}

// Redundant reports whether the layout bears the loss of a disk.
func (t Type) Redundant() bool {
	switch t {
	case RAID1, RAID5, RAID6, RAID10:
		return true
	}
	return false
}
