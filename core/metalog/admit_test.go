package metalog_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/faultlog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/sdk/mink"
)

// marksAreSeals checks that the heartbeat rows say what the state says: a marked
// row of an epoch that the state calls alive refuses its heartbeats for ever, and
// nobody seals it, because only an unmarked row can be silent.
func marksAreSeals(t *testing.T, log metalog.Log, state *cluster.State) {
	t.Helper()
	rows, err := log.Heartbeats(t.Context())
	check(t, err)
	for _, r := range rows {
		w, ok := state.WAL(r.Epoch)
		if !ok || w.ID.Node != r.Node || w.Sealed != r.Marked {
			t.Errorf("node %d epoch %d: its row is marked %t, the state knows it %t, sealed %t", r.Node, r.Epoch, r.Marked, ok, w.Sealed)
		}
	}
}

// A seal whose transaction lands after its proposer gave it up and went on is
// refused as old; its mark must not stay behind.
func TestALateSealMarksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memlog.New()
		var attempts atomic.Int32
		var down atomic.Bool
		log := faultlog.New(inner, faultlog.Config{LateBy: 10 * time.Second, Plan: func(op faultlog.Op) faultlog.Fault {
			switch {
			case op != faultlog.Append || !down.Load():
				return faultlog.None
			case attempts.Add(1) == 1:
				return faultlog.Late
			}
			return faultlog.Refused
		}})
		a, b := start(t, log), start(t, inner)
		register(t, a, 1)
		eb := register(t, b, 2)
		lease, err := a.TakeLease(t.Context(), time.Hour)
		check(t, err)
		down.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = a.Propose(ctx, seal(eb, lease.Epoch))
		wantErr(t, err, context.DeadlineExceeded)
		time.Sleep(5 * time.Second) // the proposer notices that nobody waits
		down.Store(false)
		propose(t, a, allocate())
		time.Sleep(time.Minute)
		_, err = b.Heartbeat(t.Context(), 0)
		check(t, err)
		check(t, b.WaitApplied(t.Context(), a.View().Index()))
		marksAreSeals(t, inner, b.View())
		check(t, a.stop())
		check(t, log.Close())
	})
}

// The holder of the lease registered anew: its old lease seals nobody.
func TestASealUnderTheLeaseOfAnEarlierEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		a, b := start(t, log), start(t, log)
		register(t, a, 1)
		eb := register(t, b, 2)
		lease, err := a.TakeLease(t.Context(), time.Hour)
		check(t, err)
		register(t, a, 1)
		_, err = a.Propose(t.Context(), seal(eb, lease.Epoch))
		wantErr(t, err, mink.ErrConflict)
		_, err = b.Heartbeat(t.Context(), 0)
		check(t, err)
		marksAreSeals(t, log, a.View())
	})
}

// Two processes of one id: what the second one is refused must not reach the
// first one's heartbeats.
func TestARefusedRegistrationMarksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		a, b := start(t, log), start(t, log)
		register(t, a, 1)
		_, err := b.Register(t.Context(), &clusterpb.RegisterNode{
			Node: 1, Nonce: nonces.Add(1), FeatureLevel: 1, Rack: strings.Repeat("r", 5000),
		})
		wantErr(t, err, mink.ErrInvalid)
		_, err = a.Heartbeat(t.Context(), 0)
		check(t, err)
		propose(t, a, allocate())
		marksAreSeals(t, log, a.View())
	})
}

// A process whose registration was overtaken hears so at once, and does not
// register over its successor, even if it finds both only in a snapshot.
func TestAnOvertakenRegistrationIsTheLoser(t *testing.T) {
	for _, truncated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			log := memlog.New()
			holder, lease := leaseHolder(t, log)
			var second mink.NodeEpoch
			var winner running
			appended := false
			loser := start(t, afterAppend{log, func() {
				if appended {
					return
				}
				appended = true
				winner = start(t, log)
				second = register(t, winner, 2)
				for range 3 {
					propose(t, holder, allocate())
					if truncated {
						_, err := holder.SnapshotNow(t.Context(), lease)
						check(t, err)
					}
				}
				if truncated {
					_, err := holder.TruncateNow(t.Context(), lease)
					check(t, err)
				}
			}, truncated})
			_, err := loser.Register(t.Context(), &clusterpb.RegisterNode{Node: 2, Nonce: nonces.Add(1), FeatureLevel: 1})
			wantErr(t, err, mink.ErrFenced)
			if n, _ := holder.View().Node(2); n.Epoch != second || n.Sealed {
				t.Errorf("node 2 is at epoch %d (sealed %t), the winner registered epoch %d", n.Epoch, n.Sealed, second)
			}
			_, err = winner.Heartbeat(t.Context(), 0)
			check(t, err)
			marksAreSeals(t, log, holder.View())
		})
	}
}

// afterAppend runs something between an append and its answer. blind: its replica
// reads nothing before that.
type afterAppend struct {
	metalog.Log
	after func()
	blind bool
}

func (l afterAppend) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	entries, err := l.Log.Append(ctx, a)
	l.after()
	return entries, err
}

func (l afterAppend) Changed(index uint64) <-chan struct{} {
	if l.blind {
		return nil
	}
	return l.Log.Changed(index)
}

// A proposal that was applied is answered so, also when its epoch was sealed
// before the proposer looked.
func TestAnAppliedProposalIsNotAnsweredAsFenced(t *testing.T) {
	for range 20 { // the two that wait for the database go on in either order
		synctest.Test(t, func(t *testing.T) {
			inner := memlog.New()
			var down atomic.Bool
			log := faultlog.New(inner, faultlog.Config{Plan: func(op faultlog.Op) faultlog.Fault {
				switch {
				case !down.Load():
					return faultlog.None
				case op == faultlog.Append:
					return faultlog.LostResponse
				}
				return faultlog.Refused
			}})
			holder, lease := leaseHolder(t, inner)
			r := start(t, log)
			epoch := register(t, r, 2)
			down.Store(true)
			answered := make(chan error, 1)
			go func() {
				res, err := r.Propose(t.Context(), allocate())
				if err == nil {
					err = cluster.ResultError(res[0])
				}
				answered <- err
			}()
			time.Sleep(5 * time.Second)
			propose(t, holder, seal(epoch, lease.Epoch))
			down.Store(false)
			if err := <-answered; err != nil {
				t.Errorf("a proposal that was applied is answered with: %v", err)
			}
			check(t, r.stop())
			check(t, log.Close())
		})
	}
}
