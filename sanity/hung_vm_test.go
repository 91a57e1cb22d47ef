//go:build vm

package sanity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// What only a real kernel and a real LVM can do: to be killed, stopped or cut off from their disks in the middle.

const hungMiB = 1 << 20

func hungInline(n string) string { return "csi-" + strings.Repeat(n, 64) }

func hungCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func (h *realHarness) create(ctx context.Context, name string, params map[string]string) (*csi.Volume, error) {
	r, err := h.Controller().CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, Parameters: params, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 * hungMiB},
		VolumeCapabilities: []*csi.VolumeCapability{hungCapability()},
	})
	return r.GetVolume(), err
}

func (h *realHarness) delete(ctx context.Context, id string) error {
	_, err := h.Controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (h *realHarness) publishInline(ctx context.Context, id, target string) error {
	_, err := h.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, TargetPath: target, VolumeCapability: hungCapability(),
		VolumeContext: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "16Mi"},
	})
	return err
}

func (h *realHarness) unpublish(ctx context.Context, id, target string) error {
	_, err := h.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

// again calls until the answer is OK, as kubelet and the sidecars do, and gives the answers that were not.
func again(t *testing.T, what string, call func() error) (answers []error) {
	t.Helper()
	for end := time.Now().Add(bound); ; <-time.After(50 * time.Millisecond) {
		err := call()
		if err == nil {
			return answers
		}
		if answers = append(answers, err); time.Now().After(end) {
			t.Fatalf("%s does not succeed: %v", what, err)
		}
	}
}

// wantWorld waits until the world is as it was.
func (h *realHarness) wantWorld(t *testing.T, want, when string) {
	t.Helper()
	got := h.World(t)
	for end := time.Now().Add(bound); got != want; got = h.World(t) {
		if time.Now().After(end) {
			t.Fatalf("%s, the world is not what it was:\n%s\nnow:\n%s", when, want, got)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// lvmCommand finds the process of an LVM command; 0: there is none.
func lvmCommand(verb string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if argv := strings.Split(string(text), "\x00"); len(argv) > 1 && filepath.Base(argv[0]) == "lvm" && argv[1] == verb {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	return 0
}

// strike sends a signal to the next LVM command of that verb, so long after it was seen. It gives up when stop is closed.
func strike(verb string, after time.Duration, s syscall.Signal, stop <-chan struct{}) (struck <-chan int) {
	out := make(chan int, 1)
	go func() {
		defer close(out)
		for {
			if pid := lvmCommand(verb); pid != 0 {
				<-time.After(after)
				if syscall.Kill(pid, s) == nil {
					out <- pid
				}
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return out
}

// LVM is killed at swept moments while the driver lives. Each call is repeated until it is OK; nothing is left, and nothing
// suspended. case B15
func TestKilledLVM(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	target := h.Target(t, "killed")
	warm, err := h.create(t.Context(), "warm", nil)
	must(t, err)
	must(t, h.delete(t.Context(), warm.GetVolumeId()))
	world := h.World(t)
	delays := []int{60, 220}
	if os.Getenv("TEST_SWEEP") == "full" {
		delays = nil
		for d := 10; d <= 500; d += 15 {
			delays = append(delays, d)
		}
	}
	thin, mirror := map[string]string{"type": "thin", "thinPool": realPool}, map[string]string{"type": "raid1"}
	hit, outcomes := 0, map[string]int{}
	for _, kind := range []struct {
		name, verb string
		params     map[string]string
	}{{"linear", "lvcreate", nil}, {"thin", "lvcreate", thin}, {"raid1", "lvcreate", mirror}, {"inline", "lvremove", nil}, {"thin", "lvremove", thin}} {
		for _, d := range delays {
			stop := make(chan struct{})
			struck := strike(kind.verb, time.Duration(d)*time.Millisecond, syscall.SIGKILL, stop)
			what := fmt.Sprintf("%s of %s killed after %d ms", kind.verb, kind.name, d)
			var answers []error
			if kind.name == "inline" {
				must(t, h.publishInline(t.Context(), hungInline("a"), target))
				answers = again(t, what, func() error { return h.unpublish(t.Context(), hungInline("a"), target) })
			} else {
				var v *csi.Volume
				answers = again(t, what, func() error { v, err = h.create(t.Context(), "killed", kind.params); return err })
				if f, ok := h.LV(t, volume.Ref{VG: realVG, LV: "killed"}); !ok || f.SizeBytes != 16*hungMiB || f.SegType != map[string]string{"linear": "linear", "thin": "thin", "raid1": "raid1"}[kind.name] {
					t.Errorf("%s: %+v, %t", what, f, ok)
				}
				answers = append(answers, again(t, what, func() error { return h.delete(t.Context(), v.GetVolumeId()) })...)
			}
			close(stop)
			if <-struck != 0 {
				hit++
			}
			for _, err := range answers {
				outcomes[status.Code(err).String()]++
			}
			h.wantWorld(t, world, what)
		}
	}
	t.Logf("%d LVM commands were struck; answers besides OK: %v", hit, outcomes)
	if hit == 0 {
		t.Error("no LVM command was killed")
	}
}

// An lvremove stops in the middle, with LVM's lock; the driver is killed, and the next one finds it so. case B18
func TestStoppedLVM(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	target := h.Target(t, "stopped")
	world := h.World(t)
	must(t, h.publishInline(t.Context(), hungInline("b"), target))
	stop := make(chan struct{})
	defer close(stop)
	struck := strike("lvremove", 60*time.Millisecond, syscall.SIGSTOP, stop)
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := h.unpublish(short, hungInline("b"), target); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	pid := <-struck
	if pid == 0 {
		t.Fatal("no lvremove was stopped")
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	h.Kill(t)
	start := time.Now()
	h.Start(t)
	t.Logf("the next driver was ready after %s", time.Since(start).Round(time.Millisecond))
	<-time.After(time.Second)          // its retry, and its look for suspended devices, have begun
	if n := h.LVMProcesses(t); n > 2 { // the stopped one, and one of ours
		t.Errorf("%d LVM processes", n)
	}
	// It may have gone already: the kernel hangs up stopped processes whose parent has gone (setpgid(2)).
	_ = syscall.Kill(pid, syscall.SIGCONT)
	h.wantWorld(t, world, "after the lvremove went on, or ended")
}

// setDisks gives all physical volumes a table, or suspends them.
func (h *realHarness) setDisks(t *testing.T, target string) {
	t.Helper()
	for _, p := range h.pvs {
		table := p.table("linear")
		if target == "error" {
			table = fmt.Sprintf("0 %d error", pvBytes/512)
		}
		sh(t, "dmsetup", "load", p.name, "--table", table)
		sh(t, "dmsetup", "suspend", "--noflush", "--nolockfs", p.name)
		if target != "suspended" {
			sh(t, "dmsetup", "resume", p.name)
		}
	}
}

// All disks of the group fail, and come back. Calls end by their deadline and not OK, Probe says so, nothing is lost.
func TestDeadDisks(t *testing.T) { disksFail(t, "error") }

// All disks of the group hang, and go on. Nothing is ever touched that hangs, so that the driver can be ended.
func TestHungDisks(t *testing.T) { disksFail(t, "suspended") }

func disksFail(t *testing.T, how string) {
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	target, other, staging := h.Target(t, "disks"), h.Target(t, "disks-other"), h.Staging(t, "disks")
	world := h.World(t)
	v, err := h.create(t.Context(), "precious", nil)
	must(t, err)
	stage := func() error {
		_, err := h.Node().NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging, VolumeCapability: hungCapability()})
		return err
	}
	unstage := func() error {
		_, err := h.Node().NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging})
		return err
	}
	must(t, stage())
	must(t, h.WriteFile(staging+"/f", "precious"))
	unix.Sync()
	must(t, unstage())
	must(t, h.publishInline(t.Context(), hungInline("c"), target))
	unix.Sync()

	h.setDisks(t, how)
	mended := false
	defer func() {
		if !mended {
			h.setDisks(t, "linear")
		}
	}()
	short := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		start := time.Now()
		err := call(ctx)
		t.Logf("%s: %s: after %s: %v", how, what, time.Since(start).Round(time.Millisecond), err)
		if err == nil || time.Since(start) > 6*time.Second {
			t.Errorf("%s: got %v after %s", what, err, time.Since(start))
		}
	}
	short("publish", func(ctx context.Context) error { return h.publishInline(ctx, hungInline("d"), other) })
	short("create", func(ctx context.Context) error { _, err := h.create(ctx, "another", nil); return err })
	short("unpublish", func(ctx context.Context) error { return h.unpublish(ctx, hungInline("c"), target) })
	short("delete", func(ctx context.Context) error { return h.delete(ctx, v.GetVolumeId()) })
	short("stage", func(ctx context.Context) error {
		_, err := h.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging, VolumeCapability: hungCapability()})
		return err
	})
	short("Probe", func(ctx context.Context) error {
		r, err := h.Identity().Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !r.GetReady().GetValue() {
			err = errors.New("not ready")
		}
		return err
	})
	_, err = h.Identity().GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	must(t, err)

	h.setDisks(t, "linear")
	mended = true
	waitReady(t, h.proc.conn, h.proc.ended)
	again(t, "unpublish", func() error { return h.unpublish(t.Context(), hungInline("c"), target) })
	again(t, "unpublish", func() error { return h.unpublish(t.Context(), hungInline("d"), other) })
	again(t, "stage", stage)
	if got, err := h.ReadFile(staging + "/f"); got != "precious" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	again(t, "unstage", unstage)
	again(t, "delete", func() error { return h.delete(t.Context(), v.GetVolumeId()) })
	again(t, "delete", func() error { return h.delete(t.Context(), h.NodeName()+"/"+realVG+"/another") })
	h.wantWorld(t, world, "after the disks were back")
}

// In a container with an IPC namespace of its own and the host's /run/udev, LVM would wait for udev for ever. case B33
func TestNoUdevCookies(t *testing.T) {
	h := newRealHarness(t).(*realHarness)
	must(t, os.MkdirAll("/run/udev", 0o755))
	must(t, os.WriteFile("/run/udev/control", nil, 0o600)) // libdm takes udev for running
	t.Cleanup(func() { must(t, os.RemoveAll("/run/udev")) })
	h.attr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWIPC}
	h.Start(t)
	target := h.Target(t, "udev")
	world := h.World(t)
	start := time.Now()
	v, err := h.create(t.Context(), "udev", nil)
	must(t, err)
	must(t, h.publishInline(t.Context(), hungInline("e"), target))
	if _, err := os.Stat("/dev/mapper/" + volume.DMName(volume.Ref{VG: realVG, LV: "udev"})); err != nil {
		t.Errorf("no device node was made: %v", err)
	}
	must(t, h.unpublish(t.Context(), hungInline("e"), target))
	must(t, h.delete(t.Context(), v.GetVolumeId()))
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("four calls took %s", took)
	}
	cookies := sh(t, "nsenter", "-t", strconv.Itoa(h.proc.cmd.Process.Pid), "-i", "cat", "/proc/sysvipc/sem")
	if n := strings.Count(strings.TrimSpace(cookies), "\n"); n != 0 {
		t.Errorf("cookies are left:\n%s", cookies)
	}
	h.wantWorld(t, world, "after all calls")
}

// setData gives one physical volume a table in which the part that holds the data is a target of that kind, as
// "delay" or "flakey"; args come after its device and offset. The metadata stays where it is quick and good.
func (h *realHarness) setData(t *testing.T, p pv, kind, args string) {
	t.Helper()
	table := strings.Replace(p.table("linear"), fmt.Sprintf("%d linear", pvBytes/512-labelSectors), fmt.Sprintf("%d %s", pvBytes/512-labelSectors, kind), 1)
	sh(t, "dmsetup", "load", p.name, "--table", table+" "+args)
	sh(t, "dmsetup", "suspend", "--noflush", "--nolockfs", p.name)
	sh(t, "dmsetup", "resume", p.name)
}

// A disk takes three seconds for all it is asked, and later none.
func TestSlowDisk(t *testing.T) {
	oneDiskSuffers(t, "delay", "3000", codes.DeadlineExceeded, codes.Aborted)
}

// A disk fails every other second (in between it does not), and later never.
func TestFlakyDisk(t *testing.T) {
	oneDiskSuffers(t, "flakey", "1 1", codes.OK, codes.DeadlineExceeded, codes.Aborted, codes.Internal)
}

// oneDiskSuffers: the volumes that lie on the disk may be answered so, by their deadline; all others, Probe, the stop and the
// start of the driver go on as ever; and when the disk is well again, so is everything.
func oneDiskSuffers(t *testing.T, kind, args string, allowed ...codes.Code) {
	sh(t, "modprobe", "dm-"+kind)
	h := newRealHarness(t).(*realHarness)
	h.Start(t)
	ill := h.pvs[0]
	paths := map[string]string{}
	for _, name := range []string{"ill", "blank", "well"} {
		paths[name] = h.Staging(t, "disk-"+name)
	}
	target, inlineTarget := h.Target(t, "disk-well"), h.Target(t, "disk-inline")
	lvm(t, "pvchange", "-q", "-x", "n", "/dev/mapper/"+ill.name)
	sick := false
	defer func() {
		if sick {
			h.setData(t, ill, "linear", "")
		}
		lvm(t, "pvchange", "-q", "-x", "y", "/dev/mapper/"+ill.name)
	}()
	ids := map[string]string{}
	create := func(name string) {
		t.Helper()
		v, err := h.create(t.Context(), name, nil)
		must(t, err)
		ids[name] = v.GetVolumeId()
	}
	stage := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := h.Node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: ids[name], StagingTargetPath: paths[name], VolumeCapability: hungCapability()})
			return err
		}
	}
	unstage := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := h.Node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: ids[name], StagingTargetPath: paths[name]})
			return err
		}
	}
	publish := func(ctx context.Context) error {
		_, err := h.Node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: ids["well"], StagingTargetPath: paths["well"], TargetPath: target, VolumeCapability: hungCapability()})
		return err
	}
	remove := func(ctx context.Context) error { return h.unpublish(ctx, hungInline("f"), inlineTarget) }
	world := h.World(t)
	create("well")
	must(t, stage("well")(t.Context()))
	must(t, unstage("well")(t.Context()))
	lvm(t, "pvchange", "-q", "-x", "y", "/dev/mapper/"+ill.name)
	create("ill")
	create("blank")
	must(t, h.publishInline(t.Context(), hungInline("f"), inlineTarget))
	lvm(t, "pvchange", "-q", "-x", "n", "/dev/mapper/"+ill.name)
	for name, want := range map[string]bool{"ill": true, "blank": true, hungInline("f"): true, "well": false} {
		if on := lvm(t, "lvs", "--noheadings", "-o", "devices", realVG+"/"+name); strings.Contains(on, ill.name+"(") != want {
			t.Fatalf("%s lies on %s", name, strings.TrimSpace(on))
		}
	}
	must(t, stage("ill")(t.Context()))
	must(t, h.WriteFile(paths["ill"]+"/f", "precious"))
	unix.Sync()
	must(t, unstage("ill")(t.Context()))

	h.setData(t, ill, kind, args)
	sick = true
	timed := func(what string, limit time.Duration, call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		err := call(ctx)
		took := time.Since(start).Round(time.Millisecond)
		t.Logf("%s: %s: after %s: %v", kind, what, took, err)
		if took > limit+2*time.Second {
			t.Errorf("%s: ended after %s, and its deadline was %s", what, took, limit)
		}
		return err
	}
	suffered := 0
	suffers := func(what string, call func(context.Context) error) {
		t.Helper()
		err := timed(what, 4*time.Second, call)
		if err != nil {
			suffered++
		}
		if !slices.Contains(allowed, status.Code(err)) {
			t.Errorf("%s: got %v, want one of %v", what, err, allowed)
		}
	}
	goesOn := func(what string, call func(context.Context) error) {
		t.Helper()
		if err := timed(what, 15*time.Second, call); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	probe := func(ctx context.Context) error {
		r, err := h.Identity().Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !r.GetReady().GetValue() {
			err = errors.New("not ready")
		}
		return err
	}
	others := func() {
		t.Helper()
		goesOn("Probe", probe)
		goesOn("stage of another", stage("well"))
		goesOn("publish of another", publish)
		must(t, h.WriteFile(target+"/f", "well"))
		goesOn("unpublish of another", func(ctx context.Context) error { return h.unpublish(ctx, ids["well"], target) })
		goesOn("unstage of another", unstage("well"))
	}
	suffers("stage of a blank one", stage("blank"))
	others()
	suffers("inline unpublish", remove)
	suffers("stage of one with data", stage("ill"))
	others()
	start := time.Now()
	h.Stop(t)
	t.Logf("%s: stopped after %s", kind, time.Since(start).Round(time.Millisecond))
	h.Start(t)
	others()
	suffers("stage of a blank one, by the next driver", stage("blank"))
	if suffered == 0 {
		t.Error("the disk has kept nobody from anything")
	}

	h.setData(t, ill, "linear", "")
	sick = false
	plain := func(call func(context.Context) error) func() error {
		return func() error { return call(t.Context()) }
	}
	again(t, "inline unpublish", plain(remove))
	for _, name := range []string{"ill", "blank"} {
		again(t, "unstage of "+name, plain(unstage(name)))
		again(t, "stage of "+name, plain(stage(name)))
	}
	if got, err := h.ReadFile(paths["ill"] + "/f"); got != "precious" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	must(t, h.WriteFile(paths["blank"]+"/f", "x"))
	for name, id := range ids {
		again(t, "unstage of "+name, plain(unstage(name)))
		again(t, "delete of "+name, func() error { return h.delete(t.Context(), id) })
	}
	h.wantWorld(t, world, "after the disk was well again")
}
