package show

import (
	_ "embed"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
)

//go:embed status.html
var pageText string

var page = template.Must(template.New("status").Funcs(template.FuncMap{
	"size": size, "span": span, "left": left, "percent": func(f float64) float64 { return f * 100 },
	"groupUsed":  func(g status.Group) float64 { return share(g.SizeBytes-g.FreeBytes, g.SizeBytes) },
	"known":      orUnknown,
	"poolFree":   poolFree,
	"isBad":      func(status string) bool { return status != notKnown && status != health.Degraded.String() },
	"volumeUsed": volumeUsed,
	"copied":     func(c status.Copy) float64 { return share(c.Done, c.Of) },
	"join":       strings.Join,
	"pods":       func(v status.Volume) string { return strings.Join(podsOf(v), " ") },
	"intent":     func(i journal.Intent) string { return intents[i] },
	"utc":        func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
}).Parse(pageText))

// HTML writes a report as a page for a browser, on a wide screen or on a phone: what is wrong comes first, the volumes last. There is no script in
// it, and nothing from elsewhere; it asks for itself again each 30 seconds.
func HTML(w io.Writer, r *status.Report) error {
	return page.Execute(w, struct {
		*status.Report
		Wrong    []wrong
		UnderWay bool
	}{r, wrongs(r), r.Driver != nil && len(r.Driver.Copies)+len(r.Driver.Programs) != 0 || slices.ContainsFunc(r.Volumes, func(v status.Volume) bool { return v.Sync != nil })})
}

// unknownShare stands on the page for what is not known.
const unknownShare = -1

func orUnknown(f *float64) float64 {
	if f == nil {
		return unknownShare
	}
	return *f
}

func volumeUsed(v status.Volume) float64 {
	if v.UsedBytes == nil || v.FSBytes == nil {
		return unknownShare
	}
	return share(*v.UsedBytes, *v.FSBytes)
}
