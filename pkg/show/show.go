// Package show writes what pkg/status and pkg/doctor found out for people: tables, bars and sentences, as wide as the terminal. It asks nothing.
package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Options is what whoever reads it can see.
type Options struct {
	Width   int  // columns; 0: as wide as it gets, as in a file
	Color   bool // the terminal has colours
	Unicode bool // the terminal has more than ASCII
}

// paint colours a text where colours are wanted.
func (o Options) paint(s string, colors ...text.Color) string {
	if !o.Color || s == "" {
		return s
	}
	return text.Colors(colors).Sprint(s)
}

// newTable gives a table without lines, whose columns stand two blanks apart.
func (o Options) newTable(header ...any) table.Writer {
	t := table.NewWriter()
	s := table.StyleDefault
	s.Options = table.Options{}
	s.Box.PaddingLeft, s.Box.PaddingRight = "", "  "
	s.Format.Header = text.FormatDefault
	t.SetStyle(s)
	t.AppendHeader(header)
	return t
}

// write writes a table, without blanks at the ends of its lines.
func write(w io.Writer, t table.Writer) error {
	for line := range strings.Lines(t.Render() + "\n") {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// snip shortens a text in the middle: names begin alike, and end unlike.
func (o Options) snip(s string, most int) string {
	if most <= 0 || text.StringWidthWithoutEscSequences(s) <= most {
		return s
	}
	dots := "..."
	if o.Unicode {
		dots = "…"
	}
	runes, left := []rune(s), most-text.StringWidthWithoutEscSequences(dots)
	if left < 2 {
		return string(runes[:min(most, len(runes))])
	}
	return string(runes[:(left+1)/2]) + dots + string(runes[len(runes)-left/2:])
}

// wrapped writes lines, the first of which begins with lead, and the others as far in; each is broken where it is too long.
func (o Options) wrapped(w io.Writer, lead, s string) error {
	in := text.StringWidthWithoutEscSequences(lead)
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		if o.Width > in+10 {
			line = text.WrapSoft(line, o.Width-in)
		}
		lines = append(lines, strings.Split(line, "\n")...)
	}
	for i, line := range lines {
		if i > 0 {
			lead = strings.Repeat(" ", in)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(lead+line, " ")); err != nil {
			return err
		}
	}
	return nil
}

const barWidth = 12

// bar shows how much of something is used, and warns from 85 % on.
func (o Options) bar(used float64) string {
	full, empty := "#", "."
	if o.Unicode {
		full, empty = "█", "░"
	}
	n := int(used*barWidth + 0.5)
	n = min(max(n, 0), barWidth)
	color := text.FgGreen
	switch {
	case used >= 0.95:
		color = text.FgRed
	case used >= 0.85:
		color = text.FgYellow
	}
	return o.paint(strings.Repeat(full, n), color) + strings.Repeat(empty, barWidth-n) + fmt.Sprintf(" %3.0f %%", used*100)
}

// size writes bytes as quantities are written, with at most one digit behind the point.
func size(bytes int64) string {
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	f, i := float64(bytes), 0
	for f >= 1023.95 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + units[i]
}

// span writes a length of time in one unit.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}
