package rpc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
)

// logger is the outermost link.
type logger struct {
	ended func(method string, code codes.Code, took time.Duration, request string) // nil: nobody is told
}

// called is one call.
type called struct {
	logger
	log     klog.Logger
	method  string
	request string // the number of the call: in each of its lines, in its error, and beside its time in the metrics
	start   time.Time
}

func (l logger) begin(ctx context.Context, method string) *called {
	c := &called{logger: l, method: method, request: fmt.Sprintf("%08x", rand.Uint32()), start: time.Now()}
	c.log = klog.FromContext(ctx).WithValues("request", c.request, "method", path.Base(method))
	return c
}

// call logs each call once, at its end: at -v=2 where it went well (-v=4 for what COs ask all the time), always where
// it failed. At -v=5 also request and reply, without secrets. The logger that handlers find in their context names the
// request, the method and the volume, so that all lines of one call can be found by its id.
//
// It is the outermost link and sees the plain error, which is logged in full; the caller gets the status of it.
func (l logger) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	c := l.begin(ctx, info.FullMethod)
	c.log = c.log.WithValues(subject(req)...)
	if v := c.log.V(5); v.Enabled() {
		v.Info("call", "message", stripped(req))
	}
	reply, err := next(klog.NewContext(ctx, c.log), req)
	if err := c.end(err, func() []any { return []any{"message", stripped(reply)} }); err != nil {
		return nil, err
	}
	return reply, nil
}

// end logs how a call ended, and makes the status of its error. detail is logged where all is logged.
func (c *called) end(err error, detail func() []any) error {
	took, log := time.Since(c.start).Round(time.Microsecond), c.log
	if c.ended != nil {
		c.ended(path.Base(c.method), codeOf(c.method, err), took, c.request)
	}
	switch {
	case err != nil:
		log.Info("call failed", "code", codeOf(c.method, err), "duration", took, "err", err.Error())
		return statusOf(c.method, err, c.request)
	case log.V(5).Enabled():
		log.V(5).Info("call done", append([]any{"code", "OK", "duration", took}, detail()...)...)
	case policies[c.method].chatter:
		log.V(4).Info("call done", "code", "OK", "duration", took)
	default:
		log.V(2).Info("call done", "code", "OK", "duration", took)
	}
	return nil
}

// subject gives what a request is about, as keys and values for a logger.
func subject(req any) []any {
	var kv []any
	add := func(key, value string) {
		if len(value) > 256 {
			value = fmt.Sprintf("%s... (%d bytes)", value[:256], len(value))
		}
		if value != "" {
			kv = append(kv, key, value)
		}
	}
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		add("volume", r.GetVolumeId())
	}
	if r, ok := req.(interface{ GetSnapshotId() string }); ok {
		add("snapshot", r.GetSnapshotId())
	}
	if r, ok := req.(*csi.GetMetadataDeltaRequest); ok {
		add("base", r.GetBaseSnapshotId())
		add("snapshot", r.GetTargetSnapshotId())
	}
	if r, ok := req.(interface{ GetName() string }); ok {
		add("name", r.GetName())
	}
	if r, ok := req.(interface{ GetTargetPath() string }); ok {
		add("target", r.GetTargetPath())
	}
	if r, ok := req.(interface{ GetStagingTargetPath() string }); ok {
		add("staging", r.GetStagingTargetPath())
	}
	if r, ok := req.(interface{ GetVolumePath() string }); ok {
		add("path", r.GetVolumePath())
	}
	return kv
}

// hidden stands where a secret was; the same text as protosanitizer's.
const hidden = "***stripped***"

// secretContext are the keys of a volume_context that hold secrets although the field is not marked as secret:
// the pod's service account tokens, which kubelet hands to drivers that ask for them (CSIDriver tokenRequests).
var secretContext = []string{"csi.storage.k8s.io/serviceAccount.tokens"}

// stripped gives a message as text for the log, without secrets: the fields that the CSI spec marks as secret, the values
// of secretContext, and the values of mount flags, which "may contain sensitive information" (CSI spec, mount_flags).
func stripped(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return hidden
	}
	m = proto.Clone(m) // the handler needs its own as it is
	if r, ok := m.(interface{ GetVolumeContext() map[string]string }); ok {
		for _, key := range secretContext {
			if _, ok := r.GetVolumeContext()[key]; ok {
				r.GetVolumeContext()[key] = hidden
			}
		}
	}
	for _, c := range capabilities(m) {
		flags := c.GetMount().GetMountFlags()
		for i, flag := range flags {
			if name, _, ok := strings.Cut(flag, "="); ok {
				flags[i] = name + "=" + hidden
			}
		}
	}
	return protosanitizer.StripSecrets(m).String()
}

func capabilities(m proto.Message) []*csi.VolumeCapability {
	switch r := m.(type) {
	case interface{ GetVolumeCapability() *csi.VolumeCapability }:
		return []*csi.VolumeCapability{r.GetVolumeCapability()}
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		return r.GetVolumeCapabilities()
	case *csi.ValidateVolumeCapabilitiesResponse:
		return r.GetConfirmed().GetVolumeCapabilities()
	}
	return nil
}
