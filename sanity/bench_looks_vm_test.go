//go:build vm

package sanity

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
)

const (
	looksGoal  = 2 * time.Second
	scrapeGoal = 50 * time.Millisecond
	restGoal   = time.Second // of processor time, each minute
	// Where the processor is emulated, seconds tell of the emulator, and in user-mode Linux of its dear system calls. There the measure is what the
	// one command takes of the processors that an operator would give instead, in turn with ours: lvs, which tells a part of what they do. The pause
	// between looks is two minutes at most, so there, where a look takes that long, the driver rests less.
	looksOfLVS  = 3
	scrapeOfLVS = 0.1
	restOfLVS   = 4
	looksTimes  = 3
)

// BenchmarkLooks measures what tells of 1,000 volumes: the commands beside the driver, and a scrape. Each volume is active, staged and
// published, as on a node where a thousand pods run. Then it looks at the driver at rest.
func BenchmarkLooks(b *testing.B) {
	const volumes = 1000
	m := newBenchMachine(b)
	m.populate(b, volumes)
	m.publishAll(b, volumes)
	m.start(b)
	for b.Loop() {
		lvs := m.looks(b)
		within(b, "rest", m.rest(b, volumes), restGoal, lvs.cpu, restOfLVS)
	}
	b.ReportMetric(0, "ns/op")
}

// spent is what a command took, by the clock and of the processors, with all that it ran.
type spent struct{ clock, cpu time.Duration }

// publishAll makes all volumes active, and mounts them where kubelet would have them, with its files beside.
func (m *benchMachine) publishAll(b *testing.B, volumes int) {
	sh(b, "lvm", "vgchange", "-ay", "-q", benchVG)
	device := func(i int) string {
		return fmt.Sprintf("/dev/mapper/%s-v%d", strings.ReplaceAll(benchVG, "-", "--"), i)
	}
	sh(b, "mkfs.ext4", "-q", device(0))
	image, err := os.ReadFile(device(0)) // made once, and copied
	must(b, err)
	b.Cleanup(func() { must(b, unmountBelow(m.dir)) })
	name := driver.Default().DriverName
	for i := range volumes {
		must(b, os.WriteFile(device(i), image, 0o600))
		id := fmt.Sprintf("node-1/%s/v%d", benchVG, i)
		staging := m.in(fmt.Sprintf("kubelet/plugins/kubernetes.io/csi/%s/%064d/globalmount", name, i))
		target := m.in(fmt.Sprintf("kubelet/pods/00000000-0000-4000-8000-%012d/volumes/kubernetes.io~csi/pvc-%d/mount", i, i))
		for _, path := range []string{staging, target} {
			must(b, os.MkdirAll(path, 0o750))
			must(b, os.WriteFile(filepath.Join(filepath.Dir(path), "vol_data.json"), fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":%q}`, name, id), 0o600))
		}
		must(b, unix.Mount(device(i), staging, "ext4", 0, ""))
		must(b, unix.Mount(staging, target, "", unix.MS_BIND, ""))
	}
}

// unmountBelow unmounts all below a folder, the last first.
func unmountBelow(folder string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	var below []string
	for line := range strings.Lines(string(text)) {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, folder+"/") {
			below = append(below, path)
		}
	}
	for i := len(below) - 1; i >= 0; i-- {
		err = errors.Join(err, unix.Unmount(below[i], unix.UMOUNT_NOFOLLOW))
	}
	return err
}

// looks measures the commands, the scrape, and lvs, in turn, and gives what lvs took.
func (m *benchMachine) looks(b *testing.B) (lvs spent) {
	took := map[string][]spent{}
	run := func(what string, command ...string) {
		cmd := exec.Command(command[0], command[1:]...)
		start := time.Now()
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !(what == "doctor" && errors.As(err, &exit) && exit.ExitCode() > 1) { // it may find something
			b.Fatalf("%v: %v\n%s", command, err, out)
		}
		took[what] = append(took[what], spent{time.Since(start), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()})
	}
	for range looksTimes {
		run("lvs", "lvm", "lvs", "-o", "lv_all")
		run("status", m.program, "status", "--state-dir="+m.in("state"))
		run("doctor", m.program, "doctor", "--state-dir="+m.in("state"))
		start, before := time.Now(), m.usage(b)
		resp, err := http.Get("http://" + benchMetrics + "/metrics")
		must(b, err)
		_, err = io.Copy(io.Discard, resp.Body)
		must(b, errors.Join(err, resp.Body.Close()))
		took["scrape"] = append(took["scrape"], spent{time.Since(start), m.usage(b).cpu - before.cpu})
	}
	middle := func(what string) spent {
		var clock, cpu []time.Duration
		for _, s := range took[what] {
			clock, cpu = append(clock, s.clock), append(cpu, s.cpu)
		}
		return spent{median(clock), median(cpu)}
	}
	lvs = middle("lvs")
	fmt.Printf("\namong 1000 volumes, each mounted twice\n%-8s %9s %9s %14s\n", "median", "ms", "CPU ms", "CPU, of lvs'")
	for _, what := range []string{"lvs", "status", "doctor", "scrape"} {
		s := middle(what)
		fmt.Printf("%-8s %9.1f %9.1f %14.3f\n", what, float64(s.clock.Microseconds())/1000, float64(s.cpu.Microseconds())/1000, float64(s.cpu)/float64(lvs.cpu))
		b.ReportMetric(float64(s.clock.Microseconds())/1000, "ms-"+what)
	}
	for _, g := range []struct {
		what  string
		goal  time.Duration
		ofLVS float64
	}{{"status", looksGoal, looksOfLVS}, {"doctor", looksGoal, looksOfLVS}, {"scrape", scrapeGoal, scrapeOfLVS}} {
		is := middle(g.what).clock
		if isEmulated() {
			is = middle(g.what).cpu
		}
		within(b, g.what, is, g.goal, lvs.cpu, g.ofLVS)
	}
	return lvs
}

// within wants something to take no longer than the goal; without KVM, not more of the processors than so many times lvs.
func within(b *testing.B, what string, is, goal, lvs time.Duration, ofLVS float64) {
	b.Helper()
	if isEmulated() {
		goal = time.Duration(float64(lvs) * ofLVS)
	}
	if is > goal {
		b.Errorf("%s took %s, more than %s", what, is, goal)
	}
}

// isEmulated tells by the clock that KVM gives its guests.
func isEmulated() bool {
	clocks, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/available_clocksource")
	return err == nil && !strings.Contains(string(clocks), "kvm-clock")
}
