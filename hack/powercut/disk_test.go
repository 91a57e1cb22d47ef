package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// client is a machine's side of one disk.
type client struct {
	t    *testing.T
	conn net.Conn
	size uint64
}

func newDisks(t *testing.T, told func([]byte)) (*Rack, string) {
	t.Helper()
	r := newRack(1)
	for name, told := range map[string]func([]byte){"disk": nil, "book": told} {
		if err := r.add(t.TempDir(), name, 1<<20, told); err != nil {
			t.Fatal(err)
		}
	}
	socket := t.TempDir() + "/nbd"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go r.serve(l)
	t.Cleanup(func() {
		l.Close()
		r.close()
	})
	return r, socket
}

// attach negotiates as QEMU does: an option that the server does not know, then NBD_OPT_GO.
func attach(t *testing.T, socket, export string) *client {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &client{t: t, conn: conn}
	var greeting struct {
		Magic, Option uint64
		Flags         uint16
	}
	c.receive(&greeting)
	if greeting.Magic != nbdMagic || greeting.Option != nbdOption || greeting.Flags&1 == 0 {
		t.Fatalf("greeted with %+v", greeting)
	}
	c.send(uint32(1))
	c.send(uint64(nbdOption), uint32(8), uint32(0)) // structured replies
	if kind, _ := c.option(); kind != nbdUnsupported {
		t.Fatalf("an unknown option is answered %x", kind)
	}
	c.send(uint64(nbdOption), uint32(nbdOptGo), uint32(4+len(export)+2), uint32(len(export)), []byte(export), uint16(0))
	for {
		kind, data := c.option()
		switch kind {
		case nbdInfo:
			c.size = binary.BigEndian.Uint64(data[2:])
		case nbdAck:
			return c
		default:
			t.Fatalf("NBD_OPT_GO is answered %x", kind)
		}
	}
}

func (c *client) send(values ...any) {
	c.t.Helper()
	if err := send(c.conn, values...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive(values ...any) {
	c.t.Helper()
	if err := receive(c.conn, values...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) option() (kind uint32, data []byte) {
	c.t.Helper()
	var magic uint64
	var option, length uint32
	c.receive(&magic, &option, &kind, &length)
	data = make([]byte, length)
	c.receive(data)
	return kind, data
}

// ask makes a request and gives the code of the answer, and what was read.
func (c *client) ask(kind uint16, at uint64, length int, data []byte) (code uint32, read []byte) {
	c.t.Helper()
	c.send(uint32(nbdRequest), uint16(0), kind, uint64(7), at, uint32(length), data)
	var magic uint32
	var cookie uint64
	c.receive(&magic, &code, &cookie)
	if magic != nbdReply || cookie != 7 {
		c.t.Fatalf("answered %x, cookie %d", magic, cookie)
	}
	if kind == nbdRead && code == 0 {
		read = make([]byte, length)
		c.receive(read)
	}
	return code, read
}

func (c *client) write(at uint64, data []byte) {
	c.t.Helper()
	if code, _ := c.ask(nbdWrite, at, len(data), data); code != 0 {
		c.t.Fatalf("a write is answered %d", code)
	}
}

func fill(b byte, blocks int) []byte { return bytes.Repeat([]byte{b}, blocks*block) }

func TestDiskReadsBackWhatWasWritten(t *testing.T) {
	_, socket := newDisks(t, func([]byte) {})
	c := attach(t, socket, "disk")
	if c.size != 1<<20 {
		t.Errorf("the size is %d", c.size)
	}
	c.write(4096, fill('a', 3))
	if code, got := c.ask(nbdRead, 4096, 3*block, nil); code != 0 || !bytes.Equal(got, fill('a', 3)) {
		t.Errorf("read %d bytes, code %d", len(got), code)
	}
	for name, code := range map[string]uint32{
		"a write beyond the end": first(c.ask(nbdWrite, 1<<20-block, 2*block, fill('x', 2))),
		"a read beyond the end":  first(c.ask(nbdRead, 1<<20, sector, nil)),
		"a trim":                 first(c.ask(4, 0, sector, nil)),
	} {
		if code != nbdEINVAL {
			t.Errorf("%s is answered %d", name, code)
		}
	}
}

func first(code uint32, _ []byte) uint32 { return code }

// Of what was not flushed each block is old or new, and over many cuts both are seen; what was flushed stays.
func TestCutLosesOnlyWhatWasNotFlushed(t *testing.T) {
	r, socket := newDisks(t, func([]byte) {})
	kept, lost, torn := 0, 0, 0
	for range 200 {
		c := attach(t, socket, "disk")
		c.write(0, fill('a', 8))
		c.ask(nbdFlush, 0, 0, nil)
		c.write(0, fill('b', 8))
		r.cut()
		if _, err := r.powerOn(); err != nil {
			t.Fatal(err)
		}
		_, got := attach(t, socket, "disk").ask(nbdRead, 0, 8*block, nil)
		news := 0
		for i := range 8 {
			switch one := got[i*block : (i+1)*block]; {
			case bytes.Equal(one, fill('b', 1)):
				news++
			case !bytes.Equal(one, fill('a', 1)):
				t.Fatalf("block %d is neither old nor new", i)
			}
		}
		switch news {
		case 8:
			kept++
		case 0:
			lost++
		default:
			torn++
		}
	}
	if kept == 0 || lost == 0 || torn == 0 {
		t.Errorf("in 200 cuts a write was kept %d times, lost %d and torn %d; want some of each", kept, lost, torn)
	}
}

// Writes that lie over each other: whatever is kept, a block never goes back behind the last flush, nor is it mixed.
func TestOverlappingWrites(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		r, _ := newDisks(t, nil)
		d := r.disks["disk"]
		allowed := make([]map[byte]bool, 16)
		for i := range allowed {
			allowed[i] = map[byte]bool{0: true}
		}
		for b := byte(1); b < 40; b++ {
			at, n := random.IntN(12), 1+random.IntN(4)
			if err := r.write(d, int64(at)*block, fill(b, n)); err != nil {
				t.Fatal(err)
			}
			for i := at; i < at+n; i++ {
				allowed[i][b] = true
			}
			if b == 20 {
				r.flush(d)
				now := make([]byte, 16*block)
				d.file.ReadAt(now, 0)
				for i := range allowed {
					allowed[i] = map[byte]bool{now[i*block]: true}
				}
			}
		}
		r.cut()
		r.powerOn()
		got := make([]byte, 16*block)
		d.file.ReadAt(got, 0)
		for i := range 16 {
			if one := got[i*block : (i+1)*block]; !allowed[i][one[0]] || !bytes.Equal(one, fill(one[0], 1)) {
				t.Fatalf("block %d holds %d, allowed are %v", i, one[0], allowed[i])
			}
		}
	}
}

// After a cut nothing is answered and nothing is written, and the write that was cut is not answered either.
func TestSilenceAfterACut(t *testing.T) {
	r, socket := newDisks(t, func([]byte) {})
	disk, book := attach(t, socket, "disk"), attach(t, socket, "book")
	r.cutAfter(2)
	disk.write(0, fill('a', 1))
	disk.send(uint32(nbdRequest), uint16(0), uint16(nbdWrite), uint64(7), uint64(0), uint32(block), fill('b', 1))
	<-r.down
	book.send(uint32(nbdRequest), uint16(0), uint16(nbdWrite), uint64(7), uint64(0), uint32(block), fill('c', 1))
	for _, c := range []*client{disk, book} {
		c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := io.ReadFull(c.conn, make([]byte, 1)); n != 0 {
			t.Errorf("answered after the cut: %v", err)
		}
	}
	if _, err := r.powerOn(); err != nil {
		t.Fatal(err)
	}
	if _, got := attach(t, socket, "book").ask(nbdRead, 0, block, nil); !bytes.Equal(got, fill(0, 1)) {
		t.Error("written after the cut")
	}
}

// A write that begins within a block is torn at the blocks of the disk; a short one is not torn at all.
func TestTearsAreAtBlocks(t *testing.T) {
	for _, w := range []struct{ at, length, parts int64 }{{0, 512, 1}, {512, 3584, 1}, {512, 4096, 2}, {4096, 8192, 2}, {3584, 1024, 2}} {
		r, _ := newDisks(t, nil)
		d := r.disks["disk"]
		if err := r.write(d, w.at, bytes.Repeat([]byte{1}, int(w.length))); err != nil {
			t.Fatal(err)
		}
		if err := d.settle(func(n int) []bool {
			if int64(n) != w.parts {
				t.Errorf("%+v: %d parts", w, n)
			}
			return append([]bool{true}, make([]bool, n-1)...)
		}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4*block)
		d.file.ReadAt(got, 0)
		if n, want := bytes.Count(got, []byte{1}), min(w.length, block-w.at%block); int64(n) != want || !bytes.Equal(got[w.at:w.at+want], bytes.Repeat([]byte{1}, n)) {
			t.Errorf("%+v: %d bytes are kept, want %d", w, n, want)
		}
	}
}

func TestBookLosesNothing(t *testing.T) {
	var told []Entry
	r, socket := newDisks(t, func(text []byte) {
		all, err := decode(text)
		if err != nil {
			t.Error(err)
		}
		told = append(told, all...)
	})
	want := Entry{Slot: "linear", Do: doCreate, N: 3, Done: true, Text: "x"}
	text, err := want.encode()
	if err != nil || len(text) != sector {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	attach(t, socket, "book").write(0, text)
	r.cut()
	r.powerOn()
	_, got := attach(t, socket, "book").ask(nbdRead, 0, 4*sector, nil)
	all, err := decode(got)
	if err != nil || len(all) != 1 || all[0] != want || len(told) != 1 || told[0] != want {
		t.Errorf("read %+v, told %+v, want %+v (%v)", all, told, want, err)
	}
	long := Entry{Text: string(bytes.Repeat([]byte("x"), 5000))}
	if text, err := long.encode(); err != nil || len(text) != sector {
		t.Errorf("a long entry: %d bytes, %v", len(text), err)
	}
}

// What the book says of a slot, over the life of its volumes.
func TestSlotFollowsTheBook(t *testing.T) {
	for _, tt := range []struct {
		name   string
		inline bool
		book   []Entry
		want   Slot
	}{
		{"a create was cut off", false, []Entry{{Do: doCreate, N: 1}}, Slot{gen: 1, doing: doCreate}},
		{"created", false, []Entry{{Do: doCreate, N: 1}, {Do: doCreate, N: 1, Done: true}}, Slot{gen: 1, there: true}},
		{"a publish is nothing to it", false, []Entry{{Do: doCreate, N: 1, Done: true}, {Do: doPublish, N: 1}}, Slot{there: true}},
		{"written", false, []Entry{{Do: doWrite, N: 1}, {Do: doWrite, N: 1, Done: true}, {Do: doWrite, N: 2}}, Slot{synced: 1, writing: 2}},
		{"deleted", false, []Entry{{Do: doCreate, N: 1}, {Do: doCreate, N: 1, Done: true}, {Do: doDelete, N: 1}, {Do: doDelete, N: 1, Done: true}}, Slot{gen: 1}},
		{"the next has no data", false, []Entry{{Do: doWrite, N: 1, Done: true}, {Do: doCreate, N: 2}}, Slot{gen: 2, doing: doCreate}},
		{"a repeated publish keeps it", true, []Entry{{Do: doPublish, N: 1}, {Do: doPublish, N: 1, Done: true}, {Do: doWrite, N: 1, Done: true}, {Do: doPublish, N: 1}},
			Slot{gen: 1, there: true, synced: 1}},
		{"abandoned", true, []Entry{{Do: doPublish, N: 1}, {Do: doAbandon, N: 1}, {Do: doAbandon, N: 1, Done: true}}, Slot{gen: 1}},
	} {
		s := Slot{inline: tt.inline}
		for _, e := range tt.book {
			s.apply(e)
		}
		if s.gen != tt.want.gen || s.there != tt.want.there || s.doing != tt.want.doing || s.synced != tt.want.synced || s.writing != tt.want.writing {
			t.Errorf("%s: got %+v, want %+v", tt.name, s, tt.want)
		}
	}
}
