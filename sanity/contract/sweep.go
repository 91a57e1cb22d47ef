package contract

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
)

// The fault sweep: for each call in each of its scenarios, every kind of fault at every effect, and after it each of the
// things that a CO can do: it repeats the call, it takes back what it asked for, or it never comes again.
//
// A point is good if all of this holds:
//   - repeated, the call is answered OK, and has done what it is for;
//   - taken back, everything is answered OK;
//   - left alone, the machine comes to rest where the driver owes it to (see owes), without any call;
//   - in the end the world is what it was at the beginning: no logical volume, device, mount, folder, file or record
//     too many, nothing suspended; and until the volume was deleted its data was what had been written;
//   - a volume for which a call was answered OK is there;
//   - with an error that is final to the CO nothing is left of what the call began: kubelet forgets the volume then
//     (isFinalError in kubernetes/pkg/volume/csi/csi_client.go).
//
// case B3, case B13, case B14, case B15, case B17, case B21; traps 2, 3, 7 and 13

// sweepKinds are the kinds of faults.
var sweepKinds = []Fault{
	{Do: KillBefore}, {Do: KillAfter}, {Do: PanicAt}, {Do: FailAfter},
	{Do: FailBefore, Errno: syscall.EIO}, {Do: FailBefore, Errno: syscall.ENOSPC}, {Do: FailBefore, Errno: syscall.EBUSY},
}

// follow is what the CO does after the fault.
type follow int

const (
	retried follow = iota // it repeats the call
	undone                // it takes everything back
	alone                 // it never comes again
	follows
)

// owes is where the driver brings the machine by itself, once a call has ended without OK and nobody comes again.
type owes int

const (
	// nothing: what a call that was killed has done so far stays, for the CO does not know how it ended either; all of it is
	// on the way from before to after. Any other error leaves the world as before the call.
	owesNothing owes = iota
	owesUndone       // as before the call
	owesDone         // as after the call, from the moment on at which its intent is in the journal
	// owesEither: as owesNothing, but of any other error too. The call is a command of LVM's that is not taken back, and may have
	// done its work where it failed.
	owesEither
)

// act is one scenario on one machine.
type act struct {
	call   func() error // the call that is swept
	verify func() error // what must hold when it was answered OK
	undo   func() error // takes back everything, whatever there is; it compares the data before the volume goes
	vanish func()       // the pod goes without a call, as when the machine was reset; nil: it does not
}

type scenario struct {
	rpc, name string
	effects   string // what the call does where nothing goes wrong; flush is that of any number of disks
	owes      owes
	begin     func(c caller) act
}

func (s scenario) creates() bool { return strings.HasPrefix(s.rpc, "Create") }

// sweeper sweeps one scenario.
type sweeper struct {
	scenario
	c             caller
	clean         string // the world without any volume
	before, after string // the worlds around the call
	row           row
}

// row is a line of the table.
type row struct {
	points, retried, undone, alone, kept, bad int
}

// Sweep sweeps the scenarios of the calls that want names, each on a machine of its own, and prints the table of what it came to. stride 1
// takes every point, n every n-th.
func Sweep(t *testing.T, newHarness func(t *testing.T) Harness, stride int, want func(rpc, scenario string) bool) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "call\tscenario\tpoints\tby the retry\ttaken back\tby itself\tkept\tbad")
	for _, sc := range scenarios {
		if !want(sc.rpc, sc.name) {
			continue
		}
		t.Run(sc.rpc+"/"+strings.ReplaceAll(sc.name, " ", "-"), func(t *testing.T) {
			s := &sweeper{scenario: sc}
			s.sweep(t, newHarness, stride)
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", sc.rpc, sc.name,
				s.row.points, s.row.retried, s.row.undone, s.row.alone, s.row.kept, s.row.bad)
		})
	}
	_ = w.Flush()
	t.Logf("one point is one fault at one effect and what the CO does then;\n"+
		"kept: a volume that was made, and whose answer the CO may have got\n%s", &table)
}

// tooBad is the number of bad points at which a scenario is given up.
const tooBad = 5

// sweep takes the points of a scenario. After a bad one the machine is not what it was, and the rest goes on on a new one.
func (s *sweeper) sweep(t *testing.T, newHarness func(t *testing.T) Harness, stride int) {
	for done := 0; done >= 0 && s.row.bad < tooBad; {
		from := done
		t.Run(fmt.Sprintf("from-%d", from), func(t *testing.T) {
			done = -1 // where it cannot even begin there is nothing to go on with
			h := newHarness(t)
			h.Orphans("remove", Grace)
			if s.rpc == "NodeExpandVolume" { // so that it has more to do
				h.ExpandOn("node")
			}
			h.Attach(s.rpc == "ControllerPublishVolume" || s.rpc == "ControllerUnpublishVolume")
			s.c, _ = started(t, h)
			s.c.kubelet() // a folder of pods that is empty proves nothing
			s.clean = s.c.World(t)
			points := s.points(s.learn(), stride)
			for i, p := range points {
				if i < from {
					continue
				}
				if i%10 == 0 {
					t.Logf("point %d of %d", i, len(points))
				}
				done = i + 1
				s.row.points++
				s.row.bad++ // until it has ended well
				if err := s.point(p); err != nil {
					t.Fatalf("%s %s %s, %s: %v", p.fault.Do, p.verb(), p.at.Detail, p.how, err)
				}
				s.row.bad--
			}
			done = -1
		})
	}
}

// point is one fault at one effect, and what the CO does then.
type point struct {
	fault Fault
	at    effect.Effect
	how   follow
}

// points gives every stride-th point, and three at least: of a call with few effects they are nearer to each other.
func (s *sweeper) points(seen []effect.Effect, stride int) (out []point) {
	var all []point
	for _, kind := range sweepKinds {
		for n := range seen {
			if flush(seen[n]) && flush(seen[n-1]) {
				continue // one disk stands for all
			}
			for how := range follows {
				f := kind
				f.N = n + 1
				all = append(all, point{f, seen[n], how})
			}
		}
	}
	if stride = min(stride, len(all)/3); stride%int(follows) == 0 { // each way to go on
		stride--
	}
	for i := stride; i <= len(all); i += stride {
		out = append(out, all[i-1])
	}
	return out
}

// flush reports whether the effect is the flush of a disk of LVM's.
func flush(e effect.Effect) bool { return e.Op == "fsync" && strings.HasPrefix(e.Detail, "/dev/") }

func (p point) verb() string {
	if p.fault.Errno != 0 {
		return fmt.Sprintf("(%v) %s", p.fault.Errno, p.at.Op)
	}
	return p.at.Op
}

func (f follow) String() string { return [...]string{"repeated", "taken back", "left alone"}[f] }

// learn carries the scenario out without a fault.
func (s *sweeper) learn() []effect.Effect {
	s.c.t.Helper()
	a := s.begin(s.c)
	s.before = s.c.World(s.c.t)
	s.c.Arm(s.c.t, Fault{})
	s.c.ok(a.call())
	seen := s.c.Effects(s.c.t)
	s.after = s.c.World(s.c.t)
	s.c.ok(a.verify())
	s.c.ok(a.undo())
	wantWorld(s.c.t, s.c, s.clean, "without a fault")
	var names []string
	for i, e := range seen {
		switch {
		case !flush(e):
			names = append(names, EffectName(e))
		case !flush(seen[i-1]):
			names = append(names, "flush")
		}
	}
	if got := strings.Join(names, " "); got != s.effects {
		s.c.t.Errorf("the effects of the call are\n%s, want\n%s", got, s.effects)
	}
	return seen
}

// EffectName is what an effect is called: its operation, or the program that it runs.
func EffectName(e effect.Effect) string {
	if e.Op != "run" {
		return e.Op
	}
	words := strings.Fields(e.Detail)
	if words[0] == "lvm" {
		words = words[1:]
	}
	return words[0][strings.LastIndex(words[0], "/")+1:]
}

// point puts one fault, and sees how it ends.
func (s *sweeper) point(p point) error {
	c := s.c
	a := s.begin(c)
	c.Arm(c.t, p.fault)
	answer := c.repeatWhileLocked(a.call)
	end := c.World(c.t)
	if err := s.told(p.fault, p.at, answer, end); err != nil {
		return err
	}
	killed := !c.Running()
	if killed {
		c.Start(c.t)
	} else {
		c.Arm(c.t, Fault{})
	}
	var err error
	switch p.how {
	case retried:
		s.row.retried++
		if err = s.repeat(a.call); err == nil {
			err = a.verify()
		}
	case undone:
		s.row.undone++
	case alone:
		err = s.rest(a, answer, killed, end)
	}
	if err == nil {
		err = s.repeat(a.undo)
	}
	if err != nil {
		return fmt.Errorf("answered %q; then %w", status.Convert(answer).Message(), err)
	}
	return s.reaches("after all was taken back", s.clean)
}

// told checks the answer: busy is told apart from failed, and a program that failed from one that did not.
func (s *sweeper) told(f Fault, at effect.Effect, answer error, end string) error {
	var want []codes.Code
	switch {
	case f.Do == KillBefore, f.Do == KillAfter:
		want = []codes.Code{codes.Unavailable, codes.Canceled}
	case f.Do == PanicAt:
		want = []codes.Code{codes.Internal}
	case s.creates(): // pending: what was made cannot be recorded as handed out
		want = []codes.Code{codes.OK, codes.Internal, codes.Aborted}
	case at.Op == "run":
		want = []codes.Code{codes.Internal}
	default:
		want = []codes.Code{codes.OK, codes.Internal}
	}
	if !slices.Contains(want, status.Code(answer)) {
		return fmt.Errorf("answered %w, want one of %v", answer, want)
	}
	if status.Code(answer) == codes.Internal && s.owes != owesDone && s.owes != owesEither && end != s.before {
		return fmt.Errorf("after the final answer %w there is left:%s", answer, difference(s.before, end))
	}
	return nil
}

// repeat calls as a CO does, until the answer is OK. It is patient with what is pending, and with nothing else.
func (s *sweeper) repeat(call func() error) (err error) {
	if !until(func() bool { err = call(); return status.Code(err) != codes.Aborted }) {
		return fmt.Errorf("still pending: %w", err)
	}
	return err
}

// rest checks where the machine comes to rest without a call. end is the world right after the call.
func (s *sweeper) rest(a act, answer error, killed bool, end string) error {
	s.row.alone++
	switch {
	case answer == nil:
		if err := s.reaches("after it was answered OK", s.after); err != nil {
			return err
		}
		return a.verify()
	case s.owes == owesDone && (!killed || strings.Contains(end, `"intent":"reclaim"`) || strings.Contains(end, `"intent":"modify"`) || strings.Contains(end, ".create-together")):
		return s.reaches("by itself, as its intent is known", s.after)
	case killed && s.creates() && end == s.after: // whole, and without a record: it may have been handed out
		s.row.alone--
		s.row.kept++
		return s.reaches("by itself", s.after)
	case !killed && s.owes == owesEither:
		return s.reaches("by itself", s.before, s.after)
	case killed && a.vanish != nil:
		a.vanish()
		return s.reaches("by itself, as its pod is gone", s.clean)
	case !killed || s.owes == owesUndone:
		return s.reaches("by itself", s.before)
	default:
		return s.between()
	}
}

// reaches waits until the world is one of these.
func (s *sweeper) reaches(when string, worlds ...string) error {
	var got string
	for i := range worlds {
		worlds[i] = s.c.withoutKubelets(worlds[i])
	}
	if until(func() bool { got = s.c.World(s.c.t); return slices.Contains(worlds, got) }) {
		return nil
	}
	return fmt.Errorf("%s, the world is not what it should be:%s", when, difference(worlds[0], got))
}

// openCount is how often a device is open; on the way it can be open less often than at either end.
var openCount = regexp.MustCompile(`(?m)^(device \S+) (open=)?\d+`)

// between checks that the world is on the way from before to after.
func (s *sweeper) between() error {
	lines := func(world string) []string { return strings.Split(openCount.ReplaceAllString(world, "$1"), "\n") }
	now, before, after := lines(s.c.World(s.c.t)), lines(s.before), lines(s.after)
	var errs []error
	for _, line := range now {
		if !slices.Contains(before, line) && !slices.Contains(after, line) {
			errs = append(errs, fmt.Errorf("too many: %s", line))
		}
	}
	for _, line := range before {
		if slices.Contains(after, line) && !slices.Contains(now, line) {
			errs = append(errs, fmt.Errorf("missing: %s", line))
		}
	}
	return errors.Join(errs...)
}
