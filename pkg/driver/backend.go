package driver

import (
	"context"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/adopt"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Backend is the outside world of a driver: LVM and the kernel, or a machine in memory that stands for them.
type Backend struct {
	LVM         LVM
	Mounts      Mounts
	Paths       lifecycle.Paths
	Filesystems Filesystems
	Copier      lifecycle.Copier
	Cgroups     lifecycle.Cgroups
	Programs    *run.Watch // the programs that it runs; nil: none are
}

// LVM is what the parts of the driver ask of LVM, all together.
type LVM interface {
	lifecycle.LVM
	lifecycle.ThinMetadata
	adopt.LVM
	// List gives all logical volumes with our owner tag in our groups, by group and name.
	List(ctx context.Context) ([]volume.LV, error)
	// Groups gives the groups of --volume-groups that are there, in the order of its patterns, then by name.
	Groups(ctx context.Context) ([]volume.Group, error)
	// VolumeFacts, Look and StorageFacts: see health.LVM.
	VolumeFacts(ctx context.Context, r volume.Ref) (volume.Facts, error)
	Look() func(ctx context.Context, r volume.Ref) (volume.Facts, error)
	StorageFacts(ctx context.Context) volume.StorageFacts
	// Check is nil where LVM answers and at least one group is there and whole.
	Check(ctx context.Context) error
}

// Mounts is what the parts of the driver ask of the mount table and of what is mounted, all together.
type Mounts interface {
	lifecycle.Mounts
	health.Host
}

// Filesystems is what the parts of the driver ask of file systems, all together.
type Filesystems interface {
	lifecycle.Filesystems
	// Usage tells how full what is visible at a path is; no program is run.
	Usage(ctx context.Context, path string, block bool) (volume.Usage, error)
}
