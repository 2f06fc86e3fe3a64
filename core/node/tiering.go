package node

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// CommitTieredRound records a round that a sink has committed; the same round again
// changes nothing. The read grace is the node's configuration, that of other sinks than the lake 0. Errors: mink.ErrConflict
// when the lease is not r.Lease's here any more, or another round than r.BaseRound is
// recorded: look at view and sink again; mink.ErrNotExist when the table is dropped or
// not tiered to the sink now; mink.ErrInvalid when an end is above the log's committed
// end or below the one recorded: sink and metadata contradict each other.
func (n *Node) CommitTieredRound(ctx context.Context, r cluster.TieredRound) error {
	if r.Sink == cluster.LakeSink { // union reads use its snapshots, and nobody those of other sinks
		r.ReadGraceMs = n.cfg.ReadGrace.Milliseconds()
	}
	_, err := n.one(ctx, cluster.CommitTieredRoundCommand(r))
	return err
}

// Upload makes stream objects of all that is acknowledged on this node, and commits them: what
// readers of committed rows, tiering among them, can see. Errors: mink.ErrUnavailable while
// the node is not registered; the engine's.
func (n *Node) Upload(ctx context.Context) error {
	engine := n.Engine()
	if engine == nil {
		return fmt.Errorf("this node is not registered at the moment: %w", mink.ErrUnavailable)
	}
	return engine.UploadNow(ctx)
}

// ForgetDroppedSink says that nothing is left of a dropped table at a sink. Saying it
// again is allowed. Errors: mink.ErrConflict when the lease is not held here any more.
func (n *Node) ForgetDroppedSink(ctx context.Context, table mink.TableID, sink string, lease mink.LeaseEpoch) error {
	_, err := n.one(ctx, cluster.ForgetDroppedSinkCommand(table, sink, lease))
	return err
}

// giveUp trims what retention lets go of and a sink has not taken, once that sink has
// stalled for the table's limit: rows of that age only, since a sink that was idle may
// have its round under way. Of several such sinks a row is given up at the longest of their
// limits, and sinks that are not to be given up are waited for.
func (n *Node) giveUp(ctx context.Context, e *bucket, to mink.Offset, nowMs int64) error {
	view := n.View()
	limits := map[string]int64{} // ms, of the stalled sinks
	for hold := range view.TierHolds(e.id) {
		o, err := e.table.Descriptor.SinkSettings(hold.Sink)
		if err != nil {
			return err
		}
		limit := o.StallLimit.Milliseconds()
		if t, on := view.Tiering(e.ref.Table, hold.Sink); on && limit > 0 && view.TimeMs()-t.LastMs() > limit {
			limits[hold.Sink] = limit
		} else {
			to = min(to, hold.Bound)
		}
	}
	var sinks []string
	age, least := int64(0), int64(math.MaxInt64)
	for hold := range view.TierHolds(e.id) {
		if limit, stalled := limits[hold.Sink]; stalled && hold.Bound < to {
			sinks = append(sinks, hold.Sink)
			age, least = max(age, limit), min(least, limit)
		}
	}
	if len(sinks) == 0 {
		return nil
	}
	old, err := e.log.OlderThan(ctx, nowMs-age)
	if err != nil || min(to, old) <= e.log.LogStart() {
		return err
	}
	if err := e.log.Discard(ctx, min(to, old), view.TimeMs()-least); err != nil {
		return err
	}
	n.logger.Warn("rows were given up for sinks that have stalled", "bucket", e.ref.String(), "sinks", sinks, "log_start", e.log.LogStart())
	return nil
}

// finish says of buckets of closed partitions that nothing follows, once all of them
// is committed: a sink may take their last rows, and then the partition goes.
func (b *buckets) finish(ctx context.Context) error {
	n := b.inc.node
	view := n.View()
	var commands []*clusterpb.Command
	for _, e := range b.snapshot() {
		if e.log == nil || !e.closed || e.behind != nil || !view.Unfinished(e.ref) {
			continue
		}
		if st, ok := view.Stream(e.id); ok && st.End == e.log.LogEnd() { // what is written since waits for its upload
			commands = append(commands, cluster.FinishBucketsCommand([]cluster.FinishedBucket{{Stream: e.id, Epoch: e.epoch, End: st.End}}))
		}
	}
	if len(commands) == 0 {
		return nil
	}
	results, err := n.Propose(ctx, commands...)
	if err != nil {
		return fmt.Errorf("finish %d buckets of closed partitions: %w", len(commands), err)
	}
	var errs []error
	for _, r := range results {
		if err := cluster.ResultError(r); err != nil && !errors.Is(err, mink.ErrConflict) { // it moved, or went on
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
