package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/ask"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/status"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Facts are all that rules look at.
type Facts struct {
	Report  *status.Report `json:"report"`
	Version string         `json:"version"` // of this command
	Kubelet []Wanted       `json:"kubelet"` // what kubelet wants of the driver, by its files
	Pods    []string       `json:"pods"`    // the pods that have a folder
	// PodsKnown: the folder of the pods was read well, and holds something; else that a pod is not in Pods says nothing.
	PodsKnown bool `json:"podsKnown"`
	// Forgotten are the targets at which a volume is mounted, and where kubelet surely has no vol_data.json any more.
	Forgotten []string `json:"forgotten,omitempty"`
	// NodeGuessed: nobody has told the node's name, which is in the ids of volumes. KubeletGuessed: nor which folder is kubelet's.
	NodeGuessed    bool                `json:"nodeGuessed,omitempty"`
	KubeletGuessed bool                `json:"kubeletGuessed,omitempty"`
	Machine        Machine             `json:"machine"`
	Cluster        *Cluster            `json:"cluster,omitempty"` // nil: Kubernetes was not asked
	Held           map[string][]string `json:"held,omitempty"`    // by volume id: who uses a volume that is mounted nowhere here

	volumes   map[string]status.Volume // by id
	tops      map[string]string        // by path: the number of the device on top
	wanted    map[string]bool          // by id: whether kubelet wants it
	folders   map[string]bool          // by uid: the pods that have one
	forgotten map[string]bool          // by path
	running   map[string]bool          // by uid: the pods of the cluster
}

// Wanted is one of kubelet's files vol_data.json that name the driver (kubernetes pkg/volume/csi/csi_mounter.go).
type Wanted struct {
	Handle   string    `json:"volumeHandle"`
	Path     string    `json:"path"` // where the volume is to be mounted
	PodUID   string    `json:"podUID,omitempty"`
	Staging  bool      `json:"staging,omitempty"`
	Written  time.Time `json:"written"`
	IsFolder bool      `json:"isFolder"` // there is something at the path
}

// Machine is what the machine offers.
type Machine struct {
	Kernel       string   `json:"kernel"`
	MissingTools []string `json:"missingTools,omitempty"`
	// Modules by name: those of device-mapper's targets and of file systems that are neither there nor to be found.
	MissingModules []string `json:"missingModules,omitempty"`
	LocksApart     bool     `json:"locksApart,omitempty"` // LVM's locks here are not those of process 1
	Cookies        int      `json:"cookies,omitempty"`    // LVM commands that have waited for udev for longer than a minute
}

// Where says where to look; tests look elsewhere.
type Where struct {
	Proc, Sys, Modules, Locks string
	KubeletDir                string
	Driver                    string // the driver's name
	// What was neither told nor could be asked: the name of the node, and KubeletDir.
	NodeGuessed, KubeletGuessed bool
}

// Here is this machine.
func Here(kubeletDir, driver string) Where {
	return Where{Proc: "/proc", Sys: "/sys", Modules: "/lib/modules", Locks: "/run/lock/lvm", KubeletDir: kubeletDir, Driver: driver}
}

// Gather looks at everything but Kubernetes.
func Gather(ctx context.Context, w Where, version string, c *status.Collector, report func(context.Context) *status.Report) *Facts {
	f := &Facts{Report: report(ctx), Version: version, Held: map[string][]string{}}
	w.look(ctx, f)
	if f.KubeletGuessed, f.NodeGuessed = w.KubeletGuessed, w.NodeGuessed; f.NodeGuessed {
		f.learnNode()
	}
	f.Machine = w.machine()
	pending := map[volume.Ref]bool{}
	for _, p := range f.Report.Pending {
		pending[p.Ref()] = true
	}
	const most = 8 // searches through /proc, which take up to two seconds each
	for _, v := range f.Report.Volumes {
		if v.Open != 0 && len(v.Mounts) == 0 && !pending[v.Ref()] && len(f.Held) < most {
			if who := c.Held(ctx, v, ""); len(who) != 0 {
				f.Held[v.ID] = who
			}
		}
	}
	return f
}

// look looks into kubelet's folder, which may lie on storage that hangs.
func (w Where) look(ctx context.Context, f *Facts) {
	type answer struct {
		pods      []string
		podsKnown bool
		kubelet   []Wanted
		forgotten []string
	}
	a, err := ask.Ask(ctx, &ask.Open{}, "kubelet's folder "+w.KubeletDir, func() (a answer, _ error) {
		a.pods, a.podsKnown = w.pods()
		a.kubelet = w.wanted()
		a.forgotten = forgotten(f.Report.Volumes)
		return a, nil
	})
	f.Pods, f.PodsKnown, f.Kubelet, f.Forgotten = a.pods, a.podsKnown, a.kubelet, a.forgotten
	if err != nil {
		f.Report.Unknown = append(f.Report.Unknown, err.Error())
	}
}

// pods gives the folders of pods. An empty folder is the mount point of a disk that is not mounted, and says nothing.
func (w Where) pods() (out []string, known bool) {
	entries, err := os.ReadDir(filepath.Join(w.KubeletDir, "pods"))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, err == nil && len(out) != 0
}

// wanted reads kubelet's files. Those that cannot be read are kubelet's matter. There are as many as there are volumes, so each folder is listed once.
func (w Where) wanted() (out []Wanted) {
	add := func(folder, path, pod string) {
		if n, ok := w.wantedIn(folder); ok {
			var st unix.Stat_t
			n.Path, n.PodUID, n.Staging, n.IsFolder = path, pod, pod == "", unix.Lstat(path, &st) == nil
			out = append(out, n)
		}
	}
	pods := filepath.Join(w.KubeletDir, "pods")
	for _, pod := range names(pods) {
		at := filepath.Join(pods, pod, "volumes/kubernetes.io~csi")
		for _, name := range names(at) {
			add(filepath.Join(at, name), filepath.Join(at, name, "mount"), pod)
		}
	}
	plugin := filepath.Join(w.KubeletDir, "plugins/kubernetes.io/csi")
	for _, kind := range []string{w.Driver, "pv"} {
		at := filepath.Join(plugin, kind)
		for _, name := range names(at) {
			add(filepath.Join(at, name), filepath.Join(at, name, "globalmount"), "")
		}
	}
	// A block volume has one file for all its pods (csi_block.go, csi_util.go).
	at := filepath.Join(plugin, "volumeDevices")
	for _, name := range names(at) {
		add(filepath.Join(at, name, "data"), filepath.Join(at, "staging", name), "")
	}
	return out
}

// names gives what is in a folder, in order; nothing where it cannot be read.
func names(folder string) (out []string) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// wantedIn reads the file in a folder, if it is about a volume of the driver.
func (w Where) wantedIn(folder string) (n Wanted, ok bool) {
	var data struct {
		Driver string `json:"driverName"`
		Handle string `json:"volumeHandle"`
	}
	text, written, err := readFile(filepath.Join(folder, "vol_data.json"))
	if err != nil || json.Unmarshal(text, &data) != nil || data.Driver != w.Driver {
		return Wanted{}, false
	}
	return Wanted{Handle: data.Handle, Written: written}, true
}

// mostBytes is far more than kubelet writes into a file about a volume.
const mostBytes = 64 << 10

// readFile gives what a small file holds, at most mostBytes of it, and when it was written. It makes do with few system calls, since there may
// be thousands of files, and does not wait at one that is a pipe.
func readFile(path string) (text []byte, written time.Time, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, time.Time{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, time.Time{}, &fs.PathError{Op: "fstat", Path: path, Err: err}
	}
	text = make([]byte, min(st.Size, mostBytes))
	n, err := unix.Read(fd, text)
	if err != nil {
		return nil, time.Time{}, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return text[:n], time.Unix(st.Mtim.Unix()), nil
}

// tools are the programs that the driver runs (README, Requirements).
var tools = []string{"lvm", "blkid", "mkfs.ext4", "resize2fs", "mkfs.xfs", "xfs_growfs", "mkfs.btrfs", "btrfs", "thin_dump"}

// modules are the kernel's parts for what the driver makes: targets of device-mapper (Documentation/admin-guide/device-mapper) and file systems.
var modules = []string{"dm_mod", "dm_thin_pool", "dm_raid", "dm_snapshot", "ext4", "xfs", "btrfs"}

func (w Where) machine() (m Machine) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	for _, t := range tools {
		if !run.Found(t) {
			m.MissingTools = append(m.MissingTools, t)
		}
	}
	m.MissingModules = w.missing(m.Kernel)
	m.LocksApart = w.locksApart()
	m.Cookies = w.cookies(time.Now())
	return m
}

// missing gives the modules that are neither loaded, nor built in, nor on the disk. Where the folder of the kernel's modules is not there nobody can tell.
func (w Where) missing(kernel string) (out []string) {
	folder := filepath.Join(w.Modules, kernel)
	var known string
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		text, err := os.ReadFile(filepath.Join(folder, list))
		if err != nil {
			return nil
		}
		known += strings.ReplaceAll(string(text), "-", "_")
	}
	for _, name := range modules {
		if _, err := os.Stat(filepath.Join(w.Sys, "module", name)); err == nil || strings.Contains(known, "/"+name+".ko") {
			continue
		}
		out = append(out, name)
	}
	return out
}

// locksApart compares the folder of LVM's locks with that of process 1, which is the host's where the pod has hostPID.
func (w Where) locksApart() bool {
	var ours, its unix.Stat_t
	if unix.Stat(filepath.Join(w.Proc, "1/root", w.Locks), &its) != nil {
		return false // cannot be seen, or LVM has never run there
	}
	err := unix.Stat(w.Locks, &ours)
	return errors.Is(err, fs.ErrNotExist) || err == nil && (ours.Dev != its.Dev || ours.Ino != its.Ino)
}

// cookies counts the semaphores by which LVM commands wait for udev (lvm2 libdm/libdm-common.c: their keys begin with 0x0D4D), a minute old or more
// (proc(5), /proc/sysvipc/sem: key semid perms nsems uid gid cuid cgid otime ctime).
func (w Where) cookies(now time.Time) (n int) {
	file, err := os.Open(filepath.Join(w.Proc, "sysvipc/sem"))
	if err != nil {
		return 0
	}
	defer file.Close() //nolint:errcheck // opened for reading
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		key, err1 := strconv.ParseInt(fields[0], 10, 64)
		changed, err2 := strconv.ParseInt(fields[9], 10, 64)
		if err1 == nil && err2 == nil && uint32(key)>>16 == 0x0d4d && now.Sub(time.Unix(changed, 0)) > time.Minute {
			n++
		}
	}
	return n
}

// forgotten looks beside each target that is kubelet's.
func forgotten(volumes []status.Volume) (out []string) {
	for _, v := range volumes {
		for _, m := range v.Mounts {
			if m.Role != status.TargetRole || filepath.Base(m.Path) != "mount" {
				continue
			}
			_, err := os.Lstat(filepath.Join(filepath.Dir(m.Path), "vol_data.json"))
			if errors.Is(err, fs.ErrNotExist) {
				out = append(out, m.Path)
			}
		}
	}
	return out
}

// podGone reports whether a pod surely has no folder any more.
func (f *Facts) podGone(uid string) bool {
	return uid != "" && f.PodsKnown && !f.folders[uid]
}

// index makes what is looked up by a name found at once: there may be a thousand of each.
func (f *Facts) index() {
	f.volumes, f.tops, f.wanted = map[string]status.Volume{}, map[string]string{}, map[string]bool{}
	f.folders, f.forgotten, f.running = map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, v := range f.Report.Volumes {
		f.volumes[v.ID] = v
	}
	for _, m := range f.Report.Mounts { // the topmost comes last
		f.tops[m.Target] = status.Number(m.Major, m.Minor)
	}
	for _, k := range f.Kubelet {
		f.wanted[k.Handle] = true
	}
	for _, uid := range f.Pods {
		f.folders[uid] = true
	}
	for _, path := range f.Forgotten {
		f.forgotten[path] = true
	}
	if f.Cluster != nil {
		for _, p := range f.Cluster.Pods {
			f.running[p.UID] = true
		}
	}
}

func (f *Facts) volume(id string) (status.Volume, bool) {
	v, known := f.volumes[id]
	return v, known
}

// knowsVolumes reports whether a volume that is not in the report is not there.
func (f *Facts) knowsVolumes() bool {
	return len(f.Report.Unknown) == 0 && !slices.ContainsFunc(f.Report.Storage, func(c status.Condition) bool {
		return slices.Contains([]string{"GroupMissing", "GroupUnreadable", "DiskMissing"}, c.Reason)
	})
}

// missing reports whether a handle names a logical volume on this node that is surely not there.
func (f *Facts) missing(handle string) (volume.Ref, bool) {
	id, err := volume.ParseID(handle)
	_, there := f.volume(handle)
	return id.Ref, err == nil && id.Node == f.Report.Node && !there && f.knowsVolumes()
}

// device names the device that is on top at a path; "" where nothing is.
func (f *Facts) device(path string) (number string, mounted bool) {
	number, mounted = f.tops[path]
	return number, mounted
}
