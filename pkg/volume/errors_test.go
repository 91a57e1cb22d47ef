package volume

import (
	"errors"
	"fmt"
	"testing"
)

func TestNotOurs(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{{nil, false}, {ErrNotFound, true}, {fmt.Errorf("x: %w", ErrPrecondition), true}, {ErrBusy, false}, {errors.New("LVM failed"), false}} {
		if got := NotOurs(c.err); got != c.want {
			t.Errorf("%v: %t", c.err, got)
		}
	}
}
