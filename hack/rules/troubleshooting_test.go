package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	verb    = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)
	message = regexp.MustCompile("`([^`]+)`")
)

// Each message that docs/troubleshooting.md says the driver gives is one of the driver's: in each table under "the driver says", what stands
// in code in the first column, with … for what differs.
func TestTroubleshootingQuotesTheDriver(t *testing.T) {
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := messages(t)
	quoted, inTable := 0, false
	for number, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "| the driver says |"):
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			for _, m := range message.FindAllStringSubmatch(strings.SplitN(line, "|", 3)[1], -1) {
				quoted++
				if !said(texts, m[1]) {
					t.Errorf("docs/troubleshooting.md:%d: the driver never says %q", number+1, m[1])
				}
			}
		}
	}
	if quoted < 40 {
		t.Errorf("only %d messages are quoted; are the tables read?", quoted)
	}
}

// said reports whether a text of the driver holds the pieces between the …, in their order. The texts are joined where the source joins them.
func said(texts []string, quote string) bool {
	pieces := strings.Split(quote, "…")
	for _, text := range texts {
		at, ok := 0, true
		for _, piece := range pieces {
			i := strings.Index(text[at:], piece)
			if i < 0 {
				ok = false
				break
			}
			at += i + len(piece)
		}
		if ok {
			return true
		}
	}
	return false
}

// messages gives the string literals of the driver, without their verbs. Literals that are added together are one. The error classes stand where %w stands
// before or behind them, so these are written out where the message begins with one.
func messages(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("../../pkg", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		tree, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text := added(e)
			if text == "" {
				return true
			}
			for _, class := range []string{"", "in use"} {
				all = append(all, verb.ReplaceAllString(strings.ReplaceAll(text, "%w", class), "…"))
			}
			return false
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// added gives the text of a literal, or of several that are added; "" for what is none.
func added(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, _ := strconv.Unquote(e.Value)
			return s
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return added(e.X) + added(e.Y)
		}
	}
	return ""
}

func TestUnsaidIsFound(t *testing.T) {
	texts := []string{"volume … is on node …; send it there"}
	for quote, want := range map[string]bool{
		"volume … is on node …; send it there": true, "is on node": true, "send it … is on": false, "volume … is lost": false,
	} {
		if got := said(texts, quote); got != want {
			t.Errorf("%q: %v", quote, got)
		}
	}
}
