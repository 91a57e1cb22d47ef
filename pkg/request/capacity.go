package request

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Range reads a capacity range. 0 is not said, for both; nil says neither. Negative numbers are an ErrInvalid, a limit
// below what is required an ErrOutOfRange.
func Range(r *csi.CapacityRange) (required, limit int64, err error) {
	required, limit = r.GetRequiredBytes(), r.GetLimitBytes()
	return required, limit, volume.CheckRange(required, limit)
}
