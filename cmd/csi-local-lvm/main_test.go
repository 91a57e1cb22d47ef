package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/yaml"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func noEnv(string) string { return "" }

// execute runs a command that ends by itself.
func execute(env func(string) string, args ...string) (output string, err error) {
	var out bytes.Buffer
	root := command(env)
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(io.Discard)
	signals := make(chan os.Signal, 1)
	late := time.AfterFunc(10*time.Second, func() { signals <- syscall.SIGTERM }) // should it serve
	defer late.Stop()
	err = mainErr(root, signals)
	return out.String(), err
}

func TestServeRefusesBadFlags(t *testing.T) {
	good := []string{"serve", "--node-name=n", "--volume-groups=data", "--endpoint=/tmp/s", "--state-dir=/tmp/state"}
	for _, c := range []struct{ arg, names string }{
		{"--node-name=", "--node-name"},
		{"--volume-groups=", "--volume-groups"},
		{"--volume-groups=ok,-y", "--volume-groups"},
		{"--endpoint=tcp://0.0.0.0:10000", "--endpoint"},
		{"--driver-name=a b", "--driver-name"},
		{"--state-dir=relative", "--state-dir"},
		{"--kubelet-dir=relative", "--kubelet-dir"},
		{"--services=nodes", "--services"},
		{"--lvm-exec=chroot", "--lvm-exec"},
		{"--thin-overcommit=0.5", "--thin-overcommit"},
		{"--thin-overcommit=much", "--thin-overcommit"},
		{"--max-volumes=-1", "--max-volumes"},
		{"--max-volumes=many", "--max-volumes"},
		{"--copy-rate=fast", "--copy-rate"},
		{"--expansion=both", "--expansion"},
		{"--metrics-address=9810", "--metrics-address"},
		{"--metrics-address=localhost:9810", "--metrics-address"},
		{"--metrics-address=:0", "--metrics-address"},
		{"--profiling", "--profiling"},
		{"--orphan-policy=forget", "--orphan-policy"},
		{"--orphan-grace=0", "--orphan-grace"},
		{"--logging-format=xml", "--logging-format"},
		{"--v=loud", "--v"},
		{"--no-such-flag", "--no-such-flag"},
		{"argument", "argument"},
	} {
		name, _, _ := strings.Cut(c.arg, "=")
		args := slices.DeleteFunc(slices.Clone(good), func(a string) bool { return strings.HasPrefix(a, name+"=") })
		_, err := execute(noEnv, append(args, c.arg)...)
		if err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", c.arg, err)
		}
	}
	if _, err := execute(noEnv, "serve", "--volume-groups=data"); !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), "NODE_NAME") {
		t.Errorf("no node name at all: %v", err)
	}
}

func TestFlagsReachTheConfig(t *testing.T) {
	cmd := serveCommand(func(key string) string { return map[string]string{"NODE_NAME": "from-env"}[key] })
	if got := cmd.Flags().Lookup("node-name").DefValue; got != "from-env" {
		t.Errorf("node name %q", got)
	}

	flags, c := pflag.NewFlagSet("", pflag.ContinueOnError), driver.Default()
	configFlags(flags, &c)
	err := flags.Parse([]string{
		"--endpoint=/e", "--node-name=n", "--driver-name=d", "--volume-groups=a,b-*", "--state-dir=/s", "--kubelet-dir=/k",
		"--services=node", "--lvm-exec=host", "--thin-overcommit=1.5", "--max-volumes=7", "--copy-rate=200Mi",
		"--expansion=node", "--orphan-policy=report", "--orphan-grace=90s", "--metrics-address=:9810", "--profiling",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.VolumeGroups) != 2 || len(c.Services) != 1 {
		t.Fatalf("%+v", c)
	}
	got := []any{c.Endpoint, c.NodeName, c.DriverName, c.VolumeGroups[0], c.VolumeGroups[1], c.StateDir, c.KubeletDir, c.Services[0], c.LVMExec, c.ThinOvercommit, c.MaxVolumes, c.CopyRate, c.Expansion, c.OrphanPolicy, c.OrphanGrace, c.MetricsAddress, c.Profiling}
	for i, want := range []any{"/e", "n", "d", "a", "b-*", "/s", "/k", "node", "host", 1.5, int64(7), "200Mi", driver.ExpandNode, driver.OrphanReport, 90 * time.Second, ":9810", true} {
		if got[i] != want {
			t.Errorf("value %d: %v, want %v", i, got[i], want)
		}
	}
}

// The whole program, with whatever LVM this machine has or has not: it serves, and ends well on a signal.
// The table of flags in the README has each flag of serve, and its default.
func TestFlagsOfTheREADME(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(text), -1) {
		said[row[1]] = strings.Trim(row[2], "`")
	}
	words := map[string]string{"node-name": "$NODE_NAME", "volume-groups": "(needed)", "metrics-address": "(off)", "thin-overcommit": "1.0", "orphan-grace": "10m"}
	serveCommand(noEnv).LocalFlags().VisitAll(func(f *pflag.Flag) {
		is, there := said[f.Name]
		delete(said, f.Name)
		want := strings.Trim(f.DefValue, "[]")
		if word, ok := words[f.Name]; ok {
			want = word
		}
		if !there || is != want {
			t.Errorf("README says --%s is %q by default, serve %q", f.Name, is, want)
		}
	})
	for name := range said {
		t.Errorf("README has --%s, and serve does not", name)
	}
}

func TestServeUntilASignal(t *testing.T) {
	dir, err := os.MkdirTemp("", "cmd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	root := command(noEnv)
	root.SetArgs([]string{"serve", "--node-name=n", "--volume-groups=no-such-group-here", "--endpoint=unix://" + socket, "--state-dir=" + filepath.Join(dir, "state")})
	signals, ended := make(chan os.Signal, 2), make(chan error, 1)
	go func() { ended <- mainErr(root, signals) }()

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), nil, grpc.WaitForReady(true))
	if err != nil || info.GetName() != "local-lvm.csi.internal" || info.GetVendorVersion() == "" {
		t.Errorf("%v %v", info, err)
	}
	if reply, err := csi.NewIdentityClient(conn).Probe(t.Context(), nil); err == nil && reply.GetReady().GetValue() {
		t.Error("ready without its volume group")
	}
	signals <- syscall.SIGTERM
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("does not end on SIGTERM")
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left")
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	told, hang := make(chan struct{}), make(chan struct{})
	signals, ended := make(chan os.Signal, 2), make(chan error, 1)
	root := &cobra.Command{RunE: func(cmd *cobra.Command, _ []string) error {
		if _, err := begin(cmd.Context()); err != nil {
			return err
		}
		signals <- syscall.SIGTERM
		<-cmd.Context().Done()
		close(told)
		<-hang // does not end
		return nil
	}}
	root.SetArgs(nil)
	defer close(hang)
	go func() { ended <- mainErr(root, signals) }()
	<-told
	select {
	case err := <-ended:
		t.Fatalf("ended while its work runs: %v", err)
	default:
	}
	signals <- syscall.SIGINT
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "second signal") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("does not end on the second signal")
	}
}

func TestVersion(t *testing.T) {
	version = "v1.2.3"
	t.Cleanup(func() { version = "" })
	if out, err := execute(noEnv, "version"); err != nil || out != "v1.2.3\n" {
		t.Errorf("%q %v", out, err)
	}
	version = ""
	if out, err := execute(noEnv, "version"); err != nil || strings.TrimSpace(out) == "" {
		t.Errorf("%q %v", out, err)
	}
}

func TestJSONLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(jsonHandler(&out, 2))
	log.Log(t.Context(), -3, "too chatty")
	log.Log(t.Context(), -2, "call", "duration", 1500*time.Millisecond, "code", codes.Aborted, "err", errors.New("why"), "n", 7)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("not one JSON object: %v\n%s", err, out.String())
	}
	for key, want := range map[string]any{"level": "INFO", "msg": "call", "duration": "1.5s", "code": "Aborted", "err": "why", "n": 7.0} {
		if line[key] != want {
			t.Errorf("%s: %v, want %v", key, line[key], want)
		}
	}
	if _, err := time.Parse(time.RFC3339Nano, line["time"].(string)); err != nil {
		t.Error(err)
	}
}

func TestAdoptRefusesBadFlags(t *testing.T) {
	good := []string{"adopt", "data/lv", "--node-name=n", "--volume-groups=data"}
	for _, c := range []struct{ arg, names string }{
		{"--node-name=", "--node-name"},
		{"--driver-name=a b", "--driver-name"},
		{"--fs-type=ntfs", "--fs-type"},
		{"extra", "accepts 1 arg"},
	} {
		if _, err := execute(noEnv, append(slices.Clone(good), c.arg)...); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", c.arg, err)
		}
	}
	for _, args := range [][]string{
		{"adopt", "data", "--node-name=n", "--volume-groups=data"},
		{"adopt", "data/lv", "--node-name=n"},
		append(slices.Clone(good), "--block", "--fs-type=ext4"),
	} {
		if _, err := execute(noEnv, args...); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Without a driver, and whatever of LVM this machine has, status says what it knows.
func TestStatus(t *testing.T) {
	folder := t.TempDir()
	common := []string{"status", "--state-dir=" + folder, "--node-name=n", "--volume-groups=no-such-group-here"}
	for _, output := range []string{"json", "yaml"} {
		out, err := execute(noEnv, append(slices.Clone(common), "-o", output)...)
		var report map[string]any
		if err != nil || yaml.Unmarshal([]byte(out), &report) != nil || report["node"] != "n" || report["driverName"] != driver.Default().DriverName || report["volumes"] == nil {
			t.Errorf("%s: %v\n%s", output, err, out)
		}
	}
	out, err := execute(noEnv, common...)
	if err != nil || !strings.Contains(out, "not running") || strings.Contains(out, "\x1b") {
		t.Errorf("%v\n%s", err, out)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 0 {
		t.Errorf("it left %v in the state folder: %v", entries, err)
	}
	for _, bad := range []string{"--output=xml", "--watch=1ms", "--node-name=a b", "--lvm-exec=chroot", "--driver-name=a b", "extra"} {
		if _, err := execute(noEnv, append(slices.Clone(common), bad)...); err == nil {
			t.Errorf("%s passes", bad)
		}
	}
}

func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	n := 0
	err := repeat(ctx, time.Millisecond, true, &out, func(_ context.Context, w io.Writer) error {
		if n++; n == 3 {
			cancel()
		}
		_, err := fmt.Fprintln(w, n)
		return err
	})
	if err != nil || out.String() != "1\n2\n" {
		t.Errorf("%v %q", err, out.String())
	}
}
