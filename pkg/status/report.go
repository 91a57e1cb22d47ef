// Package status is the one place that lays side by side what is known of the driver's storage on a node: what LVM holds, what the
// kernel shows, what the journal intends, and what the running driver is at. What shows it (the commands status and doctor, the
// metrics, the debug page) asks nothing of its own.
package status

import (
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Report is what was found out at one moment. Its JSON form is an interface: fields are added, none is renamed.
type Report struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"` // as in volume ids
	Owner  string    `json:"driverName"`
	Driver *Live     `json:"driver,omitempty"` // what the running driver tells; nil: none answers
	// DriverUnknown is why it is not known whether a driver runs; "": it is known.
	DriverUnknown string      `json:"driverUnknown,omitempty"`
	Groups        []Group     `json:"volumeGroups"`
	Storage       []Condition `json:"storageConditions,omitempty"`
	Volumes       []Volume    `json:"volumes"` // of all kinds, by group and name
	Pending       []Pending   `json:"pending,omitempty"`
	// Problems are files of the journal that cannot be used; each stops its volume.
	Problems []string `json:"journalProblems,omitempty"`
	// Unknown are questions that failed, a sentence each: what they would have told is missing above, and is not "nothing".
	Unknown []string `json:"unknown,omitempty"`

	Mounts []volume.Mount `json:"-"` // the mount table
}

// MountsByDevice gives the mount table by device, as Number names it.
func (r *Report) MountsByDevice() map[string][]volume.Mount {
	out := map[string][]volume.Mount{}
	for _, m := range r.Mounts {
		d := Number(m.Major, m.Minor)
		out[d] = append(out[d], m)
	}
	return out
}

// Group is a volume group.
type Group struct {
	Name      string `json:"name"`
	SizeBytes int64  `json:"sizeBytes"`
	FreeBytes int64  `json:"freeBytes"`
	Disks     int    `json:"disks"`
	Missing   int    `json:"missingDisks,omitempty"`
	Pools     []Pool `json:"thinPools,omitempty"`
}

// Pool is a thin pool. How full it is the kernel tells, and only where the pool is active.
type Pool struct {
	Name         string   `json:"name"`
	SizeBytes    int64    `json:"sizeBytes"`
	VirtualBytes int64    `json:"virtualBytes"`           // the sizes of its volumes, all together
	Data         *float64 `json:"dataUsed,omitempty"`     // from 0 to 1; nil: not known
	Metadata     *float64 `json:"metadataUsed,omitempty"` // from 0 to 1; nil: not known
}

// Condition is something adverse, as pkg/health tells it.
type Condition struct {
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Boundary is how far a volume has come on this node.
type Boundary string

// The boundaries, in the order of a volume's life.
const (
	Creating    Boundary = "creating"    // nobody was given it yet: it is made, or copied onto
	Provisioned Boundary = "provisioned" // it is there, and mounted nowhere
	Staged      Boundary = "staged"
	Published   Boundary = "published"
	InTeardown  Boundary = "in teardown"
)

// Volume is one logical volume of the driver.
type Volume struct {
	ID        string      `json:"id"`
	Name      string      `json:"name"` // the CO's
	Kind      volume.Kind `json:"kind"`
	VG        string      `json:"vg"`
	LV        string      `json:"lv"`
	UUID      string      `json:"uuid"`
	SizeBytes int64       `json:"sizeBytes"`
	Type      string      `json:"type"`
	Pool      string      `json:"thinPool,omitempty"`
	Origin    string      `json:"origin,omitempty"`
	State     string      `json:"state,omitempty"` // why it is not whole: volume.Copying or volume.Cutting
	Partial   bool        `json:"partial,omitempty"`
	PodUID    string      `json:"podUID,omitempty"`   // inline: as recorded with it
	Attached  string      `json:"attached,omitempty"` // the node that it is recorded to be published to

	Boundary  Boundary `json:"boundary"`
	Active    bool     `json:"active"`
	Device    string   `json:"device,omitempty"` // major:minor
	Open      int      `json:"open,omitempty"`
	Suspended bool     `json:"suspended,omitempty"`
	FS        string   `json:"fs,omitempty"` // as mounted
	UsedBytes *int64   `json:"usedBytes,omitempty"`
	FSBytes   *int64   `json:"fsBytes,omitempty"`
	Mounts    []Mount  `json:"mounts,omitempty"`

	Sync       *Sync       `json:"sync,omitempty"` // nil: nothing of it is brought in step
	Conditions []Condition `json:"conditions,omitempty"`
	Unknown    string      `json:"unknown,omitempty"` // why its health could not be found out
}

// Sync is how far the kernel has brought the legs of a RAID volume in step, or has checked them.
type Sync struct {
	Action string  `json:"action"` // resync, recover, check, repair, reshape; idle and frozen: it waits
	Done   float64 `json:"done"`   // from 0 to 1
}

// Ref is its logical volume.
func (v Volume) Ref() volume.Ref { return volume.Ref{VG: v.VG, LV: v.LV} }

// Role says what a mount of a volume is for.
type Role string

// The roles, told by where kubelet keeps what.
const (
	StagingRole Role = "staging"
	TargetRole  Role = "target"
	KubeletRole Role = "kubelet" // kubelet's own: a subPath of a container, or the map of a block device
	OtherRole   Role = "other"
)

// Mount is one place where a volume is mounted in this mount namespace.
type Mount struct {
	Path     string `json:"path"`
	Role     Role   `json:"role"`
	PodUID   string `json:"podUID,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Pending is something that the journal intends. An inline volume in use is no such thing.
type Pending struct {
	VolumeID string         `json:"volumeID"`
	Kind     volume.Kind    `json:"kind"`
	VG       string         `json:"vg"`
	LV       string         `json:"lv"`
	Intent   journal.Intent `json:"intent"`
	Paths    []string       `json:"paths,omitempty"`
	Since    time.Time      `json:"since"`
	Holders  []string       `json:"holders,omitempty"` // who keeps it in use, where somebody was found
	// What the running driver tells.
	Tries int        `json:"tries,omitempty"`
	Next  *time.Time `json:"nextTry,omitempty"`
	Error string     `json:"error,omitempty"` // of the last try
	Busy  bool       `json:"busy,omitempty"`  // only in use: waiting will end it
}

// Ref is its logical volume.
func (p Pending) Ref() volume.Ref { return volume.Ref{VG: p.VG, LV: p.LV} }

// Live is what only the running driver knows: it is in its memory, and what it means after a restart is made up anew.
type Live struct {
	Version      string    `json:"version"`
	PID          int       `json:"pid"`
	Since        time.Time `json:"since"`
	NodeName     string    `json:"nodeName"`
	DriverName   string    `json:"driverName"`
	VolumeGroups []string  `json:"volumeGroups"`
	KubeletDir   string    `json:"kubeletDir"`
	LVMExec      string    `json:"lvmExec"`
	NotReady     string    `json:"notReady,omitempty"` // why it cannot do its work now

	Copies     []Copy       `json:"copies,omitempty"`
	Programs   []Program    `json:"programs,omitempty"`
	Unfinished []Unfinished `json:"unfinished,omitempty"`
	Orphans    []Orphan     `json:"orphans,omitempty"`
}

// Copy is a copy under way.
type Copy struct {
	From    string    `json:"from"`
	To      string    `json:"to"`
	Done    int64     `json:"doneBytes"`
	Of      int64     `json:"ofBytes"` // 0: it waits for its turn
	Started time.Time `json:"started"`
}

// Program is one that the driver runs now and that changes something, as mkfs or lvcreate does. How far it has come nobody tells.
type Program struct {
	Argv    []string  `json:"argv"`
	Started time.Time `json:"started"`
}

// Unfinished is what the driver has tried without success, and tries again.
type Unfinished struct {
	VolumeID string     `json:"volumeID"`
	Tries    int        `json:"tries"`
	Since    time.Time  `json:"since"`
	Next     *time.Time `json:"nextTry,omitempty"`
	Error    string     `json:"error,omitempty"`
	Busy     bool       `json:"busy,omitempty"`
}

// Orphan is an inline volume whose pod is surely gone and that nothing uses.
type Orphan struct {
	VolumeID string    `json:"volumeID"`
	Since    time.Time `json:"since"`
	Kept     bool      `json:"kept,omitempty"` // it is reported, and not removed
}

// conditions makes plain words of what pkg/health tells.
func conditions(all []health.Condition) (out []Condition) {
	for _, c := range all {
		out = append(out, Condition{c.Status.String(), string(c.Reason), c.Message})
	}
	return out
}
