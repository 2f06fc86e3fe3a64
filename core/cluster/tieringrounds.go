package cluster

import (
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// commitTieredRound records what the sink has committed.
func (t *txn) commitTieredRound(c *clusterpb.CommitTieredRound) *clusterpb.Result {
	table, found := t.s.tables.get(mink.TableID(c.GetTable()))
	if !found {
		return notExist("round %q of table %d at sink %q: the table does not exist", c.GetRound(), c.GetTable(), c.GetSink())
	}
	what := fmt.Sprintf("round %q of table %s (%d) at sink %q", c.GetRound(), table.Descriptor.Name(), table.ID, c.GetSink())
	old, found := t.s.tierings.get(&Tiering{Table: table.ID, Sink: c.GetSink()})
	switch {
	case !found || old.Off:
		return notExist("%s: the table is not tiered to it", what)
	case !validRoundID(c.GetRound()):
		return invalid("%s: a round id is 1 to %d lower-case letters, digits and '-'", what, sink.RoundIDLengthMax)
	case len(c.GetSnapshot()) > sink.SnapshotLengthMax:
		return invalid("%s: the name of its snapshot has %d bytes, at most %d are allowed", what, len(c.GetSnapshot()), sink.SnapshotLengthMax)
	case c.GetReadGraceMs() < 0 || c.GetReadGraceMs() > MaxReadGrace:
		return invalid("%s: a read grace of %d ms, 0 to %d are allowed", what, c.GetReadGraceMs(), int64(MaxReadGrace))
	case len(c.GetEnds()) > sink.RangesMax:
		return invalid("%s: %d ends, at most %d are allowed", what, len(c.GetEnds()), sink.RangesMax)
	}
	again := c.GetRound() == old.Round
	if old.Stopped != "" && !again {
		return conflict("%s: %s", what, old.Stopped)
	}
	if !again || t.s.faults.roundTwice {
		if r := t.checkLease(c.GetLease()); r != nil && !t.s.faults.noRoundLease {
			return r
		}
		if _, pending := t.s.droppedSinks.get(&DroppedSink{Table: table.ID, Sink: c.GetSink()}); pending {
			return conflict("%s: the table begins anew there, and what was there is not dropped yet", what)
		}
		if c.GetBaseRound() != old.Round && !t.s.faults.noBaseRound {
			return conflict("%s: it follows round %q, recorded is %q: look at the sink again", what, c.GetBaseRound(), old.Round)
		}
	}
	ends, r := t.tieredEnds(what, table, c, again)
	switch {
	case r != nil:
		return r
	case again && !t.s.faults.roundTwice:
		return okNote("%s was recorded before", what)
	}
	next := t.nextTiering(old, c)
	t.s.tierings.set(next)
	for _, e := range ends {
		b := *e.bucket
		b.ends = append(next.neededEnds(b.ends), tieredEnd{next.Rounds, e.end})
		needed := b.neededEnd(next, t.s.timeMs)
		b.gaps = slices.DeleteFunc(slices.Clone(b.gaps), func(g plan.Gap) bool { return g.End <= needed })
		t.s.tiered.set(&b)
	}
	return okID(next.Rounds)
}

// movedEnd is a bucket that a round moves to an end.
type movedEnd struct {
	bucket *tieredBucket
	end    mink.Offset
}

// tieredEnds checks the ends of a round and answers those that it moves. Buckets of
// partitions that are gone are skipped: the sink may have been told before.
func (t *txn) tieredEnds(what string, table *Table, c *clusterpb.CommitTieredRound, again bool) ([]movedEnd, *clusterpb.Result) {
	var moved []movedEnd
	seen := make(map[mink.StreamID]bool, len(c.GetEnds()))
	for _, e := range c.GetEnds() {
		p, found := t.s.partitions.get(mink.PartitionID(e.GetPartition()))
		if !found {
			continue
		}
		ref := mink.BucketRef{Table: table.ID, Partition: p.ID, Index: e.GetBucket()}
		id, found := t.s.StreamOf(ref)
		if !found {
			return nil, invalid("%s: the table has no bucket %s", what, ref)
		}
		st, _ := t.s.streams.get(id)
		b, found := t.s.tiered.get(&tieredBucket{stream: id, sink: c.GetSink()})
		end := mink.Offset(e.GetOffset())
		switch {
		case !found:
			return nil, invalid("%s: bucket %s has no base offset there", what, ref)
		case seen[id]:
			return nil, invalid("%s: bucket %s twice", what, ref)
		case again && end != b.end():
			return nil, invalid("%s: bucket %s up to offset %d, the round was recorded with %d", what, ref, end, b.end())
		case end < b.end() && !t.s.faults.endsBack:
			return nil, invalid("%s: bucket %s up to offset %d, %d is recorded already: the sink went back", what, ref, end, b.end())
		case end > st.End && !t.s.faults.endsAhead:
			return nil, invalid("%s: bucket %s up to offset %d, the log is committed up to %d: the sink has rows that the log does not", what, ref, end, st.End)
		}
		seen[id] = true
		if end != b.end() {
			moved = append(moved, movedEnd{b, end})
		}
	}
	return moved, nil
}

// nextTiering is the tiering with a round recorded now.
func (t *txn) nextTiering(old *Tiering, c *clusterpb.CommitTieredRound) *Tiering {
	now := t.s.timeMs
	next := *old
	next.Round, next.Snapshot, next.Fence = c.GetRound(), c.GetSnapshot(), mink.LeaseEpoch(c.GetLease())
	next.CommittedMs, next.ReadGraceMs, next.Rounds = now, c.GetReadGraceMs(), old.Rounds+1
	// What has left its grace may be trimmed away: a longer grace does not bring it back.
	list := slices.DeleteFunc(slices.Clone(old.Snapshots), func(s LakeSnapshot) bool {
		return s.SupersededMs != 0 && s.SupersededMs <= now-min(old.ReadGraceMs, next.ReadGraceMs)
	})
	if n := len(list); n > 0 {
		if list[n-1].SupersededMs = now; next.ReadGraceMs == 0 {
			list = list[:n-1]
		}
	}
	list = append(list, LakeSnapshot{Snapshot: next.Snapshot, CommittedMs: now, number: next.Rounds})
	if len(list) > maxLakeSnapshots { // every other one stands for the one behind it too
		thin := list[:0]
		for i, s := range list {
			if last := i == len(list)-1; i%2 == 1 && !last {
				thin[len(thin)-1].SupersededMs = s.SupersededMs
				continue
			}
			thin = append(thin, s)
		}
		list = thin
	}
	next.Snapshots = list
	return &next
}

// neededEnds are those of a bucket's ends that the snapshots need.
func (t *Tiering) neededEnds(ends []tieredEnd) []tieredEnd {
	var out []tieredEnd
	i := 0
	for _, s := range t.Snapshots {
		last := -1
		for ; i < len(ends) && ends[i].round <= s.number; i++ {
			last = i
		}
		if last >= 0 {
			out = append(out, ends[last])
		}
	}
	return out
}

func validRoundID(id string) bool {
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return len(id) > 0 && len(id) <= sink.RoundIDLengthMax
}
