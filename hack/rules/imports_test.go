package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/csi-local-lvm/csi-local-lvm/"

// mayImport tells which of our packages each of our packages may import itself, outside its tests. It is the design as
// a table: a new package needs a line here, and a new arrow a reason.
var mayImport = map[string][]string{
	"pkg/volume":     {},
	"pkg/effect":     {},
	"pkg/ask":        {},
	"pkg/sysfs":      {},
	"pkg/run":        {"pkg/effect"},
	"pkg/keylock":    {"pkg/volume"},
	"pkg/journal":    {"pkg/volume", "pkg/effect"},
	"pkg/lvm":        {"pkg/volume", "pkg/run", "pkg/effect", "pkg/ask", "pkg/sysfs"},
	"pkg/mount":      {"pkg/volume", "pkg/run", "pkg/effect", "pkg/ask", "pkg/sysfs"},
	"pkg/health":     {"pkg/volume", "pkg/ask"},
	"pkg/copy":       {"pkg/volume", "pkg/effect"},
	"pkg/status":     {"pkg/volume", "pkg/ask", "pkg/journal", "pkg/health"},
	"pkg/fleet":      {"pkg/run", "pkg/ask", "pkg/status"},
	"pkg/doctor":     {"pkg/volume", "pkg/ask", "pkg/run", "pkg/journal", "pkg/health", "pkg/status", "pkg/fleet"},
	"pkg/show":       {"pkg/volume", "pkg/journal", "pkg/health", "pkg/status", "pkg/doctor"},
	"pkg/metrics":    {"pkg/volume", "pkg/effect", "pkg/journal", "pkg/health", "pkg/status"},
	"pkg/lifecycle":  {"pkg/volume", "pkg/journal", "pkg/keylock"},
	"pkg/adopt":      {"pkg/volume"},
	"pkg/request":    {"pkg/volume", "pkg/health"},
	"pkg/controller": {"pkg/volume", "pkg/lifecycle", "pkg/request", "pkg/health"},
	"pkg/node":       {"pkg/volume", "pkg/lifecycle", "pkg/request", "pkg/health"},
	"pkg/rpc":        {"pkg/volume", "pkg/keylock"},
	"pkg/driver":     {"pkg/*"},
	"pkg/fake":       {"pkg/volume", "pkg/effect", "pkg/keylock", "pkg/journal", "pkg/lifecycle"},
	"cmd/*":          {"pkg/*"},
	"hack/*":         {"pkg/*"},
	"sanity":         {"pkg/*", "sanity/*"},
	"sanity/*":       {"pkg/*", "sanity/*"},
}

// spoken are what only the packages that talk with the container orchestrator may depend on, however indirectly.
var spoken = []string{"github.com/container-storage-interface/spec", "google.golang.org/grpc"}

// speakers are those packages.
var speakers = []string{"pkg/rpc", "pkg/controller", "pkg/node", "pkg/request", "pkg/driver", "cmd/*", "hack/*", "sanity", "sanity/*"}

// notShipped must not be in the driver's binary: Kubernetes' API machinery, and code of tests.
var notShipped = []string{
	"k8s.io/client-go", "k8s.io/api", "k8s.io/apimachinery", "testing",
	"github.com/kubernetes-csi/csi-test", module + "pkg/fake", module + "sanity",
}

// pkg is what "go list -json" tells of a package.
type pkg struct {
	ImportPath string
	Name       string
	Doc        string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

// list runs "go list" from the module's root.
func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Name,Doc,GoFiles,Imports,Deps"}, args...)...)
	cmd.Dir = "../.."
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &complaint)
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// covers reports whether one of the patterns is the name, or "x/*" and the name is below x.
func covers(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		above, found := strings.CutSuffix(pattern, "*")
		return pattern == name || found && strings.HasPrefix(name, above)
	})
}

// under reports whether an import path is one of the roots or below it.
func under(roots []string, path string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return path == root || strings.HasPrefix(path, root+"/") })
}

// breaches lists what in the packages is against the tables above.
func breaches(packages []pkg) []string {
	var found []string
	for _, p := range packages {
		name := strings.TrimPrefix(p.ImportPath, module)
		allowed, known := mayImport[name]
		if !known {
			allowed, known = mayImport[name[:strings.LastIndex(name, "/")+1]+"*"]
		}
		if !known {
			found = append(found, name+" has no line in mayImport: say what it may import")
		}
		for _, other := range p.Imports {
			ours, is := strings.CutPrefix(other, module)
			if is && !covers(allowed, ours) {
				found = append(found, fmt.Sprintf("%s imports %s", name, ours))
			}
		}
		for _, dep := range p.Deps {
			if under(spoken, dep) && !covers(speakers, name) {
				found = append(found, fmt.Sprintf("%s depends on %s", name, dep))
			}
			if strings.HasPrefix(name, "cmd/") && under(notShipped, dep) {
				found = append(found, fmt.Sprintf("%s would ship %s", name, dep))
			}
		}
	}
	return found
}

func TestImportDirections(t *testing.T) {
	for _, b := range breaches(list(t, "./...")) {
		t.Error(b)
	}
}

func TestBreachesAreFound(t *testing.T) {
	for _, c := range []struct {
		name string
		pkg  pkg
		want string
	}{
		{"upwards", pkg{ImportPath: module + "pkg/volume", Imports: []string{module + "pkg/lvm"}}, "pkg/volume imports pkg/lvm"},
		{"sideways", pkg{ImportPath: module + "pkg/lvm", Imports: []string{"os", module + "pkg/mount"}}, "pkg/lvm imports pkg/mount"},
		{"unknown", pkg{ImportPath: module + "pkg/new"}, "pkg/new has no line in mayImport: say what it may import"},
		{"gRPC below", pkg{ImportPath: module + "pkg/mount", Deps: []string{"google.golang.org/grpc/codes"}}, "pkg/mount depends on google.golang.org/grpc/codes"},
		{"client-go", pkg{ImportPath: module + "cmd/csi-local-lvm", Deps: []string{"k8s.io/client-go/rest"}}, "cmd/csi-local-lvm would ship k8s.io/client-go/rest"},
		{"fake", pkg{ImportPath: module + "cmd/csi-local-lvm", Deps: []string{module + "pkg/fake"}}, "cmd/csi-local-lvm would ship " + module + "pkg/fake"},
		{"allowed", pkg{ImportPath: module + "sanity/contract", Imports: []string{module + "pkg/fake"}, Deps: spoken}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join(breaches([]pkg{c.pkg}), "; "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range list(t, "-tags", "vm", "./...") {
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
			if name := p.ImportPath[strings.LastIndex(p.ImportPath, "/")+1:]; strings.HasPrefix(strings.ToLower(p.Doc), strings.ToLower(name)+" ") {
				continue
			}
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: the package comment is %q, it should begin with %q", p.ImportPath, p.Doc, want)
		}
	}
}
