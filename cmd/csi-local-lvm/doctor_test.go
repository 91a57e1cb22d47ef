package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/doctor"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Without a driver, and whatever of LVM this machine has, doctor says that, and ends with the status of a fault.
func TestDoctor(t *testing.T) {
	folder := t.TempDir()
	common := []string{"doctor", "--state-dir=" + folder, "--node-name=n", "--volume-groups=no-such-group-here"}
	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	out, err := execute(noEnv, append(slices.Clone(common), "-o=json", "--bundle="+bundle)...)
	var silent exitStatus
	if !errors.As(err, &silent) || silent != exitStatus(doctor.Fault) {
		t.Errorf("%v", err)
	}
	var page struct{ Findings []map[string]any }
	if err := json.Unmarshal([]byte(out), &page); err != nil || !slices.ContainsFunc(page.Findings, func(f map[string]any) bool { return f["rule"] == "driver-down" && f["severity"] == "fault" }) {
		t.Errorf("%v\n%s", err, out)
	}
	if info, err := os.Stat(bundle); err != nil || info.Mode() != 0o600 || info.Size() == 0 {
		t.Errorf("bundle: %v", err)
	}
	out, err = execute(noEnv, append(slices.Clone(common), "--bundle=-")...)
	if zip, e := gzip.NewReader(strings.NewReader(out)); !errors.As(err, &silent) || e != nil {
		t.Errorf("bundle on standard output: %v, %v", err, e)
	} else if n, err := io.Copy(io.Discard, zip); err != nil || n == 0 {
		t.Errorf("bundle on standard output: %d bytes, %v", n, err)
	}
	if _, err := execute(noEnv, append(slices.Clone(common), "--bundle=-", "--fix", "--yes")...); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("what --fix says is mixed into the bundle: %v", err)
	}
	for _, bad := range []string{"--output=xml", "--yes", "--fix", "--bundle=" + bundle, "--kubeconfig=/none", "--kubeconfig=", "no-such-volume"} {
		if _, err := execute(noEnv, append(slices.Clone(common), bad)...); err == nil || errors.As(err, &silent) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, empty := range []string{"", "/", "//", "--bundle=", "--kubeconfig="} {
		if _, err := execute(noEnv, append(slices.Clone(common), empty)...); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%q is taken for everything, or for nothing: %v", empty, err)
		}
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 0 {
		t.Errorf("it left %v in the state folder: %v", entries, err)
	}
}

// Without a driver and without the flags, the names of the node and of kubelet's folder are guesses, and doctor knows that.
func TestDoctorKnowsWhatItGuesses(t *testing.T) {
	for _, c := range []struct {
		told          driver.Config
		node, kubelet bool
	}{
		{driver.Config{}, true, true},
		{driver.Config{NodeName: "n"}, false, true},
		{driver.Config{NodeName: "n", KubeletDir: t.TempDir()}, false, false},
	} {
		c.told.StateDir, c.told.VolumeGroups = t.TempDir(), []string{"no-such-group-here"}
		con := &consultation{told: c.told}
		if err := con.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		f, err := con.look(t.Context())
		if err != nil || f.NodeGuessed != c.node || f.KubeletGuessed != c.kubelet {
			t.Errorf("%+v: node %v, kubelet %v, %v", c.told, f.NodeGuessed, f.KubeletGuessed, err)
		}
	}
}

// recorder takes note of what is done by hand.
type recorder struct {
	doctor.Hands
	did []string
	err error
}

func (r *recorder) RemoveInline(_ context.Context, ref volume.Ref) error {
	r.did = append(r.did, ref.String())
	return r.err
}

func TestMendAsks(t *testing.T) {
	orphans := func(context.Context) (*doctor.Facts, error) {
		f := &doctor.Facts{Version: "v1", PodsKnown: true, Report: &status.Report{Time: time.Now(), Driver: &status.Live{Version: "v1"}}}
		for _, id := range []string{"csi-1", "csi-2"} {
			f.Report.Volumes = append(f.Report.Volumes, status.Volume{ID: id, LV: id, VG: "data", Kind: volume.Inline, Active: true, Boundary: status.Provisioned, PodUID: "gone"})
		}
		return f, nil
	}
	for _, c := range []struct {
		name, answers string
		yes           bool
		fails         error
		did           string
		left          int
		says          string
	}{
		{"no, then yes", "n\ny\n", false, nil, "data/csi-2", 1, "open nowhere? [y/N]   done\n"},
		{"nobody answers", "", false, nil, "", 2, "[y/N] "},
		{"without questions", "", true, nil, "data/csi-1 data/csi-2", 0, "  done\n"},
		{"it fails", "", true, volume.ErrBusy, "data/csi-1 data/csi-2", 2, "not done: remove logical volume data/csi-1"},
	} {
		var out bytes.Buffer
		h := &recorder{err: c.fails}
		con := &consultation{yes: c.yes, look: orphans, in: strings.NewReader(c.answers), says: &out}
		facts, _ := orphans(t.Context())
		left, err := con.mendWith(t.Context(), doctor.Examine(facts), h)
		if err != nil || strings.Join(h.did, " ") != c.did || len(left) != c.left || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: %v, did %q, %d left\n%s", c.name, err, h.did, len(left), &out)
		}
	}
}

// The command itself mends, and its standard output is one document, whatever it says meanwhile.
func TestFixCommandInJSON(t *testing.T) {
	kubelet := t.TempDir()
	folder := filepath.Join(kubelet, "pods/uid-1/volumes/kubernetes.io~csi/pv")
	file, old := filepath.Join(folder, "vol_data.json"), time.Now().Add(-time.Hour)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(folder, "mount"), 0o750),
		os.WriteFile(file, []byte(`{"driverName":"local-lvm.csi.internal","volumeHandle":"n/no-such-group-here/x"}`), 0o600), os.Chtimes(file, old, old),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := execute(noEnv, "doctor", "--state-dir="+t.TempDir(), "--node-name=n", "--volume-groups=no-such-group-here", "--kubelet-dir="+kubelet, "--fix", "--yes", "-o=json")
	var silent exitStatus
	if !errors.As(err, &silent) {
		t.Error(err)
	}
	var page struct {
		Findings []struct{ Rule, Outcome string }
	}
	if err := json.Unmarshal([]byte(out), &page); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !slices.Contains(page.Findings, struct{ Rule, Outcome string }{"target-left", "done"}) {
		t.Errorf("%s", out)
	}
	if _, err := os.Lstat(filepath.Join(folder, "mount")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}

// At the question, a signal ends doctor at once; while a fix is under way, after it, and nothing is begun any more.
func TestSignalEndsDoctor(t *testing.T) {
	orphans := func(context.Context) (*doctor.Facts, error) {
		f := &doctor.Facts{Version: "v1", PodsKnown: true, Report: &status.Report{Time: time.Now(), Driver: &status.Live{Version: "v1"}}}
		for _, id := range []string{"csi-1", "csi-2"} {
			f.Report.Volumes = append(f.Report.Volumes, status.Volume{ID: id, LV: id, VG: "data", Kind: volume.Inline, Boundary: status.Provisioned, PodUID: "gone"})
		}
		return f, nil
	}
	for _, c := range []struct {
		name string
		yes  bool
		did  string
		says string
	}{
		{"at the question", false, "", "[y/N] "},
		{"in the middle of a fix", true, "data/csi-1", "  done\n"},
	} {
		signals := make(chan os.Signal, 2)
		silence, never := io.Pipe() // nobody answers
		var out bytes.Buffer
		h := &slow{recorder: recorder{}, begun: func() { signals <- syscall.SIGINT }}
		con := &consultation{yes: c.yes, look: orphans, in: &asked{silence, func() { signals <- syscall.SIGINT }}, says: &out}
		returned := make(chan error, 1)
		root := &cobra.Command{SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
			facts, _ := orphans(cmd.Context())
			_, err := con.mendWith(cmd.Context(), doctor.Examine(facts), h)
			returned <- err
			return err
		}}
		root.SetArgs(nil)
		err := mainErr(root, signals)
		if c.yes && !h.finished.Load() {
			t.Errorf("%s: it ended before the fix", c.name)
		}
		if err == nil || err.Error() != "signal: interrupt" {
			t.Errorf("%s: %v", c.name, err)
		}
		_ = never.Close() // now the question is answered, and the goroutine ends
		<-returned
		if strings.Join(h.did, " ") != c.did || h.cut != nil || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: did %q, cut off: %v\n%s", c.name, h.did, h.cut, &out)
		}
	}
}

// asked tells when somebody begins to read.
type asked struct {
	io.Reader
	tell func()
}

func (a *asked) Read(p []byte) (int, error) {
	a.tell()
	return a.Reader.Read(p)
}

// slow is in the middle of a fix when the signal comes, and goes on for longer than a command that only looks may take.
type slow struct {
	recorder
	begun    func()
	finished atomic.Bool
	cut      error
}

func (s *slow) RemoveInline(ctx context.Context, ref volume.Ref) error {
	s.begun()
	select {
	case <-ctx.Done():
		s.cut = ctx.Err()
	case <-time.After(2 * moment):
	}
	s.finished.Store(true)
	return s.recorder.RemoveInline(ctx, ref)
}

// With -o json, one document is all that is on standard output, and it has what came of each fix.
func TestFixInJSON(t *testing.T) {
	var out, says bytes.Buffer
	look := func(context.Context) (*doctor.Facts, error) {
		f := &doctor.Facts{Version: "v1", PodsKnown: true, Report: &status.Report{Time: time.Now(), Driver: &status.Live{Version: "v1"}}}
		f.Report.Volumes = []status.Volume{{ID: "csi-1", LV: "csi-1", VG: "data", Kind: volume.Inline, Boundary: status.Provisioned, PodUID: "gone"}}
		return f, nil
	}
	c := &consultation{output: outputJSON, fix: true, yes: true, env: noEnv, look: look, hands: &recorder{err: volume.ErrBusy}, out: &out, says: &says}
	var silent exitStatus
	if err := c.run(t.Context()); !errors.As(err, &silent) || silent != exitStatus(doctor.Warning) {
		t.Error(err)
	}
	var page struct {
		Findings []struct{ Rule, Outcome string }
	}
	if err := json.Unmarshal(out.Bytes(), &page); err != nil || len(page.Findings) != 1 || !strings.HasPrefix(page.Findings[0].Outcome, "not done: remove logical volume") {
		t.Errorf("%v\n%s", err, &out)
	}
	if !strings.Contains(says.String(), "csi-1: remove logical volume") || !strings.Contains(says.String(), "  not done: ") {
		t.Errorf("%s", &says)
	}
}

func TestDoctorAboutOneVolume(t *testing.T) {
	var out bytes.Buffer
	c := &consultation{output: outputTable, word: "csi-1", env: noEnv, out: &out, look: func(context.Context) (*doctor.Facts, error) {
		f := &doctor.Facts{Version: "v1", Report: &status.Report{Time: time.Now(), Driver: &status.Live{Version: "v1"}}}
		for _, id := range []string{"csi-1", "csi-2"} {
			f.Report.Volumes = append(f.Report.Volumes, status.Volume{ID: id, LV: id, VG: "data", Suspended: true})
		}
		return f, nil
	}}
	var silent exitStatus
	if err := c.run(t.Context()); !errors.As(err, &silent) || silent != 3 {
		t.Error(err)
	}
	if page := out.String(); !strings.Contains(page, "csi-1 (data/csi-1) is") || !strings.Contains(page, "fault suspended: csi-1") || strings.Contains(page, "csi-2") {
		t.Errorf("%s", page)
	}
}
