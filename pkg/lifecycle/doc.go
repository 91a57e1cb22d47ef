// Package lifecycle carries the verbs of a volume's life on a node, and owns their order: the intent is made durable,
// then come the effects, and the intent is forgotten last. Facts are observed, never stored.
//
// There are two bodies. Ensure brings a volume to where the CO wants it: the logical volume, its file system, its
// mount. Reclaim takes it away: unmount, remove the target, remove the logical volume of an inline volume, forget.
// Reclaim has three entrances, an unpublish or unstage, a publish that failed and is rolled back, and the retry of what
// an earlier one left; each step finds its work done, does it, or stops with an error that names the step.
//
// The caller holds the lock of the volume (pkg/keylock) for every verb; the retries take it themselves.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/keylock"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Config is what a Lifecycle is made of.
type Config struct {
	Owner   string // the driver's name, as in the owner tag
	Node    string // as volume.ShortNode gives it
	LVM     LVM
	Mounts  Mounts
	Paths   Paths
	FS      Filesystems
	Copier  Copier
	Cgroups Cgroups
	Journal *journal.Store
	Locks   *keylock.Locks
	Timing  Timing

	// For Blocks. Scratch opens a place for a long list.
	Thin    ThinMetadata
	Scratch func(context.Context) (Scratch, error)
	// RequireAttach: a volume is staged and published only while it is attached to NodeName, this node's node_id.
	RequireAttach bool
	NodeName      string
	MaxAttached   int64 // at most so many are attached at a time; 0: no bound

	// For the reaper (reap.go).
	Inventory  Inventory
	KubeletDir string
	Orphans    OrphanPolicy
	// Log is told of teardowns that begin to be late, and of their end. Nil: nobody is told.
	Log    func(msg string, keysAndValues ...any)
	Counts Counts
}

// Timing are the waits of the lifecycle. The zero value of each is its default.
type Timing struct {
	// BusyWait bounds how long a verb waits for a volume that is in use before it answers so: udev and blkid hold a
	// device for a moment, and a container's last process may be ending. Default 2 s.
	BusyWait time.Duration
	// FirstRetry is the wait before the first try to finish an unfinished teardown; it doubles with each. Default 500 ms.
	FirstRetry time.Duration
	// BusyRetry bounds the wait between tries while a volume is in use: a try is one umount(2). Default 5 s.
	BusyRetry time.Duration
	// FailedRetry bounds the wait between tries after anything else. Default 1 min.
	FailedRetry time.Duration
	// CreateGrace is how long the CO may take to repeat a CreateVolume that was cut off, before what is left of it is
	// removed. Default 10 min, twice the longest back-off of external-provisioner.
	CreateGrace time.Duration
	// OrphanGrace is how long all evidence must hold before an orphan is removed. Default 10 min.
	OrphanGrace time.Duration
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.BusyWait, 2*time.Second)
	def(&t.FirstRetry, 500*time.Millisecond)
	def(&t.BusyRetry, 5*time.Second)
	def(&t.FailedRetry, time.Minute)
	def(&t.CreateGrace, 10*time.Minute)
	def(&t.OrphanGrace, 10*time.Minute)
	return t
}

// Lifecycle carries out the verbs. It is safe for concurrent use.
type Lifecycle struct {
	Config
	retries retries
	pools   pools
	keepers keepers
	reaper  reaper
	copies  copies
}

// New returns a Lifecycle. Nothing happens before Start.
func New(c Config) *Lifecycle {
	c.Timing = c.Timing.withDefaults()
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	return &Lifecycle{
		Config: c, retries: retries{late: map[string]*late{}},
		keepers: newKeepers(), reaper: reaper{orphans: map[string]*orphan{}},
	}
}

// Volume names one volume in a node call. Of an inline volume the VG may be unknown (""), it is then looked for.
type Volume struct {
	ID   string
	Kind volume.Kind
	volume.Ref
}

// device gives the device of the logical volume; active is false where it surely has none. An error where it is suspended:
// whoever touched it then would hang.
func (l *Lifecycle) device(ctx context.Context, r volume.Ref) (d volume.Device, active bool, err error) {
	if r.VG == "" { // an inline volume that is in no volume group
		return volume.Device{}, false, nil
	}
	d, err = l.LVM.Device(ctx, r)
	if errors.Is(err, volume.ErrNotFound) {
		return volume.Device{}, false, nil
	}
	if err == nil && d.Suspended {
		err = l.suspended(r, d)
	}
	return d, err == nil, err
}

// activeDevice gives the device, and makes it where the logical volume is inactive (after a reboot, or a vgchange -an).
func (l *Lifecycle) activeDevice(ctx context.Context, r volume.Ref) (volume.Device, error) {
	d, active, err := l.device(ctx, r)
	if err != nil || active {
		return d, err
	}
	if err := l.LVM.Activate(ctx, r); err != nil {
		return volume.Device{}, fmt.Errorf("activate logical volume %s: %w", r, err)
	}
	return l.LVM.Device(ctx, r)
}

// mountsAt gives the mounts at the path, the topmost last.
func mountsAt(table []volume.Mount, path string) []volume.Mount {
	var out []volume.Mount
	for _, m := range table {
		if m.Target == path {
			out = append(out, m)
		}
	}
	return out
}

// mountTable gives the mount table.
func (l *Lifecycle) mountTable(ctx context.Context) ([]volume.Mount, error) {
	table, err := l.Mounts.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return table, nil
}

// mountedAt gives where the whole of a logical volume is mounted; nowhere where it is inactive.
func (l *Lifecycle) mountedAt(ctx context.Context, r volume.Ref) ([]string, error) {
	d, active, err := l.device(ctx, r)
	if err != nil || !active {
		return nil, err
	}
	table, err := l.mountTable(ctx)
	return elsewhere(table, d), err
}

// elsewhere gives where the whole of the device is mounted apart from the given paths. Mounts of a folder within it (a
// container's subPath) do not count: they are parts of a publication, not one of their own. Nor do those that go together
// with one at the given paths.
func elsewhere(table []volume.Mount, d volume.Device, but ...string) []string {
	same := func(m volume.Mount) bool { return d.Same(m) && (m.Block || m.Root == "/") }
	places := map[string]bool{}
	for _, m := range table {
		if same(m) && m.Place != "" && slices.Contains(but, m.Target) {
			places[m.Place] = true
		}
	}
	var out []string
	for _, m := range table {
		if same(m) && !places[m.Place] && !slices.Contains(but, m.Target) {
			out = append(out, m.Target)
		}
	}
	return out
}

// poll calls try until it reports done, the time is over, or ctx ends; the last answer of try is its result.
func poll(ctx context.Context, bound time.Duration, try func() (done bool, err error)) error {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		done, err := try()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-timer.C:
			return err
		case <-time.After(wait):
		}
	}
}

// inUse makes the error of a volume that is busy, with its holders by name. what says what was not possible.
func (l *Lifecycle) inUse(ctx context.Context, what string, d volume.Device, target string) error {
	const named = 5
	holders, err := l.Mounts.Holders(ctx, d, target)
	if l.Counts.InUse != nil {
		l.Counts.InUse(holders)
	}
	var who []string
	for i, h := range holders {
		if i == named {
			who = append(who, fmt.Sprintf("and %d more", len(holders)-named))
			break
		}
		who = append(who, h.String())
	}
	switch {
	case len(who) != 0:
		return fmt.Errorf("%s: %w by %s", what, volume.ErrBusy, strings.Join(who, "; "))
	case err != nil:
		return fmt.Errorf("%s: %w; the holders could not be found: %v", what, volume.ErrBusy, err) //nolint:errorlint // the fault of the search is not the answer
	default:
		return fmt.Errorf("%s: %w; no holder was found in /proc", what, volume.ErrBusy)
	}
}

// retries is what is known of unfinished work, in memory only: the journal has the work itself.
type retries struct {
	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
	late    map[string]*late // by volume id
}
