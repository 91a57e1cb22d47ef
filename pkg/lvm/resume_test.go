package lvm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
)

// Uuids of the recorded machine "many", as device-mapper has them.
const (
	groupData   = "Pe9AzUP6KkmpHw0f7ZSswSP9R84dREA0"
	lvLinear    = "CGwZJz11nfNwWGOi1cZOTJe4nHkkvAen" // ours
	lvRaid1     = "KqOQBrORD3fg2xNUug3mqygl9IE8Ysg9" // ours
	lvForeign   = "z82FZz4b2eMcpZoYI2IGdAC3RTqCMPf7"
	lvPool      = "rX8xaPzORQwHGjaLabdg7PeXyryhSKxB" // somebody's; one of ours is in it
	lvInternal  = "IiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiI"
	groupOthers = "Oooooooooooooooooooooooooooooooo"
)

// dmSys is sysfs with device-mapper devices.
type dmSys struct {
	t   *testing.T
	sys string
}

func (s dmSys) put(name, file, text string) {
	s.t.Helper()
	path := filepath.Join(s.sys, "block", name, file)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text+"\n"), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s dmSys) device(name, uuid string, suspended bool, below ...string) {
	s.put(name, "dm/uuid", uuid)
	s.put(name, "dm/name", "the-"+name)
	s.put(name, "dm/suspended", map[bool]string{false: "0", true: "1"}[suspended])
	for _, b := range below {
		s.put(name, "slaves/"+b, "")
		s.put(b, "holders/"+name, "")
	}
}

// case B15: what is resumed, in which order, and what is not.
func TestResume(t *testing.T) {
	for _, c := range []struct {
		name    string
		devices func(s dmSys)
		want    string
		wrong   string // in the error
	}{
		{"none", func(s dmSys) { s.device("dm-0", dmPrefix+groupData+lvLinear, false) }, "", ""},
		{"one that is not LVM's", func(s dmSys) { s.device("dm-0", "CRYPT-x", true) }, "", ""},
		{"a disk below ours", func(s dmSys) {
			s.device("dm-0", "CRYPT-x", true)
			s.device("dm-1", dmPrefix+groupData+lvLinear, false, "dm-0")
			s.device("dm-2", dmPrefix+groupData+lvRaid1, true)
		}, "data/raid1", "dmsetup resume the-dm-0"},
		{"ours", func(s dmSys) { s.device("dm-0", dmPrefix+groupData+lvLinear, true) }, "data/linear", ""},
		{"not ours", func(s dmSys) { s.device("dm-0", dmPrefix+groupData+lvForeign, true) }, "", ""},
		{"of another group", func(s dmSys) { s.device("dm-0", dmPrefix+groupOthers+lvLinear, true) }, "", ""},
		{"the pool of one of ours, first", func(s dmSys) {
			s.device("dm-0", dmPrefix+groupData+lvLinear, true)
			s.device("dm-2", dmPrefix+groupData+lvPool+"-tpool", true)
			s.device("dm-3", dmPrefix+groupData+lvPool, false, "dm-2")
		}, "data/pool data/linear", ""},
		{"the whole of a mirror, once", func(s dmSys) {
			s.device("dm-0", dmPrefix+groupData+lvInternal, true)
			s.device("dm-1", dmPrefix+groupData+strings.ToLower(lvInternal), true)
			s.device("dm-2", dmPrefix+groupData+lvRaid1, true, "dm-0", "dm-1")
		}, "data/raid1", ""},
		{"a part of a mirror", func(s dmSys) {
			s.device("dm-0", dmPrefix+groupData+lvInternal, true)
			s.device("dm-2", dmPrefix+groupData+lvRaid1, false, "dm-0")
		}, "", "dmsetup resume the-dm-0"},
		{"internal to one that is not ours", func(s dmSys) {
			s.device("dm-0", dmPrefix+groupData+lvInternal, true)
			s.device("dm-2", dmPrefix+groupData+lvForeign, false, "dm-0")
		}, "", ""},
		{"of a logical volume that is gone", func(s dmSys) { s.device("dm-0", dmPrefix+groupData+lvInternal, true) }, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "data")
			c.devices(dmSys{t, r.dm.sys})
			var refreshed []string
			r.answer = func(verb string, args []string) (run.Result, error) {
				switch {
				case verb == "fullreport":
					return run.Result{Stdout: r.reportText(t, "many")}, nil
				case verb == "lvchange" && slices.Equal(args[:len(args)-1], []string{"-y", "--refresh"}):
					refreshed = append(refreshed, args[len(args)-1])
					return run.Result{}, nil
				}
				return run.Result{}, fmt.Errorf("unexpected %s %v", verb, args)
			}
			resumed, err := r.Resume(t.Context())
			if got := strings.Join(refreshed, " "); got != c.want || len(resumed) != len(refreshed) {
				t.Errorf("refreshed %q, said %v, want %q", got, resumed, c.want)
			}
			if (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want an error that says %q", err, c.wrong)
			}
			if strings.HasPrefix(c.name, "none") && len(r.asked) != 0 {
				t.Errorf("asked LVM %v", r.asked)
			}
		})
	}
}

func TestResumeFails(t *testing.T) {
	r := newRig(t, "data")
	dmSys{t, r.dm.sys}.device("dm-0", dmPrefix+groupData+lvLinear, true)
	r.answer = func(verb string, _ []string) (run.Result, error) {
		if verb == "fullreport" {
			return run.Result{Stdout: r.reportText(t, "many")}, nil
		}
		return run.Result{}, failed("no")
	}
	if resumed, err := r.Resume(t.Context()); err == nil || len(resumed) != 0 || !strings.Contains(err.Error(), "data/linear") {
		t.Errorf("got %v, %v", resumed, err)
	}
	r.answer = func(string, []string) (run.Result, error) { return run.Result{}, failed("no") }
	if _, err := r.Resume(t.Context()); err == nil {
		t.Error("LVM reports nothing, and there is no error")
	}
}

// A device is as good as suspended when one that it lies on is.
func TestSuspendedBelow(t *testing.T) {
	d := newDeviceMapper(t.TempDir(), t.TempDir(), nil)
	s := dmSys{t, d.sys}
	s.device("dm-0", "a", true)
	s.device("dm-1", "b", false, "dm-0", "sda1")
	s.device("dm-2", "c", false, "dm-1")
	s.device("dm-3", "d", false, "sda1")
	for name, want := range map[string]bool{"dm-0": false, "dm-1": true, "dm-2": true, "dm-3": false, "dm-4": false} {
		if got, err := d.suspendedBelow(name, 0); got != want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}
