package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// looking are the functions that change nothing outside the process. Every other one of these packages does, or may.
var looking = map[string]string{
	"os": "DirFS Environ Executable Exit Getenv Getpagesize Getpid Geteuid Getuid Getwd Hostname IsExist IsNotExist LookupEnv Lstat NewFile Open " +
		"ReadDir ReadFile Readlink SameFile Stat",
	"golang.org/x/sys/unix": "Access ByteSliceToString Close Faccessat Flock Fsopen FsconfigSetFlag FsconfigSetString Fstat Fstatat Getpid IoctlLoopGetStatus64 Lstat Major Minor " +
		"Mkdev Poll Pread Read Readlink Seek SetNonblock Stat Statfs Statx ClockGettime Uname",
	"syscall": "",
}

// writing are the methods of os.File that change the file.
const writing = "Chmod Chown Sync Truncate Write WriteAt WriteString ReadFrom"

// opening are the flags of open(2) that change something.
const opening = int64(os.O_WRONLY | os.O_RDWR | os.O_CREATE | os.O_TRUNC | os.O_APPEND)

// unseamed are the functions in which something is changed, or may be, without the seam; each with the reason.
var unseamed = map[string]string{
	"pkg/driver lockState":   "comes before all else at the start; the folder and the lock file mean nothing by themselves",
	"pkg/rpc private":        "the socket is made anew at each start",
	"pkg/rpc Remove":         "as private",
	"pkg/rpc clearPath":      "as private",
	"cmd/csi-local-lvm pack": "the file that --bundle names, which must not be there before",
	"pkg/status listen":      "as private",
	"pkg/copy openBlock":     "opens; what is written passes the seam by halves",
	"pkg/lvm Guard":          "a process beside the driver, which changes itself",
	"pkg/copy newBuffers":    "memory of the process",
	"pkg/copy free":          "as newBuffers",
	"pkg/lvm ioctl":          "ioctls that ask; and messages to targets, which pass the seam where they are sent",
	"pkg/lvm descriptor":     "opens the node through which ioctl asks",
	"pkg/mount ioctlAsk":     "ioctls that ask",
}

// Whatever the driver changes outside its memory passes the effect seam, or the fault sweep does not see it: each use of a
// function that changes something lies in what is given to effect.Seam.Do, or in a function that is used only there.
func TestEveryEffectPassesTheSeam(t *testing.T) {
	load := exported(t)
	used := map[string]bool{}
	for _, p := range list(t, "./pkg/...", "./cmd/...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name == "pkg/run" || name == "pkg/effect" || name == "pkg/fake" { // starts programs through the seam; is the seam; changes no machine
			continue
		}
		s := parse(t, p, load)
		for _, found := range s.outside() {
			where := name + " " + found.in.name
			if used[where] = true; unseamed[where] == "" {
				t.Errorf("%s: %s in %s changes something outside of effect.Seam.Do", s.files.Position(found.at), found.what, found.in.name)
			}
		}
	}
	for where := range unseamed {
		if !used[where] {
			t.Errorf("%s changes nothing, and needs no exception", where)
		}
	}
}

// The rule must be able to find what is against it.
func TestUnseamedIsFound(t *testing.T) {
	const head = "package p\nimport (\"context\"; \"os\"; \"github.com/csi-local-lvm/csi-local-lvm/pkg/effect\")\nvar s effect.Seam\nvar ctx = context.Background()\n"
	load := exported(t)
	for source, want := range map[string]string{
		`func f() { _ = os.Remove("x") }`: "Remove in f",
		`func f() { _ = s.Do(ctx, "remove", "x", func() error { return os.Remove("x") }) }`:                        "",
		`func f() { do := func() error { return os.Remove("x") }; _ = s.Do(ctx, "remove", "x", do) }`:              "",
		`func f() { do := func() error { return os.Remove("x") }; _ = do() }`:                                      "Remove in do",
		`func g() error { return os.Remove("x") }; func f() { _ = s.Do(ctx, "remove", "x", g) }`:                   "",
		`func g() error { return os.Remove("x") }; func f() { _ = s.Do(ctx, "remove", "x", g); _ = g() }`:          "Remove in g",
		`func f() { _, _ = os.OpenFile("x", os.O_RDONLY, 0) }`:                                                     "",
		`func f() { _, _ = os.OpenFile("x", os.O_RDONLY|os.O_CREATE, 0) }`:                                         "OpenFile in f",
		`func f(h *os.File) { _ = h.Sync(); _ = h.Close() }`:                                                       "Sync in f",
		`func f(h *os.File) { _ = s.Do(ctx, "fsync", "x", h.Sync) }`:                                               "",
		`func f() { _ = s.Do(ctx, "remove", os.Getenv("x"), nil); _ = os.Mkdir("x", 0) }`:                          "Mkdir in f",
		`type a struct{}; func (a) g() error { return os.Remove("x") }; func f() { _ = s.Do(ctx, "", "", a{}.g) }`: "",
	} {
		file := filepath.Join(t.TempDir(), "p.go")
		if err := os.WriteFile(file, []byte(head+source), 0o600); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, found := range parse(t, pkg{ImportPath: "p", GoFiles: []string{file}}, load).outside() {
			got = append(got, found.what+" in "+found.in.name)
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s: found %q, want %q", source, text, want)
		}
	}
}

// exported gives an importer that reads what the compiler has written about each package.
func exported(t *testing.T) types.Importer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export", "./pkg/...", "./cmd/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(files[path])
	})
}

// source is a package with its types.
type source struct {
	files *token.FileSet
	trees []*ast.File
	types.Info
	units map[types.Object]*unit
}

// unit is a function, or a function literal with a name.
type unit struct {
	name  string
	calls []call // of it, or mentions
}

// call is a use of a unit, or of a function that changes something.
type call struct {
	what   string
	at     token.Pos
	in     *unit
	seamed bool // in an argument of effect.Seam.Do
}

func parse(t *testing.T, p pkg, load types.Importer) *source {
	t.Helper()
	s := &source{files: token.NewFileSet(), units: map[types.Object]*unit{}, Info: types.Info{
		Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{},
	}}
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join("../..", strings.TrimPrefix(p.ImportPath, module), name)
		}
		tree, err := parser.ParseFile(s.files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.trees = append(s.trees, tree)
	}
	if _, err := (&types.Config{Importer: load}).Check(p.ImportPath, s.files, s.trees, &s.Info); err != nil {
		t.Fatal(err)
	}
	return s
}

// outside gives the changes that do not pass the seam.
func (s *source) outside() []call {
	s.each(func(n ast.Node, _ []ast.Node) { s.declare(n) })
	var changes []call
	s.each(func(n ast.Node, above []ast.Node) {
		id, ok := n.(*ast.Ident)
		if !ok || assigned(id, above) {
			return
		}
		use := call{what: id.Name, at: id.Pos(), in: s.enclosing(above), seamed: s.seamed(above, n)}
		if u := s.units[s.Uses[id]]; u != nil {
			u.calls = append(u.calls, use)
		} else if s.changes(id, above) {
			changes = append(changes, use)
		}
	})
	return slices.DeleteFunc(changes, func(c call) bool { return c.seamed || c.in.covered(nil) })
}

// covered reports whether all uses of a unit lie in the seam.
func (u *unit) covered(above []*unit) bool {
	if slices.Contains(above, u) { // it calls itself
		return true
	}
	above = append(above, u)
	return len(u.calls) != 0 && !slices.ContainsFunc(u.calls, func(c call) bool { return !c.seamed && !c.in.covered(above) })
}

func (s *source) each(visit func(n ast.Node, above []ast.Node)) {
	for _, tree := range s.trees {
		var above []ast.Node
		ast.Inspect(tree, func(n ast.Node) bool {
			if n == nil {
				above = above[:len(above)-1]
				return true
			}
			visit(n, above)
			above = append(above, n)
			return true
		})
	}
}

// named gives the identifiers that stand for functions in a node, beside these functions.
func named(n ast.Node) (ids []*ast.Ident, of []ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}, []ast.Node{n}
	case *ast.AssignStmt:
		for i := range n.Lhs {
			id, isID := n.Lhs[i].(*ast.Ident)
			if i >= len(n.Rhs) || !isID {
				continue
			}
			if lit, ok := n.Rhs[i].(*ast.FuncLit); ok {
				ids, of = append(ids, id), append(of, lit)
			}
		}
	}
	return ids, of
}

// assigned reports whether a value is given to the identifier.
func assigned(id *ast.Ident, above []ast.Node) bool {
	a, ok := above[len(above)-1].(*ast.AssignStmt)
	return ok && slices.Contains(a.Lhs, ast.Expr(id))
}

func (s *source) declare(n ast.Node) {
	ids, _ := named(n)
	for _, id := range ids {
		if o := s.Defs[id]; o != nil {
			s.units[o] = &unit{name: id.Name}
		}
	}
}

// enclosing gives the innermost unit; a variable that is assigned a second function is the same one.
func (s *source) enclosing(above []ast.Node) *unit {
	for i := len(above) - 1; i >= 0; i-- {
		ids, of := named(above[i])
		for j, n := range of {
			if n != above[i] && (i+1 >= len(above) || n != above[i+1]) {
				continue
			}
			o := s.Defs[ids[j]]
			if o == nil {
				o = s.Uses[ids[j]]
			}
			if u := s.units[o]; u != nil {
				return u
			}
		}
	}
	return &unit{name: "a variable"}
}

// seamed reports whether the node lies in the last argument of effect.Seam.Do.
func (s *source) seamed(above []ast.Node, n ast.Node) bool {
	path := append(slices.Clone(above), n)
	for i, a := range path[:len(path)-1] {
		c, ok := a.(*ast.CallExpr)
		if !ok || len(c.Args) == 0 || path[i+1] != c.Args[len(c.Args)-1] {
			continue
		}
		sel, ok := c.Fun.(*ast.SelectorExpr)
		if !ok {
			continue
		}
		if f, ok := s.Uses[sel.Sel].(*types.Func); ok && f.FullName() == "("+module+"pkg/effect.Seam).Do" {
			return true
		}
	}
	return false
}

// changes reports whether the identifier is a function that changes something outside the process.
func (s *source) changes(id *ast.Ident, above []ast.Node) bool {
	f, ok := s.Uses[id].(*types.Func)
	if !ok || f.Pkg() == nil {
		return false
	}
	words, watched := looking[f.Pkg().Path()]
	switch {
	case !watched:
		return false
	case f.Signature().Recv() != nil:
		return f.Pkg().Path() == "os" && slices.Contains(strings.Fields(writing), id.Name)
	case id.Name == "OpenFile", id.Name == "Openat", id.Name == "Open" && words != looking["os"]:
		return s.opensToWrite(above)
	}
	return !slices.Contains(strings.Fields(words), id.Name)
}

// opensToWrite looks at the flags of the innermost call: the last but one argument.
func (s *source) opensToWrite(above []ast.Node) bool {
	for i := len(above) - 1; i >= 0; i-- {
		if c, ok := above[i].(*ast.CallExpr); ok && len(c.Args) >= 2 {
			v := s.Types[c.Args[len(c.Args)-2]].Value
			if v == nil {
				return true
			}
			flags, known := constant.Int64Val(constant.ToInt(v))
			return !known || flags&opening != 0
		}
	}
	return true
}
