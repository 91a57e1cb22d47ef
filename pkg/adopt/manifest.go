package adopt

import (
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Manifest is a static PersistentVolume for an adopted logical volume.
type Manifest struct {
	Request
	TopologyKey  string
	StorageClass string
	Name         string // of the PersistentVolume; "": made of the names of group and volume
}

// Each value stands in double quotes with JSON's escapes, which YAML reads.
var manifest = template.Must(template.New("").Funcs(template.FuncMap{"q": strconv.Quote}).Parse(`apiVersion: v1
kind: PersistentVolume
metadata:
  name: {{q .Name}}
spec:
  capacity:
    storage: {{q .Bytes}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain # Delete would remove the logical volume with its data
  storageClassName: {{q .StorageClass}}
  volumeMode: {{if .FS}}Filesystem{{else}}Block{{end}}
  csi:
    driver: {{q .Driver}}
    volumeHandle: {{q .Handle}}
{{- if .FS}}
    fsType: {{q .FS}}
{{- end}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - key: {{q .Key}}
              operator: In
              values: [{{q .Node}}]
`))

// Write writes it as YAML.
func (m Manifest) Write(w io.Writer, lv volume.LV) error {
	f, _ := lv.Tags.Format()
	name := m.Name
	if name == "" {
		name = objectName(lv.VG + "-" + lv.LV)
	}
	return manifest.Execute(w, map[string]string{
		"Name": name, "Bytes": strconv.FormatInt(lv.SizeBytes, 10), "StorageClass": m.StorageClass, "FS": string(f.FS), "Driver": m.Owner,
		"Handle": volume.ID{Node: m.Node, Ref: lv.Ref}.String(), "Key": m.TopologyKey, "Node": m.Node,
	})
}

var notInNames = regexp.MustCompile(`[^a-z0-9.-]+`)

// objectName makes a name that Kubernetes takes for an object (a DNS subdomain).
func objectName(s string) string {
	s = strings.Trim(notInNames.ReplaceAllString(strings.ToLower(s), "-"), ".-")
	if s == "" {
		return "adopted"
	}
	return s
}
