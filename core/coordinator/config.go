package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Config tunes the coordinator.
type Config struct {
	// LeaseTTL is how long the lease lives without a renewal, and how long a node
	// must be silent before it is sealed. Renewed every quarter. Default 30 s.
	LeaseTTL time.Duration
	// Tick is how often the cluster is looked over. Default 5 s; a change of the
	// metadata that leaves a bucket without a leader is seen at once, and heartbeats
	// are looked at every LeaseTTL / 4 or sooner.
	Tick time.Duration
	// SnapshotInterval is how often the metadata's state image is written and its
	// log truncated, when the log has grown by SnapshotEntries. Default 30 s.
	SnapshotInterval time.Duration
	// SnapshotEntries is how many new entries make a snapshot worth it. Default 1000.
	SnapshotEntries uint64
	// ProducerOffsetsTTL is how long a named producer's offsets outlive its last
	// commit. Default 24 h.
	ProducerOffsetsTTL time.Duration
	// GroupOffsetsRetention is how long the offsets of a consumer group outlive its
	// last member; those of a group that never had one outlive their commit by it.
	// Default 7 days.
	GroupOffsetsRetention time.Duration
	// NodeRetention is how long a node that ended stays registered, unless it is removed
	// before; 0: for ever. Default 7 days.
	NodeRetention time.Duration
	// WALWindow is how far ahead of its first unacknowledged slot a writer may
	// write; the same for every node of the cluster. Default 8.
	WALWindow int
	// RecoveriesMax bounds how many dead WALs are recovered at once. Default 4.
	RecoveriesMax int
	// CleanInterval is how often destroyed files of KV snapshots are looked at,
	// DestroyGrace the least time between a file's destruction and its deletion. The
	// stream engine has the same for objects. Defaults 30 s and 5 m.
	CleanInterval, DestroyGrace time.Duration
	// MovesMax bounds how many buckets a rebalance moves at once, MoveTimeout how long a
	// leader has to answer one request for it. Defaults 8 and 10 s.
	MovesMax    int
	MoveTimeout time.Duration
	// SweepInterval is how often files of KV snapshots that nothing names are looked
	// for, OrphanAge their least age by the store's clock. Defaults 1 h and 1 h.
	SweepInterval, OrphanAge time.Duration
}

// Default is the configuration of a running node.
func Default() Config {
	return Config{
		LeaseTTL: 30 * time.Second, Tick: 5 * time.Second, SnapshotInterval: 30 * time.Second,
		SnapshotEntries: 1000, ProducerOffsetsTTL: 24 * time.Hour,
		GroupOffsetsRetention: 7 * 24 * time.Hour, NodeRetention: 7 * 24 * time.Hour, WALWindow: 8, RecoveriesMax: 4,
		CleanInterval: 30 * time.Second, DestroyGrace: 5 * time.Minute, SweepInterval: time.Hour, OrphanAge: time.Hour,
		MovesMax: 8, MoveTimeout: 10 * time.Second,
	}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	if c.LeaseTTL < time.Second || c.Tick <= 0 || c.SnapshotInterval <= 0 || c.ProducerOffsetsTTL <= 0 ||
		c.GroupOffsetsRetention <= 0 || c.WALWindow < 1 || c.RecoveriesMax < 1 || c.CleanInterval <= 0 || c.SweepInterval <= 0 ||
		c.MovesMax < 1 || c.MoveTimeout <= 0 || c.DestroyGrace < 0 || c.OrphanAge < 0 || c.NodeRetention < 0 {
		return fmt.Errorf("coordinator: LeaseTTL must be 1s or more, DestroyGrace, OrphanAge and NodeRetention not negative, every other field positive: %w", mink.ErrInvalid)
	}
	return nil
}

// Deps is what the coordinator works on; it closes none of it.
type Deps struct {
	Meta     *metalog.Replica
	Log      metalog.Log
	Head     *storehead.Keeper
	WALStore objstore.Store
	Objects  objstore.Store
	// Self answers this node's identity; epoch 0 while it is not registered, and
	// then the coordinator does nothing.
	Self func() (mink.NodeID, mink.NodeEpoch)
	// Release asks the leader of a bucket to move it to another live node
	// (node.ReleaseBucket), on this node or another one. nil: there is no rebalance.
	Release func(ctx context.Context, leader cluster.Node, bucket mink.BucketRef, to mink.NodeID) error
	// Stopped, when set, is called when a recovery stopped at damage (Stuck).
	Stopped func()
	Logger  *slog.Logger
}
