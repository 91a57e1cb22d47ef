package driver

import (
	"context"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/metrics"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/rpc"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/show"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
)

// watcher looks at everything now and then: for the metrics, and to log what begins to be wrong, and what ends to be.
type watcher struct {
	collector *status.Collector
	metrics   *metrics.Metrics
	every     time.Duration
	standing  status.Standing
}

// lookEvery is how old what the metrics tell is, and how late something is logged. A look at 1,000 volumes takes a part of a second.
// After one that takes longer the pause is lookPause times as long, so that the driver is at rest; but never more than lookMost: where
// storage hangs a look takes long as well, and just then it is waited for. The alert on the age of the facts allows for that.
const (
	lookEvery = 30 * time.Second
	lookPause = 100
	lookMost  = 2 * time.Minute
)

func pauseAfter(took, every time.Duration) time.Duration {
	return max(every, min(lookPause*took, lookMost))
}

// run looks until ctx ends. Without a look at once, the driver is given time for what it was started for.
func (w *watcher) run(ctx context.Context, atOnce bool) {
	for {
		begin := time.Now()
		if atOnce {
			w.look(ctx)
			debug.FreeOSMemory() // what a look took and does not keep: there is none for the next half minute
		}
		atOnce = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(pauseAfter(time.Since(begin), w.every)):
		}
	}
}

func (w *watcher) look(ctx context.Context) {
	r := w.collector.Collect(ctx)
	if ctx.Err() != nil {
		return
	}
	r.Mounts = nil // only doctor looks at them, in a report of its own
	w.metrics.Show(r)
	log := klog.FromContext(ctx)
	for _, c := range w.standing.Next(r) {
		about := []any{"status", c.Status, "reason", c.Reason, "message", c.Message}
		if v := c.Volume; v != nil {
			about = append(about, "volume", v.ID, "lv", v.Ref().String())
			if len(v.Mounts) != 0 {
				about = append(about, "path", v.Mounts[0].Path)
			}
		}
		if c.Begins {
			log.Info("something is wrong", about...)
		} else {
			log.Info("something is no longer wrong", about...)
		}
	}
}

// sources is whom the driver's own reports ask: the same as those of the commands beside it, but for the journal and itself.
func (d *Driver) sources(check *health.Checker, store *journal.Store, live func(context.Context) *status.Live) status.Sources {
	s := sources(d.cfg, d.node, d.backend, check)
	s.Journal = func() ([]journal.Record, []string, error) { return store.All(), store.Problems(), nil }
	s.Live = func(ctx context.Context) (*status.Live, error) { return live(ctx), nil }
	return s
}

// live gives what only this process knows.
func (d *Driver) live(identity *rpc.Identity, life *lifecycle.Lifecycle) func(context.Context) *status.Live {
	since := time.Now()
	return func(ctx context.Context) *status.Live {
		l := &status.Live{
			Version: d.cfg.Version, PID: os.Getpid(), Since: since, NodeName: d.cfg.NodeName, DriverName: d.cfg.DriverName,
			VolumeGroups: d.cfg.VolumeGroups, KubeletDir: d.cfg.KubeletDir, LVMExec: d.cfg.LVMExec,
		}
		ctx, cancel := context.WithTimeout(ctx, liveBound)
		defer cancel()
		if err := identity.Ready(ctx); err != nil {
			l.NotReady = err.Error()
		}
		for _, c := range life.Copies() {
			l.Copies = append(l.Copies, status.Copy{From: c.From.String(), To: c.To.String(), Done: c.Done, Of: c.Of, Started: c.Since})
		}
		for _, p := range d.backend.Programs.Running() {
			l.Programs = append(l.Programs, status.Program{Argv: p.Argv, Started: p.Since})
		}
		for _, u := range life.Unfinished() {
			row := status.Unfinished{VolumeID: u.VolumeID, Tries: u.Tries, Since: u.Since, Error: u.Cause, Busy: u.Busy}
			if !u.Next.IsZero() {
				row.Next = &u.Next
			}
			l.Unfinished = append(l.Unfinished, row)
		}
		for _, o := range life.KnownOrphans() {
			l.Orphans = append(l.Orphans, status.Orphan{VolumeID: o.VolumeID, Since: o.Since, Kept: o.Reported})
		}
		return l
	}
}

// pages are what is served on --metrics-address. All of them can only be read, and none asks anybody.
func (d *Driver) pages(count *metrics.Metrics) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", count.Handler())
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		r := count.Last()
		if r == nil {
			http.Error(w, "the first look at the storage has not ended yet", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_ = show.HTML(w, r) // who has left sees nothing
	})
	if d.cfg.Profiling {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// liveBound is how long whoever asks the driver of itself waits for what LVM says.
const liveBound = 2 * time.Second

// serveMetrics serves HTTP on --metrics-address until ctx ends. An address that is taken is tried again: volumes must not wait for a port.
func (d *Driver) serveMetrics(ctx context.Context, handler http.Handler) {
	log, told := klog.FromContext(ctx), false
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	for ctx.Err() == nil {
		listener, err := net.Listen("tcp", d.cfg.MetricsAddress)
		if err == nil {
			log.Info("serving metrics", "address", listener.Addr().String())
			told = false
			err = server.Serve(listener)
		}
		if ctx.Err() == nil && !told {
			log.Info("metrics are not served; it is tried again", "address", d.cfg.MetricsAddress, "err", err)
			told = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(metricsRetry):
		}
	}
}

const metricsRetry = 5 * time.Second
