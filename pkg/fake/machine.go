// Package fake is one machine in memory: volume groups and logical volumes, device-mapper devices and what is on them,
// folders, files and links, the mount table, and processes that hold things. Tests run everything above LVM and the
// kernel over it, fast and without root.
//
// It keeps the contracts of pkg/lifecycle as the real packages do, and the same suites (sanity/contract) run over
// both. It does not stand for: sharing of mounts between folders (propagation), file permissions beyond the group, and
// LVM's own text.
//
// A Machine outlives the drivers on it. A test restarts the driver by making a new one over the same Machine, and
// reboots the machine with Reboot.
package fake

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
)

// Machine is the machine: its exported methods are what root does by hand, a test's view and its hooks. What a driver
// sees are the Tools that Connect gives. Safe for use by several goroutines.
type Machine struct {
	mu         sync.Mutex
	groups     map[string]*group
	mounts     []*mount       // of the host's namespace, in mount order
	namespaces []*namespace   // others
	over       map[at]*mount  // what is mounted on a place; at most one: a second mount lies on the root of the first
	root       *mount         // of the root file system
	nodes      *inode         // the folder /dev
	opens      []*open        // what processes hold
	commands   map[string]int // programs run, by name
	gates      map[string]*gate
	pods       map[string]*podGroup
	tear       string // the program that is to be killed half-way
	serial     int    // for UUIDs and process ids: never used twice
	processes  atomic.Int64
}

// Config is what a driver tells pkg/lvm and pkg/mount about itself.
type Config struct {
	Owner      string      // the driver's name, in the owner tag
	Groups     []string    // the volume groups it may use: names or globs
	Overcommit float64     // thin: at most this many times the pool's size; 0: once
	Effects    effect.Seam // every change passes it
}

// Tools are the machine as one driver sees it.
type Tools struct {
	LVM         *LVM
	Mounts      *Mounts
	Paths       *Paths
	Filesystems *Filesystems
	Copier      *Copier
	Cgroups     *Cgroups
}

// conn is a driver's connexion to the machine.
type conn struct {
	*Machine
	cfg  Config
	seen map[string]string // the state of each group that the driver's inventory shows; guarded by Machine.mu

	queues map[string]chan struct{} // by group; guarded by Machine.mu

	holding sync.Mutex // held while volumes are suspended on purpose, or resumed; pkg/lvm has its queues for that
}

// New gives a machine that has a root file system with /dev, /tmp and /var/lib/kubelet/pods, and no volume group.
func New() *Machine {
	m := &Machine{groups: map[string]*group{}, over: map[at]*mount{}, commands: map[string]int{}, gates: map[string]*gate{}, pods: map[string]*podGroup{}}
	disk := &filesystem{kind: "ext4", root: newFolder(), major: 8, minor: 1}
	m.root = &mount{fs: disk, root: disk.root, target: "/"}
	m.mounts = []*mount{m.root}
	dev := &filesystem{kind: "devtmpfs", root: newFolder(), minor: 5}
	m.nodes = dev.root
	place := at{m.root, disk.root.add("dev", newFolder())}
	m.attach(&mount{parent: place, fs: dev, root: dev.root, target: "/dev"})
	for _, path := range []string{"/tmp", "/var", "/var/lib", "/var/lib/kubelet", "/var/lib/kubelet/pods"} {
		m.must(m.Mkdir(path))
	}
	return m
}

// Connect gives a driver its tools. What it learnt is lost with it.
func (m *Machine) Connect(c Config) Tools {
	n := &conn{Machine: m, cfg: c, seen: map[string]string{}, queues: map[string]chan struct{}{}}
	return Tools{&LVM{n}, &Mounts{n}, &Paths{n}, &Filesystems{n}, &Copier{n}, &Cgroups{n}}
}

// must is for what cannot fail unless the test itself is wrong.
func (m *Machine) must(err error) {
	if err != nil {
		panic(err)
	}
}

// next gives a number that was never used. With m.mu held.
func (m *Machine) next() int { m.serial++; return m.serial }

// change carries out an effect on the machine. do runs with m.mu held.
func (c *conn) change(ctx context.Context, op, detail string, do func() error) error {
	return c.cfg.Effects.Do(ctx, op, detail, func() error {
		_ = c.pass(context.Background(), op) // what changes something does not end with its caller
		c.mu.Lock()
		defer c.mu.Unlock()
		return do()
	})
}

// program runs a program that changes something, as run.Runner's Write does: not started when ctx has ended, and then
// run to its end. With a group it is an LVM command, which holds LVM's lock on the group as long as it runs.
func (c *conn) program(ctx context.Context, vg string, argv []string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.cfg.Effects.Do(ctx, "run", strings.Join(argv, " "), func() error {
		verb := argv[0]
		if verb == "lvm" {
			verb = argv[1]
		}
		if vg != "" {
			c.processes.Add(1)
			defer c.processes.Add(-1)
		}
		unlock, _ := c.lockGroup(context.Background(), vg)
		defer unlock()
		c.count(verb)
		_ = c.pass(context.Background(), verb) // as in change
		c.mu.Lock()
		defer c.mu.Unlock()
		return do()
	})
}

func (m *Machine) count(verb string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commands[verb]++
}

// Commands gives how often each program was run by drivers since the machine was made: "lvcreate", "mkfs.ext4", ...
func (m *Machine) Commands() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.commands)
}

// LVMProcesses counts the LVM commands of drivers that change a group and have begun, be it that they wait for its lock.
func (m *Machine) LVMProcesses() int { return int(m.processes.Load()) }

// A gate stops one kind of operation.
type gate struct {
	came chan struct{}
	open chan struct{}
}

// Block makes every operation of that name wait until release is called: an effect's name ("mount", "unmount", "mkdir",
// ...), or a program's ("lvcreate", "mkfs.ext4", "fullreport"). entered gets one message for each that has come to it.
// An LVM command that waits holds the lock of its volume group, as a hung one does.
func (m *Machine) Block(op string) (entered <-chan struct{}, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := &gate{came: make(chan struct{}, 1000), open: make(chan struct{})}
	m.gates[op] = g
	return g.came, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.gates, op)
		close(g.open)
	})
}

// pass waits at the gate of op. Its error is that of ctx.
func (m *Machine) pass(ctx context.Context, op string) error {
	m.mu.Lock()
	g := m.gates[op]
	m.mu.Unlock()
	if g == nil {
		return nil
	}
	g.came <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reboot takes away every mount, process and device. LVs are active again afterwards where active says so and
// LVM does not skip them. What is on disks stays, except that of a device tree, which is made anew.
func (m *Machine) Reboot(active bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opens, m.namespaces, m.pods = nil, nil, map[string]*podGroup{}
	m.mounts = m.mounts[:2] // the root file system and /dev
	m.over = map[at]*mount{m.mounts[1].parent: m.mounts[1]}
	m.nodes.children = map[string]*inode{}
	pools := map[*lv]bool{} // those that are active themselves, and not only by a volume in them
	for _, v := range m.volumes() {
		pools[v] = v.pool && v.active
		v.readOnly = false
		v.deactivate(m)
	}
	for _, v := range m.volumes() {
		if active && !v.skip && !v.pool || pools[v] {
			v.activate(m)
		}
	}
}

// World describes all that outlives a call, a line each, so that a test can compare before and after: LVs, devices, mounts,
// folders and files, processes. Numbers that differ from run to run are left out.
func (m *Machine) World() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, v := range m.volumes() {
		add("lv %s %d %s tags=%s", v.ref, v.size, v.layout, created.ReplaceAllString(strings.Join(v.tags, ","), ""))
		if v.held {
			add("metadata snapshot of %s", v.ref)
		}
		if v.active {
			add("device %s open=%d", v.ref, m.openCount(v))
		}
	}
	for _, t := range m.mounts {
		add("mount %s %s", t.target, t.describe(m))
	}
	for _, ns := range m.namespaces {
		add("namespace with %d mounts", len(ns.mounts))
	}
	m.root.root.visit("", func(path string, n *inode) {
		if path != "" {
			add("path %s%s", path, n.mark())
		}
	})
	for _, o := range m.opens {
		add("open %s", o.path)
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}

var created = regexp.MustCompile(`csi\.created=\d+`)

// volumes gives all LVs in order of their names.
func (m *Machine) volumes() []*lv {
	var out []*lv
	for _, name := range slices.Sorted(maps.Keys(m.groups)) {
		g := m.groups[name]
		for _, lv := range slices.Sorted(maps.Keys(g.lvs)) {
			out = append(out, g.lvs[lv])
		}
	}
	return out
}
