package fake

import (
	"context"
	"fmt"
	"strings"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// Cgroups implements lifecycle.Cgroups.
type Cgroups struct{ *conn }

// podGroup is the cgroup of a pod.
type podGroup struct {
	io     bool                       // the controller is enabled
	limits map[uint32]volume.IOLimits // by minor number
}

// AddPod makes the cgroup of a pod, as kubelet does; io: its I/O can be limited. DropPod removes it.
func (m *Machine) AddPod(pod string, io bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[pod] = &podGroup{io: io, limits: map[uint32]volume.IOLimits{}}
}

// DropPod removes the cgroup of a pod.
func (m *Machine) DropPod(pod string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, pod)
}

// PodLimits tells how the I/O of a pod on an LV is limited.
func (m *Machine) PodLimits(pod string, r volume.Ref) volume.IOLimits {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, v := m.pods[pod], m.volume(r); p != nil && v != nil && v.active {
		return p.limits[v.minor]
	}
	return volume.IOLimits{}
}

// pod finds the cgroup of a pod. With m.mu held.
func (m *Machine) pod(pod string) (*podGroup, error) {
	switch p := m.pods[pod]; {
	case p == nil:
		return nil, fmt.Errorf("%w: pod %s has no cgroup", volume.ErrNotFound, pod)
	case !p.io:
		return nil, fmt.Errorf(`%w: the controller "io" is not enabled for the cgroups of pods`, volume.ErrPrecondition)
	default:
		return p, nil
	}
}

// IOLimits implements lifecycle.Cgroups.
func (c *Cgroups) IOLimits(_ context.Context, pod string, d volume.Device) (volume.IOLimits, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.pod(pod)
	if err != nil {
		return volume.IOLimits{}, err
	}
	return p.limits[d.Minor], nil
}

// SetIOLimits implements lifecycle.Cgroups.
func (c *Cgroups) SetIOLimits(ctx context.Context, pod string, d volume.Device, l volume.IOLimits) error {
	if is, err := c.IOLimits(ctx, pod, d); err != nil || is == l {
		return err
	}
	return c.change(ctx, "iomax", strings.Join([]string{pod, d.Path}, " "), func() error {
		p, err := c.pod(pod)
		if err == nil {
			p.limits[d.Minor] = l
		}
		return err
	})
}
