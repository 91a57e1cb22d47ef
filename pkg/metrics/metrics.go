// Package metrics tells Prometheus of the driver. What is counted as it happens is counted here; what is, comes from the last report of
// pkg/status. So a scrape asks nobody: it runs no LVM command, touches no disk, and cannot hang. docs/metrics.md has all of it in a table.
package metrics

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const prefix = "csi_local_lvm_"

// buckets are in seconds: from a call that asks memory to one that kubelet has given up.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}

// Metrics counts, and shows what was counted. Safe for use by several goroutines; none of its methods waits.
type Metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	commands *prometheus.HistogramVec
	journal  *prometheus.CounterVec
	holders  *prometheus.CounterVec
	reaped   prometheus.Counter
	report   atomic.Pointer[status.Report]
}

// New gives the metrics of a driver of that version. Until a report is shown, nothing is told that would be in it.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "call_duration_seconds", Buckets: buckets,
			Help: "How long CSI calls took, by method and gRPC code. An exemplar has the number of the request, which is in the log and in the error too."},
			[]string{"method", "code"}),
		commands: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "command_duration_seconds", Buckets: buckets,
			Help: "How long the programs took that the driver ran, LVM's by their verb."}, []string{"command", "outcome"}),
		journal: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "journal_errors_total",
			Help: "What the state folder's disk refused, by operation. Teardowns go on without a durable record, publishes do not begin."}, []string{"operation"}),
		holders: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "holders_seen_total",
			Help: "Who was found to use a volume that was to be taken away, by what it is. none: somebody does, and nobody was found."}, []string{"kind"}),
		reaped: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "orphans_removed_total",
			Help: "Inline volumes that were removed because their pod was gone and nothing used them."}),
	}
	for _, kind := range holderKinds {
		m.holders.WithLabelValues(kind)
	}
	for _, op := range journalOperations {
		m.journal.WithLabelValues(op)
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "build_info", Help: "Always 1; the labels tell which driver this is."}, []string{"version", "goversion"})
	info.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(info, m.calls, m.commands, m.journal, m.holders, m.reaped, &gauges{&m.report},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler answers scrapes. In the format OpenMetrics there are exemplars.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Show makes a report what scrapes tell of from now on. Nobody may change it any more.
func (m *Metrics) Show(r *status.Report) { m.report.Store(r) }

// Last gives the report that is shown; nil: none was yet.
func (m *Metrics) Last() *status.Report { return m.report.Load() }

// Call counts a CSI call. Methods and codes are those of the CSI specification and of gRPC: few.
func (m *Metrics) Call(method, code string, took time.Duration, request string) {
	if o, ok := m.calls.WithLabelValues(method, code).(prometheus.ExemplarObserver); ok {
		o.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"request": request})
	}
}

// Program counts a program that the driver has run. It runs a handful, by fixed names.
func (m *Metrics) Program(name string, args []string, took time.Duration, err error) {
	command, outcome := filepath.Base(name), "ok"
	if command == "lvm" && len(args) != 0 {
		command = args[0]
	}
	if err != nil {
		outcome = "failed"
	}
	m.commands.WithLabelValues(command, outcome).Observe(took.Seconds())
}

// journalOperations are the effects of the journal.
var journalOperations = []string{"fsync", "mkdir", "remove", "rename", "write"}

// Journal gives a seam for the journal that counts what fails on the way to the given one.
func (m *Metrics) Journal(to effect.Seam) effect.Seam {
	return func(ctx context.Context, e effect.Effect, do func() error) error {
		err := to.Do(ctx, e.Op, e.Detail, do)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // what is to be removed may be gone
			m.journal.WithLabelValues(e.Op).Inc()
		}
		return err
	}
}

var holderKinds = []string{"none", "other", "process"}

// InUse counts who was found to use a volume.
func (m *Metrics) InUse(found []volume.Holder) {
	if len(found) == 0 {
		m.holders.WithLabelValues("none").Inc()
	}
	for _, h := range found {
		kind := "other" // a mount, or a device that lies on it
		if h.PID != 0 {
			kind = "process"
		}
		m.holders.WithLabelValues(kind).Inc()
	}
}

// OrphanRemoved counts an orphan that is removed.
func (m *Metrics) OrphanRemoved() { m.reaped.Inc() }
