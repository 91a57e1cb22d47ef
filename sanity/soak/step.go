// Package soak runs a long random history over the whole driver, against a model that knows what each answer may be and
// what the world must be after it. The history is made from a seed alone, so the same seed gives the same steps on any
// machine, and each step means something in whatever state it meets. So a part of a failing history is a history too, and
// a shorter one that fails can be looked for by leaving steps out.
//
// Why not pgregory.net/rapid, which is kept and has state machines with shrinking: it shrinks the random numbers from which
// the steps were drawn, within the process and the machine that failed. Here a history that failed on a real machine is
// replayed, and shortened, over the fake; and it is a list of words that a person can edit and run again.
package soak

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Step is one thing that somebody does. Arg chooses among its forms, as its reader likes. How is what befalls the call, with N.
type Step struct {
	Do   string
	Slot int
	Arg  int
	How  string
	N    int
}

// What befalls a call. Each is followed by the same call without, repeated as a CO repeats it.
const (
	twice       = "twice"       // several equal calls at once
	against     = "against"     // its opposite at the same time
	lost        = "lost"        // the caller leaves after N ms
	killBefore  = "kill-before" // the driver is killed before its N-th effect
	killAfter   = "kill-after"  // or after it
	failBefore  = "fail-before" // the N-th effect fails
	failAfter   = "fail-after"  // or happens, and is said to have failed
	panicAt     = "panic-at"    // the driver's code panics there
	maxEffect   = 14            // so many effects has a call, or a few more
	oneInLonger = 3             // of that many disturbed calls one has a larger N
)

var disturbances = []string{twice, against, lost, killBefore, killAfter, failBefore, failAfter, panicAt}

// String gives the step as Parse reads it.
func (s Step) String() string {
	text := fmt.Sprintf("%s %d %d", s.Do, s.Slot, s.Arg)
	if s.How != "" {
		text += fmt.Sprintf(" %s %d", s.How, s.N)
	}
	return text
}

// Join writes a history, and Parse reads it.
func Join(steps []Step) string {
	var words []string
	for _, s := range steps {
		words = append(words, s.String())
	}
	return strings.Join(words, "; ")
}

// Parse reads what Join wrote.
func Parse(text string) ([]Step, error) {
	var steps []Step
	for part := range strings.SplitSeq(text, ";") {
		f := strings.Fields(part)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 && len(f) != 5 || doings[f[0]].run == nil {
			return nil, fmt.Errorf("%q is not a step", part)
		}
		s := Step{Do: f[0]}
		if len(f) == 5 {
			s.How = f[3]
		}
		for at, n := range map[int]*int{1: &s.Slot, 2: &s.Arg, 4: &s.N} {
			if at >= len(f) {
				continue
			}
			var err error
			if *n, err = strconv.Atoi(f[at]); err != nil {
				return nil, fmt.Errorf("%q is not a step: %w", part, err)
			}
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Random gives n steps of the seed.
func Random(seed uint64, n int) []Step {
	random := rand.New(rand.NewPCG(seed, 0))
	var names []string // each as often as its weight
	for _, name := range order {
		for range doings[name].weight {
			names = append(names, name)
		}
	}
	steps := make([]Step, n)
	for i := range steps {
		s := Step{Do: names[random.IntN(len(names))], Slot: random.IntN(slotCount), Arg: random.IntN(64)}
		if random.IntN(2) == 0 {
			s.How, s.N = disturbances[random.IntN(len(disturbances))], 1+random.IntN(maxEffect)
			if random.IntN(oneInLonger) == 0 {
				s.N += random.IntN(2 * maxEffect)
			}
		}
		steps[i] = s
	}
	return steps
}
