//go:build prometheus

package sanity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const chart = "../deploy/charts/csi-local-lvm"

// Every query of the dashboard is answered by a Prometheus that scrapes a driver, and with data. The driver has a volume of each kind, one that
// is ill, a teardown that somebody holds up, calls and programs that fail; so no panel may stay empty. The alert rules are loaded too.
func TestDashboard(t *testing.T) {
	h := newFakeHarness(t).(*fakeHarness)
	h.Start(t)
	c := co{h, t}
	published := func(name string) (id, target string) {
		id, target = c.mustCreate(name, false), h.Target(t, name)
		must(t, c.stage(id, false))
		must(t, c.publish(id, target, false))
		return id, target
	}
	id, target := published("seen")
	held, heldTarget := published("held")
	published("ill")
	_, release := h.Hold(t, "file", heldTarget)
	defer release()
	h.m.Sicken(volume.Ref{VG: fakeVG, LV: "ill"}, func(s *fake.Sickness) { s.ForcedReadOnly = true })
	pool := volume.Ref{VG: fakeVG, LV: fakePool}
	h.m.Sicken(pool, func(s *fake.Sickness) {
		s.Devices.Pools = []volume.PoolStatus{{Device: volume.DMName(pool) + "-tpool", UsedData: 3, Data: 4, UsedMetadata: 1, Metadata: 8}}
	})
	h.Stop(t)

	metrics := freeAddress(t)
	h.reconfigure = func(c *driver.Config) { c.MetricsAddress = metrics }
	h.programs = &run.Watch{}
	h.Start(t)
	p := startPrometheus(t, time.Second, map[string]string{"node-1": metrics})
	busy := func() { // one call and one program that succeed, and one of each that fails
		must(t, c.publish(id, target, false))
		c.code(c.unpublish(t.Context(), held, heldTarget), codes.Aborted)
		r := run.Local{Watch: h.programs}
		_, _ = r.Read(t.Context(), "true")
		_, _ = r.Read(t.Context(), "false")
	}

	board := readDashboard(t)
	for end := time.Now().Add(bound); ; {
		busy()
		empty := p.empty(board)
		if len(empty) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("without data: %q", empty)
		}
		<-time.After(200 * time.Millisecond)
	}
	var nodes []string
	p.ask("label/instance/values", url.Values{"match[]": {"csi_local_lvm_build_info"}}, &nodes)
	if len(nodes) != 1 {
		t.Errorf("to choose from there are the nodes %q", nodes)
	}
	p.wantRules()
}

// dashboard is what of Grafana's dashboard.json is a question.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "dashboard.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &d))
	if len(d.Panels) == 0 {
		t.Fatal("no panels")
	}
	return d
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// prometheus is a Prometheus that scrapes drivers.
type prometheus struct {
	t       *testing.T
	address string
}

// startPrometheus starts one that scrapes these addresses so often, by the names of their nodes.
func startPrometheus(t *testing.T, every time.Duration, scraped map[string]string) *prometheus {
	t.Helper()
	rules, err := filepath.Abs(filepath.Join(chart, "alerts.yaml"))
	must(t, err)
	dir, address := t.TempDir(), freeAddress(t)
	config := filepath.Join(dir, "prometheus.yaml")
	var targets []string
	for node, at := range scraped {
		targets = append(targets, fmt.Sprintf("{targets: [%q], labels: {instance: %q}}", at, node))
	}
	must(t, os.WriteFile(config, fmt.Appendf(nil, `global: {scrape_interval: %s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs: [{job_name: csi-local-lvm, static_configs: [%s]}]
`, every, rules, strings.Join(targets, ", ")), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "../hack/prometheus", "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("Prometheus: %s", &log)
		}
	})
	p := &prometheus{t, "http://" + address}
	for end := time.Now().Add(bound); ; {
		resp, err := http.Get(p.address + "/-/ready")
		if err == nil {
			must(t, resp.Body.Close())
			if resp.StatusCode == http.StatusOK {
				return p
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("Prometheus ended: %v\n%s", err, &log)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("Prometheus does not become ready")
		}
	}
}

// ask gives the data of an answer of the API (prometheus.io/docs/prometheus/latest/querying/api).
func (p *prometheus) ask(path string, query url.Values, data any) {
	p.t.Helper()
	resp, err := http.Get(p.address + "/api/v1/" + path + "?" + query.Encode())
	must(p.t, err)
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	must(p.t, json.NewDecoder(resp.Body).Decode(&answer))
	if answer.Status != "success" {
		p.t.Fatalf("%s %v: %s", path, query, answer.Error)
	}
}

// variables are what Grafana would put into a query: all nodes, and four times the interval of scraping.
var variables = strings.NewReplacer("$node", ".*", "$__rate_interval", "4s")

var legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)

// empty runs all queries of the dashboard, and gives those that have no number yet. One that is refused, or whose legend names a label that there
// is not, fails the test.
func (p *prometheus) empty(board dashboard) (out []string) {
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr := variables.Replace(target.Expr)
			if strings.Contains(expr, "$") {
				p.t.Fatalf("%s: a variable that is not known here: %s", panel.Title, expr)
			}
			now := time.Now()
			unix := func(t time.Time) string { return fmt.Sprintf("%.3f", float64(t.UnixMilli())/1000) }
			var is struct {
				Result []struct {
					Metric map[string]string
					Values [][2]any
				}
			}
			p.ask("query_range", url.Values{"query": {expr}, "start": {unix(now.Add(-10 * time.Second))}, "end": {unix(now)}, "step": {"1"}}, &is)
			numbers := 0
			for _, series := range is.Result {
				for _, v := range series.Values {
					if v[1] != "NaN" {
						numbers++
					}
				}
				for _, label := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
					if series.Metric[label[1]] == "" {
						p.t.Fatalf("%s: no label %s in %v", panel.Title, label[1], slices.Sorted(maps.Keys(series.Metric)))
					}
				}
			}
			if numbers == 0 {
				out = append(out, panel.Title+": "+target.Expr)
			}
		}
	}
	return out
}

// wantRules wants each alert rule to be evaluated without an error.
func (p *prometheus) wantRules() {
	p.t.Helper()
	for end := time.Now().Add(bound); ; <-time.After(200 * time.Millisecond) {
		var is struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		p.ask("rules", nil, &is)
		all, fine := 0, 0
		for _, g := range is.Groups {
			for _, r := range g.Rules {
				if all++; r.Health == "ok" {
					fine++
				}
				if r.LastError != "" {
					p.t.Fatalf("%s: %s", r.Name, r.LastError)
				}
			}
		}
		if all != 0 && fine == all {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%d of %d alert rules were evaluated", fine, all)
		}
	}
}
