package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	clusterplan "github.com/mink-project/mink/core/cluster/plan"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// moveTries is how often a leader is asked for one move; movePause, doubled each time,
// comes before it is asked again.
const (
	moveTries = 4
	movePause = 100 * time.Millisecond
)

// Rebalance evens out the buckets over the live nodes, on the node that holds the lease:
// buckets without a leader get one, then nodes above 110 % of the mean give some to those
// below 90 %, each move asked of the current leader. A leader that is gone or does not
// answer is passed over: whatever it was asked for may still happen, and is planned
// again by the next call otherwise. each, when not nil, is called after every move, one
// call at a time. With dryRun nothing is changed.
//
// Errors: mink.ErrUnavailable on a node that does not hold the lease, mink.ErrConflict
// while another rebalance is under way, mink.ErrUnsupported without Deps.Release. A move that
// fails is in the report, not an error.
func (c *Coordinator) Rebalance(ctx context.Context, dryRun bool, each func(api.MoveProgress)) (api.RebalanceReport, error) {
	l, ok := c.held()
	switch {
	case !ok:
		return api.RebalanceReport{}, fmt.Errorf("rebalance: this node does not coordinate the cluster, node %d does: %w", c.deps.Meta.View().Lease().Node, mink.ErrUnavailable)
	case c.deps.Release == nil:
		return api.RebalanceReport{}, fmt.Errorf("rebalance: this node cannot ask others to move a bucket: %w", mink.ErrUnsupported)
	}
	began := time.Now()
	if dryRun {
		view := c.deps.Meta.View()
		b := newBalance(view, planLeads(view))
		out := api.RebalanceReport{DryRun: true, Moves: append(b.orphans, b.moves...), Nodes: b.nodes}
		out.TookMs = since(began)
		return out, nil
	}
	if !c.balancing.TryLock() {
		return api.RebalanceReport{}, fmt.Errorf("rebalance: another one is under way: %w", mink.ErrConflict)
	}
	defer c.balancing.Unlock()
	b, err := c.balanceOrphans(ctx, l)
	if err != nil {
		return api.RebalanceReport{}, fmt.Errorf("rebalance: %w", err)
	}
	r := &rebalancing{c: c, each: each, total: len(b.orphans) + len(b.moves), silent: map[mink.NodeEpoch]bool{}}
	for _, m := range b.orphans {
		r.end(m)
	}
	var g errgroup.Group
	g.SetLimit(c.cfg.MovesMax)
	for i := range b.moves {
		g.Go(func() error {
			r.move(ctx, &b.moves[i])
			r.end(b.moves[i])
			return nil
		})
	}
	_ = g.Wait() // no member answers an error
	out := api.RebalanceReport{Moves: append(b.orphans, b.moves...), Nodes: b.nodes}
	after := leading(c.deps.Meta.View())
	for i := range out.Nodes {
		out.Nodes[i].After = after[out.Nodes[i].Node]
	}
	out.TookMs = since(began)
	c.logger.Info("buckets rebalanced", "moves", len(out.Moves), "moved", out.Count(api.MoveMoved), "took", time.Since(began).Round(time.Millisecond).String())
	return out, nil
}

// balanceOrphans gives the buckets without a leader one, and plans from there.
func (c *Coordinator) balanceOrphans(ctx context.Context, l metalog.Lease) (balance, error) {
	for try := 1; ; try++ {
		view := c.deps.Meta.View()
		leads := planLeads(view)
		err := c.lead(ctx, l, leads)
		if errors.Is(err, mink.ErrConflict) && try < moveTries { // the tick was first
			continue
		}
		if err != nil {
			return balance{}, err
		}
		b := newBalance(view, leads)
		for i := range b.orphans {
			b.orphans[i].Outcome = api.MoveMoved
		}
		return b, nil
	}
}

func since(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1000 }

func leading(view *cluster.State) map[mink.NodeID]int {
	out := map[mink.NodeID]int{}
	for s := range view.Streams() {
		out[s.Owner.Node]++
	}
	return out
}

// balance is a plan, and the buckets of the live nodes before and after it.
type balance struct {
	orphans, moves []api.Move
	nodes          []api.NodeLoad
}

// newBalance plans with the orphans led as leads says.
func newBalance(view *cluster.State, leads []*clusterpb.Lead) balance {
	b := balance{}
	var led []clusterplan.Led
	at := map[mink.NodeID]int{}
	for _, n := range view.LiveNodes() {
		on := clusterplan.Led{Node: n.ID}
		for s := range view.StreamsLedBy(n.Epoch) {
			on.Streams = append(on.Streams, s.ID)
		}
		at[n.ID] = len(led)
		led = append(led, on)
		b.nodes = append(b.nodes, api.NodeLoad{Node: n.ID, Before: len(on.Streams), After: len(on.Streams)})
	}
	for _, o := range leads {
		i := at[mink.NodeID(o.GetNode())]
		led[i].Streams = append(led[i].Streams, mink.StreamID(o.GetStream()))
		b.nodes[i].After++
		b.orphans = append(b.orphans, newMove(view, mink.StreamID(o.GetStream()), 0, led[i].Node))
	}
	for _, m := range clusterplan.Rebalance(led) {
		b.nodes[at[m.From]].After--
		b.nodes[at[m.To]].After++
		b.moves = append(b.moves, newMove(view, m.Stream, m.From, m.To))
	}
	return b
}

func newMove(view *cluster.State, stream mink.StreamID, from, to mink.NodeID) api.Move {
	m := api.Move{From: from, To: to, Outcome: api.MovePlanned}
	if s, ok := view.Stream(stream); ok {
		m.Bucket = s.Bucket
		if t, ok := view.Table(s.Bucket.Table); ok {
			m.Table = t.Descriptor.Name()
		}
	}
	return m
}

// rebalancing is one run.
type rebalancing struct {
	c     *Coordinator
	each  func(api.MoveProgress)
	total int

	mu     sync.Mutex
	ended  int
	silent map[mink.NodeEpoch]bool // leaders that did not answer
}

func (r *rebalancing) end(m api.Move) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended++
	if r.each != nil {
		r.each(api.MoveProgress{Ended: r.ended, Total: r.total, Move: m})
	}
}

func (r *rebalancing) noteSilent(epoch mink.NodeEpoch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent[epoch] = true
}

func (r *rebalancing) isSilent(epoch mink.NodeEpoch) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.silent[epoch]
}

// move carries out one move, or says why not.
func (r *rebalancing) move(ctx context.Context, m *api.Move) {
	c := r.c
	began := time.Now()
	set := func(outcome, format string, args ...any) {
		m.Outcome, m.Reason, m.TookMs = outcome, fmt.Sprintf(format, args...), since(began)
	}
	var owner plan.Owner // when the leader was first asked
	for try := 1; ; try++ {
		s, leader, why := r.askable(ctx, m)
		switch {
		case owner != (plan.Owner{}) && s.Owner.Node == m.To && s.Owner.LeaderEpoch > owner.LeaderEpoch:
			set(api.MoveMoved, "")
			return
		case why != "":
			set(api.MoveSkipped, "%s", why)
			return
		}
		owner = s.Owner
		asked, cancel := context.WithTimeout(ctx, c.cfg.MoveTimeout)
		err := c.deps.Release(asked, leader, m.Bucket, m.To)
		late := asked.Err() != nil && ctx.Err() == nil
		if err == nil {
			c.waitMoved(asked, s)
			set(api.MoveMoved, "")
		}
		cancel()
		switch {
		case err == nil:
			return
		case late:
			r.noteSilent(leader.Epoch)
			if now, ok := c.deps.Meta.View().Stream(s.ID); ok && now.Owner.Node == m.To {
				set(api.MoveMoved, "")
				return
			}
			set(api.MoveUnanswered, "node %d did not answer within %s; it may move it yet: %v", leader.ID, c.cfg.MoveTimeout, err)
			return
		case errors.Is(err, mink.ErrNotExist):
			set(api.MoveSkipped, "it was dropped")
			return
		case try == moveTries || ctx.Err() != nil:
			set(api.MoveRefused, "node %d: %v", leader.ID, err)
			return
		}
		t := time.NewTimer(movePause << (try - 1)) // the leader's view may be behind, or the bucket opening
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// askable answers the bucket and the leader to ask; why: there is nobody to ask, or
// nothing to ask for.
func (r *rebalancing) askable(ctx context.Context, m *api.Move) (s plan.Stream, leader cluster.Node, why string) {
	c := r.c
	view := c.deps.Meta.View()
	id, ok := view.StreamOf(m.Bucket)
	if !ok {
		return s, leader, "it was dropped"
	}
	s, _ = view.Stream(id)
	leader, known := view.Node(m.From)
	to, ok := view.Node(m.To)
	_, holds := c.held()
	switch {
	case ctx.Err() != nil:
		why = fmt.Sprintf("the rebalance was broken off: %v", context.Cause(ctx))
	case !holds:
		why = "this node does not coordinate the cluster any more"
	case !ok || to.Sealed:
		why = fmt.Sprintf("node %d has ended", m.To)
	case !known || leader.Sealed || s.Owner.NodeEpoch != leader.Epoch:
		why = fmt.Sprintf("node %d does not lead it any more", m.From)
	case r.isSilent(leader.Epoch):
		why = fmt.Sprintf("node %d does not answer", m.From)
	}
	return s, leader, why
}

// waitMoved waits until this node's view, too, gives the bucket to somebody else: a
// rebalance that is asked for next must not plan the move again.
func (c *Coordinator) waitMoved(ctx context.Context, was plan.Stream) {
	for {
		view := c.deps.Meta.View()
		if s, ok := view.Stream(was.ID); !ok || s.Owner != was.Owner {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-c.deps.Meta.Changed(view.Index()):
		}
	}
}
