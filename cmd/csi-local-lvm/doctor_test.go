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
	"testing"
	"time"

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
	for _, bad := range []string{"--output=xml", "--yes", "--fix", "--bundle=" + bundle, "--kubeconfig=/none", "no-such-volume"} {
		if _, err := execute(noEnv, append(slices.Clone(common), bad)...); err == nil || errors.As(err, &silent) {
			t.Errorf("%s: %v", bad, err)
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
		con := &consultation{yes: c.yes, look: orphans, in: strings.NewReader(c.answers), out: &out}
		facts, _ := orphans(t.Context())
		left, err := con.mendWith(t.Context(), doctor.Examine(facts), h)
		if err != nil || strings.Join(h.did, " ") != c.did || len(left) != c.left || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: %v, did %q, %d left\n%s", c.name, err, h.did, len(left), &out)
		}
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
