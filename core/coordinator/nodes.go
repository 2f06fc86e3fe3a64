package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// removalWait bounds, in leases, what a removal waits for the recovery of a node that
// has just ended.
const removalWait = 4

// RemoveNode makes the cluster forget who had a node id, on the node that holds the
// lease. A node that has ended is recovered first, and its buckets led by others: that
// is waited for. Nothing that was acknowledged is touched, and a node that comes back
// under the id registers anew.
//
// Errors: mink.ErrUnavailable on a node that does not hold the lease, or when the recovery
// does not end in time; mink.ErrNotExist for an id that is not registered (with r.IfExists
// none); mink.ErrConflict for a node that is alive, that registered anew meanwhile, or whose
// log is damaged.
func (c *Coordinator) RemoveNode(ctx context.Context, r api.RemoveNode) (api.RemovedNode, error) {
	ctx, cancel := context.WithTimeout(ctx, removalWait*c.cfg.LeaseTTL)
	defer cancel()
	out := api.RemovedNode{Node: r.Node}
	asked := mink.NodeEpoch(0)
	for {
		view := c.deps.Meta.View()
		l, holds := c.held()
		n, found := view.Node(r.Node)
		switch {
		case !holds:
			return out, fmt.Errorf("remove node %d: this node does not coordinate the cluster, node %d does: %w", r.Node, view.Lease().Node, mink.ErrUnavailable)
		case !found && (r.IfExists || asked != 0): // asked: the tick was first
			out.Epoch = asked
			return out, nil
		case !found:
			return out, fmt.Errorf("remove node %d: it is not registered: it was removed before, or never was: %w", r.Node, mink.ErrNotExist)
		case asked != 0 && n.Epoch != asked:
			return out, fmt.Errorf("remove node %d: it came back and has registered anew, as epoch %d: %w", r.Node, n.Epoch, mink.ErrConflict)
		case !n.Sealed:
			return out, fmt.Errorf("remove node %d: it is alive, as far as the cluster knows: stop it first; one that was killed is taken for dead %s after its last heartbeat: %w", r.Node, c.cfg.LeaseTTL, mink.ErrConflict)
		}
		asked = n.Epoch
		refused := cluster.ResultError(view.CheckRemoveNode(n.ID, n.Epoch))
		if refused == nil {
			err := c.propose(ctx, removal(n, l))
			switch {
			case err == nil:
				out.Epoch, out.Removed = n.Epoch, true
				c.logger.Info("node removed", "node", n.ID, "epoch", n.Epoch)
				return out, nil
			case errors.Is(err, mink.ErrConflict) || errors.Is(err, mink.ErrNotExist): // the view was behind
				refused = err
			default:
				return out, fmt.Errorf("remove node %d: %w", r.Node, err)
			}
		}
		if c.Stuck(n.Epoch) {
			return out, fmt.Errorf("remove node %d: its write-ahead log, epoch %d, is damaged: mink cluster accept-loss shows what is lost: %w", r.Node, n.Epoch, mink.ErrConflict)
		}
		select {
		case <-ctx.Done():
			return out, fmt.Errorf("remove node %d: %w: %w: try again", r.Node, refused, mink.ErrUnavailable)
		case <-c.deps.Meta.Changed(view.Index()):
		}
	}
}

func removal(n cluster.Node, l metalog.Lease) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_RemoveNode{
		RemoveNode: &clusterpb.RemoveNode{Node: int32(n.ID), Epoch: int64(n.Epoch), Lease: int64(l.Epoch)},
	}}
}

// forgetNodes removes the nodes that ended long ago, so that node ids that are used
// once do not gather.
func (c *Coordinator) forgetNodes(ctx context.Context, l metalog.Lease) error {
	if c.cfg.NodeRetention == 0 {
		return nil
	}
	view := c.deps.Meta.View()
	before := c.clock.nowMs(view) - c.cfg.NodeRetention.Milliseconds()
	var commands []*clusterpb.Command
	for n := range view.Nodes() {
		if n.Sealed && max(n.SealedMs, n.RegisteredMs) < before && view.CheckRemoveNode(n.ID, n.Epoch) == nil {
			commands = append(commands, removal(n, l))
			c.logger.Info("a node that ended long ago is removed", "node", n.ID, "epoch", n.Epoch, "ended", time.UnixMilli(n.SealedMs))
		}
	}
	if err := c.propose(ctx, commands...); err != nil {
		return fmt.Errorf("remove nodes that ended long ago: %w", err)
	}
	return nil
}
