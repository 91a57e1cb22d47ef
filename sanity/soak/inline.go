package soak

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// inline is what is known of an inline volume.
type inline struct {
	id, pod, target, other string // other: another target path
	ref                    volume.Ref

	exists    bool
	mounted   bool // not after a reboot
	readOnly  bool
	leaving   bool // an unpublish was answered Aborted, and is carried on
	left      bool // a reboot left the target
	content   string
	release   func() // of who uses it
	openedRaw bool   // he has the device open, not the mount
}

func (e *inline) publishCall(r *run, path, size string, readOnly bool) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: e.id, TargetPath: path, VolumeCapability: class{fs: "ext4"}.capability(""), Readonly: readOnly,
			VolumeContext: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: size, volume.KeyPodUID: e.pod},
		})
		return err
	}
}

func (e *inline) unpublishCall(r *run, path string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: e.id, TargetPath: path})
		return err
	}
}

func (r *run) publishInline(e *inline, s Step) error {
	path, size, readOnly, want := e.target, "32Mi", s.Arg%8 == 0, codes.OK
	if e.exists && !e.leaving {
		switch s.Arg % 16 {
		case 14:
			path, want = e.other, codes.FailedPrecondition
		case 15:
			size, want = "64Mi", codes.AlreadyExists
		}
	}
	switch {
	case want != codes.OK:
	case e.leaving:
		want = codes.Aborted
	case e.exists && e.mounted && e.readOnly != readOnly:
		want = codes.AlreadyExists
	}
	call := rpc{call: e.publishCall(r, path, size, readOnly)}
	if !e.exists { // else it could be one that holds data which goes away, or not
		call.opposite = e.unpublishCall(r, path)
	}
	if err := r.answer(s, call, want); err != nil || want != codes.OK {
		return err
	}
	if !e.exists {
		e.content = ""
	}
	e.exists, e.mounted, e.left, e.readOnly = true, true, false, readOnly
	return nil
}

func (r *run) unpublishInline(e *inline, s Step) error {
	path, want := e.target, codes.OK
	switch {
	case s.Arg%16 == 15: // it was never there
		path = e.other
		if e.leaving && e.release != nil { // what is left to do is tried, and answered for
			return nil
		}
		if e.leaving {
			path = e.target
		}
	case e.exists && e.release != nil:
		want = codes.Aborted
	}
	if err := r.answer(s, rpc{call: e.unpublishCall(r, path)}, want); err != nil {
		return err
	}
	switch {
	case path == e.other:
	case want == codes.Aborted:
		e.leaving = true
		if e.openedRaw {
			e.mounted, e.left = false, false
		}
	default:
		e.exists, e.mounted, e.leaving, e.left = false, false, false, false
	}
	return nil
}

func (r *run) writeInline(e *inline, s Step) error {
	if !e.mounted || e.readOnly {
		return nil
	}
	e.content = fmt.Sprintf("%s %v", e.pod, s)
	return r.WriteFile(e.target+"/f", e.content)
}

func (r *run) holdInline(e *inline, s Step) error {
	if !e.mounted || e.release != nil {
		return nil
	}
	switch e.openedRaw = s.Arg%3 == 0; {
	case e.openedRaw:
		e.release = r.HoldLV(r.t, e.ref)
	case e.content != "" && s.Arg%3 == 1:
		_, e.release = r.Hold(r.t, contract.HoldFile, e.target+"/f")
	default:
		_, e.release = r.Hold(r.t, contract.HoldCwd, e.target)
	}
	return nil
}

func (r *run) releaseInline(e *inline, _ Step) error {
	leaving := e.leaving && e.release != nil
	e.letGo()
	if !leaving {
		return nil
	}
	e.exists, e.mounted, e.leaving, e.left = false, false, false, false
	if err := r.until(func() error { return r.checkInline(e, true) }); err != nil {
		return fmt.Errorf("after its user has ended: %w", err)
	}
	return nil
}

func (e *inline) letGo() {
	if e.release != nil {
		e.release()
		e.release = nil
	}
}

func (e *inline) rebooted() {
	if e.leaving {
		e.exists, e.left = false, false
	} else if e.mounted {
		e.left = true
	}
	e.mounted, e.leaving = false, false
}

// checkInline compares the world with what is known of the volume; with deep LVM is asked too.
func (r *run) checkInline(e *inline, deep bool) error {
	errs := []error{r.mounts(e.target, count(e.mounted)), r.nothing(e.other)}
	if deep {
		errs = append(errs, r.holds(e.ref, e.exists))
	}
	if !e.mounted && !e.left {
		errs = append(errs, r.nothing(e.target))
	}
	if e.mounted && e.content != "" {
		errs = append(errs, r.contains(e.target+"/f", e.content))
	}
	return errors.Join(errs...)
}

func (r *run) endInline(e *inline) error {
	e.letGo()
	return r.answer(Step{Do: "uninline"}, rpc{call: e.unpublishCall(r, e.target)}, codes.OK)
}
