package driver

import (
	"errors"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestExecPrefix(t *testing.T) {
	for _, c := range []struct {
		mode string
		pid  int
		want string
		err  error
	}{
		{ExecContainer, 1, "", nil},
		{ExecContainer, 77, "", nil},
		{ExecHost, 77, "nsenter --target 1 --mount --ipc --uts --", nil},
		{ExecHost, 1, "", volume.ErrInvalid},
	} {
		got, err := execPrefix(c.mode, c.pid)
		if strings.Join(got, " ") != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s as process %d: %q %v", c.mode, c.pid, got, err)
		}
	}
}

func TestRealRefusesWhatLVMRefuses(t *testing.T) {
	cfg := valid()
	if _, err := Real(cfg, nil); err != nil {
		t.Error(err)
	}
	cfg.VolumeGroups = nil
	if _, err := Real(cfg, nil); !errors.Is(err, volume.ErrInvalid) {
		t.Error(err)
	}
}
