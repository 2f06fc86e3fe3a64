package kafka

import (
	"context"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Backend is what the listener needs of the node. Safe for concurrent use.
type Backend interface {
	// View is the metadata that this node has applied; it never blocks.
	View() *cluster.State
	// Sync returns when View has what the metadata log had at the call.
	// mink.ErrUnavailable: the database does not say.
	Sync(ctx context.Context) error
	// Self is this node's id.
	Self() mink.NodeID
	// Lease is this node's epoch while nobody can have been put in its place without
	// its knowing; else mink.ErrUnavailable.
	Lease() (mink.NodeEpoch, error)
	// Log is the open log of a bucket that this node leads. Errors:
	// *mink.NotLeaderError, mink.ErrUnavailable while it opens, mink.ErrNotExist.
	Log(mink.BucketRef) (Log, error)
	// CreateDatabase succeeds when it exists already.
	CreateDatabase(ctx context.Context, name string) error
	// CreateTable returns when this node has applied the command. mink.ErrExists
	// unless ifNotExists.
	CreateTable(ctx context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error)
	// AlterTable applies changes, all or none, and returns when this node has
	// applied the command. mink.ErrInvalid, mink.ErrUnsupported.
	AlterTable(ctx context.Context, id mink.TableID, changes []schema.Change) (*cluster.Table, error)
	// DropTable returns when this node has applied the command.
	DropTable(ctx context.Context, id mink.TableID) error
	// DeleteRecords trims a bucket that this node leads, durably, and answers its
	// log start. Errors: those of Log; mink.ErrOutOfRange above the high watermark.
	DeleteRecords(ctx context.Context, bucket mink.BucketRef, to mink.Offset) (mink.Offset, error)
	// AllocateWriter answers a writer id that nobody else ever gets.
	AllocateWriter(ctx context.Context) (mink.WriterID, error)

	// What follows is for the consumer groups that View().GroupCoordinator gives to
	// this node; for others it is cluster.ErrNotCoordinator.

	// StartGroupCommit returns when the commit has its place in the order; wait,
	// when this node has applied it. Several share a command.
	StartGroupCommit(ctx context.Context, c cluster.GroupCommit) (wait func(context.Context) error, err error)
	// SettleGroup returns when every commit of the group that has its place has its
	// verdict, and View what was accepted; at once when there is none.
	SettleGroup(ctx context.Context, group string) error
	// MarkGroup says whether the group has members: offsets of a group without them
	// expire. It creates nothing.
	MarkGroup(ctx context.Context, name, protocolType string, occupied bool) error
	// DeleteGroups drops groups with all their offsets, each or not: errs has one
	// verdict per name. mink.ErrNotExist: it has no offsets.
	DeleteGroups(ctx context.Context, names []string) (errs []error, err error)
	// DeleteGroupOffsets drops single offsets.
	DeleteGroupOffsets(ctx context.Context, group string, buckets []mink.BucketRef) error
}

// Log is the part of a log tablet that the listener uses; see *tablet.Log,
// which FromTablet makes one of.
type Log interface {
	AppendKafka(batch []byte, a tablet.KafkaAppend) (Pending, error)
	Read(ctx context.Context, r tablet.ReadRequest) (tablet.ReadResult, error)
	KafkaBatch(b record.Batch) ([]byte, error)
	LogStart() mink.Offset
	HighWatermark() mink.Offset
	LeaderEpoch() mink.LeaderEpoch
	Changed() <-chan struct{}
	OffsetForTimestamp(ctx context.Context, ms int64, kind tablet.TimestampKind) (tablet.TimestampResult, bool, error)
	MaxTimestamp(ctx context.Context) (tablet.TimestampResult, bool, error)
	EpochEnd(epoch mink.LeaderEpoch) (mink.LeaderEpoch, mink.Offset)
	EpochAt(at mink.Offset) mink.LeaderEpoch
	KeptBytes() int64
}

// Pending is an append on its way to the store.
type Pending interface {
	Done() <-chan struct{} // closed once the outcome is known
	Result() (tablet.AppendResult, error)
}

type tabletLog struct{ *tablet.Log }

func (l tabletLog) AppendKafka(batch []byte, a tablet.KafkaAppend) (Pending, error) {
	p, err := l.Log.AppendKafka(batch, a)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// FromTablet makes a Log of a log tablet.
func FromTablet(l *tablet.Log) Log { return tabletLog{l} }

// Metrics receives what happens; all calls are cheap and concurrent.
type Metrics interface {
	// Request is one answered request: bytes received and sent, frame lengths
	// included, from its last byte read to its last byte written.
	Request(api string, in, out int, took time.Duration)
	// Error is one error code in a response, or code -1 for a closed connection.
	Error(api string, code int16)
	// InFlight adds to the requests that await their answer.
	InFlight(delta int)
	// Connections adds to the open connections.
	Connections(delta int)
	// RecordBytes counts record bytes taken by Produce and sent by Fetch.
	RecordBytes(produced, fetched int)
}

type noMetrics struct{}

func (noMetrics) Request(string, int, int, time.Duration) {}
func (noMetrics) Error(string, int16)                     {}
func (noMetrics) InFlight(int)                            {}
func (noMetrics) Connections(int)                         {}
func (noMetrics) RecordBytes(int, int)                    {}
