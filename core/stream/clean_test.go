package stream_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/objstore"

	"github.com/mink-project/mink/sdk/mink"
)

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
		w.meta.Change(func(s *plantest.State) { s.TimeLine = uint64(n.id.Epoch) })
		b := w.start(2)
		s = b.open(1)
		if err := b.SweepNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(w.keys("data/")) != orphans {
			t.Fatal("a young orphan was deleted")
		}
		time.Sleep(3 * time.Hour)
		if got := w.keys("data/" + n.id.String()); len(got) != orphans {
			t.Fatalf("%v are left of %d orphans of an earlier time line", got, orphans)
		}
		w.meta.Change(func(s *plantest.State) { s.TimeLine = uint64(n.id.Epoch) - 1 })
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

// Deletion waits for every live node's reads to be done with the object.
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
		if len(w.meta.State().Gone) != 0 {
			t.Fatal("not deleted")
		}
	})
}

// With every node up to date and no read on an old view, the grace alone keeps a
// destroyed object: for a node that was restarted, a restored database, a person.
func TestDeletionWaitsForTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 9 {
			w.put(s, 1, ckptFrame)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.CompactNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		gone := len(w.meta.State().Gone)
		time.Sleep(w.cfg.DestroyGrace - time.Minute) // well past ReadTimeout
		if got := len(w.meta.State().Gone); gone == 0 || got != gone {
			t.Fatalf("%d objects destroyed, %d left within the grace", gone, got)
		}
		time.Sleep(2 * time.Minute)
		if got := len(w.meta.State().Gone); got != 0 {
			t.Fatalf("%d objects not deleted after the grace", got)
		}
	})
}

// An object whose commit does not get through for hours is no orphan: its epoch
// lives, and the commit that names it is still to come.
func TestSweepLeavesLivingEpochs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		other := w.start(2)
		s := n.open(1)
		w.put(s, 2, ckptFrame)
		n.meta.inject(func(op string) (error, error) { return mink.ErrUnavailable, nil })
		if err := n.UploadNow(t.Context()); !errors.Is(err, mink.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(3 * w.cfg.OrphanAge)
		for _, e := range []*node{n, other} {
			if err := e.SweepNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n.meta.inject(nil)
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.sameAsStore()
		w.check(n.reopen(s))
		if err := other.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// No read may use a view that is older than the horizon says, and the horizon
// must come on.
func TestReadHorizonTrailsTheViewByTheReadTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.meta.Change(func(*plantest.State) {})
		n := w.start(1)
		begin := w.meta.State().Index
		type moment struct {
			at    time.Time
			index uint64
		}
		var views []moment
		last, r := begin, seeded(1)
		for range 500 {
			w.meta.Change(func(*plantest.State) {})
			views = append(views, moment{time.Now(), w.meta.State().Index})
			time.Sleep(time.Duration(r.IntN(15000)) * time.Millisecond)
			got := n.ReadHorizon()
			// A read that began just within the read timeout may use the view of then.
			oldest, expected := begin, begin
			for _, v := range views {
				if time.Since(v.at) >= w.cfg.ReadTimeout {
					oldest = v.index
				}
				if time.Since(v.at) >= w.cfg.ReadTimeout+30*time.Second {
					expected = v.index
				}
			}
			if got > oldest || got < expected || got < last {
				t.Fatalf("horizon %d after %d: a read may use view %d, and %d was passed half a minute before", got, last, oldest, expected)
			}
			last = got
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// A node that restarts more often than the read timeout deletes nevertheless,
// and no sooner than the reads of a node that stays are over.
func TestARestartingNodeDeletes(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprintf("alone=%v", alone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.cfg.DestroyGrace = 0 // what the readers need is what is looked at
				n := w.start(1)
				var stays *node
				if !alone {
					stays = w.start(2)
				}
				s := n.open(1)
				for range 9 {
					w.put(s, 1, ckptFrame)
					if err := n.UploadNow(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if stays != nil {
					stays.ReadHorizon() // its heartbeat, before the destroy
				}
				if err := n.CompactNow(t.Context()); err != nil {
					t.Fatal(err)
				}
				destroyed, at := len(w.meta.State().Gone), time.Now()
				for range 6 {
					time.Sleep(40 * time.Second)
					left := len(w.meta.State().Gone)
					if early := time.Since(at) < w.cfg.ReadTimeout; early && !alone && left != destroyed {
						t.Fatalf("%d of %d objects deleted while a read may use them", destroyed-left, destroyed)
					}
					if err := n.stop(); err != nil {
						t.Fatal(err)
					}
					w.recover(n.id)
					n = w.start(1)
				}
				if left := len(w.meta.State().Gone); destroyed == 0 || left != 0 {
					t.Errorf("%d of %d destroyed objects are left after %s", left, destroyed, time.Since(at))
				}
				w.sameAsStore()
				w.check(n.open(1))
				for _, e := range []*node{n, stays} {
					if e == nil {
						continue
					}
					if err := e.stop(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// The outcome of a merge is unknown, it was accepted, and the metadata log is away
// for hours: what the old view does not name is not for that reason an orphan.
func TestSweepDoesNotTrustAnOldView(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for range 9 {
			w.put(s, 1, ckptFrame)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n.meta.freeze()
		n.meta.inject(func(op string) (error, error) {
			if op == "replace" {
				return nil, mink.ErrUnknownOutcome
			}
			return mink.ErrUnavailable, nil
		})
		if err := n.CompactNow(t.Context()); !errors.Is(err, mink.ErrUnknownOutcome) {
			t.Fatal(err)
		}
		n.meta.inject(func(string) (error, error) { return mink.ErrUnavailable, nil })
		time.Sleep(3 * w.cfg.OrphanAge)
		if err := n.SweepNow(t.Context()); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("swept on a view that may be old: %v", err)
		}
		n.meta.freeze()
		n.meta.inject(nil)
		s = n.reopen(s)
		w.check(s)
		time.Sleep(3 * w.cfg.OrphanAge)
		w.check(n.reopen(s))
		w.sameAsStore()
	})
}

// Slots whose trim the log could still lose stay: a log that was restored to
// before it would need them for recovery.
func TestSlotsStayUntilTheirTrimIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		slots := func() int { return len(w.keys("wal/" + n.id.String())) }
		upload := func() uint64 {
			t.Helper()
			w.put(s, 1, ckptFrame)
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
			return n.meta.View().Index()
		}
		w.meta.Forget(n.meta.View().Index())
		first := upload()
		upload()
		if got := slots(); got != 2 {
			t.Fatalf("%d slots are left before their trims are remembered, want 2", got)
		}
		w.meta.Forget(first)
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := slots(); got != 1 {
			t.Errorf("%d slots are left when the first trim is remembered, want 1", got)
		}
		w.meta.Forget(0)
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := slots(); got != 0 {
			t.Errorf("%d slots are left when both trims are remembered", got)
		}
		// More trims than are noted one by one.
		w.meta.Forget(n.meta.View().Index())
		for range 100 {
			upload()
		}
		w.meta.Forget(0)
		upload()
		if got := slots(); got != 0 {
			t.Errorf("%d slots are left after many trims", got)
		}
	})
}
