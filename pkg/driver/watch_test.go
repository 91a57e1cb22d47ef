package driver

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/metrics"
	state "github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// freeAddress gives an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// page gives the metrics; "" while they are not served.
func page(t *testing.T, address string) string {
	t.Helper()
	return get(t, "http://"+address+"/metrics")
}

// get gives a page; "" where there is none.
func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// pageWith waits until the metrics have the text.
func pageWith(t *testing.T, address, text string) string {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; <-time.Tick(5 * time.Millisecond) {
		got := page(t, address)
		if strings.Contains(got, text) {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("no %s in\n%s", text, got)
		}
	}
}

// The number of a call leads from its error to its time. A scrape, and the question what the driver is at, are answered while LVM hangs.
func TestMetricsAndState(t *testing.T) {
	cfg, m := shortConfig(t), newMachine()
	cfg.MetricsAddress = freeAddress(t)
	conn, _ := start(t, cfg, over(m, cfg))
	_, err := csi.NewNodeClient(conn).NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "x"})
	number := regexp.MustCompile(`\(request ([0-9a-f]{8})\)$`).FindStringSubmatch(status.Convert(err).Message())
	if status.Code(err) != codes.InvalidArgument || number == nil {
		t.Fatal(err)
	}
	pageWith(t, cfg.MetricsAddress, `volume_group_size_bytes{vg="data"} 1.073741824e+09`)
	pageWith(t, cfg.MetricsAddress, `# {request="`+number[1]+`"}`)

	for path, want := range map[string]string{"/": "<title>" + cfg.NodeName, "/debug/pprof/": "404"} {
		if got := get(t, "http://"+cfg.MetricsAddress+path); !strings.Contains(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}

	m.FailReads("data", nil) // as if it had changed, so that the next question asks LVM
	_, release := m.Block("fullreport")
	defer release()
	start := time.Now()
	for range 20 {
		if page(t, cfg.MetricsAddress) == "" {
			t.Fatal("no answer")
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("20 scrapes took %s", took)
	}
	live, err := state.AskDriver(t.Context(), cfg.StateDir)
	if err != nil || live.NodeName != cfg.NodeName || live.DriverName != cfg.DriverName || live.VolumeGroups[0] != "data" {
		t.Errorf("%+v %v", live, err)
	}
}

// Volumes do not wait for a port.
func TestTakenMetricsAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := shortConfig(t)
	cfg.MetricsAddress = l.Addr().String()
	if conn, _ := start(t, cfg, over(newMachine(), cfg)); !ready(t, conn) {
		t.Error("not ready")
	}
}

// What is wrong is logged once, and once when it is not any more.
func TestConditionsAreLoggedOnce(t *testing.T) {
	cfg, m := shortConfig(t), newMachine()
	ref := volume.Ref{VG: "data", LV: "pvc-1"}
	m.AddLV(ref, volume.Layout{Type: volume.Linear}, 4<<20, volume.OwnerTag(cfg.DriverName), volume.KindTag(volume.Persistent))
	m.EditLV(ref, func(s *fake.State) { s.Active = true })
	b := over(m, cfg)
	d, err := New(cfg, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	store, err := journal.Open(t.Context(), t.TempDir(), "node-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	w := &watcher{metrics: metrics.New("v1"), collector: state.New(d.sources(health.New(b.LVM, b.Mounts, b.Paths.Resolve), store,
		func(context.Context) *state.Live { return &state.Live{} }))}
	for _, suspended := range []bool{false, true, true, true, false, false} {
		m.EditLV(ref, func(s *fake.State) { s.Suspended = suspended })
		w.look(ctx)
	}
	for _, want := range []string{`"something is wrong"`, `"something is no longer wrong"`} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%s: %d times in\n%s", want, n, &log)
		}
	}
	for _, want := range []string{`volume="node-1/data/pvc-1"`, `lv="data/pvc-1"`, `reason="DeviceSuspended"`, "dmsetup resume"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, &log)
		}
	}
}

func TestPauseAfter(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{
		{0, 30 * time.Second},
		{300 * time.Millisecond, 30 * time.Second},
		{time.Second, 100 * time.Second},
		{32 * time.Second, 2 * time.Minute}, // storage hangs
	} {
		if got := pauseAfter(c.took, 30*time.Second); got != c.want {
			t.Errorf("after a look of %v it pauses for %v, want %v", c.took, got, c.want)
		}
	}
}
