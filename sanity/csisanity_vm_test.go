//go:build vm

package sanity

import "testing"

func TestCSISanity(t *testing.T)         { csiSanity(t, newRealHarness, false) }
func TestCSISanityAttached(t *testing.T) { csiSanity(t, newRealHarness, true) }

func (h *realHarness) endpoint() string { return h.config().Endpoint }
