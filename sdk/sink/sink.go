package sink

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
)

// Limits of one call.
const (
	// BatchBytesMax bounds a batch of Write, as Arrow IPC.
	BatchBytesMax = 64 << 20
	// BatchRowsMax bounds its rows.
	BatchRowsMax = 1 << 20
	// StagedBytesMax bounds what Prepare answers.
	StagedBytesMax = 1 << 20
	// RangesMax bounds the buckets of one table.
	RangesMax = 1 << 16
	// RoundIDLengthMax bounds a RoundID, in bytes.
	RoundIDLengthMax = 64
	// SnapshotLengthMax bounds what Commit answers, in bytes.
	SnapshotLengthMax = 1 << 10
)

// Delivery is a guarantee of each row.
type Delivery uint8

// The guarantees. The numbers are in the protocol; 0 is none.
const (
	AtLeastOnce Delivery = 1
	ExactlyOnce Delivery = 2
)

// Changes is what a sink makes of the changes of a primary-key table.
type Changes uint8

// The ways. The numbers are in the protocol; 0 is none.
const (
	ChangesRefused Changes = 1 // log tables only; Open answers ErrUnimplemented for others
	ChangesKept    Changes = 2 // the target shows every change, with its kind
	ChangesApplied Changes = 3 // the target shows the latest row of each key
)

// Description is what a sink is and can do, as data.
type Description struct {
	Name     string // of the kind of sink, "jsonl"
	Version  string // of its code, for people
	Delivery Delivery
	Changes  Changes
	// StagedSurvives: what Prepare kept is there after the process ended, for any
	// process with the same configuration. Without it, Commit in a later process
	// answers ErrNotExist.
	StagedSurvives bool
	// SchemaChanges: the sink follows them. Without it, SchemaChange, and Open
	// with a schema that changed, answer ErrUnimplemented, and the table stops.
	SchemaChanges bool
	// ReadBack: the sink is a Reader.
	ReadBack bool
}

// Sink is safe for concurrent use: several tables are written at once. Several
// processes may work on one target, also on one table.
type Sink interface {
	// Describe answers the same for the life of the sink. It does not block.
	Describe() Description

	// Open makes the place for a table at the target when it is absent, lets it
	// follow the schema, and answers a handle. It changes nothing of a table that
	// is there already, but for its schema. Open of the same table again, here or
	// in another process, is allowed at any time, also while the other handle has
	// an open round: neither disturbs the other.
	//
	// ErrAlreadyExists: the place is taken by another table, or by something that
	// is not Mink's. A table that was dropped and created again has another id:
	// the rows and rounds of the old one are never taken for its own.
	// ErrUnimplemented, ErrInvalid: a column's type, or the primary key, is more
	// than the sink can keep exactly; the error names the column.
	// ErrConflict: the spec's schema is older than the target's.
	Open(ctx context.Context, req OpenRequest) (Table, error)

	// Close frees what the sink holds. Handles are closed before. Closing twice is
	// allowed.
	Close() error
}

// OpenRequest names the table.
type OpenRequest struct {
	Table TableSpec
	// Drop: of the handle only Drop and Close will follow. A sink that knows it makes
	// no place and does not look at the schema, so that a table whose schema it cannot
	// follow can be removed; one that does not opens as ever.
	Drop bool
}

// TableSpec is a table as a sink needs to know it.
type TableSpec struct {
	ID            mink.TableID // never used for another table
	Database      string       // both names: 1..200 of letters, digits, _ - .
	Name          string
	Schema        Schema
	PrimaryKey    []string          // column names, not null; none: a log table
	PartitionKeys []string          // column names, not null
	BucketKeys    []string          // column names
	BucketCount   int32             // in each partition, >= 1
	Options       map[string]string // the user's, for this table at this sink
}

// Schema is one version of a table's columns.
type Schema struct {
	ID    mink.SchemaID // from 1, higher for each change
	Arrow *arrow.Schema // see the package comment; field ids in the metadata
}

// RoundID names one attempt at a round: 1 to RoundIDLengthMax lower-case letters,
// digits and '-', never used for another attempt, not even of another table. "" is
// no round.
type RoundID string

// Table is a handle: one worker's hold on one table. A worker makes one call at
// a time. A handle has at most one open round, from BeginRound to Prepare.
//
// After any error the worker closes the handle, opens the table anew and goes on
// with Recover, but for Commit, whose errors say more.
type Table interface {
	// Recover answers the last committed round; all zero before the first one, and
	// always from a sink that is AtLeastOnce and keeps none. What it answers is
	// durable. The sink may take the fence as seen: a later Commit with a lower
	// one is then ErrFenced.
	Recover(ctx context.Context, req RecoverRequest) (RecoverResponse, error)

	// BeginRound opens a round. The worker says with it that it gave up every
	// earlier round of its fence and all rounds of lower fences: the sink may
	// remove what is staged of them, but of no higher fence. A round that is open
	// on this handle is given up as well.
	// ErrFenced, ErrConflict: the sink can see already that Commit would answer so.
	BeginRound(ctx context.Context, req BeginRoundRequest) (BeginRoundResponse, error)

	// Write adds rows to the open round; they are not visible. The batch is the
	// caller's: Retain it, or copy, to keep it after the return. A bucket's ranges
	// follow one another without a gap within the round, and buckets do not
	// alternate. A batch may have no rows: the offsets count all the same.
	// ErrInvalid: no round is open. ErrNotExist: BeginRound of a higher fence
	// removed it.
	Write(ctx context.Context, req WriteRequest) (WriteResponse, error)

	// Prepare ends the open round and keeps its rows for Commit, as durable as
	// StagedSurvives says. A round may have no rows. It answers all that Commit
	// and Abort need: at most StagedBytesMax, meaningful to the sink only. Errors as
	// Write's.
	Prepare(ctx context.Context, req PrepareRequest) (PrepareResponse, error)

	// Commit makes the rows visible and the round the last committed one, both or
	// neither, whatever ends when. It is durable when it returned nil. The handle
	// need not be the one that prepared.
	//
	// A sink that is ExactlyOnce answers, in this order (Committed.Check):
	// ErrFenced when a higher fence was committed; success, with the same snapshot
	// and no other effect, when the round is the last committed one already;
	// ErrConflict when the last committed round is not the base, or a bucket's
	// start is not its committed end. A bucket that was never committed may start
	// anywhere. A sink that is AtLeastOnce may accept all.
	// ErrNotExist: the staged state is gone.
	// ErrUnknownOutcome: it may have happened; the worker asks Recover, then
	// commits the same round again or gives it up.
	// After any other error nothing was changed and the staged state is kept.
	Commit(ctx context.Context, req CommitRequest) (CommitResponse, error)

	// Abort removes staged state. What is gone counts as removed; a committed
	// round, the last or an older one, is left as it is.
	Abort(ctx context.Context, req AbortRequest) (AbortResponse, error)

	// SchemaChange lets the target follow a newer schema; no round is open. Later
	// batches have it, rows that are there keep their values: a column with a new
	// field id is null in them, a renamed one has its new name, a widened type its
	// old values, a dropped one may stay or go. A schema that the target has
	// already is no change. Rounds that were prepared before can still be
	// committed, or answer ErrNotExist.
	SchemaChange(ctx context.Context, req SchemaChangeRequest) (SchemaChangeResponse, error)

	// Drop removes the table from the target: rows, staged state and the last
	// committed round. Of the handle only Close may follow. What is gone counts
	// as removed.
	Drop(ctx context.Context, req DropRequest) (DropResponse, error)

	// Close gives the handle up, with its open round. What is prepared stays.
	Close() error
}

// RecoverRequest says who asks.
type RecoverRequest struct{ Fence mink.LeaseEpoch }

// RecoverResponse is the last committed round.
type RecoverResponse struct{ Committed Committed }

// BeginRoundRequest names the round.
type BeginRoundRequest struct {
	Round RoundID
	Base  RoundID         // the last committed round that the worker saw; "": none
	Fence mink.LeaseEpoch // >= 1; the later of two workers has the higher one
}

// BeginRoundResponse has no fields yet.
type BeginRoundResponse struct{}

// WriteRequest is rows of one bucket.
type WriteRequest struct {
	Bucket          mink.BucketRef
	PartitionValues []string // as text, one for each of PartitionKeys; the rows have them too
	Batch           arrow.RecordBatch
	// Changes has the kind of each row of a primary-key table. nil for a log
	// table: every row is an append.
	Changes []mink.Change
	// Start and End are the offsets that the rows take: row i has offset
	// Start + i; those after the last row have none to show.
	Start, End mink.Offset
	// Snapshot: the rows are what a primary-key bucket held at End, all inserts.
	// Their number has nothing to do with the offsets, and they have none.
	Snapshot bool
}

// WriteResponse has no fields yet.
type WriteResponse struct{}

// PrepareRequest has no fields yet.
type PrepareRequest struct{}

// PrepareResponse is the sink's own note of what is staged.
type PrepareResponse struct{ Staged []byte }

// CommitRequest says which round, on what, and how far it goes.
type CommitRequest struct {
	Staged []byte
	Round  RoundID
	Base   RoundID
	Fence  mink.LeaseEpoch
	// Ranges has every bucket of the round once, in any order, also those whose
	// offsets had no rows. Buckets that are not named keep their committed end.
	Ranges []Range
}

// Range is the offsets of one bucket that a round covers, Start <= End.
type Range struct {
	Bucket mink.BucketRef `json:"bucket"`
	Start  mink.Offset    `json:"start"`
	End    mink.Offset    `json:"end"`
}

// CommitResponse names the target's state with the round, for people and for
// reads of that state: a snapshot id, a transaction id. May be "".
type CommitResponse struct{ Snapshot string }

// AbortRequest says which staged round.
type AbortRequest struct {
	Round  RoundID
	Staged []byte
}

// AbortResponse has no fields yet.
type AbortResponse struct{}

// SchemaChangeRequest is the schema to follow.
type SchemaChangeRequest struct{ Schema Schema }

// SchemaChangeResponse has no fields yet.
type SchemaChangeResponse struct{}

// DropRequest has no fields yet.
type DropRequest struct{}

// DropResponse has no fields yet.
type DropResponse struct{}

// Reader is a companion of Sink: it reads back what a reader of the target sees.
// The conformance kit checks rows with it, Mink itself never calls it. Get it with
// ReaderOf.
type Reader interface {
	// Read calls yield with batches until it answers false. They are the sink's.
	// Columns are found by the field ids in their metadata: batches may have older
	// schemas. Under ChangesKept, changes has the kind of each row of a
	// primary-key table, otherwise it is nil. A table that is not there has no
	// rows.
	Read(ctx context.Context, req ReadRequest, yield func(batch arrow.RecordBatch, changes []mink.Change) bool) error
}

// ReadRequest names the table.
type ReadRequest struct{ Table TableSpec }

// ReaderOf gives the sink's reading side, if it has one.
func ReaderOf(s Sink) (Reader, bool) {
	r, ok := s.(Reader)
	return r, ok && s.Describe().ReadBack
}
