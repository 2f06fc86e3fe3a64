package cluster

import (
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// This file is translate.go, snapshot.go and decode.go of tiering.

// TieredRound is a round that a sink has committed.
type TieredRound struct {
	Table mink.TableID
	Sink  string
	Lease mink.LeaseEpoch // that the proposer holds
	Round string
	// BaseRound is the one that the metadata had last when the proposer looked; "":
	// none. Rounds between the two that the sink has and the metadata missed need
	// not be recorded.
	BaseRound   string
	Snapshot    string         // what the sink's Commit or Recover answered
	Ends        []BucketOffset // of this table; buckets that are not named keep theirs
	ReadGraceMs int64
}

// CommitTieredRoundCommand is the command's wire form.
func CommitTieredRoundCommand(r TieredRound) *clusterpb.Command {
	c := &clusterpb.CommitTieredRound{
		Table: int64(r.Table), Sink: r.Sink, Lease: int64(r.Lease), Round: r.Round, BaseRound: r.BaseRound, Snapshot: r.Snapshot,
		ReadGraceMs: r.ReadGraceMs, Ends: make([]*clusterpb.TieredEnd, len(r.Ends)),
	}
	for i, e := range r.Ends {
		c.Ends[i] = &clusterpb.TieredEnd{Partition: int64(e.Bucket.Partition), Bucket: e.Bucket.Index, Offset: int64(e.Offset)}
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_CommitTieredRound{CommitTieredRound: c}}
}

// ForgetDroppedSinkCommand is the command's wire form.
func ForgetDroppedSinkCommand(table mink.TableID, sink string, lease mink.LeaseEpoch) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_ForgetDroppedSink{ForgetDroppedSink: &clusterpb.ForgetDroppedSink{
		Table: int64(table), Sink: sink, Lease: int64(lease),
	}}}
}

// FinishedBucket is a stream whose log ends for good.
type FinishedBucket struct {
	Stream mink.StreamID
	Epoch  mink.LeaderEpoch // under which the proposer leads it
	End    mink.Offset
}

// FinishBucketsCommand is the command's wire form.
func FinishBucketsCommand(list []FinishedBucket) *clusterpb.Command {
	c := &clusterpb.FinishBuckets{Buckets: make([]*clusterpb.FinishedBucket, len(list))}
	for i, f := range list {
		c.Buckets[i] = &clusterpb.FinishedBucket{Stream: int64(f.Stream), LeaderEpoch: int32(f.Epoch), End: int64(f.End)}
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_FinishBuckets{FinishBuckets: c}}
}

// tiering writes the records of tiering.
func (e *encoder) tiering(s *State) {
	for t := range s.tierings.all() {
		r := &clusterpb.Tiering{
			Table: int64(t.Table), Sink: t.Sink, Retains: t.Retains, Off: t.Off, Round: t.Round, Snapshot: t.Snapshot, Lease: int64(t.Fence),
			CommittedMs: t.CommittedMs, ReadGraceMs: t.ReadGraceMs, Rounds: t.Rounds, EnabledMs: t.EnabledMs,
			Generation: t.Generation, Stopped: t.Stopped,
		}
		for _, l := range t.Snapshots {
			r.Snapshots = append(r.Snapshots, &clusterpb.LakeSnapshot{Snapshot: l.Snapshot, Number: l.number, CommittedMs: l.CommittedMs, SupersededMs: l.SupersededMs})
		}
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_Tiering{Tiering: r}})
	}
	for b := range s.tiered.all() {
		r := &clusterpb.TieredBucket{Stream: int64(b.stream), Sink: b.sink, Base: int64(b.base), Start: int64(b.start), Finished: b.finished, Remade: b.remade}
		for _, end := range b.ends {
			r.Rounds, r.Ends = append(r.Rounds, end.round), append(r.Ends, int64(end.end))
		}
		for _, g := range b.gaps {
			r.Gaps = append(r.Gaps, &clusterpb.Gap{Start: int64(g.Start), End: int64(g.End)})
		}
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_TieredBucket{TieredBucket: r}})
	}
	for d := range s.droppedSinks.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_DroppedSink{DroppedSink: &clusterpb.DroppedSink{
			Table: int64(d.Table), Sink: d.Sink, Descriptor_: d.descriptor, DroppedMs: d.DroppedMs, Index: d.index,
		}}})
	}
	for f := range s.former.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_FormerPartition{FormerPartition: &clusterpb.FormerPartition{
			Table: int64(f.table), Sink: f.sink, Values: f.values,
		}}})
	}
}

func (d *decoder) formerPartition(r *clusterpb.FormerPartition) error {
	return insertSet(&d.t.s.former, newFormer(mink.TableID(r.GetTable()), r.GetSink(), r.GetValues()), nil)
}

func (d *decoder) tiering(r *clusterpb.Tiering) error {
	t := &Tiering{
		Table: mink.TableID(r.GetTable()), Sink: r.GetSink(), Retains: r.GetRetains(), Off: r.GetOff(), Round: r.GetRound(), Snapshot: r.GetSnapshot(),
		Fence: mink.LeaseEpoch(r.GetLease()), CommittedMs: r.GetCommittedMs(), ReadGraceMs: r.GetReadGraceMs(), Rounds: r.GetRounds(), EnabledMs: r.GetEnabledMs(), Generation: r.GetGeneration(), Stopped: r.GetStopped(),
	}
	for _, l := range r.GetSnapshots() {
		t.Snapshots = append(t.Snapshots, LakeSnapshot{Snapshot: l.GetSnapshot(), CommittedMs: l.GetCommittedMs(), SupersededMs: l.GetSupersededMs(), number: l.GetNumber()})
	}
	return insertSet(&d.t.s.tierings, t, nil)
}

func (d *decoder) tieredBucket(r *clusterpb.TieredBucket) error {
	b := &tieredBucket{stream: mink.StreamID(r.GetStream()), sink: r.GetSink(), base: mink.Offset(r.GetBase()), start: mink.Offset(r.GetStart()), finished: r.GetFinished(), remade: r.GetRemade()}
	if len(r.GetRounds()) != len(r.GetEnds()) {
		return corrupt("stream %d at sink %q: %d rounds and %d ends", b.stream, b.sink, len(r.GetRounds()), len(r.GetEnds()))
	}
	for i, round := range r.GetRounds() {
		b.ends = append(b.ends, tieredEnd{round, mink.Offset(r.GetEnds()[i])})
	}
	for _, g := range r.GetGaps() {
		b.gaps = append(b.gaps, plan.Gap{Start: mink.Offset(g.GetStart()), End: mink.Offset(g.GetEnd())})
	}
	return insertSet(&d.t.s.tiered, b, nil)
}

func (d *decoder) droppedSink(r *clusterpb.DroppedSink) error {
	desc, err := schema.DecodeDescriptor(r.GetDescriptor_())
	if err != nil {
		return corrupt("dropped table %d at sink %q: %v", r.GetTable(), r.GetSink(), err)
	}
	return insertSet(&d.t.s.droppedSinks, &DroppedSink{
		Table: mink.TableID(r.GetTable()), Sink: r.GetSink(), Database: desc.Database, Name: desc.Table, Descriptor: desc,
		DroppedMs: r.GetDroppedMs(), index: r.GetIndex(), descriptor: r.GetDescriptor_(),
	}, nil)
}
