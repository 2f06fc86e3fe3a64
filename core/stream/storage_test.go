package stream_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
)

// reopen closes the stream and opens it under a new epoch with nothing cached:
// every read is cold.
func (n *node) reopen(s *stream.Stream) *stream.Stream {
	n.w.t.Helper()
	if err := n.UploadNow(context.Background()); err != nil {
		n.w.t.Fatal(err)
	}
	s.Close()
	return n.open(s.ID())
}

func TestUploadThenColdRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		var all []*stream.Stream
		for id := mink.StreamID(1); id <= 5; id++ {
			all = append(all, n.open(id))
		}
		for round := range 4 {
			for i, s := range all {
				for range i + 1 {
					w.put(s, uint64(round+1), ckptFrame)
				}
			}
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.valid()
		}
		for _, s := range all {
			s = n.reopen(s)
			w.check(s)
			if err := w.compare(s, 1); err != nil {
				t.Fatal(err)
			}
			w.checkCheckpoint(s)
			if v, _ := w.meta.View().Stream(s.ID()); v.CheckEnd != v.End {
				t.Fatalf("stream %d: checkpoint at %d, end %d", s.ID(), v.CheckEnd, v.End)
			}
		}
		if left := w.keys("wal/"); len(left) != 0 {
			t.Fatalf("slots below the trim were not deleted: %v", left)
		}
	})
}

func TestBigStreamsGetTheirOwnObject(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		big, small := n.open(1), n.open(2)
		for range 6 {
			w.put(big, 1, 3<<20)
			w.put(small, 1, 100)
		}
		big, small = n.reopen(big), n.reopen(small)
		kinds := map[plan.ObjectKind]int{}
		for id := range w.meta.State().Named {
			kinds[id.Kind]++
		}
		if kinds[plan.KindStream] != 1 || kinds[plan.KindStreamSet] != 1 {
			t.Fatalf("objects by kind: %v", kinds)
		}
		w.check(big)
		w.check(small)
	})
}

// Failure 1: offsets that are sparser than 32 bits.
func TestSparseOffsets(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for i := range 12 {
			w.put(s, 1<<33+uint64(i), 50)
			if i%3 == 0 {
				if err := n.UploadNow(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		s = n.reopen(s)
		w.check(s)
		n.compactAll()
		s = n.reopen(s)
		w.check(s)
		for at := range w.acked[1] {
			for _, probe := range []mink.Offset{at, at + 1<<32} {
				res, err := s.Read(t.Context(), stream.ReadRequest{From: probe, MaxBytes: 1})
				if err != nil || res.Frames[0].Start != at {
					t.Fatalf("read at %d: %v, %v", probe, res.Frames, err)
				}
			}
		}
	})
}

func TestCachedReadNeverTouchesTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.put(s, 1, 100)
		s = n.reopen(s)
		before := n.store.Stats()
		if _, err := s.Read(t.Context(), stream.ReadRequest{From: 0, MaxBytes: 1, Cached: true}); !errors.Is(err, mink.ErrNotCached) {
			t.Fatal(err)
		}
		if after := n.store.Stats(); after != before {
			t.Fatalf("%+v, then %+v", before, after)
		}
		w.check(s)
		if res, err := s.Read(t.Context(), stream.ReadRequest{From: 0, MaxBytes: 1, Cached: true}); err != nil || len(res.Frames) != 1 {
			t.Fatalf("a block that was read is not cached: %v", err)
		}
	})
}

// However many read a cold block at once, it is fetched once.
func TestColdReadsShareAFetch(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.put(s, 1, 100)
		s = n.reopen(s)
		n.store.Inject(fault.Rule{Ops: fault.Get, Do: fault.DelayBy(time.Second)})
		before := n.Stats().Gets
		done := make(chan error)
		for range 50 {
			go func() {
				_, err := s.Read(t.Context(), stream.ReadRequest{MaxBytes: 1})
				done <- err
			}()
		}
		for range 50 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if got := n.Stats().Gets - before; got != 2 {
			t.Fatalf("%d gets, want one of the index and one of the block", got)
		}
	})
}

func TestReadahead(t *testing.T) {
	fill := func(w *world, n *node) *stream.Stream {
		s := n.open(1)
		for range 60 {
			w.put(s, 1, 400<<10)
		}
		return n.reopen(s)
	}
	t.Run("sequential", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world, n *node) {
			s := fill(w, n)
			before := n.Stats()
			w.check(s)
			synctest.Wait()
			after := n.Stats()
			if got := after.Gets - before.Gets; got > 35 {
				t.Errorf("%d gets for 60 blocks read in order", got)
			}
			if got := after.GetBytes - before.GetBytes; got > 60*401<<10 {
				t.Errorf("%d bytes: blocks were fetched twice", got)
			}
		})
	})
	t.Run("random", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world, n *node) {
			s := fill(w, n)
			before := n.Stats()
			for _, at := range seeded(3).Perm(60)[:10] {
				if _, err := s.Read(t.Context(), stream.ReadRequest{From: mink.Offset(at), MaxBytes: 1}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if got := n.Stats().GetBytes - before.GetBytes; got > 11*(401<<10) {
				t.Fatalf("10 random reads fetched %d bytes", got)
			}
		})
	})
	t.Run("budget", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.ReadaheadBudget = 0 // nobody may fetch ahead
			n := w.start(1)
			s := fill(w, n)
			w.check(s)
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// A flipped bit is an error that names object and block, and is never served.
func TestCorruptionIsNamedAndNotServed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(7)
		w.put(s, 1, 5000)
		s = n.reopen(s)
		in := n.store.Inject(fault.Rule{Ops: fault.Get, Prefix: "data/", Do: fault.FlipBit()})
		for range 5 {
			res, err := s.Read(t.Context(), stream.ReadRequest{MaxBytes: 1})
			if !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), "data/") {
				t.Fatalf("served %d frames, err %v", len(res.Frames), err)
			}
		}
		in.Remove()
		w.check(s) // damage on the way is not cached
	})
}

// Failure 9 and the view rule: a reader whose object was merged away and deleted
// takes a new view.
func TestReadTakesTheViewAnew(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 9 {
			w.put(s, 1, 600)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s = n.reopen(s)
		// The merge and the deletion happen between the read's look at the view
		// and its GET.
		once := false
		n.store.Inject(fault.Rule{Ops: fault.Get, Prefix: "data/", Skip: 1, Times: 1, Do: fault.Hold()})
		done := make(chan error, 1)
		go func() { _, err := s.Read(t.Context(), stream.ReadRequest{MaxBytes: 1}); done <- err }()
		held, err := n.store.WaitPending(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.CompactNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		for id, d := range w.meta.State().Gone {
			_ = id
			if _, err := w.mem.DeleteBatch(t.Context(), []string{d.Object.Key()}); err != nil {
				t.Fatal(err)
			}
			once = true
		}
		if !once {
			t.Fatal("nothing was merged")
		}
		_ = held[0].Land()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		w.check(s)
	})
}

// An object that metadata names and that is not there is corruption, after
// three looks, not an endless loop.
func TestMissingObjectIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.put(s, 1, 600)
		s = n.reopen(s)
		for _, o := range w.meta.State().Named {
			if _, err := w.mem.DeleteBatch(t.Context(), []string{o.Key()}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Read(t.Context(), stream.ReadRequest{MaxBytes: 1}); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

func TestReadsSkipAllowedGaps(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.put(s, 3, 10)
		s = n.reopen(s)
		s.Close()
		w.meta.Change(func(st *plantest.State) {
			v, err := st.Streams[1].AddGap(plan.Gap{Start: 3, End: 100})
			if err != nil {
				t.Fatal(err)
			}
			st.Streams[1] = v
		})
		s = n.open(1)
		s.SeedCheckpoint([]byte("unused"), 1<<62) // no folding over the gap here
		w.put(s, 2, 10)
		s = n.reopen(s)
		w.check(s)
		res, err := s.Read(t.Context(), stream.ReadRequest{From: 50, MaxBytes: 1})
		if err != nil || len(res.Frames) != 1 || res.Frames[0].Start != 100 {
			t.Fatalf("read in the gap: %+v, %v", res, err)
		}
	})
}

func TestTimestamps(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for i := range 30 { // request: max timestamp 10 x offset, commit + 5
			w.put(s, 1, 10)
			if i%7 == 6 && i < 25 {
				if err := n.UploadNow(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		check := func(s *stream.Stream) {
			t.Helper()
			for ts := int64(-5); ts < 310; ts++ {
				for _, commit := range []bool{false, true} {
					want := (ts + 9) / 10
					if commit {
						want = (ts + 4) / 10
					}
					want = max(want, 0)
					f, ok, err := s.OffsetForTimestamp(t.Context(), ts, commit)
					if err != nil || ok != (want < 30) || ok && int64(f.Start) != want {
						t.Fatalf("ts %d, commit %v: frame %d, %v, %v; want %d", ts, commit, f.Start, ok, err, want)
					}
				}
			}
		}
		check(s)
		check(n.reopen(s))
	})
}

func TestTrimWaitsForTheCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 10 {
			w.put(s, 1, ckptFrame)
		}
		changed := s.Changed()
		if err := s.Trim(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		if s.Start() != 0 || n.Stats().TrimsHeld != 1 {
			t.Fatalf("trimmed to %d before anything was uploaded", s.Start())
		}
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Start() != 4 || n.Stats().TrimsHeld != 0 {
			t.Fatalf("start %d after the upload", s.Start())
		}
		<-changed
		if _, err := s.Read(t.Context(), stream.ReadRequest{From: 3}); !errors.Is(err, mink.ErrOutOfRange) {
			t.Fatal(err)
		}
		if err := s.Trim(t.Context(), 1000); err != nil || s.Start() != 10 {
			t.Fatalf("start %d, %v; a trim past the end is clamped", s.Start(), err)
		}
		if got := len(w.meta.State().Streams[1].Ranges); got != 0 {
			t.Fatalf("%d ranges left", got)
		}
		w.valid()
		// The checkpoint outlives the records.
		s = n.reopen(s)
		w.checkCheckpoint(s)
	})
}

func TestTrimInBatch(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		var trims []plan.Trim
		for id := mink.StreamID(1); id <= 20; id++ {
			s := n.open(id)
			w.append(s, 4, ckptFrame)
			w.append(s, 4, ckptFrame)
			trims = append(trims, plan.Trim{Stream: id, Start: 4})
		}
		time.Sleep(time.Minute + time.Second) // between two runs of the upload loop, which flushes held trims too
		if err := n.Trim(t.Context(), append(trims, plan.Trim{Stream: 99, Start: 5})); err != nil {
			t.Fatal(err)
		}
		if got := w.meta.Proposals("trim"); got != 1 {
			t.Fatalf("%d commands", got)
		}
		for id := mink.StreamID(1); id <= 20; id++ {
			if v := w.meta.State().Streams[id]; v.Start != 4 {
				t.Fatalf("stream %d starts at %d", id, v.Start)
			}
		}
	})
}
