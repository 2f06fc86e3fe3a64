package mink

import (
	"fmt"
	"strconv"
)

// NodeID identifies a node of a cluster; chosen by the operator, >= 1. It is
// also the node's Kafka broker id.
type NodeID int32

// NodeEpoch is the metadata index of the RegisterNode command that admitted one
// incarnation of a node. It is never reused: a restarted node has a larger one.
type NodeEpoch int64

// LeaderEpoch counts the leaderships of one bucket. It is Kafka's partition
// leader epoch, hence 32 bits; it only grows.
type LeaderEpoch int32

// LeaseEpoch counts the holders of the coordinator lease; it only grows.
type LeaseEpoch int64

// TableID identifies one incarnation of a table. A table that is dropped and
// created again under the same name has another id.
type TableID int64

// PartitionID identifies one partition of a table. A table without partition
// keys has exactly one partition, whose value list is empty.
type PartitionID int64

// StreamID identifies the stream of one bucket; unique in the cluster, never
// reused.
type StreamID int64

// SchemaID is a table's schema version, counted from 1 within the table.
type SchemaID int32

// FieldID identifies a column, or a field nested in one, for the life of its
// table; never reused after a drop. It is Iceberg's field id.
type FieldID int32

// WriterID identifies an idempotent writer; Kafka's producer id. NoWriter (-1)
// means the batch carries no writer.
type WriterID int64

// NoWriter marks a batch without an idempotent writer.
const NoWriter WriterID = -1

// Offset is a position in a stream; the first record has offset 0. Ranges of
// offsets are half-open everywhere: [start, end).
type Offset int64

// BucketRef names one bucket: a shard of one partition of a table.
type BucketRef struct {
	Table     TableID     `json:"table_id"`
	Partition PartitionID `json:"partition_id"`
	Index     int32       `json:"bucket"` // 0 .. bucket count - 1
}

// String is "table/partition/bucket", by ids.
func (b BucketRef) String() string {
	return fmt.Sprintf("%d/%d/%d", b.Table, b.Partition, b.Index)
}

// String prints the bare number.
func (o Offset) String() string { return strconv.FormatInt(int64(o), 10) }
