//go:build vm

package sanity

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/copy"
	lvmpkg "github.com/csi-local-lvm/csi-local-lvm/pkg/lvm"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	copyVG    = "bench-copy"
	copyBytes = 512 << 20
	copyGoal  = 0.9 // of the speed of dd
)

// BenchmarkCopy measures copies of a volume, and dd(1) with direct I/O of the same, in turn. "full" is random bytes all over, "sparse" such
// in each eighth MiB and zeros between.
func BenchmarkCopy(b *testing.B) {
	// A disk of the machine is a sparse file: who writes first pays for its blocks, and would be compared with who writes later.
	sh(b, "dd", "if=/dev/zero", "of=/dev/vda", "bs=4M", "count=640", "oflag=direct", "status=none")
	sh(b, "lvm", "vgcreate", "-q", "-y", copyVG, "/dev/vda")
	b.Cleanup(func() { sh(b, "lvm", "vgremove", "-q", "-ff", "-y", copyVG) })
	sh(b, "lvm", "lvcreate", "-q", "-y", "--type", "thin-pool", "-L", "1200m", "-n", "pool", copyVG)
	l, err := lvmpkg.New(&run.Local{}, lvmpkg.Config{Owner: "copy.test", VolumeGroups: []string{copyVG}})
	must(b, err)
	copier := copy.New(copy.Config{Unwritten: l.Unwritten})

	for _, c := range []struct{ from, to, filled string }{
		{"thick", "thick", "full"},
		{"thick", "thin", "full"},
		{"thin", "thick", "full"},
		{"thick", "thin", "sparse"},
		{"thin", "thin", "sparse"},
		{"thin", "thick", "sparse"},
	} {
		name := fmt.Sprintf("%s to %s, %s", c.from, c.to, c.filled)
		b.Run(strings.NewReplacer(", ", "-", " ", "-").Replace(name), func(b *testing.B) {
			device := func(lv, kind string) volume.Device {
				args := []string{"lvm", "lvcreate", "-q", "-y", "-n", lv}
				if kind == "thin" {
					args = append(args, "-V", "512m", "--thinpool", copyVG+"/pool")
				} else {
					args = append(args, "-L", "512m", copyVG)
				}
				sh(b, args...)
				d, err := l.Device(b.Context(), volume.Ref{VG: copyVG, LV: lv})
				must(b, err)
				return d
			}
			remove := func(lv string) { sh(b, "lvm", "lvremove", "-q", "-y", copyVG+"/"+lv) }
			src := device("src", c.from)
			defer remove("src")
			fillForCopy(b, src.Path, c.from == "thin", c.filled == "sparse")

			if c.to == "thick" { // one for all: it is written anew, on the same extents
				device("dst", "thick")
				defer remove("dst")
			}
			timed := func(do func(dst volume.Device)) time.Duration {
				if c.to == "thin" {
					device("dst", "thin")
					defer remove("dst")
				}
				dst, err := l.Device(b.Context(), volume.Ref{VG: copyVG, LV: "dst"})
				must(b, err)
				start := time.Now()
				do(dst)
				return time.Since(start)
			}
			copied := func(dst volume.Device) { must(b, copier.Copy(b.Context(), src, dst, nil)) }
			dd := func(dst volume.Device) {
				sh(b, "dd", "if="+src.Path, "of="+dst.Path, "bs=4M", "iflag=direct", "oflag=direct", "conv=fsync", "status=none")
			}
			var ours, dds []time.Duration
			var pairs []float64
			for n := 0; b.Loop(); n++ {
				var o, d time.Duration
				if n%2 == 0 { // what comes second may find something warm
					o, d = timed(copied), timed(dd)
				} else {
					d, o = timed(dd), timed(copied)
				}
				ours, dds, pairs = append(ours, o), append(dds, d), append(pairs, float64(d)/float64(o))
			}
			slices.Sort(pairs)
			best := float64(slices.Min(dds)) / float64(slices.Min(ours)) // what else runs on the machine only adds
			speed := func(d time.Duration) float64 { return copyBytes / (1 << 20) / d.Seconds() }
			fmt.Printf("%-24s copy %5.0f MiB/s, dd %5.0f MiB/s, ratio of the best %.2f, median of the pairs %.2f\n",
				name, speed(slices.Min(ours)), speed(slices.Min(dds)), best, pairs[len(pairs)/2])
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(best, "of-dd")
			b.ReportMetric(pairs[len(pairs)/2], "of-dd-median")
			if best < copyGoal {
				fmt.Printf("  (under %.2f)\n", copyGoal)
			}
		})
	}
}

func fillForCopy(b *testing.B, path string, thin, sparse bool) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(b, err)
	random, zeros := make([]byte, 1<<20), make([]byte, 1<<20)
	_, _ = rand.Read(random) // never fails
	for at := int64(0); at < copyBytes && err == nil; at += 1 << 20 {
		block := random
		if sparse && at>>20%8 != 0 {
			if block = zeros; thin {
				continue
			}
		}
		_, err = f.WriteAt(block, at)
	}
	must(b, errors.Join(err, f.Sync(), f.Close()))
}
