package contract

import (
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
	for _, tc := range slices.Concat(
		processTests,
		unpublishTests,
		publishTests,
		volumeTests,
		healthTests,
		sidewaysTests,
		orphanTests,
		hungTests,
		storyTests,
		laterTests,
		journalTests,
		snapshotTests,
		snapshotFaultTests,
		attachTests,
		restoreTests,
		groupTests,
		blocksTests,
		expandTests,
		modifyTests,
		adoptTests,
		copyTests,
		crowdTests,
	) {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, newHarness(t)) })
	}
}

// Brief is for machines on which the start of a driver takes seconds: of several variants of a test, some are run.
var Brief = false

// some gives the variants to be run; brief is how many if Brief.
func some[T any](brief int, variants ...T) []T {
	if Brief {
		return variants[:brief]
	}
	return variants
}

var processTests = []driverTest{{"KilledDriverIsDead", driverKilled}}

// settled is how long work may take that the driver does by itself.
const settled = time.Minute

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
	end := time.Now().Add(settled)
	for wait := time.Millisecond; !holds(); wait = min(2*wait, 50*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		<-time.After(wait)
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
