// Package wait waits for conditions.
package wait

import (
	"fmt"
	"time"
)

// For asks again and again until the answer is no error, and gives the last one when the time is over.
func For(bound time.Duration, ask func() error) error {
	deadline := time.Now().Add(bound)
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", bound, err)
		}
		time.Sleep(250 * time.Millisecond)
	}
}
