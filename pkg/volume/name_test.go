package volume

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// case B30
func TestLVName(t *testing.T) {
	inline := "csi-" + strings.Repeat("0123456789abcdef", 4)
	for _, tt := range []struct {
		kind   Kind
		name   string
		direct bool // the logical volume has the CO's name
	}{
		{Persistent, "pvc-0b5c7c5e-2c1b-4ac4-9d3e-1f2d3c4b5a69", true},
		{Persistent, "lvol0", true},
		{Persistent, "a--b", true},
		{Persistent, "a-", true},
		{Persistent, "A", true},
		{Persistent, strings.Repeat("x", 48), true},
		{Persistent, strings.Repeat("x", 49), false},
		{Persistent, strings.Repeat("x", 128), false},
		{Persistent, strings.Repeat("-", 36), false},
		{Persistent, "a" + strings.Repeat("-", 36), false}, // 73 bytes within a device-mapper name
		{Persistent, "snapshot-0b5c7c5e", false},
		{Persistent, "snapshot", false},
		{Persistent, "pvmove0", false},
		{Persistent, "a_tdata", false},
		{Persistent, "x_rimage_0", false},
		{Persistent, "lvol0_pmspare", false},
		{Persistent, "-rf", false},
		{Persistent, "--yes", false},
		{Persistent, "-a", false},
		{Persistent, ".", false},
		{Persistent, "..", false},
		{Persistent, "a/b", false},
		{Persistent, "../../etc", false},
		{Persistent, "a b", false},
		{Persistent, "Ä", false},
		{Persistent, "a\n", false},
		{Persistent, "@tag", false},
		{Persistent, "", false},
		{Persistent, inline, false},                               // would be an inline volume's
		{Persistent, "v-0123456789abcdef0123456789abcdef", false}, // would be a hashed one's
		{Persistent, "s-0123456789abcdef0123456789abcdef", false}, // would be a snapshot's
		{Persistent, "v-0123456789abcdef0123456789abcdeff", true}, // 33 digits: no hashed one
		{Persistent, "v-0123456789ABCDEF0123456789ABCDEF", true},  // nor this
		{Inline, inline, true},
		{Inline, "csi-1", true},
		{Inline, "pvc-1", false},
		{Inline, inline + "0", false},
		{Inline, "csi-" + strings.Repeat("-", 40), false},
		{Snapshot, "snapshot-1", false},
		{Snapshot, "pvc-1", false},
		{Snapshot, inline, false},
	} {
		lv := LVName(tt.kind, tt.name)
		if (lv == tt.name) != tt.direct {
			t.Errorf("LVName(%s, %q) = %s; want the name itself: %v", tt.kind, tt.name, lv, tt.direct)
		}
		if !usableLV(lv) {
			t.Errorf("LVName(%s, %q) = %s, which LVM does not take", tt.kind, tt.name, lv)
		}
	}
}

// Names that would be one after replacing what LVM does not take, or after cutting.
// case B30
func TestLVNamesDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, kind := range []Kind{Persistent, Inline, Snapshot} {
		for _, name := range []string{
			"a b", "a_b", "a-b", "a/b", "a.b", "a\tb", "A-b", "Ä", "A", "a", "ä", "a\u0308", // the last two look alike
			strings.Repeat("x", 48), strings.Repeat("x", 49), strings.Repeat("x", 127), strings.Repeat("x", 128), strings.Repeat("x", 127) + "y",
			"csi-1", "snapshot-1", "snapshot_1", "v-0123456789abcdef0123456789abcdef",
			LVName(Persistent, "a b"), LVName(Inline, "a b"), LVName(Snapshot, "a b"),
		} {
			lv := LVName(kind, name)
			key := string(kind) + " " + name
			if other, taken := seen[lv]; taken {
				t.Errorf("%q and %q are both %s", other, key, lv)
			}
			seen[lv] = key
		}
	}
}

// Ids outlive any build, so the hash must never change. It is that of: printf 'persistent\0snapshot-1' | sha256sum
func TestLVNameIsStable(t *testing.T) {
	for _, tt := range []struct {
		kind       Kind
		name, want string
	}{
		{Persistent, "snapshot-1", "v-d5662876a91e44235695cc1d3cd4b473"},
		{Inline, "x", "i-d8af4461dd36b1c622d02fb30dab39c3"},
		{Snapshot, "x", "s-534cd2149df8e4d3bae26d6f8d2db91e"},
	} {
		if got := LVName(tt.kind, tt.name); got != tt.want {
			t.Errorf("LVName(%s, %q) = %s, want %s", tt.kind, tt.name, got, tt.want)
		}
	}
}

func TestCheckVG(t *testing.T) {
	for _, vg := range []string{"vg", "vg-0", "a.b_c+d", strings.Repeat("g", 32), "a" + strings.Repeat("-", 19)} {
		if err := CheckVG("f", vg); err != nil {
			t.Errorf("CheckVG(%q): %v", vg, err)
		}
	}
	for _, vg := range []string{
		"", ".", "..", "-x", "a/b", "a b", "a*", "vg?", "[ab]", "@t", "a\n", "Ä", strings.Repeat("g", 33), "a" + strings.Repeat("-", 20),
		strings.Repeat("g", 10<<10),
	} {
		wantField(t, CheckVG("f", vg), "f")
	}
}

func TestDMName(t *testing.T) {
	if got := DMName(Ref{"vg-0", "pvc-a--b"}); got != "vg--0-pvc--a----b" {
		t.Errorf("got %s", got)
	}
	if DMName(Ref{"a-b", "c"}) == DMName(Ref{"a", "b-c"}) {
		t.Error("two volumes have one device")
	}
}

func TestShortNode(t *testing.T) {
	long := "ip-10-0-0-1." + strings.Repeat("subdomain.", 10) + "example.com"
	for _, tt := range []struct{ name, want string }{
		{"node-1", "node-1"},
		{strings.Repeat("n", 46), strings.Repeat("n", 46)},
		{long, "ip-10-0-0-1.subdomain.subdoma-"},
		{strings.Repeat("n", 28) + "." + strings.Repeat("m", 100), strings.Repeat("n", 28) + "-"}, // no dot before the dash
		{strings.Repeat("n", 253), strings.Repeat("n", 29) + "-"},
	} {
		got, err := ShortNode(tt.name)
		if err != nil || !strings.HasPrefix(got, tt.want) || len(got) > maxNode {
			t.Errorf("ShortNode(%s) = %s, %v; want %s...", tt.name, got, err, tt.want)
		}
		if _, err := ParseID(got + "/vg/lv"); err != nil {
			t.Errorf("%s cannot stand in an id: %v", got, err)
		}
		if again, _ := ShortNode(got); again != got {
			t.Errorf("the short name %s is shortened again, to %s", got, again)
		}
	}
	a, _ := ShortNode(long)
	b, _ := ShortNode(long + "x")
	if a == b {
		t.Error("two nodes have one short name")
	}
	for _, bad := range []string{"", "-n", "n-", "n.", "a/b", "a b", "..", "Ä", "n\n", strings.Repeat("n", 254)} {
		_, err := ShortNode(bad)
		wantField(t, err, "--node-name")
	}
}

// case B30
func FuzzLVName(f *testing.F) {
	for _, s := range []string{"pvc-1", "csi-1", "snapshot-1", "a_tdata", "-rf", "..", "Ä", "v-0123456789abcdef0123456789abcdef", strings.Repeat("x", 128)} {
		f.Add(s, "a b")
	}
	kinds := []Kind{Persistent, Inline, Snapshot}
	f.Fuzz(func(t *testing.T, a, b string) {
		seen := map[string]string{}
		for _, kind := range kinds {
			for _, name := range []string{a, b} {
				lv := LVName(kind, name)
				if lv != LVName(kind, name) {
					t.Fatal("not deterministic")
				}
				if !usableLV(lv) || CheckLV("lv", lv) != nil {
					t.Fatalf("%q: LVM does not take %s", name, lv)
				}
				vg := strings.Repeat("g", 24) + strings.Repeat("-", 8) // the longest a group may be in a device name
				if n := len(DMName(Ref{vg, lv})); n > 127-16 {
					t.Fatalf("%q: the device-mapper name has %d bytes", name, n)
				}
				if kind == Persistent {
					id := ID{strings.Repeat("n", maxNode), Ref{strings.Repeat("g", maxVG), lv}}
					if back, err := ParseID(id.String()); err != nil || back != id {
						t.Fatalf("%q: no valid id: %v", name, err)
					}
				}
				if hashed := hashedName.MatchString(lv); hashed == (lv == name) {
					t.Fatalf("%s %q is %s: either the name itself or a hash", kind, name, lv)
				}
				key := string(kind) + "\x00" + name
				if other, taken := seen[lv]; taken && other != key {
					t.Fatalf("%q and %q are both %s", other, key, lv)
				}
				seen[lv] = key
			}
		}
		if !utf8.ValidString(LVName(Persistent, a)) {
			t.Fatal("not UTF-8")
		}
	})
}

func TestKindByName(t *testing.T) {
	for _, k := range []Kind{Persistent, Inline, Snapshot} {
		for _, name := range []string{"pvc-1", "csi-1", "csi-" + strings.Repeat("a", 64), "i-1", "s-1", "snapshot-1", "v-" + strings.Repeat("0", 32),
			"i-" + strings.Repeat("0", 32), "s-" + strings.Repeat("0", 32), "a name", strings.Repeat("x", 100)} {
			if lv := LVName(k, name); KindByName(lv) != k {
				t.Errorf("%s, made for %s %q, is taken for %s", lv, k, name, KindByName(lv))
			}
		}
	}
}
