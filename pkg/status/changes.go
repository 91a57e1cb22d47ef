package status

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
	was, now := keys(s.all), keys(is)
	for _, c := range is {
		if !was[c.key()] {
			c.Begins = true
			out = append(out, c)
		}
	}
	for _, c := range s.all {
		switch {
		case now[c.key()]:
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

// changeKey tells one condition from others. The message is not in it: it may differ, as how full a pool is does.
type changeKey struct {
	reason, status string
	volume         string // its uuid; "": it is of the node's storage
}

func (c Change) key() changeKey {
	k := changeKey{reason: c.Reason, status: c.Status}
	if c.Volume != nil {
		k.volume = c.Volume.UUID
	}
	return k
}

func keys(all []Change) map[changeKey]bool {
	out := map[changeKey]bool{}
	for _, c := range all {
		out[c.key()] = true
	}
	return out
}
