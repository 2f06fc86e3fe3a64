package metalogtest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

func beat(t *testing.T, l metalog.Log, node mink.NodeID, epoch mink.NodeEpoch, applied uint64) error {
	t.Helper()
	h, err := l.Heartbeat(t.Context(), node, epoch, applied)
	if err == nil && h != head(t, l).Index {
		t.Fatalf("heartbeat answers head %d, it is %d", h, head(t, l).Index)
	}
	return err
}

func testHeartbeats(t *testing.T, o Options) {
	l := open(t, o)
	appendOne(t, l, "first")
	wantErr(t, beat(t, l, 1, 1, 0), mink.ErrFenced) // never registered
	a1 := register(t, l, 1)
	b1 := register(t, l, 2)
	check(t, beat(t, l, 1, a1, 2))
	check(t, beat(t, l, 1, a1, 1))
	wantErr(t, beat(t, l, 2, a1, 1), mink.ErrFenced) // another node's epoch
	a2 := register(t, l, 1)                          // seals a1
	wantErr(t, beat(t, l, 1, a1, 3), mink.ErrFenced)
	check(t, beat(t, l, 1, a2, 3))
	check(t, beat(t, l, 2, b1, 3))

	rows, err := l.Heartbeats(t.Context())
	check(t, err)
	if len(rows) != 3 || rows[0].Epoch != a1 || rows[1].Epoch != a2 || rows[2].Epoch != b1 {
		t.Fatalf("heartbeats %+v, want epochs %d, %d of node 1 and %d of node 2", rows, a1, a2, b1)
	}
	if !rows[0].Marked || rows[1].Marked || rows[2].Marked || rows[0].Applied != 2 || rows[1].Applied != 3 {
		t.Fatalf("heartbeats %+v", rows)
	}
	if rows[1].AgeMs < 0 || rows[1].AgeMs > 60_000 {
		t.Fatalf("a fresh heartbeat is %d ms old", rows[1].AgeMs)
	}
	_, err = l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{1}}, Seal: []mink.NodeEpoch{b1, 999}})
	check(t, err)
	wantErr(t, beat(t, l, 2, b1, 4), mink.ErrFenced)
	check(t, beat(t, l, 1, a2, 4))

	age := func() int64 {
		rows, err := l.Heartbeats(t.Context())
		check(t, err)
		return rows[1].AgeMs
	}
	await(t, "a silent node's heartbeat ages", func() bool { return age() >= 5 })

	// Rows do not pile up over restarts.
	for range 5 {
		register(t, l, 1)
	}
	rows, err = l.Heartbeats(t.Context())
	check(t, err)
	if len(rows) > 4 {
		t.Fatalf("%d heartbeat rows of two nodes after restarts", len(rows))
	}
}

// Registrations of one node that race leave exactly one epoch that can beat:
// the last one. (A mark made from a snapshot older than the ordering point
// would miss the row of the registration just before.)
func testConcurrentRegistrations(t *testing.T, o Options) {
	l := open(t, o)
	const racers = 8
	var last atomic.Uint64
	var wg sync.WaitGroup
	for range racers {
		wg.Go(func() {
			es, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{1}}, Register: 7})
			if err != nil {
				t.Error(err)
				return
			}
			for i := es[0].Index; ; {
				old := last.Load()
				if old >= i || last.CompareAndSwap(old, i) {
					return
				}
			}
		})
	}
	wg.Wait()
	for epoch := mink.NodeEpoch(1); epoch <= racers; epoch++ {
		err := beat(t, l, 7, epoch, 0)
		if uint64(epoch) == last.Load() {
			check(t, err)
		} else {
			wantErr(t, err, mink.ErrFenced)
		}
	}
}

func takeWith(t *testing.T, l metalog.Log, req metalog.TakeLease) (metalog.Lease, metalog.Entry, error) {
	t.Helper()
	req.Payload = func(e mink.LeaseEpoch) ([]byte, error) { return fmt.Appendf(nil, "lease taken %d", e), nil }
	return l.TakeLease(t.Context(), req)
}

func take(t *testing.T, l metalog.Log, node mink.NodeID, epoch mink.NodeEpoch, ttl time.Duration) metalog.Lease {
	t.Helper()
	lease, e, err := takeWith(t, l, metalog.TakeLease{Node: node, NodeEpoch: epoch, TTL: ttl})
	check(t, err)
	if want := fmt.Sprintf("lease taken %d", lease.Epoch); string(e.Payload) != want || e.Index != head(t, l).Index {
		t.Fatalf("taking the lease appended %q at %d, want %q at the head %s", e.Payload, e.Index, want, head(t, l))
	}
	return lease
}

func testLease(t *testing.T, o Options) {
	l := open(t, o)
	lease, live, err := l.ReadLease(t.Context())
	check(t, err)
	if lease != (metalog.Lease{}) || live {
		t.Fatalf("a new log has lease %+v", lease)
	}
	a, b := register(t, l, 1), register(t, l, 2)
	mine := take(t, l, 1, a, time.Hour)
	if mine.Epoch != 1 || mine.Node != 1 || mine.NodeEpoch != a {
		t.Fatalf("took %+v", mine)
	}
	before := head(t, l)
	_, _, err = takeWith(t, l, metalog.TakeLease{Node: 2, NodeEpoch: b, TTL: time.Hour})
	held, ok := errors.AsType[*metalog.LeaseHeldError](err)
	if !ok || held.Lease.Node != 1 || held.ExpiresIn <= time.Minute {
		t.Fatalf("taking a held lease: %v", err)
	}
	wantErr(t, err, mink.ErrConflict)
	if head(t, l) != before {
		t.Fatal("a refused taking appended an entry")
	}
	renewed, err := l.RenewLease(t.Context(), mine, 2*time.Hour)
	check(t, err)
	if renewed.Epoch != mine.Epoch || renewed.ExpiresMs <= mine.ExpiresMs {
		t.Fatalf("renewed %+v into %+v", mine, renewed)
	}
	// A restarted node takes over its own lease at once.
	a2 := register(t, l, 1)
	_, err = l.RenewLease(t.Context(), mine, time.Hour)
	wantErr(t, err, mink.ErrFenced)
	again := take(t, l, 1, a2, time.Hour)
	if again.Epoch != 2 {
		t.Fatalf("took %+v, want lease epoch 2", again)
	}
	_, err = l.RenewLease(t.Context(), mine, time.Hour)
	wantErr(t, err, metalog.ErrLeaseLost)
	check(t, l.ReleaseLease(t.Context(), mine)) // not the current one: nothing happens
	if _, live, _ := l.ReadLease(t.Context()); !live {
		t.Fatal("releasing an old lease freed the current one")
	}
	check(t, l.ReleaseLease(t.Context(), again))
	_, err = l.RenewLease(t.Context(), again, time.Hour)
	wantErr(t, err, metalog.ErrLeaseLost)
	if third := take(t, l, 2, b, time.Hour); third.Epoch != 3 {
		t.Fatalf("took %+v, want lease epoch 3", third)
	}
	// A sealed or unknown epoch cannot take it.
	for _, epoch := range []mink.NodeEpoch{a, 999} {
		_, _, err = takeWith(t, l, metalog.TakeLease{Node: 1, NodeEpoch: epoch, TTL: time.Hour})
		wantErr(t, err, mink.ErrFenced)
	}
	_, _, err = takeWith(t, l, metalog.TakeLease{Node: 1, NodeEpoch: a2})
	wantErr(t, err, mink.ErrInvalid)
	readAll(t, l, metalog.Position{})
}

func testLeaseGuards(t *testing.T, o Options) {
	l := open(t, o)
	a, b := register(t, l, 1), register(t, l, 2)
	h := head(t, l)
	appendOne(t, l, "moves the head")
	_, _, err := takeWith(t, l, metalog.TakeLease{Node: 1, NodeEpoch: a, TTL: time.Hour, Expect: &h})
	wantErr(t, err, metalog.ErrHeadMoved)
	h = head(t, l)
	lease, _, err := takeWith(t, l, metalog.TakeLease{Node: 1, NodeEpoch: a, TTL: time.Hour, Expect: &h})
	check(t, err)

	seal := metalog.Append{Payloads: [][]byte{{1}}, Seal: []mink.NodeEpoch{b}, Lease: lease}
	seal.Lease.Epoch++
	h = head(t, l)
	_, err = l.Append(t.Context(), seal)
	wantErr(t, err, metalog.ErrLeaseLost)
	if head(t, l) != h {
		t.Fatal("an append under a lost lease moved the head")
	}
	check(t, beat(t, l, 2, b, 0))
	seal.Lease = metalog.Lease{Node: 1, NodeEpoch: b, Epoch: lease.Epoch} // another's
	_, err = l.Append(t.Context(), seal)
	wantErr(t, err, metalog.ErrLeaseLost)
	seal.Lease = lease
	_, err = l.Append(t.Context(), seal)
	check(t, err)
	wantErr(t, beat(t, l, 2, b, 0), mink.ErrFenced)

	failing := metalog.TakeLease{Node: 1, NodeEpoch: a, TTL: time.Hour, Payload: func(mink.LeaseEpoch) ([]byte, error) {
		return nil, mink.ErrInvalid
	}}
	_, _, err = l.TakeLease(t.Context(), failing)
	wantErr(t, err, mink.ErrInvalid)
	if now, _, _ := l.ReadLease(t.Context()); now != lease {
		t.Fatalf("a failed taking changed the lease to %+v", now)
	}
	// The holder registered anew: the lease is still in its name, and not its own.
	a2, c := register(t, l, 1), register(t, l, 3)
	seal.Seal = []mink.NodeEpoch{c}
	_, err = l.Append(t.Context(), seal)
	wantErr(t, err, mink.ErrFenced)
	check(t, beat(t, l, 1, a2, 0))
	check(t, beat(t, l, 3, c, 0))
}

func testLeaseExpires(t *testing.T, o Options) {
	l := open(t, o)
	a, b := register(t, l, 1), register(t, l, 2)
	mine := take(t, l, 1, a, time.Millisecond)
	await(t, "the lease expires by the database clock", func() bool {
		_, live, err := l.ReadLease(t.Context())
		check(t, err)
		return !live
	})
	// Nobody took it: it can be renewed, and is held again.
	_, err := l.RenewLease(t.Context(), mine, time.Millisecond)
	check(t, err)
	await(t, "the other node takes the expired lease", func() bool {
		_, _, err := takeWith(t, l, metalog.TakeLease{Node: 2, NodeEpoch: b, TTL: time.Hour})
		if _, held := errors.AsType[*metalog.LeaseHeldError](err); held {
			return false
		}
		check(t, err)
		return true
	})
	_, err = l.RenewLease(t.Context(), mine, time.Hour)
	wantErr(t, err, metalog.ErrLeaseLost)
}

func testConcurrentTakers(t *testing.T, o Options) {
	l := open(t, o)
	const nodes = 6
	var epochs [nodes]mink.NodeEpoch
	for i := range epochs {
		epochs[i] = register(t, l, mink.NodeID(i+1))
	}
	var won atomic.Int32
	var wg sync.WaitGroup
	for i, epoch := range epochs {
		wg.Go(func() {
			_, _, err := takeWith(t, l, metalog.TakeLease{Node: mink.NodeID(i + 1), NodeEpoch: epoch, TTL: time.Hour})
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, mink.ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || head(t, l).Index != nodes+1 {
		t.Fatalf("%d of %d racing nodes took the lease; head %s", won.Load(), nodes, head(t, l))
	}
	readAll(t, l, metalog.Position{})
}
