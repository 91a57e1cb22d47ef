package request

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	writer      = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	multiReader = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
)

func mount(mode csi.VolumeCapability_AccessMode_Mode, fs string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

func block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

// wantField checks that the error is the ErrInvalid of this field.
func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var fe *volume.FieldError
	if !errors.As(err, &fe) || !errors.Is(err, volume.ErrInvalid) {
		t.Fatalf("error is %v, want an ErrInvalid of %s", err, field)
	}
	if fe.Field != field || fe.Remedy == "" {
		t.Errorf("field is %q, remedy %q, want field %q and a remedy", fe.Field, fe.Remedy, field)
	}
}

// case B21
func TestBadCapability(t *testing.T) {
	group := mount(writer, "ext4")
	group.GetMount().VolumeMountGroup = "staff"
	noMode := block(writer)
	noMode.AccessMode = nil
	for name, tt := range map[string]struct {
		in          *csi.VolumeCapability
		field       string
		unsupported bool
	}{
		"nil":               {nil, "volume_capability", false},
		"empty":             {&csi.VolumeCapability{}, "volume_capability.access_type", false},
		"no access type":    {&csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer}}, "volume_capability.access_type", false},
		"no access mode":    {noMode, "volume_capability.access_mode", false},
		"mode 0":            {block(0), "volume_capability.access_mode", false},
		"mode of a future":  {block(99), "volume_capability.access_mode", false},
		"mode -1":           {block(-1), "volume_capability.access_mode", false},
		"multi-node reader": {block(multiReader), "volume_capability.access_mode", true},
		"multi-node single": {block(csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER), "volume_capability.access_mode", true},
		"multi-node multi":  {mount(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, ""), "volume_capability.access_mode", true},
		"file system":       {mount(writer, "ntfs"), "volume_capability.mount.fs_type", true},
		"file system, 10k":  {mount(writer, strings.Repeat("x", 10<<10)), "volume_capability.mount.fs_type", true},
		"flag bind":         {mount(writer, "", "noatime,bind"), "volume_capability.mount.mount_flags", false},
		"flags, 10k":        {mount(writer, "", strings.Repeat("x", 10<<10)), "volume_capability.mount.mount_flags", false},
		"group by name":     {group, "volume_capability.mount.volume_mount_group", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Capability(tt.in)
			wantField(t, err, tt.field)
			if got := errors.Is(err, ErrUnsupported); got != tt.unsupported {
				t.Errorf("ErrUnsupported is %v, want %v", got, tt.unsupported)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
			// In a list the same is found behind a good one.
			if tt.in.GetMount() != nil {
				_, err = Capabilities([]*csi.VolumeCapability{mount(writer, ""), tt.in})
			} else {
				_, err = Capabilities([]*csi.VolumeCapability{block(writer), tt.in})
			}
			wantField(t, err, tt.field)
		})
	}
}

func TestCapability(t *testing.T) {
	m := mount(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, "xfs", "noatime", "nodev")
	m.GetMount().VolumeMountGroup = "1234"
	c, err := Capability(m)
	if err != nil {
		t.Fatal(err)
	}
	if c.Block || c.FS != volume.XFS || c.Mode != volume.SingleNodeMultiWriter || len(c.MountFlags) != 2 || c.Group == nil || *c.Group != 1234 {
		t.Errorf("got %+v", c)
	}
	// An access type that is there but empty says mount: nothing in it is required.
	c, err = Capability(&csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{}, AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer}})
	if err != nil || c.Block || c.FS != "" || c.Group != nil {
		t.Errorf("empty mount: got %+v, %v", c, err)
	}
	c, err = Capability(block(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY))
	if err != nil || !c.Block || !c.ReadOnly() {
		t.Errorf("block reader: got %+v, %v", c, err)
	}
	if len(accessModes) != len(volume.AccessModes) {
		t.Errorf("the table has %d modes, the driver takes %d", len(accessModes), len(volume.AccessModes))
	}
	for number, mode := range accessModes {
		if number.String() != string(mode) {
			t.Errorf("mode %d is %s, not %s", number, number, mode)
		}
	}
}

func TestCapabilities(t *testing.T) {
	for name, tt := range map[string]struct {
		in          []*csi.VolumeCapability
		field       string // of the error, "" where there is none
		unsupported bool
		want        volume.Format
	}{
		"none":           {nil, "volume_capabilities", false, volume.Format{}},
		"one nil":        {[]*csi.VolumeCapability{nil}, "volume_capability", false, volume.Format{}},
		"one":            {[]*csi.VolumeCapability{mount(writer, "")}, "", false, volume.Format{FS: volume.Ext4}},
		"second says fs": {[]*csi.VolumeCapability{mount(writer, ""), mount(writer, "xfs")}, "", false, volume.Format{FS: volume.XFS}},
		"first says fs":  {[]*csi.VolumeCapability{mount(writer, "btrfs"), mount(writer, "")}, "", false, volume.Format{FS: volume.Btrfs}},
		"two fs":         {[]*csi.VolumeCapability{mount(writer, "ext4"), mount(writer, ""), mount(writer, "xfs")}, "volume_capabilities", true, volume.Format{}},
		"blocks":         {[]*csi.VolumeCapability{block(writer), block(writer)}, "", false, volume.Format{}},
		"block, mount":   {[]*csi.VolumeCapability{block(writer), mount(writer, "")}, "volume_capabilities", true, volume.Format{}},
		"mount, block":   {[]*csi.VolumeCapability{mount(writer, "ext4"), block(writer)}, "volume_capabilities", true, volume.Format{}},
	} {
		t.Run(name, func(t *testing.T) {
			caps, err := Capabilities(tt.in)
			if tt.field != "" {
				wantField(t, err, tt.field)
				if got := errors.Is(err, ErrUnsupported); got != tt.unsupported {
					t.Errorf("ErrUnsupported is %v, want %v", got, tt.unsupported)
				}
				return
			}
			if err != nil || len(caps) != len(tt.in) {
				t.Fatalf("got %d capabilities, error %v", len(caps), err)
			}
			f, err := Format(caps, volume.Parameters{})
			if err != nil || f.FS != tt.want.FS {
				t.Errorf("format is %+v, %v; want %+v", f, err, tt.want)
			}
		})
	}
}

func TestFormatOfParameters(t *testing.T) {
	caps, _ := Capabilities([]*csi.VolumeCapability{mount(writer, ""), mount(writer, "xfs")})
	if _, err := Format(caps, volume.Parameters{FS: volume.Ext4}); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("capability xfs, parameter ext4: got %v, want ErrInvalid", err)
	}
	if f, err := Format(caps, volume.Parameters{FS: volume.XFS}); err != nil || f.FS != volume.XFS {
		t.Errorf("both xfs: got %+v, %v", f, err)
	}
}

func TestRange(t *testing.T) {
	for _, tt := range []struct {
		in              *csi.CapacityRange
		required, limit int64
		want            error
	}{
		{nil, 0, 0, nil},
		{&csi.CapacityRange{}, 0, 0, nil},
		{&csi.CapacityRange{RequiredBytes: 5, LimitBytes: 6}, 5, 6, nil},
		{&csi.CapacityRange{RequiredBytes: 5, LimitBytes: 5}, 5, 5, nil},
		{&csi.CapacityRange{LimitBytes: 6}, 0, 6, nil},
		{&csi.CapacityRange{RequiredBytes: math.MaxInt64}, math.MaxInt64, 0, nil},
		{&csi.CapacityRange{RequiredBytes: -1}, -1, 0, volume.ErrInvalid},
		{&csi.CapacityRange{LimitBytes: -1}, 0, -1, volume.ErrInvalid},
		{&csi.CapacityRange{RequiredBytes: math.MinInt64, LimitBytes: math.MinInt64}, math.MinInt64, math.MinInt64, volume.ErrInvalid},
		{&csi.CapacityRange{RequiredBytes: 8, LimitBytes: 4}, 8, 4, volume.ErrOutOfRange},
	} {
		required, limit, err := Range(tt.in)
		if required != tt.required || limit != tt.limit || !errors.Is(err, tt.want) {
			t.Errorf("Range(%v) = %d, %d, %v; want %d, %d, %v", tt.in, required, limit, err, tt.required, tt.limit, tt.want)
		}
	}
}

func TestTopology(t *testing.T) {
	here := Topology{Key: TopologyKey("local-lvm.csi.internal"), Node: "node-1"}
	if here.Key != "topology.local-lvm.csi.internal/node" {
		t.Fatalf("key is %s", here.Key)
	}
	if !here.Is(here.Message()) {
		t.Error("our own topology is not ours")
	}
	segments := func(kv ...string) *csi.Topology {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return &csi.Topology{Segments: m}
	}
	list := func(l ...*csi.Topology) []*csi.Topology { return l }
	other := segments(here.Key, "node-2")
	for name, tt := range map[string]struct {
		in   *csi.TopologyRequirement
		want error
	}{
		"nil":                  {nil, nil},
		"empty":                {&csi.TopologyRequirement{}, volume.ErrInvalid},
		"nil topology":         {&csi.TopologyRequirement{Requisite: list(nil)}, volume.ErrInvalid},
		"no segments":          {&csi.TopologyRequirement{Requisite: list(here.Message(), segments())}, volume.ErrInvalid},
		"preferred, nil":       {&csi.TopologyRequirement{Preferred: list(nil)}, volume.ErrInvalid},
		"here":                 {&csi.TopologyRequirement{Requisite: list(here.Message())}, nil},
		"other letters in key": {&csi.TopologyRequirement{Requisite: list(segments("Topology.Local-LVM.csi.internal/Node", "node-1"))}, nil},
		"other letters, value": {&csi.TopologyRequirement{Requisite: list(segments(here.Key, "Node-1"))}, volume.ErrNoSpace},
		"there":                {&csi.TopologyRequirement{Requisite: list(other)}, volume.ErrNoSpace},
		"there and here":       {&csi.TopologyRequirement{Requisite: list(other, here.Message()), Preferred: list(other)}, nil},
		"there, preferred":     {&csi.TopologyRequirement{Requisite: list(other), Preferred: list(here.Message())}, volume.ErrNoSpace},
		"only preferred there": {&csi.TopologyRequirement{Preferred: list(other)}, nil},
		"here and a zone":      {&csi.TopologyRequirement{Requisite: list(segments(here.Key, "node-1", "zone", "z"))}, volume.ErrNoSpace},
		"only a zone":          {&csi.TopologyRequirement{Requisite: list(segments("zone", "z"))}, volume.ErrNoSpace},
	} {
		if err := here.Check(tt.in); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
}
