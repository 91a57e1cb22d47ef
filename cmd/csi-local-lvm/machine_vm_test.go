//go:build vm

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// programVersion in the environment makes the test binary the program itself, of that version: so what is tested is what users run, from its arguments
// to its exit status.
const programVersion = "CSI_TEST_PROGRAM_VERSION"

func TestMain(m *testing.M) {
	if version = os.Getenv(programVersion); version != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	vg, pool = "faults", "pool"
	node     = "node-1"
	bound    = 2 * time.Minute
	pvBytes  = 600 << 20
	// tuned keeps the test's own commands from what is not there: udev, dmeventd, /etc/lvm.
	tuned = "backup{backup=0 archive=0} activation{udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0} devices{scan_lvs=0}"
)

// machine is the machine that the test runs on, as root: a volume group on three of its disks, a folder of kubelet's, and the driver.
type machine struct {
	t    *testing.T // the test that runs
	dir  string
	log  *os.File
	proc *exec.Cmd
	conn *grpc.ClientConn

	seen, lvs string // what LVM said when it was asked last
}

// disks are device-mapper devices over those of the machine, so that they can be taken away.
var disks = []string{"faultdisk0", "faultdisk1", "faultdisk2"}

func newMachine(t *testing.T) *machine {
	dir, err := os.MkdirTemp("/run", "doctor")
	m := &machine{t: t, dir: dir}
	m.must(err)
	for _, folder := range []string{"state", "bin", "kubelet/pods", "kubelet/plugins"} {
		m.must(os.MkdirAll(m.in(folder), 0o755))
	}
	m.log, err = os.Create(m.in("driver.log"))
	m.must(err)
	t.Cleanup(m.cleanUp)
	var nodes []string
	for i := range disks {
		m.plug(i)
		nodes = append(nodes, "/dev/mapper/"+disks[i])
		m.sh("wipefs", "-q", "-a", nodes[i])
	}
	m.lvm("vgcreate", append([]string{"-y", "-q", vg}, nodes...)...)
	m.lvm("lvcreate", "-y", "-q", "--type", "thin-pool", "-L", "32m", "-c", "64k", "--poolmetadatasize", "2m", "-n", pool, vg, nodes[0])
	return m
}

func (m *machine) cleanUp() {
	if m.t.Failed() {
		text, _ := os.ReadFile(m.log.Name())
		m.t.Logf("end of the log of the driver:\n%s", text[max(0, len(text)-16<<10):])
	}
	m.stop(syscall.SIGKILL)
	_ = m.log.Close()
	all, _ := os.ReadFile("/proc/self/mounts")
	for _, line := range slices.Backward(strings.Split(string(all), "\n")) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], m.dir+"/") {
			_ = unix.Unmount(fields[1], unix.UMOUNT_NOFOLLOW)
		}
	}
	m.lvm("vgremove", "-f", "-y", vg)
	for _, d := range disks {
		m.sh("dmsetup", "remove", "--retry", d)
	}
	m.must(os.RemoveAll(m.dir))
}

func (m *machine) in(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) plug(i int) {
	m.t.Helper()
	m.sh("dmsetup", "create", disks[i], "--table", m.table(i))
	m.sh("dmsetup", "mknodes", disks[i])
}

// table is the table of a disk that is well. It is not the beginning of the machine's disk, where LVM would find it twice.
func (m *machine) table(i int) string {
	return fmt.Sprintf("0 %d linear /dev/vd%c 8192", pvBytes/512, 'a'+i)
}

// env is the environment of all programs. The folder bin comes before the machine's own.
func (m *machine) env() []string {
	return append(os.Environ(), "PATH="+m.in("bin")+":"+os.Getenv("PATH"), "LC_ALL=C", "DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1")
}

func (m *machine) sh(argv ...string) string {
	m.t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = m.env()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out, stderr.String())
	}
	return string(out)
}

func (m *machine) lvm(verb string, args ...string) string {
	m.t.Helper()
	return m.sh(append([]string{"lvm", verb, "--config", tuned}, args...)...)
}

// background runs a program until the end is called, once its name is that of the last program it runs.
func (m *machine) background(cmd *exec.Cmd, name string) (end func()) {
	m.t.Helper()
	cmd.Env = m.env()
	m.must(cmd.Start())
	m.until(name+" runs", func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return strings.TrimSpace(string(text)) == name
	})
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error is that it was killed
	}
}

// hold starts a process that has a file open.
func (m *machine) hold(path string) (end func()) {
	m.t.Helper()
	f, err := os.Open(path)
	m.must(err)
	cmd := exec.Command("sleep", "900")
	cmd.Stdin = f
	end = m.background(cmd, "sleep")
	m.must(f.Close())
	return end
}

// records are the files of the journal, one behind the other, with their names.
func (m *machine) records() (all string) {
	files, err := filepath.Glob(m.in("state/journal/*"))
	m.must(err)
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may just have been forgotten
		all += f + string(text)
	}
	return all
}

func (m *machine) until(what string, is func() bool) {
	m.t.Helper()
	for end := time.Now().Add(bound); !is(); <-time.Tick(20 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("it never comes to be that %s", what)
		}
	}
}

// program is the program under test.
func (m *machine) program(ofVersion string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(m.env(), programVersion+"="+ofVersion)
	return cmd
}

// start starts the driver, as the chart does, and waits until it is ready.
func (m *machine) start() {
	m.t.Helper()
	m.proc = m.program("v1", "serve", "--endpoint=unix://"+m.in("csi.sock"), "--node-name="+node, "--volume-groups="+vg, "--state-dir="+m.in("state"),
		"--kubelet-dir="+m.in("kubelet"), "--orphan-policy=report", "--thin-overcommit=4")
	m.proc.Stdout, m.proc.Stderr = m.log, m.log
	m.must(m.proc.Start())
	var err error
	m.conn, err = grpc.NewClient("unix://"+m.in("csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	m.must(err)
	m.ready()
}

// ready waits until the driver says that it is ready.
func (m *machine) ready() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), bound)
	defer cancel()
	m.until("the driver is ready", func() bool {
		r, err := csi.NewIdentityClient(m.conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		return err == nil && r.GetReady().GetValue()
	})
}

func (m *machine) stop(signal syscall.Signal) {
	if m.proc == nil {
		return
	}
	_ = m.proc.Process.Signal(signal)
	_ = m.proc.Wait()
	_ = m.conn.Close()
	m.proc = nil
}

// What kubelet does.

func (m *machine) target(pod string) string {
	folder := m.in("kubelet/pods/" + pod + "/volumes/kubernetes.io~csi/data")
	m.must(os.MkdirAll(folder, 0o755))
	return folder + "/mount"
}

func (m *machine) staging(name string) string {
	folder := m.in("kubelet/plugins/kubernetes.io/csi/" + driver.Default().DriverName + "/" + name + "/globalmount")
	m.must(os.MkdirAll(folder, 0o755))
	return folder
}

// wanted is kubelet's file beside a target or staging path, as old as if it had been there for long.
func (m *machine) wanted(path, id string) (forget func()) {
	file := filepath.Join(filepath.Dir(path), "vol_data.json")
	m.must(os.WriteFile(file, fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":%q}`, driver.Default().DriverName, id), 0o600))
	old := time.Now().Add(-time.Hour)
	m.must(os.Chtimes(file, old, old))
	return func() { m.must(os.Remove(file)) }
}

// dropPod takes the folder of a pod away, as kubelet does at its end.
func (m *machine) dropPod(pod string) {
	for folder := m.in("kubelet/pods/" + pod + "/volumes/kubernetes.io~csi/data"); folder != m.in("kubelet/pods"); folder = filepath.Dir(folder) {
		m.must(os.Remove(folder))
	}
}

func (m *machine) dropStaging(name string) {
	folder := m.staging(name)
	m.must(os.Remove(folder))
	m.must(os.Remove(filepath.Dir(folder)))
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}
}

func (m *machine) create(name string, params ...string) (id string) {
	m.t.Helper()
	req := &csi.CreateVolumeRequest{Name: name, Parameters: map[string]string{}, VolumeCapabilities: []*csi.VolumeCapability{capability()},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 32 << 20}}
	for i := 0; i < len(params); i += 2 {
		req.Parameters[params[i]] = params[i+1]
	}
	r, err := csi.NewControllerClient(m.conn).CreateVolume(m.t.Context(), req)
	m.must(err)
	return r.GetVolume().GetVolumeId()
}

func (m *machine) delete(id string) {
	m.t.Helper()
	m.repeat(func() error {
		_, err := csi.NewControllerClient(m.conn).DeleteVolume(m.t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	})
}

func (m *machine) stage(id string) {
	m.t.Helper()
	_, err := csi.NewNodeClient(m.conn).NodeStageVolume(m.t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: m.staging(filepath.Base(id)), VolumeCapability: capability()})
	m.must(err)
}

func (m *machine) unstage(id string) {
	m.t.Helper()
	m.repeat(func() error {
		_, err := csi.NewNodeClient(m.conn).NodeUnstageVolume(m.t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: m.staging(filepath.Base(id))})
		return err
	})
}

func (m *machine) publish(id, target string) {
	m.t.Helper()
	_, err := csi.NewNodeClient(m.conn).NodePublishVolume(m.t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: m.staging(filepath.Base(id)), TargetPath: target, VolumeCapability: capability()})
	m.must(err)
}

func (m *machine) unpublish(id, target string) error {
	_, err := csi.NewNodeClient(m.conn).NodeUnpublishVolume(m.t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

// published makes a persistent volume that a pod has.
func (m *machine) published(name string, params ...string) (id, target string) {
	m.t.Helper()
	id, target = m.create(name, params...), m.target(name)
	m.stage(id)
	m.publish(id, target)
	return id, target
}

// gone is the end of a persistent volume, and of its pod.
func (m *machine) gone(id, target string) {
	m.t.Helper()
	m.repeat(func() error { return m.unpublish(id, target) })
	m.unstage(id)
	m.delete(id)
	m.dropStaging(filepath.Base(id))
	m.dropPod(filepath.Base(id))
}

// inlineID is the id of a pod's inline volume, as kubelet makes them.
func inlineID(pod string) string { return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(pod))) }

// inline makes the inline volume of a pod.
func (m *machine) inline(pod string) (id, target string) {
	m.t.Helper()
	id, target = inlineID(pod), m.target(pod)
	_, err := csi.NewNodeClient(m.conn).NodePublishVolume(m.t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: target, VolumeCapability: capability(),
		VolumeContext: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "32Mi", "csi.storage.k8s.io/pod.uid": pod}})
	m.must(err)
	return id, target
}

// repeat repeats a call until it is done, as kubelet does.
func (m *machine) repeat(call func() error) {
	m.t.Helper()
	for end := time.Now().Add(bound); ; <-time.Tick(50 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatal(err)
		}
	}
}

// world is all that doctor might touch: each logical volume, device, mount, and file of kubelet's and of the journal, a line each.
func (m *machine) world() string {
	m.t.Helper()
	var out strings.Builder
	devices := m.sh("dmsetup", "info", "-c", "--noheadings", "--separator", " ", "--sort", "name", "-o", "name,suspended,tables_loaded")
	if now := m.metadata() + devices; now != m.seen {
		m.seen = now
		m.lvs = m.lvm("lvs", "-a", "--noheadings", "--units", "b", "-o", "lv_full_name,lv_uuid,lv_size,segtype,lv_tags,lv_active", vg)
	}
	for line := range strings.Lines(m.lvs) {
		fmt.Fprintf(&out, "lv %s\n", strings.Join(strings.Fields(line), " "))
	}
	for line := range strings.Lines(devices) {
		fmt.Fprintf(&out, "device %s\n", strings.TrimSpace(line))
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	m.must(err)
	for line := range strings.Lines(string(mounts)) {
		fmt.Fprintf(&out, "mount %s\n", strings.TrimSpace(line))
	}
	for _, folder := range []string{"kubelet", "state"} {
		m.must(filepath.WalkDir(m.in(folder), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a record that was just forgotten
			}
			if err == nil {
				fmt.Fprintf(&out, "path %s %s\n", path, d.Type())
			}
			return err
		}))
	}
	return out.String()
}

// metadata are the headers of LVM's metadata, which each change of LVM's writes anew; a disk that cannot be read has another one each time.
func (m *machine) metadata() (out string) {
	for _, d := range disks {
		f, err := os.Open("/dev/mapper/" + d)
		if err != nil {
			out += err.Error()
			continue
		}
		head := make([]byte, 512)
		if _, err := f.ReadAt(head, 4096); err != nil {
			out += err.Error()
		}
		m.must(f.Close())
		out += string(head)
	}
	return out
}

// differ gives the lines that only one of two worlds has.
func differ(before, after string) (out []string) {
	for _, p := range []struct{ sign, of, in string }{{"-", before, after}, {"+", after, before}} {
		have := strings.Split(p.in, "\n")
		for line := range strings.SplitSeq(p.of, "\n") {
			if !slices.Contains(have, line) {
				out = append(out, p.sign+line)
			}
		}
	}
	return out
}

// said is what doctor found, a line each: severity, rule and subject.
type said struct {
	lines, sentences []string
	text             string
	exit             int
}

// doctor runs doctor, once more where an answer came too late because the machine is busy.
func (m *machine) doctor(as consulting) (s said) {
	m.t.Helper()
	for end := time.Now().Add(bound); ; {
		s = m.doctorOnce(as)
		if as.late || !strings.Contains(s.text, "no answer in time") || time.Now().After(end) {
			return s
		}
	}
}

func (m *machine) doctorOnce(as consulting) (s said) {
	m.t.Helper()
	args := append([]string{"doctor", "--state-dir=" + m.in("state"), "--kubelet-dir=" + m.in("kubelet"), "--node-name=" + node}, as.args...)
	ofVersion := "v1"
	if as.version != "" {
		ofVersion = as.version
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*bound)
	defer cancel()
	argv := append(slices.Clone(as.within), fmt.Sprintf("/proc/%d/exe", os.Getpid()))
	cmd := exec.CommandContext(ctx, argv[0], append(argv[1:], args...)...)
	cmd.Env = append(append(m.env(), programVersion+"="+ofVersion), as.env...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		m.t.Fatal(err)
	}
	s.exit, s.text = cmd.ProcessState.ExitCode(), out.String()
	if s.exit == 1 || s.exit < 0 {
		m.t.Fatalf("doctor %q: exit status %d\n%s%s", args, s.exit, &out, &stderr)
	}
	if !slices.Contains(args, "json") {
		return s
	}
	var page struct {
		Findings []struct{ Severity, Rule, Subject, Sentence string }
	}
	if err := json.NewDecoder(&out).Decode(&page); err != nil {
		m.t.Fatalf("%v\n%s", err, s.text)
	}
	for _, f := range page.Findings {
		s.lines, s.sentences = append(s.lines, f.Severity+" "+f.Rule+" "+f.Subject), append(s.sentences, f.Sentence)
	}
	return s
}

// consulting is how doctor is run.
type consulting struct {
	version string
	within  []string // programs that run it
	env     []string
	args    []string
	late    bool // that an answer does not come is what it is to find
}
