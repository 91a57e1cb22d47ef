package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// changeKey is where the context of a command has the lock that is held while something changes.
type changeKey struct{}

// begin is called before something that must be finished once it has begun, and done after it. A signal meanwhile ends the command after it, and after
// a signal nothing is begun any more. A command that ends by itself when its context does calls no done.
func begin(ctx context.Context) (done func(), err error) {
	change, ok := ctx.Value(changeKey{}).(*sync.Mutex)
	if !ok {
		return func() {}, ctx.Err()
	}
	if !change.TryLock() {
		return nil, context.Cause(ctx) // there was a signal
	}
	if ctx.Err() != nil {
		change.Unlock()
		return nil, context.Cause(ctx)
	}
	return change.Unlock, nil
}

// moment is how long a command that only looks, or asks, may take to end by itself.
const moment = 200 * time.Millisecond

// mainErr runs the command. The first signal ends one that only looks, or asks; what has begun to change something is finished before. The second one
// ends it here and now, in the middle of whatever runs, which the driver's journal is made for.
func mainErr(root *cobra.Command, signals <-chan os.Signal) error {
	var change sync.Mutex
	ctx, stop := context.WithCancelCause(context.WithValue(context.Background(), changeKey{}, &change))
	defer stop(nil)
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()

	var why error
	select {
	case err := <-ended:
		return err
	case s := <-signals:
		why = fmt.Errorf("signal: %s", s)
		stop(why)
	}
	nothingChanges := make(chan struct{})
	go func() {
		change.Lock() // for good
		close(nothingChanges)
	}()
	select {
	case err := <-ended:
		return err
	case s := <-signals:
		return fmt.Errorf("second signal (%s): ended at once, in the middle of what ran; the driver takes up at its next start what it did not finish", s)
	case <-nothingChanges:
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(moment):
		return why
	}
}
