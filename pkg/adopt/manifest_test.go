package adopt

import (
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestManifest(t *testing.T) {
	lv := volume.LV{Ref: volume.Ref{VG: "Data_1", LV: "old.DB+x"}, SizeBytes: 1 << 30, Tags: volume.AdoptedTags("d", volume.Format{FS: volume.XFS})}
	m := Manifest{Request: Request{Ref: lv.Ref, Owner: "d.example", Node: "node-1"}, TopologyKey: "topology.d.example/node", StorageClass: "slow"}
	want := `apiVersion: v1
kind: PersistentVolume
metadata:
  name: "data-1-old.db-x"
spec:
  capacity:
    storage: "1073741824"
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain # Delete would remove the logical volume with its data
  storageClassName: "slow"
  volumeMode: Filesystem
  csi:
    driver: "d.example"
    volumeHandle: "node-1/Data_1/old.DB+x"
    fsType: "xfs"
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - key: "topology.d.example/node"
              operator: In
              values: ["node-1"]
`
	var out strings.Builder
	if err := m.Write(&out, lv); err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, &out)
	}
	lv.Tags, m.Name = volume.AdoptedTags("d", volume.Format{}), `a"b`
	out.Reset()
	if err := m.Write(&out, lv); err != nil || !strings.Contains(out.String(), "volumeMode: Block") || strings.Contains(out.String(), "fsType") || !strings.Contains(out.String(), `name: "a\"b"`) {
		t.Errorf("%v\n%s", err, &out)
	}
}

// What is not plain, whatever LVM calls it.
func TestIsPlain(t *testing.T) {
	for roles, types := range map[string]map[volume.Type]bool{
		"public":                        {volume.Linear: true, volume.RAID1: true, volume.Thin: true, "": false},
		"public,origin,thinorigin":      {volume.Thin: true, volume.Linear: false},
		"public,origin,thickorigin":     {volume.Linear: false},
		"public,snapshot,thicksnapshot": {volume.Linear: false, "": false},
		"public,snapshot,thinsnapshot":  {volume.Thin: false},
		"private,thin,pool":             {"": false},
		"private,raid,image":            {volume.Linear: false},
	} {
		for ty, want := range types {
			if err := isPlain(volume.LV{Type: ty}, roles); (err == nil) != want {
				t.Errorf("%s %q: %v", roles, ty, err)
			}
		}
	}
	if isPlain(volume.LV{Type: volume.Linear, Partial: true}, "public") == nil {
		t.Error("partial")
	}
}
