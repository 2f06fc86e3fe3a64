// Package api is what travels in Arrow Flight's opaque fields between a Mink
// client and a node: tickets, command descriptors, action bodies and
// application metadata, all JSON; rows are Arrow IPC. Any Flight client can
// write these bodies by hand; docs/flight.md publishes their schema, which is
// generated from these types.
//
// Rules: unknown fields are refused with the nearest known name; a field that is
// absent has the documented default; 64-bit numbers are JSON numbers.
package api

import (
	"encoding/json"

	"github.com/mink-project/mink/sdk/mink"
)

// Headers of read-your-writes: every response carries the metadata index that
// the node had applied; a request that carries the other one waits for it.
const (
	HeaderAppliedIndex    = "mink-applied-index"
	HeaderMinAppliedIndex = "mink-min-applied-index"
)

// HeaderForwarded, with any value, asks the node to answer for itself: what it
// cannot answer alone it refuses, NOT_LEADER with the leader's address, where it
// would have asked another node. Nodes set it when they do ask, so that a request
// is sent on once at most; clients that route set it to hear of moves.
const HeaderForwarded = "mink-forwarded"

// Command is the CMD descriptor of GetFlightInfo and DoPut.
//
// GetFlightInfo:  {"table":"db.t","mode":"log","columns":["a"],"from":"earliest"}
// DoPut:          {"table":"db.t"} (table-addressed, as a path is), {"append":{...}} or {"put":{...}} (one bucket)
type Command struct {
	Table string `json:"table,omitempty"` // "database.table"
	// Mode of a read: "log", which a log table has when none is named; "snapshot", which a
	// primary-key table has; of a table in the lake "union", the rows of the lake and those
	// that are only in the log yet, or "lake", the lake alone.
	Mode string `json:"mode,omitempty"`
	// Columns by name; absent: all. Of a put into a primary-key table the targets: the
	// columns that it sets; absent: those that the stream has. Others stay as they are.
	Columns []string `json:"columns,omitempty"`
	// From is where a log read starts: "earliest" (default), "latest", an offset,
	// or a timestamp (RFC 3339, or milliseconds with the suffix "ms").
	From string `json:"from,omitempty"`
	// Partition restricts to one partition, by its values in key order.
	Partition []string `json:"partition,omitempty"`
	// Filter is a condition on the rows, in modes snapshot, union and lake, such as
	// "price > 10 AND day = DATE '2024-01-31'": docs/tables.md has its language.
	Filter string `json:"filter,omitempty"`
	// Meta of a log read adds the columns __change, __offset and __timestamp, for
	// clients that do not look at app_metadata.
	Meta bool `json:"meta,omitempty"`
	// Delete of a put into a primary-key table removes the rows with the keys that are
	// sent; other columns than the key's are passed over. With columns it sets those
	// to null, and removes a row when no column beside the key is left.
	Delete bool `json:"delete,omitempty"`

	Append *Append `json:"append,omitempty"`
	Put    *Put    `json:"put,omitempty"`
}

// Bucket is the one bucket that a put is about; nil: it is about a table.
func (c Command) Bucket() *mink.BucketRef {
	switch {
	case c.Append != nil:
		return &c.Append.Bucket
	case c.Put != nil:
		return &c.Put.Bucket
	}
	return nil
}

// Append addresses one bucket's log for pipelined, idempotent appends: the
// descriptor of a native DoPut into a log table.
type Append struct {
	Bucket      mink.BucketRef `json:"bucket"`
	SchemaID    mink.SchemaID  `json:"schema_id"`              // version that the stream's Arrow schema is
	WriterID    mink.WriterID  `json:"writer_id,omitempty"`    // 0: not idempotent
	WriterEpoch int16          `json:"writer_epoch,omitempty"` // of the writer id
}

// AppendMetadata is the app_metadata of each batch of a native DoPut with append.
type AppendMetadata struct {
	// Sequence numbers the batches of a writer in one bucket from 0; 2^31-1 is
	// followed by 0. Required when the stream has a writer id.
	Sequence int32 `json:"sequence"`
}

// AppendResult is the app_metadata of each PutResult of a native DoPut, in the
// order of the batches.
type AppendResult struct {
	First           mink.Offset `json:"first_offset"` // -1: a put that changed nothing, or a duplicate that is older than the server remembers
	Last            mink.Offset `json:"last_offset"`
	CommitTimestamp int64       `json:"commit_timestamp"` // ms
	Duplicated      bool        `json:"duplicated,omitempty"`
}

// PutResult is the app_metadata of each PutResult of a table-addressed DoPut:
// what became of one batch, or of several when the client is slow to read the
// results: then First and Last of a bucket enclose its rows, and other rows may
// lie between. Such writes are at-least-once.
type PutResult struct {
	Rows    int64          `json:"rows"`
	Batches int64          `json:"batches"`
	Buckets []BucketResult `json:"buckets"`
}

// BucketResult is one bucket's share of a table-addressed batch.
type BucketResult struct {
	Bucket mink.BucketRef `json:"bucket"`
	Rows   int64          `json:"rows"`
	First  mink.Offset    `json:"first_offset"`
	Last   mink.Offset    `json:"last_offset"`
	Error  string         `json:"error,omitempty"` // this bucket's rows were not written, or may have been
	Code   string         `json:"code,omitempty"`  // reason of the error, a Reason constant
}

// Ticket is what DoGet takes; GetFlightInfo hands them out and clients may
// build their own: one of its members.
type Ticket struct {
	Scan     *Scan      `json:"scan,omitempty"`
	Snapshot *Snapshot  `json:"snapshot,omitempty"`
	Range    *KeyRange  `json:"range,omitempty"`
	Prefix   *KeyPrefix `json:"prefix,omitempty"`
	Union    *Union     `json:"union,omitempty"`
	Lake     *Lake      `json:"lake,omitempty"`
}

// Scan reads one bucket's log from From up to Until, or to the high watermark
// as of the request.
type Scan struct {
	Bucket  mink.BucketRef `json:"bucket"`
	From    mink.Offset    `json:"from"`
	Until   *mink.Offset   `json:"until,omitempty"` // exclusive; absent: the high watermark at the request
	Columns []string       `json:"columns,omitempty"`
	// Raw answers stored batches under the schema they were written with where
	// that is the current one's; others are refused instead of remapped.
	Raw bool `json:"raw,omitempty"`
	// Limit ends the scan after so many rows; 0: none.
	Limit int64 `json:"limit,omitempty"`
	// Meta adds the columns __change, __offset and __timestamp.
	Meta bool `json:"meta,omitempty"`

	// Tail only: answer when MinBytes wait or MaxWaitMs passed; follow for ever.
	MinBytes  int64 `json:"min_bytes,omitempty"`
	MaxWaitMs int64 `json:"max_wait_ms,omitempty"`
}

// BatchMetadata is the app_metadata of each batch of a scan or a tail. A batch
// of zero rows may come only to carry it: Next always moves a reader on. Row i is at
// Base + i; Base is past the Next before it where the records of a compacted topic went.
type BatchMetadata struct {
	Base            mink.Offset   `json:"base_offset"`
	Last            mink.Offset   `json:"last_offset"`
	Next            mink.Offset   `json:"next_offset"`
	CommitTimestamp int64         `json:"commit_timestamp"` // ms
	SchemaID        mink.SchemaID `json:"schema_id"`        // version the batch was written under
	HighWatermark   mink.Offset   `json:"high_watermark"`
	// Changes has a byte per row of the batch: 0 +A, 1 +I, 2 -U, 3 +U, 4 -D. Absent: +A,
	// as in a log table.
	Changes []byte `json:"changes,omitempty"`
	// Quarantined is set when [Base, Last] could not be decoded, or holds records
	// that are no rows of the table, and was skipped.
	Quarantined string `json:"quarantined,omitempty"`
}

// ErrorDomain is the domain of google.rpc.ErrorInfo in statuses; the reason is
// one of the Reason constants.
const ErrorDomain = "mink"

// Reasons in google.rpc.ErrorInfo: the error class, beside the gRPC code.
const (
	ReasonNotLeader      = "NOT_LEADER"      // FAILED_PRECONDITION; metadata: leader, address, leader_epoch
	ReasonNotExist       = "NOT_EXIST"       // NOT_FOUND
	ReasonExists         = "EXISTS"          // ALREADY_EXISTS
	ReasonInvalid        = "INVALID"         // INVALID_ARGUMENT
	ReasonTooLarge       = "TOO_LARGE"       // INVALID_ARGUMENT
	ReasonUnavailable    = "UNAVAILABLE"     // UNAVAILABLE: retry
	ReasonThrottled      = "THROTTLED"       // RESOURCE_EXHAUSTED: retry after a pause
	ReasonConflict       = "CONFLICT"        // ABORTED: read again, then retry
	ReasonFenced         = "FENCED"          // FAILED_PRECONDITION: this writer was replaced
	ReasonUnknownOutcome = "UNKNOWN_OUTCOME" // UNKNOWN: may or may not have happened
	ReasonCorrupt        = "CORRUPT"         // DATA_LOSS
	ReasonOutOfRange     = "OUT_OF_RANGE"    // OUT_OF_RANGE; metadata: start, end
	ReasonOutOfOrder     = "OUT_OF_ORDER"    // FAILED_PRECONDITION
	ReasonUnsupported    = "UNSUPPORTED"     // UNIMPLEMENTED
)

// JSON marshals a body; the types of this package cannot fail to.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
