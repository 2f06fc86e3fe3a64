package stream_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Failure 11: the response of a commit is lost, more records come, the upload is
// tried again: nothing twice, nothing forgotten.
func TestLostCommitResponse(t *testing.T) {
	for _, landed := range []bool{true, false} {
		t.Run(fmt.Sprint(landed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n := w.start(1)
				s := n.open(1)
				w.put(s, 2, ckptFrame)
				lost := false
				n.meta.inject(func(op string) (error, error) {
					switch {
					case op != "commit" || lost:
						return nil, nil
					case landed:
						lost = true
						return nil, mink.ErrUnknownOutcome
					}
					lost = true
					return mink.ErrUnknownOutcome, nil
				})
				if err := n.UploadNow(t.Context()); !errors.Is(err, mink.ErrUnknownOutcome) {
					t.Fatal(err)
				}
				w.put(s, 2, ckptFrame) // the second attempt must not claim this one for the first
				if err := n.UploadNow(t.Context()); err != nil {
					t.Fatal(err)
				}
				if v, _ := w.meta.View().Stream(1); v.End != 4 {
					t.Fatalf("committed end %d", v.End)
				}
				n.crash()
				w.recover(n.id)
				n = w.start(1)
				w.check(n.open(1))
				if err := n.stop(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Failure 2: what is acknowledged while an upload is under way belongs to the
// next one; the trim does not cover it.
func TestAppendsDuringAnUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		a, b := n.open(1), n.open(2)
		w.put(a, 2, ckptFrame)
		n.meta.inject(func(op string) (error, error) {
			if op == "commit" && b.LogEnd() < 20 {
				w.put(b, 2, ckptFrame)
				w.put(a, 2, ckptFrame)
			}
			return nil, nil
		})
		n.store.Inject(fault.Rule{Ops: fault.Put, Prefix: "data/", Do: fault.DelayBy(time.Second)})
		for range 3 {
			if err := n.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.put(b, 2, ckptFrame)
		}
		n.crash()
		w.recover(n.id)
		n = w.start(1)
		w.check(n.open(1))
		w.check(n.open(2))
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// A commit that apply refuses gives the epoch up: this node's idea of its log is
// wrong.
func TestRefusedCommitGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		w.put(s, 2, ckptFrame)
		n.meta.inject(func(op string) (error, error) { return fmt.Errorf("a gap: %w", mink.ErrConflict), nil })
		if err := n.UploadNow(t.Context()); !errors.Is(err, mink.ErrConflict) {
			t.Fatal(err)
		}
		if err := <-n.done; !errors.Is(err, mink.ErrFenced) {
			t.Fatal(err)
		}
		if _, err := s.Append(request(1, 2, 1, 1)); !errors.Is(err, mink.ErrFenced) {
			t.Fatal(err)
		}
		w.recover(n.id)
		n2 := w.start(1)
		w.check(n2.open(1))
		if err := n2.stop(); err != nil {
			t.Fatal(err)
		}
		n.cancel()
	})
}

// Failure 19: the destroyed slot of a moved stream holds another stream's
// acknowledged records.
func TestDestroyedSlotStaysWhileItsLogNeedsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		w.put(n.open(3), 1, 10) // so that metadata knows a trim
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		moved, stays := n.open(1), n.open(2)
		n.meta.inject(func(op string) (error, error) {
			if op == "commit" {
				return mink.ErrUnavailable, nil // uploads do not get through for a while
			}
			return nil, nil
		})
		at := moved.LogEnd()
		t1, t2 := w.append(moved, 2, ckptFrame), w.append(stays, 2, ckptFrame) // one slot
		<-t1.Done()
		<-t2.Done()
		w.note(1, at, at+2)
		w.note(2, 0, 2)
		r, err := moved.Release(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.meta.Release(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		moved.Close()
		if err := w.meta.TrimStreams(t.Context(), []plan.Trim{{Stream: 1, Start: 2}}); err != nil {
			t.Fatal(err)
		}
		if len(w.meta.State().Gone) != 1 {
			t.Fatal("the slot should be destroyed: nobody names it")
		}
		time.Sleep(time.Hour)
		n.crash()
		w.recover(n.id)
		b := w.start(1)
		w.check(b.open(2))
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// A destroyed object of an ended epoch is under its grace however old it is: the
// sweep leaves it alone.
func TestSweepLeavesTheDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1)
		s := a.open(1)
		for range 9 {
			w.put(s, 2, ckptFrame)
			if err := a.UploadNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		a.crash()
		w.recover(a.id)
		b := w.start(2)
		w.check(b.open(1))
		w.meta.Lag(w.meta.State().Index) // some node reads on an old view
		b.compactAll()
		time.Sleep(5 * time.Hour)
		if err := b.SweepNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(w.meta.State().Gone) != 9 {
			t.Fatalf("%d destroyed objects", len(w.meta.State().Gone))
		}
		w.sameAsStore()
		w.meta.Lag(0)
		time.Sleep(time.Hour)
		if len(w.meta.State().Gone) != 0 {
			t.Fatal("not deleted")
		}
		w.sameAsStore()
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// Failure 14: with uploads blocked, records of 50 bytes are refused before the
// accounted cache is over its limit, one stream long before; then all goes on.
func TestBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.LogCacheBytes, w.cfg.RecordBytesMax, w.cfg.UploadBytes = 4<<20, 1<<20, 2<<20
		n := w.start(1)
		block := n.store.Inject(fault.Rule{Ops: fault.Put, Prefix: "data/", Do: fault.FailBefore(objstore.ErrUnavailable)})
		var all []*stream.Stream
		for id := mink.StreamID(1); id <= 8; id++ {
			all = append(all, n.open(id))
		}
		pour := func(s *stream.Stream) (n int) {
			for ; ; n++ {
				if _, err := s.Append(request(s.ID(), s.LogEnd(), 1, 50)); err != nil {
					if !errors.Is(err, mink.ErrThrottled) {
						t.Fatal(err)
					}
					return n
				}
			}
		}
		first := pour(all[0])
		if got := first * (50 + 56); got > 4<<20/4 || got < 4<<20/5 { // 56: an index entry
			t.Errorf("one stream holds %d bytes of a 4 MiB cache, want a quarter", got)
		}
		for _, s := range all[1:] {
			pour(s)
		}
		if got := n.Stats().LogCacheBytes; got > 4<<20 || got < 3<<20 {
			t.Errorf("%d bytes accounted at the limit of 4 MiB", got)
		}
		time.Sleep(time.Second)
		block.Remove()
		time.Sleep(time.Minute)
		if again := pour(all[0]); again < first*9/10 {
			t.Errorf("%d records after the upload, %d before", again, first)
		}
		time.Sleep(time.Minute)
		for _, s := range all {
			if s.HighWatermark() != s.LogEnd() {
				t.Errorf("stream %d: %d of %d", s.ID(), s.HighWatermark(), s.LogEnd())
			}
			w.check(s)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// At 70 % uploads do not wait for their interval.
func TestUploadBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.LogCacheBytes, w.cfg.RecordBytesMax, w.cfg.WALUploadInterval = 8<<20, 1<<20, time.Hour
		n := w.start(1)
		for id := mink.StreamID(1); id <= 6; id++ {
			w.put(n.open(id), 1, 1<<20)
		}
		time.Sleep(time.Second)
		if w.meta.Proposals("commit") == 0 {
			t.Fatal("no upload at 75 % of the cache")
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// Failure 12: capacity one everywhere, many goroutines.
func TestCapacityOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.WALWindow, w.cfg.WALBatchBytes, w.cfg.WALBulkBytesMax = 1, 1, 1
		w.cfg.BlockCacheBytes, w.cfg.IndexCacheBytes, w.cfg.ReadaheadBudget = 0, 0, 0
		w.cfg.UploadBytes, w.cfg.CompactReadBytes = 1, 1
		n := w.start(1)
		n.store.Inject(fault.Rule{Do: fault.DelayBy(3 * time.Millisecond)})
		var wg sync.WaitGroup
		for id := mink.StreamID(1); id <= 5; id++ {
			s := n.open(id)
			wg.Go(func() {
				for s.LogEnd() < 40 {
					at := s.LogEnd()
					tk, err := s.Append(request(id, at, 2, ckptFrame))
					if errors.Is(err, mink.ErrThrottled) {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if at%8 == 0 {
						<-tk.Done()
					}
				}
				for s.HighWatermark() < 40 {
					<-s.Changed()
				}
				for at := mink.Offset(0); at < 40; at += 2 {
					w.note(id, at, at+2)
				}
				w.check(s)
			})
		}
		for range 3 {
			wg.Go(func() {
				for range 20 {
					_ = n.UploadNow(context.Background())
					_ = n.CompactNow(context.Background())
					_ = n.CleanNow(context.Background())
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		w.valid()
	})
}

// Failure 18: nothing waits for a read or an upload that hangs.
func TestCloseAndStopDoNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		for range 40 {
			w.put(s, 1, 400<<10)
		}
		s = n.reopen(s)
		hung := n.store.Inject(fault.Rule{Ops: fault.Get | fault.Put, Prefix: "data/", Do: fault.Hold()})
		read := make(chan error, 1)
		go func() {
			_, err := s.Read(context.Background(), stream.ReadRequest{MaxBytes: 1})
			read <- err
		}()
		synctest.Wait()
		w.put(s, 1, 100) // appends and cached reads go on
		if _, err := s.Read(t.Context(), stream.ReadRequest{From: s.HighWatermark() - 1, MaxBytes: 1}); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		s.Close()
		if time.Since(at) != 0 {
			t.Fatal("close waited")
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(at); d > w.cfg.DrainTimeout+time.Second {
			t.Fatalf("stop took %s", d)
		}
		if err := <-read; !errors.Is(err, mink.ErrUnavailable) {
			t.Fatalf("the hung read ended with %v", err)
		}
		hung.Remove()
	})
}

// Every loop fires at its interval and survives failures.
func TestLoopsFireAndSurvive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		w.put(s, 1, ckptFrame)
		time.Sleep(9 * time.Second)
		if w.meta.Proposals("commit") != 0 {
			t.Fatal("uploaded before its interval")
		}
		time.Sleep(2 * time.Second)
		if w.meta.Proposals("commit") != 1 {
			t.Fatal("not uploaded at its interval")
		}
		time.Sleep(24 * time.Hour)
		for _, l := range n.Stats().Loops {
			want := uint64(24 * time.Hour / l.Interval)
			if l.Runs < want-1 || l.Runs > want+2 || l.LastError != "" || time.Until(l.Next) > l.Interval {
				t.Errorf("%s: %d runs in a day at %s, error %q", l.Name, l.Runs, l.Interval, l.LastError)
			}
		}
		broken := n.store.Inject(fault.Rule{Prefix: "data/", Do: fault.FailBefore(objstore.ErrUnavailable)})
		w.put(s, 1, ckptFrame)
		time.Sleep(time.Minute)
		up := n.Stats().Loops[0]
		if up.Failures == 0 || up.LastError == "" {
			t.Fatalf("%+v", up)
		}
		broken.Remove()
		time.Sleep(time.Minute)
		if up = n.Stats().Loops[0]; up.LastError != "" {
			t.Fatalf("still failing: %+v", up)
		}
		if v, _ := w.meta.View().Stream(1); v.End != 2 {
			t.Fatalf("end %d", v.End)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

var chaosSeeds = flag.Uint64("chaos-seeds", 6, "how many seeds TestChaos runs")

// TestChaos runs two nodes over a store that loses, repeats, delays and refuses,
// with crashes, restarts and moves; the acknowledged set always survives.
func TestChaos(t *testing.T) {
	seeds := *chaosSeeds
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { chaos(t, seed) }) })
	}
}

func chaos(t *testing.T, seed uint64) {
	w := newWorld(t)
	w.cfg.Compaction.ObjectBytes = 16 << 10 // many objects to a run
	r := seeded(seed)
	nodes := map[mink.NodeID]*node{}
	owner := map[mink.StreamID]*stream.Stream{}
	home := map[mink.StreamID]mink.NodeID{}
	begin := func(id mink.NodeID) {
		n := w.start(id)
		n.store.Inject(fault.Chaos(0.02, time.Hour)...)
		nodes[id] = n
	}
	begin(1)
	begin(2)
	lead := func(s mink.StreamID, n mink.NodeID) { owner[s], home[s] = nodes[n].open(s), n }
	for s := mink.StreamID(1); s <= 6; s++ {
		lead(s, mink.NodeID(s%2+1))
	}
	restart := func(id mink.NodeID) {
		nodes[id].crash()
		w.recover(nodes[id].id)
		begin(id)
		for s := mink.StreamID(1); s <= 6; s++ {
			if home[s] == id {
				lead(s, mink.NodeID(r.IntN(2)+1))
			}
		}
	}
	for range 400 {
		s := mink.StreamID(r.IntN(6) + 1)
		switch r.IntN(12) {
		default:
			at := owner[s].LogEnd()
			tk, err := owner[s].Append(request(s, at, 2, ckptFrame))
			if err != nil {
				if errors.Is(err, mink.ErrFenced) {
					restart(home[s])
				}
				continue
			}
			go func() {
				if <-tk.Done(); tk.Err() == nil {
					w.note(s, at, at+2)
				}
			}()
		case 0:
			time.Sleep(time.Duration(r.IntN(20)) * time.Second)
		case 1:
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
		case 2:
			time.Sleep(time.Duration(r.IntN(20)) * time.Minute)
		case 3:
			if r.IntN(4) == 0 {
				restart(mink.NodeID(r.IntN(2) + 1))
			}
		case 4: // a move between living nodes
			rel, err := owner[s].Release(t.Context(), 0)
			if err != nil || w.meta.Release(t.Context(), rel) != nil {
				restart(home[s])
				continue
			}
			owner[s].Close()
			lead(s, 3-home[s])
		case 5:
			_ = owner[s].Trim(t.Context(), owner[s].HighWatermark()-mink.Offset(r.IntN(40)))
		}
		w.valid()
	}
	time.Sleep(time.Minute)
	for _, n := range nodes {
		n.store.ClearRules()
	}
	for s := range owner {
		if !isOpen(owner[s]) {
			restart(home[s])
		}
	}
	for _, n := range nodes {
		n.store.ClearRules()
	}
	time.Sleep(3 * time.Hour)
	for s := mink.StreamID(1); s <= 6; s++ {
		w.check(owner[s])
		owner[s] = nodes[home[s]].reopen(owner[s])
		w.check(owner[s])
	}
	for _, n := range nodes {
		n.store.WaitLate()
	}
	time.Sleep(3 * time.Hour)
	for _, n := range nodes {
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	}
	w.valid()
}

func isOpen(s *stream.Stream) bool {
	_, err := s.Read(context.Background(), stream.ReadRequest{From: s.HighWatermark(), MaxBytes: 1})
	return err == nil
}

// The design's aim: with a PUT of 100 ms (p99 300 ms), p99 of the
// acknowledgement stays below the batch interval and 1.3 x the PUT's p99. The
// latencies are virtual and seeded, so this is a property of the schedule, not
// of the machine.
func TestAckLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg = stream.Default(objstore.Capabilities{PutLatency: 100 * time.Millisecond}, 1<<30)
		w.latency = fault.Latency{Put: fault.Dist{Median: 100 * time.Millisecond, P99: 300 * time.Millisecond}}
		n := w.start(1)
		s := n.open(1)
		var mu sync.Mutex
		var took []time.Duration
		var wg sync.WaitGroup
		for range 60_000 { // a record every 5 ms for five minutes
			at, tk := time.Now(), w.append(s, 1, 100)
			wg.Go(func() {
				<-tk.Done()
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(at))
			})
			time.Sleep(5 * time.Millisecond)
		}
		wg.Wait()
		slices.Sort(took)
		p99 := took[len(took)*99/100]
		if limit := w.cfg.WALBatchInterval + 300*time.Millisecond*13/10; p99 > limit {
			t.Errorf("p99 %s, aim %s", p99, limit)
		}
		t.Logf("p50 %s, p99 %s, %d puts", took[len(took)/2], p99, n.Stats().Bulks)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}
