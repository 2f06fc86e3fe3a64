package cluster

import (
	clusterplan "github.com/mink-project/mink/core/cluster/plan"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// newStreams makes the streams of a partition's buckets from index `from` up to
// `to` and gives each a leader in turn over the live nodes. Without a live node
// they are orphans, which the coordinator picks up.
func (t *txn) newStreams(table mink.TableID, partition mink.PartitionID, from, to int32) []mink.StreamID {
	live := t.s.LiveNodes()
	leaders := clusterplan.Place(int(to-from), len(live), int(t.s.nextStart))
	t.s.nextStart = (t.s.nextStart + 1) & 0x7fffffff
	ids := make([]mink.StreamID, to-from)
	for i := range ids {
		ids[i] = t.s.nextStream
		t.s.nextStream++
		st := plan.Stream{ID: ids[i], Bucket: mink.BucketRef{Table: table, Partition: partition, Index: from + int32(i)}}
		if leaders != nil {
			n := live[leaders[i]]
			st.Owner = plan.Owner{Node: n.ID, NodeEpoch: n.Epoch, LeaderEpoch: 1}
		}
		t.putStream(st)
	}
	return ids
}

// leadBuckets gives orphans their next leader, all or none; streams that are
// gone are skipped.
func (t *txn) leadBuckets(c *clusterpb.LeadBuckets) *clusterpb.Result {
	if r := t.checkLease(c.GetLease()); r != nil {
		return r
	}
	seen := make(map[mink.StreamID]bool, len(c.GetLeads()))
	var led []plan.Stream
	for _, l := range c.GetLeads() {
		id, epoch := mink.StreamID(l.GetStream()), mink.NodeEpoch(l.GetEpoch())
		old, found := t.s.streams.get(id)
		if !found {
			continue
		}
		n, live := t.s.live(epoch)
		switch {
		case seen[id]:
			return invalid("lead stream %d twice", id)
		case !live || n.ID != mink.NodeID(l.GetNode()):
			return conflict("lead stream %d by node %d, epoch %d: that epoch is sealed or was never registered", id, l.GetNode(), epoch)
		case old.Owner.LeaderEpoch != mink.LeaderEpoch(l.GetExpectedLeaderEpoch()):
			return conflict("lead stream %d: expected leader epoch %d, it is %d", id, l.GetExpectedLeaderEpoch(), old.Owner.LeaderEpoch)
		case !t.s.Orphan(*old):
			return conflict("lead stream %d: node %d, epoch %d, leads it and is not recovered: only its own release moves it", id, old.Owner.Node, old.Owner.NodeEpoch)
		}
		seen[id] = true
		st := *old
		st.Owner = plan.Owner{Node: n.ID, NodeEpoch: epoch, LeaderEpoch: old.Owner.LeaderEpoch + 1}
		led = append(led, st)
	}
	for _, st := range led {
		t.putStream(st)
	}
	return ok()
}

// release commits the tail of a stream by reference and hands it over: to the
// wanted node when that is alive, at once and under the next leader epoch, else
// to whom the coordinator chooses.
func (t *txn) release(c *clusterpb.Release) *clusterpb.Result {
	wal, objects, items, err := manifest(c.GetWal(), c.GetObjects(), c.GetItems())
	if r := t.checkProposer("release", wal); r != nil {
		return r
	}
	if err != nil {
		return refuseErr(err)
	}
	w, _ := t.s.wals.get(wal.Epoch)
	for _, o := range objects {
		if r := t.checkSlot(w.WAL, o); r != nil {
			return r
		}
	}
	id := mink.StreamID(c.GetStream())
	d, err := plan.ApplyRelease(t.s, plan.Release{
		WAL: wal, Stream: id, LeaderEpoch: mink.LeaderEpoch(c.GetLeaderEpoch()), End: mink.Offset(c.GetEnd()),
		Objects: objects, Items: items, To: mink.NodeID(c.GetTo()),
	})
	if err != nil {
		return refuseErr(err)
	}
	t.apply(d)
	st, _ := t.s.Stream(id)
	epoch := st.Owner.LeaderEpoch
	st.Owner = plan.Owner{LeaderEpoch: epoch}
	if n, found := t.s.nodes.get(mink.NodeID(c.GetTo())); found && !n.Sealed {
		st.Owner = plan.Owner{Node: n.ID, NodeEpoch: n.Epoch, LeaderEpoch: epoch + 1}
	}
	t.putStream(st)
	r := okID(int64(st.Owner.Node))
	if c.GetTo() != 0 && st.Owner.Node == 0 {
		r.Message = okNote("node %d is not alive: the coordinator chooses the next leader", c.GetTo()).GetMessage()
	}
	return r
}
