package node

import (
	"context"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// CommitTieredRound records a round that a sink has committed; the same round again
// changes nothing. The read grace is the node's configuration. Errors: mink.ErrConflict
// when the lease is not r.Lease's here any more, or another round than r.BaseRound is
// recorded: look at view and sink again; mink.ErrNotExist when the table is dropped or
// not tiered to the sink now; mink.ErrInvalid when an end is above the log's committed
// end or below the one recorded: sink and metadata contradict each other.
func (n *Node) CommitTieredRound(ctx context.Context, r cluster.TieredRound) error {
	r.ReadGraceMs = n.cfg.ReadGrace.Milliseconds()
	_, err := n.one(ctx, cluster.CommitTieredRoundCommand(r))
	return err
}

// ForgetDroppedSink says that nothing is left of a dropped table at a sink. Saying it
// again is allowed. Errors: mink.ErrConflict when the lease is not held here any more.
func (n *Node) ForgetDroppedSink(ctx context.Context, table mink.TableID, sink string, lease mink.LeaseEpoch) error {
	_, err := n.one(ctx, cluster.ForgetDroppedSinkCommand(table, sink, lease))
	return err
}
