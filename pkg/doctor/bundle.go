package doctor

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
)

// Bundle writes all facts and findings as a tar.gz, for a bug report: the report of status, what kubelet and Kubernetes want, the findings, the files of the
// journal, the mounts of the driver's volumes, and the logs. What could not be had is told in not-had.txt. There is no secret in it: of Kubernetes' objects and
// kubelet's files only what rules look at was kept, of other mounts, whose options may hold passwords, nothing is taken, and from all that is text, as logs are, whatever looks like a
// secret is taken out.
func Bundle(ctx context.Context, w io.Writer, f *Facts, findings []Finding, stateDir string, l Logs) error {
	pid := 0
	if f.Report.Driver != nil {
		pid = f.Report.Driver.PID
	}
	logs := l.gather(ctx, pid)
	files := logs.files
	for name, value := range map[string]any{"facts.json": f, "findings.json": findings} {
		text, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return err
		}
		files[name] = string(text) + "\n"
	}
	files["mounts.txt"] = mounts(f.Report)
	records, _ := filepath.Glob(filepath.Join(stateDir, "journal", "*")) // the pattern is right
	for _, path := range records {
		if text, err := os.ReadFile(path); err == nil { // a folder, or forgotten meanwhile
			files["journal/"+filepath.Base(path)] = string(text)
		}
	}
	if len(logs.notes) != 0 {
		slices.Sort(logs.notes)
		files["not-had.txt"] = strings.Join(logs.notes, "\n") + "\n"
	}
	for name, text := range files {
		files[name] = cleaned(text)
	}
	return pack(w, f, files)
}

// mounts lists the mounts of the driver's volumes.
func mounts(r *status.Report) string {
	at := r.MountsByDevice()
	var out strings.Builder
	for _, v := range r.Volumes {
		for _, m := range at[v.Device] {
			fmt.Fprintf(&out, "%s %s %s %s %s\n", v.ID, v.Device, m.Target, m.FS, strings.Join(m.Options, ","))
		}
	}
	return out.String()
}

func pack(w io.Writer, f *Facts, files map[string]string) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		head := &tar.Header{Name: "csi-local-lvm-bundle/" + name, Mode: 0o600, Size: int64(len(files[name])), ModTime: f.Report.Time}
		if err := out.WriteHeader(head); err != nil {
			return err
		}
		if _, err := io.WriteString(out, files[name]); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return zip.Close()
}
