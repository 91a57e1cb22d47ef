package volume

import (
	"path"
	"slices"
	"strings"
)

// Patterns say which volume groups the driver uses (--volume-groups): names, or globs as path.Match reads them. Groups
// outside them do not exist for the driver. The order counts: see Default.
type Patterns []string

// ParsePatterns checks the elements of --volume-groups. There must be at least one.
func ParsePatterns(list []string) (Patterns, error) {
	const field = "--volume-groups"
	if len(list) == 0 {
		return nil, Invalid(field, "", "missing; name the volume groups the driver is to use")
	}
	for _, p := range list {
		if !isGlob(p) {
			if err := CheckVG(field, p); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := path.Match(p, "x"); err != nil || strings.ContainsAny(p, "/\\, ") {
			return nil, Invalid(field, p, "no valid glob; it may hold *, ? and [...]")
		}
	}
	return slices.Clone(list), nil
}

func isGlob(p string) bool { return strings.ContainsAny(p, "*?[") }

// Match reports whether the driver uses the volume group of this name. Whether it exists is another question.
func (ps Patterns) Match(vg string) bool {
	return slices.ContainsFunc(ps, func(p string) bool {
		ok, err := path.Match(p, vg)
		return ok && err == nil
	})
}

// Default names the volume group for requests that name none: the first element if that is a name, whether or not the
// group is there (a missing disk must not send new volumes elsewhere unasked); of a glob's matches the first by name.
// "": the first element is a glob that nothing matches.
func (ps Patterns) Default(groups []Group) string {
	first := ps[0]
	if !isGlob(first) {
		return first
	}
	var found []string
	for _, g := range groups {
		if ps[:1].Match(g.Name) {
			found = append(found, g.Name)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}
