package contract

import (
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Harness is a machine with a volume group, a thin pool, kubelet's folders, and at most one driver that serves CSI on a
// unix socket. Tests of the whole driver are written against it, and run over the machine in memory with the driver
// in this process, and over a real machine with the driver as a process of its own.
//
// Methods with a t fail the test when they cannot do what they say. What was made through a Harness is undone at the end of
// the test that made it.
type Harness interface {
	DriverProcess
	Machine
}

// DriverProcess is the driver, to be started and ended.
type DriverProcess interface {
	// Start starts the driver, and returns when Probe says that it is ready. None must be running.
	Start(t *testing.T)
	// Stop ends the driver as SIGTERM does, and returns when it has ended.
	Stop(t *testing.T)
	// Kill ends the driver as SIGKILL does: from now on it changes nothing, its calls are cut off, its lock is free and
	// its socket is left behind. A program it was running goes on by itself.
	Kill(t *testing.T)
	// Running reports whether a driver runs; false too after a Fault has killed it.
	Running() bool
	// Orphans sets how drivers that are started from now on treat orphans; otherwise they are removed after ten minutes.
	Orphans(policy string, grace time.Duration)
	// Attach sets whether drivers that are started from now on have --attach.
	Attach(on bool)

	// ExpandOn sets which call of drivers that are started from now on makes volumes larger: "controller", or "node".
	ExpandOn(where string)

	// The clients of the running driver. A call that is cut off by a kill ends with Unavailable or Canceled.
	Identity() csi.IdentityClient
	Controller() csi.ControllerClient
	Node() csi.NodeClient
	Group() csi.GroupControllerClient
	SnapshotMetadata() csi.SnapshotMetadataClient

	// Arm sets what the running driver meets; the zero Fault disarms it. Effects are counted from here on.
	Arm(t *testing.T, f Fault)
	// Effects gives the effects that the driver has begun since Arm, or its start; also after its end.
	Effects(t *testing.T) []effect.Effect
	// Block makes each effect of that name wait until release is called: an effect's Op ("unmount"), or the program it
	// runs ("lvcreate", "mkfs.ext4"). entered gets a message for each that has come to it.
	Block(t *testing.T, name string) (entered <-chan struct{}, release func())
	// Commands counts the programs that drivers have run on this machine, by name; for "lvm lvcreate" that is lvcreate.
	Commands(t *testing.T) map[string]int
}

// Fault is what happens to the driver at one of its effects.
type Fault struct {
	N     int // at the N-th effect after Arm, counted from 1; 0: at none
	Do    FaultKind
	Errno syscall.Errno // what an effect that fails meets; 0: EIO
	// Each is for faults that last: each effect until it is disarmed that has one of these names (EffectName, with blanks
	// between), or is on a path in this folder.
	Each string
}

// FaultKind says what happens.
type FaultKind string

// The faults. A kill leaves what a SIGKILL at that moment leaves.
const (
	KillBefore FaultKind = "kill before" // the effect does not happen
	KillAfter  FaultKind = "kill after"  // it has happened, and the driver does not learn it
	PanicAt    FaultKind = "panic at"    // it does not happen, and the driver's code panics
	FailBefore FaultKind = "fail before" // it does not happen, and the driver gets an error
	// FailAfter: it happens, and the driver gets an error. Only programs and fsync(2) can do that; other system calls are
	// done or not, and meet nothing.
	FailAfter FaultKind = "fail after"
)

// Machine is the machine, as its administrator, kubelet and the containers use it. It lives on when the driver ends.
type Machine interface {
	// NodeName, VG and Pool are the names the driver was configured with, and of what was made for it.
	NodeName() string
	VG() string
	Pool() string
	// Target gives the target path for a pod of that name, in a folder that kubelet has made; there is nothing at the path.
	Target(t *testing.T, pod string) string
	// Staging gives the staging path of a volume: an empty folder, as kubelet makes it.
	Staging(t *testing.T, volumeName string) string

	// World describes all that outlives a call, a line each: logical volumes, devices, mounts, kubelet's folders and
	// files, and the journal. What differs from run to run, such as times and numbers of devices, is left out.
	World(t *testing.T) string
	// Mounts gives the mounts at a path, the topmost last.
	Mounts(t *testing.T, path string) []volume.Mount
	// Bind and Unmount mount and unmount by hand. The target of a bind is made.
	Bind(t *testing.T, source, target string)
	Unmount(t *testing.T, path string)
	// RemountReadOnly makes the file system mounted at the path read-only as a whole, at all its mounts, as the kernel does when
	// it finds errors in it.
	RemountReadOnly(t *testing.T, path string)
	// Hold keeps the path busy until release is called; how is one of the Hold constants. With HoldNamespace the path does
	// not matter, with HoldDevice it is the target of a block volume.
	Hold(t *testing.T, how, path string) (pid int, release func())
	// Reboot ends the driver and all holders, takes all mounts away, and leaves the logical volumes active or not.
	Reboot(t *testing.T, active bool)

	Mkdir(t *testing.T, path string)
	WriteFile(path, content string) error
	ReadFile(path string) (string, error)
	Symlink(t *testing.T, to, path string)
	Remove(t *testing.T, path string)
	Lstat(t *testing.T, path string) File

	// LV asks the machine itself about a logical volume; ok is false where there is none.
	LV(t *testing.T, r volume.Ref) (f LVMFacts, ok bool)
	// Adopt takes a logical volume over as "csi-local-lvm adopt" does, beside the driver, and gives the manifest; Release gives it
	// back. block: as a block volume. fs: as the flag.
	Adopt(t *testing.T, r volume.Ref, block bool, fs volume.FS) (manifest string, err error)
	Release(t *testing.T, r volume.Ref) error
	// ArmAdopt says what befalls the next Adopt or Release: the command has effects of its own.
	ArmAdopt(f Fault)
	// AddPod makes the cgroup of a pod (the name of Target), as kubelet does; io: its I/O can be limited. DropPod removes it.
	// PodLimits tells how its I/O on a logical volume is limited.
	AddPod(t *testing.T, pod string, io bool)
	DropPod(t *testing.T, pod string)
	PodLimits(t *testing.T, pod string, r volume.Ref) volume.IOLimits
	// Settings gives what LVM holds of the mutable parameters, and the physical volumes it lies on, as LVMSettings does.
	Settings(t *testing.T, r volume.Ref) (m volume.Mutable, devices []string)
	// MakeLV makes a linear logical volume with these tags, active, behind the driver's back.
	MakeLV(t *testing.T, r volume.Ref, bytes int64, tags ...string)
	// SnapshotLV makes a thick snapshot of a logical volume, behind the driver's back.
	SnapshotLV(t *testing.T, origin volume.Ref, name string)
	DestroyLV(t *testing.T, r volume.Ref)
	// MakePool makes a thin pool behind the driver's back.
	MakePool(t *testing.T, name string, bytes int64)
	// Harm does one of the Harm constants to a volume that is mounted, or shown as a block volume, at the path, until mend is
	// called. Where a file system was harmed nothing may be mounted by then.
	Harm(t *testing.T, what string, r volume.Ref, path string) (mend func())
	DeactivateLV(t *testing.T, r volume.Ref)
	// HoldLV opens the device of a logical volume until release is called.
	HoldLV(t *testing.T, r volume.Ref) (release func())
	// Scribble writes a signature on the device, one of MountSignatures.
	Scribble(t *testing.T, r volume.Ref, signature string)
	// SuspendLV suspends the device of a logical volume, as a killed LVM command leaves it; IsSuspended tells.
	SuspendLV(t *testing.T, r volume.Ref)
	IsSuspended(t *testing.T, r volume.Ref) bool
	// WriteThin writes other bytes than were there before to an active thin volume, DiscardThin discards; the pool's chunks are
	// of ThinChunk bytes.
	WriteThin(t *testing.T, r volume.Ref, part volume.Range)
	DiscardThin(t *testing.T, r volume.Ref, part volume.Range)
	// HoldPool reserves the metadata snapshot of the thin pool, as an administrator does who looks at it, or releases it;
	// PoolHeld tells whether it is reserved, by whomever.
	HoldPool(t *testing.T, yes bool)
	PoolHeld(t *testing.T) bool
	// LockVG takes LVM's own lock on the volume group, as an LVM command that hangs does, until release is called.
	LockVG(t *testing.T) (release func())
	// LVMProcesses counts the LVM commands of the driver that run now.
	LVMProcesses(t *testing.T) int
	// BreakVG makes the volume group unreadable until mend is called.
	BreakVG(t *testing.T) (mend func())
	// Journal gives the folder of the driver's records, on this file system.
	Journal() string
}
