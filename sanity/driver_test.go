package sanity

import (
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func TestDriverOverFake(t *testing.T) { contract.Driver(t, newFakeHarness) }
