//go:build vm

package sanity

import "testing"

func TestCSISanity(t *testing.T) { csiSanity(t, newRealHarness) }

func (h *realHarness) endpoint() string { return h.config().Endpoint }
