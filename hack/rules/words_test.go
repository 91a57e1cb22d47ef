package rules

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// unwanted are words that do not belong in the tree. They are put together from parts, so that this file has none.
var unwanted = []struct {
	what    string
	pattern *regexp.Regexp
}{
	{"a path of the machine it was written on", regexp.MustCompile("(^|[\\s\"'`=(:])/(" + "work|" + "root|home/[a-z]+)/")},
	{"a task left open", regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)},
	{"a number of an issue tracker that the reader cannot know", regexp.MustCompile(`(?i)\b(see|fix(es|ed)?|close[sd]?|our)? ?` + `issue #?[0-9]+\b`)},
}

func TestNoUnwantedWords(t *testing.T) {
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); name == ".git" || name == ".cache" || name == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.IndexByte(content, 0) >= 0 {
			return nil // not text
		}
		for number, line := range bytes.Split(content, []byte("\n")) {
			for _, u := range unwanted {
				if found := u.pattern.Find(line); found != nil {
					t.Errorf("%s:%d: %q: %s", path, number+1, found, u.what)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnwantedWordsAreFound(t *testing.T) {
	for _, line := range []string{`cd /` + `root/x`, `"/` + `work/main"`, `// TO` + `DO: later`, `as in is` + `sue 12`} {
		found := false
		for _, u := range unwanted {
			found = found || u.pattern.MatchString(line)
		}
		if !found {
			t.Errorf("%q passes", line)
		}
	}
	for _, line := range []string{`/var/lib/kubelet/root/x`, `kubernetes/kubernetes#110163`, `HOME=/root`} {
		for _, u := range unwanted {
			if u.pattern.MatchString(line) {
				t.Errorf("%q does not pass: %s", line, u.what)
			}
		}
	}
}
