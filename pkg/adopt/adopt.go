// Package adopt takes a logical volume that somebody made by hand over for the driver, so that a static PersistentVolume can use
// it, and gives it back. It works beside the running driver: all it changes are LVM tags, by one command under LVM's own lock, and
// the driver sees them in its inventory.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// LVM is what is asked of LVM. Implemented by pkg/lvm, and by pkg/fake for tests.
type LVM interface {
	// Describe tells of any logical volume of the driver's groups, and its roles as lvs(8) tells them. ErrNotFound: the
	// group was read well and it is not there. An error where a disk of the group is missing.
	Describe(ctx context.Context, r volume.Ref) (lv volume.LV, roles string, err error)
	// Adopt adds the tags, if it is still this logical volume. Disown takes the tags away that it has, if it is ours. One
	// LVM command each; durable when they return nil.
	Adopt(ctx context.Context, lv volume.LV, tags volume.Tags) error
	Disown(ctx context.Context, lv volume.LV) error
	// Device gives the device of an active logical volume. ErrNotFound: it has none.
	Device(ctx context.Context, r volume.Ref) (volume.Device, error)
}

// Host is what is asked of the rest of the machine. Implemented by pkg/mount, and by pkg/fake for tests.
type Host interface {
	List(ctx context.Context) ([]volume.Mount, error)
	Probe(ctx context.Context, d volume.Device) (volume.Content, error)
}

// Request is what is to be adopted, and by whom.
type Request struct {
	volume.Ref
	Block      bool      // as a raw block volume; its content does not matter
	FS         volume.FS // the file system that must be on it; "": whichever is
	Owner      string    // the driver's name
	Node       string    // as volume.ShortNode gives it
	KubeletDir string
}

// Adopt takes the logical volume over, and gives it as it is then. Repeating it is OK. ErrInvalid: a name that volume ids cannot
// hold. ErrPrecondition: it is not a plain logical volume, it is in use outside kubelet's folder, somebody else's driver has it, or
// its content is not what is said; nothing was changed. A kill leaves it adopted or not.
func Adopt(ctx context.Context, l LVM, h Host, q Request) (volume.LV, error) {
	if err := checkName(q); err != nil {
		return volume.LV{}, err
	}
	lv, roles, err := l.Describe(ctx, q.Ref)
	if err != nil {
		return lv, err
	}
	if err := isPlain(lv, roles); err != nil {
		return lv, err
	}
	switch {
	case lv.Tags.Owner == "":
	case lv.Tags.Owner != q.Owner:
		return lv, refuse(lv, "it is a volume of the driver "+lv.Tags.Owner)
	case lv.Tags.Layout() != "" || lv.Tags.Kind != volume.Persistent:
		return lv, refuse(lv, "the driver made it itself")
	}
	d, err := device(ctx, l, lv)
	if err != nil {
		return lv, err
	}
	if err := unusedOutside(ctx, h, lv, d, q.KubeletDir); err != nil {
		return lv, err
	}
	format, err := content(ctx, h, lv, d, q)
	if err != nil {
		return lv, err
	}
	tags := volume.AdoptedTags(q.Owner, format)
	if lv.Tags.Owner == q.Owner {
		if lv.Tags.Spec == tags.Spec {
			return lv, nil
		}
		return lv, refuse(lv, fmt.Sprintf("it is adopted already, with %s, and asked for is %s; release it first", lv.Tags.Spec, tags.Spec))
	}
	if err := l.Adopt(ctx, lv, tags); err != nil {
		return lv, err
	}
	lv.Tags = tags
	return lv, nil
}

// Release gives an adopted logical volume back. nil where it is not the driver's, or gone. ErrPrecondition: it is in use, or
// published to a node, or the driver made it itself.
func Release(ctx context.Context, l LVM, h Host, q Request) error {
	lv, _, err := l.Describe(ctx, q.Ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil
	case err != nil:
		return err
	case lv.Tags.Owner != q.Owner:
		return nil
	case lv.Tags.Layout() != "" || lv.Tags.Kind != volume.Persistent:
		return refuse(lv, "the driver made it itself; it was never adopted")
	case lv.Tags.Attached != "":
		return refuse(lv, "it is published to a node ("+lv.Tags.Attached+"); unpublish it first")
	}
	d, err := l.Device(ctx, q.Ref)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	if err == nil {
		at, err := mountedAt(ctx, h, d)
		if err != nil {
			return err
		}
		if len(at) != 0 || d.Open != 0 {
			return refuse(lv, fmt.Sprintf("it is in use (mounted at %v, open %d times); delete the pods that use it first", at, d.Open))
		}
	}
	return l.Disown(ctx, lv)
}

func refuse(lv volume.LV, why string) error {
	return fmt.Errorf("%w: logical volume %s: %s; nothing was changed", volume.ErrPrecondition, lv.Ref, why)
}

func checkName(q Request) error {
	id := volume.ID{Node: q.Node, Ref: q.Ref}
	if parsed, err := volume.ParseID(id.String()); err != nil || parsed != id {
		return volume.Invalid("VG/LV", q.Ref.String(), fmt.Sprintf("the volume id would be %s, which is not possible (%v); rename it with lvrename or vgrename", id, err))
	}
	if k := volume.KindByName(q.LV); k != volume.Persistent {
		return volume.Invalid("VG/LV", q.Ref.String(), fmt.Sprintf("the name is one of those that the driver keeps for volumes of kind %s; rename it with lvrename", k))
	}
	return nil
}

// isPlain refuses what is not a logical volume of its own: pools, snapshots, caches, what is within others, and what others
// depend on. A thin volume that has thin snapshots is fine, they are independent of each other (lvmthin(7)).
func isPlain(lv volume.LV, roles string) error {
	for role := range strings.SplitSeq(roles, ",") {
		switch role {
		case "public", "origin", "thinorigin":
		default:
			return refuse(lv, fmt.Sprintf("it is not a plain logical volume (its role is %s)", roles))
		}
	}
	switch {
	case lv.Type == "":
		return refuse(lv, "it is not a plain logical volume (a pool, a cache, or of a type that the driver does not know)")
	case lv.Type != volume.Thin && strings.Contains(roles, "origin"):
		return refuse(lv, "it has snapshots; remove them first")
	case lv.Partial:
		return refuse(lv, "a disk that it lies on is missing")
	}
	return nil
}

func device(ctx context.Context, l LVM, lv volume.LV) (volume.Device, error) {
	d, err := l.Device(ctx, lv.Ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return d, refuse(lv, "it is not active; activate it first: lvchange -ay "+lv.Ref.String())
	case err == nil && d.Suspended:
		return d, refuse(lv, "its device is suspended; see dmsetup(8) resume")
	}
	return d, err
}

// unusedOutside refuses what somebody else uses: mounted outside kubelet's folder, as the root file system or /home are; or open
// without being mounted there, as swap, the disk of a virtual machine, or what another device lies on.
func unusedOutside(ctx context.Context, h Host, lv volume.LV, d volume.Device, kubelet string) error {
	at, err := mountedAt(ctx, h, d)
	if err != nil {
		return err
	}
	inside := 0
	for _, target := range at {
		if !strings.HasPrefix(target, strings.TrimRight(kubelet, "/")+"/") {
			return refuse(lv, "it is mounted at "+target+", outside kubelet's folder "+kubelet)
		}
		inside++
	}
	if d.Open != 0 && inside == 0 {
		return refuse(lv, fmt.Sprintf("it is open (%d times) and not mounted here: swap, a process, another mount namespace, or a device on it uses it", d.Open))
	}
	return nil
}

func mountedAt(ctx context.Context, h Host, d volume.Device) (at []string, err error) {
	table, err := h.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	for _, m := range table {
		if d.Same(m) {
			at = append(at, m.Target)
		}
	}
	return at, nil
}

// content gives what the volume carries. What the driver would format, or refuse, when it is staged is refused here.
func content(ctx context.Context, h Host, lv volume.LV, d volume.Device, q Request) (volume.Format, error) {
	if q.Block {
		return volume.Format{}, nil
	}
	c, err := h.Probe(ctx, d)
	if err != nil {
		return volume.Format{}, err
	}
	fs, err := volume.ParseFS("file system", c.FS)
	switch {
	case c.Blank:
		return volume.Format{}, refuse(lv, "it is blank; make a file system on it, or adopt it with --block")
	case c.Unfinished:
		return volume.Format{}, refuse(lv, "the mkfs that made its "+c.FS+" was cut off")
	case c.FS == "":
		return volume.Format{}, refuse(lv, "what is on it is no file system that is known; adopt it with --block")
	case err != nil:
		return volume.Format{}, refuse(lv, "it holds "+c.FS+", and the driver mounts ext4, xfs and btrfs; adopt it with --block")
	case q.FS != "" && q.FS != fs:
		return volume.Format{}, refuse(lv, fmt.Sprintf("it holds %s, not %s", fs, q.FS))
	}
	return volume.Format{FS: fs}, nil
}
