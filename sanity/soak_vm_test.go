//go:build vm

package sanity

import (
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/sanity/soak"
)

// TestSoakOverRealMachine runs a random history on real LVM; with TEST_SOAK_STEPS=10000 it is "make soak".
func TestSoakOverRealMachine(t *testing.T) {
	soakOver(t, newRealHarness, "make vm VM_PACKAGES=./sanity VM_RUN=TestSoakOverRealMachine", 60, soak.Options{DeepEvery: 10, Patience: time.Minute})
}
