package stream_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// nineUploads gives a merge its inputs: frames of n bytes on three streams.
func nineUploads(t *testing.T, w *world, n *node, bytes int) []*stream.Stream {
	t.Helper()
	var all []*stream.Stream
	for id := mink.StreamID(1); id <= 3; id++ {
		all = append(all, n.open(id))
	}
	for range 9 {
		for _, s := range all {
			w.put(s, 1, bytes)
		}
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Where the store takes parts, a merge sends its output as it grows: no request
// has more than a part and the block that filled it.
func TestMergesWriteParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.CompactPartBytes = 600 << 10
		n := w.start(1)
		all := nineUploads(t, w, n, 100<<10)
		before := n.store.Stats()
		largest := int64(0)
		n.store.Inject(fault.Rule{Ops: fault.PutPart | fault.Put, Prefix: "data/", Match: func(c fault.Call) bool {
			largest = max(largest, c.Bytes)
			return false
		}})
		if err := n.CompactNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := n.store.Stats()
		if got := after.Parts - before.Parts; got != 3 {
			t.Errorf("%d parts for 2700 KiB at 600 KiB and a block, want 3", got)
		}
		if after.Puts != before.Puts || largest > 600<<10+object.BlockTarget {
			t.Errorf("%d objects put whole, the largest request has %d bytes", after.Puts-before.Puts, largest)
		}
		if got := w.mem.Uploads(); got != 0 {
			t.Errorf("%d uploads are left", got)
		}
		for _, s := range all {
			w.check(n.reopen(s))
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		w.valid()
	})
}

// A small output is one request.
func TestSmallMergesPutWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.CompactPartBytes = 1 << 20
		n := w.start(1)
		nineUploads(t, w, n, ckptFrame)
		before := n.store.Stats()
		if err := n.CompactNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := n.store.Stats(); after.Puts != before.Puts+1 || after.Uploads != before.Uploads {
			t.Errorf("%+v, then %+v", before, after)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// Whichever request of an upload in parts fails, and however: the merge comes to
// its end, then or later, nothing is lost, and neither objects nor parts are left.
func TestEveryPartOfAMergeFails(t *testing.T) {
	actions := map[string]fault.Action{
		"before":   fault.FailBefore(objstore.ErrUnavailable),
		"for good": fault.FailBefore(objstore.ErrInvalid),
		"after":    fault.FailAfter(objstore.ErrUnknownOutcome),
		"late":     fault.LateAfter(30 * time.Minute),
	}
	ops := []fault.Op{fault.StartUpload, fault.PutPart, fault.CompleteUpload, fault.AbortUpload}
	for name, do := range actions {
		for _, op := range ops {
			for _, times := range []int{1, 4, 5} { // less than, as many as, and more than the tries
				t.Run(fmt.Sprintf("%s %s %d times", op, name, times), func(t *testing.T) {
					bubble(t, func(t *testing.T, w *world, n *node) {
						all := nineUploads(t, w, n, 1000)
						in := n.store.Inject(fault.Rule{Ops: op, Times: times, Skip: skipOf(op), Do: do})
						if op == fault.AbortUpload { // there is one to drop
							n.store.Inject(fault.Rule{Ops: fault.CompleteUpload, Times: 4, Do: fault.FailBefore(objstore.ErrUnavailable)})
						}
						_ = n.CompactNow(t.Context())
						w.valid()
						time.Sleep(8 * time.Hour)
						n.store.WaitLate()
						for _, s := range all {
							s = n.reopen(s)
							w.check(s)
						}
						time.Sleep(3 * time.Hour)
						w.sameAsStore()
						if n.Stats().Compactions == 0 || in.Fired() == 0 {
							t.Errorf("%d merges, %d requests failed", n.Stats().Compactions, in.Fired())
						}
						// The store alone knows of an upload whose start was not answered.
						if got := w.mem.Uploads(); got != 0 && op != fault.StartUpload {
							t.Errorf("%d uploads are left", got)
						}
					})
				})
			}
		}
	}
}

// skipOf lets the first part pass, so that there is something to lose.
func skipOf(op fault.Op) int {
	if op == fault.PutPart {
		return 1
	}
	return 0
}

// A merge that is given up because of its sources drops its parts at once.
func TestCorruptSourceDropsTheParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.CompactReadBytes = 1 // a request per block
		n := w.start(1)
		all := nineUploads(t, w, n, 5000)
		// Nine indexes, nine blocks and the checkpoint of the first stream, and some of
		// the second's.
		in := n.store.Inject(fault.Rule{Ops: fault.Get, Prefix: "data/", Skip: 22, Do: fault.FlipBit()})
		if err := n.CompactNow(t.Context()); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatal(err)
		}
		in.Remove()
		if got := n.store.Stats(); w.mem.Uploads() != 0 || got.Parts == 0 {
			t.Errorf("%d uploads are left, %d parts were written", w.mem.Uploads(), got.Parts)
		}
		for _, s := range all {
			w.check(n.reopen(s))
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}
