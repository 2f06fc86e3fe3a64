package cluster

import (
	"cmp"
	"encoding/binary"
	"iter"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// FeatureLevel is the newest feature level that this binary understands. The
// level in the state is the lowest one of all live nodes, and only rises; a
// command kind is accepted from the level that brought it.
const FeatureLevel uint32 = 1

// Node is the newest incarnation of a node.
type Node struct {
	ID            mink.NodeID
	Epoch         mink.NodeEpoch
	Nonce         uint64
	FlightAddress string // advertised
	KafkaAddress  string
	HTTPAddress   string
	Rack          string
	FeatureLevel  uint32
	Version       string
	RegisteredMs  int64
	Sealed        bool
	SealedMs      int64 // when it was sealed; 0 while it is not
	LeaseTTLMs    int64 // it answers reads for so long after its last heartbeat; 0: unknown
}

// WAL is the node epoch's write-ahead log.
func (n Node) WAL() plan.WALID { return plan.WALID{Node: n.ID, Epoch: n.Epoch, Nonce: n.Nonce} }

// Lease is the coordinator lease as the log knows it; its expiry is the
// database's business. Epoch 0: nobody has held it yet.
type Lease struct {
	Node      mink.NodeID
	NodeEpoch mink.NodeEpoch
	Epoch     mink.LeaseEpoch
}

// Database is a namespace of tables.
type Database struct {
	ID        int64
	Name      string
	CreatedMs int64
}

// Table is one incarnation of a table. Treat everything in it as immutable.
type Table struct {
	ID         mink.TableID
	UUID       [16]byte // Kafka's topic id
	Descriptor *schema.Descriptor
	Schemas    []*schema.Schema // by SchemaID - 1
	CreatedMs  int64
	ModifiedMs int64

	// The bytes as first made: a snapshot repeats them, whatever a later binary
	// would encode.
	descriptorJSON []byte
	schemaJSON     [][]byte
}

// Partition is one partition of a table with the streams of its buckets.
type Partition struct {
	ID        mink.PartitionID
	Table     mink.TableID
	Values    []string        // canonical, one per partition key
	Streams   []mink.StreamID // by bucket index
	Closed    bool            // leaders refuse appends
	Automatic bool            // made by auto_partition, dropped by it too
	CreatedMs int64
}

// BucketOffset is a producer's statement about one bucket.
type BucketOffset struct {
	Bucket mink.BucketRef
	Offset mink.Offset // end: after the last record that Position covers
}

// Producer is a named producer's position in its own source.
type Producer struct {
	Name        string
	Position    []byte
	Offsets     []BucketOffset
	CommittedMs int64
	Version     int64 // never reused, not even by a producer of the same name
}

// LostSlot is a WAL slot whose loss an operator accepted before recovery. Slot
// NoSlot stands for none: its ranges were given out, as the object store shows,
// and nothing that the metadata know of holds them.
type LostSlot struct {
	Slot uint64
	Gaps []LostRange
}

// LostRange is what a lost slot held of one stream, as far as it is known.
type LostRange struct {
	Stream mink.StreamID
	plan.Gap
}

type walEntry struct {
	plan.WAL
	sealReason string
	lost       []LostSlot // by slot
	used       counters   // of its uploads; nil once sealed, when no more can come
}

type dedupEntry struct {
	counter uint64
	results []*clusterpb.Result
}

// ref counts how often a stream names an object: by its ranges and as its
// checkpoint.
type ref struct {
	object plan.ObjectID
	stream mink.StreamID
	count  int32
}

type owned struct {
	epoch  mink.NodeEpoch // 0: nobody leads the stream
	stream mink.StreamID
}

type tablePartition struct {
	table     mink.TableID
	partition mink.PartitionID
}

// header is the scalar part of a State.
type header struct {
	index        uint64
	timeMs       int64
	featureLevel uint32
	incarnation  uint64
	timeLine     uint64
	sinkFence    int64 // fences of rounds are above it
	lease        Lease

	nextDatabase        int64
	nextTable           mink.TableID
	nextPartition       mink.PartitionID
	nextStream          mink.StreamID
	nextWriter          mink.WriterID
	nextProducerVersion int64
	nextStart           int32
}

// State is the metadata at one index of the log. It is immutable: all methods
// may be called from any number of goroutines. Values that it returns share
// memory with it and must not be changed.
//
// Each object that the state knows is in exactly one of three places, which is
// its owner:
//
//	objects    a range or a checkpoint names it
//	parked     a WAL slot that nothing names any more but that its WAL may still
//	           need for recovery: the WAL's, hidden from the object GC
//	destroyed  nothing names it or ever will: the object GC's
type State struct {
	header

	nodes      pmap[mink.NodeID, *Node]
	wals       pmap[mink.NodeEpoch, *walEntry]
	databases  pmap[string, *Database]
	tables     pmap[mink.TableID, *Table]
	tableNames pmap[string, mink.TableID] // "database\x00table"
	tableUUIDs pmap[string, mink.TableID] // 16 bytes
	partitions pmap[mink.PartitionID, *Partition]
	partsOf    pset[tablePartition]
	partValues pmap[string, mink.PartitionID] // partitionKey
	streams    pmap[mink.StreamID, *plan.Stream]
	byOwner    pset[owned]
	objects    pset[*plan.Object]
	parked     pset[*plan.Object]
	destroyed  pset[*plan.Destroyed]
	refs       pset[ref]
	producers  pmap[string, *Producer]

	groups       pmap[string, *GroupInfo]
	groupSlots   pset[slotGroup] // the same, by slot
	groupOffsets pset[*groupOffset]
	groupsOf     pset[bucketGroup] // the same, seen from the bucket

	kv            pmap[mink.StreamID, *kvplan.Bucket] // of streams with a snapshot
	kvDestroyed   pset[*kvplan.Destroyed]
	autoIncrement pmap[mink.TableID, int64] // the next number, once one was given out

	tierings     pset[*Tiering]
	tiered       pset[*tieredBucket] // of tables with a Tiering
	droppedSinks pset[*DroppedSink]
	former       pset[*formerPartition]

	dedup pmap[mink.NodeEpoch, *dedupEntry]

	faults faults
}

// faults take one protection out each, so that tests can show that they would
// notice. Always zero outside of this package's tests.
type faults struct {
	noDedup      bool // a repeated batch is applied again
	noSealCheck  bool // commands of a sealed epoch are applied
	recoverTwice bool // a second RecoverWAL is applied
	noParking    bool // a slot that nothing names is the object GC's at once
	noGroupFence bool // any node commits for any group
	noLeadFence  bool // a former leader rewrites a stream
	noSources    bool // a rewrite of ranges that are not there any more is applied
	noMoveCheck  bool // a coordinator's memory of a group outlives its coordination
	noKVFence    bool // a former leader commits a KV snapshot or leases numbers
	noKVReuse    bool // a KV snapshot may name files that were given up
	pruneNamed   bool // pruning a KV snapshot destroys files that a retained one names
	noKVEnd      bool // a KV snapshot may be ahead of the stream's committed end
	noKVBound    bool // a primary-key bucket is trimmed like a log table's
	removeEarly  bool // a node that is alive is removed
	noLostEnds   bool // offsets that a lost time line gave out are given out again
	fenceBack    bool // sinks' fences of a lost time line are given out again
	keepStopped  bool // a sink that has what the table cannot follow takes rounds
	noRoundLease bool // anybody records a round
	noBaseRound  bool // a round is recorded whatever it follows
	roundTwice   bool // a round that is recorded is recorded again
	endsBack     bool // a round may have less than the one before
	endsAhead    bool // a round may have more than the log
	noTierBound  bool // trims do not wait for sinks
	noReadGrace  bool // trims wait for the last round only
	dropEarly    bool // a partition is dropped before sinks have it
	noGaps       bool // what sinks are given up lack is not noted
	forgetFormer bool // a partition that is made again knows nothing of the one before
	keepTiered   bool // a dropped partition's ends at a sink stay
}

// NewState is the state before the first log entry.
func NewState() *State {
	return &State{
		header: header{
			featureLevel: 1,
			nextDatabase: 1, nextTable: 1, nextPartition: 1, nextStream: 1, nextWriter: 1,
			nextProducerVersion: 1,
		},
		nodes:      newPmap[mink.NodeID, *Node](),
		wals:       newPmap[mink.NodeEpoch, *walEntry](),
		databases:  newPmap[string, *Database](),
		tables:     newPmap[mink.TableID, *Table](),
		tableNames: newPmap[string, mink.TableID](),
		tableUUIDs: newPmap[string, mink.TableID](),
		partitions: newPmap[mink.PartitionID, *Partition](),
		partsOf:    newPset(lessPart),
		partValues: newPmap[string, mink.PartitionID](),
		streams:    newPmap[mink.StreamID, *plan.Stream](),
		byOwner:    newPset(lessOwned),
		objects:    newPset(func(a, b *plan.Object) bool { return lessID(a.ID, b.ID) }),
		parked:     newPset(func(a, b *plan.Object) bool { return lessID(a.ID, b.ID) }),
		destroyed:  newPset(func(a, b *plan.Destroyed) bool { return lessID(a.Object.ID, b.Object.ID) }),
		refs:       newPset(lessRef),
		producers:  newPmap[string, *Producer](),

		groups:       newPmap[string, *GroupInfo](),
		groupSlots:   newPset(lessSlotGroup),
		groupOffsets: newPset(lessGroupOffset),
		groupsOf:     newPset(lessBucketGroup),

		kv:            newPmap[mink.StreamID, *kvplan.Bucket](),
		kvDestroyed:   newPset(func(a, b *kvplan.Destroyed) bool { return a.Compare(b.BucketFile) < 0 }),
		autoIncrement: newPmap[mink.TableID, int64](),

		tierings:     newPset(lessTiering),
		tiered:       newPset(lessTiered),
		droppedSinks: newPset(lessDroppedSink),
		former:       newPset(lessFormer),

		dedup: newPmap[mink.NodeEpoch, *dedupEntry](),
	}
}

// freeze ends a batch: the next writer copies before it writes.
func (s *State) freeze() {
	s.nodes.fresh, s.wals.fresh, s.databases.fresh = false, false, false
	s.tables.fresh, s.tableNames.fresh, s.tableUUIDs.fresh = false, false, false
	s.partitions.fresh, s.partsOf.fresh, s.partValues.fresh = false, false, false
	s.streams.fresh, s.byOwner.fresh = false, false
	s.objects.fresh, s.parked.fresh, s.destroyed.fresh, s.refs.fresh = false, false, false, false
	s.producers.fresh, s.dedup.fresh = false, false
	s.groups.fresh, s.groupSlots.fresh, s.groupOffsets.fresh, s.groupsOf.fresh = false, false, false, false
	s.kv.fresh, s.kvDestroyed.fresh, s.autoIncrement.fresh = false, false, false
	s.tierings.fresh, s.tiered.fresh, s.droppedSinks.fresh, s.former.fresh = false, false, false, false
}

func compareID(a, b plan.ObjectID) int {
	if c := cmp.Compare(a.Epoch, b.Epoch); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return cmp.Compare(a.Seq, b.Seq)
}

func lessID(a, b plan.ObjectID) bool { return compareID(a, b) < 0 }

func lessRef(a, b ref) bool {
	if c := compareID(a.object, b.object); c != 0 {
		return c < 0
	}
	return a.stream < b.stream
}

func lessOwned(a, b owned) bool {
	if a.epoch != b.epoch {
		return a.epoch < b.epoch
	}
	return a.stream < b.stream
}

func lessPart(a, b tablePartition) bool {
	if a.table != b.table {
		return a.table < b.table
	}
	return a.partition < b.partition
}

func tableKey(database, table string) string { return database + "\x00" + table }

// partitionKey is unique per (table, values): each value goes behind its length.
func partitionKey(table mink.TableID, values []string) string {
	key := binary.BigEndian.AppendUint64(nil, uint64(table))
	for _, v := range values {
		key = binary.BigEndian.AppendUint32(key, uint32(len(v)))
		key = append(key, v...)
	}
	return string(key)
}

// values turns a map's iterator into one over dereferenced values.
func values[K, V any](seq iter.Seq2[K, *V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range seq {
			if !yield(*v) {
				return
			}
		}
	}
}
