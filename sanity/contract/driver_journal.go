package contract

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// The journal under stress: its file system takes nothing, and its files are not what they were.
var journalTests = []driverTest{
	{"JournalFails", journalFails},
	{"JournalFailsALaterPublish", journalFailsLater},
	{"JournalHoldsOn", journalHoldsOn},
	{"JournalDamaged", journalDamaged},
	{"JournalSyncs", journalSyncs},
}

// Whatever the state folder's file system answers: a teardown goes on, what would need a record does not begin and leaves
// nothing, and what needs none goes on. case B19, case B20
func journalFails(t *testing.T, h Harness) {
	c, world := started(t, h)
	for _, errno := range some(1, syscall.EIO, syscall.ENOSPC, syscall.EROFS) {
		t.Run(errno.Error(), func(t *testing.T) {
			c := c.with(t)
			one, two := c.inline("journal-1"), c.inline("journal-2")
			v := c.create("journal", 64<<20, mountCapability(""), nil)
			target := c.Target(t, "journal")
			c.ok(one.publish())
			c.ok(c.WriteFile(one.target+"/f", "x"))
			before := c.World(t)
			h.Arm(t, Fault{Each: h.Journal(), Do: FailBefore, Errno: errno})

			c.code(two.publish(), codes.Internal, errno.Error())
			_, err := h.Controller().CreateVolume(t.Context(), c.createRequest("journal-2", 64<<20, mountCapability(""), nil))
			c.code(err, codes.Internal, errno.Error())
			if got := c.World(t); got != before {
				t.Errorf("after calls that may not begin there is left:%s", difference(before, got))
			}
			c.ok(v.stage())
			c.ok(v.publish(target))
			c.ok(c.WriteFile(target+"/f", "x"))

			_, release := h.Hold(t, HoldFile, one.target+"/f")
			c.code(one.unpublish(), codes.Aborted, "left to do")
			release()
			c.ok(c.repeat(one.unpublish))
			if c.there(one.ref()) || h.Lstat(t, one.target).Kind != 0 {
				t.Error("the inline volume is left, and the answer is OK")
			}
			c.ok(v.repeat(func() error { return v.unpublish(target) }))
			c.ok(v.repeat(v.unstage))
			c.ok(v.repeat(v.delete))

			h.Arm(t, Fault{})
			wantWorld(t, c, world, "after it takes records again, without any further call")
			c.ok(c.repeat(one.publish))
			c.ok(c.repeat(one.unpublish))
		})
	}
}

// A publish that cannot take back the pending unpublish does not begin, and the unpublish stands.
func journalFailsLater(t *testing.T, h Harness) {
	c, _ := started(t, h)
	target := c.Target(t, "later")
	v, release := c.published("later", target)
	c.code(v.unpublish(target), codes.Aborted)
	h.Arm(t, Fault{Each: h.Journal(), Do: FailBefore})
	c.code(c.repeatWhileLocked(func() error { return v.publish(target) }), codes.Internal)
	h.Arm(t, Fault{})
	release()
	if !until(func() bool { return len(c.Mounts(t, target)) == 0 && !strings.Contains(c.World(t), v.id) }) {
		t.Fatalf("the unpublish was forgotten:\n%s", c.World(t))
	}
	c.ok(v.repeat(func() error { return v.publish(target) }))
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	v.end()
}

// The record of an unpublish that is done, of which the state folder does not let go, must not undo a later publish when the
// driver starts again: that publish does not begin.
func journalHoldsOn(t *testing.T, h Harness) {
	c, _ := started(t, h)
	target := c.Target(t, "holds-on")
	v, release := c.published("holds-on", target)
	c.code(v.unpublish(target), codes.Aborted)
	h.Arm(t, Fault{Each: c.record(v.id), Do: FailBefore})
	release()
	if !until(func() bool { return h.Lstat(t, target).Kind == 0 }) {
		t.Fatal("the unpublish is not carried on")
	}
	c.code(c.repeatWhileLocked(func() error { return v.publish(target) }), codes.Internal)
	c.mounted(target, 0)
	h.Arm(t, Fault{})
	c.ok(v.repeat(func() error { return v.publish(target) }))
	if world := c.World(t); strings.Contains(world, "journal ") {
		t.Errorf("there is still a record:\n%s", world)
	}
	h.Kill(t)
	h.Start(t)
	c.mounted(target, 1)
	c.ok(v.repeat(func() error { return v.unpublish(target) }))
	v.end()
}

// A record that cannot be read stops its own volume, which is left as it is, until somebody has looked. case B20
func journalDamaged(t *testing.T, h Harness) {
	c, world := started(t, h)
	type damage struct {
		name string
		do   func(text []byte) []byte
	}
	edited := func(from, to string) func(text []byte) []byte {
		return func(text []byte) []byte { return bytes.Replace(text, []byte(from), []byte(to), 1) }
	}
	for _, d := range some(2,
		damage{"torn", func(text []byte) []byte { return text[:len(text)/2] }},
		damage{"newer", edited(`"version": 1`, `"version": 2`)},
		damage{"edited", edited(`"publish"`, `"reclaim"`)},
		damage{"empty", func([]byte) []byte { return nil }},
		damage{"zeroes", func(text []byte) []byte { return make([]byte, len(text)) }},
	) {
		t.Run(d.name, func(t *testing.T) {
			c := c.with(t)
			one, two := c.inline("damaged"), c.inline("whole")
			c.ok(one.publish())
			c.ok(two.publish())
			h.Kill(t)
			file := c.record(one.id)
			text, err := os.ReadFile(file)
			c.ok(err)
			c.ok(os.WriteFile(file, d.do(text), 0o600))
			c.ok(os.WriteFile(filepath.Join(h.Journal(), "notes.txt"), []byte("foreign"), 0o600))
			c.ok(os.WriteFile(filepath.Join(h.Journal(), ".tmp-1"), text, 0o600))
			c.ok(os.MkdirAll(filepath.Join(h.Journal(), "folder"), 0o700))
			for range 2 {
				h.Start(t)
				c.code(one.unpublish(), codes.Internal, filepath.Base(file), "remove the file")
				c.code(one.publish(), codes.Internal, filepath.Base(file))
				c.mounted(one.target, 1)
				c.ok(two.publish())
				h.Kill(t)
			}
			// Somebody has looked.
			c.ok(os.RemoveAll(filepath.Join(h.Journal(), "damaged")))
			if err := os.Remove(c.path(file)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			h.Start(t)
			c.ok(one.publish())
			c.ok(one.unpublish())
			c.ok(two.unpublish())
			wantWorld(t, c, world, "in the end")
		})
	}
}

// path gives where a file of the journal is now: a dead driver's successor may have a folder of its own.
func (c caller) path(file string) string { return filepath.Join(c.Journal(), filepath.Base(file)) }

// record gives the file of a volume's record.
func (c caller) record(id string) string {
	c.t.Helper()
	files, err := filepath.Glob(c.Journal() + "/*.json")
	c.ok(err)
	for _, file := range files {
		if text, _ := os.ReadFile(file); strings.Contains(string(text), id) {
			return file
		}
	}
	c.t.Fatalf("no record of %s", id)
	return ""
}

// What each call waits for the state folder's disk.
func journalSyncs(t *testing.T, h Harness) {
	c, world := started(t, h)
	target := c.Target(t, "syncs")
	count := func(what string, want int, call func() error) {
		t.Helper()
		h.Arm(t, Fault{})
		c.ok(call())
		n := 0
		for _, e := range h.Effects(t) {
			if e.Op == "fsync" && strings.HasPrefix(e.Detail, h.Journal()) {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d fsyncs, want %d", what, n, want)
		}
	}
	for _, cap := range []*csi.VolumeCapability{mountCapability(""), blockCapability()} {
		var v pv
		count("CreateVolume", 2, func() error { v = c.create("syncs", 64<<20, cap, nil); return nil })
		count("CreateVolume again", 0, func() error { c.create("syncs", 64<<20, cap, nil); return nil })
		count("NodeStageVolume", 0, v.stage)
		count("NodePublishVolume", 0, func() error { return v.publish(target) })
		count("NodeUnpublishVolume", 2, func() error { return v.unpublish(target) })
		count("NodeUnstageVolume", 2, v.unstage)
		count("DeleteVolume", 0, v.delete)
	}
	e := c.inline("syncs")
	count("inline publish", 2, e.publish)
	count("inline publish again", 0, e.publish)
	count("inline unpublish", 2, e.unpublish)
	count("inline unpublish again", 0, e.unpublish)
	wantWorld(t, c, world, "after counting")
}
