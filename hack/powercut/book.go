package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Entry is one line in the book: what the node is about to do, or what it knows to be done. An entry is on the host before
// the node goes on, so a cut cannot take back what the node was told, and the book is what the world is compared with.
type Entry struct {
	Slot string `json:"s,omitempty"`
	Do   string `json:"do"`
	N    int    `json:"n,omitempty"`    // the generation of the volume, or the number of the write
	Done bool   `json:"done,omitempty"` // false: it is begun
	Text string `json:"text,omitempty"`
}

// What the node writes of itself.
const (
	doBooting = "booting" // the disks are there
	doMended  = "mended"  // the metadata of the group was torn on all disks, and that of sequence number N was restored
	doServing = "serving" // a driver is ready, and what the last cut left is looked at
	doLoading = "loading" // all was as it should be; the random load begins
	doFault   = "fault"   // something was not
	doEnd     = "end"     // the last one: all is taken away, and nothing was left
)

// bookBytes is the size of the disk; each entry has a sector.
const bookBytes = 64 << 20

// encode makes a sector of the entry.
func (e Entry) encode() ([]byte, error) {
	for {
		line, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		if len(line) < sector {
			return append(line, bytes.Repeat([]byte{'\n'}, sector-len(line))...), nil
		}
		e.Text = e.Text[:len(e.Text)/2]
	}
}

// decode gives the entries of what was written.
func decode(text []byte) ([]Entry, error) {
	var all []Entry
	for line := range bytes.Lines(text) {
		var e Entry
		if line = bytes.Trim(line, "\n\x00"); len(line) == 0 {
			continue
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}

// Book is the node's side of it: a disk of its own, written past the page cache.
type Book struct {
	mu   sync.Mutex
	file *os.File
	at   int64
	page []byte // aligned, for O_DIRECT
}

// openBook reads what is in the book, and gives it to apply, an entry at a time.
func openBook(path string, apply func(Entry)) (*Book, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	page, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	b := &Book{file: f, page: page}
	for {
		n, err := f.ReadAt(page, b.at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		all, err := decode(page[:n])
		if err != nil {
			return nil, fmt.Errorf("the book cannot be read: %w", err)
		}
		for _, e := range all {
			apply(e)
			b.at += sector
		}
		if len(all)*sector < len(page) {
			return b, nil
		}
	}
}

// write returns when the entry is on the host. A node that cannot write is at its end.
func (b *Book) write(e Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, err := e.encode()
	if err == nil {
		copy(b.page, text)
		_, err = b.file.WriteAt(b.page[:sector], b.at)
	}
	if err != nil {
		panic(fmt.Sprintf("write the book: %v", err))
	}
	b.at += sector
}
