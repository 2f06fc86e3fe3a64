package cluster

import (
	"fmt"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// SnapshotVersion is the version of the snapshot that this binary writes; it
// reads this one and older ones.
const SnapshotVersion = 1

// EncodeSnapshot yields the state as records, each one a clusterpb.Record: the
// header first, then by kind and key. The same state gives the same bytes on
// every machine. A record is yield's to keep. It stops at yield's first error and
// returns it.
func (s *State) EncodeSnapshot(yield func(record []byte) error) error {
	e := encoder{yield: yield}
	e.header(s)
	encodeAll(&e, values(s.nodes.all()), e.node)
	for _, w := range s.wals.all() {
		e.wal(w)
	}
	encodeAll(&e, values(s.databases.all()), e.database)
	for _, t := range s.tables.all() {
		e.table(t)
	}
	for _, p := range s.partitions.all() {
		e.partition(p)
	}
	for _, st := range s.streams.all() {
		e.stream(st)
	}
	for o := range s.objects.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_Object{Object: objectPB(*o)}})
	}
	for o := range s.parked.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_Parked{Parked: objectPB(*o)}})
	}
	for d := range s.destroyed.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_Destroyed{Destroyed: &clusterpb.DestroyedObject{
			Object: objectPB(d.Object), DestroyedMs: d.DestroyedAt, Index: d.Index}}})
	}
	encodeAll(&e, values(s.producers.all()), e.producer)
	encodeAll(&e, s.Groups(), e.group)
	for name := range s.groups.all() {
		e.groupOffsets(s, name)
	}
	e.primaryKey(s)
	e.tiering(s)
	for epoch, d := range s.dedup.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_Dedup{Dedup: &clusterpb.Dedup{Epoch: int64(epoch), Counter: d.counter, Results: d.results}}})
	}
	return e.err
}

func encodeAll[T any](e *encoder, seq iter.Seq[T], encode func(T)) {
	for v := range seq {
		if e.err != nil {
			return
		}
		encode(v)
	}
}

type encoder struct {
	yield func([]byte) error
	err   error
}

func (e *encoder) put(r *clusterpb.Record) {
	if e.err != nil {
		return
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err == nil {
		err = e.yield(data)
	}
	e.err = err
}

func (e *encoder) header(s *State) {
	records := s.nodes.len() + s.wals.len() + s.databases.len() + s.tables.len() + s.partitions.len() + s.streams.len() +
		s.objects.len() + s.parked.len() + s.destroyed.len() + s.producers.len() + s.dedup.len() + s.groups.len()
	for g := range s.Groups() {
		records += (g.Offsets + groupOffsetsPerRecord - 1) / groupOffsetsPerRecord
	}
	records += s.kv.len() + s.kvDestroyed.len() + s.autoIncrement.len() + s.tierings.len() + s.tiered.len() + s.droppedSinks.len() + s.former.len()
	for _, b := range s.kv.all() {
		records += len(b.Snapshots)
	}
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Header{Header: &clusterpb.Header{
		Version: SnapshotVersion, Index: s.index, TimeMs: s.timeMs, FeatureLevel: s.featureLevel, Incarnation: s.incarnation, TimeLine: s.timeLine, SinkFence: s.sinkFence,
		LeaseNode: int32(s.lease.Node), LeaseNodeEpoch: int64(s.lease.NodeEpoch), Lease: int64(s.lease.Epoch),
		NextDatabase: s.nextDatabase, NextTable: int64(s.nextTable), NextPartition: int64(s.nextPartition),
		NextStream: int64(s.nextStream), NextWriter: int64(s.nextWriter), NextStart: s.nextStart,
		NextProducerVersion: s.nextProducerVersion, Records: uint64(records),
	}}})
}

func (e *encoder) node(n Node) {
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Node{Node: &clusterpb.Node{
		Node: int32(n.ID), Epoch: int64(n.Epoch), Nonce: n.Nonce, FlightAddress: n.FlightAddress, KafkaAddress: n.KafkaAddress,
		HttpAddress: n.HTTPAddress, Rack: n.Rack, FeatureLevel: n.FeatureLevel, Version: n.Version, RegisteredMs: n.RegisteredMs,
		SealedMs: n.SealedMs, LeaseTtlMs: n.LeaseTTLMs,
	}}})
}

func (e *encoder) wal(w *walEntry) {
	r := &clusterpb.WALState{
		Id: walPB(w.ID), Trim: w.Trim, CommitSeq: w.CommitSeq, Sealed: w.Sealed, Recovered: w.Recovered, End: w.End, SealReason: w.sealReason,
		Used: w.used,
	}
	for _, l := range w.lost {
		slot := &clusterpb.LostSlot{Slot: l.Slot}
		for _, g := range l.Gaps {
			slot.Gaps = append(slot.Gaps, &clusterpb.Gap{Stream: int64(g.Stream), Start: int64(g.Start), End: int64(g.End)})
		}
		r.Lost = append(r.Lost, slot)
	}
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Wal{Wal: r}})
}

func (e *encoder) database(d Database) {
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Database{Database: &clusterpb.Database{Name: d.Name, Id: d.ID, CreatedMs: d.CreatedMs}}})
}

func (e *encoder) table(t *Table) {
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Table{Table: &clusterpb.Table{
		Id: int64(t.ID), Uuid: t.UUID[:], Descriptor_: t.descriptorJSON, Schemas: t.schemaJSON, CreatedMs: t.CreatedMs, ModifiedMs: t.ModifiedMs,
	}}})
}

func (e *encoder) partition(p *Partition) {
	streams := make([]int64, len(p.Streams))
	for i, id := range p.Streams {
		streams[i] = int64(id)
	}
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Partition{Partition: &clusterpb.Partition{
		Id: int64(p.ID), Table: int64(p.Table), Values: p.Values, Streams: streams, Closed: p.Closed, Automatic: p.Automatic, CreatedMs: p.CreatedMs,
	}}})
}

func (e *encoder) stream(st *plan.Stream) {
	r := &clusterpb.Stream{
		Id: int64(st.ID), Table: int64(st.Bucket.Table), Partition: int64(st.Bucket.Partition), Bucket: st.Bucket.Index,
		Start: int64(st.Start), End: int64(st.End),
		Owner: int32(st.Owner.Node), OwnerEpoch: int64(st.Owner.NodeEpoch), LeaderEpoch: int32(st.Owner.LeaderEpoch),
		Ranges:     rangesPB(st.Ranges),
		Checkpoint: objectIDPB(st.Checkpoint), CheckpointEnd: int64(st.CheckEnd),
		CleanedEnd: int64(st.Cleaned.End), CleanedBytes: st.Cleaned.Bytes, CleanedDueMs: st.Cleaned.DueMs,
	}
	for _, g := range st.Gaps {
		r.Gaps = append(r.Gaps, &clusterpb.Gap{Start: int64(g.Start), End: int64(g.End)})
	}
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Stream{Stream: r}})
}

func (e *encoder) producer(p Producer) {
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Producer{Producer: &clusterpb.Producer{
		Name: p.Name, Position: p.Position, Offsets: bucketOffsetsPB(p.Offsets), CommittedMs: p.CommittedMs, Version: p.Version,
	}}})
}

func (e *encoder) group(g GroupInfo) {
	e.put(&clusterpb.Record{Kind: &clusterpb.Record_Group{Group: &clusterpb.Group{
		Name: g.Name, ProtocolType: g.ProtocolType, Occupied: g.Occupied, EmptiedMs: g.EmptiedMs, MovedIndex: g.MovedIndex,
	}}})
}

// groupOffsetsPerRecord keeps a record below 5 MB, whatever the clients' metadata.
const groupOffsetsPerRecord = 1000

func (e *encoder) groupOffsets(s *State, name string) {
	var r *clusterpb.GroupOffsets
	flush := func() {
		if r != nil {
			e.put(&clusterpb.Record{Kind: &clusterpb.Record_GroupOffsets{GroupOffsets: r}})
		}
	}
	for _, o := range s.GroupOffsets(name) {
		if r == nil || len(r.Offsets) == groupOffsetsPerRecord {
			flush()
			r = &clusterpb.GroupOffsets{Group: name}
		}
		pb := groupOffsetPB(o)
		pb.CommittedMs = o.CommittedMs
		r.Offsets = append(r.Offsets, pb)
	}
	flush()
}

// DecodeSnapshot rebuilds a state from the records of EncodeSnapshot, in their
// order. Every cross-reference is checked: bad bytes are an error that wraps
// mink.ErrCorrupt, a snapshot of a newer version mink.ErrUnsupported.
func DecodeSnapshot(records iter.Seq2[[]byte, error]) (*State, error) {
	d := decoder{t: &txn{s: NewState()}}
	n := uint64(0)
	for data, err := range records {
		if err != nil {
			return nil, fmt.Errorf("read snapshot record %d: %w", n, err)
		}
		var r clusterpb.Record
		if err := proto.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("snapshot record %d: %w: %w", n, err, mink.ErrCorrupt)
		}
		if err := d.record(n, &r); err != nil {
			return nil, fmt.Errorf("snapshot record %d: %w", n, err)
		}
		n++
	}
	switch {
	case n == 0:
		return nil, fmt.Errorf("snapshot has no records: %w", mink.ErrCorrupt)
	case n-1 != d.records:
		return nil, fmt.Errorf("snapshot has %d records behind the header, which promises %d: %w", n-1, d.records, mink.ErrCorrupt)
	}
	s := d.t.s
	s.freeze()
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("snapshot at index %d: %w: %w", s.index, err, mink.ErrCorrupt)
	}
	return s, nil
}
