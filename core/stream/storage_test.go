package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
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

// compactAll waits until everything is old and merges it.
func (n *node) compactAll() {
	n.w.t.Helper()
	time.Sleep(11 * time.Minute)
	if err := n.CompactNow(context.Background()); err != nil {
		n.w.t.Fatal(err)
	}
	n.w.valid()
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

// A stream that was taken over by reference has an old checkpoint; an idle one
// must still be trimmed by retention.
func TestTrimOfARecoveredIdleStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		for range 10 {
			w.put(s, 1, ckptFrame)
		}
		n.crash()
		w.recover(n.id)
		n = w.start(1)
		s = n.open(1)
		w.check(s)
		if err := s.Trim(t.Context(), 6); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s.Start() != 6 {
			t.Fatalf("start %d: the trim is held for ever", s.Start())
		}
		w.checkCheckpoint(s)
		w.check(s)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		w.valid()
	})
}

// Failure 5: half-open intervals at every boundary.
func TestRestartKeepsTheFirstRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		for round := range 6 {
			for range round + 1 {
				w.put(s, 1, ckptFrame)
			}
			if round%2 == 0 {
				if err := n.UploadNow(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.put(s, 1, ckptFrame) // in the WAL only
			}
			n.crash()
			w.recover(n.id)
			n = w.start(1)
			s = n.open(1)
			if s.LogEnd() != s.HighWatermark() {
				t.Fatal("a new leader begins at the recovered end")
			}
			w.check(s)
			w.checkCheckpoint(s)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// Failure 4 and 19: moves by reference.
func TestReleaseMovesAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.start(1), w.start(2)
		moved, stays := a.open(1), a.open(2)
		for range 5 {
			w.put(moved, 2, ckptFrame)
			w.put(stays, 2, ckptFrame)
		}
		if err := a.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			w.put(moved, 2, ckptFrame)
			w.put(stays, 2, ckptFrame)
		}
		slots := len(w.keys("wal/"))
		r, err := moved.Release(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := moved.Append(request(1, moved.LogEnd(), 1, 1)); !errors.Is(err, mink.ErrClosed) {
			t.Fatalf("append after release: %v", err)
		}
		if err := w.meta.Release(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		moved.Close()
		s := b.open(1)
		w.check(s)
		// The old node uploads and trims what is left: the slots that the moved
		// stream needs stay.
		if err := a.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(w.keys("wal/")); got > slots || got == 0 {
			t.Fatalf("%d slots of %d", got, slots)
		}
		w.valid()
		w.check(s)
		w.check(stays)
		w.put(s, 1, ckptFrame)
		// The mover's merge takes the slots over; then they go, after the grace.
		a.compactAll()
		w.check(b.reopen(s))
		time.Sleep(20 * time.Minute)
		if got := w.keys("wal/" + a.id.String()); len(got) != 0 {
			t.Fatalf("slots left: %v", got)
		}
		for _, n := range []*node{a, b} {
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
		}
		w.valid()
	})
}

// A release that an upload overtook is stale, and works when made anew.
func TestReleaseRacesUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		w.put(s, 1, ckptFrame)
		r, err := s.Release(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.meta.Release(t.Context(), r); !errors.Is(err, mink.ErrConflict) {
			t.Fatalf("stale release: %v", err)
		}
		if r, err = s.Release(t.Context(), 0); err != nil || len(r.Items) != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := w.meta.Release(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		s.Close()
		s = n.open(1)
		w.check(s)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCompactionMergesAndCleans(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		var all []*stream.Stream
		for id := mink.StreamID(1); id <= 4; id++ {
			all = append(all, n.open(id))
		}
		for round := range 70 {
			for i, s := range all {
				if (round+i)%3 != 0 {
					w.put(s, 1, ckptFrame)
				}
			}
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := n.CompactNow(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.valid()
		}
		for _, s := range all {
			if got := len(w.meta.State().Streams[s.ID()].Ranges); got > 32 {
				t.Errorf("stream %d has %d ranges", s.ID(), got)
			}
			s = n.reopen(s)
			w.check(s)
			w.checkCheckpoint(s)
		}
		if n.Stats().Compactions < 8 {
			t.Fatalf("%d merges of 70 uploads", n.Stats().Compactions)
		}
		// Destroyed objects go after the grace, not before.
		gone := len(w.meta.State().Gone)
		if gone == 0 {
			t.Fatal("nothing was destroyed")
		}
		for id, d := range w.meta.State().Gone {
			if _, err := w.mem.Head(t.Context(), d.Object.Key()); err != nil && time.Now().UnixMilli()-d.DestroyedAt < 5*60*1000 {
				t.Fatalf("%+v was deleted within its grace", id)
			}
		}
		time.Sleep(15 * time.Minute)
		if left := w.meta.State().Gone; len(left) != 0 {
			t.Fatalf("%d destroyed objects are left", len(left))
		}
		w.sameAsStore()
	})
}

// sameAsStore requires that the store has exactly what metadata names.
func (w *world) sameAsStore() {
	w.t.Helper()
	var want []string
	for _, o := range w.meta.State().Named {
		want = append(want, o.Key())
	}
	for _, d := range w.meta.State().Gone {
		want = append(want, d.Object.Key())
	}
	slices.Sort(want)
	if got := w.keys("data/"); !slices.Equal(got, want) {
		w.t.Fatalf("store has %d objects, metadata %d:\n%v\n%v", len(got), len(want), got, want)
	}
}

func TestCompactionCutsRunsAtStreamBoundaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.Compaction.ObjectBytes = 64 << 10
		n := w.start(1)
		var all []*stream.Stream
		for id := mink.StreamID(1); id <= 6; id++ {
			all = append(all, n.open(id))
		}
		for range 9 {
			for i, s := range all {
				w.append(s, 1, 300)
				for range i {
					w.append(s, 1, 1500)
				}
			}
			w.append(all[5], 1, 20<<10) // alone larger than an object
			time.Sleep(time.Second)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n.compactAll()
		for _, s := range all {
			v := w.meta.State().Streams[s.ID()]
			if len(v.Ranges) != 1 && s.ID() != 6 {
				t.Errorf("stream %d: %d ranges, want one object", s.ID(), len(v.Ranges))
			}
			if s.ID() == 6 && len(v.Ranges) < 2 {
				t.Errorf("a stream of 180 KiB lies in one object of 64 KiB")
			}
		}
		for _, o := range w.meta.State().Named {
			if o.Size > 96<<10 {
				t.Errorf("object of %d bytes", o.Size)
			}
		}
		for _, s := range all {
			w.check(n.reopen(s))
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHalfDeadObjectsAreRewritten(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		a, b := n.open(1), n.open(2)
		for range 10 {
			w.put(a, 1, 40<<10)
			w.put(b, 1, ckptFrame)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n.compactAll()
		size := func() (sum int64) {
			for _, o := range w.meta.State().Named {
				sum += o.Size
			}
			return sum
		}
		before := size()
		if err := n.CompactNow(t.Context()); err != nil || size() != before {
			t.Fatalf("a live object was rewritten: %d, %d, %v", before, size(), err)
		}
		if err := a.Trim(t.Context(), 9); err != nil {
			t.Fatal(err)
		}
		n.compactAll()
		if got := size(); got > before/2 {
			t.Fatalf("%d bytes of %d after most was trimmed", got, before)
		}
		w.check(n.reopen(a))
		w.check(n.reopen(b))
	})
}

// Failure 17: a merge whose plan went stale changes nothing and leaves nothing.
func TestStaleCompaction(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s, dropped := n.open(1), n.open(2)
		for range 9 {
			w.put(s, 1, ckptFrame)
			w.put(dropped, 1, ckptFrame)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// A trim between plan and commit is fine; what is stale is planned anew.
		times := 0
		n.meta.inject(func(op string) (error, error) {
			if op == "replace" && times < 2 {
				times++
				if times == 1 {
					w.meta.Change(func(st *plantest.State) { st.Drop(2) })
					return nil, nil
				}
				return fmt.Errorf("somebody was first: %w", mink.ErrConflict), nil
			}
			return nil, nil
		})
		time.Sleep(11 * time.Minute)
		if err := n.CompactNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.meta.inject(nil)
		w.valid()
		w.check(n.reopen(s))
		time.Sleep(15 * time.Minute)
		w.sameAsStore()
	})
}

// Lost responses of a ReplaceObjects leave a valid state and no garbage.
func TestReplaceWithUnknownOutcome(t *testing.T) {
	for _, landed := range []bool{false, true} {
		t.Run(fmt.Sprint(landed), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, n *node) {
				s := n.open(1)
				for range 9 {
					w.put(s, 1, ckptFrame)
					if err := n.UploadNow(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				times := 0
				n.meta.inject(func(op string) (error, error) {
					if op != "replace" || times > 0 {
						return nil, nil
					}
					times++
					if landed {
						return nil, mink.ErrUnknownOutcome
					}
					return mink.ErrUnknownOutcome, nil
				})
				if err := n.CompactNow(t.Context()); !errors.Is(err, mink.ErrUnknownOutcome) {
					t.Fatal(err)
				}
				time.Sleep(4 * time.Hour)
				w.valid()
				w.check(n.reopen(s))
				time.Sleep(4 * time.Hour)
				w.sameAsStore()
			})
		})
	}
}

// A corrupt source stops the merge; nothing is dropped.
func TestCompactionStopsAtCorruption(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 9 {
			w.put(s, 1, 5000)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		in := n.store.Inject(fault.Rule{Ops: fault.Get, Prefix: "data/", Do: fault.FlipBit()})
		if err := n.CompactNow(t.Context()); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatal(err)
		}
		in.Remove()
		w.valid()
		if got := len(w.meta.State().Gone); got != 0 {
			t.Fatalf("%d objects destroyed", got)
		}
		n.compactAll()
		w.check(n.reopen(s))
	})
}

// Failures 7 and 9: late PUTs and the sweep.
func TestSweepAfterRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		w.put(s, 1, ckptFrame)
		// An upload that was written and never committed, and a late slot.
		n.meta.inject(func(op string) (error, error) { return errCrash, nil })
		if err := n.UploadNow(t.Context()); err == nil {
			t.Fatal("committed without metadata")
		}
		w.put(s, 1, ckptFrame)
		n.crash()
		c := w.recover(n.id)
		late := plan.Key(n.id, plan.KindWAL, c.End+5)
		put := func(key string) {
			t.Helper()
			if _, err := w.mem.Put(t.Context(), objstore.PutRequest{Key: key, Chunks: [][]byte{{1}}}); err != nil {
				t.Fatal(err)
			}
		}
		put(late)
		orphans := len(w.keys("data/"))
		if orphans == 0 {
			t.Fatal("no orphan")
		}
		b := w.start(2)
		s = b.open(1)
		if err := b.SweepNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(w.keys("data/")) != orphans {
			t.Fatal("a young orphan was deleted")
		}
		time.Sleep(3 * time.Hour)
		if got := w.keys("data/" + n.id.String()); len(got) != 0 {
			t.Fatalf("orphans left: %v", got)
		}
		put(late) // again, after the sweep
		put(plan.Key(n.id, plan.KindWAL, 0))
		time.Sleep(3 * time.Hour)
		want := []string{plan.Key(n.id, plan.KindWAL, c.End)}
		if got := w.keys("wal/" + n.id.String()); !slices.Equal(got, want) {
			t.Fatalf("slots %v, want the tombstone %v only", got, want)
		}
		w.check(s)
		w.put(s, 1, ckptFrame)
		w.check(b.reopen(s))
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		w.valid()
	})
}

// Deletion waits for every live node to have applied the destroy.
func TestDeletionWaitsForLaggingNodes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 9 {
			w.put(s, 1, ckptFrame)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.meta.Lag(w.meta.State().Index)
		n.compactAll()
		time.Sleep(time.Hour)
		if len(w.meta.State().Gone) == 0 {
			t.Fatal("deleted though a node may still read the objects")
		}
		w.meta.Lag(0)
		time.Sleep(time.Minute)
		if len(w.meta.State().Gone) == 0 {
			t.Fatal("deleted within the read timeout")
		}
		time.Sleep(3 * time.Minute)
		if len(w.meta.State().Gone) != 0 {
			t.Fatal("not deleted")
		}
	})
}

// A new leader of many streams reads each bulk of the dead node once.
func TestRecoveredBulksAreReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		for id := mink.StreamID(1); id <= 50; id++ {
			s := n.open(id)
			w.append(s, 1, ckptFrame)
			w.note(id, 0, 1)
		}
		time.Sleep(time.Second)
		slots := int64(len(w.keys("wal/")))
		n.crash()
		w.recover(n.id)
		n = w.start(1)
		for id := mink.StreamID(1); id <= 50; id++ {
			w.check(n.open(id))
		}
		if got := n.Stats().Gets; got > 2*slots {
			t.Fatalf("%d gets for 50 streams in %d bulks, want an index and a body each", got, slots)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
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
		time.Sleep(time.Minute)
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
