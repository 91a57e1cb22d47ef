package lvm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// section is a section of LVM's configuration syntax, in which metadata is written too (lvm.conf(5), "SYNTAX"; lvm2
// libdm/libdm-config.c): "name { key = value ... }". A value is an int64, a float64, a string, a []any, or a section.
type section map[string]any

// maxDepth bounds sections within sections; metadata has four.
const maxDepth = 16

// parseTree reads a whole text.
func parseTree(text string) (section, error) {
	p := &treeParser{text: text}
	s, err := p.section(0)
	if err != nil {
		return nil, fmt.Errorf("metadata text, byte %d: %w", p.at, err)
	}
	return s, nil
}

type treeParser struct {
	text string
	at   int
}

// skip passes blanks and comments, and reports whether anything follows.
func (p *treeParser) skip() bool {
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			p.at++
		case c == '#':
			if n := strings.IndexByte(p.text[p.at:], '\n'); n >= 0 {
				p.at += n
			} else {
				p.at = len(p.text)
			}
		default:
			return true
		}
	}
	return false
}

// take passes the character if it comes next.
func (p *treeParser) take(c byte) bool {
	if p.skip() && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

// word takes characters up to one that has a meaning of its own.
func (p *treeParser) word() string {
	p.skip()
	from := p.at
	for p.at < len(p.text) && !special[p.text[p.at]] {
		p.at++
	}
	return p.text[from:p.at]
}

// special are the characters that end a word. A table, since the metadata of 1,000 volumes is a megabyte.
var special = func() (t [256]bool) {
	for _, c := range []byte(" \t\r\n#={}[],\"") {
		t[c] = true
	}
	return t
}()

func (p *treeParser) section(depth int) (section, error) {
	if depth > maxDepth {
		return nil, errors.New("sections too deep")
	}
	s := section{}
	for {
		if !p.skip() {
			if depth > 0 {
				return nil, errors.New("section without an end")
			}
			return s, nil
		}
		if depth > 0 && p.take('}') {
			return s, nil
		}
		key := p.word()
		if key == "" {
			return nil, errors.New("name expected")
		}
		if _, twice := s[key]; twice {
			return nil, fmt.Errorf("%s twice", key)
		}
		var err error
		switch {
		case p.take('{'):
			s[key], err = p.section(depth + 1)
		case p.take('='):
			s[key], err = p.value()
		default:
			err = errors.New("= or { expected")
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *treeParser) value() (any, error) {
	if !p.take('[') {
		return p.scalar()
	}
	list := []any{}
	for {
		if p.take(']') {
			return list, nil
		}
		v, err := p.scalar()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		if !p.take(',') {
			if p.take(']') {
				return list, nil
			}
			return nil, errors.New(", or ] expected")
		}
	}
}

func (p *treeParser) scalar() (any, error) {
	if p.take('"') {
		return p.quoted()
	}
	w := p.word()
	if n, err := strconv.ParseInt(w, 10, 64); err == nil {
		return n, nil
	}
	if f, err := strconv.ParseFloat(w, 64); err == nil {
		return f, nil
	}
	return nil, fmt.Errorf("%q is no value", w)
}

// quoted takes the rest of a string; \" and \\ stand for themselves.
func (p *treeParser) quoted() (string, error) {
	if n := strings.IndexAny(p.text[p.at:], `"\`); n >= 0 && p.text[p.at+n] == '"' { // the usual case: nothing to unescape
		s := p.text[p.at : p.at+n]
		p.at += n + 1
		return s, nil
	}
	var b strings.Builder
	for p.at < len(p.text) {
		c := p.text[p.at]
		p.at++
		switch {
		case c == '"':
			return b.String(), nil
		case c == '\\' && p.at < len(p.text) && (p.text[p.at] == '"' || p.text[p.at] == '\\'):
			c = p.text[p.at]
			p.at++
		}
		b.WriteByte(c)
	}
	return "", errors.New("string without an end")
}
