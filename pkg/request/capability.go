// Package request turns CSI messages into plain values, and says what is wrong with them. It has no effects, asks
// nothing of the world, and makes no gRPC status: bad input is a volume.ErrInvalid that names field, value and remedy.
// The controller and the node share it, so that both refuse the same things in the same words.
package request

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// ErrUnsupported marks a capability that is well formed but that no volume of this driver can have. It comes together
// with volume.ErrInvalid: ValidateVolumeCapabilities and GetCapacity answer it (with "not confirmed", and with no
// capacity), every other call refuses it.
var ErrUnsupported = errors.New("unsupported capability")

type unsupported struct{ error }

func (u unsupported) Unwrap() error        { return u.error }
func (u unsupported) Is(target error) bool { return target == ErrUnsupported }

// Capability reads one volume capability. It must name an access type and an access mode; mount flags, file system
// type and group are checked.
func Capability(c *csi.VolumeCapability) (volume.Capability, error) {
	if c == nil {
		return volume.Capability{}, volume.Invalid("volume_capability", "", "missing; it is required")
	}
	out, err := accessType(c)
	if err != nil {
		return volume.Capability{}, err
	}
	out.Mode, err = accessMode(c.GetAccessMode())
	return out, err
}

// Optional reads a capability that a call may name; nil where it does not.
func Optional(c *csi.VolumeCapability) (*volume.Capability, error) {
	if c == nil {
		return nil, nil
	}
	out, err := Capability(c)
	return &out, err
}

func accessType(c *csi.VolumeCapability) (out volume.Capability, err error) {
	switch c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		out.Block = true
		return out, nil
	case *csi.VolumeCapability_Mount:
	default:
		return out, volume.Invalid("volume_capability.access_type", "", "missing; say block or mount")
	}
	m := c.GetMount()
	if out.FS, err = volume.ParseFS("volume_capability.mount.fs_type", m.GetFsType()); err != nil {
		return out, unsupported{err}
	}
	if err := volume.CheckMountFlags(m.GetMountFlags()); err != nil {
		return out, err
	}
	out.MountFlags = m.GetMountFlags()
	out.Group, err = volume.ParseGroup(m.GetVolumeMountGroup())
	return out, err
}

// The CSI access modes by number. The spec's words for the modes are the driver's, so a mode outside the table is one
// that this build does not know.
var accessModes = map[csi.VolumeCapability_AccessMode_Mode]volume.AccessMode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        volume.SingleNodeWriter,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   volume.SingleNodeReaderOnly,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: volume.SingleNodeSingleWriter,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  volume.SingleNodeMultiWriter,
}

func accessMode(m *csi.VolumeCapability_AccessMode) (volume.AccessMode, error) {
	const field = "volume_capability.access_mode"
	mode := m.GetMode()
	if known, ok := accessModes[mode]; ok {
		return known, nil
	}
	switch mode {
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return "", volume.Invalid(field, mode.String(), "missing; it is required")
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return "", unsupported{volume.Invalid(field, mode.String(),
			"a logical volume is on one node only; use one of the SINGLE_NODE modes (ReadWriteOnce, ReadWriteOncePod)")}
	}
	return "", volume.Invalid(field, mode.String(), fmt.Sprintf("not a mode of the CSI specification this driver knows; use one of %v", volume.AccessModes))
}

// Capabilities reads the capabilities a volume must have, all of them (CSI spec, CreateVolumeRequest). There must be
// at least one, and one volume must be able to satisfy them all: a volume carries a file system or is a raw block
// device, never both, because whoever writes to the raw device destroys the file system.
func Capabilities(list []*csi.VolumeCapability) ([]volume.Capability, error) {
	const field = "volume_capabilities"
	if len(list) == 0 {
		return nil, volume.Invalid(field, "", "missing; at least one is required")
	}
	out := make([]volume.Capability, 0, len(list))
	var fs volume.FS
	for _, m := range list {
		c, err := Capability(m)
		if err != nil {
			return nil, err
		}
		if len(out) > 0 && c.Block != out[0].Block {
			return nil, unsupported{volume.Invalid(field, "block and mount", "one volume cannot be both; ask for two volumes")}
		}
		if fs != "" && c.FS != "" && c.FS != fs {
			return nil, unsupported{volume.Invalid(field, fmt.Sprintf("fs_type %s and %s", fs, c.FS), "one volume carries one file system; name one")}
		}
		if c.FS != "" {
			fs = c.FS
		}
		out = append(out, c)
	}
	return out, nil
}

// Format gives what a volume of these capabilities and parameters carries. The capabilities are as Capabilities returns
// them: they agree with each other, and those that name no file system take the one that another names.
func Format(caps []volume.Capability, p volume.Parameters) (volume.Format, error) {
	for _, c := range caps {
		if c.FS != "" {
			return c.Format(p)
		}
	}
	return caps[0].Format(p)
}
