package api

import (
	"encoding/json"

	"github.com/mink-project/mink/sdk/mink"
)

// Actions of DoAction. Each takes one JSON body and answers one, except where
// "answers many" is said: then one result per item.
const (
	ActionCreateDatabase  = "create_database"  // Name, IfNotExists -> {}
	ActionDropDatabase    = "drop_database"    // Name, IfExists, Cascade -> {}
	ActionListDatabases   = "list_databases"   // {} -> Databases
	ActionCreateTable     = "create_table"     // CreateTable -> Table
	ActionDropTable       = "drop_table"       // Table name, IfExists -> {}
	ActionAlterTable      = "alter_table"      // AlterTable -> Table
	ActionDescribeTable   = "describe_table"   // Named -> Table
	ActionListTables      = "list_tables"      // Named (database; "" all) -> Tables
	ActionCreatePartition = "create_partition" // PartitionRequest -> Partition
	ActionDropPartition   = "drop_partition"   // PartitionRequest -> {}
	ActionListPartitions  = "list_partitions"  // Named (table) -> Partitions
	ActionInitWriter      = "init_writer"      // {} -> Writer
	ActionListOffsets     = "list_offsets"     // ListOffsets -> Offsets
	ActionLookup          = "lookup"           // Lookup -> LookupRows
	ActionPrefixLookup    = "prefix_lookup"    // PrefixLookup -> PrefixRows
	ActionCount           = "count"            // CountRequest -> Counts
	ActionCommitProducer  = "commit_producer"  // Producer -> Producer
	ActionGetProducer     = "get_producer"     // Named -> Producer; NOT_FOUND when unknown or expired
	ActionDescribeCluster = "describe_cluster" // {} -> Cluster
	ActionGetConfig       = "get_config"       // {} -> Config
	ActionNodeStats       = "node_stats"       // {} -> Stats
	ActionHealth          = "health"           // {} -> Health
	ActionCheck           = "check"            // CheckRequest -> CheckReport (fsck)
	ActionAcceptLoss      = "accept_loss"      // AcceptLoss -> LossReport
	ActionRebalance       = "rebalance"        // Rebalance -> RebalanceStep; answers many, the report last
	ActionReleaseBucket   = "release_bucket"   // ReleaseBucket -> {}
	ActionAskNodes        = "ask_nodes"        // AskNodes -> NodeAnswers: what every live node says of itself
	ActionRemoveNode      = "remove_node"      // RemoveNode -> RemovedNode
	ActionTierTable       = "tier_table"       // TierTable -> TierReport
	ActionUploadBuckets   = "upload_buckets"   // UploadBuckets -> Offsets
	ActionLakeSnapshot    = "lake_snapshot"    // Named -> LakeSnapshot
	ActionMaintainTable   = "maintain_table"   // MaintainTable -> MaintenanceReport
)

// Named is the body of actions on one named thing.
type Named struct {
	Name        string `json:"name"` // database, or "database.table", or producer
	IfExists    bool   `json:"if_exists,omitempty"`
	IfNotExists bool   `json:"if_not_exists,omitempty"`
	Cascade     bool   `json:"cascade,omitempty"`
}

// Databases lists databases by name.
type Databases struct {
	Databases []Database `json:"databases"`
}

// Database is one database.
type Database struct {
	Name      string `json:"name"`
	CreatedMs int64  `json:"created_ms"`
	Tables    int    `json:"tables"`
}

// CreateTable creates a table from a descriptor (docs/tables.md).
type CreateTable struct {
	Descriptor  json.RawMessage `json:"descriptor"`
	IfNotExists bool            `json:"if_not_exists,omitempty"`
}

// AlterTable applies changes in order, all or none.
type AlterTable struct {
	Table    string          `json:"table"`
	Changes  json.RawMessage `json:"changes"`                   // array of changes, docs/tables.md
	Expected mink.SchemaID   `json:"expected_schema,omitempty"` // refuse when the table is at another version; 0: any
}

// Tables lists tables by name.
type Tables struct {
	Tables []Table `json:"tables"`
}

// Table describes a table. Descriptor is what create_table takes.
type Table struct {
	ID         mink.TableID    `json:"table_id"`
	UUID       string          `json:"uuid"` // Kafka's topic id
	Name       string          `json:"name"` // database.table
	Descriptor json.RawMessage `json:"descriptor"`
	SchemaID   mink.SchemaID   `json:"schema_id"`
	Partitions int             `json:"partitions"`
	Buckets    int32           `json:"buckets"` // per partition
	CreatedMs  int64           `json:"created_ms"`
	ModifiedMs int64           `json:"modified_ms"`
	Sinks      []TableSink     `json:"sinks,omitempty"` // by name
}

// TableSink is what the metadata know of a table at one of its sinks; TieringStats have
// what the node that tiers knows besides.
type TableSink struct {
	Sink        string `json:"sink"`
	Retains     bool   `json:"retains"` // the log keeps what the sink does not have
	FreshnessMs int64  `json:"freshness_ms"`
	EnabledMs   int64  `json:"enabled_ms"`         // when the sink was switched on last
	Round       string `json:"round,omitempty"`    // the last one recorded; absent: none yet
	Snapshot    string `json:"snapshot,omitempty"` // the sink's name of its state with it
	TieredMs    int64  `json:"tiered_ms"`          // when it was recorded
	Rounds      int64  `json:"rounds"`             // how many were
	LagOffsets  int64  `json:"lag_offsets"`        // committed offsets that the sink does not have
}

// PartitionRequest names a partition by its values in partition-key order.
type PartitionRequest struct {
	Table       string   `json:"table"`
	Values      []string `json:"values"`
	IfExists    bool     `json:"if_exists,omitempty"`
	IfNotExists bool     `json:"if_not_exists,omitempty"`
}

// Partitions lists a table's partitions in the order of their values.
type Partitions struct {
	Partitions []Partition `json:"partitions"`
}

// Partition is one partition and where its buckets are.
type Partition struct {
	ID        mink.PartitionID `json:"partition_id"`
	Values    []string         `json:"values"`
	Closed    bool             `json:"closed,omitempty"`
	Automatic bool             `json:"automatic,omitempty"`
	CreatedMs int64            `json:"created_ms"`
	Buckets   []Bucket         `json:"buckets"`
}

// Bucket is one bucket and its leader.
type Bucket struct {
	Bucket      mink.BucketRef   `json:"bucket"`
	Leader      mink.NodeID      `json:"leader"` // 0: none at the moment
	Address     string           `json:"address"`
	LeaderEpoch mink.LeaderEpoch `json:"leader_epoch"`
}

// Writer is a fresh writer id.
type Writer struct {
	WriterID mink.WriterID `json:"writer_id"`
	Epoch    int16         `json:"writer_epoch"`
}

// ListOffsets asks for one position in every bucket of a table, or of one
// partition of it. At: "earliest", "latest", or a timestamp as in Command.From.
type ListOffsets struct {
	Table     string   `json:"table"`
	Partition []string `json:"partition,omitempty"`
	At        string   `json:"at"`
	// Buckets restricts to these buckets of the table; absent: all.
	Buckets []mink.BucketRef `json:"buckets,omitempty"`
}

// Offsets answers ListOffsets.
type Offsets struct {
	Offsets []BucketOffset `json:"offsets"`
}

// BucketOffset is one bucket's position. For a timestamp after the last record
// it is the high watermark.
type BucketOffset struct {
	Bucket mink.BucketRef `json:"bucket"`
	Offset mink.Offset    `json:"offset"`
	Values []string       `json:"partition,omitempty"` // partition values
	Error  string         `json:"error,omitempty"`
	Code   string         `json:"code,omitempty"` // reason of the error, a Reason constant
}

// Producer is a named producer's position in its source and the end offsets
// that belong to it, stored and read together. Position is opaque, at most 4 KiB.
type Producer struct {
	Name        string         `json:"name"`
	Position    []byte         `json:"position"` // base64 in JSON
	Offsets     []BucketOffset `json:"offsets"`
	Version     int64          `json:"version,omitempty"` // on commit: the expected one, 0 for any
	CommittedMs int64          `json:"committed_ms,omitempty"`
}

// Cluster lists the nodes.
type Cluster struct {
	ID           string `json:"cluster_id"`
	Version      string `json:"version"` // of the answering node
	AppliedIndex uint64 `json:"applied_index"`
	Coordinator  Node   `json:"coordinator"`
	Nodes        []Node `json:"nodes"`
	Databases    int    `json:"databases"`
	Tables       int    `json:"tables"`
	Buckets      int    `json:"buckets"`
}

// Node is one node of the cluster.
type Node struct {
	ID            mink.NodeID    `json:"node_id"`
	Epoch         mink.NodeEpoch `json:"node_epoch"`
	FlightAddress string         `json:"flight_address"`
	KafkaAddress  string         `json:"kafka_address,omitempty"`
	HTTPAddress   string         `json:"http_address,omitempty"`
	Version       string         `json:"version"`
	RegisteredMs  int64          `json:"registered_ms"`
	Live          bool           `json:"live"` // its epoch is not sealed
	Buckets       int            `json:"buckets"`
}

// Config is a node's configuration in effect, secrets hidden.
type Config struct {
	Values map[string]string `json:"values"`
}

// Health says whether the answering node serves.
type Health struct {
	Ready  bool        `json:"ready"`
	Reason string      `json:"reason,omitempty"`
	Node   mink.NodeID `json:"node_id"`
	Uptime float64     `json:"uptime_seconds"`
	// DamagedLogs are those whose recovery a person must decide; known to the
	// coordinator's node. At most 100 losses of each slot are listed.
	DamagedLogs []DamagedLog `json:"damaged_logs,omitempty"`
	// StalledSinks are tables that wait for their sink for longer than twice their freshness,
	// and for a minute more than it; known to the coordinator's node.
	StalledSinks []StalledSink `json:"stalled_sinks,omitempty"`
	// What all nodes of a cluster have in common, as this one is configured.
	LeaseTTLMs int64  `json:"lease_ttl_ms,omitempty"`
	ClusterID  string `json:"cluster_id,omitempty"`
	Version    string `json:"version,omitempty"`
	ClockMs    int64  `json:"clock_ms,omitempty"` // the node's wall clock when it answered, ms since 1970
}

// AskNodes asks the answering node to ask every live node, itself too, what it says of
// itself: all at once, each with a timeout.
type AskNodes struct {
	About     string      `json:"about"`                // health, get_config or node_stats
	Node      mink.NodeID `json:"node_id,omitempty"`    // only this one; 0: all
	TimeoutMs int64       `json:"timeout_ms,omitempty"` // for each node; 0: 5 s, at most 1 m
}

// NodeAnswers are what the nodes answered.
type NodeAnswers struct {
	Node  mink.NodeID  `json:"asked_by"`   // the node that asked the others
	Head  uint64       `json:"head_index"` // newest metadata index that any of them has applied
	Nodes []NodeAnswer `json:"nodes"`      // the live ones, by id
}

// NodeAnswer is one node's answer: one of Health, Config and Stats, or Error.
type NodeAnswer struct {
	Node         mink.NodeID    `json:"node_id"`
	Epoch        mink.NodeEpoch `json:"node_epoch"`
	Address      string         `json:"address"` // that it advertises for Flight
	TookMs       float64        `json:"took_ms"`
	Error        string         `json:"error,omitempty"` // why there is no answer
	AppliedIndex uint64         `json:"applied_index,omitempty"`
	Lag          uint64         `json:"lag"` // entries of the metadata log that it has yet to apply
	Health       *Health        `json:"health,omitempty"`
	Config       *Config        `json:"config,omitempty"`
	Stats        *Stats         `json:"stats,omitempty"`
}

// Stats are the answering node's figures.
type Stats struct {
	Node         mink.NodeID        `json:"node_id"`
	Epoch        mink.NodeEpoch     `json:"node_epoch"`
	AppliedIndex uint64             `json:"applied_index"`
	Buckets      []BucketStats      `json:"buckets"`
	Loops        []Loop             `json:"loops"`
	Figures      map[string]float64 `json:"figures"` // the metrics without labels, by their names
	Plugins      []PluginStats      `json:"plugins,omitempty"`
	Tiering      []TieringStats     `json:"tiering,omitempty"` // of the holder of the coordinator lease
}

// StalledSink is a table whose sink has not taken for a while what it should have. The
// table's log is kept as long, whatever its retention says.
type StalledSink struct {
	Table       string `json:"table"`
	Sink        string `json:"sink"`
	StalledMs   int64  `json:"stalled_ms"` // how long rows wait beyond the freshness
	FreshnessMs int64  `json:"freshness_ms"`
	TieredMs    int64  `json:"tiered_ms"` // when the last round of all buckets began, ms since 1970; 0: never
	LagOffsets  int64  `json:"lag_offsets"`
	InARow      int64  `json:"failures_in_a_row,omitempty"`
	LastError   string `json:"last_error,omitempty"`
}

// TieringStats are a table at one of its sinks, as the node that tiers sees it. Times are ms
// since 1970, 0: not yet; counters are since the node took the coordinator lease.
type TieringStats struct {
	Table    string       `json:"table"`
	TableID  mink.TableID `json:"table_id"`
	Sink     string       `json:"sink"`
	Retains  bool         `json:"retains"`            // the log keeps what the sink does not have
	Dropping bool         `json:"dropping,omitempty"` // the table is dropped, and is removed at the sink
	// State is scheduled (rows wait for their time), pending (they wait for a worker),
	// tiering, tiered (the sink has everything that is uploaded), or failed.
	State      string `json:"state"`
	Round      string `json:"round,omitempty"` // the one under way
	Step       string `json:"step,omitempty"`  // and what is done of it
	RoundRows  int64  `json:"round_rows,omitempty"`
	StartedMs  int64  `json:"started_ms,omitempty"`
	LastRound  string `json:"last_round,omitempty"` // the last one recorded
	TieredMs   int64  `json:"tiered_ms"`            // when the last round of all buckets began
	DueMs      int64  `json:"due_ms,omitempty"`     // when the next one begins; of a failed table, the next try
	LagOffsets int64  `json:"lag_offsets"`          // offsets that the sink does not have
	LagBytes   int64  `json:"lag_bytes"`            // an estimate of their size in the log
	LagMs      int64  `json:"lag_ms"`               // since tiered_ms, while there are any
	StalledMs  int64  `json:"stalled_ms,omitempty"` // how long rows wait beyond lake_freshness
	Rounds     int64  `json:"rounds"`
	Failures   int64  `json:"failures"`
	InARow     int64  `json:"failures_in_a_row,omitempty"`
	Rows       int64  `json:"rows"`  // written
	Bytes      int64  `json:"bytes"` // of them, as Arrow in memory
	LastError  string `json:"last_error,omitempty"`

	Maintenance *MaintenanceStats `json:"maintenance,omitempty"` // once there was any
}

// MaintenanceStats are what keeps a table at a sink in shape did since the node took the
// coordinator lease. Bytes are of stored files.
type MaintenanceStats struct {
	Compactions  int64  `json:"compactions"`
	DataFiles    int64  `json:"data_files"`   // that were replaced
	DeleteFiles  int64  `json:"delete_files"` // that were merged or applied
	Bytes        int64  `json:"bytes"`        // of both
	NewFiles     int64  `json:"new_files"`
	NewBytes     int64  `json:"new_bytes"`
	Snapshots    int64  `json:"snapshots"`     // that were expired
	Manifests    int64  `json:"manifests"`     // that were merged into fewer
	Removed      int64  `json:"removed_files"` // that nothing named any more
	RemovedBytes int64  `json:"removed_bytes"`
	InARow       int64  `json:"failures_in_a_row,omitempty"`
	LastError    string `json:"last_error,omitempty"`
}

// MaintainTable asks for maintenance of a table at a sink now.
type MaintainTable struct {
	Table string `json:"table"`          // "database.table"
	Sink  string `json:"sink,omitempty"` // "": lake
	// Work is "compact": small files are merged and deletes applied, all that can be; or
	// "expire": snapshots, and files that nothing names, which are older than the table's
	// options lake_snapshot_age and lake_orphan_age go.
	Work string `json:"work"`
	Wait bool   `json:"wait,omitempty"` // until it is done
}

// MaintenanceReport is what came of it.
type MaintenanceReport struct {
	Table string           `json:"table"`
	Sink  string           `json:"sink"`
	Work  string           `json:"work"`
	Done  bool             `json:"done"` // false: it was asked for and not awaited, or it failed
	Did   MaintenanceStats `json:"did"`
	Error string           `json:"error,omitempty"` // why it failed
}

// TierTable asks for a round of a table at a sink now.
type TierTable struct {
	Table string `json:"table"`          // "database.table"
	Sink  string `json:"sink,omitempty"` // "": the table's only sink, or lake
	Wait  bool   `json:"wait,omitempty"` // until all that was acknowledged at the time is at the sink
}

// TierReport is what came of it.
type TierReport struct {
	Table    string `json:"table"`
	Sink     string `json:"sink"`
	Tiered   bool   `json:"tiered"`             // false: the round was asked for and not awaited, or it failed
	Round    string `json:"round,omitempty"`    // the last one recorded, once tiered
	Snapshot string `json:"snapshot,omitempty"` // the sink's name of its state with it
	Error    string `json:"error,omitempty"`    // why it failed; it is tried again by itself
}

// UploadBuckets lets the leaders of a table's buckets make stream objects, now, of all that is
// acknowledged: tiering reads no other. The offsets of the answer are where each log ended.
type UploadBuckets struct {
	Table string `json:"table"` // "database.table"
	// Buckets restricts to these buckets of the table; absent: all.
	Buckets []mink.BucketRef `json:"buckets,omitempty"`
}

// LakeSnapshot is how far a table is in the lake: the last round that the metadata have
// recorded, beside what the lake's catalog and the logs say at the time of the call.
type LakeSnapshot struct {
	Table       string       `json:"table"`
	TableID     mink.TableID `json:"table_id"`
	Snapshot    string       `json:"snapshot,omitempty"` // Iceberg's id; absent: no round was recorded yet
	Round       string       `json:"round,omitempty"`
	Rounds      int64        `json:"rounds"`                 // recorded so far
	CommittedMs int64        `json:"committed_ms,omitempty"` // when the round was recorded
	LagOffsets  int64        `json:"lag_offsets"`            // of all buckets
	Buckets     []LakeBucket `json:"buckets"`

	Location         string `json:"location,omitempty"`          // of the Iceberg table
	MetadataLocation string `json:"metadata_location,omitempty"` // its newest metadata file
	// CatalogSnapshot is the table's current snapshot in the catalog: another one than
	// Snapshot after a commit of another engine, or of a round that is being recorded.
	CatalogSnapshot string `json:"catalog_snapshot,omitempty"`
	Expired         bool   `json:"expired,omitempty"`       // the catalog does not have Snapshot any more
	CatalogError    string `json:"catalog_error,omitempty"` // why it did not say
}

// LakeBucket is how far a bucket is in the lake. Offsets of the log from End on are not in it.
type LakeBucket struct {
	Bucket        mink.BucketRef `json:"bucket"`
	Values        []string       `json:"partition,omitempty"` // partition values
	End           mink.Offset    `json:"end"`
	HighWatermark mink.Offset    `json:"high_watermark"`  // with an error: the end that the metadata know, which may be less
	LagOffsets    int64          `json:"lag_offsets"`     // that the lake lacks and the log has
	Error         string         `json:"error,omitempty"` // the bucket's leader did not say where the log ends
	Code          string         `json:"code,omitempty"`  // reason of the error, a Reason constant
}

// PluginStats describe one plugin that the node runs. Counters cover all its
// processes since the node's start; bytes are those of objects.
type PluginStats struct {
	Kind       string                 `json:"kind"`
	Name       string                 `json:"name"`
	Version    string                 `json:"version"`
	Path       string                 `json:"path"`
	PID        int                    `json:"pid"` // 0: no process serves
	Restarts   uint64                 `json:"restarts"`
	RSSBytes   int64                  `json:"rss_bytes"`
	CPUSeconds float64                `json:"cpu_seconds"`
	InFlight   int64                  `json:"in_flight_calls"`
	LastError  string                 `json:"last_error,omitempty"` // of the last process that ended, or of the last start
	Operations []PluginOperationStats `json:"operations"`           // those that were called
}

// PluginOperationStats count one operation. The quantiles are upper bounds: they
// lie within a factor of two.
type PluginOperationStats struct {
	Name          string  `json:"name"`
	Calls         int64   `json:"calls"`
	Failures      int64   `json:"failures"`
	SentBytes     int64   `json:"sent_bytes"`
	ReceivedBytes int64   `json:"received_bytes"`
	Seconds       float64 `json:"seconds"`
	P50Ms         float64 `json:"p50_ms"`
	P99Ms         float64 `json:"p99_ms"`
}

// BucketStats are one bucket's offsets.
type BucketStats struct {
	Bucket        mink.BucketRef   `json:"bucket"`
	Table         string           `json:"table"`
	LeaderEpoch   mink.LeaderEpoch `json:"leader_epoch"`
	LogStart      mink.Offset      `json:"log_start"`
	HighWatermark mink.Offset      `json:"high_watermark"`
	LogEnd        mink.Offset      `json:"log_end"`
	Quarantined   int64            `json:"quarantined_batches,omitempty"`
	Refused       int64            `json:"refused_batches,omitempty"` // failed their checks, since the bucket opened here
	CleanedEnd    mink.Offset      `json:"cleaned_end,omitempty"`     // of a compacted topic: below it a key is there once
	Removed       int64            `json:"removed_records,omitempty"` // by cleanings since the bucket opened here
	CleanError    string           `json:"clean_error,omitempty"`     // of the last cleaning
	KVSnapshot    *KVSnapshotStats `json:"kv_snapshot,omitempty"`     // of a primary-key table
	HeldTrim      *HeldTrim        `json:"held_trim,omitempty"`       // retention would let go of more
	Error         string           `json:"error,omitempty"`
}

// HeldTrim is a trim that retention asked for and that has not happened.
type HeldTrim struct {
	Wanted mink.Offset `json:"wanted"` // the log start that retention asked for
	At     mink.Offset `json:"at"`     // how far the log may be trimmed now
	By     string      `json:"by"`     // what holds it: "kv_snapshot", "upload"
	Why    string      `json:"why"`    // for a person
}

// KVSnapshotStats are the snapshots of a primary-key bucket's store: the newest one,
// zeros when there is none, and what its leader is doing. Times are ms since 1970.
type KVSnapshotStats struct {
	ID            int64       `json:"id"`
	Offset        mink.Offset `json:"offset"` // a recovery reads the log from here
	Rows          int64       `json:"rows"`   // -1: not counted
	Files         int         `json:"files"`
	Bytes         int64       `json:"bytes"`
	TakenMs       int64       `json:"taken_ms"`
	Retained      int         `json:"retained"`
	RunningMs     int64       `json:"running_ms,omitempty"` // since when the next one is made; 0: it is not
	UploadedBytes int64       `json:"uploaded_bytes"`       // by this leader
	Error         string      `json:"error,omitempty"`      // of its last try
}

// Loop is one periodic job of the node. Times are ms since 1970, 0: not yet.
type Loop struct {
	Name       string `json:"name"`
	IntervalMs int64  `json:"interval_ms"`
	LastMs     int64  `json:"last_ms"`
	NextMs     int64  `json:"next_ms"`
	Runs       uint64 `json:"runs"`
	Failures   uint64 `json:"failures"`
	Worked     uint64 `json:"worked"`         // runs that did this node's work
	Idle       bool   `json:"idle,omitempty"` // the last run found the work to be another node's, such as the lease holder's
	LastError  string `json:"last_error,omitempty"`
}

// Rebalance asks the coordinator to even out the buckets over the live nodes: buckets
// without a leader get one, and nodes that lead more than 110 % of the mean give some to
// those that lead less than 90 %.
type Rebalance struct {
	DryRun bool `json:"dry_run,omitempty"` // only say what would be done
}

// RebalanceStep is one answer of a rebalance: a move that has ended, or at the end the
// report.
type RebalanceStep struct {
	Move   *MoveProgress    `json:"move,omitempty"`
	Report *RebalanceReport `json:"report,omitempty"`
}

// MoveProgress is a move that has ended.
type MoveProgress struct {
	Ended int  `json:"ended"` // with this one
	Total int  `json:"total"`
	Move  Move `json:"move"`
}

// Move is a planned move of a bucket, and what came of it.
type Move struct {
	Bucket  mink.BucketRef `json:"bucket"`
	Table   string         `json:"table,omitempty"`
	From    mink.NodeID    `json:"from"` // 0: nobody led it
	To      mink.NodeID    `json:"to"`
	Outcome string         `json:"outcome"`           // planned, moved, refused, unanswered (it may move yet) or skipped
	Reason  string         `json:"reason,omitempty"`  // why it was not moved
	TookMs  float64        `json:"took_ms,omitempty"` // from the request to the leader's answer
}

// Outcomes of a move.
const (
	MovePlanned    = "planned"
	MoveMoved      = "moved"
	MoveRefused    = "refused"
	MoveUnanswered = "unanswered"
	MoveSkipped    = "skipped"
)

// RebalanceReport says what a rebalance did, or would do. Moves of buckets that nobody
// led come first.
type RebalanceReport struct {
	DryRun bool       `json:"dry_run,omitempty"`
	Moves  []Move     `json:"moves"`
	Nodes  []NodeLoad `json:"nodes"` // the live ones
	TookMs float64    `json:"took_ms"`
}

// Count is how many moves had an outcome.
func (r RebalanceReport) Count(outcome string) (n int) {
	for _, m := range r.Moves {
		if m.Outcome == outcome {
			n++
		}
	}
	return n
}

// NodeLoad is how many buckets a node led before and leads after: with dry_run it would.
type NodeLoad struct {
	Node   mink.NodeID `json:"node_id"`
	Before int         `json:"before"`
	After  int         `json:"after"`
}

// ReleaseBucket asks a bucket's leader to move it to another live node.
type ReleaseBucket struct {
	Bucket mink.BucketRef `json:"bucket"`
	To     mink.NodeID    `json:"to"`
}

// RemoveNode asks the coordinator to forget a node that has ended.
type RemoveNode struct {
	Node     mink.NodeID `json:"node_id"`
	IfExists bool        `json:"if_exists,omitempty"` // no error for one that is not registered
}

// RemovedNode says what was removed.
type RemovedNode struct {
	Node    mink.NodeID    `json:"node_id"`
	Epoch   mink.NodeEpoch `json:"node_epoch,omitempty"` // of its registration
	Removed bool           `json:"removed"`              // false: it was gone already
}

// CheckRequest asks for an online consistency check of what this node sees.
type CheckRequest struct {
	Deep bool `json:"deep,omitempty"` // read and verify every block, not only indexes
}

// CheckReport is fsck's findings. Clean means no problem.
type CheckReport struct {
	Clean    bool      `json:"clean"`
	Objects  int64     `json:"objects"`
	Bytes    int64     `json:"bytes"`
	Streams  int64     `json:"streams"`
	Records  int64     `json:"records"`
	Problems []Problem `json:"problems,omitempty"`
	// AcceptedLosses are the offsets that buckets skip since a person gave them up;
	// they are no problem.
	AcceptedLosses []Loss `json:"accepted_losses,omitempty"`
	// Unnamed are objects from before the metadata were restored, or went back, that
	// they do not name; the first thousand of UnnamedObjects. No sweep takes them, and
	// they are no problem.
	Unnamed        []UnnamedObject `json:"unnamed,omitempty"`
	UnnamedObjects int64           `json:"unnamed_objects,omitempty"`
	UnnamedBytes   int64           `json:"unnamed_bytes,omitempty"`
	// Lake are the tables in the lake, by name.
	Lake []LakeCheck `json:"lake,omitempty"`
}

// LakeCheck is what was found of one table in the lake, besides problems.
type LakeCheck struct {
	Table     string `json:"table"`
	Snapshots int    `json:"snapshots"`
	Files     int64  `json:"files"` // of all its snapshots
	Bytes     int64  `json:"bytes"`
	Rows      int64  `json:"rows"` // in data files of the current snapshot, deleted ones too
	// Orphans are objects below the table's directory that nothing names and that are a day
	// old, or twice orphan_age; the first hundred of OrphanFiles. They are no problem.
	Orphans     []string `json:"orphans,omitempty"`
	OrphanFiles int64    `json:"orphan_files,omitempty"`
	OrphanBytes int64    `json:"orphan_bytes,omitempty"`
}

// UnnamedObject is an object that the metadata know nothing of, and what it says of
// itself.
type UnnamedObject struct {
	Object string `json:"object"`
	Bytes  int64  `json:"bytes"`
	// Holds are offsets of buckets that exist; Others counts ranges of buckets that the
	// metadata never knew, or that were dropped.
	Holds  []Loss `json:"holds,omitempty"`
	Others int    `json:"others,omitempty"`
	Damage string `json:"damage,omitempty"` // why it cannot be read
}

// Problem is one finding: what, where, what to do.
type Problem struct {
	Kind   string `json:"kind"` // missing, corrupt, size, gap, orphan, lake_offsets, ...
	Object string `json:"object,omitempty"`
	Stream int64  `json:"stream,omitempty"`
	Text   string `json:"text"`
}

// AcceptLoss asks which records are lost with the damaged slots of write-ahead
// logs that cannot be recovered, and with confirm gives them up for good: the
// recovery goes on, and their offsets are skipped.
type AcceptLoss struct {
	Node    mink.NodeID    `json:"node_id,omitempty"`    // of the log; 0: every log, only to look
	Epoch   mink.NodeEpoch `json:"node_epoch,omitempty"` // of the log
	Slots   []uint64       `json:"slots,omitempty"`      // with confirm: the damaged slots of the log, all of them
	Confirm bool           `json:"confirm,omitempty"`
}

// LossReport is what is lost, or was accepted.
type LossReport struct {
	Logs     []DamagedLog `json:"logs"`
	Accepted bool         `json:"accepted,omitempty"`
}

// DamagedLog is a write-ahead log that recovery stops at.
type DamagedLog struct {
	Node  mink.NodeID    `json:"node_id"`
	Epoch mink.NodeEpoch `json:"node_epoch"`
	Slots []DamagedSlot  `json:"slots"`
}

// DamagedSlot is one object of a log that is missing or not what it was.
type DamagedSlot struct {
	Slot   uint64 `json:"slot"`
	Object string `json:"object"`
	Reason string `json:"reason"`
	Losses []Loss `json:"losses"`
	More   int    `json:"more,omitempty"` // losses that are not listed
}

// Loss is a range of offsets [start, end) of one bucket. Exact: so many were
// given out; else nothing says how many, and a wide range is skipped.
type Loss struct {
	Bucket mink.BucketRef `json:"bucket"`
	Table  string         `json:"table,omitempty"`
	Start  mink.Offset    `json:"start"`
	End    mink.Offset    `json:"end"`
	Exact  bool           `json:"exact,omitempty"`
}
