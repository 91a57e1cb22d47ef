// Package effect is the one seam through which the driver changes the world outside its memory: a program that is
// run, a mount, an unmount, a file or folder made, renamed, synced or removed, an ioctl that changes something.
//
// In production the seam only calls through. Tests put a function there that counts the effects, makes one of them
// fail, or kills the process before or after it, and so sweep every point at which the driver can be interrupted.
package effect

import "context"

// Effect names one change of the outside world, for tests and logs.
type Effect struct {
	Op     string // what kind: "run", "mount", "unmount", "mkdir", "remove", "rename", "fsync", ...
	Detail string // on what: a path, or the program with its arguments; never a secret
}

// Seam runs do, which carries e out. It may refuse (return an error without calling do) or add to it.
// A Seam must be safe for use by several goroutines.
type Seam func(ctx context.Context, e Effect, do func() error) error

// Do carries out an effect through the seam; a nil seam calls do.
func (s Seam) Do(ctx context.Context, op, detail string, do func() error) error {
	if s == nil {
		return do()
	}
	return s(ctx, Effect{Op: op, Detail: detail}, do)
}
