// Package journal keeps what is intended for a volume, in one small durable file per volume: JSON, or, of a create, an
// empty file whose name says all (see createName). Facts are not kept here: what can be asked of the kernel or of LVM is asked.
//
// A record is written before the effect it announces, and removed after the last one. So after a kill or a power cut
// at any moment the journal names everything that may be half done. It is a promise, not a history: a volume about
// which nothing is intended has no record.
package journal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Intent is what is to become of a volume. Words, because they outlive any build.
type Intent string

// The intents.
const (
	// Create: the logical volume of a persistent volume is being made and has not been handed out. Whatever is found
	// of it belongs to nobody and may be removed.
	Create Intent = "create"
	// Publish: an inline volume is wanted at its path.
	Publish Intent = "publish"
	// Reclaim: the paths are to be unmounted and taken away, and of an inline volume the logical volume too.
	Reclaim Intent = "reclaim"
	// Reserve: the metadata snapshot of a thin pool is being reserved. If it is reserved, the driver did it, and releases it.
	Reserve Intent = "reserve"
	// Modify: the volume gets the mutable parameters of the record.
	Modify Intent = "modify"
)

// Pool is the kind of a record about a thin pool, which is no volume of the driver's.
const Pool volume.Kind = "pool"

// Role says what a path is for, and so what taking it away means.
type Role string

// The roles.
const (
	Target  Role = "target"  // a target path: unmounted, then the folder or file is removed (CSI spec, NodeUnpublishVolume)
	Staging Role = "staging" // a staging folder: unmounted once the volume is mounted nowhere else; the folder is the CO's and stays
	Device  Role = "device"  // the device node of a staged block volume: as Staging, but the file is the driver's and is removed
)

// Path is one path of a volume.
type Path struct {
	Path string `json:"path"`
	Role Role   `json:"role"`
}

// Record is what is intended for one volume.
type Record struct {
	VolumeID string      `json:"volumeID"`
	Kind     volume.Kind `json:"kind"`
	VG       string      `json:"vg"`
	LV       string      `json:"lv"`
	Intent   Intent      `json:"intent"`
	Paths    []Path      `json:"paths,omitempty"`
	Mutable  string      `json:"mutable,omitempty"` // of a Modify: volume.Mutable.String
	Since    time.Time   `json:"since"`             // for people; nothing is decided by it, clocks jump
}

// Ref is the logical volume of the record.
func (r Record) Ref() volume.Ref { return volume.Ref{VG: r.VG, LV: r.LV} }

// Has reports whether the path is one of the record's.
func (r Record) Has(path string) bool {
	return slices.ContainsFunc(r.Paths, func(p Path) bool { return p.Path == path })
}

// With gives the record with the path added, unless it is there.
func (r Record) With(p Path) Record {
	if !r.Has(p.Path) {
		r.Paths = append(slices.Clone(r.Paths), p)
	}
	return r
}

// Without gives the record without the path.
func (r Record) Without(path string) Record {
	r.Paths = slices.DeleteFunc(slices.Clone(r.Paths), func(p Path) bool { return p.Path == path })
	return r
}

// version of the format. A record of a higher one is left where it is and stops its volume.
const version = 1

// file is the form on disk. Checksum is over the JSON of the file with an empty checksum.
type file struct {
	Version int `json:"version"`
	Record
	Checksum string `json:"checksum"`
}

var recordName = regexp.MustCompile(`^[0-9a-f]{32}\.json$`)

const (
	tempPrefix    = ".tmp-"
	damagedFolder = "damaged"
)

// Store is an open journal. It is safe for concurrent use, and the only user of its folder: the caller holds the lock
// of the state folder.
type Store struct {
	folder  string
	node    string
	effects effect.Seam

	mu      sync.Mutex
	records map[string]Record   // by volume id
	files   map[string][]string // by volume id: the names of its record's files; two only where one was about to replace the other
	damaged map[string]string   // by what stops tells of a file: why the volume of this file cannot be served
	dirty   bool                // a record may have been forgotten, here or by an earlier driver, and the folder not synced since
}

// Open reads the journal below the state folder, and makes its folder where it is missing. A file that is torn or not
// a record is moved to the folder damaged beside the records; a record of a newer version stays. Either stops the
// volume it belongs to and no other. What was found wrong is in Problems. node is that of the volume ids.
func Open(ctx context.Context, stateDir, node string, effects effect.Seam) (*Store, error) {
	s := &Store{
		folder: filepath.Join(stateDir, "journal"), node: node, effects: effects,
		records: map[string]Record{}, files: map[string][]string{}, damaged: map[string]string{}, dirty: true,
	}
	if err := s.makeFolder(ctx); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	for _, e := range entries {
		if err := s.load(ctx, e); err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
	}
	aside, err := os.ReadDir(filepath.Join(s.folder, damagedFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("journal: %w", err)
	}
	for _, e := range aside {
		if name, _, _ := strings.Cut(e.Name(), "~"); s.damaged[stops(name)] == "" {
			s.damaged[stops(name)] = "found damaged earlier: " + filepath.Join(s.folder, damagedFolder, e.Name())
		}
	}
	return s, nil
}

// makeFolder does nothing where the folder is there: the file system may be read-only.
func (s *Store) makeFolder(ctx context.Context) error {
	if _, err := os.Stat(s.folder); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.effects.Do(ctx, "mkdir", s.folder, func() error { return os.MkdirAll(s.folder, 0o700) })
}

// load reads one entry of the folder. An error is one that must keep the driver from starting: a folder that cannot be
// read says nothing about what it intends.
func (s *Store) load(ctx context.Context, e fs.DirEntry) error {
	name, path := e.Name(), filepath.Join(s.folder, e.Name())
	ref, kind, create := parseCreate(name)
	switch {
	case name == damagedFolder && e.IsDir():
		return nil
	case create && e.Type().IsRegular():
		return s.loadCreate(e, ref, kind)
	case !create && strings.HasPrefix(name, tempPrefix):
		// A write that was cut off before its rename: nothing was announced by it, and it may stay where it cannot be removed.
		_ = s.effects.Do(ctx, "remove", path, func() error { return os.Remove(path) })
		return nil
	case !recordName.MatchString(name) || !e.Type().IsRegular():
		return s.moveAside(ctx, name, "not a record of this driver")
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // forgotten since the folder was listed, by the driver beside which this reads
	}
	if err != nil {
		return err
	}
	rec, newer, err := decode(data, name)
	switch {
	case newer:
		s.damaged[name] = fmt.Sprintf("%v: %s", err, path)
	case err != nil:
		return s.moveAside(ctx, name, err.Error())
	default:
		s.found(rec, name)
	}
	return nil
}

// found takes a record over that is on disk. Of two of one volume, one of which was about to replace the other, that of a
// create counts: what it names belongs to nobody, and that must not be forgotten.
func (s *Store) found(rec Record, name string) {
	s.files[rec.VolumeID] = append(s.files[rec.VolumeID], name)
	if s.records[rec.VolumeID].Intent != Create {
		s.records[rec.VolumeID] = rec
	}
}

func (s *Store) moveAside(ctx context.Context, name, why string) error {
	folder := filepath.Join(s.folder, damagedFolder)
	to := filepath.Join(folder, fmt.Sprintf("%s~%d", name, time.Now().UnixNano()))
	err := s.effects.Do(ctx, "rename", to, func() error {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
		return os.Rename(filepath.Join(s.folder, name), to)
	})
	if err != nil {
		// A read-only folder must not keep the others from being served; the file is found again at the next start.
		to = filepath.Join(s.folder, name)
	}
	s.damaged[stops(name)] = fmt.Sprintf("%s: %s", why, to)
	return nil
}

// Problems gives, sorted, what is wrong in the folder, a sentence each.
func (s *Store) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name, why := range s.damaged {
		out = append(out, name+": "+why)
	}
	slices.Sort(out)
	return out
}

// Get gives the record of a volume. ok is false where there is surely none. An error means that there is one which
// cannot be read: nothing may be done to the volume.
func (s *Store) Get(volumeID string) (rec Record, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := cmp.Or(s.damaged[fileName(volumeID)], s.damaged[createOf(volumeID)]); why != "" {
		return Record{}, false, fmt.Errorf("journal: the record of volume %q cannot be read (%s); look at the file, make sure of the state "+
			"of the volume, remove the file and restart the driver", volumeID, why)
	}
	rec, ok = s.records[volumeID]
	return rec, ok, nil
}

// All gives all records, sorted by volume id.
func (s *Store) All() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Record, 0, len(s.records))
	for _, r := range s.records {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.VolumeID, b.VolumeID) })
	return out
}

// Put makes the record durable, in place of an earlier one of the volume. When it returns nil the record survives a
// power cut. On an error the earlier one stands, or, where only the last step failed, the new one: Get tells which, and
// after a power cut it may be either. Two fsyncs, that of a create one.
func (s *Store) Put(ctx context.Context, rec Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec.Since = rec.Since.UTC().Truncate(time.Second)
	name, named := s.createName(rec)
	if !named {
		name = fileName(rec.VolumeID)
	}
	err := s.put(ctx, name, rec, named)
	if err != nil {
		return fmt.Errorf("journal: record of volume %q: %w", rec.VolumeID, err)
	}
	s.dirty = false
	return nil
}

// put puts the file in place, takes away one of another name that it replaces, and makes both durable at once.
func (s *Store) put(ctx context.Context, name string, rec Record, named bool) error {
	var err error
	if named {
		err = s.touch(ctx, name)
	} else {
		err = s.write(ctx, name, encode(rec))
	}
	if err != nil {
		return err
	}
	s.records[rec.VolumeID] = rec
	if !slices.Contains(s.files[rec.VolumeID], name) {
		s.files[rec.VolumeID] = append(s.files[rec.VolumeID], name)
	}
	if err := s.removeBut(ctx, rec.VolumeID, name); err != nil {
		return err
	}
	return s.syncFolder(ctx)
}

// Remember keeps the record in memory only: for a teardown that must go on though the state folder is full or
// read-only, since freeing space must not need space. A restart forgets it.
func (s *Store) Remember(rec Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[rec.VolumeID] = rec
}

// Forget removes the record; it is nil where there is none. The folder is not synced: a record that comes back after
// a power cut announces work that will be found done. Where that would not be harmless, see Erase. On an error the record
// stands.
func (s *Store) Forget(ctx context.Context, volumeID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.records[volumeID]; !ok {
		return nil
	}
	if err := s.remove(ctx, volumeID); err != nil {
		return err
	}
	delete(s.records, volumeID)
	return nil
}

// Erase is Forget for records that must not come back after a power cut. On an error the record stands, in memory at
// least. One fsync.
func (s *Store) Erase(ctx context.Context, volumeID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.records[volumeID]; !ok {
		return nil
	}
	if err := s.remove(ctx, volumeID); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return err
	}
	delete(s.records, volumeID)
	return nil
}

// remove removes what is on disk of a record; nothing, where it never came there. With s.mu held.
func (s *Store) remove(ctx context.Context, volumeID string) error {
	if err := s.removeBut(ctx, volumeID, ""); err != nil {
		return fmt.Errorf("journal: record of volume %q: %w", volumeID, err)
	}
	return nil
}

// removeBut removes the files of a record, but for the one of that name.
func (s *Store) removeBut(ctx context.Context, volumeID, kept string) error {
	for _, name := range slices.Clone(s.files[volumeID]) {
		if name == kept {
			continue
		}
		path := filepath.Join(s.folder, name)
		err := s.effects.Do(ctx, "remove", path, func() error { return os.Remove(path) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.dirty = true
		s.files[volumeID] = slices.DeleteFunc(s.files[volumeID], func(n string) bool { return n == name })
	}
	if len(s.files[volumeID]) == 0 {
		delete(s.files, volumeID)
	}
	return nil
}

// Sync makes durable what was forgotten, by this driver or an earlier one that was killed; one fsync, or none where it is.
func (s *Store) Sync(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sync(ctx)
}

func (s *Store) sync(ctx context.Context) error {
	if !s.dirty {
		return nil
	}
	if err := s.syncFolder(ctx); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	s.dirty = false
	return nil
}

// write replaces a file: 1 a temporary file in the same folder, 2 its content synced, 3 renamed over the old one. The caller
// syncs the folder. A cut before 3 leaves the old file and a temporary one that Open removes; a cut after 3 leaves the old or
// the new file, never a torn one.
func (s *Store) write(ctx context.Context, name string, data []byte) (err error) {
	path := filepath.Join(s.folder, name)
	var temp *os.File
	kept := false
	err = s.effects.Do(ctx, "write", path, func() error { // 1
		if temp, err = os.CreateTemp(s.folder, tempPrefix+"*"); err != nil {
			return err
		}
		_, err = temp.Write(data)
		return err
	})
	if temp != nil {
		defer func() {
			_ = temp.Close() // synced or given up; the second close of the good case says nothing new
			if !kept {       // best effort; Open removes what stays
				_ = s.effects.Do(ctx, "remove", temp.Name(), func() error { return os.Remove(temp.Name()) })
			}
		}()
	}
	if err != nil {
		return err
	}
	if err := s.effects.Do(ctx, "fsync", path, temp.Sync); err != nil { // 2
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	if err := s.effects.Do(ctx, "rename", path, func() error { return os.Rename(temp.Name(), path) }); err != nil { // 3
		return err
	}
	kept = true
	return nil
}

func (s *Store) syncFolder(ctx context.Context) error {
	return s.effects.Do(ctx, "fsync", s.folder, func() error {
		d, err := os.Open(s.folder)
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	})
}

// fileName is a hash, because ids hold slashes and can be longer than a file name.
func fileName(volumeID string) string {
	sum := sha256.Sum256([]byte(volumeID))
	return hex.EncodeToString(sum[:16]) + ".json"
}

func encode(rec Record) []byte {
	f := file{Version: version, Record: rec}
	f.Checksum = checksum(f)
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		panic(err) // strings and a time always have a JSON form
	}
	return append(data, '\n')
}

func checksum(f file) string {
	f.Checksum = ""
	data, err := json.Marshal(f)
	if err != nil {
		panic(err) // as in encode
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// decode reads a record and checks that it belongs under the file name. newer: it was written by a later driver.
func decode(data []byte, name string) (rec Record, newer bool, err error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Record{}, false, fmt.Errorf("torn: %w", err)
	}
	if head.Version > version {
		return Record{}, true, fmt.Errorf("written by a newer driver (version %d of the format, this driver knows %d); run that one", head.Version, version)
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Record{}, false, fmt.Errorf("torn: %w", err)
	}
	switch {
	case f.Checksum != checksum(f):
		return Record{}, false, errors.New("torn or edited: the checksum is wrong")
	case fileName(f.VolumeID) != name:
		return Record{}, false, fmt.Errorf("the record of volume %q under a name that is not its own", f.VolumeID)
	}
	return f.Record, false, nil
}
