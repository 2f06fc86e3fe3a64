package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// committed reads [from, to) of stream 1 on a node and checks it against the model: every
// frame that was acknowledged there is in it once, in order. each is called after every
// run.
func (w *world) committed(n *node, from, to mink.Offset, each func()) error {
	at := from
	seen := map[mink.Offset]mink.Offset{}
	for run, err := range n.ReadCommitted(context.Background(), 1, from, to) {
		if err != nil {
			return err
		}
		if run.Start != at || run.End <= run.Start || run.End > to {
			return fmt.Errorf("a run [%d, %d) where %d was expected, asked for [%d, %d)", run.Start, run.End, at, from, to)
		}
		for _, f := range unjoin(1, run.Frames) {
			if f.End() <= at || f.Start >= run.End {
				continue // of a joined frame that holds an end
			}
			if f.Start > at || string(f.Bytes) != string(payload(1, f.Start, len(f.Bytes))) {
				return fmt.Errorf("frame [%d, %d) at %d", f.Start, f.End(), at)
			}
			seen[f.Start] = f.End()
			at = f.End()
		}
		if len(run.Frames) > 0 && at < run.End {
			return fmt.Errorf("frames end at %d, the run at %d", at, run.End)
		}
		at = run.End
		if each != nil {
			each()
		}
	}
	if at < to {
		return fmt.Errorf("it ends at %d, not %d", at, to)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for start, end := range w.acked[1] {
		if end > from && start < to && seen[start] != end {
			return fmt.Errorf("acknowledged frame [%d, %d) is not in [%d, %d)", start, end, from, to)
		}
	}
	return nil
}

// A node that leads nothing reads what is committed, in any cut, with few requests; what
// is not uploaded is past the end.
func TestReadCommittedNeedsNoLeadership(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		reader := w.start(2)
		s, other := n.open(1), n.open(2)
		r := seeded(1)
		for range 12 {
			for range 20 {
				w.put(s, uint64(r.IntN(5)+1), r.IntN(60_000))
				w.put(other, 1, 100)
			}
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		start, end, err := reader.Committed(1)
		if err != nil || start != 0 || end != s.HighWatermark() {
			t.Fatal(start, end, err)
		}
		w.put(s, 1, 100)
		if err := w.committed(reader, 0, end, nil); err != nil {
			t.Fatal(err)
		}
		if gets := reader.Stats().Gets; gets > 12*4 {
			t.Errorf("%d GETs for 12 objects of 600 KB", gets)
		}
		if b := reader.Stats().Blocks.Entries; b != 0 {
			t.Errorf("%d blocks of a scan are in the block cache", b)
		}
		for range 100 {
			from := mink.Offset(r.Int64N(int64(end)))
			if err := w.committed(reader, from, from+1+mink.Offset(r.Int64N(int64(end-from))), nil); err != nil {
				t.Fatal(err)
			}
		}
		for range reader.ReadCommitted(t.Context(), 1, 0, end) {
			break // what it fetches ahead ends with it: the bubble would not
		}
		for _, c := range []struct{ from, to mink.Offset }{{0, end + 1}, {end, end + 1}} {
			var gone *mink.OutOfRangeError
			if err := w.committed(reader, c.from, c.to, nil); !errors.As(err, &gone) || gone.End != end {
				t.Fatal(err)
			}
		}
		if err := s.Trim(t.Context(), 50); err != nil {
			t.Fatal(err)
		}
		var gone *mink.OutOfRangeError
		if err := w.committed(reader, 49, end, nil); !errors.As(err, &gone) || gone.Start != 50 || gone.Asked != 49 {
			t.Fatal(err)
		}
		if err := w.committed(reader, 50, end, nil); err != nil {
			t.Fatal(err)
		}
		if _, _, err := reader.Committed(77); !errors.Is(err, mink.ErrNotExist) {
			t.Fatal(err)
		}
		if err := reader.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// A reader that takes an hour: all that it began on is merged, rewritten and deleted
// meanwhile. It goes on in what took its place.
func TestReadCommittedOutlivesItsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.ReadaheadMax = 2 << 20 // little is fetched before it is needed
		n, reader := w.start(1), w.start(2)
		s := n.open(1)
		w.fill(n, s, 40, 5)
		_, end, _ := reader.Committed(1)
		before := w.keys("data/")
		runs := 0
		err := w.committed(reader, 0, end, func() {
			if runs++; runs%4 == 0 {
				time.Sleep(10 * time.Minute)
				if err := rewrite(s); err != nil && !errors.Is(err, mink.ErrConflict) {
					t.Error(err)
				}
				w.fill(n, s, 9, 1)
				n.compactAll()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if runs < 5 {
			t.Fatalf("%d runs", runs)
		}
		for _, key := range w.keys("data/") {
			if slices.Contains(before, key) {
				t.Fatalf("%s, an object of the beginning, is still there", key)
			}
		}
		if err := errors.Join(n.stop(), reader.stop()); err != nil {
			t.Fatal(err)
		}
	})
}

// An object that goes between the look at the view and the GET.
func TestReadCommittedTakesANewerView(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		reader := w.start(2)
		w.fill(n, n.open(1), 9, 1)
		reader.store.Inject(fault.Rule{Ops: fault.Get, Prefix: "data/", Skip: 6, Times: 1, Do: fault.Hold()})
		done := make(chan error, 1)
		go func() { done <- w.committed(reader, 0, 18, nil) }()
		held, err := reader.store.WaitPending(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.CompactNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(w.meta.State().Gone) == 0 {
			t.Fatal("nothing was merged")
		}
		for _, d := range w.meta.State().Gone {
			if _, err := w.mem.DeleteBatch(t.Context(), []string{d.Object.Key()}); err != nil {
				t.Fatal(err)
			}
		}
		_ = held[0].Land()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := reader.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReadCommittedPassesAllowedGapsAndNothingElse(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		reader := w.start(2)
		s := n.open(1)
		w.fill(n, s, 1, 2)
		s.Close()
		w.meta.Change(func(st *plantest.State) {
			v, err := st.Streams[1].AddGap(plan.Gap{Start: 4, End: 100})
			if err != nil {
				t.Fatal(err)
			}
			st.Streams[1] = v
		})
		s = n.open(1)
		s.SeedCheckpoint([]byte("unused"), 1<<62) // no folding over the gap here
		w.put(s, 2, 10)
		n.reopen(s)
		for from := range mink.Offset(102) {
			for _, to := range []mink.Offset{from + 1, 100, 102} {
				if err := w.committed(reader, from, max(from+1, to), nil); err != nil {
					t.Fatalf("[%d, %d): %v", from, to, err)
				}
			}
		}
		w.meta.Change(func(st *plantest.State) {
			v := st.Streams[1]
			v.Ranges = slices.Clone(v.Ranges)
			v.Ranges[len(v.Ranges)-1].End, v.End = 105, 105
			st.Streams[1] = v
		})
		if err := w.committed(reader, 0, 105, nil); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatal("metadata that say more than an object has:", err)
		}
		for _, o := range w.meta.State().Named {
			if _, err := w.mem.DeleteBatch(t.Context(), []string{o.Key()}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.committed(w.start(3), 0, 102, nil); !errors.Is(err, mink.ErrCorrupt) || !errors.Is(err, objstore.ErrNotExist) {
			t.Fatal(err)
		}
		if err := reader.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// A store that fails now and then: what a reader got is right, and an error is none of
// corruption. A damaged block is.
func TestReadCommittedOverABadStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 10 {
			w.put(s, 3, 700_000)
		}
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		reader := w.start(2)
		for skip := range 5 {
			reader.store.Inject(fault.Rule{Ops: fault.Get, Prefix: "data/", Skip: skip, Times: 1, Do: fault.FailBefore(objstore.ErrThrottled)})
			err := w.committed(reader, 0, 30, nil)
			reader.store.ClearRules()
			if err != nil && !errors.Is(err, mink.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range reader.ReadCommitted(ctx, 1, 0, 30) {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		key := w.keys("data/")[0]
		info, err := w.mem.Head(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := w.mem.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Length: info.Size})
		if err != nil {
			t.Fatal(err)
		}
		got.Data[1<<20] ^= 1
		if _, err := w.mem.DeleteBatch(t.Context(), []string{key}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.mem.Put(t.Context(), objstore.PutRequest{Key: key, Chunks: [][]byte{got.Data}}); err != nil {
			t.Fatal(err)
		}
		if err := w.committed(w.start(3), 0, 30, nil); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatal(err)
		}
		if err := reader.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// Many readers, appends, merges, rewrites and trims: each reader sees every frame once.
func TestReadCommittedBesideEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.Compaction.AgeMs = 1000
		w.cfg.ReadaheadBudget = 3 << 20 // too little for all
		n, reader := w.start(1), w.start(2)
		s := n.open(1)
		w.fill(n, s, 1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var reads [4]int
		for i := range reads {
			wg.Go(func() {
				for r := seeded(uint64(i)); ctx.Err() == nil; {
					start, end, err := reader.Committed(1)
					if err != nil {
						t.Error(err)
						return
					}
					from := start + mink.Offset(r.Int64N(int64(end-start)))
					err = w.committed(reader, from, end, func() { time.Sleep(time.Duration(r.IntN(3)) * time.Second) })
					if err != nil && !errors.As(err, new(*mink.OutOfRangeError)) {
						t.Error(err)
						return
					}
					reads[i]++
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := rewrite(s); err != nil && !errors.Is(err, mink.ErrConflict) {
					t.Error(err)
				}
				if err := n.CompactNow(context.Background()); err != nil {
					t.Error(err)
				}
				time.Sleep(3 * time.Second)
			}
		})
		for i := range 200 {
			w.put(s, 2, 90_000)
			if i%5 == 4 {
				if err := n.UploadNow(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if i%50 == 49 {
				if err := s.Trim(ctx, s.Start()+7); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		cancel()
		wg.Wait()
		for i, k := range reads {
			if k < 5 {
				t.Errorf("reader %d came to %d ends", i, k)
			}
		}
		if err := errors.Join(n.stop(), reader.stop()); err != nil {
			t.Fatal(err)
		}
		w.valid()
	})
}
