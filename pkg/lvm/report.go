package lvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// group is a volume group with all its logical volumes that are not internal to another, ours or not.
type group struct {
	volume.Group
	seqno int64 // counts the changes of its metadata
	lvs   map[string]volume.LV

	// From the metadata text only, by logical volume.
	lies    map[string][]string      // uuids of the physical volumes below it
	layouts map[string]volume.Layout // of its last segment, with which LVM goes on when it grows

	// From a report only.
	roles map[string]string // "public,origin,thickorigin", as lvs(8) tells it
	uuids map[string]string // of its physical volumes, to their devices; "" where LVM finds none

	marks map[string]commitMark // by device: the metadata this was read from; nil: cannot be told, ask LVM each time
}

// The fields of the one report. None of them makes LVM ask the kernel about devices, which can be slow, or hang where
// one is suspended: lv_attr, lv_health_status and the percentages do.
var (
	vgFields = []string{"vg_name", "vg_uuid", "vg_extent_size", "vg_size", "vg_free", "vg_missing_pv_count", "vg_seqno"}
	pvFields = []string{"pv_name", "pv_uuid", "pv_size", "pv_free", "pv_missing", "pv_allocatable"}
	lvFields = []string{"lv_name", "lv_uuid", "lv_size", "lv_tags", "lv_layout", "lv_role", "pool_lv", "origin"}
	// Of thin volumes, which have one segment each: what is told of segments only.
	segFields = []string{"lv_uuid", "thin_id"}
)

// reportArgs is one command that tells all of all groups (lvmreport(7)). The other subreport of fullreport is emptied
// by a selection that nothing meets.
func reportArgs() []string {
	args := []string{"--reportformat", "json", "--units", "b", "--nosuffix"}
	for _, r := range []struct {
		name   string
		fields []string
	}{{"vg", vgFields}, {"pv", pvFields}, {"lv", lvFields}} {
		args = append(args, "--configreport", r.name, "-o", strings.Join(r.fields, ","))
	}
	return append(args, "--configreport", "pvseg", "-S", `vg_name=""`,
		"--configreport", "seg", "-o", strings.Join(segFields, ","), "-S", "segtype=thin")
}

// report asks LVM for all groups that allows names, or one group where vg is given. A report that is not whole is an
// error: what it does not show may well be there.
func (c *commands) report(ctx context.Context, vg string, allows func(string) bool) (map[string]*group, error) {
	args := reportArgs()
	if vg != "" {
		args = append(args, vg)
	}
	res, err := c.read(ctx, "fullreport", args...)
	if err != nil {
		return nil, err
	}
	return parseReport([]byte(res.Stdout), allows)
}

type row map[string]json.RawMessage

type subreports struct {
	VG  []row `json:"vg"`
	PV  []row `json:"pv"`
	LV  []row `json:"lv"`
	Seg []row `json:"seg"`
}

// parseReport reads the output of fullreport. LVM prints some advice to standard output too, before and between the
// lines of the report (lvm2 lib/log/log.c, log_print): such lines are passed over. A field that is missing or has a
// value nobody expects is an error.
func parseReport(out []byte, allows func(string) bool) (map[string]*group, error) {
	var doc struct {
		Report []subreports `json:"report"`
	}
	text := reportText(out)
	if text == nil {
		return nil, errors.New("LVM's report: no report in the output")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("LVM's report: %w", err)
	}
	if doc.Report == nil {
		return nil, errors.New("LVM's report: no list of reports")
	}
	groups := map[string]*group{}
	for _, sub := range doc.Report {
		if len(sub.VG) == 0 {
			continue // physical volumes of no group
		}
		if len(sub.VG) != 1 {
			return nil, fmt.Errorf("LVM's report: %d groups in one", len(sub.VG))
		}
		name, err := (&reader{row: sub.VG[0]}).name("vg_name")
		if err != nil {
			return nil, err
		}
		if !allows(name) {
			continue
		}
		if groups[name] != nil {
			return nil, fmt.Errorf("LVM's report: there are two volume groups named %s; rename one of them with vgrename and its uuid", name)
		}
		if groups[name], err = readReport(name, sub); err != nil {
			return nil, fmt.Errorf("LVM's report of group %s: %w", name, err)
		}
	}
	return groups, nil
}

// reportText takes the lines that belong to the report.
func reportText(out []byte) []byte {
	var text []byte
	for line := range bytes.Lines(out) {
		trimmed := bytes.TrimSpace(line)
		if len(trimmed) == 0 {
			continue
		}
		if c := trimmed[0]; text == nil && c != '{' || strings.IndexByte(`{}[],"`, c) < 0 {
			continue
		}
		text = append(text, line...)
	}
	return text
}

func readReport(name string, sub subreports) (*group, error) {
	r := &reader{row: sub.VG[0]}
	g := &group{lvs: map[string]volume.LV{}, roles: map[string]string{}, uuids: map[string]string{}}
	g.Name, g.UUID = name, r.word("vg_uuid")
	g.ExtentBytes, g.SizeBytes, g.FreeBytes = r.number("vg_extent_size"), r.number("vg_size"), r.number("vg_free")
	g.seqno = r.number("vg_seqno")
	missing := r.number("vg_missing_pv_count")
	if r.err == nil && (g.ExtentBytes == 0 || g.UUID == "") {
		r.err = errors.New("no extent size, or no uuid")
	}
	for _, pv := range sub.PV {
		r.row = pv
		uuid, device := r.word("pv_uuid"), r.word("pv_name")
		// "[unknown]", in older versions "unknown device", is what LVM calls a device it does not find.
		if r.word("pv_missing") != "" || !strings.HasPrefix(device, "/") {
			g.MissingPVs++
			device = ""
		}
		g.uuids[uuid] = device
		g.PVs = append(g.PVs, volume.PV{Device: device, SizeBytes: r.number("pv_size"), FreeBytes: r.number("pv_free"), Allocatable: r.word("pv_allocatable") != ""})
	}
	g.MissingPVs = max(g.MissingPVs, int(missing))
	virtual := map[string]int64{}
	thinIDs := map[string]int64{}
	for _, seg := range sub.Seg {
		r.row = seg
		thinIDs[r.word("lv_uuid")] = r.number("thin_id")
	}
	var pools []string
	for _, lv := range sub.LV {
		r.row = lv
		v := volume.LV{Ref: volume.Ref{VG: name, LV: r.word("lv_name")}, UUID: r.word("lv_uuid"), SizeBytes: r.number("lv_size"), Pool: r.word("pool_lv"), Origin: r.word("origin")}
		v.Tags = volume.ParseTags(strings.Split(r.word("lv_tags"), ","))
		layout := strings.Split(r.word("lv_layout"), ",")
		v.Type = layoutType(layout)
		if slices.Contains(layout, "pool") && slices.Contains(layout, "thin") {
			pools = append(pools, v.LV)
		}
		if v.Type != volume.Thin {
			v.Pool = "" // a cached volume has a pool too
		} else if v.ThinID = thinIDs[v.UUID]; v.ThinID == 0 && r.err == nil {
			return nil, fmt.Errorf("thin volume %s has no device number", v.LV)
		}
		if v.LV == "" || v.UUID == "" {
			return nil, errors.New("a logical volume without name or uuid")
		}
		g.lvs[v.LV], g.roles[v.LV] = v, r.word("lv_role")
		virtual[v.Pool] += v.SizeBytes
	}
	for _, p := range pools {
		g.Pools = append(g.Pools, volume.Pool{Name: p, SizeBytes: g.lvs[p].SizeBytes, VirtualBytes: virtual[p]})
	}
	g.sort()
	return g, r.err
}

// sort brings physical volumes and pools into one order, whatever the source.
func (g *group) sort() {
	slices.SortFunc(g.PVs, func(a, b volume.PV) int { return strings.Compare(a.Device, b.Device) })
	slices.SortFunc(g.Pools, func(a, b volume.Pool) int { return strings.Compare(a.Name, b.Name) })
}

// layoutType gives the type for LVM's words for a layout (lvm2 lib/metadata/lv_manip.c, lv_layout_and_role): "linear",
// "striped", "raid,raid5,raid5_ls", "thin,sparse". "" for mixed layouts and for those the driver does not make.
func layoutType(layout []string) volume.Type {
	has := func(words ...string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(layout, w) })
	}
	switch {
	case has("pool"), has("cache"), has("linear", "striped"):
		return ""
	case has("thin", "sparse"):
		return volume.Thin
	case has("raid", "raid1"):
		return volume.RAID1
	case has("raid", "raid5"):
		return volume.RAID5
	case has("raid", "raid6"):
		return volume.RAID6
	case has("raid", "raid10"):
		return volume.RAID10
	case slices.Equal(layout, []string{"linear"}):
		return volume.Linear
	case slices.Equal(layout, []string{"striped"}):
		return volume.Striped
	}
	return ""
}

// reader takes fields from a row of a report and keeps the first error. In the format "json" every value is a string;
// "json_std" would have numbers and lists.
type reader struct {
	row row
	err error
}

func (r *reader) word(key string) string {
	raw, ok := r.row[key]
	var s string
	if !ok {
		r.fail(fmt.Errorf("field %s is missing", key))
	} else if err := json.Unmarshal(raw, &s); err != nil {
		r.fail(fmt.Errorf("field %s: %w", key, err))
	}
	return s
}

func (r *reader) number(key string) int64 {
	s := r.word(key)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		r.fail(fmt.Errorf("field %s holds %q, no number of bytes or things", key, s))
	}
	return n
}

func (r *reader) name(key string) (string, error) {
	s := r.word(key)
	if s == "" {
		r.fail(fmt.Errorf("field %s is empty", key))
	}
	return s, r.err
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}
