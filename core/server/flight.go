package server

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

func openFlight(ctx context.Context, cfg Config, p *parts, metrics flight.Metrics, logger *slog.Logger) (*flight.Server, error) {
	c := flight.Default()
	c.Listen, c.ClusterID, c.Version = cfg.Listen, cfg.ClusterID, Version
	c.LeaseTTL = time.Duration(cfg.LeaseTTL)
	c.MessageBytesMax = int(cfg.MessageBytesMax)
	c.Inflation = p.inflation
	c.UnionKeyBytes = int64(cfg.UnionKeyMemory)
	opener := sync.OnceValue(func() *scan.Opener { // the warehouse is opened after the listener, before the first call
		if p.warehouse == nil {
			return nil
		}
		return scan.NewOpener(p.warehouse.Load)
	})
	s, err := flight.New(c, flightBackend{p}, metrics, logger, flight.WithPeers(p.peers), flight.WithLake(opener))
	if err != nil {
		return nil, err
	}
	return s, s.Open(ctx)
}

// flightBackend is the node behind the Flight listener, which is opened before the
// node is built, and runs after it.
type flightBackend struct{ parts *parts }

func (b flightBackend) node() *node.Node { return b.parts.node }

var _ flight.Backend = flightBackend{}

func (b flightBackend) View() *cluster.State { return b.node().View() }

func (b flightBackend) WaitApplied(ctx context.Context, index uint64) error {
	return b.node().WaitApplied(ctx, index)
}

func (b flightBackend) Self() (mink.NodeID, mink.NodeEpoch) { return b.node().Self() }

func (b flightBackend) Lease() (mink.NodeEpoch, error) { return b.node().Lease() }

func (b flightBackend) Log(ref mink.BucketRef) (flight.Log, error) {
	l, err := b.node().Log(ref)
	if err != nil {
		return nil, err
	}
	return flight.FromTablet(l), nil
}

// KV implements flight.Backend.
func (b flightBackend) KV(ctx context.Context, ref mink.BucketRef) (flight.KV, error) {
	t, err := b.node().KV(ctx, ref)
	if err != nil {
		return nil, err
	}
	return flight.FromKV(t), nil
}

func (b flightBackend) CreateDatabase(ctx context.Context, name string, ifNotExists bool) error {
	return b.node().CreateDatabase(ctx, name, ifNotExists)
}

func (b flightBackend) DropDatabase(ctx context.Context, name string, ifExists, cascade bool) error {
	return b.node().DropDatabase(ctx, name, ifExists, cascade)
}

func (b flightBackend) CreateTable(ctx context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error) {
	return b.node().CreateTable(ctx, d, ifNotExists)
}

func (b flightBackend) DropTable(ctx context.Context, id mink.TableID, ifExists bool) error {
	return b.node().DropTable(ctx, id, ifExists)
}

func (b flightBackend) AlterTable(ctx context.Context, id mink.TableID, changes []schema.Change, expected mink.SchemaID) (*cluster.Table, error) {
	return b.node().AlterTable(ctx, id, changes, expected)
}

func (b flightBackend) CreatePartition(ctx context.Context, table mink.TableID, values []string, ifNotExists bool) (*cluster.Partition, error) {
	return b.node().CreatePartition(ctx, table, values, ifNotExists)
}

func (b flightBackend) DropPartition(ctx context.Context, table mink.TableID, partition mink.PartitionID, ifExists bool) error {
	return b.node().DropPartition(ctx, table, partition, ifExists)
}

func (b flightBackend) EnsurePartition(ctx context.Context, table mink.TableID, values []string) (*cluster.Partition, error) {
	return b.node().EnsurePartition(ctx, table, values)
}

func (b flightBackend) AllocateWriter(ctx context.Context) (mink.WriterID, error) {
	return b.node().AllocateWriter(ctx)
}

func (b flightBackend) CommitProducer(ctx context.Context, c *clusterpb.CommitProducerOffsets) (int64, error) {
	return b.node().CommitProducer(ctx, c)
}

func (b flightBackend) Check(ctx context.Context, deep bool) (api.CheckReport, error) {
	r, err := b.node().Check(ctx, deep)
	if err != nil {
		return r, err
	}
	err = b.parts.checkLake(ctx, deep, &r)
	return r, err
}

func (b flightBackend) Damaged() []api.DamagedLog { return b.parts.coordinator.Damaged() }

func (b flightBackend) AcceptLoss(ctx context.Context, r api.AcceptLoss) (api.LossReport, error) {
	return b.parts.coordinator.AcceptLoss(ctx, r)
}

func (b flightBackend) Rebalance(ctx context.Context, dryRun bool, each func(api.MoveProgress)) (api.RebalanceReport, error) {
	return b.parts.coordinator.Rebalance(ctx, dryRun, each)
}

func (b flightBackend) RemoveNode(ctx context.Context, r api.RemoveNode) (api.RemovedNode, error) {
	return b.parts.coordinator.RemoveNode(ctx, r)
}

func (b flightBackend) Upload(ctx context.Context) error { return b.node().Upload(ctx) }

func (b flightBackend) ReleaseBucket(ctx context.Context, ref mink.BucketRef, to mink.NodeID) error {
	return b.node().ReleaseBucket(ctx, ref, to)
}

func (b flightBackend) Ready() (bool, string) { return b.parts.readiness() }

func (b flightBackend) Uptime() time.Duration { return b.node().Uptime() }

func (b flightBackend) Settings() map[string]string { return b.parts.settings() }

// Stats gathers the node's own figures, its buckets', its loops' and the metrics
// that have no labels.
func (b flightBackend) Stats() api.Stats {
	s, view := b.node().Stats(), b.node().View()
	out := api.Stats{Node: s.Node, Epoch: s.Epoch, AppliedIndex: s.Applied, Buckets: []api.BucketStats{}, Loops: []api.Loop{}, Figures: map[string]float64{}}
	for _, e := range s.Buckets {
		row := api.BucketStats{
			Bucket: e.Bucket, LeaderEpoch: e.LeaderEpoch, LogStart: e.LogStart, HighWatermark: e.HighWatermark, LogEnd: e.LogEnd, Error: e.Error,
			CleanedEnd: e.Clean.CleanedEnd, Removed: e.Clean.Removed, CleanError: e.Clean.LastError,
		}
		if t, ok := view.Table(e.Bucket.Table); ok {
			row.Table = t.Descriptor.Name()
		}
		if l, err := b.node().Log(e.Bucket); err == nil {
			st := l.Stats()
			row.Quarantined, row.Refused = st.Quarantined, st.Refused
		}
		row.KVSnapshot = kvSnapshotOf(e.KVSnapshot)
		if h := e.HeldTrim; h != nil {
			row.HeldTrim = &api.HeldTrim{Wanted: h.Want, At: h.At, By: h.By, Why: h.Why}
		}
		out.Buckets = append(out.Buckets, row)
	}
	loops := b.parts.loopsOf(s)
	for _, l := range loops {
		out.Loops = append(out.Loops, api.Loop{
			Name: l.Name, IntervalMs: l.Interval.Milliseconds(), LastMs: millis(l.LastEnd), NextMs: millis(l.Next),
			Runs: l.Runs, Failures: l.Failures, Worked: l.Worked, Idle: l.Idle, LastError: l.LastError,
		})
	}
	for _, f := range b.parts.figuresOf(s, loops) {
		if len(f.Labels) == 0 && f.Histogram == nil && !math.IsNaN(f.Value) && !math.IsInf(f.Value, 0) { // JSON has no word for those
			out.Figures[f.Name] = f.Value
		}
	}
	out.Plugins = b.parts.pluginStats()
	out.Tiering = b.parts.tieringStats()
	return out
}

func kvSnapshotOf(s *node.KVSnapshotStats) *api.KVSnapshotStats {
	if s == nil {
		return nil
	}
	return &api.KVSnapshotStats{
		ID: s.Newest.ID, Offset: s.Newest.Offset, Rows: s.Newest.Rows, Files: len(s.Newest.Files), Bytes: s.Newest.Bytes(), TakenMs: s.Newest.CommittedMs,
		Retained: s.Retained, RunningMs: millis(s.Running), UploadedBytes: s.UploadedBytes, Error: s.LastError,
	}
}

// millis is 0 for a time that has not come.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
