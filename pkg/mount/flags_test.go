package mount

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

func TestSplitOptions(t *testing.T) {
	const nosuid, nodev, noexec, atimes = unix.MOUNT_ATTR_NOSUID, unix.MOUNT_ATTR_NODEV, unix.MOUNT_ATTR_NOEXEC, unix.MOUNT_ATTR__ATIME
	for _, tc := range []struct {
		flags      string // by blanks
		readOnly   bool
		set, clear uint64
		params     string // by blanks
	}{
		{flags: ""},
		{flags: "", readOnly: true, set: ro},
		{flags: "defaults rw"},
		{flags: "ro", set: ro},
		{flags: "ro rw", set: ro}, // case B56: read-only if any source says so
		{flags: "rw ro", set: ro},
		{flags: "rw", readOnly: true, set: ro},
		{flags: "nosuid,nodev noexec", set: nosuid | nodev | noexec},
		{flags: "nosuid suid", clear: nosuid},
		{flags: "suid nosuid", set: nosuid},
		{flags: "dev exec symfollow diratime", clear: nodev | noexec | unix.MOUNT_ATTR_NOSYMFOLLOW | unix.MOUNT_ATTR_NODIRATIME},
		{flags: "nosymfollow nodiratime", set: unix.MOUNT_ATTR_NOSYMFOLLOW | unix.MOUNT_ATTR_NODIRATIME},
		{flags: "noatime", set: unix.MOUNT_ATTR_NOATIME, clear: atimes &^ unix.MOUNT_ATTR_NOATIME},
		{flags: "noatime strictatime", set: unix.MOUNT_ATTR_STRICTATIME, clear: atimes},
		{flags: "strictatime relatime", clear: atimes},
		{flags: "_netdev nofail auto noauto x-systemd.automount X-mount.mkdir=0700 comment=x silent"},
		{flags: "discard data=ordered discard", params: "data=ordered discard"},
		{flags: "bogus", params: "bogus"},
		{flags: "sync lazytime", params: "sync lazytime"},
		{flags: `context="system_u:object_r:container_file_t:s0:c1,c2" noexec`, set: noexec, params: "context=system_u:object_r:container_file_t:s0:c1,c2"},
		{flags: `context="u:r:t:s0:c1 c2" noexec`, set: noexec, params: "context=u:r:t:s0:c1,c2"}, // split by somebody at its comma
		{flags: "ro=1", params: "ro=1"},
		{flags: "user", set: nosuid | nodev | noexec},
	} {
		a, params := splitOptions(volume.MountOptions{Flags: strings.Fields(tc.flags), ReadOnly: tc.readOnly})
		var got []string
		for _, p := range params {
			got = append(got, p.String())
		}
		// With a bit of the access times set, which others are cleared does not matter: setAttributes clears them all.
		if a.set != tc.set || a.clear|a.set&atimes != tc.clear|tc.set&atimes || !slices.Equal(got, strings.Fields(tc.params)) {
			t.Errorf("%q, read-only %v: set %#x clear %#x %q, want %#x %#x %q", tc.flags, tc.readOnly, a.set, a.clear, got, tc.set, tc.clear, tc.params)
		}
	}
}

func FuzzSplitOptions(f *testing.F) {
	for _, s := range []string{"ro,noatime", `context="a,b"`, `"`, `a"b,nosuid`, ",,=,x-=", "noatime,atime,suid,nosuid"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, params := splitOptions(volume.MountOptions{Flags: []string{s}})
		if a.set&a.clear&^unix.MOUNT_ATTR__ATIME != 0 {
			t.Errorf("sets and clears %#x", a.set&a.clear)
		}
		for _, p := range params {
			if _, known := perMount[p.String()]; known && p.flag {
				t.Errorf("%q goes to the file system", p)
			}
		}
		if strings.Count(s, `"`)%2 != 0 {
			return // all behind the odd one is one option, which no file system knows
		}
		again, more := splitOptions(volume.MountOptions{Flags: []string{s, s}})
		if again.set != a.set || !slices.Equal(more, params) {
			t.Errorf("given twice: %+v %v, once: %+v %v", again, more, a, params)
		}
	})
}
