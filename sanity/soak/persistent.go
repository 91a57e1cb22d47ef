package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// class is what a persistent volume can be made as.
type class struct {
	fs    string // "": block
	bytes int64
	kind  volume.Type // "": not said
}

var classes = []class{
	{"ext4", 64 << 20, ""}, {"", 8 << 20, ""}, {"ext4", 64 << 20, volume.Thin}, {"xfs", 320 << 20, volume.Linear},
	{"ext4", 64 << 20, volume.Striped}, {"ext4", 32 << 20, volume.RAID1}, {"btrfs", 256 << 20, ""},
}

func (c class) parameters(pool string) map[string]string {
	switch c.kind {
	case "":
		return nil
	case volume.Thin:
		return map[string]string{volume.KeyType: string(c.kind), volume.KeyThinPool: pool}
	default:
		return map[string]string{volume.KeyType: string(c.kind)}
	}
}

// capability is of the class, or with fs of another file system.
func (c class) capability(fs string) *csi.VolumeCapability {
	if fs == "" {
		fs = c.fs
	}
	out := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if fs == "" {
		out.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		out.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs}}
	}
	return out
}

// otherFS is a file system that a volume of the class has not.
func (c class) otherFS() string {
	if c.fs == "ext4" {
		return "xfs"
	}
	return "ext4"
}

// persistent is what is known of a persistent volume.
type persistent struct {
	name, id, staging string
	ref               volume.Ref

	exists, isAlien bool // isAlien: a logical volume of the name is there, and not ours
	class           class
	bytes           int64
	filled          bool // it has its file system
	content         string
	from            string // the id of what it was made of; "": of nothing
	staged          bool
	unstaging       bool // an unstage was answered Aborted, and is carried on
	stagedLeft      bool // a reboot left the file at which a block volume was staged
	targets         [2]target
}

// target is one place to publish it at.
type target struct {
	path      string
	published bool
	readOnly  bool
	leaving   bool   // an unpublish was answered Aborted, and is carried on
	release   func() // of who uses it
	strange   bool   // something else is mounted there
	left      byte   // what a reboot left there, by its kind; 0: nothing
}

func (v *persistent) used() bool {
	return v.staged || v.pending() || v.targets[0].published || v.targets[1].published
}

func (v *persistent) pending() bool {
	return v.unstaging || v.targets[0].leaving || v.targets[1].leaving
}

func (v *persistent) published() bool { return v.targets[0].published || v.targets[1].published }

// stagedAt is where it is mounted when it is staged.
func (v *persistent) stagedAt() string {
	if v.class.fs == "" {
		return v.staging + "/csi-local-lvm-device"
	}
	return v.staging
}

// kind is that of its targets.
func (v *persistent) kind() byte {
	if v.class.fs == "" {
		return 'f'
	}
	return 'd'
}

func (r *run) create(v *persistent, s Step) error {
	c := classes[s.Arg%len(classes)]
	if v.exists && s.Arg%3 != 0 { // mostly the same again
		c = v.class
	}
	bytes := c.bytes
	if s.Arg%11 == 10 {
		bytes *= 2
	}
	want := codes.OK
	if v.isAlien || v.exists && (c != v.class || bytes > v.bytes || v.from != "") {
		want = codes.AlreadyExists
	}
	return r.make(v, s, persistent{class: c, bytes: bytes}, nil, want)
}

// make calls CreateVolume for the volume, which is then as the model of it says, made of the content.
func (r *run) make(v *persistent, s Step, as persistent, of *csi.VolumeContentSource, want codes.Code) error {
	c, bytes := as.class, as.bytes
	var last atomic.Pointer[csi.Volume] // of several calls at once, too
	made := rpc{call: func(ctx context.Context) error {
		reply, err := r.Controller().CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: v.name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, VolumeContentSource: of,
			VolumeCapabilities: []*csi.VolumeCapability{c.capability("")}, Parameters: c.parameters(r.Pool()),
		})
		last.Store(reply.GetVolume())
		return err
	}}
	if !v.exists {
		made.opposite = v.deleteCall(r)
	}
	if err := r.answer(s, made, want); err != nil || want != codes.OK {
		return err
	}
	if !v.exists { // each size is whole extents
		v.exists, v.class, v.bytes, v.filled, v.content, v.from = true, c, bytes, as.filled, as.content, as.from
	}
	if got := last.Load(); got.GetVolumeId() != v.id || got.GetCapacityBytes() != v.bytes || !proto.Equal(got.GetContentSource(), of) {
		return fmt.Errorf("created is %v, want %s with %d bytes of %v", got, v.id, v.bytes, of)
	}
	return nil
}

func (v *persistent) deleteCall(r *run) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
		return err
	}
}

func (r *run) delete(v *persistent, s Step) error {
	want := codes.OK
	switch {
	case v.isAlien:
		want = codes.FailedPrecondition
	case v.pending():
		want = codes.Aborted
	case v.used() || r.pinned(v):
		want = codes.FailedPrecondition
	}
	if err := r.answer(s, rpc{call: v.deleteCall(r)}, want); err != nil || want != codes.OK {
		return err
	}
	v.exists = false
	return nil
}

func (v *persistent) stageCall(r *run, fs string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.class.capability(fs)})
		return err
	}
}

func (r *run) stage(v *persistent, s Step) error {
	fs, want := "", codes.OK
	if s.Arg%8 == 7 && v.exists && v.filled && !v.unstaging {
		fs = v.class.otherFS()
	}
	switch {
	case v.isAlien:
		want = codes.FailedPrecondition
	case !v.exists:
		want = codes.NotFound
	case fs != "" && v.staged:
		want = codes.AlreadyExists
	case v.stagedLeft && v.class.fs != "": // another volume of that name was staged there
		want = codes.FailedPrecondition
	case fs != "":
		want = codes.FailedPrecondition
	}
	if err := r.answer(s, rpc{v.stageCall(r, fs), v.unstageCall(r)}, want); err != nil || want != codes.OK {
		return err
	}
	v.staged, v.unstaging, v.stagedLeft, v.filled = true, false, false, v.class.fs != ""
	return nil
}

func (v *persistent) unstageCall(r *run) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
		return err
	}
}

func (r *run) unstage(v *persistent, s Step) error {
	want := codes.OK
	if v.staged && v.published() {
		want = codes.Aborted
	}
	if err := r.answer(s, rpc{call: v.unstageCall(r)}, want); err != nil {
		return err
	}
	v.staged, v.unstaging, v.stagedLeft = want == codes.Aborted, want == codes.Aborted, false
	return nil
}

func (v *persistent) publishCall(r *run, t *target, fs string, readOnly bool) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: t.path, VolumeCapability: v.class.capability(fs), Readonly: readOnly,
		})
		return err
	}
}

func (r *run) publish(v *persistent, s Step) error {
	t, other := &v.targets[s.Arg%2], &v.targets[1-s.Arg%2]
	readOnly, fs, want := s.Arg/2%4 == 0, "", codes.OK
	if s.Arg/8 == 7 && t.published && v.class.fs != "" {
		fs = v.class.otherFS()
	}
	switch {
	case v.isAlien:
		want = codes.FailedPrecondition
	case !v.exists:
		want = codes.NotFound
	case !v.staged || v.unstaging || t.strange:
		want = codes.FailedPrecondition
	case t.published && (fs != "" || readOnly != t.readOnly):
		want = codes.AlreadyExists
	case t.published:
	case v.class.fs == "" && other.published && other.readOnly != readOnly:
		want = codes.FailedPrecondition
	case t.left != 0 && t.left != v.kind():
		want = codes.FailedPrecondition
	}
	if err := r.answer(s, rpc{v.publishCall(r, t, fs, readOnly), v.unpublishCall(r, t)}, want); err != nil || want != codes.OK {
		return err
	}
	t.published, t.leaving, t.left, t.readOnly = true, false, 0, readOnly
	return nil
}

func (v *persistent) unpublishCall(r *run, t *target) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: t.path})
		return err
	}
}

func (r *run) unpublish(v *persistent, s Step) error {
	t, want := &v.targets[s.Arg%2], codes.OK
	switch {
	case t.strange:
		want = codes.NotFound
	case t.published && t.release != nil:
		want = codes.Aborted
	}
	if err := r.answer(s, rpc{call: v.unpublishCall(r, t)}, want); err != nil {
		return err
	}
	switch want {
	case codes.Aborted:
		t.leaving = true
	case codes.OK:
		return r.gone(v, t)
	}
	return nil
}

// gone is when a target has been taken away. With the last one goes what waited for it.
func (r *run) gone(v *persistent, t *target) error {
	t.published, t.leaving, t.left = false, false, 0
	if v.unstaging && !v.published() {
		v.staged, v.unstaging = false, false
		return r.until(func() error { return r.mounts(v.stagedAt(), 0) })
	}
	return nil
}

func (r *run) write(v *persistent, s Step) error {
	t := &v.targets[s.Arg%2]
	if !t.published || t.readOnly {
		return nil
	}
	v.content = fmt.Sprintf("%s %v", v.name, s)
	return r.WriteFile(v.file(t), v.content)
}

// file is where its content is.
func (v *persistent) file(t *target) string {
	if v.class.fs == "" {
		return t.path
	}
	return t.path + "/f"
}

func (r *run) hold(v *persistent, s Step) error {
	t := &v.targets[s.Arg%2]
	if !t.published || t.release != nil {
		return nil
	}
	how := contract.HoldCwd
	if v.class.fs == "" {
		how = contract.HoldDevice
	}
	_, t.release = r.Hold(r.t, how, t.path)
	return nil
}

func (r *run) release(v *persistent, s Step) error {
	t := &v.targets[s.Arg%2]
	if t.release == nil {
		return nil
	}
	t.release()
	t.release = nil
	if !t.leaving { // what is being taken away goes by itself
		return nil
	}
	if err := r.until(func() error { return r.nothing(t.path) }); err != nil {
		return fmt.Errorf("after its user has ended: %w", err)
	}
	return r.gone(v, t)
}

func (v *persistent) letGo() {
	for k := range v.targets {
		if t := &v.targets[k]; t.release != nil {
			t.release()
			t.release = nil
		}
	}
}

func (v *persistent) rebooted(r *run) {
	v.stagedLeft = v.stagedLeft || v.staged && !v.unstaging && v.class.fs == ""
	v.staged, v.unstaging = false, false
	for k := range v.targets {
		t := &v.targets[k]
		if t.strange {
			r.Remove(r.t, t.path)
		}
		if t.published && !t.leaving {
			t.left = v.kind()
		}
		t.published, t.leaving, t.strange = false, false, false
	}
}

func (r *run) stats(v *persistent, s Step) error {
	t, want := &v.targets[s.Arg%2], codes.OK
	if !t.published {
		want = codes.NotFound
	}
	return r.answer(s, rpc{call: func(ctx context.Context) error {
		_, err := r.Node().NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: t.path})
		return err
	}}, want)
}

// destroy removes the logical volume by hand.
func (r *run) destroy(v *persistent, _ Step) error {
	if v.exists && !v.used() && !r.pinned(v) {
		r.DestroyLV(r.t, v.ref)
		v.exists = false
	}
	return nil
}

func (r *run) deactivate(v *persistent, _ Step) error {
	if v.exists && !v.used() {
		r.DeactivateLV(r.t, v.ref)
	}
	return nil
}

// foreign mounts something else at a target, or takes it away.
func (r *run) foreign(v *persistent, s Step) error {
	switch t := &v.targets[s.Arg%2]; {
	case t.strange:
		r.Unmount(r.t, t.path)
		r.Remove(r.t, t.path)
		t.strange = false
	case !t.published && t.left == 0 && s.Arg%4 < 2:
		r.Bind(r.t, r.strange, t.path)
		t.strange = true
	}
	return nil
}

// alien makes a logical volume of that name that is not the driver's, or takes it away.
func (r *run) alien(v *persistent, s Step) error {
	switch {
	case v.isAlien:
		r.DestroyLV(r.t, v.ref)
		v.isAlien = false
	case !v.exists && s.Arg%3 == 0:
		r.MakeLV(r.t, v.ref, 8<<20, "somebody-elses")
		v.isAlien = true
	}
	return nil
}

// checkPersistent compares the world with what is known of the volume; with deep LVM is asked too.
func (r *run) checkPersistent(v *persistent, deep bool) error {
	var errs []error
	fail := func(err error) { errs = append(errs, err) }
	if deep {
		f, ok := r.LV(r.t, v.ref)
		if ok != (v.exists || v.isAlien) || v.exists && f.SizeBytes != v.bytes {
			fail(fmt.Errorf("logical volume %s is there: %t (%+v); want: %t, with %d bytes", v.ref, ok, f, v.exists || v.isAlien, v.bytes))
		}
	}
	fail(r.mounts(v.stagedAt(), count(v.staged)))
	for k := range v.targets {
		t := &v.targets[k]
		fail(r.mounts(t.path, count(t.published || t.strange)))
		if !t.published && !t.strange && t.left == 0 {
			fail(r.nothing(t.path))
		}
		if t.published && v.content != "" {
			fail(r.contains(v.file(t), v.content))
		}
	}
	return errors.Join(errs...)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// contains is nil when the file, or device, begins with the content.
func (r *run) contains(path, content string) error {
	switch got, err := r.ReadFile(path); {
	case err != nil:
		return err
	case !strings.HasPrefix(got, content):
		return fmt.Errorf("%s holds %.100q, want %q", path, got, content)
	}
	return nil
}

// clear takes the volume away, as a CO does, from whatever state it is in.
func (r *run) clear(v *persistent, _ Step) error {
	if v.isAlien || r.pinned(v) {
		return nil
	}
	if err := r.endPersistent(v); err != nil {
		return err
	}
	v.exists, v.staged, v.unstaging, v.stagedLeft = false, false, false, false
	for k := range v.targets {
		v.targets[k] = target{path: v.targets[k].path}
	}
	return nil
}

func (r *run) endPersistent(v *persistent) error {
	v.letGo()
	for k := range v.targets {
		if v.targets[k].strange {
			_ = r.foreign(v, Step{Arg: k}) // it has no error
		}
		if err := r.answer(Step{Do: "unpublish"}, rpc{call: v.unpublishCall(r, &v.targets[k])}, codes.OK); err != nil {
			return err
		}
	}
	if v.isAlien {
		r.DestroyLV(r.t, v.ref)
	}
	return errors.Join(
		r.answer(Step{Do: "unstage"}, rpc{call: v.unstageCall(r)}, codes.OK),
		r.answer(Step{Do: "delete"}, rpc{call: v.deleteCall(r)}, codes.OK))
}
