package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Attach records with the volume that it is published to a node (CSI spec, ControllerPublishVolume). The record is a tag, so
// that it is as durable as the volume, and goes with it. Repeating it is OK; for the same node with other arguments it is
// ErrExists, for another node ErrPrecondition, which names the node that has it. No node but this one can reach the volume, so
// any other is ErrNotFound. ErrNoSpace: as many as MaxAttached are attached. An error leaves nothing; a kill leaves the volume attached, or not.
func (l *Lifecycle) Attach(ctx context.Context, r volume.Ref, a volume.Attachment) error {
	lv, err := l.LVM.Lookup(ctx, r)
	if err != nil {
		return err
	}
	has, err := lv.Tags.Attachment()
	switch {
	case err != nil:
		return fmt.Errorf("logical volume %s: %w", r, err)
	case lv.Tags.Kind != volume.Persistent || lv.Tags.State != "":
		return fmt.Errorf("%w: logical volume %s cannot be published (kind %q, state %q)", volume.ErrPrecondition, r, lv.Tags.Kind, lv.Tags.State)
	case has == a:
		return l.LVM.Retag(ctx, r, volume.Persistent, nil, nil)
	case has != (volume.Attachment{}) && has.Node != a.Node:
		return fmt.Errorf("%w: logical volume %s is published to node %s; unpublish it there first", volume.ErrPrecondition, r, has.Node)
	case has != (volume.Attachment{}):
		return fmt.Errorf("%w: logical volume %s is published to node %s with readonly %t and %s, asked for is readonly %t and %s; unpublish it first",
			volume.ErrExists, r, has.Node, has.ReadOnly, has.Mode, a.ReadOnly, a.Mode)
	case a.Node != l.NodeName:
		return fmt.Errorf("%w: there is no node %q that can reach logical volume %s; it is on node %s", volume.ErrNotFound, a.Node, r, l.NodeName)
	}
	if err := l.roomToAttach(ctx); err != nil {
		return err
	}
	to := lv.Tags
	to.Attached = a.String()
	return l.retagOrUndo(ctx, lv, to)
}

// roomToAttach is ErrNoSpace where as many volumes are attached as the node may have. Calls at the same moment can get past
// it; the scheduler, which keeps the bound in the first place, does not make such calls.
func (l *Lifecycle) roomToAttach(ctx context.Context) error {
	if l.MaxAttached == 0 {
		return nil
	}
	lvs, err := l.Inventory.List(ctx)
	if err != nil {
		return err
	}
	n := int64(0)
	for _, lv := range lvs {
		if lv.Tags.Attached != "" {
			n++
		}
	}
	if n >= l.MaxAttached {
		return fmt.Errorf("%w: %d volumes are published to node %s, and --max-volumes is %d", volume.ErrNoSpace, n, l.NodeName, l.MaxAttached)
	}
	return nil
}

// retagOrUndo gives a persistent volume other tags. Where that fails, or panics, it may have been done all the same, and is
// taken back: the answer is final, and the CO then takes nothing for done.
func (l *Lifecycle) retagOrUndo(ctx context.Context, lv volume.LV, to volume.Tags) error {
	add, remove := lv.Tags.Changes(to)
	undo := func() error { return l.LVM.Retag(ctx, lv.Ref, volume.Persistent, remove, add) }
	defer func() {
		if p := recover(); p != nil {
			_ = undo() // the panic is the answer
			panic(p)
		}
	}()
	if err := l.LVM.Retag(ctx, lv.Ref, volume.Persistent, add, remove); err != nil {
		return errors.Join(err, undo())
	}
	return nil
}

// Detach takes back what Attach recorded, for the node, or with "" for whatever node. nil where it is not attached there,
// or is gone. ErrPrecondition: it is still mounted, and whoever it is published to next must not meet this node's writes
// (CSI spec, ControllerUnpublishVolume: after all NodeUnstageVolume and NodeUnpublishVolume).
func (l *Lifecycle) Detach(ctx context.Context, r volume.Ref, node string) error {
	lv, err := l.LVM.Lookup(ctx, r)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	has, err := lv.Tags.Attachment()
	if err != nil && node != "" {
		return fmt.Errorf("logical volume %s: %w", r, err)
	}
	if lv.Tags.Attached == "" || node != "" && has.Node != node {
		return l.LVM.Retag(ctx, r, lv.Tags.Kind, nil, nil)
	}
	if err := l.unmounted(ctx, r); err != nil {
		return err
	}
	to := lv.Tags
	to.Attached = ""
	add, remove := lv.Tags.Changes(to)
	return l.LVM.Retag(ctx, r, lv.Tags.Kind, add, remove)
}

// unmounted is nil where the volume is mounted nowhere in our mount table.
func (l *Lifecycle) unmounted(ctx context.Context, r volume.Ref) error {
	at, err := l.mountedAt(ctx, r)
	if err != nil {
		return err
	}
	if len(at) != 0 {
		return fmt.Errorf("%w: logical volume %s is mounted at %s; unpublish and unstage it first", volume.ErrPrecondition, r, strings.Join(at, ", "))
	}
	return nil
}

// attachedHere gives how the volume is attached to this node; ErrPrecondition where it is not. Where nothing is attached, it is
// zero.
func (l *Lifecycle) attachedHere(lv volume.LV) (volume.Attachment, error) {
	if !l.RequireAttach {
		return volume.Attachment{}, nil
	}
	has, err := lv.Tags.Attachment()
	switch {
	case err != nil:
		return has, fmt.Errorf("logical volume %s: %w", lv.Ref, err)
	case has.Node == l.NodeName:
		return has, nil
	case has.Node == "":
		return has, fmt.Errorf("%w: logical volume %s is not published to this node; call ControllerPublishVolume first", volume.ErrPrecondition, lv.Ref)
	}
	return has, fmt.Errorf("%w: logical volume %s is published to node %s, this is %s; unpublish it there first", volume.ErrPrecondition, lv.Ref, has.Node, l.NodeName)
}

// detached is nil where the volume is attached to no node, or is not there.
func (l *Lifecycle) detached(ctx context.Context, r volume.Ref) error {
	if !l.RequireAttach {
		return nil
	}
	lv, err := l.LVM.Lookup(ctx, r)
	if errors.Is(err, volume.ErrNotFound) || err == nil && lv.Tags.Attached == "" {
		return nil
	}
	if err != nil {
		return err
	}
	has, err := lv.Tags.Attachment()
	if err != nil {
		return fmt.Errorf("logical volume %s: %w", r, err)
	}
	return fmt.Errorf("%w: logical volume %s is published to node %s; call ControllerUnpublishVolume first", volume.ErrPrecondition, r, has.Node)
}
