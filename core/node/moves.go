package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// move is a bucket on its way to another node, by this leader's own Release.
//
//	open --begin--> drains: appends are refused, what was admitted becomes durable
//	     --durable--> leaves: nothing is answered any more, the store is closed
//	     --Release, until its verdict is seen--> applied: the view names the next leader, follow closes the rest
//	                                         '-> refused: opens again
//
// No time-out leads back from "leaves": a Release that was sent may be applied later.
type move struct {
	to     mink.NodeID
	leaves bool          // under buckets.mu
	done   chan struct{} // closed at the end
	err    error         // after done
}

// errMoving is why a bucket that is led here is not served: its Release is on its way.
var errMoving = fmt.Errorf("the verdict on it is not known yet: %w", mink.ErrUnavailable)

func (m *move) unavailable() error { return fmt.Errorf("it is moved to node %d: %w", m.to, errMoving) }

// leaves reports that another node may lead the bucket. Under buckets.mu.
func (e *bucket) leaves() bool { return e.moving != nil && e.moving.leaves }

// ReleaseBucket moves a bucket that this node leads to another live node: appends are
// refused, those that were admitted are made durable and answered, then one command
// hands the bucket over, what is not uploaded by reference. nil: the node `to` leads
// it, as this node's view says; also when it did already.
//
// Errors: mink.ErrInvalid when `to` is no live node, mink.ErrNotExist,
// *mink.NotLeaderError, mink.ErrUnavailable. After the last one ask again: a move that
// was begun goes on whoever waits for it, and a second call for the same node waits
// for the first one's end.
func (n *Node) ReleaseBucket(ctx context.Context, ref mink.BucketRef, to mink.NodeID) error {
	m, err := n.startMove(ref, to)
	if err != nil {
		return fmt.Errorf("move bucket %s to node %d: %w", ref, to, err)
	}
	if m == nil {
		return nil
	}
	select {
	case <-m.done:
		if m.err != nil {
			return fmt.Errorf("move bucket %s to node %d: %w", ref, to, m.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("move bucket %s to node %d: it was begun and goes on: %w: %w", ref, to, mink.ErrUnavailable, context.Cause(ctx))
	}
}

// startMove answers the move to wait for; nil: the bucket is where it should be.
func (n *Node) startMove(ref mink.BucketRef, to mink.NodeID) (*move, error) {
	view := n.View()
	if target, ok := view.Node(to); !ok || target.Sealed {
		return nil, fmt.Errorf("%w: node %d is not alive", mink.ErrInvalid, to)
	}
	_, err := n.Log(ref)
	elsewhere := (*mink.NotLeaderError)(nil)
	switch {
	case errors.As(err, &elsewhere) && elsewhere.Leader == to, err == nil && to == n.cfg.NodeID:
		return nil, nil
	case err != nil && !errors.Is(err, errMoving):
		return nil, err
	case to == n.cfg.NodeID:
		return nil, err
	}
	inc := n.incarnation()
	id, ok := view.StreamOf(ref)
	if inc == nil || !ok {
		return nil, fmt.Errorf("its leadership changes: %w", mink.ErrUnavailable)
	}
	return inc.buckets.startMove(id, to)
}

func (b *buckets) startMove(id mink.StreamID, to mink.NodeID) (*move, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.mu.led[id]
	switch {
	case b.mu.closed || e == nil || e.log == nil:
		return nil, fmt.Errorf("its leadership changes: %w", mink.ErrUnavailable)
	case e.moving != nil && e.moving.to != to:
		return nil, e.moving.unavailable()
	case e.moving != nil:
		return e.moving, nil
	}
	m := &move{to: to, done: make(chan struct{})}
	e.moving = m
	b.jobs.work.Go(func() {
		defer close(m.done)
		m.err = b.carry(e, m)
	})
	return m, nil
}

// carry is the whole move.
func (b *buckets) carry(e *bucket, m *move) error {
	logger := b.inc.node.logger.With("bucket", e.ref.String(), "leader_epoch", e.epoch, "to", m.to)
	began := time.Now()
	end, err := e.stream.Drain(b.jobs.ctx)
	if err != nil { // closed, or the epoch is lost: it opens again under the next leadership
		return b.unavailable(e, err)
	}
	b.leave(e, m)
	drained := time.Now()
	leader, refused, err := b.handOver(e, m)
	switch {
	case refused:
		logger.Error("the move of a bucket was refused; it opens here again", "error", err)
		b.reopen(e)
		return err
	case err != nil:
		return b.unavailable(e, err)
	case leader != m.to:
		return fmt.Errorf("node %d has ended meanwhile; the coordinator chooses the next leader: %w", m.to, mink.ErrUnavailable)
	}
	logger.Info("bucket moved", "end", end, "drained", drained.Sub(began).Round(time.Microsecond).String(), "took", time.Since(began).Round(time.Microsecond).String())
	return nil
}

// unavailable makes an end that says nothing about the bucket one to ask again after.
func (b *buckets) unavailable(e *bucket, err error) error {
	if _, ok := b.inc.node.View().Stream(e.id); !ok {
		return fmt.Errorf("it was dropped: %w: %w", mink.ErrNotExist, err)
	}
	return fmt.Errorf("this node does not lead it any more, or ends: %w: %w", mink.ErrUnavailable, err)
}

// leave ends all answers about the bucket: from here on another node may take writes of
// it. A read that has returned by then was of a moment before.
func (b *buckets) leave(e *bucket, m *move) {
	b.mu.Lock()
	m.leaves = true
	t := e.kv.tablet
	e.kv.tablet = nil
	b.mu.Unlock()
	if t != nil { // puts that are durable are answered, reads waited for
		_ = b.endKV(e, t) // logged
	}
}

// A Release is asked for again after releaseRetryMin, doubling to releaseRetryMax, while
// it has no verdict; one that is stale is made anew, up to releaseStaleMax times: an
// upload in between is one.
const (
	releaseRetryMin = 50 * time.Millisecond
	releaseRetryMax = 2 * time.Second
	releaseStaleMax = 10
)

// handOver proposes the drained bucket's Release until its verdict is seen, and answers
// the next leader. refused: apply said no, for good; only then is it certain that no
// Release of this leadership is applied later. err without refused: the leadership or
// the node epoch has ended.
func (b *buckets) handOver(e *bucket, m *move) (leader mink.NodeID, refused bool, err error) {
	n, ctx := b.inc.node, b.jobs.ctx
	pause := releaseRetryMin
	for stale := 0; ; {
		r, err := e.stream.Release(ctx, m.to)
		if err != nil {
			return 0, false, err
		}
		results, err := n.Propose(ctx, cluster.ReleaseCommand(r))
		if err == nil {
			if err = cluster.ResultError(results[0]); err == nil {
				return mink.NodeID(results[0].GetId()), false, nil
			}
			if stale++; !errors.Is(err, mink.ErrConflict) || stale > releaseStaleMax {
				return 0, true, err
			}
		}
		if owner, ours := b.owner(e); !ours {
			return owner, false, nil // an earlier one, whose answer was lost
		}
		if ctx.Err() != nil || errors.Is(err, mink.ErrFenced) {
			return 0, false, err
		}
		n.logger.Warn("a bucket's release has no verdict yet; the bucket stays closed and it is asked again", "bucket", e.ref.String(), "to", m.to, "in", pause, "error", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		pause = min(2*pause, releaseRetryMax)
	}
}

// owner is the bucket's leader by the view, 0 for none; ours: still this leadership.
func (b *buckets) owner(e *bucket) (leader mink.NodeID, ours bool) {
	s, ok := b.inc.node.View().Stream(e.id)
	if !ok {
		return 0, false
	}
	return s.Owner.Node, s.Owner == plan.Owner{Node: b.inc.node.cfg.NodeID, NodeEpoch: b.inc.epoch, LeaderEpoch: e.epoch}
}

// reopen opens a bucket anew whose move was refused: its stream takes no appends any
// more.
func (b *buckets) reopen(e *bucket) {
	b.mu.Lock()
	if b.mu.closed || b.mu.led[e.id] != e {
		b.mu.Unlock()
		return // follow or closeAll ends it
	}
	fresh := &bucket{ref: e.ref, id: e.id, epoch: e.epoch, tabletTable: e.tabletTable, asOf: e.asOf, opening: true, walk: e.walk}
	b.mu.led[e.id] = fresh
	b.mu.waiting++
	busy := e.kv.busy
	b.mu.Unlock()
	if busy != nil { // it has the directory that the fresh one will have
		<-busy
	}
	b.end(e)
	b.mu.Lock()
	b.mu.queue = append(b.mu.queue, fresh)
	b.mu.Unlock()
	b.tell()
}
