package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// full has something of everything.
func full() *Metrics {
	m := New("v1")
	m.Call("NodePublishVolume", "OK", 20*time.Millisecond, "1a2b3c4d")
	m.Program("lvm", []string{"lvcreate", "-n", "x"}, time.Second, nil)
	m.Program("/sbin/mkfs.ext4", nil, time.Second, errors.New("no"))
	m.InUse([]volume.Holder{{PID: 7}, {Command: "device dm-7"}})
	m.InUse(nil)
	m.OrphanRemoved()
	_ = m.Journal(nil).Do(context.Background(), "fsync", "/x", func() error { return errors.New("I/O error") })
	half := 0.5
	m.Show(&status.Report{
		Time: time.Unix(1700000000, 0), Unknown: []string{"x"}, Problems: []string{"torn"},
		Groups: []status.Group{{Name: "data", SizeBytes: 100, FreeBytes: 40, Missing: 1, Pools: []status.Pool{{Name: "pool", SizeBytes: 10, VirtualBytes: 20, Data: &half, Metadata: &half}}}},
		Volumes: []status.Volume{
			{VG: "data", Kind: volume.Persistent, Boundary: status.Published, SizeBytes: 7, Conditions: []status.Condition{{Status: "degraded", Reason: "RaidDegraded"}, {Status: "inaccessible", Reason: "RaidDegraded"}}},
			{VG: "data", Kind: volume.Persistent, Boundary: status.Published, SizeBytes: 8},
		},
		Storage: []status.Condition{{Reason: "DiskMissing"}},
		Pending: []status.Pending{{Intent: journal.Reclaim, Since: time.Now().Add(-time.Hour)}, {Intent: journal.Reclaim, Since: time.Now()}},
		Driver:  &status.Live{Orphans: []status.Orphan{{}}, Copies: []status.Copy{{Done: 1, Of: 5}}},
	})
	return m
}

func scrape(t *testing.T, m *Metrics, accept string) string {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	m.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestScrape(t *testing.T) {
	page := scrape(t, full(), "text/plain")
	for _, want := range []string{
		`call_duration_seconds_count{code="OK",method="NodePublishVolume"} 1`,
		`command_duration_seconds_count{command="lvcreate",outcome="ok"} 1`,
		`command_duration_seconds_count{command="mkfs.ext4",outcome="failed"} 1`,
		`journal_errors_total{operation="fsync"} 1`,
		`journal_errors_total{operation="write"} 0`,
		`holders_seen_total{kind="process"} 1`,
		`holders_seen_total{kind="other"} 1`,
		`holders_seen_total{kind="none"} 1`,
		`orphans_removed_total 1`,
		`facts_timestamp_seconds 1.7e+09`,
		`facts_unknown 1`,
		`ready 1`,
		`volume_group_size_bytes{vg="data"} 100`,
		`volume_group_free_bytes{vg="data"} 40`,
		`volume_group_missing_disks{vg="data"} 1`,
		`thin_pool_virtual_bytes{pool="pool",vg="data"} 20`,
		`thin_pool_data_used_ratio{pool="pool",vg="data"} 0.5`,
		`volumes{boundary="published",kind="persistent",vg="data"} 2`,
		`volumes{boundary="published",kind="inline",vg="data"} 0`,
		`volumes_size_bytes{kind="persistent",vg="data"} 15`,
		`health_conditions{reason="RaidDegraded",scope="volume"} 1`,
		`health_conditions{reason="DiskMissing",scope="storage"} 1`,
		`health_conditions{reason="DiskMissing",scope="volume"} 0`,
		`pending{intent="reclaim"} 2`,
		`pending{intent="modify"} 0`,
		`pending_oldest_age_seconds{intent="reclaim"} 36`,
		`journal_damaged_records 1`,
		`orphans 1`,
		`copies 1`,
		`copies_left_bytes 4`,
		`build_info{goversion="go`,
	} {
		if !strings.Contains(page, "\n"+prefix+want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	if exemplars := scrape(t, full(), "application/openmetrics-text; version=1.0.0"); !strings.Contains(exemplars, `# {request="1a2b3c4d"} 0.02`) {
		t.Errorf("no exemplar in\n%s", exemplars)
	}
}

// Without a report there is nothing to tell of it; zeros would say that there is no volume group.
func TestNothingIsMadeUp(t *testing.T) {
	if page := scrape(t, New("v1"), "text/plain"); strings.Contains(page, prefix+"volume") || !strings.Contains(page, prefix+"build_info") {
		t.Error(page)
	}
}

// The names and units are as Prometheus wants them.
func TestConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(full().registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, prefix) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// The table in docs/metrics.md has each metric, its type, its labels and what it means.
func TestDocs(t *testing.T) {
	families, err := full().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		slices.Sort(labels)
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()))
	}
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `"+prefix) {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/metrics.md has\n%s\n\nit should have\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestJournalErrorsPass(t *testing.T) {
	m := New("v1")
	seen := 0
	seam := m.Journal(func(_ context.Context, _ effect.Effect, do func() error) error { seen++; return do() })
	for _, err := range []error{nil, fs.ErrNotExist, errors.New("disk full")} {
		if got := seam.Do(t.Context(), "remove", "/x", func() error { return err }); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if n := testutil.ToFloat64(m.journal.WithLabelValues("remove")); seen != 3 || n != 1 {
		t.Errorf("%d effects, %v errors", seen, n)
	}
}

// The alerts of the chart name metrics that there are, and each reason of ill health raises one of them, or is in the list below.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../deploy/charts/csi-local-lvm/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("../../hack/alerts/test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page := scrape(t, full(), "text/plain")
	for _, name := range regexp.MustCompile(prefix+`[a-z_]+`).FindAllString(string(text), -1) {
		if !strings.Contains(page, "\n"+name+"{") && !strings.Contains(page, "\n"+name+" ") {
			t.Errorf("no metric %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(string(tests), m[1]) {
			t.Errorf("hack/alerts/test.yaml has no test of %s", m[1])
		}
	}
	quiet := []health.Reason{health.RaidResyncing, health.ThinPoolNearlyFull, health.ThinPoolMetadataNearlyFull} // ends by itself; the ratios have alerts of their own
	for _, reason := range health.Reasons() {
		raised := 0
		for _, m := range regexp.MustCompile(`reason=~"([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			if regexp.MustCompile(`^(?:` + m[1] + `)$`).MatchString(string(reason)) {
				raised++
			}
		}
		if isQuiet := slices.Contains(quiet, reason); isQuiet == (raised == 1) || raised > 1 {
			t.Errorf("%s raises %d alerts", reason, raised)
		}
	}
}

// The dashboard of the chart is JSON, its panels do not lie on each other, and it shows each metric of the driver, and none that is not there.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/charts/csi-local-lvm/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	var shown []string
	taken := map[[2]int]string{}
	for _, p := range board.Panels {
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" || at[0] >= 24 {
					t.Fatalf("%s lies on %q, or outside", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			shown = append(shown, regexp.MustCompile(prefix+`[a-z_]+`).FindAllString(target.Expr, -1)...)
		}
	}
	families, err := full().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), prefix) {
			known = append(known, f.GetName())
		}
	}
	base := func(name string) string {
		return strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
	}
	// What is wrong with them is among the conditions; of copies there is what is left.
	elsewhere := []string{prefix + "thin_pool_size_bytes", prefix + "thin_pool_virtual_bytes", prefix + "volume_group_missing_disks", prefix + "copies"}
	for _, name := range shown {
		if !slices.Contains(known, base(name)) {
			t.Errorf("no metric %s", name)
		}
	}
	for _, name := range known {
		if !slices.ContainsFunc(shown, func(s string) bool { return base(s) == name }) && !slices.Contains(elsewhere, name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}
