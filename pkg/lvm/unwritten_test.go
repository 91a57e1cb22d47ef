package lvm

import "testing"

func TestUnitOfPool(t *testing.T) {
	for params, want := range map[string]int64{
		"253:1 253:2 128 0 1 no_discard_passdown":     512,
		"253:1 253:2 128 0":                           512,
		"253:1 253:2 256 0 1 skip_block_zeroing":      128 << 10,
		"253:1 253:2 384 1024 2 a skip_block_zeroing": 192 << 10,
		"253:1 253:2 x 0":                             0,
		"253:1 253:2 0 0":                             0,
		"253:1 253:2":                                 0,
		"":                                            0,
	} {
		if got, err := unitOfPool(params); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v, want %d", params, got, err, want)
		}
	}
}
