//go:build vm

package sanity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/adopt"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/mount"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func TestDriverOverRealMachine(t *testing.T) {
	contract.Brief = os.Getenv("TEST_SWEEP") != "full"
	contract.Grace, contract.Patience = time.Second, 1500*time.Millisecond
	contract.Driver(t, newRealHarness)
}

// TestSweepOverRealMachine takes a few points of inline volumes only, since each takes seconds here; with TEST_SWEEP=full ("make sweep")
// every one of all calls, with TEST_SWEEP=N every N-th of all. Over the fake "make test" takes all.
func TestSweepOverRealMachine(t *testing.T) {
	stride, err := strconv.Atoi(os.Getenv("TEST_SWEEP"))
	if os.Getenv("TEST_SWEEP") == "full" {
		stride, err = 1, nil
	}
	if err == nil {
		contract.Sweep(t, newRealHarness, stride, func(string, string) bool { return true })
		return
	}
	contract.Sweep(t, newRealHarness, 61, func(_, scenario string) bool { return scenario == "inline" }) // no multiple of 3: each way to go on
}

const (
	realVG, realPool = "csi-test", "pool"
	pvBytes          = 1400 << 20
	pvCount          = 5
	labelSectors     = 2048 // the first MiB of a physical volume, which holds the metadata
)

// realHarness is the machine that the test runs on, as root, with its disks /dev/vd?, and the driver as a process of its
// own. See child_vm_test.go for how it is made to fail, wait and die.
type realHarness struct {
	dir  string // of this harness: the driver's socket and state, kubelet's folders, and the control folder
	pvs  []pv
	proc *process
	log  *os.File

	orphans orphans
	attach  bool
	expand  string
	adopt   contract.Fault       // for the next command
	attr    *syscall.SysProcAttr // of the driver's process
	holders []func()             // ends them

	seen    string            // what LVM would find, at the last lvs
	answers map[string]string // of lvs, by its arguments, for as long as that is the same
}

// pv is a device-mapper device over a part of a disk, so that its metadata can be made unreadable.
type pv struct {
	name, disk string
	start      int64 // sectors
}

type process struct {
	cmd   *exec.Cmd
	conn  *grpc.ClientConn
	ended chan struct{} // closed when the process was waited for
	err   error
}

var _ contract.Harness = (*realHarness)(nil)

func newRealHarness(t *testing.T) contract.Harness {
	dir, err := os.MkdirTemp("/run", "csi")
	must(t, err)
	h := &realHarness{dir: dir}
	for _, folder := range []string{"control", "control/block", "bin", "kubelet/pods", "kubelet/plugins"} {
		must(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	h.log, err = os.Create(h.in("driver.log"))
	must(t, err)
	h.writeShims(t)
	t.Cleanup(func() { h.cleanUp(t) })
	h.makeGroup(t)
	return h
}

func (h *realHarness) in(name string) string { return filepath.Join(h.dir, name) }

// writeShims puts before each program of the driver one that takes note of it.
func (h *realHarness) writeShims(t *testing.T) {
	t.Helper()
	for _, name := range []string{"lvm", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "resize2fs", "xfs_growfs", "btrfs"} {
		real, err := exec.LookPath(name)
		must(t, err)
		verb := name
		if name == "lvm" {
			verb = "$1"
		}
		shim := fmt.Sprintf("#!/bin/sh\necho \"%s\" >> %s\nexec %s \"$@\"\n", verb, h.in("control/commands"), real)
		must(t, os.WriteFile(h.in("bin/"+name), []byte(shim), 0o755))
	}
}

// sh runs a program of the machine and gives what it printed.
func sh(t testing.TB, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out, stderr.String())
	}
	return string(out)
}

func lvm(t *testing.T, verb string, args ...string) string {
	t.Helper()
	return sh(t, append([]string{"lvm", verb, "--config", tuned}, args...)...)
}

// tuned keeps the tests' own commands from what is not there: udev, dmeventd, /etc/lvm.
const tuned = "backup{backup=0 archive=0} activation{udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0} devices{scan_lvs=0}"

// lvs is what "lvm lvs" prints. It is asked again only where something has changed that it would find: a program of LVM's takes
// half a second here, and tests wait for the end of something by asking again and again.
func (h *realHarness) lvs(t *testing.T, args ...string) string {
	t.Helper()
	if now, ok := h.whatLVMFinds(); !ok || now != h.seen {
		h.seen, h.answers = now, map[string]string{}
	}
	key := strings.Join(args, " ")
	if _, ok := h.answers[key]; !ok {
		h.answers[key] = lvm(t, "lvs", args...)
	}
	return h.answers[key]
}

// whatLVMFinds are the headers of the metadata areas, which LVM rewrites with each change, and the names of the devices that are
// active; ok is false where that cannot be read.
func (h *realHarness) whatLVMFinds() (all string, ok bool) {
	const header = 4096 // of the area: where pvcreate(8) puts it, a block behind the label

	block, err := unix.Mmap(-1, 0, header, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // aligned, for O_DIRECT
	if err != nil {
		return "", false
	}
	defer func() { _ = unix.Munmap(block) }()
	var out strings.Builder
	for _, p := range h.pvs {
		f, err := os.OpenFile("/dev/mapper/"+p.name, os.O_RDONLY|unix.O_DIRECT, 0)
		if err != nil {
			return "", false
		}
		_, err = f.ReadAt(block, header)
		_ = f.Close()
		if err != nil {
			return "", false
		}
		out.Write(block[:512])
	}
	return out.String() + strings.Join(dmNames(), " "), true
}

// dmNames are the device-mapper devices that there are.
func dmNames() (names []string) {
	files, _ := filepath.Glob("/sys/block/dm-*/dm/name")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil { // else it has just gone
			names = append(names, strings.TrimSpace(string(text)))
		}
	}
	return names
}

func (h *realHarness) makeGroup(t *testing.T) {
	t.Helper()
	disks, _ := filepath.Glob("/sys/block/[uv]*d?") // vda, or ubda in user-mode Linux
	for _, d := range disks {
		text, err := os.ReadFile(filepath.Join(d, "size"))
		must(t, err)
		sectors, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		must(t, err)
		const each = pvBytes / 512
		for at := int64(8192); at+each <= sectors && len(h.pvs) < pvCount; at += each {
			h.pvs = append(h.pvs, pv{fmt.Sprintf("csitest%d", len(h.pvs)), "/dev/" + filepath.Base(d), at})
		}
	}
	if len(h.pvs) < pvCount {
		t.Fatalf("the disks %v are too small for %d physical volumes of %d bytes", disks, pvCount, int64(pvBytes))
	}
	args := []string{realVG}
	for _, p := range h.pvs {
		sh(t, "dmsetup", "create", p.name, "--table", p.table("linear"))
		sh(t, "dmsetup", "mknodes", p.name)
		sh(t, "wipefs", "-a", "/dev/mapper/"+p.name)
		args = append(args, "/dev/mapper/"+p.name)
	}
	lvm(t, "vgcreate", append([]string{"-y", "-q"}, args...)...)
	lvm(t, "lvcreate", "-y", "-q", "--type", "thin-pool", "-L", "1g", "-n", realPool, realVG)
}

// table gives the device-mapper table; head is the target of the part that holds the metadata.
func (p pv) table(head string) string {
	if head == "linear" {
		head = fmt.Sprintf("linear %s %d", p.disk, p.start)
	}
	return fmt.Sprintf("0 %d %s\n%d %d linear %s %d", labelSectors, head,
		labelSectors, pvBytes/512-labelSectors, p.disk, p.start+labelSectors)
}

func (h *realHarness) cleanUp(t *testing.T) {
	if h.Running() {
		h.Kill(t)
	}
	if t.Failed() {
		text, _ := os.ReadFile(h.log.Name())
		const enough = 16 << 10
		t.Logf("end of the log of the driver:\n%s", text[max(0, len(text)-enough):])
	}
	_ = h.log.Close()
	h.endLVM(t)
	if err := h.unmountAll(); err != nil {
		t.Errorf("left mounted: %v", err)
	}
	h.removeGroup(t)
	must(t, os.RemoveAll(h.dir))
}

// endLVM waits for the LVM commands of a driver that is dead: they go on by themselves, and would make what is removed here.
func (h *realHarness) endLVM(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(bound); h.LVMProcesses(t) != 0; <-time.Tick(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("an LVM command does not end:\n%s", sh(t, "ps", "-e", "-o", "pid,stat,wchan,args"))
			return
		}
	}
}

// removeGroup takes the volume group away, from whatever state the test has left it in: the next test makes one on the same disks.
func (h *realHarness) removeGroup(t *testing.T) {
	t.Helper()
	for _, name := range dmNames() {
		h.resume(t, name)
	}
	if out, err := try("lvm", "vgremove", "--config", tuned, "-f", "-y", realVG); err != nil {
		t.Errorf("vgremove: %v: %s", err, out)
		for range 5 { // a device goes after those that lie on it
			for _, name := range dmNames() {
				if strings.HasPrefix(name, strings.ReplaceAll(realVG, "-", "--")+"-") {
					_, _ = try("dmsetup", "remove", "--force", name)
				}
			}
		}
	}
	must(t, os.RemoveAll("/dev/"+realVG)) // a killed LVM command leaves links there, and vgcreate refuses the name
	for _, p := range h.pvs {
		if out, err := try("dmsetup", "remove", "--retry", p.name); err != nil {
			t.Errorf("dmsetup remove %s: %v: %s", p.name, err, out)
		}
	}
}

// resume resumes a device, if it is suspended.
func (h *realHarness) resume(t *testing.T, name string) {
	t.Helper()
	if h.suspended(t, name) {
		sh(t, "dmsetup", "resume", name)
	}
}

// try runs a program that may fail, and not for long.
func try(argv ...string) (out []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1")
	return cmd.CombinedOutput()
}

// unmountAll takes all mounts below kubelet's folder away, the last one first.
func (h *realHarness) unmountAll() error {
	all, err := h.host().List(context.Background())
	for _, m := range slices.Backward(all) {
		if strings.HasPrefix(m.Target, h.dir+"/") {
			if e := unix.Unmount(m.Target, unix.UMOUNT_NOFOLLOW); e != nil && !errors.Is(e, unix.EINVAL) { // EINVAL: gone with its peer at another path
				_ = unix.Unmount(m.Target, unix.MNT_DETACH) //nolint:forbidigo // the test has failed; the next one needs the disks
				err = errors.Join(err, fmt.Errorf("%s: %w", m.Target, e))
			}
		}
	}
	return err
}

// host is the mount table as it is, without a driver.
func (h *realHarness) host() *mount.Host { return mount.New(&run.Local{}, nil) }

func (h *realHarness) config() driver.Config {
	cfg := driver.Default()
	cfg.Endpoint, cfg.StateDir, cfg.KubeletDir = h.in("csi.sock"), h.in("state"), h.in("kubelet")
	cfg.NodeName, cfg.VolumeGroups = h.NodeName(), []string{realVG}
	cfg.OrphanPolicy, cfg.OrphanGrace = cmp.Or(h.orphans.policy, cfg.OrphanPolicy), max(cmp.Or(h.orphans.grace, cfg.OrphanGrace), time.Second)
	if cfg.Attach = h.attach; cfg.Attach {
		cfg.MaxVolumes = maxAttached
	}
	cfg.Expansion = cmp.Or(h.expand, cfg.Expansion)
	return cfg
}

func (h *realHarness) Start(t *testing.T) {
	t.Helper()
	h.launch(t)
	waitReady(t, h.proc.conn, h.proc.ended)
	h.Arm(t, contract.Fault{})
}

// launch starts the driver, and does not wait until it is ready.
func (h *realHarness) launch(t *testing.T) {
	t.Helper()
	if h.Running() {
		t.Fatal("a driver is running")
	}
	must(t, errors.Join(os.RemoveAll(h.in("control/fault")), os.RemoveAll(h.in("control/killed"))))
	text, err := json.Marshal(h.config())
	must(t, err)
	p := &process{cmd: exec.Command("/proc/self/exe"), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childConfig+"="+string(text), childControl+"="+h.in("control"), "PATH="+h.in("bin")+":"+os.Getenv("PATH"))
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = h.log, h.log, h.attr
	must(t, p.cmd.Start())
	h.proc = p
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	p.conn = dial(t, h.config().Endpoint)
}

func (h *realHarness) Stop(t *testing.T) {
	t.Helper()
	must(t, h.proc.cmd.Process.Signal(syscall.SIGTERM))
	h.proc.wait(t)
	if h.proc.err != nil {
		t.Errorf("the driver ended with %v", h.proc.err)
	}
}

func (h *realHarness) Kill(t *testing.T) {
	t.Helper()
	_ = h.proc.cmd.Process.Kill() // it may have ended by itself
	h.proc.wait(t)
}

func (p *process) wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(bound):
		t.Fatal("the driver does not end")
	}
	_ = p.conn.Close()
}

func (h *realHarness) Running() bool {
	if h.proc == nil {
		return false
	}
	if _, err := os.Stat(h.in("control/killed")); err == nil {
		select { // its client can be told before its parent
		case <-h.proc.ended:
		case <-time.After(bound):
		}
	}
	select {
	case <-h.proc.ended:
		return false
	default:
		return true
	}
}

func (h *realHarness) Identity() csi.IdentityClient     { return csi.NewIdentityClient(h.proc.conn) }
func (h *realHarness) Controller() csi.ControllerClient { return csi.NewControllerClient(h.proc.conn) }
func (h *realHarness) Node() csi.NodeClient             { return csi.NewNodeClient(h.proc.conn) }
func (h *realHarness) Group() csi.GroupControllerClient {
	return csi.NewGroupControllerClient(h.proc.conn)
}
func (h *realHarness) SnapshotMetadata() csi.SnapshotMetadataClient {
	return csi.NewSnapshotMetadataClient(h.proc.conn)
}

func (h *realHarness) Arm(t *testing.T, f contract.Fault) {
	t.Helper()
	must(t, os.WriteFile(h.in("control/effects"), nil, 0o600))
	text, err := json.Marshal(f)
	must(t, err)
	must(t, os.WriteFile(h.in("control/new"), text, 0o600))
	must(t, os.Rename(h.in("control/new"), h.in("control/fault")))
}

func (h *realHarness) Effects(t *testing.T) []effect.Effect {
	t.Helper()
	var out []effect.Effect
	for _, line := range h.lines(t, "control/effects") {
		var e effect.Effect
		must(t, json.Unmarshal([]byte(line), &e))
		out = append(out, e)
	}
	return out
}

// lines gives the lines of a file; none where it is not there.
func (h *realHarness) lines(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(h.in(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return l == "" })
}

func (h *realHarness) Block(t *testing.T, name string) (entered <-chan struct{}, release func()) {
	t.Helper()
	gate := h.in("control/block/" + name)
	must(t, os.RemoveAll(gate+".came"))
	must(t, os.WriteFile(gate, nil, 0o600))
	came, stop := make(chan struct{}, 1000), make(chan struct{})
	go func() {
		for seen := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			for info, err := os.Stat(gate + ".came"); err == nil && seen < int(info.Size()); seen++ {
				came <- struct{}{}
			}
		}
	}()
	release = sync.OnceFunc(func() {
		close(stop)
		_ = os.Remove(gate)
	})
	t.Cleanup(release)
	return came, release
}

func (h *realHarness) Commands(t *testing.T) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, verb := range h.lines(t, "control/commands") {
		count[verb]++
	}
	return count
}

func (h *realHarness) NodeName() string { return "node-1" }
func (h *realHarness) VG() string       { return realVG }
func (h *realHarness) Pool() string     { return realPool }
func (h *realHarness) Journal() string  { return h.in("state/journal") }

func (h *realHarness) Target(t *testing.T, pod string) string {
	t.Helper()
	folder := h.in("kubelet/pods/" + pod + "/volumes/kubernetes.io~csi/data")
	must(t, os.MkdirAll(folder, 0o755))
	return folder + "/mount"
}

func (h *realHarness) Staging(t *testing.T, volumeName string) string {
	t.Helper()
	folder := h.in("kubelet/plugins/kubernetes.io/csi/" + volumeName + "/globalmount")
	must(t, os.MkdirAll(folder, 0o755))
	return folder
}

var created = regexp.MustCompile(`csi\.created=\d+`)

// Sync makes what was written into a file durable, as its writer does who may not lose it.
func (h *realHarness) Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (h *realHarness) World(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	add := func(what, text string) {
		for line := range strings.SplitSeq(text, "\n") {
			if line = strings.Join(strings.Fields(line), " "); line != "" {
				fmt.Fprintf(&out, "%s %s\n", what, line)
			}
		}
	}
	add("lv", created.ReplaceAllString(h.lvs(t, "-a", "--noheadings", "-o", "lv_full_name,lv_size,segtype,lv_tags,lv_active", realVG), ""))
	for line := range strings.Lines(h.devices(t)) {
		switch name, _, _ := strings.Cut(line, " "); {
		case strings.HasSuffix(name, "-tpool"): // LVM leaves it when the last thin volume has gone
		case strings.HasPrefix(name, "csitest"): // a physical volume: whoever looks at it has it open for a moment
			add("device", name+line[strings.LastIndex(line, " "):])
		default:
			add("device", line)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		text, _ := os.ReadFile(l)
		add("loop", string(text))
	}
	if h.PoolHeld(t) {
		add("metadata snapshot", "reserved")
	}
	all, err := h.host().List(t.Context())
	must(t, err)
	for _, m := range all {
		add("mount", fmt.Sprintf("%s %s %s ro=%t", m.Target, m.FS, m.Root, m.ReadOnly))
	}
	must(t, filepath.WalkDir(h.in("kubelet"), func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			add("path", path+" "+d.Type().String())
		}
		return err
	}))
	records, err := journalWorld(h.Journal())
	must(t, err)
	return out.String() + records
}

// devices lists all device-mapper devices. dmsetup fails where one goes between its list and its look at it.
func (h *realHarness) devices(t *testing.T) string {
	t.Helper()
	for end := time.Now().Add(bound); ; {
		out, err := try("dmsetup", "info", "-c", "--noheadings", "--separator", " ", "--sort", "name", "-o", "name,open,suspended")
		if err == nil {
			return string(out)
		}
		if !strings.Contains(string(out), "Device does not exist") || time.Now().After(end) {
			t.Fatalf("dmsetup info: %v\n%s", err, out)
		}
	}
}

func (h *realHarness) Mounts(t *testing.T, path string) []volume.Mount {
	t.Helper()
	all, err := h.host().List(t.Context())
	must(t, err)
	return slices.DeleteFunc(all, func(m volume.Mount) bool { return m.Target != path })
}

func (h *realHarness) Bind(t *testing.T, source, target string) {
	t.Helper()
	if h.Lstat(t, target).Kind == 0 {
		if h.Lstat(t, source).Kind == 'd' {
			must(t, os.Mkdir(target, 0o755))
		} else {
			must(t, os.WriteFile(target, nil, 0o600))
		}
	}
	must(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
}

func (h *realHarness) Unmount(t *testing.T, path string) {
	t.Helper()
	must(t, unix.Unmount(path, unix.UMOUNT_NOFOLLOW))
}

func (h *realHarness) Reboot(t *testing.T, active bool) {
	t.Helper()
	if h.Running() {
		h.Kill(t)
	}
	for _, release := range h.holders {
		release()
	}
	must(t, h.unmountAll())
	lvm(t, "vgchange", "-an", realVG)
	if active {
		lvm(t, "vgchange", "-ay", realVG)
	} else {
		lvm(t, "lvchange", "-ay", realVG+"/"+realPool) // the pool is the administrator's, and as he made it
	}
}

func (h *realHarness) Mkdir(t *testing.T, path string) { t.Helper(); must(t, os.Mkdir(path, 0o755)) }
func (h *realHarness) WriteFile(path, content string) error {
	return os.WriteFile(path, []byte(content), 0o644)
}
func (h *realHarness) ReadFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	return string(text), err
}
func (h *realHarness) Symlink(t *testing.T, to, path string) {
	t.Helper()
	must(t, os.Symlink(to, path))
}
func (h *realHarness) Remove(t *testing.T, path string) { t.Helper(); must(t, os.Remove(path)) }

func (h *realHarness) Lstat(t *testing.T, path string) contract.File {
	t.Helper()
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return contract.File{}
	}
	must(t, err)
	kind := map[uint32]byte{unix.S_IFDIR: 'd', unix.S_IFREG: 'f', unix.S_IFLNK: 'l', unix.S_IFBLK: 'b'}[st.Mode&unix.S_IFMT]
	return contract.File{Kind: kind, Mode: st.Mode & 0o7777, GID: int(st.Gid), Size: st.Size}
}

func (h *realHarness) LV(t *testing.T, r volume.Ref) (f contract.LVMFacts, ok bool) {
	t.Helper()
	out := h.lvs(t, "--noheadings", "--units", "b", "--nosuffix", "--separator", "|",
		"-o", "lv_uuid,lv_size,segtype,stripes,lv_tags", "-S", "lv_name="+r.LV, r.VG)
	first, _, _ := strings.Cut(strings.TrimSpace(out), "\n") // a line for each segment; one that was expanded can have several
	fields := strings.Split(strings.TrimSpace(first), "|")
	if len(fields) != 5 {
		return f, false
	}
	f = contract.LVMFacts{UUID: fields[0], SegType: fields[2]}
	if fields[4] != "" {
		f.Tags = strings.Split(fields[4], ",")
	}
	var err error
	f.SizeBytes, err = strconv.ParseInt(fields[1], 10, 64)
	must(t, err)
	f.Stripes, err = strconv.Atoi(fields[3])
	must(t, err)
	return f, true
}

func (h *realHarness) ArmAdopt(f contract.Fault) { h.adopt = f }

func (h *realHarness) Adopt(t *testing.T, r volume.Ref, block bool, fs volume.FS) (string, error) {
	t.Helper()
	backend, err := driver.Real(h.config(), aCommand(&h.adopt))
	must(t, err)
	return adoptBy(t, backend.LVM, h.host(), adoptRequest(h.NodeName(), h.in("kubelet"), r, block, fs))
}

func (h *realHarness) Release(t *testing.T, r volume.Ref) error {
	t.Helper()
	backend, err := driver.Real(h.config(), aCommand(&h.adopt))
	must(t, err)
	return adopt.Release(t.Context(), backend.LVM, h.host(), adoptRequest(h.NodeName(), h.in("kubelet"), r, false, ""))
}

// podGroups is where the cgroups of pods are made, as kubelet's cgroupfs driver does.
const podGroups = "/sys/fs/cgroup/kubepods"

// AddPod makes the cgroup below one in which its I/O can be limited, or one in which it cannot.
func (h *realHarness) AddPod(t *testing.T, pod string, io bool) {
	t.Helper()
	above := podGroups
	if !io {
		above += "/besteffort"
	}
	must(t, os.MkdirAll(above, 0o755))
	if io {
		for _, folder := range []string{filepath.Dir(podGroups), podGroups} {
			must(t, os.WriteFile(folder+"/cgroup.subtree_control", []byte("+io"), 0o600))
		}
	}
	folder := above + "/pod" + pod
	must(t, os.MkdirAll(folder, 0o755))
	t.Cleanup(func() { _ = os.Remove(folder) })
}

func (h *realHarness) DropPod(t *testing.T, pod string) {
	t.Helper()
	for _, above := range []string{podGroups, podGroups + "/besteffort"} {
		if err := os.Remove(above + "/pod" + pod); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func (h *realHarness) PodLimits(t *testing.T, pod string, r volume.Ref) volume.IOLimits {
	t.Helper()
	st, err := os.Stat("/dev/" + r.String())
	must(t, err)
	dev := st.Sys().(*syscall.Stat_t).Rdev
	l, err := h.host().IOLimits(t.Context(), pod, volume.Device{Major: unix.Major(dev), Minor: unix.Minor(dev)})
	if err != nil && !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrPrecondition) {
		t.Fatal(err)
	}
	return l
}

func (h *realHarness) Settings(t *testing.T, r volume.Ref) (volume.Mutable, []string) {
	t.Helper()
	return contract.LVMSettings(func(args ...string) string { return lvm(t, "lvs", args...) }, r)
}

func (h *realHarness) MakeLV(t *testing.T, r volume.Ref, bytes int64, tags ...string) {
	t.Helper()
	args := []string{"-y", "-q", "-W", "y", "-n", r.LV, "-L", fmt.Sprintf("%db", bytes), r.VG}
	for _, tag := range tags {
		args = append(args, "--addtag", tag)
	}
	lvm(t, "lvcreate", args...)
}

func (h *realHarness) DestroyLV(t *testing.T, r volume.Ref) {
	t.Helper()
	lvm(t, "lvremove", "-f", "-y", r.String())
}

func (h *realHarness) DeactivateLV(t *testing.T, r volume.Ref) {
	t.Helper()
	lvm(t, "lvchange", "-an", r.String())
}

func (h *realHarness) HoldLV(t *testing.T, r volume.Ref) (release func()) {
	t.Helper()
	f, err := os.Open("/dev/mapper/" + volume.DMName(r))
	must(t, err)
	return func() { _ = f.Close() }
}

func (h *realHarness) Hold(t *testing.T, how, path string) (pid int, release func()) {
	t.Helper()
	pid, release = h.hold(t, how, path)
	release = sync.OnceFunc(release)
	t.Cleanup(release)
	h.holders = append(h.holders, release)
	return pid, release
}

// hold starts a process that holds the path, or holds it itself.
func (h *realHarness) hold(t *testing.T, how, path string) (pid int, release func()) {
	t.Helper()
	cmd := exec.Command("sleep", "900")
	switch how {
	case contract.HoldLoop:
		loop := strings.TrimSpace(sh(t, "losetup", "-f", "--show", path))
		return 0, func() { sh(t, "losetup", "-d", loop) }
	case contract.HoldMapped:
		return h.mapFile(t, path)
	case contract.HoldNamespace:
		cmd = exec.Command("unshare", "-m", "--propagation", "private", "sleep", "900")
	case contract.HoldElsewhere:
		cmd = exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", `exec sleep 900 < "$0"`, path)
	case contract.HoldCwd:
		cmd.Dir = path
	default:
		f, err := os.Open(path)
		must(t, err)
		defer func() { _ = f.Close() }()
		cmd.Stdin = f
	}
	must(t, cmd.Start())
	for end := time.Now().Add(bound); command(cmd.Process.Pid) != "sleep"; <-time.Tick(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not begin", cmd)
		}
	}
	return cmd.Process.Pid, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error is that it was killed
	}
}

// command is the name of the program that a process runs by now.
func command(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
}

func (h *realHarness) mapFile(t *testing.T, path string) (pid int, release func()) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	memory, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must(t, errors.Join(err, f.Close()))
	return os.Getpid(), func() { _ = unix.Munmap(memory) }
}

func (h *realHarness) Scribble(t *testing.T, r volume.Ref, signature string) {
	t.Helper()
	path := "/dev/mapper/" + volume.DMName(r)
	var bytes int64
	_, err := fmt.Sscan(sh(t, "blockdev", "--getsize64", path), &bytes)
	must(t, err)
	contract.PutSignature(t, volume.Device{Path: path, SizeBytes: bytes}, signature)
}

// BreakVG makes the part of each physical volume that holds the metadata unreadable; the logical volumes go on.
func (h *realHarness) BreakVG(t *testing.T) (mend func()) {
	t.Helper()
	set := func(head string) {
		for _, p := range h.pvs {
			sh(t, "dmsetup", "load", p.name, "--table", p.table(head))
			sh(t, "dmsetup", "suspend", "--noflush", "--nolockfs", p.name)
			sh(t, "dmsetup", "resume", p.name)
			must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0o600))
		}
	}
	set("error")
	mend = sync.OnceFunc(func() { set("linear") })
	t.Cleanup(mend)
	return mend
}
