// Command demo walks a person through the driver: it starts the real binary on a real volume group and makes the CSI
// calls that kubelet and the sidecars make. Each step prints the call, the answer, and what lvs and findmnt say then.
// Every answer is checked; the first that is not as it should be ends the walk with an error.
//
// It is started by hack/demo.sh.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
)

func main() {
	driver := flag.String("driver", "", "the csi-local-lvm binary")
	group := flag.String("volume-group", "", "an empty volume group for the demo")
	flag.Parse()
	folder, err := os.MkdirTemp("", "demo")
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	d := &demo{driver: *driver, group: *group, folder: folder, started: time.Now()}
	err = d.walk()
	d.kill()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\nthe driver's log:\n", err)
		tail(filepath.Join(folder, "log"), 30)
	}
	if err := os.RemoveAll(folder); err != nil { //nolint:forbidigo // the demo's own temporary folder
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

type demo struct {
	driver, group, folder string
	started               time.Time
	process               *exec.Cmd
	conn                  *grpc.ClientConn
	step                  int
}

func (d *demo) path(name string) string { return filepath.Join(d.folder, name) }

func (d *demo) walk() error {
	for _, part := range []func() error{d.start, d.persistent, d.inline, d.busy, d.killed} {
		if err := part(); err != nil {
			return err
		}
	}
	fmt.Printf("\nAll as it should be, in %s.\n", time.Since(d.started).Round(time.Second))
	return nil
}

// start starts the driver and waits until it says that it is ready.
func (d *demo) start() error {
	log, err := os.OpenFile(d.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the driver has its own copy
	socket := d.path("csi.sock")
	d.process = exec.Command(d.driver, "serve", "--endpoint=unix://"+socket, "--node-name=demo-node",
		"--volume-groups="+d.group, "--state-dir="+d.path("state"), "--kubelet-dir="+d.path("kubelet"))
	d.process.Stdout, d.process.Stderr = log, log
	d.say("Start the driver", strings.Join(d.process.Args, " "))
	if err := d.process.Start(); err != nil {
		return err
	}
	if d.conn == nil {
		if d.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			return err
		}
	}
	return until(20*time.Second, "the driver is ready", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p, err := csi.NewIdentityClient(d.conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		return err == nil && p.GetReady().GetValue()
	})
}

// kill ends the driver as a crash does.
func (d *demo) kill() {
	if d.process != nil && d.process.Process != nil {
		_ = d.process.Process.Kill() // it may have ended by itself
		_ = d.process.Wait()         // "signal: killed" is what is wanted
	}
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
	}
}

// persistent: created, staged, published, written, made larger in use, unpublished, published again with its data there,
// deleted.
func (d *demo) persistent() error {
	staging, target := d.path("kubelet/staging"), d.path("kubelet/pod-1/mount")
	if err := os.MkdirAll(staging, 0o750); err != nil {
		return err
	}
	var id string
	stage := func() error {
		return d.call("NodeStageVolume", codes.OK, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability()})
	}
	publish := func() error {
		return d.call("NodePublishVolume", codes.OK, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability()})
	}
	unpublish := func() error {
		return d.call("NodeUnpublishVolume", codes.OK, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	}
	unstage := func() error {
		return d.call("NodeUnstageVolume", codes.OK, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
	}
	return inOrder(
		func() (err error) { id, err = d.create("pvc-demo", 256<<20); return err },
		stage, publish,
		func() error {
			d.say("A pod writes", "hello > "+target+"/greeting")
			return os.WriteFile(filepath.Join(target, "greeting"), []byte("hello"), 0o600)
		},
		func() error { return d.expand(id, target, 512<<20) },
		unpublish, unstage, stage, publish,
		func() error {
			text, err := os.ReadFile(filepath.Join(target, "greeting"))
			d.say("The next pod reads", fmt.Sprintf("%s/greeting: %q", target, text))
			if string(text) != "hello" {
				return errors.Join(errors.New("the data is not there"), err)
			}
			return nil
		},
		unpublish, unstage,
		func() error { return d.call("DeleteVolume", codes.OK, &csi.DeleteVolumeRequest{VolumeId: id}) },
		d.nothingLeft,
	)
}

// expand makes a volume larger while a pod uses it: first the logical volume, then the file system.
func (d *demo) expand(id, target string, bytes int64) error {
	larger := &csi.CapacityRange{RequiredBytes: bytes}
	err := inOrder(
		func() error {
			return d.call("ControllerExpandVolume", codes.OK, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: larger})
		},
		func() error {
			return d.call("NodeExpandVolume", codes.OK, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, CapacityRange: larger})
		},
	)
	show("df "+target, "", output("df", "-h", "--output=size,used,target", target))
	return err
}

func (d *demo) create(name string, bytes int64) (string, error) {
	req := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, VolumeCapabilities: []*csi.VolumeCapability{capability()},
	}
	reply, err := d.ask("CreateVolume", codes.OK, req)
	if err != nil {
		return "", err
	}
	return reply.(*csi.CreateVolumeResponse).GetVolume().GetVolumeId(), nil
}

// inlineID makes the id that kubelet would make: csi- and the hash of pod and volume.
func inlineID(name string) string { return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(name))) }

func (d *demo) publishInline(name, target string) error {
	return d.call("NodePublishVolume", codes.OK, &csi.NodePublishVolumeRequest{
		VolumeId: inlineID(name), TargetPath: target, VolumeCapability: capability(),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "64Mi"},
	})
}

func (d *demo) unpublishInline(name, target string, want codes.Code) error {
	return d.call("NodeUnpublishVolume", want, &csi.NodeUnpublishVolumeRequest{VolumeId: inlineID(name), TargetPath: target})
}

// inline: the logical volume comes and goes with the pod.
func (d *demo) inline() error {
	target := d.path("kubelet/pod-2/mount")
	return inOrder(
		func() error { return d.publishInline("scratch", target) },
		func() error { return d.unpublishInline("scratch", target, codes.OK) },
		d.nothingLeft,
	)
}

// busy: a process still uses the volume. The answer names it, and when it ends the same call is OK.
func (d *demo) busy() error {
	target := d.path("kubelet/pod-3/mount")
	var end func()
	return inOrder(
		func() error { return d.publishInline("busy", target) },
		func() (err error) { end, err = d.hold(target); return err },
		func() error { return d.unpublishInline("busy", target, codes.Aborted) },
		func() error { end(); return nil },
		func() error { return d.unpublishInline("busy", target, codes.OK) },
		d.nothingLeft,
	)
}

// killed: an unpublish is half done, the caller never calls again, and the driver is killed. The journal knows.
func (d *demo) killed() error {
	target := d.path("kubelet/pod-4/mount")
	var end func()
	return inOrder(
		func() error { return d.publishInline("orphan", target) },
		func() (err error) { end, err = d.hold(target); return err },
		func() error { return d.unpublishInline("orphan", target, codes.Aborted) },
		func() error {
			d.say("The driver is killed in the middle of the unpublish", "SIGKILL; and nobody will call NodeUnpublishVolume again")
			d.kill()
			records, _ := filepath.Glob(d.path("state/journal/*.json")) // the pattern is right
			show("cat "+d.path("state/journal/*.json"), "(no record)", output("cat", records...))
			d.look()
			return nil
		},
		d.start,
		func() error { end(); return nil },
		func() error {
			d.say("Nobody calls; the driver finishes the unpublish by itself", "waiting")
			err := until(20*time.Second, "the logical volume is gone", func() bool { return d.lvs() == "" })
			d.look()
			return err
		},
		d.nothingLeft,
	)
}

// hold starts a process that keeps a file of the volume open.
func (d *demo) hold(target string) (end func(), err error) {
	log, err := os.Create(filepath.Join(target, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the process has its own
	p := exec.Command("sleep", "600")
	p.Stdout = log
	if err := p.Start(); err != nil {
		return nil, err
	}
	d.say("A container's process keeps a file open", fmt.Sprintf("pid %d: sleep 600 > %s/log", p.Process.Pid, target))
	return func() {
		d.say("The process ends", fmt.Sprintf("pid %d", p.Process.Pid))
		_ = p.Process.Signal(syscall.SIGKILL)
		_ = p.Wait()
	}, nil
}

func (d *demo) nothingLeft() error {
	if left := d.lvs(); left != "" {
		return fmt.Errorf("left over: %s", left)
	}
	return nil
}

// call makes a CSI call and shows it, and fails unless the answer has the code. Where OK is wanted and the answer is
// Aborted it asks again, as kubelet does: the driver may be at it by itself just then.
func (d *demo) call(method string, want codes.Code, req any) error {
	var err error
	for range 10 {
		if _, err = d.ask(method, want, req); want != codes.OK || status.Code(err) != codes.Aborted {
			break
		}
		<-time.After(time.Second)
	}
	return err
}

func (d *demo) ask(method string, want codes.Code, req any) (reply any, err error) {
	d.say(method, strings.TrimSpace(fmt.Sprint(req)))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	start := time.Now()
	switch r := req.(type) {
	case *csi.CreateVolumeRequest:
		reply, err = csi.NewControllerClient(d.conn).CreateVolume(ctx, r)
	case *csi.DeleteVolumeRequest:
		reply, err = csi.NewControllerClient(d.conn).DeleteVolume(ctx, r)
	case *csi.ControllerExpandVolumeRequest:
		reply, err = csi.NewControllerClient(d.conn).ControllerExpandVolume(ctx, r)
	case *csi.NodeExpandVolumeRequest:
		reply, err = csi.NewNodeClient(d.conn).NodeExpandVolume(ctx, r)
	case *csi.NodeStageVolumeRequest:
		reply, err = csi.NewNodeClient(d.conn).NodeStageVolume(ctx, r)
	case *csi.NodeUnstageVolumeRequest:
		reply, err = csi.NewNodeClient(d.conn).NodeUnstageVolume(ctx, r)
	case *csi.NodePublishVolumeRequest:
		reply, err = csi.NewNodeClient(d.conn).NodePublishVolume(ctx, r)
	case *csi.NodeUnpublishVolumeRequest:
		reply, err = csi.NewNodeClient(d.conn).NodeUnpublishVolume(ctx, r)
	}
	took := time.Since(start).Round(time.Millisecond)
	if err != nil {
		fmt.Printf("   answer: %s (%s)\n           %s\n", status.Code(err), took, status.Convert(err).Message())
	} else {
		fmt.Printf("   answer: OK (%s) %v\n", took, reply)
	}
	d.look()
	switch got := status.Code(err); {
	case got == want:
		return reply, nil
	case err == nil:
		return nil, fmt.Errorf("%s answered OK, should be %s", method, want)
	default:
		return nil, fmt.Errorf("%s should be answered %s: %w", method, want, err)
	}
}

func (d *demo) say(title, text string) {
	d.step++
	fmt.Printf("\n%d. %s\n   %s\n", d.step, title, text)
}

// look shows what LVM and the kernel say.
func (d *demo) look() {
	show("lvs "+d.group, "(no logical volume)", output("lvs", "-o", "lv_name,lv_size,lv_attr,lv_tags", d.group))
	var mounts strings.Builder
	for line := range strings.Lines(output("findmnt", "--noheadings", "--list", "-o", "TARGET,SOURCE,FSTYPE,OPTIONS")) {
		if strings.Contains(line, d.folder) {
			mounts.WriteString(line)
		}
	}
	show("findmnt", "(nothing mounted)", mounts.String())
}

func (d *demo) lvs() string {
	return strings.TrimSpace(output("lvs", "--noheadings", "-o", "lv_name", d.group))
}

// output is what a program printed; how it failed, if it did, is part of it.
func output(name string, args ...string) string {
	res, err := (&run.Local{}).Read(context.Background(), name, args...)
	if err != nil {
		return res.Stdout + err.Error()
	}
	return res.Stdout
}

func show(title, none, text string) {
	text = cmp.Or(strings.TrimRight(text, "\n"), none)
	fmt.Printf("   $ %s\n     %s\n", title, strings.ReplaceAll(text, "\n", "\n     "))
}

func inOrder(steps ...func() error) error {
	for _, s := range steps {
		if err := s(); err != nil {
			return err
		}
	}
	return nil
}

// until waits for a condition.
func until(bound time.Duration, what string, ok func() bool) error {
	for end := time.Now().Add(bound); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("waited %s in vain: %s", bound, what)
		}
	}
	return nil
}

func tail(path string, lines int) {
	text, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	fmt.Fprintln(os.Stderr, strings.Join(all[max(0, len(all)-lines):], "\n"))
}
