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
