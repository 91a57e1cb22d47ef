package volume

import (
	"maps"
	"reflect"
	"strings"
	"testing"
)

type params = map[string]string

func TestParseParameters(t *testing.T) {
	for name, tt := range map[string]struct {
		in   params
		want Parameters
	}{
		"nothing":     {nil, Parameters{Layout: Layout{Type: Linear}}},
		"linear":      {params{KeyType: "linear", KeyVolumeGroup: "vg-1", KeyFSType: "xfs"}, Parameters{VG: "vg-1", FS: XFS, Layout: Layout{Type: Linear}}},
		"pool alone":  {params{KeyThinPool: "pool0"}, Parameters{Layout: Layout{Type: Thin, Pool: "pool0"}}},
		"thin":        {params{KeyType: "thin", KeyThinPool: "pool0"}, Parameters{Layout: Layout{Type: Thin, Pool: "pool0"}}},
		"striped":     {params{KeyType: "striped"}, Parameters{Layout: Layout{Type: Striped, Stripes: 2}}},
		"stripe size": {params{KeyType: "striped", KeyStripes: "4", KeyStripeSize: "64Ki"}, Parameters{Layout: Layout{Type: Striped, Stripes: 4, StripeBytes: 65536}}},
		"raid1":       {params{KeyType: "raid1"}, Parameters{Layout: Layout{Type: RAID1, Mirrors: 1}}},
		"raid1 of 10": {params{KeyType: "raid1", KeyMirrors: "9"}, Parameters{Layout: Layout{Type: RAID1, Mirrors: 9}}},
		"raid5":       {params{KeyType: "raid5", KeyStripes: "3"}, Parameters{Layout: Layout{Type: RAID5, Stripes: 3}}},
		"raid6":       {params{KeyType: "raid6"}, Parameters{Layout: Layout{Type: RAID6, Stripes: 3}}},
		"raid10":      {params{KeyType: "raid10"}, Parameters{Layout: Layout{Type: RAID10, Stripes: 2, Mirrors: 1}}},
		"mkfs":        {params{KeyMkfsOptions: " -m  0 -O ^has_journal "}, Parameters{Layout: Layout{Type: Linear}, MkfsOptions: []string{"-m", "0", "-O", "^has_journal"}}},
		"of the CO": {params{"csi.storage.k8s.io/pvc/name": "x", "storage.kubernetes.io/csiProvisionerIdentity": "y", "kubernetes.io/z": ""},
			Parameters{Layout: Layout{Type: Linear}}},
	} {
		got, err := ParseParameters(tt.in)
		if len(got.MkfsOptions) == 0 {
			got.MkfsOptions = nil
		}
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, tt.want)
		}
	}
}

func TestBadParameters(t *testing.T) {
	at := func(key string) string { return "parameters[" + key + "]" }
	for name, tt := range map[string]struct {
		in    params
		field string
	}{
		"unknown key":            {params{"volumegroup": "vg"}, at("volumegroup")},
		"unknown key, alike":     {params{"fsType": "xfs"}, at("fsType")},
		"key of a near domain":   {params{"evilk8s.io/x": "y"}, at("evilk8s.io/x")},
		"empty key":              {params{"": "x"}, at("")},
		"size is for inline":     {params{KeySize: "1Gi"}, at(KeySize)},
		"group glob":             {params{KeyVolumeGroup: "vg*"}, at(KeyVolumeGroup)},
		"group option":           {params{KeyVolumeGroup: "--yes"}, at(KeyVolumeGroup)},
		"group path":             {params{KeyVolumeGroup: "../vg"}, at(KeyVolumeGroup)},
		"group too long":         {params{KeyVolumeGroup: strings.Repeat("g", 10<<10)}, at(KeyVolumeGroup)},
		"type":                   {params{KeyType: "raid0"}, at(KeyType)},
		"type in capitals":       {params{KeyType: "Linear"}, at(KeyType)},
		"thin without pool":      {params{KeyType: "thin"}, at(KeyThinPool)},
		"thin, empty pool":       {params{KeyType: "thin", KeyThinPool: ""}, at(KeyThinPool)},
		"pool without thin":      {params{KeyType: "raid1", KeyThinPool: "p"}, at(KeyThinPool)},
		"pool with a bad name":   {params{KeyThinPool: "vg/p"}, at(KeyThinPool)},
		"pool is internal":       {params{KeyThinPool: "p_tdata"}, at(KeyThinPool)},
		"stripes of linear":      {params{KeyStripes: "2"}, at(KeyStripes)},
		"stripes of thin":        {params{KeyThinPool: "p", KeyStripes: "2"}, at(KeyStripes)},
		"stripes of raid1":       {params{KeyType: "raid1", KeyStripes: "2"}, at(KeyStripes)},
		"one stripe":             {params{KeyType: "striped", KeyStripes: "1"}, at(KeyStripes)},
		"no stripes":             {params{KeyType: "striped", KeyStripes: ""}, at(KeyStripes)},
		"negative stripes":       {params{KeyType: "striped", KeyStripes: "-2"}, at(KeyStripes)},
		"stripes in words":       {params{KeyType: "striped", KeyStripes: "two"}, at(KeyStripes)},
		"65 stripes":             {params{KeyType: "striped", KeyStripes: "65"}, at(KeyStripes)},
		"raid6, 2 stripes":       {params{KeyType: "raid6", KeyStripes: "2"}, at(KeyStripes)},
		"raid6, 65 images":       {params{KeyType: "raid6", KeyStripes: "63"}, at(KeyStripes)},
		"raid10, 66 images":      {params{KeyType: "raid10", KeyStripes: "33"}, at(KeyStripes)},
		"raid10, three copies":   {params{KeyType: "raid10", KeyMirrors: "2"}, at(KeyMirrors)},
		"raid1, 11 images":       {params{KeyType: "raid1", KeyMirrors: "10"}, at(KeyMirrors)},
		"raid1, no copy":         {params{KeyType: "raid1", KeyMirrors: "0"}, at(KeyMirrors)},
		"mirrors of raid5":       {params{KeyType: "raid5", KeyMirrors: "1"}, at(KeyMirrors)},
		"stripe size of linear":  {params{KeyStripeSize: "64Ki"}, at(KeyStripeSize)},
		"stripe size of raid1":   {params{KeyType: "raid1", KeyStripeSize: "64Ki"}, at(KeyStripeSize)},
		"stripe size no power":   {params{KeyType: "striped", KeyStripeSize: "96Ki"}, at(KeyStripeSize)},
		"stripe size too small":  {params{KeyType: "striped", KeyStripeSize: "2Ki"}, at(KeyStripeSize)},
		"stripe size too large":  {params{KeyType: "striped", KeyStripeSize: "8Mi"}, at(KeyStripeSize)},
		"stripe size empty":      {params{KeyType: "striped", KeyStripeSize: ""}, at(KeyStripeSize)},
		"file system":            {params{KeyFSType: "ntfs"}, at(KeyFSType)},
		"file system, capitals":  {params{KeyFSType: "XFS"}, at(KeyFSType)},
		"mkfs, shell":            {params{KeyMkfsOptions: "-L $(id)"}, at(KeyMkfsOptions)},
		"mkfs, too long":         {params{KeyMkfsOptions: "-L " + strings.Repeat("x", 1000)}, at(KeyMkfsOptions)},
		"mkfs, too long escaped": {params{KeyMkfsOptions: "-L " + strings.Repeat("^", 400)}, at(KeyMkfsOptions)},
		"mkfs, not ASCII":        {params{KeyMkfsOptions: "-L Ä"}, at(KeyMkfsOptions)},
		"key of 10 kB":           {params{strings.Repeat("k\n", 5<<10): "x"}, at(strings.Repeat("k\n", 5<<10))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseParameters(tt.in)
			wantField(t, err, tt.field)
		})
	}
}

func TestParseInlineAndContext(t *testing.T) {
	p, err := ParseInline(params{KeySize: "64Mi", KeyEphemeral: "true", KeyPodUID: "uid", "csi.storage.k8s.io/serviceAccount.tokens": strings.Repeat("s", 10<<10)})
	if err != nil || p.SizeBytes != 64*mi || p.Layout.Type != Linear {
		t.Errorf("inline: got %+v, %v", p, err)
	}
	for _, in := range []params{nil, {KeyEphemeral: "true"}, {KeySize: ""}, {KeySize: "0"}, {KeySize: "big"}} {
		_, err := ParseInline(in)
		wantField(t, err, "volume_context[size]")
	}
	_, err = ParseInline(params{KeySize: "1Mi", "sise": "1Mi"})
	wantField(t, err, "volume_context[sise]")
	_, err = ParseInline(params{KeySize: "1Mi", KeyPodUID: strings.Repeat("u", 129)})
	wantField(t, err, "volume_context["+KeyPodUID+"]")

	given := Parameters{MkfsOptions: []string{"-m", "0"}}
	p, err = ParseContext(given.Context())
	if err != nil || !reflect.DeepEqual(p.MkfsOptions, given.MkfsOptions) {
		t.Errorf("context: got %+v, %v", p, err)
	}
	if (Parameters{}).Context() != nil {
		t.Error("a context where there is nothing to say")
	}
	_, err = ParseContext(params{KeyVolumeGroup: "vg"})
	wantField(t, err, "volume_context[volumeGroup]")
}

func TestErrorsDoNotShowTokens(t *testing.T) {
	_, err := ParseInline(params{"csi.storage.k8s.io/serviceAccount.tokens": "hunter2", KeySize: "x"})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

func FuzzParameters(f *testing.F) {
	f.Add("type", "raid10", "stripes", "2", "mkfsOptions", "-m 0")
	f.Add("thinPool", "p", "size", "1Gi", "csi.storage.k8s.io/fstype", "xfs")
	f.Add("volumeGroup", "--yes", "stripeSize", "64Ki", "type", "striped")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		in := params{k1: v1, k2: v2, k3: v3}
		before := maps.Clone(in)
		for _, parse := range []func(map[string]string) (Parameters, error){ParseParameters, ParseInline, ParseContext} {
			p, err := parse(in)
			if !maps.Equal(in, before) {
				t.Fatal("the request was changed")
			}
			if err != nil {
				wantFieldOfAny(t, err)
				continue
			}
			checkParameters(t, p)
		}
	})
}

func wantFieldOfAny(t *testing.T, err error) {
	t.Helper()
	fe, ok := err.(*FieldError) //nolint:errorlint // a bare one is what is wanted
	if !ok {
		t.Fatalf("error is %v, not of a field", err)
	}
	wantField(t, err, fe.Field)
}

// checkParameters checks what every reader of Parameters may rely on.
func checkParameters(t *testing.T, p Parameters) {
	t.Helper()
	l := p.Layout
	if p.VG != "" && CheckVG("f", p.VG) != nil || l.Pool != "" && CheckLV("f", l.Pool) != nil || p.SizeBytes < 0 {
		t.Fatalf("unsafe: %+v", p)
	}
	if (l.Type == Thin) != (l.Pool != "") || l.images() < 1 || l.images() > 64 || l.StripeBytes != 0 && l.Stripes == 0 {
		t.Fatalf("no layout: %+v", l)
	}
	for _, fs := range []FS{Ext4, XFS, Btrfs} {
		format, err := Capability{FS: fs}.Format(p)
		if err != nil {
			wantFieldOfAny(t, err)
			continue
		}
		for _, w := range format.MkfsOptions {
			if strings.Contains(w, "/") || w == "" {
				t.Fatalf("mkfs.%s gets the word %q", fs, w)
			}
		}
		s := Spec{Ref: Ref{"vg", "lv"}, Kind: Persistent, Name: "lv", Layout: l, Format: format}
		checkTags(t, s.Tags("d"))
		if err := s.Matches(LV{Ref: s.Ref, Tags: s.Tags("d")}); err != nil {
			t.Fatalf("a repeated call does not match: %v", err)
		}
		if back, err := ParseContext(p.Context()); err != nil || strings.Join(back.MkfsOptions, " ") != strings.Join(p.MkfsOptions, " ") {
			t.Fatalf("the context does not come back: %v", err)
		}
	}
}
