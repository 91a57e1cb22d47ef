package show

import (
	"bytes"
	"fmt"
	"html"
	"io"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
)

// HTML writes a report as a page for a browser. There is no script in it, and nothing from elsewhere; it asks for itself again each 30 seconds.
func HTML(w io.Writer, r *status.Report) error {
	var text bytes.Buffer
	if err := Status(&text, r, Options{Unicode: true}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="30"><title>%s: csi-local-lvm</title>
<style>body{margin:2em;color-scheme:light dark}pre{font:14px/1.5 monospace}</style></head>
<body><pre>%s</pre><p>As of %s. <a href="metrics">Metrics</a></p></body></html>
`, html.EscapeString(r.Node), html.EscapeString(text.String()), r.Time.UTC().Format("2006-01-02 15:04:05 UTC"))
	return err
}
