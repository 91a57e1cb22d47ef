package driver

import (
	"os"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/copy"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lvm"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/mount"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Real gives the LVM and the kernel of this machine. effects is passed by every change they make; nil in production.
// Nothing is run before the first question. The program must run Guard where it is called with GuardCommand.
func Real(cfg Config, effects effect.Seam) (Backend, error) {
	prefix, err := execPrefix(cfg.LVMExec, os.Getpid())
	if err != nil {
		return Backend{}, err
	}
	rate, err := cfg.copyRate()
	if err != nil {
		return Backend{}, err
	}
	watch := &run.Watch{}
	groups, err := lvm.New(&run.Local{Prefix: prefix, Effects: effects, Watch: watch}, lvm.Config{
		Owner: cfg.DriverName, VolumeGroups: cfg.VolumeGroups, ThinOvercommit: cfg.ThinOvercommit, Effects: effects,
		Guard: []string{"/proc/self/exe", GuardCommand},
	})
	if err != nil {
		return Backend{}, err
	}
	// mkfs, blkid and the programs that grow file systems run in the driver's own image in any case: they need the device
	// node only, and their versions are those that the driver was tested with.
	host := mount.New(&run.Local{Effects: effects, Watch: watch}, effects)
	copier := copy.New(copy.Config{Effects: effects, Unwritten: groups.Unwritten, BytesPerSecond: rate})
	return Backend{LVM: groups, Mounts: host, Paths: host, Filesystems: host, Copier: copier, Cgroups: host, Programs: watch}, nil
}

// GuardCommand is the argument with which the driver starts its own program once more, beside itself, while it holds volumes for the
// snapshots of a group.
const GuardCommand = "guard"

// Guard is what that does: see lvm.Guard.
func Guard() error { return lvm.Guard(os.Stdin, os.Stdout) }

// execPrefix is what goes before LVM's argument vectors. For ExecHost that is nsenter(1) into three namespaces of
// process 1, which must be the host's (hostPID in the pod):
//
//   - mount: the host's own lvm and lvm.conf, its /dev, and its locks below /run/lock/lvm, shared with whoever else
//     runs LVM there;
//   - IPC: udev's cookies are System V semaphores (libdm), and the host's udev must find them;
//   - UTS: where system_id_source is "uname", the host's name decides which groups are its own (lvmsystemid(7)).
//
// Not the PID namespace: to enter it nsenter would have to fork, and the process that is waited for would not be LVM's.
// Not the network: LVM uses none. Not the cgroup: what the driver runs is accounted to its pod.
func execPrefix(mode string, pid int) ([]string, error) {
	switch {
	case mode != ExecHost:
		return nil, nil
	case pid == 1:
		return nil, volume.Invalid("--lvm-exec", mode, "the driver itself is process 1 here, so the host cannot be reached: set hostPID in the pod, or use container")
	default:
		return []string{"nsenter", "--target", "1", "--mount", "--ipc", "--uts", "--"}, nil
	}
}
