package lvm

import (
	"errors"
	"slices"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// selected is a command that LVM carries out only on what has our tags, and what comes of it.
type selected struct {
	name    string
	lv      string
	kind    volume.Kind // "": persistent
	result  run.Result
	err     error
	report  string // what LVM reports when it is asked why
	want    error  // the one sentinel
	plain   bool   // an error without one
	reports bool   // LVM is asked why
}

// run calls, and checks what LVM is run with, the answer, what is flushed and what else is run. args come between the selection and the
// name, conditions after those of all commands.
func (c *selected) run(t *testing.T, command string, args []string, conditions string, call func(r *rig, of volume.Ref) error) {
	r := newRig(t, "data")
	if c.kind == "" {
		c.kind = volume.Persistent
	}
	r.answer = func(verb string, got []string) (run.Result, error) {
		if verb == "fullreport" {
			return run.Result{Stdout: string(recorded(t, c.report+".json"))}, nil
		}
		want := slices.Concat([]string{"-y", "-S", `lv_name="` + c.lv + `" && vg_name="data" && lv_tags="csi.owner=` + owner + `" && lv_tags="csi.kind=` +
			string(c.kind) + `" && lv_role=public && vg_missing_pv_count=0` + conditions}, args, []string{"data/" + c.lv})
		if verb != command || !slices.Equal(got, want) {
			t.Errorf("%s %q, want %q", verb, got, want)
		}
		return c.result, c.err
	}
	err := call(r, volume.Ref{VG: "data", LV: c.lv})
	if (err != nil) != (c.want != nil || c.plain) {
		t.Errorf("error %v", err)
	}
	if (err == nil) != slices.Equal(r.flushed, []string{"data"}) {
		t.Errorf("error %v, flushed %v", err, r.flushed)
	}
	for _, s := range sentinels[:8] {
		if errors.Is(err, s) != (s == c.want) { //nolint:errorlint // the sentinels themselves are compared
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	want := []string{command}
	if c.reports {
		want = append(want, "fullreport")
	}
	r.count(t, c.name, want...)
}

// LVM is told what must hold of what it changes; what it answers decides, and silence is looked into.
func TestRetag(t *testing.T) {
	silent := run.Result{}
	for _, c := range []selected{
		{name: "changed", lv: "linear", result: run.Result{Stdout: "  Logical volume data/linear changed.\n"}},
		{name: "another one changed", lv: "linear", result: run.Result{Stdout: "  Logical volume data/linear2 changed.\n"}, report: "many", want: volume.ErrPrecondition, reports: true},
		{name: "failed", lv: "linear", err: failed("  device-mapper: reload ioctl failed"), plain: true},
		{name: "gone", lv: "none", err: failed(string(recorded(t, "nolv.stderr"))), report: "many", want: volume.ErrNotFound, reports: true},
		{name: "gone from a partial group", lv: "none", err: failed(string(recorded(t, "nolv.stderr"))), report: "partial", plain: true, reports: true},
		{name: "gone with its group", lv: "none", err: failed(string(recorded(t, "nolv.stderr"))), report: "none", plain: true, reports: true},
		{name: "no group", lv: "none", err: failed(string(recorded(t, "nogroup.stderr"))), plain: true},
		{name: "foreign", lv: "foreign", result: silent, report: "many", want: volume.ErrPrecondition, reports: true},
		{name: "of another kind", lv: "linear", kind: volume.Inline, result: silent, report: "many", want: volume.ErrPrecondition, reports: true},
		{name: "a disk is missing", lv: "linear", result: silent, report: "partial", plain: true, reports: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, "lvchange", []string{"--deltag", "csi.state=old", "--addtag", "csi.state=new"}, "", func(r *rig, of volume.Ref) error {
				return r.Retag(t.Context(), of, c.kind, []string{"csi.state=new"}, []string{"csi.state=old"})
			})
		})
	}
}

func TestRetagIsDurable(t *testing.T) {
	r := newRig(t, "data")
	r.answer = func(string, []string) (run.Result, error) {
		return run.Result{Stdout: "  Logical volume data/linear changed.\n"}, nil
	}
	r.flushFails = errors.New("no flush today")
	err := r.Retag(t.Context(), volume.Ref{VG: "data", LV: "linear"}, volume.Persistent, []string{"csi.state=x"}, nil)
	if !errors.Is(err, r.flushFails) {
		t.Errorf("got %v, want %v", err, r.flushFails)
	}
}
