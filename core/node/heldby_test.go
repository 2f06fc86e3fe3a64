package node

import (
	"testing"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// Of the bounds of a trim the lowest one is named.
func TestHeldTrimNamesTheLowestBound(t *testing.T) {
	at := func(offsets ...mink.Offset) (out []kvplan.Snapshot) {
		for i, o := range offsets {
			out = append(out, kvplan.Snapshot{ID: int64(i + 1), Offset: o})
		}
		return out
	}
	for name, c := range map[string]struct {
		want, limit mink.Offset
		keyed       bool
		snapshots   []kvplan.Snapshot
		by          string // "": nothing
		at          mink.Offset
	}{
		"a log that is not uploaded so far":  {10, 4, false, nil, HeldByUpload, 4},
		"a log, about to be trimmed":         {10, 10, false, nil, "", 0},
		"no snapshot":                        {10, 4, true, nil, HeldByKVSnapshot, 2},
		"the oldest snapshot":                {10, 12, true, at(5, 12), HeldByKVSnapshot, 5},
		"the upload, below every snapshot":   {10, 4, true, at(5, 12), HeldByUpload, 4},
		"the snapshots are further than all": {10, 12, true, at(10, 12), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := heldTrim(c.want, c.limit, c.keyed, c.snapshots, 2)
			switch {
			case h == nil && c.by != "":
				t.Fatal("nothing holds it")
			case h != nil && (h.By != c.by || h.At != c.at || h.Want != c.want || h.Why == ""):
				t.Fatalf("%+v", h)
			}
		})
	}
}
