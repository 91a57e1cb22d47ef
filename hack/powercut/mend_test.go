package main

import (
	"reflect"
	"testing"
)

// What pvck of LVM 2.03.16 prints.
func TestTextsIn(t *testing.T) {
	const report = `  Searching for metadata at offset 4096 size 1044480
  metadata at 4608 length 1100 crc 0d0a3f21 vg csi seqno 2 id Q09a6R-I0R0-Jqlh-MH6D-PBkV-zc0w-yr6ZoD
  metadata at 9728 length 1879 crc 1eda29ea vg csi seqno 4 id Q09a6R-I0R0-Jqlh-MH6D-PBkV-zc0w-yr6ZoD
  metadata at 12288 length 900 crc 1eda29ea vg other seqno 9 id Q09a6R-I0R0-Jqlh-MH6D-PBkV-zc0w-yr6ZoX
`
	want := []text{{disk: "/dev/vda", at: 4608, length: 1100, seqno: 2}, {disk: "/dev/vda", at: 9728, length: 1879, seqno: 4}}
	if got := textsIn("/dev/vda", report); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
