//go:build image

package main

import (
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// built is where "hack/image" has put the image.
func built(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("IMAGE")
	if dir == "" {
		t.Fatal("IMAGE is not set: make imagetest")
	}
	return dir
}

// programs are those that the driver may run, read from its source: what is given to the methods of run.Runner and run.Streamer, and what LVM
// runs by itself for what the driver asks of it.
func programs(t *testing.T) []string {
	t.Helper()
	found := []string{"nsenter", "thin_check", "modprobe"} // pkg/driver's prefix for LVM; lvm.conf(5): thin_check_executable; activation of targets
	for _, dir := range []string{"pkg/lvm", "pkg/mount"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				found = append(found, programsOf(t, file)...)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// programsOf reads one file. Where the program of a call is no literal, it is the first of a list (command[0]), and then each list of strings of
// the file that does not begin with a flag is taken for one; or it is a variable, and then what the file's functions return first of two.
func programsOf(t *testing.T, file string) (found []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var lists, returned []string
	var programs []ast.Expr
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if e := program(n); e != nil {
				programs = append(programs, e)
			}
		case *ast.CompositeLit:
			if len(n.Elts) > 0 && literal(n.Elts[0]) != "" && !strings.HasPrefix(literal(n.Elts[0]), "-") {
				lists = append(lists, literal(n.Elts[0]))
			}
		case *ast.ReturnStmt:
			if len(n.Results) == 2 && literal(n.Results[0]) != "" {
				returned = append(returned, literal(n.Results[0]))
			}
		}
		return true
	})
	for _, e := range programs {
		switch e := e.(type) {
		case *ast.BasicLit:
			found = append(found, literal(e))
		case *ast.IndexExpr:
			found = append(found, lists...)
		case *ast.Ident:
			found = append(found, returned...)
		default:
			t.Errorf("%s: which program is run cannot be read from the source", file)
		}
	}
	return found
}

// program gives what a call names as the program to be run; nil for calls that run none.
func program(call *ast.CallExpr) ast.Expr {
	method, _ := call.Fun.(*ast.SelectorExpr)
	if method == nil {
		return nil
	}
	at, named := map[string]int{"Read": 1, "Write": 1, "Stream": 2}[method.Sel.Name]
	on, _ := method.X.(*ast.SelectorExpr)
	if !named || len(call.Args) <= at || on == nil || !slices.Contains([]string{"runner", "tools"}, on.Sel.Name) {
		return nil
	}
	return call.Args[at]
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, _ := strconv.Unquote(l.Value)
		return s
	}
	return ""
}

func TestProgramsAreFoundInTheSource(t *testing.T) {
	got := programs(t)
	for _, want := range []string{"lvm", "blkid", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "resize2fs", "xfs_growfs", "btrfs", "thin_dump", "thin_delta"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not among the programs of the source: %v", want, got)
		}
	}
}

func TestImageHasThePrograms(t *testing.T) {
	rootfs := filepath.Join(built(t), "root")
	for _, name := range programs(t) {
		at := ""
		for _, dir := range []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"} {
			if info, err := os.Stat(filepath.Join(rootfs, dir, name)); err == nil && info.Mode()&0o111 != 0 {
				at = "/" + dir + "/" + name
				break
			}
		}
		if at == "" {
			t.Errorf("%s is not in the image: add its package to the Dockerfile", name)
			continue
		}
		out, err := exec.Command("chroot", rootfs, "ldd", at).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a dynamic executable") || strings.Contains(string(out), "not found") {
			t.Errorf("%s: %v %s", at, err, out)
		}
	}
}

func TestImageIsLabelled(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(built(t), "image.json"))
	if err != nil {
		t.Fatal(err)
	}
	var image struct {
		OCIv1 struct {
			Config struct {
				Entrypoint, Cmd []string
				Labels          map[string]string
			} `json:"config"`
		}
	}
	if err := json.Unmarshal(text, &image); err != nil {
		t.Fatal(err)
	}
	c := image.OCIv1.Config
	for _, key := range []string{"title", "description", "source", "documentation", "licenses", "version", "revision"} {
		if c.Labels["org.opencontainers.image."+key] == "" {
			t.Errorf("no label %s in %v", key, c.Labels)
		}
	}
	if !slices.Equal(c.Entrypoint, []string{"/usr/local/bin/csi-local-lvm"}) || !slices.Equal(c.Cmd, []string{"serve"}) {
		t.Errorf("starts %v %v", c.Entrypoint, c.Cmd)
	}
	out, err := exec.Command("chroot", filepath.Join(built(t), "root"), c.Entrypoint[0], "version").CombinedOutput()
	if want := c.Labels["org.opencontainers.image.version"]; err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("version: %v %q, want %q", err, out, want)
	}
}

// Nobody but root can change what is in the image, and nothing in it gives rights away but what Debian's own packages have.
func TestImageIsNotWritable(t *testing.T) {
	rootfs := filepath.Join(built(t), "root")
	for _, top := range []string{"usr", "etc"} {
		err := filepath.WalkDir(filepath.Join(rootfs, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err == nil && info.Mode().Type() != fs.ModeSymlink && info.Mode().Perm()&0o002 != 0 {
				t.Errorf("%s: %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The image starts as the DaemonSet starts it: its arguments, its folders, and a root that cannot be written to. LVM answers there.
func TestImageServes(t *testing.T) {
	rootfs, host := filepath.Join(built(t), "root"), t.TempDir()
	c := container(t, "driver", "driver.stateDir=/var/lib/csi-local-lvm")
	script := "set -e; mount --bind " + rootfs + " " + rootfs + "\n"
	for _, m := range c.VolumeMounts {
		from := filepath.Join(host, m.Name)
		if slices.Contains([]string{"dev", "cgroup", "modules"}, m.Name) {
			from = m.MountPath
		}
		for _, dir := range []string{from, filepath.Join(rootfs, m.MountPath)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if m.Name != "cgroup" { // not every machine has it; it lies in /sys
			script += "mount --bind " + from + " " + filepath.Join(rootfs, m.MountPath) + "\n"
		}
	}
	script += "mount -t proc proc " + rootfs + "/proc; mount --rbind /sys " + rootfs + "/sys; mount -o remount,bind,ro " + rootfs + "\n" +
		"! touch " + rootfs + "/written 2>/dev/null\n" +
		"exec chroot " + rootfs + ` /usr/local/bin/csi-local-lvm "$@"`
	args := slices.Clone(c.Args)
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "$(NODE_NAME)", "n")
	}
	var log strings.Builder
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "bash", "-c", script, "bash"}, args...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	conn, err := grpc.NewClient("unix://"+filepath.Join(host, "plugin-dir/csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	identity := csi.NewIdentityClient(conn)
	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.GetName() != "local-lvm.csi.internal" || info.GetVendorVersion() == "" {
		t.Errorf("GetPluginInfo: %v %v", info, err)
	}
	// Not FAILED_PRECONDITION, which it would be without LVM. Ready it is where there is a volume group "data".
	if _, err := identity.Probe(ctx, &csi.ProbeRequest{}); err != nil {
		t.Errorf("Probe: %v", err)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ends with %v", err)
		}
	case <-time.After(40 * time.Second):
		t.Error("does not end on SIGTERM")
		_ = cmd.Process.Kill()
		<-ended
	}
	if t.Failed() {
		t.Log(log.String())
	}
}

func TestOtherArchitecture(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(built(t), "other/out/csi-local-lvm"))
	if err != nil {
		t.Fatal(err)
	}
	// elf(5): e_machine, EM_AARCH64
	if string(text[:4]) != "\x7fELF" || text[18] != 183 {
		t.Errorf("not a program of arm64: % x", text[:20])
	}
}
