package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// errNotServed is the answer to a method that has no row in policies.
var errNotServed = errors.New("not served by this driver")

// row says that an error which wraps is has the code; only names the method it is for, "" is every method.
type row struct {
	is   error
	code codes.Code
	only string
}

// table is searched from the top: the first row that fits gives the code. The order matters for an error that wraps
// several, which is what a failed call whose undoing failed too returns (errors.Join).
//
// What may still change the world by itself comes first: kubelet forgets a volume after a final code (isFinalError in
// pkg/volume/csi/csi_client.go), and the driver may not be forgotten while it works on the volume. So a pending or busy
// teardown wins over the reason for which it was begun, and an unanswered question (a deadline) wins over what was
// concluded beside it. The final codes follow; no two of them meet in one error except by a fault, and then the
// caller's own mistake is the more useful news.
var table = []row{
	{is: volume.ErrPending, code: codes.Aborted},

	// "Indicates that the volume corresponding to the specified volume_id could not be deleted because it is in use by
	// another resource": FAILED_PRECONDITION (CSI spec, DeleteVolume Errors). A delete is not journalled: it is over, and
	// the CO has to unpublish first.
	{is: volume.ErrBusy, code: codes.FailedPrecondition, only: csi.Controller_DeleteVolume_FullMethodName},
	{is: volume.ErrBusy, code: codes.FailedPrecondition, only: csi.Controller_DeleteSnapshot_FullMethodName}, // the same of snapshots
	// In a teardown it is journalled, and carried on. Elsewhere nothing is: it is Internal.
	{is: volume.ErrBusy, code: codes.Aborted, only: csi.Node_NodeUnpublishVolume_FullMethodName},
	{is: volume.ErrBusy, code: codes.Aborted, only: csi.Node_NodeUnstageVolume_FullMethodName},
	{is: volume.ErrBusy, code: codes.Aborted, only: csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName}, // begun when none was in use

	{is: errStopping, code: codes.Unavailable},
	{is: context.DeadlineExceeded, code: codes.DeadlineExceeded},
	{is: context.Canceled, code: codes.Canceled},

	{is: volume.ErrInvalid, code: codes.InvalidArgument},
	{is: volume.ErrOutOfRange, code: codes.OutOfRange},
	{is: volume.ErrExists, code: codes.AlreadyExists},
	{is: volume.ErrPrecondition, code: codes.FailedPrecondition},
	{is: volume.ErrNoSpace, code: codes.ResourceExhausted},
	{is: volume.ErrNotFound, code: codes.NotFound},

	// "Indicates that starting_token is not valid": ABORTED (CSI spec, ListVolumes Errors).
	{is: volume.ErrToken, code: codes.Aborted},

	{is: errNotServed, code: codes.Unimplemented},
}

// codeOf gives the code for an error of the method; an error of no row is Internal. nil is OK.
func codeOf(method string, err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	for _, r := range table {
		if (r.only == "" || r.only == method) && errors.Is(err, r.is) {
			return r.code
		}
	}
	// Made by the generated code of a service for a method it lacks; nothing else below makes a status.
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Internal
}

// statusOf makes the answer for an error of the method. The number of the call, by which the log and the metrics tell of it too, is in
// the message and not in the status' details: of those nobody who reads an event of Kubernetes sees anything.
func statusOf(method string, err error, request string) error {
	end := " (request " + request + ")"
	return status.Error(codeOf(method, err), message(err.Error(), maxMessage-len(end))+end)
}

// maxMessage bounds a status message, in bytes: it goes into an HTTP/2 header, and from there into the events and
// conditions of Kubernetes, which cut at 1 KiB.
const maxMessage = 2048

// message makes one line of valid UTF-8 of at most so many bytes. It cuts, and leaves the rest to the log. It hides
// nothing: no message may hold a secret, and none can, because the driver reads none.
func message(text string, most int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "), "?")
	if len(text) <= most {
		return text
	}
	rest := fmt.Sprintf("... (%d bytes in all; see the driver's log)", len(text))
	return strings.ToValidUTF8(text[:most-len(rest)], "") + rest
}
