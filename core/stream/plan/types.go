// Package plan holds the pure half of the stream engine: what the metadata
// says about streams and objects, the commands that change it, and the
// decisions (what to compact, what may be deleted). No I/O, no clock: the
// cluster state machine applies these types, the engine acts on them.
package plan

import (
	"fmt"
	"strconv"

	"github.com/mink-project/mink/sdk/mink"
)

// WALID names one write-ahead log: one incarnation of one node. Nonce is the
// registration's random number; it is part of every key, so that an epoch that
// is reused after a metadata restore still cannot meet old objects.
type WALID struct {
	Node  mink.NodeID
	Epoch mink.NodeEpoch
	Nonce uint64
}

// String is "<node>/<epoch>-<nonce, 16 hex digits>", as in object keys.
func (w WALID) String() string { return fmt.Sprintf("%d/%d-%016x", w.Node, w.Epoch, w.Nonce) }

// ObjectKind says what an object holds. The numbers are on disk.
type ObjectKind uint8

// The kinds of object.
const (
	KindWAL       ObjectKind = 1 // one bulk of a node's write-ahead log
	KindStreamSet ObjectKind = 2 // many streams (SSO)
	KindStream    ObjectKind = 3 // one stream (SO)
	KindTombstone ObjectKind = 4 // closes a slot of a dead WAL; never named in metadata
)

// ObjectID identifies an object for ever: for KindWAL Seq is the slot (>= 0),
// otherwise a counter of the writing node's epoch (>= 1).
type ObjectID struct {
	Epoch mink.NodeEpoch
	Kind  ObjectKind
	Seq   uint64
}

// IsZero reports "no object".
func (id ObjectID) IsZero() bool { return id == ObjectID{} }

// Object is what metadata knows of one object.
type Object struct {
	ID        ObjectID
	WAL       WALID // of the writer: node, epoch (== ID.Epoch) and nonce
	Size      int64
	IndexPos  int64  // where the index starts; an index is one exact ranged GET
	IndexLen  int64  // bytes
	IndexCRC  uint32 // CRC32C of the index bytes
	Tier      uint8  // 0: fresh from a WAL or an upload; a merge of tier t makes t+1
	CreatedMs int64
}

// Key is the object's key below the store's prefix:
//
//	wal/<node>/<epoch>-<nonce>/<slot, 20 digits>
//	data/<node>/<epoch>-<nonce>/<counter, 20 digits>-<sso|so>
func (o Object) Key() string { return Key(o.WAL, o.ID.Kind, o.ID.Seq) }

// WALPrefix is the prefix of all slots of one WAL.
func WALPrefix(w WALID) string { return "wal/" + w.String() + "/" }

// DataPrefix is the prefix of all objects that one node epoch uploaded.
func DataPrefix(w WALID) string { return "data/" + w.String() + "/" }

// Key builds the key of one object.
func Key(w WALID, kind ObjectKind, seq uint64) string {
	switch kind {
	case KindWAL, KindTombstone:
		return fmt.Sprintf("%s%020d", WALPrefix(w), seq)
	case KindStreamSet:
		return fmt.Sprintf("%s%020d-sso", DataPrefix(w), seq)
	default:
		return fmt.Sprintf("%s%020d-so", DataPrefix(w), seq)
	}
}

// ParseSeq reads the 20 digits that Key writes for a slot or a counter. ok is
// false for anything else.
func ParseSeq(digits string) (seq uint64, ok bool) {
	if len(digits) != 20 {
		return 0, false
	}
	seq, err := strconv.ParseUint(digits, 10, 64)
	return seq, err == nil
}

// Range says that offsets [Start, End) of a stream are found in Object. The
// object may hold more of the stream: readers clip.
type Range struct {
	Object     ObjectID
	Start, End mink.Offset
}

// Gap is a range of offsets that is allowed to be missing (accepted loss, a
// restored database). Readers skip it and report it.
type Gap struct{ Start, End mink.Offset }

// Owner is who may append to a stream and commit its objects.
type Owner struct {
	Node        mink.NodeID
	NodeEpoch   mink.NodeEpoch
	LeaderEpoch mink.LeaderEpoch
}

// Stream is what metadata knows of one stream. Ranges are sorted by Start, do
// not overlap, and together with Gaps cover [Start, End) exactly (the first one
// may begin below Start).
type Stream struct {
	ID         mink.StreamID
	Bucket     mink.BucketRef
	Start, End mink.Offset // trimmed below Start; committed to named objects below End
	Owner      Owner       // Node 0: never led yet
	Ranges     []Range
	Gaps       []Gap
	Checkpoint ObjectID    // the object with the latest checkpoint; zero: none yet
	CheckEnd   mink.Offset // the offset that checkpoint stands at
	Cleaned    Cleaned
}

// Cleaned is what the last rewrite of a stream left: of a compacted topic, the
// latest record of each key. Zero: it was never rewritten.
type Cleaned struct {
	End   mink.Offset // offsets below were rewritten
	Bytes int64       // of the frames that were left
	DueMs int64       // when the last of the tombstones that were left may go; 0: there is none
}

// WAL is what metadata knows of one node epoch's write-ahead log. Slots below
// Trim are not needed for recovery. Once Recovered, the log is [0, End) and
// End holds the tombstone that is never deleted.
type WAL struct {
	ID        WALID
	Trim      uint64
	CommitSeq uint64 // last CommitObjects accepted from this epoch
	Sealed    bool
	Recovered bool
	End       uint64
}

// Destroyed is an object that no range names any more. It is deleted from the
// store after the grace of stream-engine design ("Delete an object only when").
type Destroyed struct {
	Object      Object
	DestroyedAt int64  // ms, metadata clock
	Index       uint64 // metadata index of the destroy: every live node must have applied it
}

// Item places one stream's offsets [Start, End) in an object that the same
// command names. It counts only when LeaderEpoch and the command's node epoch
// are the stream's current owner and Start is its committed end.
type Item struct {
	Stream      mink.StreamID
	LeaderEpoch mink.LeaderEpoch
	Object      ObjectID
	Start, End  mink.Offset
	Checkpoint  bool // the object also holds the stream's checkpoint at End
}

// CommitObjects registers uploaded objects. Idempotent by (WAL epoch, Seq),
// checked before validation. Items of one stream are in offset order. Slots
// below WALTrim hold nothing that is not in a named object.
type CommitObjects struct {
	WAL     WALID
	Seq     uint64 // dense from 1 per node epoch
	Objects []Object
	Items   []Item
	WALTrim uint64
}

// ReplaceObjects registers a compaction: Sources leave the state, Objects take
// over what they held, less what was trimmed. BasedOn is the index of the view
// it was planned on. Items of one stream are in offset order; apply refuses the
// command when a source is gone or the outputs do not cover the sources' live
// ranges.
type ReplaceObjects struct {
	WAL     WALID // of the compacting node
	BasedOn uint64
	Sources []ObjectID
	Objects []Object
	Items   []Item // LeaderEpoch is not checked here
}

// RewriteStream registers a rewrite of what one stream holds in [Start, Upper), by
// its leader: other frames for the same offsets. Items are in offset order.
type RewriteStream struct {
	WAL         WALID // of the owner
	Stream      mink.StreamID
	LeaderEpoch mink.LeaderEpoch
	Start       mink.Offset // the stream's start when it was read; it may have risen
	Upper       mink.Offset // a frame began there, or the stream ended
	Sources     []Range     // Stream.Below(Upper) when it was read
	Objects     []Object
	Items       []Item
	Cleaned     Cleaned // End is Upper
}

// RecoverWAL registers a dead node's log by reference. Accepted once per epoch.
// LeaderEpoch of an item is the one that its blocks carry.
type RecoverWAL struct {
	WAL     WALID // the dead one; must be sealed
	Lease   mink.LeaseEpoch
	End     uint64
	Objects []Object
	Items   []Item
	// From is the first slot that the command speaks of: refused above the trim.
	From uint64
	// Part: only slots below End are taken over, and End becomes the trim; the rest
	// follows. A log can hold more items than one entry of the metadata log takes.
	Part bool
}

// Release hands a stream over from its living owner: the bucket fence.
type Release struct {
	WAL         WALID // of the owner
	Stream      mink.StreamID
	LeaderEpoch mink.LeaderEpoch
	End         mink.Offset // every admitted append is acknowledged below it
	Objects     []Object    // WAL objects that hold [committed end, End)
	Items       []Item
	To          mink.NodeID // wanted next leader; 0: the coordinator chooses
}

// Trim raises a stream's start. Apply clamps it to what may be trimmed.
type Trim struct {
	Stream mink.StreamID
	Start  mink.Offset
	// GiveUpMs: sinks that took nothing since then are not waited for; 0: all are.
	GiveUpMs int64
}

// ObjectRange is one live range of an object, seen from the object.
type ObjectRange struct {
	Stream     mink.StreamID
	Start, End mink.Offset
	Checkpoint bool // the state names this object for the stream's checkpoint
}
