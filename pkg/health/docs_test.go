package health

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// statusWords are how docs/health.md writes statuses.
var statusWords = map[string]string{"Degraded": "DEGRADED", "Inaccessible": "INACCESSIBLE", "DataLoss": "DATA_LOSS"}

// The table of docs/health.md says of each reason what the rules say: with which statuses it comes, of volumes and of the
// storage, and what to do.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	volumes, storage := map[string][]string{}, map[string][]string{}
	for _, row := range volumeRows {
		note(volumes, row.want, statusWords)
	}
	for _, row := range storageRows {
		note(storage, row.want, map[string]string{"Degraded": "DEGRADED", "Inaccessible": "UNREACHABLE"})
	}
	var documented []Reason
	word := regexp.MustCompile(`[A-Z_]+_?[A-Z]+`)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		reason := strings.Trim(cells[1], " `")
		documented = append(documented, Reason(reason))
		for i, want := range []map[string][]string{volumes, storage} {
			got := word.FindAllString(regexp.MustCompile(`\([^)]*\)`).ReplaceAllString(cells[2+i], ""), -1)
			slices.Sort(got)
			if !slices.Equal(got, want[reason]) {
				t.Errorf("%s: the table has %q, the rules give %q", reason, got, want[reason])
			}
		}
		if remedy := remedies[Reason(reason)]; !strings.HasPrefix(strings.TrimSpace(cells[5]), remedy) {
			t.Errorf("%s: the table says %q, the message %q", reason, cells[5], remedy)
		}
	}
	slices.Sort(documented)
	if !slices.Equal(documented, Reasons()) {
		t.Errorf("the table has\n%q, the code\n%q", documented, Reasons())
	}
}

// note adds the statuses and reasons of a row.
func note(to map[string][]string, row string, words map[string]string) {
	for condition := range strings.SplitSeq(row, ", ") {
		status, reason, ok := strings.Cut(condition, " ")
		if ok && !slices.Contains(to[reason], words[status]) {
			to[reason] = append(to[reason], words[status])
			slices.Sort(to[reason])
		}
	}
}
