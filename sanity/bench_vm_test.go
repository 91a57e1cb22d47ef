//go:build vm

package sanity

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	benchVG     = "bench-driver" // where the driver works
	benchBareVG = "bench-bare"   // where the bare tools do, with as many volumes
	benchBytes  = 256 << 20
	benchRest   = time.Minute
	// benchBinary is made by "make build", which "make bench" does first.
	benchBinary = "../bin/csi-local-lvm"

	benchMetrics = "127.0.0.1:9810"

	ratioGoal    = 1.15
	residentGoal = 30 << 20
	// residentOfVolume is what the driver keeps of each volume: LVM's facts, and the last report.
	residentOfVolume = 8 << 10
)

// BenchmarkCalls measures each call of the driver, the real binary, and the commands that an operator would give instead, in
// turn, so that both see the same machine. It does so among few and many volumes, and then looks at the driver at rest.
// The driver's journal and LVM's archive both are in memory here. Ratios mean little while others use the processors: a call
// crosses more processes than a command does.
func BenchmarkCalls(b *testing.B) {
	for _, volumes := range []int{10, 300, 1000} {
		b.Run(strconv.Itoa(volumes), func(b *testing.B) { benchmarkCalls(b, volumes) })
	}
}

func benchmarkCalls(b *testing.B, volumes int) {
	m := newBenchMachine(b)
	m.populate(b, volumes)
	m.start(b)
	results := &timings{}
	m.round(b, 0, &timings{}) // the first one fills caches
	for n := 1; b.Loop(); n++ {
		m.round(b, n, results)
	}
	fmt.Printf("\namong %d volumes, %d rounds\n%s", volumes, len(results.rows[0].driver), results) // b.Log keeps ten lines
	b.ReportMetric(0, "ns/op")
	for _, r := range results.rows {
		b.ReportMetric(r.ratio(), strings.NewReplacer(",", "", " ", "-").Replace(r.what)+"-ratio")
	}
	m.rest(b, volumes)
}

// benchMachine is two volume groups, each on a disk of its own, and the driver.
type benchMachine struct {
	dir     string
	program string
	driver  *process
	node    csi.NodeClient
	ctl     csi.ControllerClient
}

func newBenchMachine(b *testing.B) *benchMachine {
	dir, err := os.MkdirTemp("/run", "csi")
	must(b, err)
	m := &benchMachine{dir: dir, program: filepath.Join(dir, "csi-local-lvm")}
	b.Cleanup(func() { must(b, os.RemoveAll(dir)) })
	program, err := os.ReadFile(benchBinary)
	must(b, err)
	must(b, os.WriteFile(m.program, program, 0o700)) // into memory: the folder of the source is slow to read in the machine
	for _, folder := range []string{"kubelet/staging", "kubelet/pods", "bare/staging", "bare/pods"} {
		must(b, os.MkdirAll(m.in(folder), 0o755))
	}
	for vg, disk := range map[string]string{benchVG: "/dev/vda", benchBareVG: "/dev/vdb"} {
		sh(b, "wipefs", "-a", disk)
		// Metadata of 1,000 volumes does not fit into the 1 MiB that is the default.
		sh(b, "lvm", "vgcreate", "-y", "-q", "--physicalextentsize", "1m", "--metadatasize", "8m", vg, disk)
		b.Cleanup(func() { // vgremove would take the volumes away one by one
			sh(b, "lvm", "vgchange", "-an", "-q", vg)
			sh(b, "lvm", "pvremove", "-ff", "-y", "-q", disk)
		})
	}
	b.Cleanup(func() {
		m.stop(b)
		if text, err := os.ReadFile(m.in("log")); b.Failed() {
			fmt.Printf("log of the driver:\n%s%v\n", text, err)
		}
	})
	return m
}

func (m *benchMachine) in(name string) string { return filepath.Join(m.dir, name) }

func (m *benchMachine) start(b *testing.B) {
	log, err := os.OpenFile(m.in("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	must(b, err)
	defer log.Close()
	p := &process{cmd: exec.Command(m.program, "serve", "--node-name=node-1", "--volume-groups="+benchVG,
		"--endpoint="+m.in("csi.sock"), "--state-dir="+m.in("state"), "--kubelet-dir="+m.in("kubelet"), "--metrics-address="+benchMetrics), ended: make(chan struct{})}
	p.cmd.Stderr = log
	must(b, p.cmd.Start())
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	p.conn = dial(b, m.in("csi.sock"))
	waitReady(b, p.conn, p.ended)
	m.driver, m.node, m.ctl = p, csi.NewNodeClient(p.conn), csi.NewControllerClient(p.conn)
}

func (m *benchMachine) stop(b *testing.B) {
	if m.driver == nil {
		return
	}
	must(b, m.driver.cmd.Process.Signal(syscall.SIGTERM))
	m.driver.wait(b)
	must(b, m.driver.err)
	m.driver = nil
}

var (
	lvID   = regexp.MustCompile(`\bid = "[^"]*"`)
	lvArea = regexp.MustCompile(`"pv0", \d+`)
)

// populate puts as many volumes of the driver into both groups, inactive. lvcreate would take minutes: instead one that
// the driver made is copied in the text of the metadata, which vgcfgrestore(8) then writes.
func (m *benchMachine) populate(b *testing.B, volumes int) {
	const extents = 2 // of 1 MiB, of each volume: the least that an ext4 has
	m.start(b)
	v, err := m.ctl.CreateVolume(b.Context(), createOf("template", extents<<20))
	must(b, err)
	text := metadataOf(b, benchVG)
	_, err = m.ctl.DeleteVolume(b.Context(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolume().GetVolumeId()})
	must(b, err)
	m.stop(b)

	const begin, end = "\tlogical_volumes {\n", "\n\t}\n"
	_, text, _ = strings.Cut(text, begin)
	text, _, ok := strings.Cut(text, end)
	if !ok {
		b.Fatal("no logical volume in the metadata")
	}
	var all strings.Builder
	for i := range volumes {
		one := strings.ReplaceAll(text, "template", fmt.Sprintf("v%d", i))
		one = lvID.ReplaceAllString(one, fmt.Sprintf(`id = "%06d-benc-benc-benc-benc-benc-benchm"`, i))
		all.WriteString(lvArea.ReplaceAllString(one, fmt.Sprintf(`"pv0", %d`, i*extents)) + "\n")
	}
	for _, vg := range []string{benchVG, benchBareVG} {
		empty := strings.TrimSpace(metadataOf(b, vg))
		full := strings.TrimSuffix(empty, "}") + begin + all.String() + end + "}\n"
		must(b, os.WriteFile(m.in(vg), []byte(full), 0o600))
		sh(b, "lvm", "vgcfgrestore", "-q", "-f", m.in(vg), vg)
		if n := len(strings.Fields(sh(b, "lvm", "lvs", "--noheadings", "-o", "lv_name", vg))); n != volumes {
			b.Fatalf("%d volumes in %s", n, vg)
		}
	}
}

func metadataOf(b *testing.B, vg string) string {
	file := filepath.Join(b.TempDir(), "metadata")
	sh(b, "lvm", "vgcfgbackup", "-q", "-f", file, vg)
	text, err := os.ReadFile(file)
	must(b, err)
	return string(text)
}

func createOf(name string, bytes int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		VolumeCapabilities: []*csi.VolumeCapability{mountedOnce},
	}
}

var mountedOnce = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
}

// round is the life of a persistent volume and of an inline one, each step once by the driver and once by hand.
func (m *benchMachine) round(b *testing.B, n int, out *timings) {
	name := fmt.Sprintf("round-%d", n)
	id, inlineID := "node-1/"+benchVG+"/"+name, fmt.Sprintf("csi-%064d", n)
	staging, target, inlineTarget := m.in("kubelet/staging"), m.in("kubelet/pods/target"), m.in("kubelet/pods/inline")
	bareStaging, bareTarget := m.in("bare/staging"), m.in("bare/pods")
	device := "/dev/" + benchBareVG + "/" + name
	ctx := b.Context()

	stage := func() error {
		_, err := m.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: mountedOnce})
		return err
	}
	unstage := func() error {
		_, err := m.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
		return err
	}
	unpublish := func(id, target string) func() error {
		return func() error {
			_, err := m.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
			return err
		}
	}
	lvcreate := []string{"lvm", "lvcreate", "-y", "-L", fmt.Sprintf("%db", benchBytes), "-n", name, benchBareVG}
	lvremove := []string{"lvm", "lvremove", "-y", benchBareVG + "/" + name}
	mkfs, mount, umount := []string{"mkfs.ext4", "-q", device}, []string{"mount", device, bareStaging}, []string{"umount", bareStaging}

	for _, s := range []struct {
		what string
		call func() error
		bare [][]string
	}{
		{"CreateVolume", func() error { _, err := m.ctl.CreateVolume(ctx, createOf(name, benchBytes)); return err }, [][]string{lvcreate}},
		{"NodeStage, blank", stage, [][]string{mkfs, mount}},
		{"NodePublish", func() error {
			_, err := m.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: mountedOnce})
			return err
		}, [][]string{{"mount", "--bind", bareStaging, bareTarget}}},
		{"NodeUnpublish", unpublish(id, target), [][]string{{"umount", bareTarget}}},
		{"NodeUnstage", unstage, [][]string{umount}},
		{"NodeStage, formatted", stage, [][]string{mount}},
		{"NodeUnstage", unstage, [][]string{umount}},
		{"DeleteVolume", func() error {
			_, err := m.ctl.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		}, [][]string{lvremove}},
		{"inline publish", func() error {
			_, err := m.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
				VolumeId: inlineID, TargetPath: inlineTarget, VolumeCapability: mountedOnce,
				VolumeContext: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: strconv.Itoa(benchBytes)},
			})
			return err
		}, [][]string{lvcreate, mkfs, mount}},
		{"inline unpublish", unpublish(inlineID, inlineTarget), [][]string{umount, lvremove}},
	} {
		first, second := func() { out.addDriver(b, s.what, s.call) }, func() { out.addBare(b, s.what, s.bare) }
		if n%2 == 1 { // what comes second may find something warm
			first, second = second, first
		}
		first()
		second()
	}
}

// timings are how long each call, and what it stands for, took.
type timings struct{ rows []*timing }

type timing struct {
	what         string
	bareCommands string
	driver, bare []time.Duration
}

func (t *timings) row(what string) *timing {
	for _, r := range t.rows {
		if r.what == what {
			return r
		}
	}
	t.rows = append(t.rows, &timing{what: what})
	return t.rows[len(t.rows)-1]
}

func (t *timings) addDriver(b *testing.B, what string, call func() error) {
	start := time.Now()
	err := call()
	took := time.Since(start)
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
	r := t.row(what)
	r.driver = append(r.driver, took)
}

// addBare runs the commands with LVM's own configuration, as from a shell.
func (t *timings) addBare(b *testing.B, what string, commands [][]string) {
	var took time.Duration
	var names []string
	for _, argv := range commands {
		start := time.Now()
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		took += time.Since(start)
		if err != nil {
			b.Fatalf("%v: %v\n%s", argv, err, out)
		}
		names = append(names, strings.Join(slices.DeleteFunc(slices.Clone(argv[:2]), func(a string) bool {
			return a == "lvm" || strings.HasPrefix(a, "/") || a == "-q"
		}), " "))
	}
	r := t.row(what)
	r.bare, r.bareCommands = append(r.bare, took), strings.Join(names, ", ")
}

func (r *timing) ratio() float64 { return float64(median(r.driver)) / float64(median(r.bare)) }

func median(d []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[len(sorted)/2]
}

func (t *timings) String() string {
	var out strings.Builder
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Fprintf(&out, "%-20s %9s %9s %6s  %s\n", "median", "driver ms", "bare ms", "ratio", "bare commands")
	for _, r := range t.rows {
		over := ""
		if r.ratio() > ratioGoal {
			over = fmt.Sprintf("  (over %.2f)", ratioGoal)
		}
		fmt.Fprintf(&out, "%-20s %9.1f %9.1f %6.2f  %s%s\n", r.what, ms(median(r.driver)), ms(median(r.bare)), r.ratio(), r.bareCommands, over)
	}
	return out.String()
}

// rest looks at the driver when nobody calls it.
func (m *benchMachine) rest(b *testing.B, volumes int) (cpu time.Duration) {
	before := m.usage(b)
	<-time.After(benchRest)
	after := m.usage(b)
	if after.childFaults != before.childFaults {
		b.Fatal("the driver runs programs at rest")
	}
	if most := int64(residentGoal + volumes*residentOfVolume); after.residentBytes > most {
		b.Errorf("the driver at rest has %d bytes resident, more than %d", after.residentBytes, most)
	}
	cpu = after.cpu - before.cpu
	fmt.Printf("at rest for %s: %.1f MiB resident, %.1f MiB of them of files; %s of CPU, no program run\n",
		benchRest, float64(after.residentBytes)/(1<<20), float64(after.fileBytes)/(1<<20), cpu)
	b.ReportMetric(float64(after.residentBytes)/(1<<20), "MiB-resident")
	b.ReportMetric(float64(cpu.Milliseconds()), "ms-CPU-at-rest")
	return cpu
}

type processUsage struct {
	residentBytes int64
	fileBytes     int64 // of these, of the program itself
	cpu           time.Duration
	// childFaults are the page faults of programs that have ended. None can run without any.
	childFaults int64
}

// usage reads /proc/PID/stat (proc(5)); the name, the second field, holds no space here.
func (m *benchMachine) usage(b *testing.B) processUsage {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.driver.cmd.Process.Pid))
	must(b, err)
	fields := strings.Fields(string(text))
	field := func(number int) int64 {
		n, e := strconv.ParseInt(fields[number-1], 10, 64)
		err = errors.Join(err, e)
		return n
	}
	const ticksPerSecond = 100 // USER_HZ on every platform that Go runs on
	u := processUsage{
		residentBytes: field(24) * int64(unix.Getpagesize()),
		cpu:           time.Duration(field(14)+field(15)) * time.Second / ticksPerSecond,
		childFaults:   field(11),
	}
	text, readErr := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.driver.cmd.Process.Pid))
	must(b, errors.Join(err, readErr))
	_, err = fmt.Sscan(strings.Fields(string(text))[2], &u.fileBytes)
	must(b, err)
	u.fileBytes *= int64(unix.Getpagesize())
	return u
}
