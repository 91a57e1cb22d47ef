package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	group, pool, nodeName = "csi", "pool", "node-1"
	root                  = "/node" // the file system that outlives a boot
	kubelet               = root + "/kubelet"
	state                 = root + "/state"
	socket                = "/run/csi.sock"

	// settled is how long the driver may take for what it does by itself.
	settled = time.Minute
	workers = 3
	// orphanGrace is short, so that a boot can see the end of what is given up. It is also how long the CO has to repeat a
	// CreateVolume that was cut off; whichever comes first is right.
	orphanGrace = 2 * time.Second
)

// Node is kubelet, the sidecars and the pods of one boot.
type Node struct {
	book   *Book
	random *rand.Rand
	conn   *grpc.ClientConn
}

// runNode is one boot: what the last cut left is looked at, then the load goes on until the power is cut, or with last
// until all is taken away.
func runNode(seed string, last bool) error {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	node := &Node{random: rand.New(rand.NewPCG(n, 0))}
	book, err := openBook("/dev/vdd", applyAll)
	if err != nil {
		return err
	}
	node.book = book
	if err := node.live(last); err != nil {
		book.write(Entry{Do: doFault, N: uptime(), Text: err.Error()})
		return err
	}
	return nil
}

// uptime is how many seconds the machine has run, by its own clock.
func uptime() int {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return int(now.Sec)
}

// applyAll brings the slots to where the book says.
func applyAll(e Entry) {
	for _, s := range slots {
		if s.name == e.Slot {
			s.apply(e)
		}
	}
}

func (n *Node) live(last bool) error {
	for _, step := range []func() error{n.boot, n.startDriver, n.recover} {
		if err := step(); err != nil {
			return err
		}
	}
	if last {
		if err := n.takeAll(); err != nil {
			return err
		}
		n.book.write(Entry{Do: doEnd})
		return nil
	}
	n.book.write(Entry{Do: doLoading})
	return n.load()
}

// boot brings the disks up as a node does, and makes what is on them the first time.
func (n *Node) boot() error {
	if n.book.at == 0 {
		if _, err := output("mkfs.ext4", "-q", "/dev/vdc"); err != nil {
			return err
		}
		if err := lvm("vgcreate", "-q", group, "/dev/vda", "/dev/vdb"); err != nil {
			return err
		}
		if err := lvm("lvcreate", "-q", "-y", "--type", "thin-pool", "-L", "256m", "-n", pool, group); err != nil {
			return err
		}
		for _, d := range []string{"/dev/vda", "/dev/vdb", "/dev/vdc"} { // no part of what is tested
			if err := flush(d); err != nil {
				return err
			}
		}
	}
	n.book.write(Entry{Do: doBooting})
	if seqno, err := mend("/dev/vda", "/dev/vdb"); err != nil {
		return err
	} else if seqno != 0 {
		n.book.write(Entry{Do: doMended, N: seqno})
	}
	if n.random.IntN(2) == 0 { // by the distribution's units, or by nobody
		if err := lvm("vgchange", "-q", "-ay", group); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev/vdc", root, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount the root file system: %w", err)
	}
	return os.MkdirAll(kubelet, 0o755)
}

func flush(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func output(argv ...string) (string, error) {
	res, err := (&run.Local{}).Write(context.Background(), argv[0], argv[1:]...)
	return res.Stdout, err
}

// byHand is how an administrator's LVM runs in a machine without udev.
const byHand = "backup{backup=0 archive=0} activation{udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0} devices{scan_lvs=0}"

func lvm(verb string, args ...string) error {
	_, err := output(append([]string{"lvm", verb, "--config", byHand}, args...)...)
	return err
}

func (n *Node) startDriver() error {
	cfg := driver.Default()
	cfg.Endpoint, cfg.NodeName, cfg.VolumeGroups, cfg.StateDir, cfg.KubeletDir = socket, nodeName, []string{group}, state, kubelet
	cfg.OrphanGrace = orphanGrace
	text, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "driver", string(text))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	if n.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	err = until(settled, func() error {
		r, err := csi.NewIdentityClient(n.conn).Probe(context.Background(), &csi.ProbeRequest{}, grpc.WaitForReady(true))
		if err == nil && !r.GetReady().GetValue() {
			err = errors.New("the driver is not ready")
		}
		return err
	})
	n.book.write(Entry{Do: doServing})
	return err
}

// until repeats a try until it is nil, for as long as bound.
func until(bound time.Duration, try func() error) error {
	end := time.Now().Add(bound)
	for {
		err := try()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// do writes in the book what is about to be done, makes the call, again while it is answered Aborted, and writes that it
// is done. Any other answer than OK is a fault: nothing of the load is wrong.
func (n *Node) do(s *Slot, what string, number int, call func() error) error {
	e := Entry{Slot: s.name, Do: what, N: number}
	n.book.write(e)
	s.apply(e)
	var err error
	_ = until(settled, func() error { // its error is that of the last call
		if err = call(); status.Code(err) == codes.Aborted {
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %s of %s: %w", s.name, what, s.coName(), err)
	}
	e.Done = true
	n.book.write(e)
	s.apply(e)
	return nil
}

func (n *Node) create(s *Slot) error {
	return n.do(s, doCreate, s.gen, func() error {
		r, err := csi.NewControllerClient(n.conn).CreateVolume(context.Background(), &csi.CreateVolumeRequest{
			Name: s.coName(), CapacityRange: &csi.CapacityRange{RequiredBytes: s.size},
			VolumeCapabilities: []*csi.VolumeCapability{s.capability()}, Parameters: s.params,
		})
		if err == nil && r.GetVolume().GetVolumeId() != s.id() {
			err = fmt.Errorf("the id is %s, not %s", r.GetVolume().GetVolumeId(), s.id())
		}
		return err
	})
}

func (n *Node) delete(s *Slot) error {
	return n.do(s, doDelete, s.gen, func() error {
		_, err := csi.NewControllerClient(n.conn).DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: s.id()})
		return err
	})
}

func (n *Node) stage(s *Slot) error {
	if err := os.MkdirAll(s.staging(), 0o750); err != nil {
		return err
	}
	err := n.do(s, doStage, s.gen, func() error {
		_, err := csi.NewNodeClient(n.conn).NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
			VolumeId: s.id(), StagingTargetPath: s.staging(), VolumeCapability: s.capability(),
		})
		return err
	})
	s.staged = err == nil
	return err
}

func (n *Node) unstage(s *Slot) error {
	s.staged = false
	return n.do(s, doUnstage, s.gen, func() error {
		_, err := csi.NewNodeClient(n.conn).NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: s.id(), StagingTargetPath: s.staging()})
		return err
	})
}

// publish shows the volume to its pod, which looks whether its data is there.
func (n *Node) publish(s *Slot) error {
	if err := os.MkdirAll(filepath.Dir(s.target()), 0o750); err != nil {
		return err
	}
	req := &csi.NodePublishVolumeRequest{VolumeId: s.id(), TargetPath: s.target(), VolumeCapability: s.capability()}
	if s.inline {
		req.VolumeContext = map[string]string{volume.KeyEphemeral: "true", volume.KeySize: fmt.Sprint(s.size), volume.KeyPodUID: s.pod()}
	} else {
		req.StagingTargetPath = s.staging()
	}
	err := n.do(s, doPublish, s.gen, func() error {
		_, err := csi.NewNodeClient(n.conn).NodePublishVolume(context.Background(), req)
		return err
	})
	if err != nil {
		return err
	}
	s.published = true
	if err := s.check(); err != nil {
		return fmt.Errorf("%s: %s: %w", s.name, s.coName(), err)
	}
	return nil
}

func (n *Node) unpublish(s *Slot) error {
	s.published = false
	err := n.do(s, doUnpublish, s.gen, func() error {
		_, err := csi.NewNodeClient(n.conn).NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: s.id(), TargetPath: s.target()})
		return err
	})
	if err != nil {
		return err
	}
	return removeUp(filepath.Dir(s.target()), s.podDir()) // as kubelet does
}

// removeUp removes a folder and those above it up to top, all of them empty.
func removeUp(path, top string) error {
	for {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if path == top {
			return nil
		}
		path = filepath.Dir(path)
	}
}

func (n *Node) write(s *Slot) error {
	if err := n.do(s, doWrite, s.synced+1, func() error { return s.write(s.writing) }); err != nil {
		return err
	}
	return s.check()
}

// load does what the slots are ready for, at random, and never ends by itself.
func (n *Node) load() error {
	failed := make(chan error, workers)
	var mu sync.Mutex
	idle := slices.Clone(slots)
	for range workers {
		random := rand.New(rand.NewPCG(n.random.Uint64(), 0))
		go func() {
			for {
				mu.Lock()
				i := random.IntN(len(idle))
				s := idle[i]
				idle = slices.Delete(idle, i, i+1)
				mu.Unlock()
				for range 1 + random.IntN(4) {
					if err := n.step(s, random); err != nil {
						failed <- err
						return
					}
				}
				mu.Lock()
				idle = append(idle, s)
				mu.Unlock()
			}
		}()
	}
	return <-failed
}

func (n *Node) step(s *Slot, random *rand.Rand) error {
	mostly := random.IntN(4) != 0
	switch {
	case s.published && mostly:
		return n.write(s)
	case s.published:
		return n.unpublish(s)
	case !s.there:
		s.gen++
		if s.inline {
			return n.publish(s)
		}
		return n.create(s)
	case s.staged && mostly:
		return n.publish(s)
	case s.staged:
		return n.unstage(s)
	case mostly:
		return n.stage(s)
	default:
		return n.delete(s)
	}
}
