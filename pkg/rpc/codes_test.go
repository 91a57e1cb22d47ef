package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestCodeOf(t *testing.T) {
	const publish, remove = csi.Node_NodePublishVolume_FullMethodName, csi.Controller_DeleteVolume_FullMethodName
	other := errors.New("lvcreate: exit status 5")
	for _, c := range []struct {
		name   string
		method string
		err    error
		want   codes.Code
	}{
		{"nothing", publish, nil, codes.OK},
		{"field", publish, volume.Invalid("f", "v", "r"), codes.InvalidArgument},
		{"invalid", publish, volume.ErrInvalid, codes.InvalidArgument},
		{"not found", publish, volume.ErrNotFound, codes.NotFound},
		{"exists", publish, volume.ErrExists, codes.AlreadyExists},
		{"busy", publish, volume.ErrBusy, codes.Internal},
		{"busy unpublish", csi.Node_NodeUnpublishVolume_FullMethodName, volume.ErrBusy, codes.Aborted},
		{"busy delete", remove, volume.ErrBusy, codes.FailedPrecondition},
		{"busy delete as the controller says it", remove, fmt.Errorf("%w: %w", volume.ErrPrecondition, volume.ErrBusy), codes.FailedPrecondition},
		{"delete of a locked volume", remove, volume.ErrPending, codes.Aborted},
		{"pending", publish, volume.ErrPending, codes.Aborted},
		{"precondition", publish, volume.ErrPrecondition, codes.FailedPrecondition},
		{"no space", publish, volume.ErrNoSpace, codes.ResourceExhausted},
		{"out of range", publish, volume.ErrOutOfRange, codes.OutOfRange},
		{"token", csi.Controller_ListVolumes_FullMethodName, volume.ErrToken, codes.Aborted},
		{"deadline", publish, context.DeadlineExceeded, codes.DeadlineExceeded},
		{"canceled", publish, context.Canceled, codes.Canceled},
		{"not served", publish, errNotServed, codes.Unimplemented},
		{"generated", publish, status.Error(codes.Unimplemented, "no such method"), codes.Unimplemented},
		{"panic", publish, errPanic, codes.Internal},
		{"anything else", publish, other, codes.Internal},

		{"pending undo wins over no space", publish, errors.Join(volume.ErrNoSpace, volume.ErrPending), codes.Aborted},
		{"pending undo wins over bad input", publish, errors.Join(volume.Invalid("f", "v", "r"), volume.ErrPending), codes.Aborted},
		{"busy teardown wins over an internal error", csi.Node_NodeUnstageVolume_FullMethodName, errors.Join(other, volume.ErrBusy), codes.Aborted},
		{"unanswered wins over not found", publish, errors.Join(volume.ErrNotFound, context.DeadlineExceeded), codes.DeadlineExceeded},
		{"first reason of a failed publish", publish, errors.Join(volume.ErrNoSpace, other), codes.ResourceExhausted},
	} {
		err := c.err
		for range 2 { // plain, and wrapped
			if got := codeOf(c.method, err); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
			if err != nil {
				err = fmt.Errorf("doing something: %w", err)
			}
		}
	}
}

// Each row must be reachable: a row that another one hides has no effect.
func TestTableRows(t *testing.T) {
	for i, r := range table {
		method := r.only
		if method == "" {
			method = "/any"
		}
		if got := codeOf(method, r.is); got != r.code {
			t.Errorf("row %d (%v): %s, want %s", i, r.is, got, r.code)
		}
	}
}

func TestMessage(t *testing.T) {
	if got, want := message(" a\nb \xff", maxMessage), "a; b ?"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, long := range []string{strings.Repeat("x", 10000), strings.Repeat("ä", 10000), "x" + strings.Repeat("€", 10000)} {
		got := message(long, maxMessage)
		if len(got) > maxMessage || !utf8.ValidString(got) || !strings.Contains(got, "bytes in all") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
	if s := strings.Repeat("x", maxMessage); message(s, maxMessage) != s {
		t.Error("a message that fits was cut")
	}
}
