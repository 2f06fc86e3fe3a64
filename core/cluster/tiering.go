package cluster

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// This file is what the metadata know of tiering: which table goes to which sink,
// how far each bucket has come there, and how far the log may therefore be trimmed.
//
//	 start                 end at the oldest snapshot           end of the last
//	 of the log            that was current within read_grace   committed round     committed end
//	   |                             |                               |                  |
//	   [-- may be trimmed ----------)[-- readers of that one -------)[-- not tiered ----)
//
// The sink is the truth and this a cache of it: a round is recorded after the sink
// has committed it, by the holder of the lease, who looked at the sink before.

// LakeSink is the name of the sink that the table option `lake` switches on.
const LakeSink = schema.LakeSink

// MaxReadGrace bounds the read grace of a round, ms: ten years.
const MaxReadGrace = 10 * 365 * 24 * 3600 * 1000

// maxLakeSnapshots bounds the snapshots that are remembered of one table at one sink.
const maxLakeSnapshots = 128

// Tiering is what is known of one table at one sink. Immutable.
type Tiering struct {
	Table       mink.TableID
	Sink        string
	Retains     bool            // trims wait for it
	Off         bool            // switched off: nothing waits for it, its ends are remembered
	Round       string          // the last one recorded; "": none yet
	Snapshot    string          // the sink's name of its state with that round
	Fence       mink.LeaseEpoch // under which it was recorded
	CommittedMs int64           // when; 0: no round yet
	ReadGraceMs int64           // as of the last round
	Rounds      int64           // how many were recorded
	EnabledMs   int64           // when the sink was switched on last
	Generation  int64           // of the option lake_generation, or the sink's: its table began anew with it
	// Stopped says why no round is recorded: the sink has of lost entries of the metadata
	// what this state cannot follow. It ends when the sink's table begins anew. "": it is not.
	Stopped string

	// Snapshots were current within the read grace, oldest first, the current one
	// last. More than 128 are thinned out: what the sink made after the first of
	// them is needed too, whether or not it is listed.
	Snapshots []LakeSnapshot
}

// LakeSnapshot is a state of the sink that readers may use.
type LakeSnapshot struct {
	Snapshot     string // the sink's name
	CommittedMs  int64
	SupersededMs int64 // 0: the current one

	number int64 // of its round, from 1
}

// LastMs is when the sink took something last, or was switched on.
func (t *Tiering) LastMs() int64 { return max(t.CommittedMs, t.EnabledMs) }

// needed is the oldest snapshot that was current within the read grace of a time.
func (t *Tiering) needed(nowMs int64) (LakeSnapshot, bool) {
	for i, s := range t.Snapshots {
		if i == len(t.Snapshots)-1 || s.SupersededMs > nowMs-t.ReadGraceMs {
			return s, true
		}
	}
	return LakeSnapshot{}, false
}

// DroppedSink is what a sink may still have of a table that is gone, or that begins anew
// there: no round of it is recorded before that is cleared.
type DroppedSink struct {
	Table      mink.TableID
	Sink       string
	Database   string
	Name       string
	Descriptor *schema.Descriptor // as it was last
	DroppedMs  int64

	index      uint64
	descriptor []byte
}

// tieredBucket is one bucket at one sink. Immutable.
type tieredBucket struct {
	stream mink.StreamID
	sink   string
	base   mink.Offset // where the first round begins; of a primary-key table 0, whatever the log still has
	start  mink.Offset // of the log when the sink was switched on last
	// ends, by the numbers of the rounds that moved it; those that the snapshots
	// of the Tiering need, the newest last.
	ends []tieredEnd
	// gaps of the log above what the oldest snapshot has, which tiering and readers
	// may pass over: oldest first, not touching.
	gaps []plan.Gap
	// finished: the partition is closed and nothing follows the log's end, says its leader.
	finished bool
	// remade: of a primary-key table; the sink has rows of an earlier partition of the same
	// values, so that a key which is inserted here may be there.
	remade bool
}

// formerPartition is a dropped partition of a primary-key table. A sink keeps its rows.
// Immutable.
type formerPartition struct {
	table  mink.TableID
	sink   string
	values []string
	key    string // partitionKey
}

func newFormer(table mink.TableID, sink string, values []string) *formerPartition {
	return &formerPartition{table, sink, values, partitionKey(table, values)}
}

func lessFormer(a, b *formerPartition) bool {
	return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.sink, b.sink), cmp.Compare(a.key, b.key)) < 0
}

type tieredEnd struct {
	round int64
	end   mink.Offset
}

// end is how far the last round came.
func (b *tieredBucket) end() mink.Offset {
	if n := len(b.ends); n > 0 {
		return b.ends[n-1].end
	}
	return b.base
}

// endAt is how far a round and those before it came.
func (b *tieredBucket) endAt(round int64) mink.Offset {
	end := b.base
	for _, e := range b.ends {
		if e.round > round {
			break
		}
		end = e.end
	}
	return end
}

// neededEnd is the end at the oldest snapshot that a reader may still use.
func (b *tieredBucket) neededEnd(t *Tiering, nowMs int64) mink.Offset {
	s, found := t.needed(nowMs)
	if !found {
		return b.base
	}
	return b.endAt(s.number)
}

// addGap allows a range to be missing, together with what touches it.
func (b *tieredBucket) addGap(g plan.Gap) {
	var out []plan.Gap
	for _, old := range b.gaps {
		if old.End < g.Start || old.Start > g.End {
			out = append(out, old)
			continue
		}
		g = plan.Gap{Start: min(g.Start, old.Start), End: max(g.End, old.End)}
	}
	out = append(out, g)
	slices.SortFunc(out, func(x, y plan.Gap) int { return cmp.Compare(x.Start, y.Start) })
	b.gaps = out
}

func lessTiering(a, b *Tiering) bool {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Sink, b.Sink)) < 0
}

func lessTiered(a, b *tieredBucket) bool {
	return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.sink, b.sink)) < 0
}

func lessDroppedSink(a, b *DroppedSink) bool {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Sink, b.Sink)) < 0
}

// tieringsOf are all sinks that a table was ever tiered to, by name.
func (s *State) tieringsOf(table mink.TableID) iter.Seq[*Tiering] {
	return func(yield func(*Tiering) bool) {
		for t := range s.tierings.from(&Tiering{Table: table}) {
			if t.Table != table || !yield(t) {
				return
			}
		}
	}
}

// TieringsOf are the sinks that a table is tiered to now, by name.
func (s *State) TieringsOf(table mink.TableID) iter.Seq[*Tiering] {
	return func(yield func(*Tiering) bool) {
		for t := range s.tieringsOf(table) {
			if !t.Off && !yield(t) {
				return
			}
		}
	}
}

// sinksOf are the sinks that a table's options name, and those that it was ever
// tiered to, sorted.
func (s *State) sinksOf(table *Table) []string {
	names := table.Descriptor.Sinks()
	for t := range s.tieringsOf(table.ID) {
		names = append(names, t.Sink)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// checkSinks refuses a change of options that would leave a sink with a hole.
func (t *txn) checkSinks(next *Table) *clusterpb.Result {
	for old := range t.s.tieringsOf(next.ID) {
		name := old.Sink
		if !old.Off || next.Descriptor.SinkGeneration(name) > old.Generation || !next.Descriptor.TiersTo(name) || len(next.Descriptor.PrimaryKey) == 0 {
			continue
		}
		for st := range t.s.streamsOfTable(next.ID) {
			b, found := t.s.tiered.get(&tieredBucket{stream: st.ID, sink: name})
			if found && len(b.ends) > 0 && st.Start > b.end() {
				return conflict("alter table %s: sink %s was switched off when it had bucket %s up to offset %d, and the log begins at %d by now: changes between them, deletes too, would be missing there; raise %s to begin it anew",
					next.Descriptor.Name(), name, st.Bucket, b.end(), st.Start, schema.SinkGenerationOption(name))
			}
		}
	}
	return nil
}

// syncSinks brings what is known of the table's sinks to its options. Each bucket
// gets its base offset with it.
func (t *txn) syncSinks(table *Table) {
	for _, name := range t.s.sinksOf(table) {
		old, found := t.s.tierings.get(&Tiering{Table: table.ID, Sink: name})
		on, raised, retains := table.Descriptor.TiersTo(name), table.Descriptor.SinkGeneration(name), table.Descriptor.SinkRetains(name)
		if found && raised > old.Generation {
			t.forgetSink(table, old)
			found = false
		}
		switch {
		case on && (!found || old.Off):
			next := &Tiering{Table: table.ID, Sink: name, Generation: raised}
			if found {
				again := *old
				next = &again
			}
			next.Retains, next.Off, next.EnabledMs = retains, false, t.s.timeMs
			t.s.tierings.set(next)
			for st := range t.s.streamsOfTable(table.ID) {
				t.tierBucket(&st, table, name)
			}
		case !on && found && !old.Off:
			off := *old
			off.Off = true
			t.s.tierings.set(&off)
		case on && old.Retains != retains: // what trims let go of meanwhile are gaps already
			next := *old
			next.Retains = retains
			t.s.tierings.set(&next)
		}
	}
}

// tierBucket records where a bucket begins at a sink, or goes on there.
func (t *txn) tierBucket(st *plan.Stream, table *Table, name string) {
	old, found := t.s.tiered.get(&tieredBucket{stream: st.ID, sink: name})
	keyed := len(table.Descriptor.PrimaryKey) > 0
	b := tieredBucket{stream: st.ID, sink: name, start: st.Start}
	if p, there := t.s.partitions.get(st.Bucket.Partition); there && keyed && !t.s.faults.forgetFormer {
		_, b.remade = t.s.former.get(newFormer(table.ID, name, p.Values))
	}
	switch {
	case found: // also without an end: the sink may have rounds that were not recorded
		b.base, b.ends, b.gaps, b.finished = old.base, old.ends, old.gaps, old.finished
		if st.Start > old.end() && !keyed { // let go of while it was off
			b.addGap(plan.Gap{Start: old.end(), End: st.Start})
		}
	case !keyed:
		b.base = st.Start
	}
	t.s.tiered.set(&b)
}

// tierStreams records the bases of new buckets.
func (t *txn) tierStreams(table *Table, ids []mink.StreamID) {
	for s := range t.s.TieringsOf(table.ID) {
		for _, id := range ids {
			st, _ := t.s.streams.get(id)
			t.tierBucket(st, table, s.Sink)
		}
	}
}

// rememberFormer notes for every sink that the table ever had that rows of a partition stay
// there.
func (t *txn) rememberFormer(p *Partition) {
	table, found := t.s.tables.get(p.Table)
	if !found || len(table.Descriptor.PrimaryKey) == 0 {
		return
	}
	for s := range t.s.tieringsOf(p.Table) {
		t.s.former.set(newFormer(p.Table, s.Sink, p.Values))
	}
}

// dropTiered forgets a stream that is dropped.
func (t *txn) dropTiered(id mink.StreamID) {
	for _, b := range slices.Collect(t.s.tieredOf(id)) {
		t.s.tiered.del(b)
	}
}

// dropSinks remembers which sinks have something of a table that is dropped, also
// those that are switched off: the next table of the name finds its place there
// empty once that is removed.
func (t *txn) dropSinks(table *Table) {
	for _, s := range slices.Collect(t.s.tieringsOf(table.ID)) {
		t.forgetSink(table, s)
	}
}

// forgetSink leaves to whoever clears the sink what it has of a table.
func (t *txn) forgetSink(table *Table, s *Tiering) {
	t.s.tierings.del(s)
	for st := range t.s.streamsOfTable(table.ID) {
		t.s.tiered.del(&tieredBucket{stream: st.ID, sink: s.Sink})
	}
	for _, f := range slices.Collect(t.s.formerOf(table.ID, s.Sink)) {
		t.s.former.del(f)
	}
	t.s.droppedSinks.set(&DroppedSink{
		Table: table.ID, Sink: s.Sink, Database: table.Descriptor.Database, Name: table.Descriptor.Table, Descriptor: table.Descriptor,
		DroppedMs: t.s.timeMs, index: t.s.index, descriptor: table.descriptorJSON,
	})
}

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

// finishBuckets notes that nothing follows the ends of logs whose partitions are
// closed. Those that are gone are skipped.
func (t *txn) finishBuckets(c *clusterpb.FinishBuckets) *clusterpb.Result {
	var done []mink.StreamID
	for _, f := range c.GetBuckets() {
		st, found := t.s.streams.get(mink.StreamID(f.GetStream()))
		if !found {
			continue
		}
		switch owner := st.Owner; {
		case owner.NodeEpoch != t.epoch || owner.LeaderEpoch != mink.LeaderEpoch(f.GetLeaderEpoch()):
			return conflict("finish bucket %s by node epoch %d, leader epoch %d: it is led by node %d, epoch %d, under leader epoch %d",
				st.Bucket, t.epoch, f.GetLeaderEpoch(), owner.Node, owner.NodeEpoch, owner.LeaderEpoch)
		case !t.s.isClosed(st.Bucket.Partition):
			return conflict("finish bucket %s: its partition is not closed", st.Bucket)
		case mink.Offset(f.GetEnd()) != st.End:
			return conflict("finish bucket %s at offset %d: the log is committed up to %d", st.Bucket, f.GetEnd(), st.End)
		}
		done = append(done, st.ID)
	}
	for _, id := range done {
		t.setFinished(id, true)
	}
	return ok()
}

func (t *txn) setFinished(id mink.StreamID, finished bool) {
	for _, old := range slices.Collect(t.s.tieredOf(id)) {
		if old.finished != finished {
			b := *old
			b.finished = finished
			t.s.tiered.set(&b)
		}
	}
}

func (s *State) isClosed(id mink.PartitionID) bool {
	p, found := s.partitions.get(id)
	return found && p.Closed
}

// PartitionGone reports that a partition was dropped and never comes back. One that
// this state does not know yet is not gone.
func (s *State) PartitionGone(id mink.PartitionID) bool {
	_, found := s.partitions.get(id)
	return id > 0 && id < s.nextPartition && !found
}

// Unfinished reports that some sink waits for the leader of a bucket to say that nothing
// follows its log's committed end.
func (s *State) Unfinished(bucket mink.BucketRef) bool {
	for t := range s.TieringsOf(bucket.Table) {
		if !s.Finished(t.Sink, bucket) {
			return true
		}
	}
	return false
}

// Finished reports that a tiered bucket's partition is closed and that its leader
// has said that nothing follows the log's committed end.
func (s *State) Finished(sink string, bucket mink.BucketRef) bool {
	b, found := s.tieredBucket(sink, bucket)
	return found && b.finished
}

// Waiting is the first bucket of a partition that is not at all of its table's sinks
// to its end, and why; "" when none is: dropping the partition loses nothing there. A
// partition that is not closed waits.
func (s *State) Waiting(p *Partition) string {
	for t := range s.TieringsOf(p.Table) {
		name := t.Sink
		if !t.Retains {
			continue
		}
		if !p.Closed {
			return "it is not closed"
		}
		for i, id := range p.Streams {
			st, _ := s.streams.get(id)
			b, found := s.tiered.get(&tieredBucket{stream: id, sink: name})
			switch {
			case !found || s.faults.dropEarly:
			case !b.finished:
				return fmt.Sprintf("the leader of bucket %d has not yet written all of it", i)
			case b.covered() < st.End:
				return fmt.Sprintf("sink %s has bucket %d up to offset %d of %d", name, i, b.covered(), st.End)
			}
		}
	}
	return ""
}

// covered is the end, and the gaps that follow it.
func (b *tieredBucket) covered() mink.Offset {
	end := b.end()
	for _, g := range b.gaps {
		if g.Start <= end {
			end = max(end, g.End)
		}
	}
	return end
}

// forgetDroppedSink ends what dropSinks began. One that is not known is skipped: the
// answer to an earlier command was lost.
func (t *txn) forgetDroppedSink(c *clusterpb.ForgetDroppedSink) *clusterpb.Result {
	if r := t.checkLease(c.GetLease()); r != nil {
		return r
	}
	t.s.droppedSinks.del(&DroppedSink{Table: mink.TableID(c.GetTable()), Sink: c.GetSink()})
	return ok()
}

// formerOf are a table's dropped partitions that a sink has.
func (s *State) formerOf(table mink.TableID, sink string) iter.Seq[*formerPartition] {
	return func(yield func(*formerPartition) bool) {
		for f := range s.former.from(&formerPartition{table: table, sink: sink}) {
			if f.table != table || f.sink != sink || !yield(f) {
				return
			}
		}
	}
}

// Remade reports that the sink has rows of an earlier partition of the same values as this
// one of a primary-key table: keys that are inserted into the bucket may be there.
func (s *State) Remade(sink string, bucket mink.BucketRef) bool {
	b, found := s.tieredBucket(sink, bucket)
	return found && b.remade
}

// tieredOf are what is known of a stream at all sinks, by name.
func (s *State) tieredOf(id mink.StreamID) iter.Seq[*tieredBucket] {
	return func(yield func(*tieredBucket) bool) {
		for b := range s.tiered.from(&tieredBucket{stream: id}) {
			if b.stream != id || !yield(b) {
				return
			}
		}
	}
}

// streamsOfTable are the streams of all partitions of a table.
func (s *State) streamsOfTable(id mink.TableID) iter.Seq[plan.Stream] {
	return func(yield func(plan.Stream) bool) {
		for p := range s.Partitions(id) {
			for _, stream := range p.Streams {
				if st, found := s.streams.get(stream); found && !yield(*st) {
					return
				}
			}
		}
	}
}

// Tierings are the tables and the sinks that they are tiered to, by table and sink.
func (s *State) Tierings() iter.Seq[*Tiering] {
	return func(yield func(*Tiering) bool) {
		for t := range s.tierings.all() {
			if !t.Off && !yield(t) {
				return
			}
		}
	}
}

// EveryTiering is Tierings, and those that are switched off, whose ends are remembered.
func (s *State) EveryTiering() iter.Seq[*Tiering] { return s.tierings.all() }

// Tiering finds what is known of a table at a sink that it is tiered to now.
func (s *State) Tiering(table mink.TableID, sink string) (*Tiering, bool) {
	t, found := s.tierings.get(&Tiering{Table: table, Sink: sink})
	if !found || t.Off {
		return nil, false
	}
	return t, true
}

// EverTiered says whether a table is or was tiered to a sink: what the sink has of it
// stays there when tiering is switched off.
func (s *State) EverTiered(table mink.TableID, sink string) bool {
	_, found := s.tierings.get(&Tiering{Table: table, Sink: sink})
	return found
}

// TieredEnd is where a bucket began at a sink, and how far the last recorded round
// came there: base before the first one. A primary-key bucket begins at 0, with a
// KV snapshot, whatever its log still has. ok is false when the bucket does not
// exist or is not tiered there now.
func (s *State) TieredEnd(sink string, bucket mink.BucketRef) (base, end mink.Offset, ok bool) {
	b, ok := s.tieredBucket(sink, bucket)
	if !ok {
		return 0, 0, false
	}
	return b.base, b.end(), true
}

func (s *State) tieredBucket(sink string, bucket mink.BucketRef) (*tieredBucket, bool) {
	if _, on := s.Tiering(bucket.Table, sink); !on {
		return nil, false
	}
	id, found := s.StreamOf(bucket)
	if !found {
		return nil, false
	}
	return s.tiered.get(&tieredBucket{stream: id, sink: sink})
}

// AllowedGaps are the offsets of a bucket that are missing at a sink and in the log
// because somebody wanted that: a manual trim of a log table, a sink that was switched
// off for a while. Tiering and readers pass over them. Oldest first, not touching; those
// below the end of the oldest snapshot that readers may use are forgotten.
func (s *State) AllowedGaps(sink string, bucket mink.BucketRef) []plan.Gap {
	b, ok := s.tieredBucket(sink, bucket)
	if !ok {
		return nil
	}
	return b.gaps
}

// DroppedSinks are the tables that are gone and may still have something at a sink,
// by table and sink.
func (s *State) DroppedSinks() iter.Seq[DroppedSink] { return derefs(s.droppedSinks.all()) }

func derefs[T any](seq iter.Seq[*T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		for v := range seq {
			if !yield(*v) {
				return
			}
		}
	}
}
