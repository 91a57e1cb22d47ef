package doctor

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fleet"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
)

// Of one log the newest mostOfOne bytes are taken, and of all of them mostOfAll.
const (
	mostOfOne = 2 << 20
	mostOfAll = 16 << 20
	// logBound is how long a program may take to give a log.
	logBound = 20 * time.Second
)

// Logs says where logs are looked for; tests look elsewhere.
type Logs struct {
	// Pods are folders as kubelet's /var/log/pods. The first in which a pod of the driver is found is taken.
	Pods []string
	Proc string // to tell of which pod the running driver is
	Kmsg string // the kernel's log
	// Programs runs journalctl and kubectl.
	Programs run.Streamer
	// Kubectl are arguments for each kubectl; nil: Kubernetes is not asked.
	Kubectl []string
	Node    string // of which pods are asked for
}

// LogsHere are the logs of this machine. In a container with the PIDs of the host its files are seen through process 1.
func LogsHere(programs run.Streamer, kubectl []string, node string) Logs {
	return Logs{Pods: []string{"/var/log/pods", "/proc/1/root/var/log/pods"}, Proc: "/proc", Kmsg: "/dev/kmsg", Programs: programs, Kubectl: kubectl, Node: node}
}

// gathered are logs by name, and a sentence for each that could not be had, or not in full.
type gathered struct {
	files map[string]string
	notes []string
	left  int // bytes
}

// gather takes all logs: the driver's own from each place where it may be, since a user has one or another, and the kernel's. Nothing of it fails: what could
// not be had is told.
func (l Logs) gather(ctx context.Context, driverPID int) *gathered {
	g := &gathered{files: map[string]string{}, left: mostOfAll}
	l.kernel(g)
	l.pods(g, driverPID)
	l.journal(ctx, g)
	l.kubernetes(ctx, g)
	return g
}

func (g *gathered) note(format string, args ...any) {
	g.notes = append(g.notes, fmt.Sprintf(format, args...))
}

// add takes the newest part of a log, of which left bytes were left out already.
func (g *gathered) add(name, text string, leftOut int64) {
	if most := min(mostOfOne, g.left); len(text) > most {
		cut := len(text) - most
		if i := strings.IndexByte(text[cut:], '\n'); i >= 0 {
			cut += i + 1
		} else {
			cut = len(text)
		}
		text, leftOut = text[cut:], leftOut+int64(cut)
	}
	if leftOut != 0 {
		g.note("%s: only its newest %d bytes; %d before them are left out", name, len(text), leftOut)
	}
	if text != "" {
		g.files[name], g.left = text, g.left-len(text)
	}
}

// concerns are the lines of the kernel's log that concern storage.
var concerns = regexp.MustCompile(`(?i)device-mapper|\bdm-\d|\bext4\b|ext4-fs|\bjbd2\b|\bxfs\b|\bbtrfs\b|\bmd/?raid|\bmd\d|\braid\d|I/O error|I/O timeout|blk_update_request|critical (medium|target|space)|` +
	`\b(sd|vd|xvd)[a-z]+\b|\bnvme\d|\bata\d|\bscsi\b|\bloop\d|blocked for more than|hung_task|Out of memory|oom-kill`)

// kernel reads the kernel's log (Documentation/ABI/testing/dev-kmsg): a record for each read, "priority,number,microseconds,flags;text".
func (l Logs) kernel(g *gathered) {
	const name = "logs/kernel.log"
	f, err := os.OpenFile(l.Kmsg, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		g.note("%s: %v", name, err)
		return
	}
	defer f.Close() //nolint:errcheck // opened for reading
	var out strings.Builder
	record := make([]byte, 8192) // the longest
	for {
		n, err := unix.Read(int(f.Fd()), record)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue // records were overwritten before they were read
		}
		if err != nil || n <= 0 {
			if err != nil && !errors.Is(err, unix.EAGAIN) {
				g.note("%s: it ends early: %v", name, err)
			}
			break
		}
		if line, ok := kernelLine(string(record[:n])); ok {
			out.WriteString(line)
		}
	}
	if out.Len() == 0 {
		g.note("%s: no line of it concerns storage", name)
	}
	g.add(name, out.String(), 0)
}

// kernelLine gives a record as dmesg prints it, if it concerns storage.
func kernelLine(record string) (line string, ok bool) {
	head, text, found := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !found || len(fields) < 3 {
		return "", false
	}
	text, _, _ = strings.Cut(text, "\n") // then come its keys
	at, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || !concerns.MatchString(text) {
		return "", false
	}
	return fmt.Sprintf("[%5d.%06d] %s\n", at/1e6, at%1e6, text), true
}

// pods reads the files that kubelet keeps of the containers: FOLDER/NAMESPACE_POD_UID/CONTAINER/N.log, and beside it those of before (N.log.TIME, .gz).
func (l Logs) pods(g *gathered, driverPID int) {
	uid := l.podOf(driverPID)
	for _, root := range l.Pods {
		folders, err := filepath.Glob(filepath.Join(root, "*_*_*"))
		if err != nil || len(folders) == 0 {
			continue
		}
		found := false
		for _, folder := range folders {
			if name := filepath.Base(folder); uid != "" && strings.HasSuffix(name, "_"+uid) || uid == "" && strings.Contains(name, "csi-local-lvm") {
				found = true
				l.containers(g, folder)
			}
		}
		if !found {
			g.note("logs/pods: no pod of the driver is in %s", root)
		}
		return
	}
	g.note("logs/pods: no logs of pods are in %s", strings.Join(l.Pods, " or "))
}

var podUID = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)

// podOf gives the uid of the pod of a process, by its cgroup (proc(5); kubernetes pkg/kubelet/cm); "": it is in none, or that cannot be told.
func (l Logs) podOf(pid int) string {
	text, err := os.ReadFile(filepath.Join(l.Proc, strconv.Itoa(pid), "cgroup"))
	if found := podUID.FindSubmatch(text); err == nil && found != nil {
		return strings.ReplaceAll(string(found[1]), "_", "-")
	}
	return ""
}

// containers takes the logs of all containers of a pod, the driver's first.
func (l Logs) containers(g *gathered, pod string) {
	files, _ := filepath.Glob(filepath.Join(pod, "*", "*.log*")) // the pattern is right
	type log struct {
		path  string
		first bool
		at    time.Time
	}
	var logs []log
	for _, f := range files {
		if info, err := os.Stat(f); err == nil { // else it was rotated away
			logs = append(logs, log{f, filepath.Base(filepath.Dir(f)) == "driver", info.ModTime()})
		}
	}
	slices.SortFunc(logs, func(a, b log) int {
		if a.first != b.first {
			return map[bool]int{true: -1, false: 1}[a.first]
		}
		return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.path, b.path))
	})
	for _, f := range logs {
		name := filepath.Join("logs/pods", filepath.Base(pod), filepath.Base(filepath.Dir(f.path)), strings.TrimSuffix(filepath.Base(f.path), ".gz"))
		text, leftOut, err := newest(f.path)
		if err != nil {
			g.note("%s: %v", name, err)
			continue
		}
		g.add(name, text, leftOut)
	}
}

// newest gives the end of a file.
func newest(path string) (text string, leftOut int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	var t tail
	if strings.HasSuffix(path, ".gz") {
		zip, err := gzip.NewReader(f)
		if err != nil {
			return "", 0, err
		}
		err = t.read(zip)
		return t.text(), t.leftOut, err
	}
	if info, err := f.Stat(); err == nil && info.Size() > mostOfOne {
		if t.leftOut, err = f.Seek(-mostOfOne, io.SeekEnd); err != nil {
			return "", 0, err
		}
	}
	err = t.read(f)
	return t.text(), t.leftOut, err
}

// tail keeps the newest mostOfOne bytes of what is read.
type tail struct {
	kept    []byte
	leftOut int64
}

func (t *tail) read(from io.Reader) error {
	part := make([]byte, 64<<10)
	for {
		n, err := from.Read(part)
		t.kept = append(t.kept, part[:n]...)
		if len(t.kept) > 2*mostOfOne {
			t.cut()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tail) cut() {
	if over := len(t.kept) - mostOfOne; over > 0 {
		t.kept, t.leftOut = append([]byte(nil), t.kept[over:]...), t.leftOut+int64(over)
	}
}

// text gives whole lines.
func (t *tail) text() string {
	t.cut()
	if t.leftOut != 0 {
		i := bytes.IndexByte(t.kept, '\n') + 1
		t.kept, t.leftOut = t.kept[i:], t.leftOut+int64(i)
	}
	return string(t.kept)
}

// printed takes what a program prints.
func (l Logs) printed(ctx context.Context, g *gathered, name, program string, args ...string) {
	ctx, cancel := context.WithTimeout(ctx, logBound)
	defer cancel()
	var t tail
	err := l.Programs.Stream(ctx, t.read, program, args...)
	if err != nil {
		g.note("%s: %s", name, strings.Join(strings.Fields(err.Error()), " "))
	}
	text := t.text()
	if err == nil && text == "" {
		g.note("%s: it is empty", name)
	}
	g.add(name, text, t.leftOut)
}

// journal asks systemd, by the name of the program, for which unit it may ever run in.
func (l Logs) journal(ctx context.Context, g *gathered) {
	l.printed(ctx, g, "logs/journal.log", "journalctl", "--no-pager", "--quiet", "--output=short-iso", "--lines=20000", "_COMM=csi-local-lvm")
}

// kubernetes asks for the logs of all containers of the driver's pods on this node, that of now and that of before.
func (l Logs) kubernetes(ctx context.Context, g *gathered) {
	if l.Kubectl == nil {
		g.note("logs/kubectl: Kubernetes was not asked; --cluster does")
		return
	}
	var answer tail
	ask, cancel := context.WithTimeout(ctx, logBound)
	defer cancel()
	err := l.Programs.Stream(ask, answer.read, "kubectl", append(slices.Clone(l.Kubectl), "get", "pods", "--all-namespaces", "-l", fleet.Selector, "--field-selector=spec.nodeName="+l.Node, "-o", "json")...)
	var list struct {
		Items []struct {
			Metadata struct{ Name, Namespace string }
			Spec     struct{ Containers, InitContainers []struct{ Name string } }
		}
	}
	if err == nil {
		err = json.Unmarshal(answer.kept, &list)
	}
	if err == nil && len(list.Items) == 0 {
		err = errors.New("no pod on " + l.Node + " has the labels " + fleet.Selector)
	}
	if err != nil {
		g.note("logs/kubectl: %s", strings.Join(strings.Fields(err.Error()), " "))
		return
	}
	for _, p := range list.Items {
		for _, c := range append(p.Spec.Containers, p.Spec.InitContainers...) {
			for suffix, more := range map[string][]string{".log": nil, ".previous.log": {"--previous"}} {
				args := append(slices.Clone(l.Kubectl), "logs", "--namespace="+p.Metadata.Namespace, p.Metadata.Name, "--container="+c.Name, "--tail=20000", "--timestamps")
				l.printed(ctx, g, filepath.Join("logs/kubectl", p.Metadata.Name, c.Name+suffix), "kubectl", append(args, more...)...)
			}
		}
	}
}
