package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// Options are what differs between machines.
type Options struct {
	DeepEvery int           // LVM itself is asked, and all volumes are looked at, after each step of that many
	Patience  time.Duration // how long the driver may take for what it does by itself, or what it asks to be asked for again
}

const slotCount = 8 // a step's slot is taken modulo the number of those of its kind

// doing is one kind of step, and how often it comes.
type doing struct {
	weight int
	run    func(r *run, s Step) error
}

// order is that of the kinds in a random history; a new one goes last, so that old seeds keep their meaning for the rest.
var order = []string{
	"create", "delete", "stage", "unstage", "publish", "unpublish", "write", "hold", "release", "stats", "destroy", "deactivate",
	"foreign", "alien", "inline", "uninline", "scribble", "grab", "ungrab", "list", "capacity", "kill", "restart", "reboot", "wrong",
	"clone", "restore", "snapshot", "unsnapshot", "clear",
}

var doings map[string]doing

func init() { // not a literal: the functions lead back to it
	pv := func(do func(*run, *persistent, Step) error) func(*run, Step) error {
		return func(r *run, s Step) error {
			v := r.volumes[s.Slot%len(r.volumes)]
			return errors.Join(do(r, v, s), r.checkPersistent(v, r.deep))
		}
	}
	eph := func(do func(*run, *inline, Step) error) func(*run, Step) error {
		return func(r *run, s Step) error {
			e := r.inlines[s.Slot%len(r.inlines)]
			return errors.Join(do(r, e, s), r.checkInline(e, r.deep))
		}
	}
	doings = map[string]doing{
		"create": {9, pv((*run).create)}, "delete": {4, pv((*run).delete)}, "stage": {15, pv((*run).stage)}, "unstage": {4, pv((*run).unstage)},
		"publish": {20, pv((*run).publish)}, "unpublish": {11, pv((*run).unpublish)}, "write": {8, pv((*run).write)},
		"hold": {4, pv((*run).hold)}, "release": {5, pv((*run).release)}, "stats": {2, pv((*run).stats)}, "destroy": {1, pv((*run).destroy)},
		"deactivate": {2, pv((*run).deactivate)}, "foreign": {3, pv((*run).foreign)}, "alien": {3, pv((*run).alien)},
		"inline": {14, eph((*run).publishInline)}, "uninline": {8, eph((*run).unpublishInline)}, "scribble": {4, eph((*run).writeInline)},
		"grab": {3, eph((*run).holdInline)}, "ungrab": {4, eph((*run).releaseInline)},
		"list": {2, (*run).list}, "capacity": {1, (*run).capacity}, "kill": {2, (*run).kill}, "restart": {1, (*run).restart},
		"reboot": {1, (*run).reboot}, "wrong": {2, (*run).wrong},
		"clone": {7, pv((*run).clone)}, "restore": {6, pv((*run).restore)}, "snapshot": {6, pv((*run).snapshot)}, "unsnapshot": {4, (*run).unsnapshot},
		"clear": {6, pv((*run).clear)},
	}
}

// run is one history under way.
type run struct {
	contract.Harness
	t         *testing.T
	volumes   []*persistent
	inlines   []*inline
	snapshots []*snapshot
	strange   string // a folder that is bound where it does not belong
	Options
	deep bool // whether LVM is asked after this step
	took map[string]int
}

// Run carries the history out on a machine on which no driver has run yet, and then takes everything away. The error tells
// the first step after which an answer, or the world, is not as it should be; failed is how many steps it took.
func Run(t *testing.T, h contract.Harness, steps []Step, o Options) (failed int, err error) {
	r := &run{Harness: h, t: t, Options: o, took: map[string]int{}}
	r.Start(t)
	r.prepare()
	world := r.World(t)
	for i, s := range steps {
		if i != 0 && i%500 == 0 {
			t.Logf("%d of %d steps", i, len(steps)) // seen at once with go test -v
		}
		r.deep = i%r.DeepEvery == 0
		if err := doings[s.Do].run(r, s); err != nil {
			return i + 1, fmt.Errorf("step %d, %s: %w", i+1, s, err)
		}
		if r.deep {
			if err := r.checkAll(); err != nil {
				return i + 1, fmt.Errorf("after step %d, %s: %w", i+1, s, err)
			}
		}
	}
	if err := r.end(); err != nil {
		return len(steps), fmt.Errorf("taking everything away after step %d: %w", len(steps), err)
	}
	if err := r.until(func() error {
		if now := r.World(t); now != world {
			return fmt.Errorf("the world is not what it was before:\n%s", difference(world, now))
		}
		return nil
	}); err != nil {
		return len(steps), err
	}
	r.Stop(t)
	t.Logf("%d steps: %v", len(steps), r.took)
	return 0, nil
}

// prepare makes kubelet's folders, so that they are part of the world before.
func (r *run) prepare() {
	for i, name := range []string{"soak-0", "snapshot-1", "soak 2", "soak-3", "soak-4"} {
		v := &persistent{name: name, ref: volume.Ref{VG: r.VG(), LV: volume.LVName(volume.Persistent, name)}}
		v.id = r.NodeName() + "/" + v.ref.String()
		v.staging = r.Staging(r.t, fmt.Sprintf("soak%d", i))
		for k := range v.targets {
			v.targets[k].path = r.Target(r.t, fmt.Sprintf("soak-%d-%d", i, k))
		}
		r.volumes = append(r.volumes, v)
	}
	for _, name := range []string{"soak-0", "soak-snapshot"} { // the first is also the name of a volume
		n := &snapshot{name: name, ref: volume.Ref{VG: r.VG(), LV: volume.LVName(volume.Snapshot, name)}}
		n.id = r.NodeName() + "/" + n.ref.String()
		r.snapshots = append(r.snapshots, n)
	}
	for i, letter := range []string{"a", "b", "c"} {
		e := &inline{id: "csi-" + strings.Repeat(letter, 64), pod: fmt.Sprintf("soak-inline-%d", i)}
		e.ref = volume.Ref{VG: r.VG(), LV: volume.LVName(volume.Inline, e.id)}
		e.target = r.Target(r.t, e.pod)
		e.other = r.Target(r.t, e.pod+"-other")
		r.inlines = append(r.inlines, e)
	}
	r.strange = r.Staging(r.t, "strange")
}

func (r *run) checkAll() error {
	var errs []error
	for _, v := range r.volumes {
		errs = append(errs, r.checkPersistent(v, true))
	}
	for _, e := range r.inlines {
		errs = append(errs, r.checkInline(e, true))
	}
	for _, n := range r.snapshots {
		errs = append(errs, r.holds(n.ref, n.exists))
	}
	return errors.Join(errs...)
}

// end takes everything away, as a CO does.
func (r *run) end() error {
	for i := range r.snapshots { // before their origins
		if err := r.unsnapshot(Step{Do: "unsnapshot", Slot: i}); err != nil {
			return err
		}
	}
	for _, v := range r.volumes {
		if err := r.endPersistent(v); err != nil {
			return err
		}
	}
	for _, e := range r.inlines {
		if err := r.endInline(e); err != nil {
			return err
		}
	}
	return nil
}

// rpc is a call, and what undoes it.
type rpc struct {
	call, opposite func(ctx context.Context) error
}

// answer makes the call as the step says, and checks that its last answer is want. Aborted is asked again, unless it is what is
// wanted, and comes from the call itself: one that met a retry of the driver's own at its volume has not begun. A call is
// disturbed only where it should succeed.
func (r *run) answer(s Step, c rpc, want codes.Code) error {
	if want == codes.OK {
		if err := r.disturb(s, c); err != nil {
			return err
		}
	}
	var err error
	waited := r.until(func() error {
		err = c.call(r.t.Context())
		locked := strings.Contains(status.Convert(err).Message(), "has been under way")
		if status.Code(err) == codes.Aborted && (want != codes.Aborted || locked) {
			return err
		}
		return nil
	})
	r.took[s.Do+" "+status.Code(err).String()]++
	switch {
	case waited != nil:
		return fmt.Errorf("it is answered Aborted for %s: %w", r.Patience, err)
	}
	return coded(err, want)
}

// coded is nil when the answer has the code.
func coded(err error, want codes.Code) error {
	switch {
	case status.Code(err) == want:
		return nil
	case err == nil:
		return fmt.Errorf("got OK, want %s", want)
	default:
		return fmt.Errorf("got %w, want %s", err, want)
	}
}

// disturb is the first call, which something befalls. Of its answer only the class is checked.
func (r *run) disturb(s Step, c rpc) error {
	ctx := r.t.Context()
	faults := map[string]contract.FaultKind{
		killBefore: contract.KillBefore, killAfter: contract.KillAfter, failBefore: contract.FailBefore, failAfter: contract.FailAfter, panicAt: contract.PanicAt,
	}
	switch s.How {
	case "":
		return nil
	case twice:
		return atOnce(ctx, []codes.Code{codes.OK, codes.Aborted}, c.call, c.call, c.call, c.call)
	case against:
		if c.opposite == nil {
			return nil
		}
		return atOnce(ctx, []codes.Code{codes.OK, codes.Aborted, codes.FailedPrecondition, codes.NotFound}, c.call, c.opposite)
	case lost:
		ctx, cancel := context.WithTimeout(ctx, time.Duration(s.N)*time.Millisecond)
		defer cancel()
		_ = c.call(ctx) // the answer is lost
		return nil
	}
	r.Arm(r.t, contract.Fault{N: s.N, Do: faults[s.How]})
	err := c.call(ctx)
	r.Arm(r.t, contract.Fault{})
	if !r.Running() {
		r.Start(r.t)
		return nil
	}
	if code := status.Code(err); code != codes.OK && code != codes.Aborted && code != codes.Internal {
		return fmt.Errorf("with %s %d: got %w, want OK, Aborted or Internal", s.How, s.N, err)
	}
	return nil
}

// atOnce makes calls at the same time; the answers must be among the allowed ones.
func atOnce(ctx context.Context, allowed []codes.Code, calls ...func(context.Context) error) error {
	errs := make([]error, len(calls))
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(func() {
			if err := call(ctx); !slices.Contains(allowed, status.Code(err)) {
				errs[i] = fmt.Errorf("one of %d calls at once: %w", len(calls), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// until repeats a try until it is nil, for as long as anything may take.
func (r *run) until(try func() error) error {
	end := time.Now().Add(r.Patience)
	for {
		err := try()
		if err == nil || time.Now().After(end) {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// difference gives the lines that only one of two worlds has.
func difference(before, after string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, has, lacks string }{{"-", before, after}, {"+", after, before}} {
		for line := range strings.SplitSeq(side.has, "\n") {
			if line != "" && !strings.Contains("\n"+side.lacks, "\n"+line+"\n") {
				out.WriteString(side.mark + " " + line + "\n")
			}
		}
	}
	return out.String()
}

// mounts is nil when so many mounts are at the path.
func (r *run) mounts(path string, want int) error {
	if at := r.Mounts(r.t, path); len(at) != want {
		return fmt.Errorf("%d mounts at %s, want %d", len(at), path, want)
	}
	return nil
}

// nothing is nil when there is nothing at the path.
func (r *run) nothing(path string) error {
	if f := r.Lstat(r.t, path); f.Kind != 0 {
		return fmt.Errorf("%s is there (%c), and should not", path, f.Kind)
	}
	return nil
}

// holds is nil when the logical volume is there, or not.
func (r *run) holds(ref volume.Ref, want bool) error {
	if _, ok := r.LV(r.t, ref); ok != want {
		return fmt.Errorf("logical volume %s is there: %t, want %t", ref, ok, want)
	}
	return nil
}

func (r *run) list(s Step) error {
	var want []string
	for _, v := range r.volumes {
		if v.exists {
			want = append(want, v.id)
		}
	}
	slices.Sort(want)
	var got []string
	for token := ""; ; {
		l, err := r.Controller().ListVolumes(r.t.Context(), &csi.ListVolumesRequest{MaxEntries: int32(s.Arg % 4), StartingToken: token})
		if err != nil {
			return err
		}
		for _, e := range l.GetEntries() {
			got = append(got, e.GetVolume().GetVolumeId())
		}
		if token = l.GetNextToken(); token == "" {
			break
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		return fmt.Errorf("listed are %v, want %v", got, want)
	}
	return nil
}

func (r *run) capacity(s Step) error {
	c := classes[s.Arg%len(classes)]
	got, err := r.Controller().GetCapacity(r.t.Context(), &csi.GetCapacityRequest{Parameters: c.parameters(r.Pool())})
	if err == nil && got.GetAvailableCapacity() <= 0 {
		err = fmt.Errorf("no capacity for %v", c)
	}
	return err
}

func (r *run) kill(Step) error {
	r.Kill(r.t)
	r.Start(r.t)
	return nil
}

func (r *run) restart(Step) error {
	r.Stop(r.t)
	r.Start(r.t)
	return nil
}

// reboot ends every process. What was being taken away goes; what was mounted has left its target behind.
func (r *run) reboot(s Step) error {
	for _, v := range r.volumes {
		v.letGo()
	}
	for _, e := range r.inlines {
		e.letGo()
	}
	r.Reboot(r.t, s.Arg%2 == 0)
	for _, v := range r.volumes {
		v.rebooted(r)
	}
	for _, e := range r.inlines {
		e.rebooted()
	}
	r.Start(r.t)
	var errs []error
	for _, v := range r.volumes {
		errs = append(errs, r.until(func() error { return r.checkPersistent(v, false) }))
	}
	for _, e := range r.inlines {
		errs = append(errs, r.until(func() error { return r.checkInline(e, true) }))
	}
	return errors.Join(errs...)
}

// wrong is a call that can do nothing.
func (r *run) wrong(s Step) error {
	ctx, v := r.t.Context(), r.volumes[s.Slot%len(r.volumes)]
	unknown := r.NodeName() + "/" + r.VG() + "/unknown"
	var err error
	var want codes.Code
	switch s.Arg % 6 {
	case 0:
		_, err = r.Controller().CreateVolume(ctx, &csi.CreateVolumeRequest{Name: v.name})
		want = codes.InvalidArgument
	case 1:
		_, err = r.Controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: unknown})
	case 2:
		_, err = r.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: "relative"})
		want = codes.InvalidArgument
	case 3:
		_, err = r.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: unknown, StagingTargetPath: r.strange, VolumeCapability: classes[0].capability("")})
		want = codes.NotFound
	case 4:
		_, err = r.Controller().CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "too-large", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 60},
			VolumeCapabilities: []*csi.VolumeCapability{classes[0].capability("")}})
		want = codes.OutOfRange
	case 5:
		_, err = r.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: unknown, TargetPath: r.strange + "/none"})
	}
	return coded(err, want)
}
