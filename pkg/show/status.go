package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
)

// Status writes a report: the driver, the volume groups, the volumes, what is pending, what is under way, and what is wrong.
func Status(w io.Writer, r *status.Report, o Options) error {
	w = Guarded(w)
	for _, part := range []func(io.Writer, *status.Report) error{o.driver, o.groups, o.volumes, o.pending, o.underWay, o.orphans, o.wrong} {
		if err := part(w, r); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) driver(w io.Writer, r *status.Report) error {
	l := r.Driver
	state := o.paint("not running", text.FgRed) + "; what follows was found out without it"
	switch {
	case r.DriverUnknown != "":
		state = o.paint("does not answer", text.FgRed) + " (" + r.DriverUnknown + "); what follows was found out without it"
	case l != nil && l.NotReady != "":
		state = fmt.Sprintf("%s, %s: %s", l.Version, o.paint("not ready", text.FgRed), l.NotReady)
	case l != nil:
		state = fmt.Sprintf("%s, %s, up %s, pid %d", l.Version, o.paint("ready", text.FgGreen), span(r.Time.Sub(l.Since)), l.PID)
	}
	return o.wrapped(w, "", fmt.Sprintf("node %s: driver %s %s", r.Node, r.Owner, state))
}

func title(w io.Writer, s string) error {
	_, err := fmt.Fprintf(w, "\n%s\n", s)
	return err
}

func (o Options) groups(w io.Writer, r *status.Report) error {
	if len(r.Groups) == 0 {
		return nil
	}
	t := o.newTable("VOLUME GROUP", "SIZE", "FREE", "USED", "")
	for _, g := range r.Groups {
		note := fmt.Sprintf("%d disks", g.Disks)
		if g.Disks == 1 {
			note = "1 disk"
		}
		if g.Missing != 0 {
			note += ", " + o.paint(fmt.Sprintf("%d missing", g.Missing), text.FgRed)
		}
		t.AppendRow(table.Row{g.Name, size(g.SizeBytes), size(g.FreeBytes), o.bar(share(g.SizeBytes-g.FreeBytes, g.SizeBytes)), note})
		for _, p := range g.Pools {
			bar := "not active"
			if p.Data != nil {
				bar = o.bar(*p.Data)
			}
			note := "volumes of " + size(p.VirtualBytes)
			if p.Metadata != nil {
				note += fmt.Sprintf(", metadata %.0f %%", *p.Metadata*100)
			}
			t.AppendRow(table.Row{"  pool " + p.Name, size(p.SizeBytes), poolFree(p), bar, note})
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return write(w, t)
}

// poolFree is what is free in an active pool.
func poolFree(p status.Pool) string {
	if p.Data == nil {
		return ""
	}
	return size(int64((1 - *p.Data) * float64(p.SizeBytes)))
}

func share(used, of int64) float64 {
	if of <= 0 {
		return 0
	}
	return float64(used) / float64(of)
}

// wide is from how many columns on the table of volumes has the pods.
const wide = 120

func (o Options) volumes(w io.Writer, r *status.Report) error {
	switch {
	case len(r.Volumes) == 0 && r.Blind():
		return title(w, "volumes: "+o.paint("not known", text.FgRed))
	case len(r.Volumes) == 0:
		return title(w, "no volumes")
	}
	pods := o.Width == 0 || o.Width >= wide
	header := []any{"VOLUME", "KIND", "SIZE", "TYPE", "USED", "STATE", "HEALTH"}
	if pods {
		header = append(header, "POD")
	}
	rows, rest := []table.Row{}, make([]int, len(header))
	for i, h := range header {
		rest[i] = len(fmt.Sprint(h))
	}
	for _, v := range r.Volumes {
		row := table.Row{v.VG + "/" + v.LV, string(v.Kind), size(v.SizeBytes), v.Type, used(v), string(v.Boundary), o.health(v)}
		if pods {
			row = append(row, strings.Join(podsOf(v), " "))
		}
		for i, cell := range row {
			rest[i] = max(rest[i], text.StringWidthWithoutEscSequences(fmt.Sprint(cell)))
		}
		rows = append(rows, row)
	}
	t := o.newTable(header...)
	most := 0 // for the name: what the other columns leave
	if o.Width != 0 {
		most = o.Width
		for _, n := range rest[1:] {
			most -= n + 2
		}
		most = max(most-2, 12)
	}
	for _, row := range rows {
		row[0] = o.snip(fmt.Sprint(row[0]), most)
		t.AppendRow(row)
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return write(w, t)
}

func used(v status.Volume) string {
	if v.UsedBytes == nil || v.FSBytes == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", share(*v.UsedBytes, *v.FSBytes)*100)
}

func (o Options) health(v status.Volume) string {
	switch {
	case len(v.Conditions) != 0: // the worst is the first
		return o.paint(v.Conditions[0].Status, text.FgRed)
	case v.Unknown != "":
		return o.paint("unknown", text.FgYellow)
	}
	return o.paint("ok", text.FgGreen)
}

func podsOf(v status.Volume) (out []string) {
	seen := map[string]bool{}
	if v.PodUID != "" {
		seen[v.PodUID], out = true, []string{v.PodUID}
	}
	for _, m := range v.Mounts {
		if m.PodUID != "" && !seen[m.PodUID] {
			seen[m.PodUID], out = true, append(out, m.PodUID)
		}
	}
	return out
}

// intents says in words what is pending.
var intents = map[journal.Intent]string{
	journal.Create:  "a create that was cut off, or is under way",
	journal.Reclaim: "teardown",
	journal.Modify:  "change of parameters",
	journal.Reserve: "release of a pool's metadata snapshot",
}

func (o Options) pending(w io.Writer, r *status.Report) error {
	for i, p := range r.Pending {
		if i == 0 {
			if err := title(w, "PENDING"); err != nil {
				return err
			}
		}
		s := fmt.Sprintf("%s: %s, for %s", p.Ref(), intents[p.Intent], span(r.Time.Sub(p.Since)))
		if p.Tries != 0 {
			s += fmt.Sprintf(", %d tries", p.Tries)
		}
		if p.Next != nil {
			s += ", the next in " + span(p.Next.Sub(r.Time))
		}
		for _, path := range p.Paths {
			s += "\nat " + path
		}
		for _, h := range p.Holders {
			s += "\nheld by " + h
		}
		if p.Error != "" && len(p.Holders) == 0 {
			s += "\n" + p.Error
		}
		if err := o.wrapped(w, "  ", s); err != nil {
			return err
		}
	}
	return nil
}

// underWay writes what takes its time: copies, legs that are brought in step, and programs that run.
func (o Options) underWay(w io.Writer, r *status.Report) error {
	var all []string
	if r.Driver != nil {
		for _, c := range r.Driver.Copies {
			s := fmt.Sprintf("copy of %s to %s: ", c.From, c.To)
			if c.Of == 0 {
				s += "waits for its turn"
			} else {
				s += o.bar(share(c.Done, c.Of)) + " of " + size(c.Of) + left(c, r.Time)
			}
			all = append(all, s)
		}
	}
	for _, v := range r.Volumes {
		if v.Sync != nil {
			all = append(all, fmt.Sprintf("%s of the legs of %s: %s of %s", v.Sync.Action, v.Ref(), o.bar(v.Sync.Done), size(v.SizeBytes)))
		}
	}
	if r.Driver != nil {
		for _, p := range r.Driver.Programs {
			all = append(all, fmt.Sprintf("for %s: %s", span(r.Time.Sub(p.Started)), strings.Join(p.Argv, " ")))
		}
	}
	for i, s := range all {
		if i == 0 {
			if err := title(w, "UNDER WAY"); err != nil {
				return err
			}
		}
		if err := o.wrapped(w, "  ", s); err != nil {
			return err
		}
	}
	return nil
}

// left says how long a copy will take, if it goes on as it went.
func left(c status.Copy, now time.Time) string {
	took := now.Sub(c.Started)
	if c.Done <= 0 || took <= 0 {
		return ""
	}
	return fmt.Sprintf(", %s/s, %s left", size(int64(float64(c.Done)/took.Seconds())), span(time.Duration(float64(took)*share(c.Of-c.Done, c.Done))))
}

func (o Options) orphans(w io.Writer, r *status.Report) error {
	if r.Driver == nil || len(r.Driver.Orphans) == 0 {
		return nil
	}
	if err := title(w, "ORPHANS"); err != nil {
		return err
	}
	for _, n := range r.Driver.Orphans {
		s := fmt.Sprintf("%s: its pod is gone, and nothing has used it for %s", n.VolumeID, span(r.Time.Sub(n.Since)))
		if n.Kept {
			s += "; it is kept"
		}
		if err := o.wrapped(w, "  ", s); err != nil {
			return err
		}
	}
	return nil
}

// wrong is something that is wrong, or could not be found out.
type wrong struct {
	Subject string // a logical volume; "": it is of the node
	Status  string // how bad; "": see Text
	Text    string
}

const notKnown = "not known:"

func wrongs(r *status.Report) (all []wrong) {
	for _, c := range r.Storage {
		all = append(all, wrong{"", c.Status, c.Reason + ": " + c.Message})
	}
	for _, v := range r.Volumes {
		for _, c := range v.Conditions {
			all = append(all, wrong{v.Ref().String(), c.Status, c.Reason + ": " + c.Message})
		}
	}
	for _, p := range r.Problems {
		all = append(all, wrong{"", "", "journal: " + p})
	}
	for _, u := range r.Unknown {
		all = append(all, wrong{"", notKnown, u})
	}
	return all
}

// wrong writes what is wrong, and what could not be found out.
func (o Options) wrong(w io.Writer, r *status.Report) error {
	for i, x := range wrongs(r) {
		if i == 0 {
			if err := title(w, "WRONG (csi-local-lvm doctor says more)"); err != nil {
				return err
			}
		}
		color := text.FgRed
		if x.Status == notKnown {
			color = text.FgYellow
		}
		words := slices.DeleteFunc([]string{x.Subject, o.paint(x.Status, color), x.Text}, func(s string) bool { return s == "" })
		if err := o.wrapped(w, "  ", strings.Join(words, " ")); err != nil {
			return err
		}
	}
	return nil
}
