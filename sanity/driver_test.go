package sanity

import (
	"os"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func TestDriverOverFake(t *testing.T) { contract.Driver(t, newFakeHarness) }

// TestSweepOverFake takes every 7th point; with TEST_SWEEP=full ("make sweepfake", which "make test" runs without the race detector) all of them.
func TestSweepOverFake(t *testing.T) {
	stride := 7 // no multiple of 3: each way to go on
	if os.Getenv("TEST_SWEEP") == "full" {
		stride = 1
	}
	contract.Sweep(t, newFakeHarness, stride, func(string, string) bool { return true })
}
