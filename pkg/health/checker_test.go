package health

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// node is what a Checker sees.
type node struct {
	facts  volume.Facts
	err    error
	table  []volume.Mount
	gone   bool // the devices that are mounted are no more
	asked  []string
	broken error // of the mount table
}

func (n *node) VolumeFacts(context.Context, volume.Ref) (volume.Facts, error) { return n.facts, n.err }
func (n *node) Look() func(context.Context, volume.Ref) (volume.Facts, error) {
	return n.VolumeFacts
}
func (n *node) StorageFacts(context.Context) volume.StorageFacts {
	return volume.StorageFacts{Missing: []string{"vg"}}
}

type lvs struct{ *node }

func (lvs) List(context.Context) ([]volume.LV, error) {
	return []volume.LV{{Ref: volume.Ref{VG: "vg", LV: "b"}, Tags: volume.Tags{Kind: volume.Persistent}}, {Ref: volume.Ref{VG: "vg", LV: "a"}, Tags: volume.Tags{Kind: volume.Persistent}}, {Tags: volume.Tags{Kind: volume.Inline}}}, nil
}

func (n *node) List(context.Context) ([]volume.Mount, error) { return n.table, n.broken }
func (n *node) DeviceGone(volume.Mount) bool                 { return n.gone }
func (n *node) FilesystemFacts(_ context.Context, m volume.Mount) volume.FilesystemFacts {
	n.asked = append(n.asked, m.Target)
	return volume.FilesystemFacts{Mount: m, ReadOnly: m.Forced}
}

func (n *node) checker() *Checker {
	return New(lvs{n}, n, func(p string) (string, error) {
		if p == "/bad" {
			return "", errors.New("bad path")
		}
		return strings.ReplaceAll(p, "/link", "/real"), nil
	})
}

func TestChecker(t *testing.T) {
	active := volume.DeviceFacts{Active: true, Major: 253, Minor: 3}
	mount := func(target string, minor uint32, more ...func(*volume.Mount)) volume.Mount {
		m := volume.Mount{Target: target, Major: 253, Minor: minor, FS: "xfs"}
		for _, f := range more {
			f(&m)
		}
		return m
	}
	block := func(m *volume.Mount) { m.Block = true }
	forced := func(m *volume.Mount) { m.Forced = true }
	absent := fmt.Errorf("%w: x", volume.ErrNotFound)
	for name, c := range map[string]struct {
		node  node
		paths []string
		want  string // conditions, or the error
		asked string
	}{
		"unpublished":                        {node{facts: volume.Facts{DeviceFacts: active}}, []string{"", "/t"}, "", ""},
		"published":                          {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/t", 3), mount("/u", 4)}}, []string{"/t"}, "", "/t"},
		"a path is a link":                   {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/real", 4)}}, []string{"/link"}, "Inaccessible DeviceGone", ""},
		"another device on top":              {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/t", 3), mount("/t", 4)}}, []string{"/t"}, "Inaccessible DeviceGone", ""},
		"another device below":               {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/t", 4), mount("/t", 3)}}, []string{"/t"}, "", "/t"},
		"another device at another path":     {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/t", 4)}}, nil, "", ""},
		"block, staged":                      {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/s/csi-local-lvm-device", 3, block)}}, []string{"/t", "/s"}, "", ""},
		"block, staged, and gone":            {node{err: absent, gone: true, table: []volume.Mount{mount("/s/csi-local-lvm-device", 3, block)}}, []string{"/t", "/s"}, "DataLoss VolumeGone", ""},
		"one of its mounts is read-only":     {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/t", 3, forced), mount("/u", 3)}}, []string{"/u"}, "Inaccessible FilesystemReadOnly", "/t"},
		"a covered mount is not looked into": {node{facts: volume.Facts{DeviceFacts: active}, table: []volume.Mount{mount("/t", 3), mount("/t", 4)}}, nil, "", ""},
		"not there":                          {node{err: absent, table: []volume.Mount{mount("/t", 4)}}, []string{"/t"}, "not found", ""},
		"gone, mounted":                      {node{facts: volume.Facts{Gone: true, DeviceFacts: active}, table: []volume.Mount{mount("/t", 3)}}, nil, "DataLoss VolumeGone", "/t"},
		"gone, open":                         {node{facts: volume.Facts{Gone: true, DeviceFacts: volume.DeviceFacts{Active: true, Open: 1}}}, nil, "DataLoss VolumeGone", ""},
		"gone, nobody uses it":               {node{facts: volume.Facts{Gone: true, DeviceFacts: active}}, nil, "not found", ""},
		"hung":                               {node{facts: volume.Facts{DeviceFacts: volume.DeviceFacts{Active: true, Major: 253, Minor: 3, Hung: fault}}, table: []volume.Mount{mount("/t", 3)}}, []string{"/t"}, "Inaccessible DeviceHung", ""},
		"no mount table":                     {node{broken: errors.New("no table")}, nil, "no table", ""},
		"bad path":                           {node{}, []string{"/bad"}, "bad path", ""},
	} {
		t.Run(name, func(t *testing.T) {
			conditions, err := c.node.checker().Volume(t.Context(), volume.Ref{VG: "vg", LV: "lv"}, c.paths...)
			got := list2text(t, conditions)
			if err != nil {
				got = err.Error()
			}
			if got != c.want && (err == nil || !strings.Contains(got, c.want)) || strings.Join(c.node.asked, " ") != c.asked {
				t.Errorf("got %q, looked into %q; want %q, %q", got, c.node.asked, c.want, c.asked)
			}
		})
	}
}

func TestCheckerLists(t *testing.T) {
	n := node{facts: volume.Facts{Gone: true, DeviceFacts: volume.DeviceFacts{Open: 1}}}
	ill, err := n.checker().List(t.Context(), volume.Persistent)
	if err != nil || len(ill) != 2 || ill[0].LV.LV != "a" || ill[1].LV.LV != "b" || ill[0].Conditions[0].Reason != VolumeGone {
		t.Errorf("got %+v, %v", ill, err)
	}
	n.facts.Gone = false
	if ill, err := n.checker().List(t.Context(), volume.Persistent); err != nil || len(ill) != 0 {
		t.Errorf("all are well: got %+v, %v", ill, err)
	}
	n.err = volume.ErrNotFound // deleted meanwhile
	if ill, err := n.checker().List(t.Context(), volume.Persistent); err != nil || len(ill) != 0 {
		t.Errorf("deleted: got %+v, %v", ill, err)
	}
	n.err = errors.New("broken")
	if _, err := n.checker().List(t.Context(), volume.Persistent); !errors.Is(err, n.err) {
		t.Errorf("an error was swallowed: %v", err)
	}
	if s, err := n.checker().Storage(t.Context()); err != nil || list2text(t, s) != "Inaccessible GroupMissing" {
		t.Errorf("the storage: %v, %v", s, err)
	}
}
