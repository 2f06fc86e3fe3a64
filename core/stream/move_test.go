package stream_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

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

// A stream that was recovered by reference has no checkpoint yet: what its first
// one is folded from must not be trimmed, or its idempotent writers would be
// forgotten.
func TestTrimWaitsForTheFirstCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1)
		s := a.open(1)
		for range 3 {
			w.put(s, 2, ckptFrame)
		}
		a.crash()
		w.recover(a.id)
		b := w.start(1)
		s = b.open(1)
		if err := s.Trim(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		if v, _ := w.meta.View().Stream(1); v.Start != 0 || s.Start() != 0 || b.Stats().TrimsHeld != 1 {
			t.Fatalf("trimmed to %d before there is a checkpoint", v.Start)
		}
		if err := b.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Start() != 4 {
			t.Errorf("starts at %d after the upload of a checkpoint", s.Start())
		}
		w.checkCheckpoint(s)
		w.check(s)
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
	})
}
