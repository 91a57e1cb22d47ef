package volume

import (
	"slices"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	for name, tt := range map[string]struct {
		c     Capability
		p     Parameters
		want  FS
		field string // of the error
	}{
		"nothing said":        {Capability{}, Parameters{}, Ext4, ""},
		"capability":          {Capability{FS: XFS}, Parameters{}, XFS, ""},
		"parameter":           {Capability{}, Parameters{FS: Btrfs}, Btrfs, ""},
		"both":                {Capability{FS: XFS}, Parameters{FS: XFS}, XFS, ""},
		"both, not one":       {Capability{FS: XFS}, Parameters{FS: Ext4}, "", KeyFSType},
		"block":               {Capability{Block: true}, Parameters{}, "", ""},
		"block, fs parameter": {Capability{Block: true}, Parameters{FS: XFS}, "", ""},
		"block, options":      {Capability{Block: true}, Parameters{MkfsOptions: []string{"-m", "0"}}, "", "parameters[mkfsOptions]"},
	} {
		f, err := tt.c.Format(tt.p)
		if tt.field != "" {
			wantField(t, err, tt.field)
		} else if err != nil || f.FS != tt.want {
			t.Errorf("%s: got %+v, %v; want %s", name, f, err, tt.want)
		}
	}
}

func TestMkfsOptions(t *testing.T) {
	for _, tt := range []struct {
		fs   FS
		text string
		ok   bool
	}{
		{Ext4, "", true},
		{Ext4, "-m 0 -O ^has_journal,metadata_csum -E lazy_itable_init=0,lazy_journal_init=0 -F", true},
		{Ext4, "-m0 -b4096 -I 256", true},
		{XFS, "-f -m crc=1,finobt=1 -i nrext64=0 -d su=64k,sw=4 -K", true},
		{Btrfs, "-f -m dup --csum xxhash --checksum=xxhash -O no-holes", true},
		{Ext4, "-m", false},
		{Ext4, "-F /dev/sda", false},
		{Ext4, "-F sda", false},
		{Ext4, "/dev/sda", false},
		{Ext4, "1024", false},
		{Ext4, "-m -F", false},         // a value is missing
		{Ext4, "-Fq", false},           // only one option a word
		{Ext4, "-d /etc", false},       // copies the host's files
		{Ext4, "-d etc", false},        //
		{Ext4, "-z undo", false},       // writes a file
		{Ext4, "-l blocks", false},     // reads one
		{Ext4, "-S", false},            // superblocks only
		{Ext4, "-n", false},            // does nothing
		{Ext4, "-J device=sdb", false}, // another device
		{Ext4, "-J size=4,device=UUID", false},
		{Ext4, "-L /x", false},
		{Ext4, "--", false},
		{Ext4, "-", false},
		{XFS, "-l logdev=sdb", false},
		{XFS, "-r rtdev=sdb", false},
		{XFS, "-d file=1,name=x", false},
		{XFS, "-p proto", false},
		{XFS, "-c options=x", false},
		{XFS, "-N", false},
		{XFS, "-O x", false}, // ext4's
		{Btrfs, "-f sdb", false},
		{Btrfs, "--rootdir etc", false},
		{Btrfs, "-r etc", false},
		{Btrfs, "--rootdir=etc", false},
		{Btrfs, "--csum=", false},
		{Btrfs, "--mixed=yes", false},
	} {
		words, err := parseMkfsOptions("f", tt.text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Capability{FS: tt.fs}.Format(Parameters{MkfsOptions: words})
		if tt.ok && err != nil {
			t.Errorf("mkfs.%s %s: %v", tt.fs, tt.text, err)
		} else if !tt.ok {
			wantField(t, err, KeyMkfsOptions)
		}
	}
}

// case B56
func TestMountFlags(t *testing.T) {
	for _, flags := range [][]string{nil, {"noatime", "nodev"}, {"noatime,nodev"}, {"ro"}, {`context="system_u:object_r:x:s0:c1,c2"`}, {`context="x:c1`, `c2"`}, {strings.Repeat("x", 4096)}} {
		if err := CheckMountFlags(flags); err != nil {
			t.Errorf("%q: %v", flags, err)
		}
	}
	for _, flags := range [][]string{
		{"bind"}, {"noatime,rbind"}, {"remount"}, {"move"}, {"rshared"}, {"private=1"}, {"device=/dev/sda"}, {"noatime,logdev=/dev/sda"}, {`context="a`}, {`noatime"`}, {""}, {"a,,b"}, {"a,"}, {"a b"}, {"a\n"}, {"ä"}, {"=x"},
		{strings.Repeat("x", 4097)}, slices.Repeat([]string{"x"}, 3000),
	} {
		wantField(t, CheckMountFlags(flags), "volume_capability.mount.mount_flags")
	}
	err := CheckMountFlags([]string{"password=hunter2\x01"})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v", err)
	}
	for _, tt := range []struct{ flags, want []string }{
		{nil, nil},
		{[]string{"ro,noatime", "ro", "x=1"}, []string{"noatime", "ro", "x=1"}},
		{[]string{"noatime", "strictatime", "noatime"}, []string{"strictatime", "noatime"}}, // the later counts
		{[]string{`context="x:c1,c2"`, "ro"}, []string{`context="x:c1,c2"`, "ro"}},
		{[]string{`context="x:c1`, `c2"`, "ro"}, []string{`context="x:c1,c2"`, "ro"}},
		{[]string{"", "a,,b"}, []string{"a", "b"}},
	} {
		if got := SplitFlags(tt.flags); !slices.Equal(got, tt.want) {
			t.Errorf("%q split: %q, want %q", tt.flags, got, tt.want)
		}
	}
	for _, c := range []Capability{{Mode: SingleNodeReaderOnly}, {MountFlags: []string{"noatime,ro"}}} {
		if !c.ReadOnly() {
			t.Errorf("%+v is not read-only", c)
		}
	}
	for _, flag := range []string{"errors=remount-ro", `context="x,ro"`, `context="x,ro,y"`} {
		if (Capability{Mode: SingleNodeWriter, MountFlags: []string{flag}}).ReadOnly() {
			t.Errorf("a writer with %s is read-only", flag)
		}
	}
}

func TestParseGroup(t *testing.T) {
	for s, want := range map[string]int{"0": 0, "1234": 1234, "2147483647": 1<<31 - 1} {
		if got, err := ParseGroup(s); err != nil || got == nil || *got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	if got, err := ParseGroup(""); got != nil || err != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, s := range []string{"staff", "-1", "+1", "1.5", "4294967295", "0x10", " 1", strings.Repeat("1", 10<<10)} {
		_, err := ParseGroup(s)
		wantField(t, err, "volume_capability.mount.volume_mount_group")
	}
}

func TestCheckPath(t *testing.T) {
	for _, p := range []string{"/a", "/var/lib/kubelet/pods/x/mount", "/a/", "/a//b", "/a b", "/ä", "/..a", "/" + strings.Repeat("x", 255), strings.Repeat("/x", 2047)} {
		if err := CheckPath("target_path", p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for _, p := range []string{
		"", "a", "./a", "../a", "/", "//", "/.", "/a/..", "/a/../b", "/..", "/a\x00b", "/a\nb", "/a\x7f", "/" + strings.Repeat("x", 256), "/a/" + strings.Repeat("ä", 128) + "/b", "/a" + strings.Repeat("/x", 2047), strings.Repeat("/x", 5<<10),
	} {
		wantField(t, CheckPath("target_path", p), "target_path")
	}
}
