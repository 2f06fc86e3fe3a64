package flight

import (
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// Backend is what the listener needs of the node. Safe for concurrent use.
// Calls that change something return when this node has applied the change.
type Backend interface {
	// View is the metadata that this node has applied; it never blocks.
	View() *cluster.State
	WaitApplied(ctx context.Context, index uint64) error
	Self() (mink.NodeID, mink.NodeEpoch)
	// Lease is this node's epoch while nobody can have been put in its place without
	// its knowing, and its view is no older than a lease; else mink.ErrUnavailable.
	Lease() (mink.NodeEpoch, error)
	// Log is the open log of a bucket that this node leads. Errors:
	// *mink.NotLeaderError, mink.ErrUnavailable while it opens, mink.ErrNotExist.
	Log(mink.BucketRef) (Log, error)
	// KV is the open store of a primary-key bucket that this node leads; it is opened
	// when it is not, which ctx bounds. Errors as of Log.
	KV(context.Context, mink.BucketRef) (KV, error)

	CreateDatabase(ctx context.Context, name string, ifNotExists bool) error
	DropDatabase(ctx context.Context, name string, ifExists, cascade bool) error
	CreateTable(ctx context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error)
	DropTable(ctx context.Context, id mink.TableID, ifExists bool) error
	AlterTable(ctx context.Context, id mink.TableID, changes []schema.Change, expected mink.SchemaID) (*cluster.Table, error)
	CreatePartition(ctx context.Context, table mink.TableID, values []string, ifNotExists bool) (*cluster.Partition, error)
	DropPartition(ctx context.Context, table mink.TableID, partition mink.PartitionID, ifExists bool) error
	// EnsurePartition answers the partition and creates it when it is missing.
	EnsurePartition(ctx context.Context, table mink.TableID, values []string) (*cluster.Partition, error)

	// AllocateWriter answers a writer id that nobody else ever gets.
	AllocateWriter(ctx context.Context) (mink.WriterID, error)
	CommitProducer(ctx context.Context, c *clusterpb.CommitProducerOffsets) (version int64, err error)

	Check(ctx context.Context, deep bool) (api.CheckReport, error)
	// Damaged lists the write-ahead logs that recovery stops at, as last seen by
	// this node when it coordinates; AcceptLoss looks, and gives up what is lost.
	Damaged() []api.DamagedLog
	AcceptLoss(ctx context.Context, r api.AcceptLoss) (api.LossReport, error)
	// Rebalance evens out the buckets, on the node that coordinates the cluster; each is
	// called after every move. ReleaseBucket moves a bucket that this node leads.
	Rebalance(ctx context.Context, dryRun bool, each func(api.MoveProgress)) (api.RebalanceReport, error)
	// RemoveNode forgets a node that has ended, on the node that coordinates.
	RemoveNode(ctx context.Context, r api.RemoveNode) (api.RemovedNode, error)
	ReleaseBucket(ctx context.Context, bucket mink.BucketRef, to mink.NodeID) error
	// Upload makes stream objects of all that is acknowledged on this node.
	Upload(ctx context.Context) error
	// TierTable makes a round of tiering now, on the node that coordinates. It waits until
	// the sink has the buckets up to these offsets; nil: it does not wait.
	TierTable(ctx context.Context, table mink.TableID, sink string, upTo map[mink.BucketRef]mink.Offset) (api.TierReport, error)
	// StalledSinks are tables whose sink has not taken what it should have, as this node sees
	// it when it coordinates.
	StalledSinks() []api.StalledSink
	// MaintainTable keeps a table in shape at a sink now, on the node that coordinates.
	MaintainTable(ctx context.Context, table mink.TableID, ask api.MaintainTable) (api.MaintenanceReport, error)
	Ready() (ok bool, reason string)
	Uptime() time.Duration
	Stats() api.Stats
	// Settings is the configuration in effect, secrets hidden.
	Settings() map[string]string
}

// Log is the part of a log tablet that the listener uses; FromTablet makes one
// of *tablet.Log, where each method is documented.
type Log interface {
	AppendArrow(a tablet.ArrowAppend) (Pending, error)
	Read(ctx context.Context, r tablet.ReadRequest) (tablet.ReadResult, error)
	Rows(b record.Batch, columns []int) (rows arrow.RecordBatch, skip []tablet.Quarantined, err error)
	Message(b record.Batch, columns []int) (arrowipc.Cut, error)
	LeaderEpoch() mink.LeaderEpoch
	LogStart() mink.Offset
	HighWatermark() mink.Offset
	Changed() <-chan struct{}
	OffsetForTimestamp(ctx context.Context, ms int64, kind tablet.TimestampKind) (tablet.TimestampResult, bool, error)
	Stats() tablet.Stats
}

// Pending is an append on its way to the store.
type Pending interface {
	Done() <-chan struct{} // closed once the outcome is known
	Result() (tablet.AppendResult, error)
}

// KV is the part of a KV tablet that the listener uses; FromKV makes one of
// *kv.Tablet, where each method is documented.
type KV interface {
	Put(ctx context.Context, p kv.Put) (Pending, error)
	Lookup(ctx context.Context, keys [][]byte, columns []mink.FieldID) (rows arrow.RecordBatch, found []bool, err error)
	Count(ctx context.Context) (int64, error)
	View() (*kv.View, error)
}

type tabletKV struct{ *kv.Tablet }

func (t tabletKV) Put(ctx context.Context, p kv.Put) (Pending, error) {
	pending, err := t.Tablet.Put(ctx, p)
	if err != nil {
		return nil, err
	}
	return pending, nil
}

// FromKV makes a KV of a KV tablet.
func FromKV(t *kv.Tablet) KV { return tabletKV{t} }

type tabletLog struct{ *tablet.Log }

func (l tabletLog) AppendArrow(a tablet.ArrowAppend) (Pending, error) {
	p, err := l.Log.AppendArrow(a)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// FromTablet makes a Log of a log tablet.
func FromTablet(l *tablet.Log) Log { return tabletLog{l} }

// Metrics receives what happens; all calls are cheap and concurrent.
type Metrics interface {
	// Call is one ended call: its Flight method, its gRPC code, how long it ran.
	Call(method, code string, took time.Duration)
	// Calls adds to the calls that run.
	Calls(delta int)
	// RecordBytes counts bytes of batches.
	RecordBytes(appended, sent int)
}

type noMetrics struct{}

func (noMetrics) Call(string, string, time.Duration) {}
func (noMetrics) Calls(int)                          {}
func (noMetrics) RecordBytes(int, int)               {}
