package request

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/health"
)

// VolumeHealth gives the message for the conditions of a volume.
func VolumeHealth(id string, conditions []health.Condition) *csi.VolumeHealth {
	out := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		out.HealthStatuses = append(out.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: map[health.Status]csi.VolumeHealthErrorType{
				health.Degraded:     csi.VolumeHealthErrorType_DEGRADED,
				health.Inaccessible: csi.VolumeHealthErrorType_INACCESSIBLE,
				health.DataLoss:     csi.VolumeHealthErrorType_DATA_LOSS,
			}[c.Status],
			Reason: string(c.Reason), Message: c.Message,
		})
	}
	return out
}

// StorageHealth gives the messages for the conditions of the storage of a node.
func StorageHealth(conditions []health.Condition) (out []*csi.NodeGetStorageHealthResponse_StorageBackendHealth) {
	for _, c := range conditions {
		s := csi.StorageHealthErrorType_STORAGE_DEGRADED
		if c.Status != health.Degraded {
			s = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
		}
		out = append(out, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: s, Reason: string(c.Reason), Message: c.Message})
	}
	return out
}
