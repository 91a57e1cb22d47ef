// Package keylock holds try-locks by key: one volume, one operation. Nobody waits; who comes second is told what runs.
package keylock

import (
	"fmt"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Locks is a set of locks by key. The zero value is ready for use.
type Locks struct {
	mu   sync.Mutex
	held map[string]holder
}

type holder struct {
	what  string
	since time.Time
}

// Try takes the lock of key for the operation that what names. It never waits: if the lock is taken, the error is a
// volume.ErrPending that names the operation that holds it. release must be called exactly once.
func (l *Locks) Try(key, what string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, taken := l.held[key]; taken {
		return nil, fmt.Errorf("%w: %s of this volume has been under way for %s; ask again when it has ended",
			volume.ErrPending, h.what, time.Since(h.since).Round(time.Millisecond))
	}
	if l.held == nil {
		l.held = map[string]holder{}
	}
	l.held[key] = holder{what, time.Now()}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, key)
	}, nil
}
