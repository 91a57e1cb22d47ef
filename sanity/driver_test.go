package sanity

import (
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func TestDriverOverFake(t *testing.T) { contract.Driver(t, newFakeHarness) }

func TestSweepOverFake(t *testing.T) {
	contract.Sweep(t, newFakeHarness, 1, func(string, string) bool { return true })
}
