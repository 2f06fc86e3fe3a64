package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/faultlog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func TestARestartWaitsForNoTTL(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.LeaseTTL = 30 * time.Second
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 4, nil)
		for i := range 40 {
			p.Append(refs[i%4], "x")
		}
		p.Crash()
		began := time.Now()
		p = w.StartReady(1)
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("a restart after a crash took %v of store round trips of 30 ms", took)
		}
		for _, ref := range refs {
			if _, values := p.Read(ref); len(values) != 10 {
				t.Errorf("bucket %s holds %d records, want 10", ref, len(values))
			}
		}
	})
}

func TestReplacedByAnotherProcess(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		first := w.StartReady(1)
		second := w.StartReady(1)
		w.Eventually(time.Minute, "the first process ends", func() bool { return !first.Running() })
		if err := first.Wait(); !errors.Is(err, node.ErrReplaced) {
			t.Errorf("the first process ended with %v, want ErrReplaced", err)
		}
		_, epoch := second.Node().Self()
		time.Sleep(time.Minute)
		if _, now := second.Node().Self(); !second.Running() || now != epoch {
			t.Errorf("the second process: running %t, epoch %d, then %d", second.Running(), epoch, now)
		}
	})
}

// A paused process finds its log closed by the store before it has read the
// metadata: it must not register over its successor.
func TestAPausedProcessDoesNotEndItsSuccessor(t *testing.T) {
	for seed := range uint64(4) {
		sim.InBubble(t, sim.Quiet(seed), func(t *testing.T, w *sim.World) {
			first := w.StartReady(1)
			_, refs := first.Topic("t", 1, nil)
			first.Append(refs[0], "a")
			log, err := first.Node().Log(refs[0])
			if err != nil {
				t.Fatal(err)
			}
			first.Pause()
			pending, err := log.AppendKafka(sim.KafkaBatch(mink.NoWriter, -1, "late"), tablet.KafkaAppend{})
			if err != nil {
				t.Fatal(err)
			}
			second := w.StartReady(1)
			_, epoch := second.Node().Self()
			second.Append(refs[0], "b")
			first.Resume()
			w.Eventually(time.Minute, "the paused process ends", func() bool { return !first.Running() })
			if err := first.Wait(); !errors.Is(err, node.ErrReplaced) {
				t.Errorf("seed %d: the paused process ended with %v, want ErrReplaced", seed, err)
			}
			<-pending.Done()
			if _, err := pending.Result(); err == nil {
				t.Errorf("seed %d: a paused process acknowledged after it was replaced", seed)
			}
			time.Sleep(30 * time.Second)
			if _, now := second.Node().Self(); now != epoch {
				t.Errorf("seed %d: the successor's epoch went from %d to %d", seed, epoch, now)
			}
			if _, values := second.Read(refs[0]); !slices.Equal(values, []string{"a", "b"}) {
				t.Errorf("seed %d: the log holds %v", seed, values)
			}
		})
	}
}

// lostRegistration carries out one registration and then loses its answer, and the
// database with it, until the cut is over.
type lostRegistration struct {
	metalog.Log
	armed, cut *atomic.Bool
}

func (l lostRegistration) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	entries, err := l.Log.Append(ctx, a)
	if err == nil && a.Register != 0 && l.armed.CompareAndSwap(true, false) {
		l.cut.Store(true)
		return nil, fmt.Errorf("lost: %w", mink.ErrUnknownOutcome)
	}
	return entries, err
}

// A registration whose answer is lost, and which is sealed for silence before the
// process hears of it, is no other process: it registers again.
func TestALostRegistrationIsNoOtherProcess(t *testing.T) {
	var armed, cut atomic.Bool
	cfg := sim.Quiet(1)
	processes := 0
	cfg.Log = func(l metalog.Log) metalog.Log {
		if processes++; processes != 2 {
			return l
		}
		return lostRegistration{faultlog.New(l, faultlog.Config{Plan: func(faultlog.Op) faultlog.Fault {
			if cut.Load() {
				return faultlog.Refused
			}
			return faultlog.None
		}}), &armed, &cut}
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		two := w.StartReady(2)
		w.Eventually(time.Minute, "node 2 coordinates", two.Coordinator().Leading)
		one := w.StartReady(1)
		_, first := one.Node().Self()
		one.PauseMetadata()
		w.Eventually(time.Minute, "node 1 is sealed for silence", func() bool {
			l, ok := two.Node().View().WAL(first)
			return ok && l.Sealed
		})
		armed.Store(true)
		one.Resume()
		var second mink.NodeEpoch
		w.Eventually(time.Minute, "its next registration, too", func() bool {
			n, ok := two.Node().View().Node(1)
			second = n.Epoch
			return ok && n.Epoch > first && n.Sealed
		})
		cut.Store(false)
		w.Eventually(time.Minute, "it registers again", func() bool {
			_, now := one.Node().Self()
			return now > second || !one.Running()
		})
		if !one.Running() {
			t.Errorf("the process took its own registration for another process: %v", one.Wait())
		}
	})
}

// A process that lost the database only: the store tells it first that it was
// replaced.
func TestAFencedProcessDoesNotEndItsSuccessor(t *testing.T) {
	for seed := range uint64(4) {
		sim.InBubble(t, sim.Quiet(seed), func(t *testing.T, w *sim.World) {
			first := w.StartReady(1)
			_, refs := first.Topic("t", 1, nil)
			first.Append(refs[0], "a")
			first.PauseMetadata()
			second := w.StartReady(1)
			_, epoch := second.Node().Self()
			if _, err := first.TryAppend(refs[0], "late"); !errors.Is(err, mink.ErrFenced) {
				t.Errorf("seed %d: append by a replaced process: %v, want ErrFenced", seed, err)
			}
			time.Sleep(time.Second) // it wants to register anew
			first.Resume()
			w.Eventually(time.Minute, "the replaced process ends", func() bool { return !first.Running() })
			if err := first.Wait(); !errors.Is(err, node.ErrReplaced) {
				t.Errorf("seed %d: the replaced process ended with %v, want ErrReplaced", seed, err)
			}
			if _, now := second.Node().Self(); now != epoch || !second.Running() {
				t.Errorf("seed %d: the successor's epoch went from %d to %d", seed, epoch, now)
			}
		})
	}
}

func TestSealedByTimeoutRegistersAnewInProcess(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		one, two := w.StartReady(1), w.StartReady(2)
		w.Eventually(5*time.Second, "node 1 coordinates", one.Coordinator().Leading)
		_, refs := one.Topic("t", 2, nil)
		_, epoch := two.Node().Self()
		two.Pause()
		time.Sleep(2500 * time.Millisecond)
		if w, _ := one.Node().View().WAL(epoch); w.Sealed {
			t.Error("node 2 was sealed before it was silent for a lease")
		}
		time.Sleep(5 * time.Second)
		if w, _ := one.Node().View().WAL(epoch); !w.Sealed || !w.Recovered {
			t.Errorf("node 2 is silent for two leases: sealed %t, recovered %t", w.Sealed, w.Recovered)
		}
		for _, ref := range refs { // both are led by node 1 now
			w.Eventually(time.Second, "the bucket is open", func() bool { _, err := one.Node().Log(ref); return err == nil })
			one.Append(ref, "x")
		}
		two.Resume()
		w.Eventually(10*time.Second, "node 2 registers anew", func() bool { _, now := two.Node().Self(); return now > epoch })
		if !two.Running() {
			t.Errorf("node 2 ended: %v", two.Wait())
		}
		if _, err := two.Node().Log(refs[0]); !isNotLeader(err, 1, "node-1:8815") {
			t.Errorf("node 2 says of a bucket of node 1: %v", err)
		}
	})
}

func isNotLeader(err error, leader mink.NodeID, address string) bool {
	var e *mink.NotLeaderError
	return errors.As(err, &e) && e.Leader == leader && e.Address == address
}

func TestGivesUpOnADeadStoreAndComesBack(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		p.Append(refs[0], "a")
		_, epoch := p.Node().Self()
		dead := p.Faults.Inject(fault.Rule{Ops: fault.Put, Do: fault.FailBefore(objstore.ErrUnavailable)})
		if _, err := p.TryAppend(refs[0], "b"); !errors.Is(err, mink.ErrFenced) {
			t.Errorf("append over a dead store: %v, want ErrFenced: its fate is not known here", err)
		}
		w.Eventually(10*time.Second, "the epoch ends", func() bool { _, now := p.Node().Self(); return now == 0 })
		time.Sleep(time.Minute)
		if n, _ := p.Node().View().Node(1); n.Epoch != epoch {
			t.Errorf("registered as epoch %d while the store takes no writes", n.Epoch)
		}
		if ok, why := p.Node().Ready(); ok || why != "not registered" {
			t.Errorf("ready %t, %q", ok, why)
		}
		dead.Remove()
		w.Eventually(10*time.Second, "ready again", func() bool { ok, _ := p.Node().Ready(); return ok })
		p.Append(refs[0], "c")
		if _, values := p.Read(refs[0]); !slices.Equal(values, []string{"a", "c"}) {
			t.Errorf("the log holds %v", values)
		}
	})
}

func TestLogNamesWhatIsWrong(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		one, two := w.StartReady(1), w.StartReady(2)
		_, refs := one.Topic("t", 2, nil)
		if err := two.Node().WaitApplied(context.Background(), one.Node().View().Index()); err != nil {
			t.Fatal(err)
		}
		var led [3]int
		for _, ref := range refs {
			w.Eventually(time.Second, "one of them leads", func() bool {
				_, e1 := one.Node().Log(ref)
				_, e2 := two.Node().Log(ref)
				switch {
				case e1 == nil && isNotLeader(e2, 1, "node-1:8815"):
					led[1]++
				case e2 == nil && isNotLeader(e1, 2, "node-2:8815"):
					led[2]++
				default:
					return false
				}
				return true
			})
		}
		if led[1] != 1 || led[2] != 1 {
			t.Errorf("nodes 1 and 2 lead %v buckets", led[1:])
		}
		if _, err := one.Node().Log(mink.BucketRef{Table: 9, Partition: 9}); !errors.Is(err, mink.ErrNotExist) {
			t.Errorf("no such bucket: %v", err)
		}
		two.Crash()
		w.Eventually(10*time.Second, "node 2 is seen dead", func() bool {
			n, _ := one.Node().View().Node(2)
			return n.Sealed
		})
		w.Eventually(time.Second, "node 1 leads all", func() bool {
			for _, ref := range refs {
				if _, err := one.Node().Log(ref); err != nil {
					if !errors.Is(err, mink.ErrUnavailable) {
						t.Errorf("between two leaders: %v, want ErrUnavailable", err)
					}
					return false
				}
			}
			return true
		})
	})
}

func TestAnOrderlyStopDrains(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.LeaseTTL = 30 * time.Second
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one, two := w.StartReady(1), w.StartReady(2)
		_, refs := one.Topic("t", 2, nil)
		var pending []*tablet.Pending
		var mine []mink.BucketRef
		for _, ref := range refs {
			log, err := one.Node().Log(ref)
			if err != nil {
				continue
			}
			mine = append(mine, ref)
			for range 20 {
				p, err := log.AppendKafka(sim.KafkaBatch(mink.NoWriter, -1, "x"), tablet.KafkaAppend{})
				if err != nil {
					t.Fatal(err)
				}
				pending = append(pending, p)
			}
		}
		if len(mine) == 0 {
			t.Fatal("node 1 leads nothing")
		}
		_, epoch := one.Node().Self()
		if err := one.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		for _, p := range pending {
			select {
			case <-p.Done():
				if _, err := p.Result(); err != nil {
					t.Errorf("an admitted append was not acknowledged: %v", err)
				}
			default:
				t.Error("an admitted append has no outcome")
			}
		}
		// Nobody waits for node 1's silence: node 2 takes the lease and the buckets.
		w.Eventually(9*time.Second, "node 2 leads all", func() bool {
			for _, ref := range refs {
				if _, err := two.Node().Log(ref); err != nil {
					return false
				}
			}
			return true
		})
		if why := two.Node().View().SealReason(epoch); why != "the node stopped" {
			t.Errorf("epoch %d was sealed because %q", epoch, why)
		}
		for _, ref := range mine {
			if _, values := two.Read(ref); len(values) != 20 {
				t.Errorf("bucket %s has %d records, want 20", ref, len(values))
			}
		}
	})
}

func TestWriterIdsAreNeverGivenTwice(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		seen := map[mink.WriterID]bool{}
		var mu sync.Mutex
		take := func(p *sim.Process) {
			var g sync.WaitGroup
			for range 20 {
				g.Go(func() {
					for range 60 { // more than one block
						id, err := p.Node().AllocateWriter(context.Background())
						mu.Lock()
						if err != nil || seen[id] || id < 1 {
							t.Errorf("writer id %d, given before %t: %v", id, seen[id], err)
						}
						seen[id] = true
						mu.Unlock()
					}
				})
			}
			g.Wait()
		}
		p := w.StartReady(1)
		take(p)
		p.Crash()
		take(w.StartReady(1))
	})
}

func TestRefusesAStoreThatCannotFence(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Store = func(s objstore.Store) objstore.Store { return overwriting{s} }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.Start(1)
		err := p.Wait()
		if err == nil || p.Node().View().StreamCount() != 0 {
			t.Errorf("ended with %v", err)
		}
		if _, ok := p.Node().View().Node(1); ok {
			t.Error("it registered on a store that overwrites")
		}
		w.Forgive()
	})
}

// overwriting takes every create-only put for an ordinary one.
type overwriting struct{ objstore.Store }

func (s overwriting) Put(ctx context.Context, r objstore.PutRequest) (objstore.PutResponse, error) {
	r.CreateOnly = false
	return s.Store.Put(ctx, r)
}

// An orderly stop leaves nothing to take over: the next start closes a log whose
// slots are all in stream objects.
func TestAStartAfterAnOrderlyStopTakesNothingOver(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) { c.Stream.WALUploadInterval = time.Hour }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 4, nil)
		for i := range 40 {
			p.Append(refs[i%4], "x")
		}
		_, epoch := p.Node().Self()
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		p = w.StartReady(1)
		view := p.Node().View()
		if l, _ := view.WAL(epoch); !l.Recovered || l.Trim != l.End || l.End == 0 || view.SealReason(epoch) != "the node stopped" {
			t.Errorf("the stopped node's log: %+v, sealed because %q; want it recovered, with nothing behind its trim", l, view.SealReason(epoch))
		}
		for o := range view.Objects() {
			if o.ID.Kind == plan.KindWAL {
				t.Errorf("%s was taken over by reference", o.Key())
			}
		}
		for _, ref := range refs {
			if _, values := p.Read(ref); len(values) != 10 {
				t.Errorf("bucket %s holds %d records, want 10", ref, len(values))
			}
		}
	})
}
