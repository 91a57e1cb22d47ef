package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// hush is the secret that may be in no bundle. It looks like a word, so that only what stands before it tells that it is one.
const hush = "hunter-two"

// secretLines hold it in the ways in which logs do.
var secretLines = []string{
	"password=" + hush, "--password " + hush, "--api-key=" + hush, "passphrase: " + hush, `{"token":"` + hush + `"}`, `"message"="{\"secrets\":\"` + hush + `\"}"`,
	"map[node_stage_secret:" + hush + " user:bob]", "Authorization: Bearer " + hush, "authorization: basic " + hush, "mount -o user=bob,password=" + hush + ",ro",
	"GET https://bob:" + hush + "@example.com/", "'client_secret': '" + hush + "'", "MY_ACCESS_KEY=" + hush,
	"-----BEGIN RSA PRIVATE KEY-----" + hush + "-----END RSA PRIVATE KEY-----", "-----BEGIN EC PRIVATE KEY-----\n" + hush + "\n-----END EC PRIVATE KEY-----",
	"the words " + strings.Repeat("aB3/", 12) + hush[:0], "eyJhbGciOiJSUzI1NiIsImtpZCI6Ijl4dmJ4In0.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50In0.c2lnbmF0dXJlMTIzNDU2Nzg5MEFCQ0RFRg",
}

// isSecret reports whether something of the lines above is left.
func isSecret(text string) bool {
	return strings.Contains(text, hush) || strings.Contains(text, "aB3/aB3/") || strings.Contains(text, "c2lnbmF0dXJl")
}

func TestCleaned(t *testing.T) {
	for _, line := range secretLines {
		if got := cleaned("before\nbegin " + line + " end\nafter\n"); isSecret(got) || !strings.HasPrefix(got, "before\nbegin ") || !strings.HasSuffix(got, " end\nafter\n") || !strings.Contains(got, removed) {
			t.Errorf("%q: %q", line, got)
		}
	}
	for _, line := range []string{
		`I1130 07:47:49.407861 134 log.go:91] "call failed" request="1a2b3c4d" method="NodePublishVolume" volume="csi-` + strings.Repeat("0a", 32) + `" code="Aborted" err="in use by pid 7 (sh)"`,
		"mounted at /var/lib/kubelet/pods/5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d/volumes/kubernetes.io~csi/pv/mount",
		"LVM-Qm0VgS3iD2H7eA4iWJ0yD0m9S2iC1xYbHq1p9Rz8eT5uI7oP6aS4dF3gH2jK1l-tpool", "pv 7bcUUO-eYYG-h36Q-N26v-Cg1p-hmYl-q32GjN",
		"sha256:" + strings.Repeat("0123456789abcdef", 4), "the token is gone, and so is the basic idea\n", "no newline at the end",
	} {
		if got := cleaned(line); got != line && !strings.Contains(line, "basic idea") {
			t.Errorf("%q became %q", line, got)
		}
	}
	for range 2 { // the end of a key is missing: not all that follows is lost
		text := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("x\n", longestKey) + "it goes on\n"
		if got := cleaned(text); got != removed+"\nit goes on\n" {
			t.Errorf("%q", got)
		}
	}
}

// What a log says is in the facts as JSON; that stays JSON.
func TestCleanedJSONIsJSON(t *testing.T) {
	text, err := json.MarshalIndent(map[string]any{"a": secretLines, "token": hush, "b": 1}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal([]byte(cleaned(string(text))), &back); err != nil || back["token"] != removed || back["b"] != 1. {
		t.Errorf("%v\n%s", err, cleaned(string(text)))
	}
}

// programs answers for journalctl and kubectl.
type programs map[string]string

func (p programs) Stream(_ context.Context, sink func(io.Reader) error, name string, args ...string) error {
	line := name + " " + strings.Join(args, " ")
	for part, answer := range p {
		if !strings.Contains(line, part) {
			continue
		}
		if strings.HasPrefix(answer, "error") {
			return &run.Error{Argv: append([]string{name}, args...), ExitCode: 1, Stderr: answer, Err: errors.New("exit status 1")}
		}
		return sink(strings.NewReader(answer))
	}
	return errors.New("not expected: " + line)
}

// logBench are folders as a node has them.
func logBench(t *testing.T) (l Logs, root string) {
	t.Helper()
	root = t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	const uid = "5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d"
	write("proc/7/cgroup", "0::/kubepods.slice/kubepods-pod"+strings.ReplaceAll(uid, "-", "_")+".slice/cri-1.scope\n")
	pod := "pods/ns_lvm-node-x_" + uid + "/"
	write(pod+"driver/1.log", strings.Join(secretLines, "\n")+"\nof the driver now\n")
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	fmt.Fprintf(zip, "of the driver before, password=%s\n", hush)
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	write(pod+"driver/0.log.20260102-030405.gz", zipped.String())
	write(pod+"registrar/0.log", "of the registrar\n")
	write("pods/ns_csi-local-lvm-node-y_0/driver/0.log", "of another pod\n")
	write("pods/ns_shop_1/app/0.log", "of a stranger\n")
	write("kmsg", "6,1,12345678,-;device-mapper: thin: 253:4: growing the data device\n SUBSYSTEM=block\n")
	write("state/journal/0.json", "record, token="+hush)
	return Logs{Pods: []string{root + "/none", root + "/pods"}, Proc: root + "/proc", Kmsg: root + "/kmsg", Node: "node-1", Kubectl: []string{"--kubeconfig=/k"}, Programs: programs{
		"journalctl":                       "of the journal\n" + strings.Join(secretLines, "\n"),
		"--kubeconfig=/k get pods":         `{"items":[{"metadata":{"name":"lvm-node-x","namespace":"ns"},"spec":{"containers":[{"name":"driver"}]}}]}`,
		"--tail=20000 --timestamps -- now": "",
		"--previous":                       "error: previous terminated container \"driver\" in pod \"lvm-node-x\" not found",
	}}, root
}

// nowLogs answers for the logs of now, whose arguments are those of the logs before but for the last one.
type nowLogs struct{ programs }

func (p nowLogs) Stream(ctx context.Context, sink func(io.Reader) error, name string, args ...string) error {
	if name == "kubectl" && args[1] == "logs" && args[len(args)-1] == "--timestamps" {
		return sink(strings.NewReader("of kubectl\n" + strings.Join(secretLines, "\n")))
	}
	return p.programs.Stream(ctx, sink, name, args...)
}

func unpack(t *testing.T, packed io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(head.Name, "csi-local-lvm-bundle/")] = string(text)
	}
}

// The bundle has all that a bug report needs, says what it has not, and holds no secret.
func TestBundle(t *testing.T) {
	l, root := logBench(t)
	l.Programs = nowLogs{l.Programs.(programs)}
	f := well()
	f.Report.Driver.PID = 7
	f.Report.Mounts = append(f.Report.Mounts, volume.Mount{Target: "/nfs", Options: []string{"credential-of-another-mount"}})
	f.Report.Pending = []status.Pending{{VolumeID: "v", Error: strings.Join(secretLines, "\n")}}
	var out bytes.Buffer
	if err := Bundle(t.Context(), &out, f, Examine(f), root+"/state", l); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &out)
	for name, text := range files {
		if isSecret(text) || strings.Contains(text, "another-mount") || strings.Contains(text, "of a stranger") || strings.Contains(text, "of another pod") {
			t.Errorf("%s holds what it may not: %s", name, text)
		}
		if strings.HasSuffix(name, "s.json") && !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON any more: %s", name, text)
		}
	}
	const pod = "logs/pods/ns_lvm-node-x_5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d/"
	for name, part := range map[string]string{
		"facts.json": handle, "findings.json": "teardown", "mounts.txt": target, "journal/0.json": "record",
		"logs/kernel.log": "[   12.345678] device-mapper: thin: 253:4: growing the data device\n", "logs/journal.log": "of the journal",
		pod + "driver/1.log": "of the driver now", pod + "driver/0.log.20260102-030405": "of the driver before", pod + "registrar/0.log": "of the registrar",
		"logs/kubectl/lvm-node-x/driver.log": "of kubectl",
		"not-had.txt":                        "logs/kubectl/lvm-node-x/driver.previous.log: kubectl --kubeconfig=/k logs",
	} {
		if name == "findings.json" {
			part = "["
		}
		if !strings.Contains(files[name], part) {
			t.Errorf("%s: %q", name, files[name])
		}
	}
}

// Nothing is to be had: the bundle says so, and why.
func TestBundleWithoutLogs(t *testing.T) {
	l := Logs{Pods: []string{"/none/a", "/none/b"}, Proc: "/none", Kmsg: "/none/kmsg", Programs: programs{"journalctl": "error: no such program"}}
	var out bytes.Buffer
	if err := Bundle(t.Context(), &out, well(), nil, "/none", l); err != nil {
		t.Fatal(err)
	}
	want := []string{"logs/journal.log: journalctl ", "no such program", "logs/kernel.log: open /none/kmsg: no such file", "logs/kubectl: Kubernetes was not asked; --cluster does", "logs/pods: no logs of pods are in /none/a or /none/b"}
	for _, part := range want {
		if got := unpack(t, bytes.NewReader(out.Bytes()))["not-had.txt"]; !strings.Contains(got, part) {
			t.Errorf("%q is not in\n%s", part, got)
		}
	}
}

// Of the logs the newest is taken, in whole lines; what was left out is told.
func TestBundleIsBounded(t *testing.T) {
	line := strings.Repeat("x", 99) + "\n"
	long := strings.Repeat(line, 2*mostOfOne/len(line)) + "the newest line\n"
	folder := t.TempDir() + "/pods/ns_csi-local-lvm-node-x_1"
	for i := range mostOfAll / mostOfOne {
		name := filepath.Join(folder, fmt.Sprintf("c%d", i), "0.log")
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(long), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	g := Logs{Pods: []string{filepath.Dir(folder)}, Proc: "/none", Kmsg: "/none", Programs: programs{"journalctl": long}}.gather(t.Context(), 0)
	all := 0
	for name, text := range g.files {
		all += len(text)
		if whole := len(text)%len(line) == len("the newest line\n"); len(text) > mostOfOne || !strings.HasSuffix(text, "the newest line\n") || !whole {
			t.Errorf("%s: %d bytes, %.20q", name, len(text), text)
		}
	}
	if all > mostOfAll || all < mostOfAll/2 || !strings.Contains(strings.Join(g.notes, "\n"), "only its newest") {
		t.Errorf("%d bytes in all: %q", all, g.notes)
	}
}

// A line of the kernel's log is in the bundle where it concerns storage.
func TestKernelLines(t *testing.T) {
	for text, want := range map[string]bool{
		"EXT4-fs error (device dm-3): ext4_lookup:1": true, "XFS (dm-3): Corruption": true, "BTRFS error (device dm-1): x": true, "md/raid1:mdX: Disk failure": true,
		"I/O error, dev vda, sector 1": true, "device-mapper: raid: Failed": true, "INFO: task lvm:7 blocked for more than 120 seconds.": true, "sd 0:0:0:0: [sda] tag#0": true,
		"usb 1-1: new device": false, "eth0: link up": false, "audit: type=1400 password=x": false,
	} {
		if line, got := kernelLine("3,9,1000001,-;" + text + "\n KEY=dm-1\n"); got != want || got && line != "[    1.000001] "+text+"\n" {
			t.Errorf("%s: %v %q", text, got, line)
		}
	}
	if _, got := kernelLine("no record about dm-1"); got {
		t.Error("what is no record is taken for one")
	}
}

// A program that hangs does not keep the bundle.
func TestBundleDoesNotHang(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	g := Logs{Proc: "/none", Kmsg: "/none", Programs: &run.Local{}}
	var got gathered
	got.files, got.left = map[string]string{}, mostOfAll
	g.printed(ctx, &got, "logs/x", "sleep", "60")
	if len(got.notes) != 1 || !strings.Contains(got.notes[0], "deadline") {
		t.Errorf("%q", got.notes)
	}
}

func BenchmarkCleaned(b *testing.B) {
	line := `I1130 07:47:49.407861     134 log.go:91] "call done" request="1a2b3c4d" method="NodePublishVolume" volume="node-1/data/pvc-5e6f0d6e-3f1c-4a43-9d62-1f0c0a1b2c3d" code="OK" duration="1.2s"` + "\n"
	text := strings.Repeat(line, 1<<20/len(line))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		cleaned(text)
	}
}
