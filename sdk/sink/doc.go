// Package sink is the contract of a tiering sink: where Mink writes the history
// of tables, out of its own store. Sinks live in the node or out of process as
// plugins; all pass sinktest, the conformance kit.
//
// # The work
//
// A worker of Mink opens a table at the sink and writes it in rounds. A round is
// the rows of some buckets, each bucket from where the last committed round ended:
//
//	Open      the place at the target, made when absent; a handle for one table
//	Recover   which round was committed last, and how far it went
//	BeginRound
//	Write     one bucket at a time, many batches
//	Prepare   everything that can fail is done and kept; nothing is visible yet
//	Commit    the rows become visible and the round becomes the last one, at once
//
// Processes end anywhere between two calls and inside one. A worker that comes
// after learns everything from Recover: what the target says is the truth.
//
// # Exactly once
//
// A sink whose Delivery is ExactlyOnce keeps a Committed for each table, in the
// same place as the rows, and changes it in the same atomic step. Commit is
// accepted only if the last committed round is the round's base and no newer
// fence was seen: two workers that both believe that the table is theirs cannot
// both add the same rows. Committed.Check holds the rules, so that a sink needs
// only a transaction, or any other compare-and-swap, around
//
//	load Committed -> Check -> add the rows -> store Committed.After
//
// An AtLeastOnce sink keeps nothing: its Recover answers a zero Committed, Mink
// goes on from the end that its own metadata has, and rows of a round that was
// cut off come again. Rows are never left out under either guarantee.
//
// # Rows
//
// Batches have the table's columns, in order, as Arrow types:
//
//	BOOLEAN bool            FLOAT float32      CHAR(n), STRING utf8   TIME(0) time32[s]    TIMESTAMP(0) timestamp[s]
//	TINYINT int8            DOUBLE float64     BINARY(n)              TIME(1-3) time32[ms] TIMESTAMP(1-3) timestamp[ms]
//	SMALLINT int16          DECIMAL(p,s)         fixed_size_binary[n] TIME(4-6) time64[us] TIMESTAMP(4-6) timestamp[us]
//	INT int32                 decimal128(p,s)  BYTES binary           TIME(7-9) time64[ns] TIMESTAMP(7-9) timestamp[ns]
//	BIGINT int64            DATE date32        ARRAY list, MAP map, ROW struct; TIMESTAMP_LTZ as TIMESTAMP with zone UTC
//
// The metadata of every Arrow field, nested ones included, has mink.MetaFieldID,
// which stays the same when a column is renamed, and mink.MetaType, the type as
// text. Columns may be null where the Arrow field is nullable.
//
// A log table's rows are appends. A primary-key table's rows are changes, whose
// kinds come beside the batch: an insert, the two halves of an update (the first
// may be absent), a delete. They are in the order in which they happened.
//
// # Errors
//
// The sentinels of this package are the whole set: a sink wraps one of them with
// the table and the round, and says what to do. Workers branch with errors.Is.
// Any other error is taken for ErrUnavailable, from Commit for ErrUnknownOutcome.
// A call that its context ended wraps the context's error; from Commit,
// ErrUnknownOutcome as well, unless nothing was done.
package sink
