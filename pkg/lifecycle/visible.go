package lifecycle

import (
	"context"
	"fmt"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Visible gives the topmost mount at the path, if it is one of the volume; for a staged block volume the path may be
// that of its staging folder. ErrNotFound: the volume is not visible there.
func (l *Lifecycle) Visible(ctx context.Context, v Volume, path string) (volume.Mount, error) {
	resolved, err := l.Paths.Resolve(path)
	if err != nil {
		return volume.Mount{}, err
	}
	ref := v.Ref
	if v.Kind == volume.Inline {
		rec, ok, err := l.Journal.Get(v.ID)
		if err == nil && !ok {
			rec, err = l.fromFacts(ctx, v)
		}
		if err != nil {
			return volume.Mount{}, err
		}
		ref = rec.Ref()
	}
	d, active, err := l.device(ctx, ref)
	if err != nil {
		return volume.Mount{}, err
	}
	table, err := l.mountTable(ctx)
	if err != nil {
		return volume.Mount{}, err
	}
	for _, p := range []string{resolved, resolved + "/" + volume.StagedDevice} {
		if at := mountsAt(table, p); active && len(at) != 0 && d.Same(at[len(at)-1]) {
			return at[len(at)-1], nil
		}
	}
	return volume.Mount{}, fmt.Errorf("%w: volume %s is not visible at volume_path %s; name its target or staging path", volume.ErrNotFound, v.ID, path)
}
