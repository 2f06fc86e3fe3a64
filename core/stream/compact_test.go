package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
)

// compactAll waits until everything is old and merges it.
func (n *node) compactAll() {
	n.w.t.Helper()
	time.Sleep(11 * time.Minute)
	if err := n.CompactNow(context.Background()); err != nil {
		n.w.t.Fatal(err)
	}
	n.w.valid()
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
