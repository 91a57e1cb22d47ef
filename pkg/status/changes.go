package status

import "slices"

// Change is a condition that has begun, or has ended.
type Change struct {
	Begins bool
	Condition
	Volume *Volume // nil: it is of the node's storage
}

// Standing are the conditions that last. The zero value has none. Not for use by several goroutines.
type Standing struct{ all []Change }

// Next takes the next report, and gives what has changed. Where the report does not know all, nothing has ended.
func (s *Standing) Next(r *Report) (out []Change) {
	is := standing(r)
	for _, c := range is {
		if !slices.ContainsFunc(s.all, c.same) {
			c.Begins = true
			out = append(out, c)
		}
	}
	for _, c := range s.all {
		switch {
		case slices.ContainsFunc(is, c.same):
		case len(r.Unknown) != 0:
			is = append(is, c)
		default:
			out = append(out, c)
		}
	}
	s.all = is
	return out
}

// standing gives all conditions of a report.
func standing(r *Report) (out []Change) {
	for _, c := range r.Storage {
		out = append(out, Change{Condition: c})
	}
	for i, v := range r.Volumes {
		for _, c := range v.Conditions {
			out = append(out, Change{Condition: c, Volume: &r.Volumes[i]})
		}
	}
	return out
}

// same: the message may differ, as how full a pool is does.
func (c Change) same(o Change) bool {
	return c.Reason == o.Reason && c.Status == o.Status && (c.Volume == nil) == (o.Volume == nil) && (c.Volume == nil || c.Volume.UUID == o.Volume.UUID)
}
