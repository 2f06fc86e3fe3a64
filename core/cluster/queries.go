package cluster

import (
	"iter"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	clusterplan "github.com/mink-project/mink/core/cluster/plan"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Index is the log index of the last entry applied; 0 before the first.
func (s *State) Index() uint64 { return s.index }

// TimeMs is the metadata clock at that entry, ms; it never falls.
func (s *State) TimeMs() int64 { return s.timeMs }

// Level is the feature level that every live node has.
func (s *State) Level() uint32 { return s.featureLevel }

// Incarnation is the database's: a restore from a backup brings a new one. 0:
// not set yet.
func (s *State) Incarnation() uint64 { return s.incarnation }

// Lease is the last coordinator lease taken.
func (s *State) Lease() Lease { return s.lease }

// Node finds the newest incarnation of a node.
func (s *State) Node(id mink.NodeID) (Node, bool) {
	n, ok := s.nodes.get(id)
	if !ok {
		return Node{}, false
	}
	return *n, true
}

// Nodes are all registered nodes by id, sealed ones too.
func (s *State) Nodes() iter.Seq[Node] { return values(s.nodes.all()) }

// LiveNodes are the nodes that are not sealed, by id.
func (s *State) LiveNodes() []Node {
	var live []Node
	for _, n := range s.nodes.all() {
		if !n.Sealed {
			live = append(live, *n)
		}
	}
	return live
}

// live answers the node epoch's node when it may still act.
func (s *State) live(epoch mink.NodeEpoch) (*Node, bool) {
	w, ok := s.wals.get(epoch)
	if !ok || w.Sealed {
		return nil, false
	}
	return s.nodes.get(w.ID.Node)
}

// Databases are by name.
func (s *State) Databases() iter.Seq[Database] { return values(s.databases.all()) }

// Database finds a database by name.
func (s *State) Database(name string) (Database, bool) {
	d, ok := s.databases.get(name)
	if !ok {
		return Database{}, false
	}
	return *d, true
}

// Table finds a table by id.
func (s *State) Table(id mink.TableID) (*Table, bool) { return s.tables.get(id) }

// TableByName finds the table that has the name now.
func (s *State) TableByName(database, table string) (*Table, bool) {
	id, ok := s.tableNames.get(tableKey(database, table))
	if !ok {
		return nil, false
	}
	return s.tables.get(id)
}

// TableByUUID finds a table by Kafka's topic id.
func (s *State) TableByUUID(uuid [16]byte) (*Table, bool) {
	id, ok := s.tableUUIDs.get(string(uuid[:]))
	if !ok {
		return nil, false
	}
	return s.tables.get(id)
}

// Tables are a database's tables by name.
func (s *State) Tables(database string) iter.Seq[*Table] {
	prefix := tableKey(database, "")
	names := s.tableNames.from(prefix)
	return func(yield func(*Table) bool) {
		for name, id := range names {
			if len(name) < len(prefix) || name[:len(prefix)] != prefix {
				return
			}
			if t, ok := s.tables.get(id); ok && !yield(t) {
				return
			}
		}
	}
}

// AllTables are the tables of all databases by id.
func (s *State) AllTables() iter.Seq[*Table] {
	return func(yield func(*Table) bool) {
		for _, t := range s.tables.all() {
			if !yield(t) {
				return
			}
		}
	}
}

// Partition finds a partition by id.
func (s *State) Partition(id mink.PartitionID) (*Partition, bool) { return s.partitions.get(id) }

// PartitionByValues finds a table's partition by its values; none for a table
// without partition keys.
func (s *State) PartitionByValues(table mink.TableID, values []string) (*Partition, bool) {
	id, ok := s.partValues.get(partitionKey(table, values))
	if !ok {
		return nil, false
	}
	return s.partitions.get(id)
}

// Partitions are a table's partitions by id, that is, by age.
func (s *State) Partitions(table mink.TableID) iter.Seq[*Partition] {
	return func(yield func(*Partition) bool) {
		for tp := range s.partsOf.from(tablePartition{table: table}) {
			if tp.table != table {
				return
			}
			if p, ok := s.partitions.get(tp.partition); ok && !yield(p) {
				return
			}
		}
	}
}

// StreamOf finds the stream of a bucket.
func (s *State) StreamOf(b mink.BucketRef) (mink.StreamID, bool) {
	p, ok := s.partitions.get(b.Partition)
	if !ok || p.Table != b.Table || b.Index < 0 || int(b.Index) >= len(p.Streams) {
		return 0, false
	}
	return p.Streams[b.Index], true
}

// Stream finds a stream.
func (s *State) Stream(id mink.StreamID) (plan.Stream, bool) {
	st, ok := s.streams.get(id)
	if !ok {
		return plan.Stream{}, false
	}
	return *st, true
}

// Streams are all streams by id.
func (s *State) Streams() iter.Seq[plan.Stream] { return values(s.streams.all()) }

// StreamCount is how many streams there are.
func (s *State) StreamCount() int { return s.streams.len() }

// StreamsLedBy are the streams whose owner is the node epoch, by id; epoch 0:
// those that nobody leads. The cost is that of the streams answered.
func (s *State) StreamsLedBy(epoch mink.NodeEpoch) iter.Seq[plan.Stream] {
	return func(yield func(plan.Stream) bool) {
		for o := range s.byOwner.from(owned{epoch: epoch}) {
			if o.epoch != epoch {
				return
			}
			if st, ok := s.streams.get(o.stream); ok && !yield(*st) {
				return
			}
		}
	}
}

// Orphan reports whether LeadBuckets may give the stream a leader: it was never
// led, was released, or its owner is sealed and recovered.
func (s *State) Orphan(st plan.Stream) bool {
	if st.Owner.NodeEpoch == 0 {
		return true
	}
	w, ok := s.wals.get(st.Owner.NodeEpoch)
	return ok && w.Sealed && w.Recovered
}

// Orphans are the streams that LeadBuckets may give a leader: first those that
// nobody leads, then those of recovered epochs, oldest first.
func (s *State) Orphans() iter.Seq[plan.Stream] {
	return func(yield func(plan.Stream) bool) {
		for st := range s.StreamsLedBy(0) {
			if !yield(st) {
				return
			}
		}
		for epoch, w := range s.wals.all() {
			if !w.Recovered {
				continue
			}
			for st := range s.StreamsLedBy(epoch) {
				if !yield(st) {
					return
				}
			}
		}
	}
}

// Object finds an object that a range or a checkpoint names.
func (s *State) Object(id plan.ObjectID) (plan.Object, bool) {
	o, ok := s.objects.get(&plan.Object{ID: id})
	if !ok {
		return plan.Object{}, false
	}
	return *o, true
}

// Objects are the named objects by id.
func (s *State) Objects() iter.Seq[plan.Object] {
	return func(yield func(plan.Object) bool) {
		for o := range s.objects.all() {
			if !yield(*o) {
				return
			}
		}
	}
}

// ObjectCount is how many objects are named.
func (s *State) ObjectCount() int { return s.objects.len() }

// ObjectRanges are the live ranges that name the object, by stream and offset.
func (s *State) ObjectRanges(id plan.ObjectID) []plan.ObjectRange {
	var out []plan.ObjectRange
	for r := range s.refs.from(ref{object: id}) {
		if r.object != id {
			break
		}
		if st, ok := s.streams.get(r.stream); ok {
			out = append(out, st.References(id)...)
		}
	}
	return out
}

// Destroyed are the objects that nothing names or ever will, by id.
func (s *State) Destroyed() iter.Seq[plan.Destroyed] {
	return func(yield func(plan.Destroyed) bool) {
		for d := range s.destroyed.all() {
			if !yield(*d) {
				return
			}
		}
	}
}

// WAL finds a node epoch's write-ahead log; it is kept for ever.
func (s *State) WAL(epoch mink.NodeEpoch) (plan.WAL, bool) {
	w, ok := s.wals.get(epoch)
	if !ok {
		return plan.WAL{}, false
	}
	return w.WAL, true
}

// WALs are all write-ahead logs, oldest epoch first.
func (s *State) WALs() iter.Seq[plan.WAL] {
	return func(yield func(plan.WAL) bool) {
		for _, w := range s.wals.all() {
			if !yield(w.WAL) {
				return
			}
		}
	}
}

// Registration finds the write-ahead log of the epoch that a node's registration
// with this nonce was admitted as, at any time. The cost is that of all logs.
func (s *State) Registration(node mink.NodeID, nonce uint64) (plan.WAL, bool) {
	for _, w := range s.wals.all() {
		if w.ID.Node == node && w.ID.Nonce == nonce {
			return w.WAL, true
		}
	}
	return plan.WAL{}, false
}

// SealReason is what the seal said; "" while the epoch is not sealed.
func (s *State) SealReason(epoch mink.NodeEpoch) string {
	w, ok := s.wals.get(epoch)
	if !ok {
		return ""
	}
	return w.sealReason
}

// LostSlots are the slots of a WAL whose loss was accepted, by slot: recovery
// skips them.
func (s *State) LostSlots(epoch mink.NodeEpoch) []LostSlot {
	w, ok := s.wals.get(epoch)
	if !ok {
		return nil
	}
	return w.lost
}

// Producer finds a named producer.
func (s *State) Producer(name string) (Producer, bool) {
	p, ok := s.producers.get(name)
	if !ok {
		return Producer{}, false
	}
	return *p, true
}

// Producers are all named producers by name.
func (s *State) Producers() iter.Seq[Producer] { return values(s.producers.all()) }

// Group finds a consumer group that has offsets, or members and had some.
func (s *State) Group(name string) (GroupInfo, bool) {
	g, ok := s.groups.get(name)
	if !ok {
		return GroupInfo{}, false
	}
	return *g, true
}

// GroupCount is how many consumer groups there are, GroupOffsetCount how many
// offsets they all have.
func (s *State) GroupCount() int { return s.groups.len() }

// GroupOffsetCount: see GroupCount.
func (s *State) GroupOffsetCount() int { return s.groupOffsets.len() }

// Groups are the consumer groups by name.
func (s *State) Groups() iter.Seq[GroupInfo] { return values(s.groups.all()) }

// GroupOffsets are a consumer group's committed offsets by bucket.
func (s *State) GroupOffsets(name string) iter.Seq2[mink.BucketRef, GroupOffset] {
	return func(yield func(mink.BucketRef, GroupOffset) bool) {
		for o := range s.groupOffsets.from(&groupOffset{group: name, GroupOffset: firstOffset}) {
			if o.group != name || !yield(o.Bucket, o.GroupOffset) {
				return
			}
		}
	}
}

// GroupOffset finds a consumer group's committed offset of a bucket.
func (s *State) GroupOffset(name string, bucket mink.BucketRef) (GroupOffset, bool) {
	o, ok := s.groupOffsets.get(&groupOffset{group: name, GroupOffset: GroupOffset{Bucket: bucket}})
	if !ok {
		return GroupOffset{}, false
	}
	return o.GroupOffset, true
}

// GroupCoordinator is the node that coordinates a consumer group at this index,
// whether or not the group exists: of the live nodes with a Kafka address, the one
// that plan.GroupWeight prefers for the group's slot. Commands of other node epochs about the group are
// refused. false: no such node.
func (s *State) GroupCoordinator(group string) (mink.NodeID, mink.NodeEpoch, bool) {
	return s.slotCoordinator(clusterplan.SlotOfGroup(group))
}

func (s *State) slotCoordinator(slot clusterplan.GroupSlot) (mink.NodeID, mink.NodeEpoch, bool) {
	var best *Node
	var weight uint64
	for _, n := range s.nodes.all() {
		if n.Sealed || n.KafkaAddress == "" {
			continue
		}
		if w := clusterplan.GroupWeight(slot, n.ID); best == nil || w > weight {
			best, weight = n, w
		}
	}
	if best == nil {
		return 0, 0, false
	}
	return best.ID, best.Epoch, true
}

// Results answers the last batch counter applied for an unsealed node epoch and
// that batch's results, so that a proposer whose commit outcome is unknown
// resolves its waiters. 0, nil: none.
func (s *State) Results(epoch mink.NodeEpoch) (counter uint64, results []*clusterpb.Result) {
	d, ok := s.dedup.get(epoch)
	if !ok {
		return 0, nil
	}
	return d.counter, d.results
}

// TableGone reports that a table was dropped and never comes back. One that this state does
// not know yet is not gone.
func (s *State) TableGone(id mink.TableID) bool {
	_, found := s.tables.get(id)
	return id > 0 && id < s.nextTable && !found
}
