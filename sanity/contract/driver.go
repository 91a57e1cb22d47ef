package contract

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// driverTest is one test of the whole driver.
type driverTest struct {
	name string
	test func(*testing.T, Harness)
}

// Driver is the suite of the whole driver. newHarness is called for each of its tests, and gives a machine on which no driver
// has run yet.
func Driver(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, tc := range slices.Concat(sweepTests, unpublishTests, publishTests, volumeTests, sidewaysTests, orphanTests, hungTests) {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, newHarness(t)) })
	}
}

// A driver that ends, or fails, at any of its effects.
var sweepTests = []driverTest{
	{"KilledDriverIsDead", driverKilled},
	{"KillInlinePublish", driverKillPublish},
	{"KillInlinePublishGivenUp", driverKillPublishGivenUp},
	{"KillInlineUnpublish", driverKillUnpublish},
	{"FailInlinePublish", driverFailPublish},
	{"FailInlineUnpublish", driverFailUnpublish},
}

// settled is how long work may take that the driver does by itself.
const settled = 30 * time.Second

// inline is a volume id as kubelet makes them.
func inline(n string) string { return "csi-" + strings.Repeat(n, 64) }

func publishInline(h Harness, t *testing.T, id, target string) error {
	_, err := h.Node().NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId:      id,
		TargetPath:    target,
		VolumeContext: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "64Mi", volume.KeyPodUID: "pod-1"},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	})
	return err
}

func unpublish(h Harness, t *testing.T, id, target string) error {
	_, err := h.Node().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

// repeat calls until the answer is not Aborted any more, as a CO does.
func repeat(t *testing.T, call func() error) error {
	t.Helper()
	var err error
	until(func() bool { err = call(); return status.Code(err) != codes.Aborted })
	return err
}

// wantWorld waits until the world is as it was.
func wantWorld(t *testing.T, h Harness, want, when string) {
	t.Helper()
	if c, ok := h.(caller); ok {
		want = c.withoutKubelets(want) // it may be older than some of its folders
	}
	var got string
	if !until(func() bool { got = h.World(t); return got == want }) {
		t.Fatalf("%s, the world is not what it was:%s", when, difference(want, got))
	}
}

// until waits until the condition holds; false where it does not within the time that work may take.
func until(holds func() bool) bool {
	for end := time.Now().Add(settled); !holds(); <-time.Tick(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// difference gives the lines that only one of two worlds has.
func difference(before, after string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, has, lacks string }{{"-", before, after}, {"+", after, before}} {
		for line := range strings.SplitSeq(side.has, "\n") {
			if line != "" && !strings.Contains("\n"+side.lacks, "\n"+line+"\n") {
				out.WriteString("\n" + side.mark + " " + line)
			}
		}
	}
	return out.String()
}

func driverKilled(t *testing.T, h Harness) {
	h.Start(t)
	id, target := inline("a"), h.Target(t, "killed")
	before := h.World(t)
	entered, release := h.Block(t, "mount")
	failed := make(chan error, 1)
	go func() { failed <- publishInline(h, t, id, target) }()
	<-entered
	h.Kill(t)
	if err := <-failed; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Errorf("a call of a killed driver ended with %v", err)
	}
	if h.Running() {
		t.Fatal("a killed driver is running")
	}
	release()
	h.Start(t)
	mountMust(t, repeat(t, func() error { return unpublish(h, t, id, target) }))
	wantWorld(t, h, before, "after the kill, a start and an unpublish")
	h.Stop(t)
	if h.Running() {
		t.Fatal("a stopped driver is running")
	}
}

// SweepStride is how many effects a sweep goes on from one fault to the next: 1 for each effect. A larger one is for
// machines on which a fault takes seconds; each kind of fault then begins at another effect.
var SweepStride = 1

func firstEffect(kind int) int { return 1 + kind%SweepStride }

// sweep puts a fault of each kind at each effect of a call in turn, until the call has no more effects. after is called
// with a driver running, a new one after a kill; then the world must be as before.
func sweep(t *testing.T, h Harness, kinds []FaultKind, prepare, call func(t *testing.T) error, after func(t *testing.T, o outcome) error) {
	t.Helper()
	h.Start(t)
	before := h.World(t)
	for i, kind := range kinds {
		for n := firstEffect(i); ; n += SweepStride {
			mountMust(t, repeat(t, func() error { return prepare(t) }))
			f := Fault{N: n, Do: kind}
			h.Arm(t, f)
			answer := call(t)
			seen := h.Effects(t)
			o := outcome{f, answer, h.World(t)}
			if !h.Running() {
				h.Start(t)
			}
			h.Arm(t, Fault{})
			when := string(kind) + " the end"
			if n <= len(seen) {
				when = string(kind) + " " + seen[n-1].Op + " " + seen[n-1].Detail
			}
			if err := after(t, o); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			wantWorld(t, h, before, when)
			if n > len(seen) {
				if answer != nil {
					t.Fatalf("no fault, but the answer is %v", answer)
				}
				if n < 5 {
					t.Fatalf("only %d effects: they do not pass the seam", n-1)
				}
				break
			}
		}
	}
}

// outcome is what a call came to.
type outcome struct {
	Fault
	answer error
	world  string // right after it, before a new driver was started
}

func nothing(*testing.T) error { return nil }

// case B3, case B17; trap 3
func driverKillPublish(t *testing.T, h Harness) {
	id, target := inline("b"), h.Target(t, "sweep")
	publish := func(t *testing.T) error { return publishInline(h, t, id, target) }
	sweep(t, h, []FaultKind{KillBefore, KillAfter}, nothing, publish, func(t *testing.T, _ outcome) error {
		return errors.Join( // the CO's retry, and the end of the pod
			repeat(t, func() error { return publish(t) }),
			h.WriteFile(target+"/data", "written"),
			repeat(t, func() error { return unpublish(h, t, id, target) }),
		)
	})
}

// The pod is gone before its publish is repeated: kubelet, which has no answer, unpublishes.
func driverKillPublishGivenUp(t *testing.T, h Harness) {
	id, target := inline("c"), h.Target(t, "sweep")
	sweep(t, h, []FaultKind{KillBefore, KillAfter}, nothing,
		func(t *testing.T) error { return publishInline(h, t, id, target) },
		func(t *testing.T, _ outcome) error {
			return repeat(t, func() error { return unpublish(h, t, id, target) })
		})
}

// case B3: from the moment on at which the intent is in the journal, no retry is needed
func driverKillUnpublish(t *testing.T, h Harness) {
	id, target := inline("d"), h.Target(t, "sweep")
	var before string
	intended := false
	sweep(t, h, []FaultKind{KillBefore, KillAfter},
		func(t *testing.T) error {
			before = h.World(t)
			return errors.Join(publishInline(h, t, id, target), h.WriteFile(target+"/data", "written"))
		},
		func(t *testing.T) error { return unpublish(h, t, id, target) },
		func(t *testing.T, o outcome) error {
			intended = intended && o.N > SweepStride || strings.Contains(o.world, `"intent":"reclaim"`)
			if intended {
				wantWorld(t, h, before, "after a teardown without a retry")
			}
			return repeat(t, func() error { return unpublish(h, t, id, target) })
		})
	if !intended {
		t.Error("no kill left an intent in the journal")
	}
}

// trap 13: kubelet forgets a volume after a final error, so that nothing may be left
func driverFailPublish(t *testing.T, h Harness) {
	id, target := inline("e"), h.Target(t, "sweep")
	before := h.World(t)
	sweep(t, h, []FaultKind{FailBefore, FailAfter}, nothing,
		func(t *testing.T) error { return publishInline(h, t, id, target) },
		func(t *testing.T, o outcome) error {
			if o.answer != nil {
				wantWorld(t, h, before, "without an unpublish after "+o.answer.Error())
			}
			return repeat(t, func() error { return unpublish(h, t, id, target) })
		})
}

// traps 2 and 7: a failed step is carried on by the driver itself
func driverFailUnpublish(t *testing.T, h Harness) {
	id, target := inline("f"), h.Target(t, "sweep")
	before := h.World(t)
	sweep(t, h, []FaultKind{FailBefore, FailAfter},
		func(t *testing.T) error { return publishInline(h, t, id, target) },
		func(t *testing.T) error { return unpublish(h, t, id, target) },
		func(t *testing.T, _ outcome) error {
			wantWorld(t, h, before, "without a retry")
			return repeat(t, func() error { return unpublish(h, t, id, target) })
		})
}
