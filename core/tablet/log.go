// Package tablet is one bucket's data: the log tablet turns appends into
// offsets, keeps idempotent writers exact, and answers reads, timestamps and
// epochs over one stream of the engine.
package tablet

import (
	"context"
	"errors"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// Ticket is a pending append of the stream engine (*stream.Ticket).
type Ticket interface {
	Done() <-chan struct{} // closed once the outcome is known
	Err() error            // after Done: nil means durable and visible
}

// Stream is what a tablet needs of its stream. OnStream wraps *stream.Stream.
type Stream interface {
	Append(stream.AppendRequest) (Ticket, error)
	Read(context.Context, stream.ReadRequest) (stream.ReadResult, error)
	Start() mink.Offset
	HighWatermark() mink.Offset
	LogEnd() mink.Offset
	Changed() <-chan struct{}
	Checkpoint(context.Context) (data []byte, at mink.Offset, err error)
	SeedCheckpoint(data []byte, at mink.Offset)
	OffsetForTimestamp(ctx context.Context, ms int64, commit bool) (stream.Frame, bool, error)
	Trim(context.Context, mink.Offset) error
}

// AppendResult is where an append landed. A duplicate that is older than the
// window remembers answers First = Last = -1: accepted once, offset unknown.
type AppendResult struct {
	First, Last     mink.Offset
	CommitTimestamp int64 // ms
	LogAppendTime   bool  // the records' timestamp is CommitTimestamp
	Duplicate       bool
	LogStart        mink.Offset
}

// Pending is an append on its way to the store. Several may be open at once.
type Pending struct{}

// Done is closed once the outcome is known.
func (p *Pending) Done() <-chan struct{} { return nil }

// Result is valid after Done; a nil error means durable and visible.
func (p *Pending) Result() (AppendResult, error) { return AppendResult{}, errors.New("not built yet") }

// KafkaAppend is what a Produce request says about its batch.
type KafkaAppend struct {
	AllowZstd bool // Produce >= 7
}

// ArrowAppend is one Arrow batch. Metadata and Body are the two halves of one
// IPC record-batch message and are not kept. Count 0 with empty halves only
// advances the writer.
type ArrowAppend struct {
	SchemaID    mink.SchemaID
	Metadata    []byte
	Body        []byte
	Count       int32         // rows, must be the message's
	Changes     []byte        // nil: every row is an append
	WriterID    mink.WriterID // mink.NoWriter: none
	WriterEpoch int16
	Sequence    int32 // of this batch; counts batches
}

// ReadRequest asks for whole batches from the one that holds From.
type ReadRequest struct {
	From     mink.Offset
	MaxBytes int  // soft: the first batch is returned whatever its size
	Cached   bool // mink.ErrNotCached instead of touching the store
}

// ReadResult is a run of batches below the high watermark. Next is where to go
// on; it may lie past the last batch (a gap).
type ReadResult struct {
	Batches       []record.Batch
	Next          mink.Offset
	LogStart      mink.Offset
	HighWatermark mink.Offset
}

// TimestampKind chooses the timestamps of a lookup.
type TimestampKind uint8

// The kinds of timestamp lookup.
const (
	ByCommit TimestampKind = iota // first offset committed at or after
	ByRecord                      // first record whose own timestamp is at or after (Kafka)
)

// TimestampResult is a found record.
type TimestampResult struct {
	Offset      mink.Offset
	Timestamp   int64 // ms
	LeaderEpoch mink.LeaderEpoch
}

// Log is a log tablet. Safe for concurrent use.
type Log struct{ cfg Config }

// Config is one log tablet's.
type Config struct {
	Bucket      mink.BucketRef
	LeaderEpoch mink.LeaderEpoch
}

var errNotBuilt = errors.New("not built yet")

// OpenLog replays the writer state up to the log's end.
func OpenLog(ctx context.Context, s Stream, cfg Config) (*Log, error) { return nil, errNotBuilt }

// AppendKafka appends one produced v2 batch; the batch is patched in place and not kept.
// Errors: *record.BatchError, mink.ErrOutOfOrder, mink.ErrFenced (*WriterFencedError), mink.ErrThrottled, mink.ErrClosed.
func (l *Log) AppendKafka(batch []byte, a KafkaAppend) (*Pending, error) { return nil, errNotBuilt }

// AppendArrow appends one Arrow batch.
func (l *Log) AppendArrow(a ArrowAppend) (*Pending, error) { return nil, errNotBuilt }

// Read answers batches from the one that holds r.From.
func (l *Log) Read(ctx context.Context, r ReadRequest) (ReadResult, error) {
	return ReadResult{}, errNotBuilt
}

// LogStart is the first offset that is kept.
func (l *Log) LogStart() mink.Offset { return 0 }

// HighWatermark is the end of what is durable and readable.
func (l *Log) HighWatermark() mink.Offset { return 0 }

// LogEnd is the next offset to be assigned.
func (l *Log) LogEnd() mink.Offset { return 0 }

// LeaderEpoch is the epoch this log was opened under.
func (l *Log) LeaderEpoch() mink.LeaderEpoch { return l.cfg.LeaderEpoch }

// Changed is closed at the next advance of the high watermark, trim or close.
func (l *Log) Changed() <-chan struct{} { return nil }

// OffsetForTimestamp finds the first offset at or after ms; false: none.
func (l *Log) OffsetForTimestamp(ctx context.Context, ms int64, kind TimestampKind) (TimestampResult, bool, error) {
	return TimestampResult{}, false, errNotBuilt
}

// MaxTimestamp finds the record with the largest timestamp; false: the log is empty.
func (l *Log) MaxTimestamp(ctx context.Context) (TimestampResult, bool, error) {
	return TimestampResult{}, false, errNotBuilt
}

// EpochEnd answers Kafka's OffsetForLeaderEpoch: the largest known epoch <=
// epoch and where it ended; (-1, -1) when epoch is newer than this log's.
func (l *Log) EpochEnd(epoch mink.LeaderEpoch) (mink.LeaderEpoch, mink.Offset) { return -1, -1 }

// EpochAt answers the leader epoch under which the offset was appended, -1: unknown.
func (l *Log) EpochAt(at mink.Offset) mink.LeaderEpoch { return -1 }

// Trim raises the log's start.
func (l *Log) Trim(ctx context.Context, to mink.Offset) error { return errNotBuilt }

// RetentionPoint is the offset below which retention by time and size lets go.
func (l *Log) RetentionPoint(ctx context.Context, nowMs int64) (mink.Offset, error) {
	return 0, errNotBuilt
}

// KafkaBatch answers b as a Kafka v2 batch: a kafka payload verbatim, the rows
// of a four-column arrow batch encoded with one record per offset.
func (l *Log) KafkaBatch(b record.Batch) ([]byte, error) { return nil, errNotBuilt }

// Rows decodes b to rows under the schema it was written with. A batch that
// cannot be decoded is quarantined: *QuarantineError.
func (l *Log) Rows(b record.Batch) (arrow.RecordBatch, error) { return nil, errNotBuilt }

// Close refuses further calls; it does not close the stream.
func (l *Log) Close() {}
