package metalog_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/faultlog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/sdk/mink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

// running is a replica with its Run under way.
type running struct {
	*metalog.Replica
	stop func() error // ends Run and answers its error
}

func start(t *testing.T, log metalog.Log, change ...func(*metalog.Replica)) running {
	t.Helper()
	r, err := metalog.Open(t.Context(), log, metalog.Default(), quiet())
	check(t, err)
	for _, c := range change {
		c(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	var result error
	stop := func() error {
		once.Do(func() { cancel(); result = <-done })
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return running{r, stop}
}

var nonces atomic.Uint64

func register(t *testing.T, r running, node int32) mink.NodeEpoch {
	t.Helper()
	epoch, err := r.Register(t.Context(), &clusterpb.RegisterNode{
		Node: node, Nonce: nonces.Add(1), FlightAddress: "a:1", FeatureLevel: 1, Version: "test",
	})
	check(t, err)
	return epoch
}

// allocate proposes one writer id, which the state counts: the simplest command
// whose double application shows.
func allocate() *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_AllocateWriters{AllocateWriters: &clusterpb.AllocateWriters{Count: 1}}}
}

func seal(epoch mink.NodeEpoch, lease mink.LeaseEpoch) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{Epoch: int64(epoch), Lease: int64(lease), Reason: "test"}}}
}

func propose(t *testing.T, r running, cs ...*clusterpb.Command) []*clusterpb.Result {
	t.Helper()
	res, err := r.Propose(t.Context(), cs...)
	check(t, err)
	if len(res) != len(cs) {
		t.Fatalf("%d commands, %d results", len(cs), len(res))
	}
	for _, x := range res {
		check(t, cluster.ResultError(x))
	}
	return res
}

func TestProposeAndView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		a, b := start(t, log), start(t, log)
		_, err := a.Propose(t.Context(), allocate())
		wantErr(t, err, mink.ErrUnavailable) // not registered
		epoch := register(t, a, 1)
		if node, e := a.Self(); node != 1 || e != epoch {
			t.Fatalf("self is %d/%d", node, e)
		}
		res := propose(t, a, allocate(), allocate())
		if res[0].Id == res[1].Id {
			t.Fatalf("two allocations answer one id: %v", res)
		}
		at := a.View().Index()
		check(t, b.WaitApplied(t.Context(), at))
		if n, ok := b.View().Node(1); !ok || n.Epoch != epoch {
			t.Fatalf("the other replica has node %+v", n)
		}
		if a.Applied() != b.Applied() {
			t.Fatalf("positions differ: %s, %s", a.Applied(), b.Applied())
		}
		// A refusal is a result, not an error.
		out, err := a.Propose(t.Context(), &clusterpb.Command{Kind: &clusterpb.Command_DropTable{DropTable: &clusterpb.DropTable{Table: 99}}})
		check(t, err)
		wantErr(t, cluster.ResultError(out[0]), mink.ErrNotExist)
		if out, err := a.Propose(t.Context()); err != nil || len(out) != 0 {
			t.Fatalf("proposing nothing: %v, %v", out, err)
		}
		_, err = a.Propose(t.Context(), &clusterpb.Command{Kind: &clusterpb.Command_LeaseTaken{LeaseTaken: &clusterpb.LeaseTaken{}}})
		wantErr(t, err, mink.ErrInvalid)
		check(t, a.stop())
		_, err = a.Propose(t.Context(), allocate())
		wantErr(t, err, mink.ErrClosed)
		wantErr(t, a.WaitApplied(t.Context(), at+100), mink.ErrClosed)
	})
}

func TestProposalsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		hold := make(chan struct{})
		var holding atomic.Bool
		slow := faultlog.New(log, faultlog.Config{})
		r := start(t, blockAppend{slow, func() {
			if holding.Load() {
				<-hold
			}
		}})
		register(t, r, 1)
		holding.Store(true)
		before := r.View().Index()
		var wg sync.WaitGroup
		var ids sync.Map
		one := func() {
			res, err := r.Propose(t.Context(), allocate())
			if err != nil {
				t.Error(err)
				return
			}
			if _, twice := ids.LoadOrStore(res[0].Id, true); twice {
				t.Errorf("id %d was answered twice", res[0].Id)
			}
		}
		wg.Go(one)
		synctest.Wait() // it is in flight
		for range 49 {
			wg.Go(one)
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		// One transaction was held in flight, the others waited and went together.
		if got := r.View().Index() - before; got != 2 {
			t.Fatalf("one proposal in flight and 49 waiting made %d entries, want 2", got)
		}
	})
}

type blockAppend struct {
	metalog.Log
	before func()
}

func (b blockAppend) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	b.before()
	return b.Log.Append(ctx, a)
}

// exactlyOnce proposes under faults and answers how many ids were given out
// more than the proposals that were made.
func exactlyOnce(t *testing.T, seed uint64, change ...func(*metalog.Replica)) (surplus int64) {
	const proposers, each = 4, 25
	synctest.Test(t, func(t *testing.T) {
		inner := memlog.New()
		var armed atomic.Bool
		random := faultlog.Random(seed, 0.4, faultlog.LostResponse, faultlog.Disconnected, faultlog.Refused, faultlog.Late, faultlog.Stalled)
		log := faultlog.New(inner, faultlog.Config{LateBy: 300 * time.Millisecond, Plan: func(op faultlog.Op) faultlog.Fault {
			if !armed.Load() {
				return faultlog.None
			}
			return random(op)
		}})
		r := start(t, log, change...)
		register(t, r, 1)
		first := propose(t, r, allocate())[0].Id
		armed.Store(true)
		var mu sync.Mutex
		var ids []int64
		var wg sync.WaitGroup
		for range proposers {
			wg.Go(func() {
				for range each {
					res, err := r.Propose(t.Context(), allocate())
					if err != nil {
						t.Errorf("seed %d: %v", seed, err)
						return
					}
					mu.Lock()
					ids = append(ids, res[0].Id)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		armed.Store(false)
		time.Sleep(time.Second) // virtual: what is late lands
		counts := log.Counts()
		for _, f := range []faultlog.Fault{faultlog.LostResponse, faultlog.Disconnected, faultlog.Late, faultlog.Stalled} {
			if counts[f] == 0 {
				t.Errorf("seed %d: fault %q never happened", seed, f)
			}
		}
		next := propose(t, r, allocate())[0].Id
		surplus = next - first - 1 - proposers*each
		slices.Sort(ids)
		if n := len(slices.Compact(ids)); n != proposers*each {
			t.Errorf("seed %d: %d proposals were answered with %d different ids", seed, proposers*each, n)
		}
		check(t, r.stop())
		check(t, log.Close())
	})
	return surplus
}

// Whatever answers are lost, each proposal is applied once.
func TestExactlyOnceUnderLostResponses(t *testing.T) {
	for seed := range uint64(20) {
		if surplus := exactlyOnce(t, seed); surplus != 0 {
			t.Errorf("seed %d: %d applications too many", seed, surplus)
		}
	}
}

// The test of the test: when a retry cannot be recognised, it is seen.
func TestExactlyOnceFailsWithoutDedup(t *testing.T) {
	var surplus int64
	for seed := range uint64(5) {
		surplus += exactlyOnce(t, seed, metalog.WithoutDedup)
	}
	if surplus <= 0 {
		t.Fatal("proposals without dedup were not applied twice: the exactly-once test proves nothing")
	}
}

func TestRegisterUnderFaults(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			var armed atomic.Bool
			random := faultlog.Random(seed, 0.6, faultlog.LostResponse, faultlog.Disconnected, faultlog.Late, faultlog.Stalled)
			log := faultlog.New(memlog.New(), faultlog.Config{LateBy: 100 * time.Millisecond, Plan: func(op faultlog.Op) faultlog.Fault {
				if !armed.Load() {
					return faultlog.None
				}
				return random(op)
			}})
			r := start(t, log)
			armed.Store(true)
			epoch := register(t, r, 1)
			lease, err := r.TakeLease(t.Context(), time.Minute)
			check(t, err)
			time.Sleep(time.Second) // virtual: what is late lands
			// The epoch that was answered is the one whose heartbeat works.
			for {
				_, err := r.Heartbeat(t.Context(), 0)
				if err == nil {
					break
				}
				if errors.Is(err, mink.ErrFenced) {
					t.Fatalf("seed %d: epoch %d is fenced after its own registration: %v", seed, epoch, err)
				}
			}
			armed.Store(false)
			have, _, err := log.ReadLease(t.Context())
			check(t, err)
			inState := r.View().Lease()
			if have.Epoch != lease.Epoch || inState.Epoch != lease.Epoch || inState.NodeEpoch != epoch {
				t.Fatalf("seed %d: lease row %+v, answered %+v, in the state %+v", seed, have, lease, inState)
			}
			check(t, r.stop())
			check(t, log.Close())
		})
	}
}

func TestSealedReplicaIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		a, b := start(t, log), start(t, log)
		ea, eb := register(t, a, 1), register(t, b, 2)
		lease, err := b.TakeLease(t.Context(), time.Minute)
		check(t, err)
		_, err = b.Propose(t.Context(), seal(ea, lease.Epoch+7))
		wantErr(t, err, metalog.ErrLeaseLost)
		_, err = a.Heartbeat(t.Context(), 0)
		check(t, err)
		propose(t, b, seal(ea, lease.Epoch))
		_, err = a.Heartbeat(t.Context(), 0)
		wantErr(t, err, mink.ErrFenced)
		_, err = a.Propose(t.Context(), allocate())
		wantErr(t, err, mink.ErrFenced)
		// It registers anew in process, and its counters start again.
		if again := register(t, a, 1); again <= eb {
			t.Fatalf("new epoch %d", again)
		}
		propose(t, a, allocate())
		// Another process takes its id.
		c := start(t, log)
		register(t, c, 1)
		_, err = a.Propose(t.Context(), allocate())
		wantErr(t, err, mink.ErrFenced)
		propose(t, c, allocate())
	})
}

func TestLeaseAndHeartbeatInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		a, b := start(t, log), start(t, log)
		register(t, a, 1)
		register(t, b, 2)
		const ttl = 30 * time.Second
		lease, err := a.TakeLease(t.Context(), ttl)
		check(t, err)
		if got := b.View().Lease(); got.Epoch == lease.Epoch {
			t.Log("b has seen it already")
		}
		for range 10 { // renewed in time: nobody else gets it
			time.Sleep(ttl / 4)
			lease, err = log.RenewLease(t.Context(), lease, ttl)
			check(t, err)
			_, err = b.TakeLease(t.Context(), ttl)
			if _, held := errors.AsType[*metalog.LeaseHeldError](err); !held {
				t.Fatalf("taking a renewed lease: %v", err)
			}
			_, err = b.Heartbeat(t.Context(), 0)
			check(t, err)
		}
		rows, err := log.Heartbeats(t.Context())
		check(t, err)
		if rows[0].AgeMs < (10*ttl/4).Milliseconds() || rows[1].AgeMs != 0 {
			t.Fatalf("a was silent, b was not: %+v", rows)
		}
		time.Sleep(ttl)
		second, err := b.TakeLease(t.Context(), ttl)
		check(t, err)
		_, err = log.RenewLease(t.Context(), lease, ttl)
		wantErr(t, err, metalog.ErrLeaseLost)
		_, err = a.SnapshotNow(t.Context(), lease)
		wantErr(t, err, metalog.ErrLeaseLost)
		check(t, a.WaitApplied(t.Context(), b.View().Index()))
		if got := a.View().Lease(); got.Epoch != second.Epoch || got.Node != 2 {
			t.Fatalf("the state's lease is %+v, want %+v", got, second)
		}
	})
}

func TestAbandonedProposals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memlog.New()
		var down atomic.Bool
		log := faultlog.New(inner, faultlog.Config{Plan: func(faultlog.Op) faultlog.Fault {
			if down.Load() {
				return faultlog.Refused
			}
			return faultlog.None
		}})
		r := start(t, log)
		register(t, r, 1)
		before := r.View().Index()
		down.Store(true)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				_, err := r.Propose(ctx, allocate())
				wantErr(t, err, context.DeadlineExceeded)
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		down.Store(false)
		time.Sleep(time.Minute)
		if got := r.View().Index(); got != before {
			t.Fatalf("proposals that everybody gave up before they could be sent made %d entries", got-before)
		}
		propose(t, r, allocate())
	})
}

func TestOutageIsRidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memlog.New()
		var down atomic.Bool
		log := faultlog.New(inner, faultlog.Config{Plan: func(faultlog.Op) faultlog.Fault {
			if down.Load() {
				return faultlog.Refused
			}
			return faultlog.None
		}})
		r := start(t, log)
		register(t, r, 1)
		down.Store(true)
		got := make(chan error, 1)
		go func() {
			_, err := r.Propose(t.Context(), allocate())
			got <- err
		}()
		time.Sleep(10 * time.Minute)
		down.Store(false)
		check(t, <-got)
	})
}

// shutLog lets nobody in while it is shut.
type shutLog struct {
	metalog.Log
	shut *atomic.Bool
}

func (l shutLog) refusal() error {
	if l.shut.Load() {
		return fmt.Errorf("the database refuses this user: %w", mink.ErrInvalid)
	}
	return nil
}

func (l shutLog) Read(ctx context.Context, after uint64, entries, bytes int) ([]metalog.Entry, error) {
	if err := l.refusal(); err != nil {
		return nil, err
	}
	return l.Log.Read(ctx, after, entries, bytes)
}

func (l shutLog) Head(ctx context.Context) (metalog.Position, error) {
	if err := l.refusal(); err != nil {
		return metalog.Position{}, err
	}
	return l.Log.Head(ctx)
}

// A database that refuses its user for a while, as when a password is changed, does not
// end the nodes that run; it keeps one from starting.
func TestARefusedUserIsRidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memlog.New()
		var shut atomic.Bool
		r := start(t, shutLog{inner, &shut})
		register(t, r, 1)
		shut.Store(true)
		other := start(t, inner)
		register(t, other, 2)
		time.Sleep(10 * time.Minute)
		if _, err := metalog.Open(t.Context(), shutLog{inner, &shut}, metalog.Default(), quiet()); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("a start meanwhile: %v", err)
		}
		shut.Store(false)
		check(t, r.WaitApplied(t.Context(), other.View().Index()))
		propose(t, r, allocate())
	})
}

func TestDatabaseWentBack(t *testing.T) {
	for _, c := range []struct {
		name  string
		after func(t *testing.T, log *memlog.Log)
	}{
		{"shorter", func(*testing.T, *memlog.Log) {}},
		{"regrown to the same index", func(t *testing.T, log *memlog.Log) { grow(t, log, 3) }},
		{"regrown past it", func(t *testing.T, log *memlog.Log) { grow(t, log, 5) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := memlog.New()
				r := start(t, log)
				register(t, r, 1)
				for range 3 {
					propose(t, r, allocate())
				}
				log.Rewind(r.View().Index() - 3)
				c.after(t, log)
				time.Sleep(time.Minute)
				err := r.stop()
				wantErr(t, err, metalog.ErrWentBack)
				_, err = r.Propose(t.Context(), allocate())
				wantErr(t, err, metalog.ErrWentBack)
			})
		})
	}
}

// grow appends empty batches.
func grow(t *testing.T, log metalog.Log, n int) {
	t.Helper()
	for i := range n {
		_, err := log.Append(t.Context(), metalog.Append{Payloads: [][]byte{fmt.Appendf(nil, "\x22\x01%d", i)}})
		check(t, err)
	}
}
