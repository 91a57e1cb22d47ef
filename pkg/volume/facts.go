package volume

// Facts is what is known of the health of a logical volume, without a word on what it means: that is for pkg/health.
type Facts struct {
	Ref Ref
	LV  LV // zero where Unknown or Gone
	// Unknown is why LVM cannot tell of the logical volume; nil: it can.
	Unknown error
	// Gone: LVM read the group well and it is not there, but a device of its name is.
	Gone bool
	DeviceFacts
}

// Hangs reports whether something below the logical volume hangs, so that whoever uses it would.
func (f DeviceFacts) Hangs() bool { return len(f.Hung) != 0 || len(f.Suspended) != 0 }

// DeviceFacts is what the kernel tells of a device-mapper device and of all that it lies on, and what came of reading
// the first block of it and of the disks below it.
type DeviceFacts struct {
	Active       bool // there is a device
	Major, Minor uint32
	Open         int    // how often it is open
	UUID         string // of device-mapper

	Suspended []string // devices that are suspended, and were so for longer than LVM needs
	Hung      []Fault  // devices that did not answer in time
	Failed    []Fault  // devices that cannot be read, or disks that have been removed
	Empty     []string // devices without a table, or whose table fails every access
	Erring    []Fault  // disks that have had errors lately

	ThinFailed bool // thin: the pool's metadata cannot tell of it
	Raids      []RaidStatus
	Pools      []PoolStatus
	Snapshots  []SnapshotStatus // thick: its own, where it is one, and those that were taken of it
}

// Fault is what is wrong with one device.
type Fault struct {
	Device string
	Disk   bool // a physical volume; else a device of LVM's
	Text   string
}

// RaidStatus is the status of a RAID device (Documentation/admin-guide/device-mapper/dm-raid).
type RaidStatus struct {
	Device     string
	Type       string // "raid1", "raid5_ls", ...
	Legs       string // a character for each: A is in sync, a is not yet, D has failed, - is not there
	Synced     int64  // of Total sectors
	Total      int64
	Action     string // idle, frozen, resync, recover, check, repair, reshape
	Mismatches int64  // found by the last check
}

// PoolStatus is the status of a thin pool (Documentation/admin-guide/device-mapper/thin-provisioning).
type PoolStatus struct {
	Device                 string
	Failed                 bool // all access fails; nothing else is told
	ReadOnly               bool // its metadata cannot be changed
	OutOfSpace             bool // a write has met that no data block is free
	NeedsCheck             bool
	UsedData, Data         int64 // blocks
	UsedMetadata, Metadata int64
}

// SnapshotStatus is the status of a thick snapshot (Documentation/admin-guide/device-mapper/snapshot).
type SnapshotStatus struct {
	Device      string
	Lost        string // why it is lost: "Invalid", "Overflow", "Merge failed"; "": it is not
	Used, Total int64  // sectors
}

// FilesystemFacts is what a mounted file system tells of itself.
type FilesystemFacts struct {
	Mount    Mount
	ReadOnly bool   // it refuses writes, although it was mounted writable
	Hung     bool   // its root folder cannot be opened in time
	ShutDown string // why its root folder cannot be opened; "": it can
	Errors   int64  // recorded on the disk
	Damages  int64  // of these, blocks whose checksum or generation was wrong
	Usage    Usage  // zero where it cannot be told
}

// StorageFacts is what is known of the health of the driver's volume groups.
type StorageFacts struct {
	Unknown error    // why LVM cannot tell of the groups; Groups are as known last
	Missing []string // groups that the driver is to use and that are not there
	Groups  []GroupFacts
}

// GroupFacts is what is known of a volume group: of its disks, its thin pools and its thick snapshots.
type GroupFacts struct {
	Group   Group
	Devices DeviceFacts
}
