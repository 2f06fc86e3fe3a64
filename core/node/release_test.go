package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// releases stands between the nodes and the metadata log: hook carries out the batches
// that hold a Release.
type releases struct {
	mu   sync.Mutex
	hook func(ctx context.Context, a metalog.Append, land landing) ([]metalog.Entry, error)
}

type landing func(context.Context, metalog.Append) ([]metalog.Entry, error)

// set puts a hook in place; nil: none.
func (r *releases) set(hook func(context.Context, metalog.Append, landing) ([]metalog.Entry, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = hook
}

func (r *releases) config(cfg sim.Config) sim.Config {
	cfg.Log = func(l metalog.Log) metalog.Log { return releaseLog{l, r} }
	return cfg
}

type releaseLog struct {
	metalog.Log
	of *releases
}

func (l releaseLog) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	l.of.mu.Lock()
	hook := l.of.hook
	l.of.mu.Unlock()
	if hook == nil || !holdsRelease(a) {
		return l.Log.Append(ctx, a)
	}
	return hook(ctx, a, l.Log.Append)
}

func holdsRelease(a metalog.Append) bool {
	for _, payload := range a.Payloads {
		var b clusterpb.Batch
		if proto.Unmarshal(payload, &b) == nil && slices.ContainsFunc(b.Commands, func(c *clusterpb.Command) bool { return c.GetRelease() != nil }) {
			return true
		}
	}
	return false
}

// pair is node 1 with a topic's buckets, and node 2 with none.
func pair(w *sim.World, buckets int32) (one, two *sim.Process, refs []mink.BucketRef) {
	one = w.StartReady(1)
	_, refs = one.Topic("t", buckets, nil)
	return one, w.StartReady(2), refs
}

func mustLog(t *testing.T, p *sim.Process, ref mink.BucketRef) *tablet.Log {
	t.Helper()
	log, err := p.Node().Log(ref)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// refuses checks that a log takes nothing more.
func refuses(t *testing.T, log *tablet.Log, when string) {
	t.Helper()
	if _, err := log.AppendKafka(sim.KafkaBatch(mink.NoWriter, -1, "refused"), tablet.KafkaAppend{}); !errors.Is(err, mink.ErrClosed) && !errors.Is(err, mink.ErrFenced) {
		t.Errorf("append %s: %v, want it refused", when, err)
	}
}

// release asks for a move and answers how it ended.
func release(p *sim.Process, ref mink.BucketRef, to mink.NodeID, patience time.Duration) chan error {
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended <- p.Node().ReleaseBucket(ctx, ref, to)
	}()
	return ended
}

// A bucket goes back and forth under load: nothing acknowledged is lost, doubled or out
// of order.
func TestMovesUnderLoad(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		one, two, refs := pair(w, 2)
		truth := w.NewTruth()
		model := w.NewModel(truth)
		ctx, cancel := context.WithCancel(context.Background())
		var clients sync.WaitGroup
		for i := range 6 {
			p := &sim.Producer{Name: fmt.Sprint("p", i), Bucket: refs[i%2], Idempotent: i < 4, Depth: 1 + i%5, Pause: 20 * time.Millisecond, Patience: 4 * time.Second}
			clients.Go(func() { model.Produce(ctx, p, uint64(i)) })
		}
		for i := range 12 {
			time.Sleep(time.Duration(i) * 150 * time.Millisecond)
			w.Move(refs[i%2], []*sim.Process{two, one}[i/2%2])
			truth.Look()
		}
		cancel()
		clients.Wait()
		for _, ref := range refs {
			if err := model.Read(context.Background(), mustLog(t, w.MustLead(ref), ref), true); err != nil {
				t.Error(err)
			}
		}
		model.Finish()
		if acks := model.Acks(); acks < 500 {
			t.Errorf("%d records are hardly a load", acks)
		}
		id, _ := truth.State().StreamOf(refs[0])
		if s, _ := truth.State().Stream(id); s.Owner.LeaderEpoch != 7 {
			t.Errorf("six moves left the bucket at leader epoch %d", s.Owner.LeaderEpoch)
		}
	})
}

// What callers are told.
func TestReleaseBucketsErrors(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		one, two, refs := pair(w, 1)
		for _, c := range []struct {
			what string
			ref  mink.BucketRef
			to   mink.NodeID
			want error
		}{
			{"to a node that never was", refs[0], 9, mink.ErrInvalid},
			{"of an unknown bucket", mink.BucketRef{Table: 99, Partition: 99}, 2, mink.ErrNotExist},
			{"to its leader", refs[0], 1, nil},
			{"to another node", refs[0], 2, nil},
			{"again", refs[0], 2, nil},
		} {
			if err := one.Node().ReleaseBucket(ctx, c.ref, c.to); !errors.Is(err, c.want) {
				t.Errorf("move %s: %v, want %v", c.what, err, c.want)
			}
		}
		three := w.StartReady(3)
		w.Eventually(time.Minute, "node 3 is known", func() bool { _, ok := one.Node().View().Node(3); return ok })
		if err := one.Node().ReleaseBucket(ctx, refs[0], 3); !isNotLeader(err, 2, "node-2:8815") {
			t.Errorf("asked of a node that does not lead it: %v", err)
		}
		if err := three.Stop(); err != nil {
			t.Fatal(err)
		}
		w.Eventually(time.Minute, "node 3 is seen to have stopped", func() bool {
			n, _ := two.Node().View().Node(3)
			return n.Sealed
		})
		if err := two.Node().ReleaseBucket(ctx, refs[0], 3); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("move to a stopped node: %v", err)
		}
	})
}

// A Release whose answer is lost, whether it was applied or not: the bucket stays closed
// until the verdict is seen, however long that takes and whoever has given up waiting.
func TestAReleaseWithoutAnAnswer(t *testing.T) {
	for _, applied := range []bool{false, true} {
		var r releases
		cfg := r.config(sim.Quiet(1))
		cfg.LeaseTTL = 10 * time.Second
		sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
			one, two, refs := pair(w, 1)
			one.Append(refs[0], "a")
			log := mustLog(t, one, refs[0])
			r.set(func(ctx context.Context, a metalog.Append, land landing) ([]metalog.Entry, error) {
				r.set(nil)
				w.StallMetadata(true)
				if applied {
					if _, err := land(ctx, a); err != nil {
						return nil, err
					}
				}
				return nil, fmt.Errorf("the answer was lost: %w", mink.ErrUnknownOutcome)
			})
			if err := <-release(one, refs[0], 2, 2*time.Second); !errors.Is(err, mink.ErrUnavailable) {
				t.Fatalf("applied %t: a move without an answer: %v", applied, err)
			}
			for range 40 {
				refuses(t, log, "while the verdict is unknown")
				if _, err := one.Node().Log(refs[0]); !errors.Is(err, mink.ErrUnavailable) {
					t.Fatalf("applied %t: the leader serves the bucket without a verdict: %v", applied, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if ready, why := one.Node().Ready(); !ready {
				t.Errorf("a bucket on its way makes the node unready: %s", why)
			}
			again := release(one, refs[0], 2, time.Minute)
			w.StallMetadata(false)
			if err := <-again; err != nil {
				t.Errorf("applied %t: the second call: %v", applied, err)
			}
			refuses(t, log, "after the move")
			w.Eventually(time.Minute, "node 2 serves it", func() bool { _, err := two.Node().Log(refs[0]); return err == nil })
			two.Append(refs[0], "b")
			if _, values := two.Read(refs[0]); !slices.Equal(values, []string{"a", "b"}) {
				t.Errorf("applied %t: the log holds %v", applied, values)
			}
		})
	}
}

// A Release that lands long after another one was sent in its place, when the bucket is
// back where it was: it must not move it a second time.
func TestAReleaseThatLandsLate(t *testing.T) {
	var r releases
	sim.InBubble(t, r.config(sim.Quiet(1)), func(t *testing.T, w *sim.World) {
		one, two, refs := pair(w, 1)
		one.Append(refs[0], "a")
		var late func()
		r.set(func(ctx context.Context, a metalog.Append, land landing) ([]metalog.Entry, error) {
			r.set(nil)
			late = func() { _, _ = land(context.Background(), a) }
			return nil, fmt.Errorf("the connection broke: %w", mink.ErrUnknownOutcome)
		})
		w.Move(refs[0], two)
		two.Append(refs[0], "b")
		w.Move(refs[0], one)
		one.Append(refs[0], "c")
		late()
		time.Sleep(5 * time.Second)
		one.Append(refs[0], "d")
		if _, values := one.Read(refs[0]); !slices.Equal(values, []string{"a", "b", "c", "d"}) {
			t.Errorf("the log holds %v", values)
		}
	})
}

// A leader that stands still in the middle of a move and goes on when others have taken
// over: its appends are refused, nothing of it becomes visible.
func TestAPausedLeaderInAMove(t *testing.T) {
	for seed := range uint64(4) {
		sim.InBubble(t, sim.Quiet(seed), func(t *testing.T, w *sim.World) {
			one, two, refs := pair(w, 1)
			one.Append(refs[0], "a")
			log := mustLog(t, one, refs[0])
			if seed%2 == 0 { // it cannot say Release
				one.PauseMetadata()
			} else { // nor make durable what it has admitted
				one.Pause()
			}
			pending, err := log.AppendKafka(sim.KafkaBatch(mink.NoWriter, -1, "admitted"), tablet.KafkaAppend{})
			if err != nil {
				t.Fatal(err)
			}
			ended := release(one, refs[0], 2, time.Hour)
			w.Eventually(time.Minute, "node 2 serves it, for node 1 is silent", func() bool { _, err := two.Node().Log(refs[0]); return err == nil })
			refuses(t, log, "to a leader in the middle of a move")
			two.Append(refs[0], "b")
			one.Resume()
			<-ended // nil or not: the view says by then that node 2 leads it
			<-pending.Done()
			want := []string{"a", "b"}
			if _, err := pending.Result(); err == nil {
				want = []string{"a", "admitted", "b"}
			}
			if (seed%2 == 0) != (len(want) == 3) {
				t.Errorf("seed %d: the pending append ended with %v", seed, err)
			}
			refuses(t, log, "to a leader that was replaced in the middle of a move")
			w.Eventually(time.Minute, "node 1 knows", func() bool {
				_, err := one.Node().Log(refs[0])
				return isNotLeader(err, 2, "node-2:8815")
			})
			two.Append(refs[0], "c")
			if _, values := two.Read(refs[0]); !slices.Equal(values, append(want, "c")) {
				t.Errorf("seed %d: the log holds %v", seed, values)
			}
		})
	}
}

// A leader that stands still after its Release was applied, before it knows.
func TestAPausedLeaderAfterItsRelease(t *testing.T) {
	var r releases
	sim.InBubble(t, r.config(sim.Quiet(1)), func(t *testing.T, w *sim.World) {
		one, two, refs := pair(w, 1)
		one.Append(refs[0], "a")
		log := mustLog(t, one, refs[0])
		r.set(func(ctx context.Context, a metalog.Append, land landing) ([]metalog.Entry, error) {
			one.Pause()
			return land(ctx, a)
		})
		ended := release(one, refs[0], 2, time.Hour)
		w.Eventually(time.Minute, "node 2 serves it", func() bool { _, err := two.Node().Log(refs[0]); return err == nil })
		r.set(nil)
		two.Append(refs[0], "b")
		refuses(t, log, "to a leader that does not know yet that it is none")
		if _, err := one.Node().Log(refs[0]); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("a leader that does not know yet that it is none: %v", err)
		}
		one.Resume()
		if err := <-ended; err != nil {
			t.Errorf("the move: %v", err)
		}
		refuses(t, log, "to the leader before")
		if _, values := two.Read(refs[0]); !slices.Equal(values, []string{"a", "b"}) {
			t.Errorf("the log holds %v", values)
		}
	})
}

// The leader dies right before or right after its Release is applied.
func TestALeaderDiesAtItsRelease(t *testing.T) {
	for _, applied := range []bool{false, true} {
		var r releases
		sim.InBubble(t, r.config(sim.Quiet(1)), func(t *testing.T, w *sim.World) {
			one, two, refs := pair(w, 2)
			for i := range 5 { // both share the slots, of which none is uploaded
				one.Append(refs[0], fmt.Sprint("a", i))
				one.Append(refs[1], fmt.Sprint("b", i))
			}
			truth := w.NewTruth()
			r.set(func(ctx context.Context, a metalog.Append, land landing) ([]metalog.Entry, error) {
				r.set(nil)
				if applied {
					_, _ = land(ctx, a)
				}
				one.Crash()
				return nil, fmt.Errorf("the process died: %w", mink.ErrUnknownOutcome)
			})
			ended := release(one, refs[0], 2, time.Hour)
			for i, ref := range refs {
				w.Eventually(time.Minute, "node 2 serves them", func() bool { _, err := two.Node().Log(ref); return err == nil })
				two.Append(ref, "z")
				want := []string{"a", "b"}[i]
				if _, values := two.Read(ref); !slices.Equal(values, []string{want + "0", want + "1", want + "2", want + "3", want + "4", "z"}) {
					t.Errorf("applied %t: bucket %s holds %v", applied, ref, values)
				}
			}
			<-ended
			for range 60 {
				time.Sleep(time.Second)
				truth.Look()
			}
			if left := truth.Garbage(); len(left) > 0 {
				t.Errorf("applied %t: garbage is left: %v", applied, left)
			}
		})
	}
}

// A bucket whose records are only in its leader's log goes back and forth by reference,
// while both ends upload, trim, merge and delete; then both nodes die.
func TestMovesByReference(t *testing.T) {
	for _, pause := range []time.Duration{0, 300 * time.Millisecond, 2 * time.Second, 7 * time.Second} {
		sim.InBubble(t, sim.Quiet(uint64(pause)), func(t *testing.T, w *sim.World) {
			one, two, refs := pair(w, 2)
			truth := w.NewTruth()
			var want [2][]string
			add := func(i int, text string) {
				w.MustLead(refs[i]).Append(refs[i], text)
				want[i] = append(want[i], text)
			}
			byReference := 0
			for round := range 8 {
				for k := range 3 {
					add(0, fmt.Sprint("moves", round, ".", k))
					add(1, fmt.Sprint("stays", round, ".", k))
				}
				w.Move(refs[0], []*sim.Process{two, one}[round%2])
				truth.Look()
				id, _ := truth.State().StreamOf(refs[0])
				s, _ := truth.State().Stream(id)
				for _, o := range s.Objects() {
					if o.Kind == plan.KindWAL {
						byReference++
					}
				}
				for end := time.Now().Add(pause); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					truth.Look()
				}
			}
			if byReference == 0 {
				t.Errorf("pause %s: no move took an object of the log over", pause)
			}
			one.Crash()
			two.Crash()
			one, two = w.Start(1), w.Start(2)
			for i, ref := range refs {
				leader := w.MustLead(ref)
				if _, values := leader.Read(ref); !slices.Equal(values, want[i]) {
					t.Errorf("pause %s: bucket %s holds %v, want %v", pause, ref, values, want[i])
				}
				add(i, "after")
			}
			for range 90 { // grace, orphan age, sweeps
				time.Sleep(time.Second)
				truth.Look()
			}
			if left := truth.Garbage(); len(left) > 0 {
				t.Errorf("pause %s: garbage is left: %v", pause, left)
			}
			for i, ref := range refs {
				if _, values := w.MustLead(ref).Read(ref); !slices.Equal(values, want[i]) {
					t.Errorf("pause %s: bucket %s holds %v in the end, want %v", pause, ref, values, want[i])
				}
			}
			for _, p := range []*sim.Process{one, two} {
				if report, err := p.Node().Check(context.Background(), true); err != nil || !report.Clean {
					t.Errorf("pause %s: check: %v %+v", pause, err, report.Problems)
				}
			}
		})
	}
}

// heldCommits holds back the batches that hold a CommitObjects while it is held.
type heldCommits struct {
	metalog.Log
	held   *atomic.Bool
	caught chan struct{} // has a value once one is held back
	free   chan struct{} // closed: go on
}

func (l heldCommits) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	for _, payload := range a.Payloads {
		var b clusterpb.Batch
		if proto.Unmarshal(payload, &b) == nil && l.held.Load() && slices.ContainsFunc(b.Commands, func(c *clusterpb.Command) bool { return c.GetCommitObjects() != nil }) {
			l.caught <- struct{}{}
			<-l.free
		}
	}
	return l.Log.Append(ctx, a)
}

// An upload that was proposed just before a Release, and is applied just before it, is
// nothing to refuse the move for: it is asked again, without what was uploaded.
func TestAReleaseBehindAnUpload(t *testing.T) {
	cfg := still(1)
	var held atomic.Bool
	var caught, free chan struct{}
	cfg.Log = func(l metalog.Log) metalog.Log {
		if caught == nil { // of the bubble
			caught, free = make(chan struct{}, 1), make(chan struct{})
		}
		return heldCommits{l, &held, caught, free}
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one, two, refs := pair(w, 1)
		one.Append(refs[0], "a")
		held.Store(true)
		uploaded := make(chan error, 1)
		go func() { uploaded <- one.Node().Engine().UploadNow(context.Background()) }()
		<-caught
		ended := release(one, refs[0], 2, time.Hour)
		time.Sleep(time.Second) // the Release waits behind the commit
		held.Store(false)
		close(free)
		if err := <-uploaded; err != nil {
			t.Errorf("upload: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("move: %v", err)
		}
		w.Eventually(time.Minute, "node 2 serves", func() bool {
			_, err := two.Node().Log(refs[0])
			return err == nil
		})
		two.Append(refs[0], "b")
		if _, values := two.Read(refs[0]); !slices.Equal(values, []string{"a", "b"}) {
			t.Errorf("the log holds %v", values)
		}
	})
}

// A Release that apply refuses for good: the bucket opens again where it is.
func TestARefusedReleaseOpensTheBucketAgain(t *testing.T) {
	var r releases
	sim.InBubble(t, r.config(sim.Quiet(1)), func(t *testing.T, w *sim.World) {
		one, two, refs := pair(w, 1)
		_, ref := pkTable(t, one)
		w.MustLead(ref) // which is node 1 or 2
		from, to := w.Leader(ref), two
		if from == two {
			to = one
		}
		putRow(t, mustKV(t, from, ref), 1, "x")
		one.Append(refs[0], "a")
		r.set(func(ctx context.Context, a metalog.Append, land landing) ([]metalog.Entry, error) {
			for i, payload := range a.Payloads {
				var b clusterpb.Batch
				if err := proto.Unmarshal(payload, &b); err != nil {
					return nil, err
				}
				for _, c := range b.Commands {
					if c.GetRelease() != nil {
						c.GetRelease().LeaderEpoch += 5
					}
				}
				damaged, err := proto.Marshal(&b)
				if err != nil {
					return nil, err
				}
				a.Payloads[i] = damaged
			}
			return land(ctx, a)
		})
		a, b := release(one, refs[0], 2, time.Hour), release(from, ref, to.ID, time.Hour)
		for _, ended := range []chan error{a, b} {
			if err := <-ended; !errors.Is(err, mink.ErrConflict) {
				t.Errorf("a refused move: %v", err)
			}
		}
		r.set(nil)
		w.Eventually(time.Minute, "they are served again", func() bool {
			_, err := one.Node().Log(refs[0])
			_, err2 := from.Node().Log(ref)
			return err == nil && err2 == nil
		})
		one.Append(refs[0], "b")
		putRow(t, mustKV(t, from, ref), 2, "y")
		w.Move(refs[0], two)
		if _, values := two.Read(refs[0]); !slices.Equal(values, []string{"a", "b"}) {
			t.Errorf("the log holds %v", values)
		}
		w.Move(ref, to)
		for k, want := range []string{1: "x", 2: "y"} {
			if v, _ := look(t, mustKV(t, to, ref), int32(k)); v != want {
				t.Errorf("key %d is %q, want %q", k, v, want)
			}
		}
	})
}

// Keys of a bucket that goes back and forth are registers all the same: no lookup at the
// old leader misses a put that the new one answered.
func TestKeysAreLinearizableOverMoves(t *testing.T) {
	answered := 0
	for seed := range uint64(6) {
		cfg := sim.Quiet(seed)
		cfg.Node = func(c *node.Config) { c.KVIdleClose = 2 * time.Second }
		sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
			one := w.StartReady(1)
			_, ref := pkTable(t, one)
			mustKV(t, one, ref)
			nodes := []*sim.Process{one, w.StartReady(2)}
			c := &kvClients{t: t, ref: ref, pick: func(r *rand.Rand) *sim.Process { return nodes[r.IntN(2)] }}
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() { c.run(i, rand.New(rand.NewPCG(seed, uint64(i))), 120) })
			}
			r := rand.New(rand.NewPCG(seed, 99))
			for i := range 10 {
				time.Sleep(time.Duration(r.IntN(1200)) * time.Millisecond)
				w.Move(ref, nodes[1-i%2])
			}
			wg.Wait()
			if res, _ := porcupine.CheckOperationsVerbose(oneKey, c.history, time.Minute); res != porcupine.Ok {
				t.Errorf("seed %d: the history of %d operations is not linearizable: %s", seed, len(c.history), res)
			}
			answered += len(c.history) - c.unknown
		})
	}
	if answered < 500 {
		t.Errorf("%d answered operations are hardly a history", answered)
	}
}
