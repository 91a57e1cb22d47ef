package volume

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Membership says which snapshots a snapshot was made together with. It is in the tags of each, so that what belongs together, and
// whether all of it is there, can be told without anything else.
type Membership struct {
	Ref     // names the group: the volume group of its first member, and a name that LVName makes of the CO's; there is no such logical volume
	Members int
}

// Cutting is the state of a thin snapshot of a group from when its logical volume is made until its content is cut.
const Cutting = "cutting"

// String gives the form of the tag, VG/NAME/MEMBERS; "" is the zero value's.
func (m Membership) String() string {
	if m.Members == 0 {
		return ""
	}
	return m.Ref.String() + "/" + strconv.Itoa(m.Members)
}

// Membership reads the tag. ok is false for a snapshot that was made alone.
func (t Tags) Membership() (m Membership, ok bool) {
	parts := strings.Split(t.Group, "/")
	if len(parts) != 3 {
		return m, false
	}
	n, err := strconv.Atoi(parts[2])
	return Membership{Ref{parts[0], parts[1]}, n}, err == nil && n > 0
}

// MemberName gives the name of the snapshot of a volume in the group of that name. No CO can give a snapshot that name: it holds a control
// character.
func MemberName(group string, source Ref) string { return group + "\x1f" + source.String() }

// WholeGroup is nil where these are all snapshots of their group, and each is whole.
func WholeGroup(members []LV) error {
	for _, lv := range members {
		m, _ := lv.Tags.Membership()
		if m.Members != len(members) {
			return fmt.Errorf("%w: of %d snapshots of group %s %d are there", ErrPending, m.Members, m.Ref, len(members))
		}
		if err := lv.Whole(); err != nil {
			return err
		}
	}
	return nil
}

// OfWholeGroups gives the logical volumes without the snapshots of groups of which one is missing or not whole: those that are being made or
// deleted, or were when everything about them was lost.
func OfWholeGroups(lvs []LV) []LV {
	groups := map[Ref][]LV{}
	for _, lv := range lvs {
		if m, ok := lv.Tags.Membership(); ok {
			groups[m.Ref] = append(groups[m.Ref], lv)
		}
	}
	return slices.DeleteFunc(slices.Clone(lvs), func(lv LV) bool {
		m, ok := lv.Tags.Membership()
		return ok && WholeGroup(groups[m.Ref]) != nil
	})
}
