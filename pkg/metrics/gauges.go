package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/journal"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// gauges tells of the last report.
type gauges struct {
	report *atomic.Pointer[status.Report]
}

var all []*prometheus.Desc

func gauge(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(prefix+name, help, labels, nil)
	all = append(all, d)
	return d
}

var (
	factsTime    = gauge("facts_timestamp_seconds", "When what the gauges tell was found out. Every 30 seconds, and every two minutes at least; where it stands still, something hangs.")
	factsUnknown = gauge("facts_unknown", "How many questions failed then: what they would have told is missing.")
	ready        = gauge("ready", "1: the driver can do its work. 0: LVM, the volume groups or the state folder keep it from that.")

	groupSize    = gauge("volume_group_size_bytes", "Size of a volume group.", "vg")
	groupFree    = gauge("volume_group_free_bytes", "Unallocated extents of a volume group.", "vg")
	groupMissing = gauge("volume_group_missing_disks", "Physical volumes that LVM does not find.", "vg")

	poolSize     = gauge("thin_pool_size_bytes", "Size of the data of a thin pool.", "vg", "pool")
	poolVirtual  = gauge("thin_pool_virtual_bytes", "Sizes of the volumes in a thin pool, all together.", "vg", "pool")
	poolData     = gauge("thin_pool_data_used_ratio", "How full the data of a thin pool is, from 0 to 1. Only of active pools.", "vg", "pool")
	poolMetadata = gauge("thin_pool_metadata_used_ratio", "How full the metadata of a thin pool is, from 0 to 1. Only of active pools.", "vg", "pool")

	volumes     = gauge("volumes", "Volumes of the driver, by kind, and by how far they have come on this node.", "vg", "kind", "boundary")
	volumesSize = gauge("volumes_size_bytes", "Sizes of the volumes of a kind, all together.", "vg", "kind")
	conditions  = gauge("health_conditions", "How many volumes have a condition, or in the scope storage whether the node has. The reasons are those of docs/health.md.", "scope", "reason")

	pending    = gauge("pending", "What the journal intends and is not done. reclaim: teardowns.", "intent")
	pendingAge = gauge("pending_oldest_age_seconds", "For how long the oldest of them has been intended; 0: there is none.", "intent")
	damaged    = gauge("journal_damaged_records", "Files of the journal that cannot be used. Each stops its volume.")
	orphans    = gauge("orphans", "Inline volumes whose pod is gone and that nothing uses, and that are not removed yet.")
	copies     = gauge("copies", "Copies of volumes under way, those that wait for their turn too.")
	copyLeft   = gauge("copies_left_bytes", "What is left of the copies under way, holes included.")
)

// Describe implements prometheus.Collector.
func (*gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range all {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	r := g.report.Load()
	if r == nil {
		return
	}
	set := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	set(factsTime, float64(r.Time.UnixMilli())/1000)
	set(factsUnknown, float64(len(r.Unknown)))
	set(damaged, float64(len(r.Problems)))
	groupGauges(r, set)
	volumeGauges(r, set)
	healthGauges(r, set)
	pendingGauges(r, set)
	if l := r.Driver; l != nil {
		set(ready, zeroOrOne(l.NotReady == ""))
		set(orphans, float64(len(l.Orphans)))
		set(copies, float64(len(l.Copies)))
		var left int64
		for _, c := range l.Copies {
			left += c.Of - c.Done
		}
		set(copyLeft, float64(left))
	}
}

type setter func(d *prometheus.Desc, v float64, labels ...string)

func groupGauges(r *status.Report, set setter) {
	for _, g := range r.Groups {
		set(groupSize, float64(g.SizeBytes), g.Name)
		set(groupFree, float64(g.FreeBytes), g.Name)
		set(groupMissing, float64(g.Missing), g.Name)
		for _, p := range g.Pools {
			set(poolSize, float64(p.SizeBytes), g.Name, p.Name)
			set(poolVirtual, float64(p.VirtualBytes), g.Name, p.Name)
			if p.Data != nil {
				set(poolData, *p.Data, g.Name, p.Name)
			}
			if p.Metadata != nil {
				set(poolMetadata, *p.Metadata, g.Name, p.Name)
			}
		}
	}
}

// volumeGauges tells of what is not there too, so that nothing vanishes from a graph.
func volumeGauges(r *status.Report, set setter) {
	type key struct {
		vg       string
		kind     volume.Kind
		boundary status.Boundary
	}
	count, size := map[key]int{}, map[key]int64{}
	for _, v := range r.Volumes {
		count[key{v.VG, v.Kind, v.Boundary}]++
		size[key{v.VG, v.Kind, ""}] += v.SizeBytes
	}
	for _, g := range r.Groups {
		for _, kind := range []volume.Kind{volume.Persistent, volume.Inline, volume.Snapshot, volume.Temporary} {
			set(volumesSize, float64(size[key{g.Name, kind, ""}]), g.Name, string(kind))
			for _, b := range []status.Boundary{status.Creating, status.Provisioned, status.Staged, status.Published, status.InTeardown} {
				set(volumes, float64(count[key{g.Name, kind, b}]), g.Name, string(kind), string(b))
			}
		}
	}
}

func healthGauges(r *status.Report, set setter) {
	ofVolumes, ofStorage := map[string]int{}, map[string]int{}
	for _, v := range r.Volumes {
		once := map[string]bool{}
		for _, c := range v.Conditions {
			if !once[c.Reason] {
				ofVolumes[c.Reason]++
			}
			once[c.Reason] = true
		}
	}
	for _, c := range r.Storage {
		ofStorage[c.Reason] = 1
	}
	for _, reason := range health.Reasons() {
		set(conditions, float64(ofVolumes[string(reason)]), "volume", string(reason))
		set(conditions, float64(ofStorage[string(reason)]), "storage", string(reason))
	}
}

func pendingGauges(r *status.Report, set setter) {
	count, oldest := map[journal.Intent]int{}, map[journal.Intent]time.Duration{}
	for _, p := range r.Pending {
		count[p.Intent]++
		oldest[p.Intent] = max(oldest[p.Intent], time.Since(p.Since))
	}
	for _, intent := range []journal.Intent{journal.Create, journal.Reclaim, journal.Modify, journal.Reserve} {
		set(pending, float64(count[intent]), string(intent))
		set(pendingAge, oldest[intent].Seconds(), string(intent))
	}
}

func zeroOrOne(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
