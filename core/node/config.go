package node

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Config tunes a node. Deps carries what it works on.
type Config struct {
	NodeID mink.NodeID // >= 1
	// Addresses that other nodes and clients are told, host:port; "" for none.
	FlightAddress, KafkaAddress, HTTPAddress string
	Rack                                     string
	Version                                  string // of this binary, for the metadata log
	FeatureLevel                             uint32 // >= 1
	// LeaseTTL is how long a silent node keeps its buckets; a heartbeat goes out
	// every quarter of it. Default 30 s.
	LeaseTTL time.Duration
	// LogRetentionInterval is how often buckets are trimmed by their table's
	// options. Default 5 m.
	LogRetentionInterval time.Duration
	// ReadGrace is how long readers may use a snapshot of a sink after the next one
	// was made: the log that it needs stays so long. Default 1 h.
	ReadGrace time.Duration
	// FinishInterval is how often leaders look whether buckets of closed partitions are
	// wholly uploaded, for sinks to take their last rows. Default 10 s.
	FinishInterval time.Duration
	// TopicCleaningInterval is how often buckets of compacted topics are looked at.
	// Default 1 m.
	TopicCleaningInterval time.Duration
	// CleanMapBytes is the memory of the map of keys that a cleaning makes: what it has
	// no room for waits for the next one. Default 128 MiB.
	CleanMapBytes int64
	// OpensMax bounds how many buckets open at once. Default 16.
	OpensMax int
	// ReadyTimeout bounds how long CreateTable and EnsurePartition wait for the
	// new buckets to open here. Default 5 s.
	ReadyTimeout time.Duration
	// RecoveryWait bounds how long WaitReady waits for the recovery of the node's
	// earlier epochs; a log that is corrupt is not recovered before a person acts.
	// Default 1 m.
	RecoveryWait time.Duration
	// GroupCommitInterval is the time between two commands that commit offsets of
	// consumer groups; commits are gathered meanwhile. Down to a tenth of it while a
	// few clients wait for each commit before the next. Default 100 ms.
	GroupCommitInterval time.Duration
	// GroupCommitBytesMax bounds the memory of offset commits that are gathered or
	// under way; further ones wait. Default 16 MiB.
	GroupCommitBytesMax int64
	// GroupsMax bounds the consumer groups that the metadata keep offsets of,
	// GroupOffsetsMax the offsets of one group, GroupOffsetsTotalMax those of all: a
	// commit that would exceed it is refused. Commits that are under way at the same
	// time may exceed it by what GroupCommitBytesMax holds. Defaults 100,000, 100,000
	// and 1,000,000, about 300 MiB on every node.
	GroupsMax, GroupOffsetsMax, GroupOffsetsTotalMax int
	// KVDir is where the stores of primary-key buckets lie while they are led here. It
	// is this process's alone and is emptied when it begins. "": a temporary
	// directory.
	KVDir string
	// KVIdleClose is how long after its last use a store stays open. Default 10 m.
	KVIdleClose time.Duration
	// KVReadsMax bounds the KV snapshots that are restored at a time to be read by
	// Source.ReadKVSnapshot: each takes its size on the disk. Default 1.
	KVReadsMax int
	// KV tunes every store, KVShared what they share. What belongs to one bucket is
	// filled in.
	KV       kv.Config
	KVShared kv.SharedConfig
	// KVSnapshots says when the stores of primary-key buckets are uploaded, and how.
	KVSnapshots kvsnap.SchedulerConfig
	Stream      stream.Config
}

// Default is the configuration of a node with id 1, without Stream, which
// depends on the store.
func Default() Config {
	return Config{
		NodeID: 1, Version: "dev", FeatureLevel: 1,
		LeaseTTL: 30 * time.Second, LogRetentionInterval: 5 * time.Minute,
		ReadGrace: time.Hour, FinishInterval: 10 * time.Second, TopicCleaningInterval: time.Minute, CleanMapBytes: 128 << 20,
		OpensMax: 16, ReadyTimeout: 5 * time.Second, RecoveryWait: time.Minute,
		GroupCommitInterval: 100 * time.Millisecond, GroupCommitBytesMax: 16 << 20,
		GroupsMax: 100_000, GroupOffsetsMax: 100_000, GroupOffsetsTotalMax: 1_000_000,
		KVIdleClose: 10 * time.Minute, KVReadsMax: 1, KV: kv.Default(), KVShared: kv.DefaultShared(), KVSnapshots: kvsnap.DefaultScheduler(),
	}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.NodeID < 1:
		return fmt.Errorf("node: NodeID is %d, must be 1 or more: %w", c.NodeID, mink.ErrInvalid)
	case c.LeaseTTL < time.Second || c.LeaseTTL > cluster.LeaseTTLMax:
		return fmt.Errorf("node: LeaseTTL is %s, must be between 1s and %s: %w", c.LeaseTTL, cluster.LeaseTTLMax, mink.ErrInvalid)
	case c.LogRetentionInterval <= 0 || c.OpensMax < 1 || c.ReadyTimeout <= 0 || c.RecoveryWait <= 0 || c.FeatureLevel < 1:
		return fmt.Errorf("node: LogRetentionInterval, OpensMax, ReadyTimeout, RecoveryWait and FeatureLevel must be positive: %w", mink.ErrInvalid)
	case c.FinishInterval <= 0:
		return fmt.Errorf("node: FinishInterval is %s, must be positive: %w", c.FinishInterval, mink.ErrInvalid)
	case c.TopicCleaningInterval <= 0 || c.CleanMapBytes < 1:
		return fmt.Errorf("node: TopicCleaningInterval and CleanMapBytes must be positive: %w", mink.ErrInvalid)
	case c.ReadGrace < 0 || c.ReadGrace.Milliseconds() > cluster.MaxReadGrace:
		return fmt.Errorf("node: ReadGrace is %s, must be 0 to ten years: %w", c.ReadGrace, mink.ErrInvalid)
	case c.GroupsMax < 1 || c.GroupOffsetsMax < 1 || c.GroupOffsetsTotalMax < 1:
		return fmt.Errorf("node: GroupsMax, GroupOffsetsMax and GroupOffsetsTotalMax must be positive: %w", mink.ErrInvalid)
	case c.GroupCommitInterval <= 0 || c.GroupCommitBytesMax < 1:
		return fmt.Errorf("node: GroupCommitInterval and GroupCommitBytesMax must be positive: %w", mink.ErrInvalid)
	}
	if c.KVIdleClose <= 0 || c.KVReadsMax < 1 {
		return fmt.Errorf("node: KVIdleClose is %s and KVReadsMax %d, must be positive: %w", c.KVIdleClose, c.KVReadsMax, mink.ErrInvalid)
	}
	if err := c.KVShared.Validate(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := c.KVSnapshots.Validate(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := c.Stream.Validate(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return nil
}

// Deps is what a node works on. The node closes none of it.
type Deps struct {
	Meta     *metalog.Replica // Run by the node's owner
	Log      metalog.Log
	Head     *storehead.Keeper // what Objects remembers of Log
	Objects  objstore.Store
	WALStore objstore.Store
	// Registered, when set, is called after every registration of this node.
	Registered func()
	// Stuck, when set, reports that the recovery of an ended epoch's log waits for a
	// person: nobody else need wait for it. Whoever knows it calls Node.Look then.
	Stuck func(mink.NodeEpoch) bool
	// CheckSink, when set, says whether a table can be tiered to a sink, or to the lake,
	// by this node.
	CheckSink func(d *schema.Descriptor, sink string) error
	Logger    *slog.Logger
}
