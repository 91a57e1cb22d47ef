//go:build prometheus

package sanity

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/fake"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/lifecycle"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

// drawn is where "make picture" draws, and picture where it goes if it is good.
const drawn, picture = "../bin/dashboard.png", "../docs/dashboard.png"

// shown is how much time the picture shows.
const shown = 5 * time.Minute

// scraping is how often the drivers are scraped: so often that there are enough points for lines.
const scraping = 2 * time.Second

// firstLook is when what a driver's first look has found out is scraped.
const firstLook = 35 * time.Second

// The dashboard is drawn by Grafana's components, with what a Prometheus has scraped of three drivers that were kept busy, and none of its panels
// is empty or fails.
func TestPicture(t *testing.T) {
	folder, scraped := standIns(t), map[string]string{}
	start := func(name string) *pictured {
		n := startPictured(t, name, folder)
		scraped[name] = n.metrics
		return n
	}
	one, two, three := start("node-1"), start("node-2"), start("node-3")
	one.events = []happening{
		{0, one.pool(81, 12)},
		{30 * time.Second, one.copied("base", 2<<30)},
		{80 * time.Second, one.hold("held", 100*time.Second)},
		{100 * time.Second, one.copied("data", 1<<30)},
		{150 * time.Second, one.pool(87, 13)},
		{280 * time.Second, one.hold("held-again", time.Hour)},
	}
	two.events = []happening{
		{0, two.pool(52, 8)},
		{0, func() { two.h.MakeLV(t, volume.Ref{VG: "fast", LV: "by-hand"}, 7<<30+512<<20) }},
		{60 * time.Second, two.copied("base", 1<<30)},
		{140 * time.Second, two.hold("held", 60*time.Second)},
		{200 * time.Second, func() { two.h.Arm(t, contract.Fault{Each: two.Journal(), Do: contract.FailBefore}) }},
		{206 * time.Second, func() { two.h.Arm(t, contract.Fault{}) }},
		{210 * time.Second, func() { two.h.m.LosePV("fast", "/dev/fast1") }},
	}
	three.events = []happening{
		{0, three.pool(31, 4)},
		{120 * time.Second, three.ill},
		{180 * time.Second, three.copied("base", 1<<30)},
	}
	p := startPrometheus(t, scraping, scraped)
	// The picture begins when each driver has looked at its machine for the first time. The load grows.
	begun := time.Now()
	for at := time.Duration(0); at < firstLook+shown; at = time.Since(begun) {
		for _, n := range []*pictured{one, two, three} {
			n.live(at)
		}
		<-time.After((firstLook + shown - at) / 500)
	}
	p.draw(begun.Add(firstLook), time.Now(), scraping)
}

// draw draws the dashboard as it was between two times, by what was scraped so often.
func (p *prometheus) draw(from, to time.Time, every time.Duration) {
	p.t.Helper()
	board := filepath.Join(chart, "dashboard.json")
	must(p.t, os.MkdirAll(filepath.Dir(drawn), 0o750))
	out, err := exec.CommandContext(p.t.Context(), "../hack/dashboard/draw", board, p.address,
		strconv.FormatInt(from.UnixMilli(), 10), strconv.FormatInt(to.UnixMilli(), 10), strconv.FormatInt(every.Milliseconds(), 10), drawn).CombinedOutput()
	if err != nil {
		p.t.Fatalf("%v; look at %s\n%s", err, drawn, out)
	}
	text, err := os.ReadFile(board)
	must(p.t, err)
	png, err := os.ReadFile(drawn)
	must(p.t, err)
	must(p.t, os.WriteFile(picture, stamped(png, fmt.Sprintf("dashboard.json\x00%x", sha256.Sum256(text))), 0o644))
}

// stamped gives a PNG a chunk of text, after its first, which is 25 bytes long (PNG, second edition, 5 and 11.3.4.3). So a test can tell which
// dashboard the picture shows.
func stamped(png []byte, text string) []byte {
	const at = 8 + 25
	chunk := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
	chunk = append(chunk, "tEXt"+text...)
	chunk = binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(chunk[4:]))
	return slices.Insert(png, at, chunk...)
}

// standIns makes programs that do nothing but take their time: a machine in memory runs none.
func standIns(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	script := `#!/bin/bash
case "${0##*/} $*" in
*lvcreate*) sleep 0.$((RANDOM % 15 + 10));;
*lvremove* | *mkfs*) sleep 0.0$((RANDOM % 50 + 40));;
*) sleep 0.0$((RANDOM % 40 + 10));;
esac
[[ $* != *fails ]]
`
	must(t, os.WriteFile(filepath.Join(folder, "any"), []byte(script), 0o700))
	return folder
}

// pictured is a node of the picture: a machine in memory, its driver, and a life that keeps it busy.
type pictured struct {
	co
	h        *fakeHarness
	metrics  string
	programs run.Local
	folder   string // of the stand-ins
	turn     int
	pods     []string    // of inline volumes
	kept     []string    // volumes that stay
	events   []happening // what is still to happen
}

// happening is something that happens once, so long after the beginning.
type happening struct {
	after time.Duration
	do    func()
}

func startPictured(t *testing.T, name, folder string) *pictured {
	h := newFakeHarness(t).(*fakeHarness)
	n := &pictured{co: co{h, t}, h: h, metrics: freeAddress(t), folder: folder}
	h.m.AddGroup("fast", 4<<20, 4<<30, 4<<30)
	h.timing, h.programs, h.before = &lifecycle.Timing{}, &run.Watch{}, n.before
	n.programs.Watch = h.programs
	h.reconfigure = func(c *driver.Config) {
		c.NodeName, c.MetricsAddress, c.VolumeGroups = name, n.metrics, []string{fakeVG, "fast"}
	}
	h.Start(t)
	return n
}

// before lets an effect take as long as it might on a disk.
func (n *pictured) before(e effect.Effect) {
	switch e.Op {
	case "run":
		argv := strings.Fields(e.Detail)
		n.program(argv[0], argv[1:]...)
	case "copy":
		<-time.After(25 * time.Second)
	case "mount", "unmount":
		<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
}

func (n *pictured) program(name string, args ...string) {
	path := filepath.Join(n.folder, filepath.Base(name))
	_ = os.Symlink("any", path) // it may be there
	_, _ = n.programs.Read(context.Background(), path, args...)
}

// live is a turn of the node's life, so long after its beginning: pods come and go, and some stay. Calls may fail: that is to be seen.
func (n *pictured) live(at time.Duration) {
	for len(n.events) != 0 && n.events[0].after <= at {
		n.events[0].do()
		n.events = n.events[1:]
	}
	n.turn++
	ctx := n.t.Context()
	pod := fmt.Sprintf("pod-%d", n.turn)
	if id, err := n.create(ctx, pod, false); err == nil {
		target := n.Target(n.t, pod)
		_, _ = n.stage(id, false), n.publish(id, target, false)
		_, _ = n.Node().NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
		if n.turn%5 == 0 {
			n.kept = append(n.kept, id)
		} else {
			_, _, _ = n.unpublish(ctx, id, target), n.unstage(id), n.delete(id)
		}
	}
	n.program("lvm", "fullreport")
	if n.turn%9 == 0 {
		n.program("lvm", "lvextend", "fails")
	}
	switch rand.IntN(4) {
	case 0:
		_ = n.publishInline("inline-" + pod)
		n.pods = append(n.pods, "inline-"+pod)
	case 1:
		_, _ = n.Controller().GetCapacity(ctx, &csi.GetCapacityRequest{})
	case 2:
		if len(n.kept) != 0 {
			_, _ = n.Controller().ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: n.kept[len(n.kept)-1], CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
				VolumeCapability: capabilityOf(false)})
		}
	case 3:
		if len(n.pods) > 6 {
			_ = n.unpublishInline(n.pods[0])
			n.pods = n.pods[1:]
		}
	}
}

// pool makes the thin pool so full, in percent.
func (n *pictured) pool(data, metadata int64) func() {
	pool := volume.Ref{VG: fakeVG, LV: fakePool}
	return func() {
		n.h.m.Sicken(pool, func(s *fake.Sickness) {
			s.Devices.Pools = []volume.PoolStatus{{Device: volume.DMName(pool) + "-tpool", UsedData: data, Data: 100, UsedMetadata: metadata, Metadata: 100}}
		})
	}
}

// hold makes a volume whose teardown somebody holds up for so long, and asks for it until it is done.
func (n *pictured) hold(name string, long time.Duration) func() {
	return func() {
		id, target := n.mustCreate(name, false), n.Target(n.t, name)
		must(n.t, n.stage(id, false))
		must(n.t, n.publish(id, target, false))
		_, release := n.h.Hold(n.t, "file", target)
		time.AfterFunc(long, release)
		ctx := n.t.Context()
		go func() {
			for ctx.Err() == nil && n.unpublish(ctx, id, target) != nil {
				<-time.After(time.Second)
			}
		}()
	}
}

// copied makes a volume, and a copy of it.
func (n *pictured) copied(name string, bytes int64) func() {
	return func() {
		request := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{capabilityOf(false)}, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}}
		r, err := n.Controller().CreateVolume(n.t.Context(), request)
		must(n.t, err)
		source := &csi.VolumeContentSource_VolumeSource{VolumeId: r.GetVolume().GetVolumeId()}
		request.Name, request.VolumeContentSource = name+"-copy", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: source}}
		ctx := n.t.Context()
		go func() {
			_, _ = n.Controller().CreateVolume(ctx, request)
		}()
	}
}

// ill makes the file system of a volume read-only, as the kernel does after an error.
func (n *pictured) ill() {
	id := n.kept[0]
	n.h.m.Sicken(volume.Ref{VG: fakeVG, LV: id[strings.LastIndex(id, "/")+1:]}, func(s *fake.Sickness) { s.ForcedReadOnly = true })
}
