//go:build vm

package lvm

import (
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func TestContract(t *testing.T) { contract.LVM(t, newMachine(t)) }
