package contract

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

var adoptTests = []driverTest{
	{"Adopt", adopted},
	{"AdoptRefuses", adoptRefuses},
	{"AdoptInterrupted", adoptInterrupted},
}

// A logical volume with a file system and a file, made by hand: adopted, staged, published, and given back, with the file in it.
func adopted(t *testing.T, h Harness) {
	c, world := started(t, h)
	r := volume.Ref{VG: h.VG(), LV: "by-hand"}
	h.MakeLV(t, r, 64<<20)
	h.Scribble(t, r, "ext4")
	v := pv{caller: c, id: h.NodeName() + "/" + r.String(), name: r.LV, staging: c.Staging(t, "by-hand"), capability: mountCapability("")}
	target := c.Target(t, "by-hand")
	c.code(v.stage(), codes.FailedPrecondition)
	before := c.World(t)
	formatted := h.Commands(t)["mkfs.ext4"]

	var first string
	for i := range 2 {
		manifest, err := h.Adopt(t, r, false, "")
		c.ok(err)
		for _, line := range []string{`name: "` + strings.ToLower(r.VG) + `-by-hand"`, `volumeHandle: "` + v.id + `"`, `fsType: "ext4"`, `storage: "67108864"`,
			"persistentVolumeReclaimPolicy: Retain", "volumeMode: Filesystem", `values: ["` + h.NodeName() + `"]`} {
			if !strings.Contains(manifest, line+"\n") && !strings.Contains(manifest, line+" ") {
				t.Errorf("the manifest lacks %s:\n%s", line, manifest)
			}
		}
		if i == 1 && manifest != first {
			t.Errorf("again it is\n%s\nand was\n%s", manifest, first)
		}
		first = manifest
	}
	_, err := h.Adopt(t, r, true, "")
	isPrecondition(t, err, "adopted already")
	block := v
	block.capability = blockCapability()
	c.code(block.stage(), codes.FailedPrecondition, "file system")
	c.ok(v.stage())
	c.ok(h.WriteFile(v.staging+"/file", "mine"))
	c.ok(v.publish(target))
	if got, err := h.ReadFile(target + "/file"); got != "mine" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	_, err = h.Adopt(t, r, false, "ext4") // in use below kubelet's folder
	c.ok(err)
	const outside = "/tmp/adopt-outside"
	h.Bind(t, target, outside)
	_, err = h.Adopt(t, r, false, "ext4")
	isPrecondition(t, err, outside)
	h.Unmount(t, outside)
	h.Remove(t, outside)
	isPrecondition(t, h.Release(t, r), "in use")
	c.code(v.delete(), codes.FailedPrecondition)
	c.ok(c.repeat(func() error { return v.unpublish(target) }))
	isPrecondition(t, h.Release(t, r), "in use")
	c.ok(c.repeat(v.unstage))
	for range 2 {
		c.ok(h.Release(t, r))
		wantWorld(t, c, before, "after it is released")
	}
	c.code(v.stage(), codes.FailedPrecondition)
	c.code(v.delete(), codes.FailedPrecondition)

	_, err = h.Adopt(t, r, false, "ext4")
	c.ok(err)
	c.ok(v.stage())
	if got, err := h.ReadFile(v.staging + "/file"); got != "mine" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if n := h.Commands(t)["mkfs.ext4"] - formatted; n != 0 {
		t.Errorf("%d file systems were made", n)
	}
	c.ok(c.repeat(v.unstage))
	c.ok(v.delete())
	c.ok(h.Release(t, r))
	wantWorld(t, c, world, "after it is deleted")
}

func isPrecondition(t *testing.T, err error, words string) {
	t.Helper()
	if !errors.Is(err, volume.ErrPrecondition) || !strings.Contains(err.Error(), words) {
		t.Errorf("got %v, want a failed precondition that says %s", err, words)
	}
}

// What is not the driver's to take, or could not be used, is refused, and stays as it is.
func adoptRefuses(t *testing.T, h Harness) {
	c, world := started(t, h)
	mine := c.create("mine", 64<<20, mountCapability(""), nil)
	at := func(lv string) volume.Ref { return volume.Ref{VG: h.VG(), LV: lv} }
	made := map[string]string{"plain": "ext4", "swapped": "swap", "fresh": "blank", "csi-name": "ext4", "theirs": "ext4", "held": "ext4", "inactive": "ext4"}
	for lv, signature := range made {
		var tags []string
		if lv == "theirs" {
			tags = []string{volume.OwnerTag("other.driver")}
		}
		h.MakeLV(t, at(lv), 8<<20, tags...)
		h.Scribble(t, at(lv), signature)
	}
	h.DeactivateLV(t, at("inactive"))
	release := h.HoldLV(t, at("held"))
	before := c.World(t)
	for _, q := range []struct {
		lv    string
		block bool
		fs    volume.FS
		says  string
	}{
		{lv: "plain", fs: "xfs", says: "ext4, not xfs"},
		{lv: "swapped", says: "swap"},
		{lv: "fresh", says: "blank"},
		{lv: "theirs", says: "other.driver"},
		{lv: "held", block: true, says: "open"},
		{lv: "inactive", says: "lvchange -ay"},
		{lv: mine.ref().LV, says: "made it itself"},
		{lv: h.Pool(), block: true, says: "plain"},
	} {
		_, err := h.Adopt(t, at(q.lv), q.block, q.fs)
		isPrecondition(t, err, q.says)
	}
	for _, r := range []volume.Ref{at("csi-name"), {VG: "not-ours", LV: "x"}, at("-rf"), at("")} {
		if _, err := h.Adopt(t, r, false, ""); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%s: %v", r, err)
		}
	}
	if _, err := h.Adopt(t, at("none"), false, ""); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	isPrecondition(t, h.Release(t, mine.ref()), "made it itself")
	c.ok(h.Release(t, at("plain")))
	c.ok(h.Release(t, at("theirs")))
	c.ok(h.Release(t, at("none")))
	wantWorld(t, c, before, "after all was refused")
	release()
	for lv := range made {
		h.DestroyLV(t, at(lv))
	}
	c.ok(mine.delete())
	wantWorld(t, c, world, "in the end")
}

// Both commands at each of their effects killed, and failed: it is adopted or not, whatever the answer was, and nothing else. Repeated,
// they do what they are for, and the content is untouched. The driver runs beside them, and takes away what nobody claims.
func adoptInterrupted(t *testing.T, h Harness) {
	h.Orphans("remove", Grace)
	c, world := started(t, h)
	r := volume.Ref{VG: h.VG(), LV: "by-hand"}
	h.MakeLV(t, r, 64<<20)
	h.Scribble(t, r, "ext4")
	v := pv{caller: c, id: h.NodeName() + "/" + r.String(), name: r.LV, staging: c.Staging(t, "by-hand"), capability: mountCapability("")}
	free := c.World(t)
	want, err := h.Adopt(t, r, false, "")
	c.ok(err)
	taken := c.World(t)
	c.ok(v.stage())
	c.ok(h.WriteFile(v.staging+"/file", "mine"))
	c.ok(c.repeat(v.unstage))
	c.ok(h.Release(t, r))

	adopt := func() error {
		manifest, err := h.Adopt(t, r, false, "")
		if err == nil && manifest != want {
			t.Errorf("the manifest is\n%s\nand was\n%s", manifest, want)
		}
		return err
	}
	release := func() error { return h.Release(t, r) }
	const effects = 2 // the command of LVM, and the flush of a disk; the other disks are like it
	for _, kind := range some(3, Fault{Do: KillBefore}, Fault{Do: KillAfter}, Fault{Do: FailAfter}, Fault{Do: FailBefore}, Fault{Do: FailBefore, Errno: syscall.EBUSY}) {
		for _, cmd := range []struct {
			name          string
			do, opposite  func() error
			before, after string
		}{{"adopt", adopt, release, free, taken}, {"release", release, adopt, taken, free}} {
			for kind.N = 1; kind.N <= effects; kind.N++ {
				h.ArmAdopt(kind)
				err := cmd.do()
				if now := c.World(t); err == nil || now != cmd.before && now != cmd.after {
					t.Fatalf("%s, %s %d: answered %v, and the world is neither what it was nor what it should be:%s", cmd.name, kind.Do, kind.N, err, difference(cmd.after, now))
				}
				if err := cmd.do(); err != nil {
					t.Fatalf("%s, %s %d: repeated it gives %v", cmd.name, kind.Do, kind.N, err)
				}
				if now := c.World(t); now != cmd.after {
					t.Fatalf("%s, %s %d: after the repeat the world is not what it should be:%s", cmd.name, kind.Do, kind.N, difference(cmd.after, now))
				}
				if kind.N < effects {
					c.ok(cmd.opposite())
				}
			}
		}
	}
	c.ok(adopt())
	c.ok(v.stage())
	if got, err := h.ReadFile(v.staging + "/file"); got != "mine" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	c.ok(c.repeat(v.unstage))
	c.ok(v.delete())
	c.ok(release())
	wantWorld(t, c, world, "after it is deleted")
}
