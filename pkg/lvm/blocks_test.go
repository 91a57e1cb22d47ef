package lvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const chunk = 64 << 10

// chunks gives ranges for pairs of the first chunk and the number of them.
func chunks(pairs ...int64) (out []volume.Range) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, volume.Range{Offset: pairs[i] * chunk, Bytes: pairs[i+1] * chunk})
	}
	return out
}

var everything = volume.Range{Bytes: 1 << 62}

func parsed(text string, q volume.BlockQuery) (out []volume.Range, err error) {
	err = parseBlocks(strings.NewReader(text), q, func(r volume.Range) error { out = append(out, r); return nil })
	return out, err
}

func TestRecordedBlocks(t *testing.T) {
	dump := volume.BlockQuery{Target: 2, Within: everything}
	delta := volume.BlockQuery{Base: 2, Target: 3, Within: everything}
	within := func(q volume.BlockQuery, offset, bytes int64) volume.BlockQuery {
		q.Within = volume.Range{Offset: offset, Bytes: bytes}
		return q
	}
	for _, c := range []struct {
		file string
		q    volume.BlockQuery
		want []volume.Range
	}{
		{"thin_dump.xml", dump, chunks(0, 10, 20, 3, 296, 12, 639, 1)},
		{"thin_delta.xml", delta, chunks(1, 2, 4, 1, 20, 3, 100, 1, 302, 2, 700, 1)},
		{"thin_dump.xml", within(dump, 9*chunk, 12*chunk), chunks(9, 1, 20, 1)},
		{"thin_dump.xml", within(dump, 22*chunk+1, 4096), []volume.Range{{Offset: 22*chunk + 1, Bytes: 4096}}},
		{"thin_dump.xml", within(dump, 640*chunk, 4096), nil},
		{"thin_delta.xml", within(delta, 0, 700*chunk+512), append(chunks(1, 2, 4, 1, 20, 3, 100, 1, 302, 2), volume.Range{Offset: 700 * chunk, Bytes: 512})},
	} {
		got, err := parsed(string(recorded(t, c.file)), c.q)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s within %v: %v, %v, want %v", c.file, c.q.Within, got, err, c.want)
		}
	}
}

// What is not all, or not understood, is an error, never a shorter list.
func TestBlocksStrict(t *testing.T) {
	delta, dump := string(recorded(t, "thin_delta.xml")), string(recorded(t, "thin_dump.xml"))
	replace := func(text, old, with string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in the recorded text", old)
		}
		return strings.Replace(text, old, with, 1)
	}
	for name, text := range map[string]string{
		"nothing":            "",
		"cut off":            delta[:len(delta)/2],
		"cut off at the end": strings.TrimSuffix(strings.TrimSpace(delta), "</superblock>"),
		"another device":     replace(delta, `right="3"`, `right="4"`),
		"no size of blocks":  replace(delta, ` data_block_size="128"`, ""),
		"size of 0":          replace(delta, ` data_block_size="128"`, ` data_block_size="0"`),
		"unknown element":    replace(delta, "<same ", "<ref "),
		"no number":          replace(delta, `length="1"`, `length="one"`),
		"negative":           replace(delta, `length="1"`, `length="-1"`),
		"nothing of it":      replace(delta, `length="1"`, `length="0"`),
		"out of order":       replace(delta, `begin="100"`, `begin="1"`),
		"beyond any volume":  replace(delta, `begin="700"`, `begin="9223372036854775807"`),
		"attribute missing":  replace(delta, `begin="100" `, ""),
		"a dump":             dump,
	} {
		if got, err := parsed(text, volume.BlockQuery{Base: 2, Target: 3, Within: everything}); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, text := range map[string]string{
		"no such device": string(recorded(t, "thin_dump.none.xml")), "twice": replace(dump, "</device>", `</device><device dev_id="2"></device>`), "a difference": delta,
	} {
		if got, err := parsed(text, volume.BlockQuery{Target: 2, Within: everything}); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Whatever is read, what is told is in order, within bounds, and does not touch.
func FuzzParseBlocks(f *testing.F) {
	for _, file := range []string{"thin_dump.xml", "thin_delta.xml", "thin_dump.none.xml"} {
		f.Add(string(recorded(f, file)), int64(2), int64(3), int64(chunk), int64(600*chunk))
	}
	f.Fuzz(func(t *testing.T, text string, base, target, from, bytes int64) {
		from, bytes = max(0, from)>>1, max(0, bytes)>>1
		q := volume.BlockQuery{Base: base, Target: target, Within: volume.Range{Offset: from, Bytes: bytes}}
		got, _ := parsed(text, q)
		last := int64(-1)
		for _, r := range got {
			if r.Bytes <= 0 || r.Offset <= last || r.Offset < from || r.End() > from+bytes {
				t.Fatalf("%v of %v", r, got)
			}
			last = r.End()
		}
	})
}

// devices are thin pools without a kernel.
type devices struct {
	target
	err  error // of a message
	told []string
}

func (d *devices) state(name string) (target, error) {
	if name != "vg-pool-tpool" {
		return target{}, volume.ErrNotFound
	}
	return d.target, nil
}

func (d *devices) message(name, text string) error {
	d.told = append(d.told, name+" "+text)
	return d.err
}

func TestReserveRelease(t *testing.T) {
	l, pool := newRig(t).LVM, volume.Ref{VG: "vg", LV: "pool"}
	const free, held = "3 113/1024 16/9600 - rw discard_passdown queue_if_no_space - 256 ", "3 114/1024 16/9600 51 rw discard_passdown queue_if_no_space - 256 "
	for _, c := range []struct {
		name, kind, state string
		message           error
		held              bool
		reserved, reserve error // errAny: another than those of pkg/volume
		release           error
		messages          []string
	}{
		{name: "free", kind: "thin-pool", state: free, messages: []string{"vg-pool-tpool reserve_metadata_snap"}},
		{name: "held", kind: "thin-pool", state: held, held: true, message: unix.EBUSY, reserve: volume.ErrBusy, release: unix.EBUSY,
			messages: []string{"vg-pool-tpool reserve_metadata_snap", "vg-pool-tpool release_metadata_snap"}},
		{name: "read-only", kind: "thin-pool", state: free, message: unix.EOPNOTSUPP, reserve: unix.EOPNOTSUPP, messages: []string{"vg-pool-tpool reserve_metadata_snap"}},
		{name: "failed pool", kind: "thin-pool", state: "Fail", reserved: errAny, release: errAny, messages: []string{"vg-pool-tpool reserve_metadata_snap"}},
		{name: "no pool", kind: "linear", state: "", reserved: errAny, release: errAny, messages: []string{"vg-pool-tpool reserve_metadata_snap"}},
		{name: "not understood", kind: "thin-pool", state: "1 2 3 x", reserved: errAny, release: errAny, messages: []string{"vg-pool-tpool reserve_metadata_snap"}},
	} {
		d := &devices{target: target{c.kind, c.state}, err: c.message}
		l.pools = d
		got, err := l.Reserved(t.Context(), pool)
		if got != c.held || !isErr(err, c.reserved) {
			t.Errorf("%s: Reserved: %v, %v", c.name, got, err)
		}
		if err := l.Reserve(t.Context(), pool); !isErr(err, c.reserve) {
			t.Errorf("%s: Reserve: %v", c.name, err)
		}
		if err := l.Release(t.Context(), pool); !isErr(err, c.release) {
			t.Errorf("%s: Release: %v", c.name, err)
		}
		if !slices.Equal(d.told, c.messages) {
			t.Errorf("%s: told %v", c.name, d.told)
		}
	}
	if _, err := l.Reserved(t.Context(), volume.Ref{VG: "vg", LV: "other"}); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("a pool without device: %v", err)
	}
}

var errAny = errors.New("any")

func isErr(err, want error) bool {
	if want == errAny { //nolint:errorlint // a mark
		return err != nil && !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrBusy)
	}
	return errors.Is(err, want) && (err == nil) == (want == nil)
}

// streams prints a text as a program does.
type streams struct {
	text string
	err  error
	argv string
}

func (s *streams) Stream(_ context.Context, sink func(io.Reader) error, name string, args ...string) error {
	s.argv = name + " " + strings.Join(args, " ")
	return errors.Join(s.err, sink(strings.NewReader(s.text)))
}

func TestBlocksRunsOneProgram(t *testing.T) {
	r := newRig(t)
	pool := volume.Ref{VG: "vg", LV: "pool"}
	if err := r.Blocks(t.Context(), volume.BlockQuery{Pool: pool, Target: 2, Within: everything}, nil); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("a pool that is not active: %v", err)
	}
	const node = "/dev/dm-7"
	for _, c := range []struct {
		q    volume.BlockQuery
		file string
		argv string
	}{
		{volume.BlockQuery{Pool: pool, Target: 2, Within: everything}, "thin_dump.xml", "thin_dump --metadata-snap --dev-id 2 " + node},
		{volume.BlockQuery{Pool: pool, Base: 2, Target: 3, Within: everything}, "thin_delta.xml", "thin_delta --metadata-snap --thin1 2 --thin2 3 " + node},
	} {
		s := &streams{text: string(recorded(t, c.file))}
		r.tools = s
		n := 0
		if err := r.readBlocks(t.Context(), c.q, node, func(volume.Range) error { n++; return nil }); err != nil || n == 0 || s.argv != c.argv {
			t.Errorf("%s: %d ranges, %v", s.argv, n, err)
		}
		s.err = &run.Error{Argv: []string{"thin_dump"}, Err: fmt.Errorf("exit status 1"), Stderr: "no"}
		if err := r.readBlocks(t.Context(), c.q, node, func(volume.Range) error { return nil }); !errors.Is(err, s.err) {
			t.Errorf("a program that fails: %v", err)
		}
	}
}

// endless prints so many mappings, as a program does for a volume that is written everywhere in pieces.
type endless struct {
	left, next int
	text       []byte
}

func (e *endless) Read(p []byte) (int, error) {
	for len(e.text) == 0 {
		switch {
		case e.next == 0:
			e.text = []byte(`<superblock data_block_size="128"><device dev_id="2">` + "\n")
		case e.left == 0:
			e.text = []byte("</device></superblock>\n")
		case e.left < 0:
			return 0, io.EOF
		default:
			e.text = fmt.Appendf(nil, "    <single_mapping origin_block=\"%d\" data_block=\"%d\" time=\"0\"/>\n", 2*e.next, e.next)
		}
		if e.next++; e.next > 1 {
			e.left--
		}
	}
	n := copy(p, e.text)
	e.text = e.text[n:]
	return n, nil
}

func TestBlocksInLittleMemory(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const all = 200_000
	before, most, n := heap(), uint64(0), 0
	err := parseBlocks(&endless{left: all}, volume.BlockQuery{Target: 2, Within: everything}, func(volume.Range) error {
		if n++; n%(all/4) == 0 {
			most = max(most, heap())
		}
		return nil
	})
	if err != nil || n != all {
		t.Fatalf("%d ranges, %v", n, err)
	}
	if most > before+1<<20 {
		t.Errorf("%d bytes for %d ranges", most-before, n)
	}
}
