package contract

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

func expanding(kind string) func(c caller) act {
	return func(c caller) act {
		v := c.swept(kind, mountCapability(""))
		v.fill()
		return act{
			call: func() error { _, err := c.expandTo(v.id, capacityRange(32*mib, 0), nil); return err },
			verify: func() error {
				if f, ok := c.LV(c.t, v.ref()); !ok || f.SizeBytes != 32*mib {
					return fmt.Errorf("the volume has %d bytes", f.SizeBytes)
				}
				return v.holds()
			},
			undo: v.takeBack,
		}
	}
}

func expandingOnNode(cap *csi.VolumeCapability) func(c caller) act {
	return func(c caller) act {
		v := c.swept("linear", cap)
		v.fill()
		c.ok(v.publish(v.target))
		return act{
			call:   func() error { _, err := v.nodeExpandTo(v.target, capacityRange(32*mib, 0), cap); return err },
			verify: func() error { return errors.Join(v.grown(v.target), v.holds()) },
			undo:   v.takeBack,
		}
	}
}

func stagingLarger(c caller) act {
	v := c.swept("linear", mountCapability(""))
	v.fill()
	c.ok(v.unstage())
	_, err := c.expandTo(v.id, capacityRange(32*mib, 0), nil)
	c.ok(err)
	return act{call: v.stage, verify: func() error { return errors.Join(v.grown(v.staging), v.holds()) }, undo: v.takeBack}
}

// grown checks that whoever uses the volume at the path has all of its 32 MiB.
func (v swept) grown(path string) error {
	if total := v.total(path); total < 20*mib {
		return fmt.Errorf("at %s there are %d bytes", path, total)
	}
	return nil
}
