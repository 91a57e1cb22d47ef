//go:build vm

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/doctor"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// fault is something that is really wrong on the machine.
type fault struct {
	name string
	// does makes the fault, and gives what mends it as the remedy says; where --fix has mended it, what takes the rest away.
	does  func(m *machine) (mend func())
	as    consulting
	finds []string // all that doctor finds: severity, rule and subject; what --fix mends is the first
	may   []string // what it may find besides: the driver looks now and then only
	says  string   // a part of one of the sentences
	// fixes are the lines of the world that --fix takes away or adds; "": there is nothing that it may do.
	fixes string
	// refuses is why --fix does not do it, and changes nothing.
	refuses string
}

const prefix = "node-1/" + vg + "/"

var (
	orphanID = "csi-" + strings.Repeat("0", 64)
	owner    = volume.OwnerTag(driver.Default().DriverName)
)

// coreFaults are those for which "make test" has the time; for the others see moreFaults.
var coreFaults = []fault{
	{name: "an orphan", finds: []string{"warning orphan " + orphanID}, says: "its pod pod-gone has no folder", fixes: `(lv|device) faults[-/]csi-+0{64} `,
		does: func(m *machine) func() {
			m.lvm("lvcreate", "-y", "-q", "-L", "8m", "-n", orphanID, "--addtag", owner, "--addtag", volume.KindTag(volume.Inline), "--addtag", "csi.pod=pod-gone", vg)
			return func() {}
		}},
	{name: "a leaked mount", finds: []string{"warning leaked-mount " + prefix + "leaked"}, says: "kubelet has forgotten it there", fixes: `(mount|path) .*/pods/leaked/\S*/mount[ /]`,
		does: func(m *machine) func() {
			id, target := m.published("leaked")
			return func() { m.gone(id, target) }
		}},
}

// tornDown waits until the driver has carried out a teardown, for which nobody asks it, and ends the pod.
func (m *machine) tornDown(pod string) {
	m.t.Helper()
	m.until("the teardown is carried out", func() bool {
		_, err := os.Lstat(m.target(pod))
		return os.IsNotExist(err) && !strings.Contains(m.records(), inlineID(pod))
	})
	m.dropPod(pod)
}

// bystanders are what nobody may touch: a volume in use, an inline one, one that is not the driver's, and a mount that is not.
func (m *machine) bystanders() {
	m.t.Helper()
	id, target := m.published("watched")
	m.wanted(target, id)
	m.must(os.WriteFile(target+"/kept", []byte("kept"), 0o600))
	id, target = m.inline("inline")
	m.wanted(target, id)
	m.must(os.WriteFile(target+"/kept", []byte("kept"), 0o600))
	m.lvm("lvcreate", "-y", "-q", "-L", "8m", "-n", "stranger", vg)
	m.lvm("lvcreate", "-y", "-q", "-V", "8m", "-n", "thinstranger", "--thinpool", pool, vg)
	m.must(os.Mkdir(m.in("elsewhere"), 0o755))
	m.sh("mount", "-t", "tmpfs", "none", m.in("elsewhere"))
}

// diagnose makes a fault on real LVM. Doctor names it and nothing else: so nothing is left of the one before. --fix mends it or leaves it alone, and nothing else is
// touched. Then, with what the remedy says, all is as it was.
func (m *machine) diagnose(t *testing.T, f fault) {
	outer := m.t
	m.t = t
	defer func() { m.t = outer }()
	before := m.world()
	does, mended := f.does(m), false
	mend := func() { mended = true; does() }
	defer func() {
		if !mended { // the test has failed; the next one is not to
			mend()
		}
	}()
	as := f.as
	as.args = append([]string{"-o", "json"}, as.args...)
	if f.fixes == "" && f.refuses == "" {
		as.args = append(as.args, "--fix", "--yes") // there is nothing that it may do
	}
	ill := m.world()
	want := slices.Sorted(slices.Values(f.finds))
	var got said
	var lines []string
	found := func() bool {
		got = m.doctor(as)
		lines = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(got.lines))), func(line string) bool { return slices.Contains(f.may, line) })
		return slices.Equal(lines, want) && strings.Contains(strings.Join(got.sentences, "\n"), f.says)
	}
	ok := found()
	for end := time.Now().Add(bound); !ok && time.Now().Before(end); ok = found() { // the driver looks now and then only
		<-time.Tick(20 * time.Millisecond)
	}
	if !ok {
		t.Errorf("found\n%s\nwant\n%s\nof which one says %q; all that was said:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"), f.says, got.text)
	}
	if want := exitOf(f.finds); got.exit != want {
		t.Errorf("exit status %d, want %d", got.exit, want)
	}
	if touched := differ(ill, m.world()); len(touched) != 0 {
		t.Errorf("it has changed\n%s", strings.Join(touched, "\n"))
	}
	if f.fixes != "" || f.refuses != "" {
		m.fix(f, ill)
	}
	mend()
	m.until("doctor finds nothing more", func() bool {
		got = m.doctor(consulting{args: []string{"-o", "json"}})
		return got.exit == 0 && len(got.lines) == 0
	})
	if left := differ(before, m.world()); len(left) != 0 {
		t.Errorf("after all, it is not as before:\n%s", strings.Join(left, "\n"))
	}
}

// exitOf is the exit status that findings make.
func exitOf(finds []string) (status int) {
	for _, line := range finds {
		for _, s := range []doctor.Severity{doctor.Warning, doctor.Fault} {
			if strings.HasPrefix(line, s.String()) {
				status = max(status, int(s))
			}
		}
	}
	return status
}

// fix has doctor mend what it has found.
func (m *machine) fix(f fault, ill string) {
	m.t.Helper()
	as := f.as
	as.args = append([]string{"--fix", "--yes"}, as.args...)
	got := m.doctor(as)
	touched := differ(ill, m.world())
	if f.refuses != "" {
		if !strings.Contains(got.text, "not done: ") || !strings.Contains(got.text, f.refuses) || got.exit == 0 || len(touched) != 0 {
			m.t.Errorf("exit status %d, and it has changed\n%s\nIt said\n%s", got.exit, strings.Join(touched, "\n"), got.text)
		}
		return
	}
	if !strings.HasSuffix(got.text, "\n  done\n") || got.exit != exitOf(f.finds[1:]) || len(touched) == 0 {
		m.t.Errorf("exit status %d, %d lines changed; it said\n%s", got.exit, len(touched), got.text)
	}
	for _, line := range touched {
		if !regexp.MustCompile(`^[-+]` + f.fixes).MatchString(line) {
			m.t.Errorf("it has changed %s", line)
		}
	}
}

func TestFaults(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.bystanders()
	for _, f := range coreFaults {
		t.Run(f.name, func(t *testing.T) { m.diagnose(t, f) })
	}
	m.isWell()
}

// isWell wants doctor to find nothing.
func (m *machine) isWell() {
	m.t.Helper()
	if got := m.doctor(consulting{args: []string{"-o", "json"}}); got.exit != 0 || len(got.lines) != 0 {
		m.t.Errorf("after all, it finds\n%s", got.text)
	}
}
