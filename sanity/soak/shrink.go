package soak

import (
	"slices"
	"time"
)

// Shrink looks for a shorter history that fails, by leaving out parts of one that does, ever smaller ones. fails replays a
// history; it is asked until nothing can be left out any more, or the time is over. The beginning is what most likely can go.
func Shrink(steps []Step, bound time.Duration, fails func([]Step) bool) []Step {
	end := time.Now().Add(bound)
	over := func() bool { return time.Now().After(end) }
	for last := 25; last < len(steps) && !over(); last *= 2 {
		if tail := steps[len(steps)-last:]; fails(tail) {
			steps = slices.Clone(tail)
			break
		}
	}
	for part := (len(steps) + 1) / 2; part > 0; part /= 2 {
		for at := 0; at < len(steps) && !over(); {
			less := slices.Delete(slices.Clone(steps), at, min(at+part, len(steps)))
			if fails(less) {
				steps = less
			} else {
				at += part
			}
		}
	}
	for i := range steps { // what is not disturbed is simpler
		if plain := slices.Clone(steps); plain[i].How != "" && !over() {
			if plain[i].How, plain[i].N = "", 0; fails(plain) {
				steps = plain
			}
		}
	}
	return steps
}
