package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// createFile is the name of a record with intent Create, <vg>:<lv>.create-<kind>. No name of LVM's has a ":".
var createFile = regexp.MustCompile(`^([^:/~]+):([^:/~]+)\.create-([a-z0-9-]+)$`)

// createName gives the name of the file that is the whole record of a create: an empty file. Its logical volume and its
// kind say all, since the volume id follows from them. So the record is durable with one fsync, that of the folder, where one
// with content needs another before; and it cannot be torn. What is in the file, if anything, is not looked at.
//
// That an fsync of the folder makes a new empty file in it durable too is so where a name and its inode are one change: ext4 and
// XFS commit them in one transaction, btrfs logs the new inodes of a folder with it (log_new_dir_dentries).
//
// named is false for a record of which the name would not say all.
func (s *Store) createName(rec Record) (name string, named bool) {
	name = fmt.Sprintf("%s:%s.create-%s", rec.VG, rec.LV, rec.Kind)
	ref, kind, ok := parseCreate(name)
	same := ok && ref == rec.Ref() && kind == rec.Kind && rec.VolumeID == volume.ID{Node: s.node, Ref: ref}.String()
	return name, same && rec.Intent == Create && len(rec.Paths) == 0 && len(name) <= 255 // NAME_MAX
}

// parseCreate reads what createName makes.
func parseCreate(name string) (ref volume.Ref, kind volume.Kind, ok bool) {
	m := createFile.FindStringSubmatch(name)
	if m == nil {
		return volume.Ref{}, "", false
	}
	ref = volume.Ref{VG: m[1], LV: m[2]}
	return ref, volume.Kind(m[3]), volume.CheckVG("name", ref.VG) == nil && volume.CheckLV("name", ref.LV) == nil
}

// stops tells which volume a file stops that cannot be used: what Get looks for. That of a create stops its logical volume,
// whatever its kind.
func stops(name string) string {
	if ref, _, ok := parseCreate(name); ok {
		return ref.String()
	}
	return name
}

// createOf gives what stops tells of the file of a create of this volume.
func createOf(volumeID string) string {
	id, err := volume.ParseID(volumeID)
	if err != nil {
		return "" // no create has such an id
	}
	return id.Ref.String()
}

// loadCreate reads the record that a name is. One of a kind that this driver does not know stays where it is.
func (s *Store) loadCreate(e fs.DirEntry, ref volume.Ref, kind volume.Kind) error {
	if kind != volume.Persistent && kind != volume.Snapshot && kind != volume.Together {
		s.damaged[stops(e.Name())] = fmt.Sprintf("written by a newer driver (kind %q); run that one: %s", kind, filepath.Join(s.folder, e.Name()))
		return nil
	}
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // as in load
	}
	if err != nil {
		return err
	}
	s.found(Record{
		VolumeID: volume.ID{Node: s.node, Ref: ref}.String(), Kind: kind, VG: ref.VG, LV: ref.LV,
		Intent: Create, Since: info.ModTime().UTC().Truncate(time.Second),
	}, e.Name())
	return nil
}

// touch makes an empty file; nil where it is there.
func (s *Store) touch(ctx context.Context, name string) error {
	path := filepath.Join(s.folder, name)
	return s.effects.Do(ctx, "write", path, func() error {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
		if err == nil {
			_ = f.Close() // nothing was written
		}
		return err
	})
}
