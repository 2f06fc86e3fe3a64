package schema

import "github.com/mink-project/mink/sdk/mink"

// Column is one column of a table.
type Column struct {
	ID            mink.FieldID // 0: not assigned yet
	Name          string
	Type          Type // with nullability and nested field ids
	Comment       string
	AutoIncrement bool
	Aggregate     AggregateFunction // "": AggregateDefault, with merge_engine = aggregation
}

// Schema is one version of a table's columns. Treat it as immutable once
// shared; Clone makes a deep copy.
type Schema struct {
	ID      mink.SchemaID // 1 for a new table, +1 by each alter of the columns
	Columns []Column
}

// BucketFunction says how a row finds its bucket; fixed when the table is
// created.
type BucketFunction string

// The bucket functions. Normalize derives the right one from the bucket keys.
const (
	BucketIceberg    BucketFunction = "iceberg"     // one key column: Iceberg's bucket transform
	BucketMurmur3    BucketFunction = "murmur3"     // several: murmur3_32 of the encoded key
	BucketRoundRobin BucketFunction = "round_robin" // none: batches take turns
)

// Limits of a descriptor.
const (
	MaxNameLength      = 200
	MaxBuckets         = 4096
	MaxDescriptorBytes = 1 << 20
)

// Descriptor defines a table. Its JSON form (Encode, DecodeDescriptor) is what
// `mink table create --descriptor` takes and what the metadata log stores.
// Treat a shared one as immutable.
type Descriptor struct {
	Database       string            `json:"database"`
	Table          string            `json:"table"`
	Schema         Schema            `json:"schema"`
	PrimaryKey     []string          `json:"primary_key,omitempty"`
	PartitionKeys  []string          `json:"partition_keys,omitempty"`
	BucketKeys     []string          `json:"bucket_keys,omitempty"`
	BucketCount    int32             `json:"bucket_count,omitempty"`
	BucketFunction BucketFunction    `json:"bucket_function,omitempty"`
	Options        map[string]string `json:"options,omitempty"`
	Properties     map[string]string `json:"properties,omitempty"` // the user's own, uninterpreted
	Comment        string            `json:"comment,omitempty"`
	// HighestFieldID is the largest field id ever given out in this table: the
	// next one is larger, so that no id is used twice.
	HighestFieldID mink.FieldID `json:"highest_field_id,omitempty"`
}
