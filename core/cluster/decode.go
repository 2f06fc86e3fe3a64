package cluster

import (
	"fmt"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// decoder rebuilds a state record by record.
type decoder struct {
	t       *txn
	records uint64 // that the header promises
	kind    int    // of the last record: kinds come in order
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), mink.ErrCorrupt)
}

func (d *decoder) record(n uint64, r *clusterpb.Record) error {
	if h, isHeader := r.GetKind().(*clusterpb.Record_Header); isHeader != (n == 0) {
		return corrupt("a header belongs first and only there")
	} else if isHeader {
		return d.header(h.Header)
	}
	kind, err := d.body(r)
	if err != nil {
		return err
	}
	if kind < d.kind {
		return corrupt("kind %d behind kind %d", kind, d.kind)
	}
	d.kind = kind
	return nil
}

// body stores one record and answers the place of its kind in the order.
func (d *decoder) body(r *clusterpb.Record) (int, error) {
	switch k := r.GetKind().(type) {
	case *clusterpb.Record_Node:
		return 1, d.node(k.Node)
	case *clusterpb.Record_Wal:
		return 2, d.wal(k.Wal)
	case *clusterpb.Record_Database:
		return 3, d.database(k.Database)
	case *clusterpb.Record_Table:
		return 4, d.table(k.Table)
	case *clusterpb.Record_Partition:
		return 5, d.partition(k.Partition)
	case *clusterpb.Record_Stream:
		return 6, d.stream(k.Stream)
	case *clusterpb.Record_Object:
		o, err := d.object(k.Object)
		return 7, insertSet(&d.t.s.objects, o, err)
	case *clusterpb.Record_Parked:
		o, err := d.object(k.Parked)
		return 8, insertSet(&d.t.s.parked, o, err)
	case *clusterpb.Record_Destroyed:
		o, err := d.object(k.Destroyed.GetObject())
		if err != nil {
			return 9, err
		}
		return 9, insertSet(&d.t.s.destroyed, &plan.Destroyed{Object: *o, DestroyedAt: k.Destroyed.GetDestroyedMs(), Index: k.Destroyed.GetIndex()}, nil)
	case *clusterpb.Record_Producer:
		return 10, d.producer(k.Producer)
	case *clusterpb.Record_Group:
		return 11, d.group(k.Group)
	case *clusterpb.Record_GroupOffsets:
		return 12, d.groupOffsets(k.GroupOffsets)
	case *clusterpb.Record_KvBucket:
		return 13, d.kvBucket(k.KvBucket)
	case *clusterpb.Record_KvSnapshot:
		return 14, d.kvSnapshot(k.KvSnapshot)
	case *clusterpb.Record_DestroyedKvFile:
		f, err := kvFileOf(k.DestroyedKvFile.GetFile())
		return 15, insertSet(&d.t.s.kvDestroyed, &kvplan.Destroyed{
			BucketFile:  kvplan.BucketFile{Bucket: bucketRefOf(k.DestroyedKvFile.GetBucket()), File: f},
			DestroyedMs: k.DestroyedKvFile.GetDestroyedMs(), Index: k.DestroyedKvFile.GetIndex(),
		}, err)
	case *clusterpb.Record_AutoIncrement:
		return 16, insertMap(&d.t.s.autoIncrement, mink.TableID(k.AutoIncrement.GetTable()), k.AutoIncrement.GetNext())
	case *clusterpb.Record_Tiering:
		return 17, d.tiering(k.Tiering)
	case *clusterpb.Record_TieredBucket:
		return 18, d.tieredBucket(k.TieredBucket)
	case *clusterpb.Record_DroppedSink:
		return 19, d.droppedSink(k.DroppedSink)
	case *clusterpb.Record_FormerPartition:
		return 20, d.formerPartition(k.FormerPartition)
	case *clusterpb.Record_Dedup:
		return 21, insertMap(&d.t.s.dedup, mink.NodeEpoch(k.Dedup.GetEpoch()), &dedupEntry{counter: k.Dedup.GetCounter(), results: k.Dedup.GetResults()})
	}
	return 0, fmt.Errorf("record of an unknown kind: %w", mink.ErrUnsupported)
}

func insertMap[K interface{ ~int32 | ~int64 | ~string }, V any](m *pmap[K, V], k K, v V) error {
	m.own()
	if _, again := m.m.Load(k, v); again {
		return corrupt("key %v twice", k)
	}
	return nil
}

func insertSet[T any](set *pset[T], item T, err error) error {
	if err != nil {
		return err
	}
	set.own()
	if _, again := set.t.Load(item); again {
		return corrupt("%+v twice", item)
	}
	return nil
}

func (d *decoder) header(h *clusterpb.Header) error {
	switch {
	case h.GetVersion() < 1:
		return corrupt("snapshot version %d", h.GetVersion())
	case h.GetVersion() > SnapshotVersion || h.GetFeatureLevel() > FeatureLevel:
		return fmt.Errorf("snapshot of version %d, feature level %d; this binary reads version %d, feature level %d: upgrade this node: %w",
			h.GetVersion(), h.GetFeatureLevel(), SnapshotVersion, FeatureLevel, mink.ErrUnsupported)
	}
	d.records = h.GetRecords()
	d.t.s.header = header{
		index: h.GetIndex(), timeMs: h.GetTimeMs(), featureLevel: h.GetFeatureLevel(), incarnation: h.GetIncarnation(), timeLine: h.GetTimeLine(), sinkFence: h.GetSinkFence(),
		lease:        Lease{Node: mink.NodeID(h.GetLeaseNode()), NodeEpoch: mink.NodeEpoch(h.GetLeaseNodeEpoch()), Epoch: mink.LeaseEpoch(h.GetLease())},
		nextDatabase: h.GetNextDatabase(), nextTable: mink.TableID(h.GetNextTable()), nextPartition: mink.PartitionID(h.GetNextPartition()),
		nextStream: mink.StreamID(h.GetNextStream()), nextWriter: mink.WriterID(h.GetNextWriter()),
		nextProducerVersion: h.GetNextProducerVersion(), nextStart: h.GetNextStart(),
	}
	return nil
}

func (d *decoder) node(n *clusterpb.Node) error {
	return insertMap(&d.t.s.nodes, mink.NodeID(n.GetNode()), &Node{
		ID: mink.NodeID(n.GetNode()), Epoch: mink.NodeEpoch(n.GetEpoch()), Nonce: n.GetNonce(), FlightAddress: n.GetFlightAddress(),
		KafkaAddress: n.GetKafkaAddress(), HTTPAddress: n.GetHttpAddress(), Rack: n.GetRack(), FeatureLevel: n.GetFeatureLevel(),
		Version: n.GetVersion(), RegisteredMs: n.GetRegisteredMs(), SealedMs: n.GetSealedMs(), LeaseTTLMs: n.GetLeaseTtlMs(),
	})
}

func (d *decoder) wal(w *clusterpb.WALState) error {
	e := &walEntry{
		WAL: plan.WAL{ID: walID(w.GetId()), Trim: w.GetTrim(), CommitSeq: w.GetCommitSeq(), Sealed: w.GetSealed(), Recovered: w.GetRecovered(), End: w.GetEnd()},

		sealReason: w.GetSealReason(), used: w.GetUsed(),
	}
	for _, l := range w.GetLost() {
		slot := LostSlot{Slot: l.GetSlot()}
		for _, g := range l.GetGaps() {
			slot.Gaps = append(slot.Gaps, LostRange{Stream: mink.StreamID(g.GetStream()), Gap: plan.Gap{Start: mink.Offset(g.GetStart()), End: mink.Offset(g.GetEnd())}})
		}
		e.lost = append(e.lost, slot)
	}
	if n, found := d.t.s.nodes.get(e.ID.Node); found && n.Epoch == e.ID.Epoch {
		n.Sealed = e.Sealed
	}
	return insertMap(&d.t.s.wals, e.ID.Epoch, e)
}

func (d *decoder) database(r *clusterpb.Database) error {
	return insertMap(&d.t.s.databases, r.GetName(), &Database{ID: r.GetId(), Name: r.GetName(), CreatedMs: r.GetCreatedMs()})
}

func (d *decoder) table(r *clusterpb.Table) error {
	t, err := decodeTable(r.GetDescriptor_(), r.GetSchemas())
	if err != nil {
		return fmt.Errorf("table %d: %w", r.GetId(), err)
	}
	if len(r.GetUuid()) != len(t.UUID) {
		return corrupt("table %d has a uuid of %d bytes", r.GetId(), len(r.GetUuid()))
	}
	t.ID, t.UUID, t.CreatedMs, t.ModifiedMs = mink.TableID(r.GetId()), [16]byte(r.GetUuid()), r.GetCreatedMs(), r.GetModifiedMs()
	if err := insertMap(&d.t.s.tables, t.ID, t); err != nil {
		return err
	}
	if err := insertMap(&d.t.s.tableNames, tableKey(t.Descriptor.Database, t.Descriptor.Table), t.ID); err != nil {
		return err
	}
	return insertMap(&d.t.s.tableUUIDs, string(t.UUID[:]), t.ID)
}

func (d *decoder) partition(r *clusterpb.Partition) error {
	p := &Partition{
		ID: mink.PartitionID(r.GetId()), Table: mink.TableID(r.GetTable()), Values: r.GetValues(), Closed: r.GetClosed(),
		Automatic: r.GetAutomatic(), CreatedMs: r.GetCreatedMs(), Streams: make([]mink.StreamID, len(r.GetStreams())),
	}
	for i, id := range r.GetStreams() {
		p.Streams[i] = mink.StreamID(id)
	}
	if err := insertMap(&d.t.s.partitions, p.ID, p); err != nil {
		return err
	}
	if err := insertSet(&d.t.s.partsOf, tablePartition{p.Table, p.ID}, nil); err != nil {
		return err
	}
	return insertMap(&d.t.s.partValues, partitionKey(p.Table, p.Values), p.ID)
}

func (d *decoder) stream(r *clusterpb.Stream) error {
	st := plan.Stream{
		ID:     mink.StreamID(r.GetId()),
		Bucket: mink.BucketRef{Table: mink.TableID(r.GetTable()), Partition: mink.PartitionID(r.GetPartition()), Index: r.GetBucket()},
		Start:  mink.Offset(r.GetStart()), End: mink.Offset(r.GetEnd()),
		Owner:    plan.Owner{Node: mink.NodeID(r.GetOwner()), NodeEpoch: mink.NodeEpoch(r.GetOwnerEpoch()), LeaderEpoch: mink.LeaderEpoch(r.GetLeaderEpoch())},
		CheckEnd: mink.Offset(r.GetCheckpointEnd()),
		Cleaned:  plan.Cleaned{End: mink.Offset(r.GetCleanedEnd()), Bytes: r.GetCleanedBytes(), DueMs: r.GetCleanedDueMs()},
	}
	var err error
	if st.Checkpoint, err = objectID(r.GetCheckpoint()); err != nil {
		return err
	}
	if st.Ranges, err = rangesOf(r.GetRanges()); err != nil {
		return err
	}
	for _, g := range r.GetGaps() {
		st.Gaps = append(st.Gaps, plan.Gap{Start: mink.Offset(g.GetStart()), End: mink.Offset(g.GetEnd())})
	}
	if _, again := d.t.s.streams.get(st.ID); again {
		return corrupt("stream %d twice", st.ID)
	}
	d.t.putStream(st)
	return nil
}

func (d *decoder) object(o *clusterpb.Object) (*plan.Object, error) {
	epoch := mink.NodeEpoch(o.GetId().GetEpoch())
	w, found := d.t.s.wals.get(epoch)
	if !found {
		return nil, corrupt("object of node epoch %d, which was never registered", epoch)
	}
	obj, err := object(o, w.ID)
	return &obj, err
}

func (d *decoder) producer(r *clusterpb.Producer) error {
	return insertMap(&d.t.s.producers, r.GetName(), &Producer{
		Name: r.GetName(), Position: r.GetPosition(), Offsets: bucketOffsets(r.GetOffsets()), CommittedMs: r.GetCommittedMs(), Version: r.GetVersion(),
	})
}

func (d *decoder) group(r *clusterpb.Group) error {
	d.t.s.groupSlots.set(slotGroupOf(r.GetName()))
	return insertMap(&d.t.s.groups, r.GetName(), &GroupInfo{
		Name: r.GetName(), ProtocolType: r.GetProtocolType(), Occupied: r.GetOccupied(), EmptiedMs: r.GetEmptiedMs(), MovedIndex: r.GetMovedIndex(),
	})
}

func (d *decoder) groupOffsets(r *clusterpb.GroupOffsets) error {
	g, found := d.t.s.groups.get(r.GetGroup())
	if !found {
		return corrupt("offsets of group %q, which does not exist", r.GetGroup())
	}
	for _, pb := range r.GetOffsets() {
		o := &groupOffset{group: g.Name, GroupOffset: groupOffsetOf(pb)}
		o.CommittedMs = pb.GetCommittedMs()
		if err := insertSet(&d.t.s.groupOffsets, o, nil); err != nil {
			return err
		}
		d.t.s.groupsOf.set(bucketGroup{o.Bucket, g.Name})
	}
	g.Offsets += len(r.GetOffsets()) // the decoder's own until the state is handed out
	return nil
}
