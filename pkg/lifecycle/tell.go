package lifecycle

import (
	"cmp"
	"slices"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Counts is told of what happens, by whom it is counted. A nil field is told of nothing. It must not wait.
type Counts struct {
	OrphanRemoved func()
	InUse         func(found []volume.Holder) // a volume was in use longer than a call waits: who was found to use it
}

// Unfinished is what the driver has tried without success, and tries again by itself.
type Unfinished struct {
	VolumeID string
	Tries    int
	Since    time.Time
	Next     time.Time // zero: there is no next try
	Cause    string    // of the last failure
	Busy     bool      // only in use: waiting will end it
}

// Unfinished gives what is unfinished, by volume id. It does not wait for the disk.
func (l *Lifecycle) Unfinished() []Unfinished {
	l.retries.mu.Lock()
	defer l.retries.mu.Unlock()
	var out []Unfinished
	for id, e := range l.retries.late {
		if e.tries != 0 {
			out = append(out, Unfinished{VolumeID: id, Tries: e.tries, Since: e.since, Next: e.next, Cause: e.cause, Busy: e.busy})
		}
	}
	slices.SortFunc(out, func(a, b Unfinished) int { return cmp.Compare(a.VolumeID, b.VolumeID) })
	return out
}

// Orphan is an inline volume whose pod is surely gone and that nothing uses.
type Orphan struct {
	VolumeID string
	Since    time.Time
	Reported bool // it is kept
}

// KnownOrphans gives the orphans that are known, by volume id. They are removed when their time is over.
func (l *Lifecycle) KnownOrphans() []Orphan {
	l.reaper.mu.Lock()
	defer l.reaper.mu.Unlock()
	var out []Orphan
	for id, o := range l.reaper.orphans {
		out = append(out, Orphan{VolumeID: id, Since: o.since, Reported: o.reported})
	}
	slices.SortFunc(out, func(a, b Orphan) int { return cmp.Compare(a.VolumeID, b.VolumeID) })
	return out
}
