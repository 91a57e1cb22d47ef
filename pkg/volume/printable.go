package volume

import (
	"strconv"
	"strings"
	"unicode"
)

// Printable gives a text in which whatever does not show as itself is written out, as "\x1b" or "\n". Names of processes and open files are what
// the pods want them to be: they must not reach a terminal as they are, nor make lines of their own.
func Printable(s string) string {
	return Written(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Written writes out the characters of a text that are not to stand in it. What is no UTF-8 is written out too.
func Written(s string, out func(rune) bool) string {
	if strings.IndexFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || out(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case out(r), r == unicode.ReplacementChar:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
