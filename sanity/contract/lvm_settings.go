package contract

import (
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// LVMSettings asks lvs(8) what LVM holds of the mutable parameters of a logical volume, and on which physical volumes it lies.
// What was never set is as a new volume has it: read-ahead "auto", rates "0", write-mostly "none".
func LVMSettings(lvs func(args ...string) string, r volume.Ref) (m volume.Mutable, devices []string) {
	m = volume.Mutable{volume.KeyReadAhead: "auto", volume.KeyMinRecoveryRate: "0", volume.KeyMaxRecoveryRate: "0", volume.KeyWriteMostly: "none"}
	var slow []string
	// A leg of a mirror is name_rimage_0; a device is /dev/x(first extent).
	out := lvs("-a", "--noheadings", "--units", "s", "--nosuffix", "--separator", "|",
		"-o", "lv_name,lv_attr,lv_read_ahead,raid_min_recovery_rate,raid_max_recovery_rate,devices", r.VG)
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		name := strings.Trim(f[0], "[]")
		if len(f) != 6 || name != r.LV && !strings.HasPrefix(name, r.LV+"_rimage_") {
			continue
		}
		for _, d := range strings.Split(f[5], ",") {
			if d, _, _ = strings.Cut(d, "("); strings.HasPrefix(d, "/dev/") {
				devices = append(devices, d)
				if f[1][8] == 'w' {
					slow = append(slow, d)
				}
			}
		}
		if name == r.LV {
			for key, value := range map[string]string{volume.KeyReadAhead: f[2], volume.KeyMinRecoveryRate: f[3], volume.KeyMaxRecoveryRate: f[4]} {
				if value != "" {
					m[key] = value
				}
			}
		}
	}
	if m[volume.KeyReadAhead] == "0" {
		m[volume.KeyReadAhead] = "none"
	}
	if len(slow) != 0 {
		slices.Sort(slow)
		m[volume.KeyWriteMostly] = strings.Join(slow, ",")
	}
	slices.Sort(devices)
	return m, slices.Compact(devices)
}
