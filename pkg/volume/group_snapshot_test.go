package volume

import (
	"slices"
	"testing"
)

func TestMembership(t *testing.T) {
	m := Membership{Ref{"data", LVName(Together, "g")}, 3}
	s := Spec{Ref: Ref{"data", "s-1"}, Kind: Snapshot, Name: MemberName("g", Ref{"data", "v"}), Origin: LV{Ref: Ref{"data", "v"}}, Group: m, Held: true}
	tags := s.Tags("d")
	checkTags(t, tags)
	if got, ok := tags.Membership(); !ok || got != m || tags.State != Cutting {
		t.Errorf("%+v, %v of %+v", got, ok, tags)
	}
	for _, text := range []string{"", "data/g", "data/g/0", "data/g/-1", "data/g/x", "data/g/1/2"} {
		if got, ok := (Tags{Group: text}).Membership(); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	whole := tags
	whole.State = ""
	lv := LV{Type: Thin, Tags: whole}
	if err := WholeGroup([]LV{lv, lv, lv}); err != nil {
		t.Error(err)
	}
	if WholeGroup([]LV{lv, lv}) == nil || WholeGroup([]LV{lv, lv, {Type: Thin, Tags: tags}}) == nil {
		t.Error("what is not whole is called whole")
	}
	for n, shown := range map[int]int{2: 0, 3: 3} {
		if got := OfWholeGroups(append(slices.Repeat([]LV{lv}, n), LV{})); len(got) != shown+1 {
			t.Errorf("of %d of 3 members %d are shown", n, len(got)-1)
		}
	}
	if LVName(Persistent, LVName(Together, "g")) == LVName(Together, "g") {
		t.Error("a volume can have the name of a group")
	}
}
