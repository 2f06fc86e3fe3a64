package stream_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// An upload takes what was acknowledged when it began. Under load there is always
// more by the time it has committed: going on until nothing is left would never
// end, make an object of every few bulks, and neither trim nor delete a slot.
func TestUploadUnderLoadEnds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.put(s, 2, ckptFrame)
		w.put(s, 2, ckptFrame)
		n.meta.inject(func(op string) (error, error) {
			if op == "commit" && s.LogEnd() < 40 {
				w.put(s, 2, ckptFrame)
			}
			return nil, nil
		})
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.meta.inject(nil)
		if got := w.meta.Proposals("commit"); got != 1 {
			t.Errorf("%d commits", got)
		}
		if got := w.keys(plan.WALPrefix(n.id)); len(got) != 1 {
			t.Errorf("slots left: %v", got)
		}
	})
}

// A slot that was named and is destroyed has its grace, as any object: somebody
// may be reading it on an older view. The upload that raises the trim past it
// deletes only slots that no view ever named.
func TestTrimmedSlotUnderGraceIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1)
		moved, stays := a.open(1), a.open(2)
		t1, t2 := w.append(moved, 2, ckptFrame), w.append(stays, 2, ckptFrame) // one slot
		<-t1.Done()
		<-t2.Done()
		w.note(1, 0, 2)
		w.note(2, 0, 2)
		r, err := moved.Release(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.meta.Release(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		moved.Close()
		w.meta.Lag(w.meta.State().Index) // some node goes on reading on this view
		if err := w.meta.TrimStreams(t.Context(), []plan.Trim{{Stream: 1, Start: 2}}); err != nil {
			t.Fatal(err)
		}
		if err := a.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, _ := w.meta.View().WAL(a.id.Epoch); got.Trim != 1 {
			t.Fatalf("trim %d", got.Trim)
		}
		if len(w.keys(plan.WALPrefix(a.id))) != 1 {
			t.Error("the slot was deleted while a node that has not applied its destruction may read it")
		}
		w.meta.Lag(0)
		time.Sleep(time.Hour)
		if got := w.keys(plan.WALPrefix(a.id)); len(got) != 0 || len(w.meta.State().Gone) != 0 {
			t.Errorf("never deleted: %v", got)
		}
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// While the write-ahead log is behind, one stream does not take all the room of
// the bulk that waits.
func TestHotStreamLeavesRoomInTheBulk(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		hot, cold := n.open(1), n.open(2)
		n.store.Inject(fault.Rule{Ops: fault.Put, Prefix: "wal/", Do: fault.DelayBy(10 * time.Second)})
		pour := func() {
			for {
				if _, err := hot.Append(request(1, hot.LogEnd(), 1, 64<<10)); err != nil {
					if !errors.Is(err, mink.ErrThrottled) {
						t.Fatal(err)
					}
					return
				}
			}
		}
		for range 20 {
			pour()
			if _, err := cold.Append(request(2, cold.LogEnd(), 1, 1000)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// One object that cannot be read does not keep the others from being merged.
func TestCompactionGoesRoundACorruptObject(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 10 {
			w.put(s, 1, 5000)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		bad := w.keys(plan.DataPrefix(n.id))[3]
		in := n.store.Inject(fault.Rule{Ops: fault.Get, Match: func(c fault.Call) bool { return c.Key == bad }, Do: fault.FlipBit()})
		if err := n.CompactNow(t.Context()); !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), bad) {
			t.Fatal(err)
		}
		if got := len(w.meta.State().Gone); got != 9 {
			t.Errorf("%d objects were merged, want the 9 good ones", got)
		}
		w.valid()
		in.Remove()
		w.check(n.reopen(s))
	})
}

// refusing is a store that cannot delete one key.
type refusing struct {
	objstore.Store
	key func(string) bool
}

func (r *refusing) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	var rest []string
	resp := objstore.DeleteResponse{Errors: make([]error, len(keys))}
	for i, k := range keys {
		if r.key(k) {
			resp.Errors[i] = objstore.ErrUnauthorized
		} else {
			rest = append(rest, k)
		}
	}
	_, err := r.Store.DeleteBatch(ctx, rest)
	return resp, err
}

// An object that the store will not delete stays on the list alone.
func TestOneUndeletableObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.meta.Register(1)
		first := plan.Key(id, plan.KindStreamSet, 1)
		slot := plan.Key(id, plan.KindWAL, 0)
		var mended atomic.Bool
		store := &refusing{Store: w.mem, key: func(k string) bool { return !mended.Load() && (k == first || k == slot) }}
		e, err := stream.New(w.cfg, stream.Deps{Objects: store, WALStore: store, WAL: id, Meta: w.meta})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		s, err := e.Open(ctx, 1, w.meta.Lead(1, id))
		if err != nil {
			t.Fatal(err)
		}
		for range 9 {
			w.put(s, 1, 5000)
			_ = e.UploadNow(ctx)
		}
		if got := w.keys(plan.WALPrefix(id)); len(got) != 1 || got[0] != slot {
			t.Errorf("slots left: %v", got)
		}
		if err := e.CompactNow(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if got := len(w.meta.State().Gone); got != 1 {
			t.Errorf("%d destroyed objects wait, want the one that cannot be deleted", got)
		}
		mended.Store(true)
		time.Sleep(time.Hour)
		if got := len(w.meta.State().Gone); got != 0 {
			t.Errorf("%d destroyed objects wait", got)
		}
		if err := e.UploadNow(ctx); err != nil {
			t.Error(err)
		}
		if got := w.keys(plan.WALPrefix(id)); len(got) != 0 {
			t.Errorf("slots left: %v", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// While the write-ahead log hangs there is nothing to upload: appends that are
// refused do not keep the upload loop spinning.
func TestRefusedAppendsDoNotSpinUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.LogCacheBytes, w.cfg.RecordBytesMax, w.cfg.UploadBytes = 4<<20, 1<<20, 2<<20
		n := w.start(1)
		n.store.Inject(fault.Rule{Ops: fault.Put, Prefix: "wal/", Do: fault.DelayBy(5 * time.Second)})
		s := n.open(1)
		refused := 0
		for range 100 {
			for {
				if _, err := s.Append(request(1, s.LogEnd(), 1, 64<<10)); err != nil {
					refused++
					break
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got := n.Stats().Loops[0]; got.Runs > 1 || refused < 100 {
			t.Errorf("%d uploads ran for %d refused appends", got.Runs, refused)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		w.check(w.start(1).recovered(1))
	})
}

// recovered recovers what an earlier incarnation left and opens a stream.
func (n *node) recovered(id mink.StreamID) *stream.Stream {
	n.w.t.Helper()
	for l := range n.w.meta.View().WALs() {
		if l.Sealed && !l.Recovered {
			n.w.recover(l.ID)
		}
	}
	return n.open(id)
}
