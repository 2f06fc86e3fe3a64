package api

import (
	"encoding/json"

	"github.com/mink-project/mink/sdk/mink"
)

// Modes of a Command: what of a table is read.
const (
	ModeLog      = "log"      // what was appended; of a primary-key table its changelog
	ModeSnapshot = "snapshot" // the rows of a primary-key table, one per key
	ModeUnion    = "union"    // the rows of a table in the lake, and those that are only in the log yet
	ModeLake     = "lake"     // those in the lake alone
)

// Columns that a log read with "meta" has behind the table's own. No table has a
// column of such a name: those that begin with "__" are reserved.
const (
	ColumnChange    = "__change"    // utf8: mink.Change's two letters, "+I"
	ColumnOffset    = "__offset"    // int64
	ColumnTimestamp = "__timestamp" // timestamp[ms, UTC]: when the batch was committed
)

// Put addresses one bucket of a primary-key table for pipelined, idempotent
// upserts and deletes: the descriptor of a native DoPut.
//
// The stream's Arrow schema is Columns in that order, or all columns of the
// version SchemaID in the table's order; they are the targets. An upsert sets them
// and leaves the others as they are, null in a row that is new. Every row must
// belong to the bucket.
type Put struct {
	Bucket   mink.BucketRef `json:"bucket"`
	SchemaID mink.SchemaID  `json:"schema_id"` // version that the columns are named in
	// Columns are the targets by name, those of the primary key among them; absent:
	// all. An auto-increment column may be left out, or be null.
	Columns     []string      `json:"columns,omitempty"`
	WriterID    mink.WriterID `json:"writer_id,omitempty"`    // 0: not idempotent
	WriterEpoch int16         `json:"writer_epoch,omitempty"` // of the writer id
}

// PutMetadata is the app_metadata of each batch of a native DoPut with put; a
// stream without a writer id may leave it out.
//
// A delete in a stream of the key columns alone, or of all columns, removes the
// row. In a stream of the key and some others it sets those to null, and removes
// the row when no column beside the key is left.
type PutMetadata struct {
	// Sequence numbers the batches of a writer in one bucket from 0; 2^31-1 is
	// followed by 0. Required when the stream has a writer id.
	Sequence int32 `json:"sequence"`
	// Delete: every row of the batch is a delete.
	Delete bool `json:"delete,omitempty"`
	// Changes has a byte per row when a batch has both: 4 is a delete; 3, 1 and 0 are
	// upserts. Not with Delete.
	Changes []byte `json:"changes,omitempty"`
}

// Snapshot reads the rows of one bucket of a primary-key table in the order of
// their keys, as of one moment.
type Snapshot struct {
	Bucket  mink.BucketRef `json:"bucket"`
	Columns []string       `json:"columns,omitempty"`
	Limit   int64          `json:"limit,omitempty"` // ends after so many rows; 0: none
	Filter  string         `json:"filter,omitempty"`
}

// Union reads the rows of one bucket of a table in the lake: those of a lake snapshot, then
// those of the log from LakeEnd up to Until. GetFlightInfo makes them: all of a read with
// one snapshot. The rows are the same whenever it is used, as long as that snapshot was
// current within read_grace; without LakeSnapshot a primary-key bucket is read as of now.
type Union struct {
	Bucket       mink.BucketRef `json:"bucket"`
	LakeSnapshot string         `json:"lake_snapshot,omitempty"` // the id in decimal; absent: the bucket has nothing in the lake
	LakeEnd      mink.Offset    `json:"lake_end"`
	Until        mink.Offset    `json:"until"` // exclusive
	Columns      []string       `json:"columns,omitempty"`
	Filter       string         `json:"filter,omitempty"`
	Limit        int64          `json:"limit,omitempty"` // ends after so many rows; 0: none
}

// Lake reads rows of a lake snapshot alone, at any node: of one bucket, or of all the
// partitions that were dropped since.
type Lake struct {
	Table    mink.TableID    `json:"table_id"`
	Snapshot string          `json:"snapshot"`
	Bucket   *mink.BucketRef `json:"bucket,omitempty"`
	// Without Bucket: these partitions' rows are left out.
	WithoutPartitions []mink.PartitionID `json:"without_partitions,omitempty"`
	Columns           []string           `json:"columns,omitempty"`
	Filter            string             `json:"filter,omitempty"`
	Limit             int64              `json:"limit,omitempty"` // ends after so many rows; 0: none
}

// KeyRange reads the rows whose keys are in [From, To), in their order, as of one
// moment. A bound is an object of key columns: the first of the primary key, or the
// first two, and so on, without the partition's columns. Rows are compared with a
// bound in the columns that it has: with From {"a":1} and To {"a":3} those with a
// = 1 and a = 2 come. An absent bound is none.
type KeyRange struct {
	Bucket  mink.BucketRef  `json:"bucket"`
	From    json.RawMessage `json:"from,omitempty"`
	To      json.RawMessage `json:"to,omitempty"`
	Columns []string        `json:"columns,omitempty"`
	Limit   int64           `json:"limit,omitempty"` // ends after so many rows; 0: none
}

// KeyPrefix reads the rows whose key begins with Key, in their order, as of one
// moment. Key has the first columns of the primary key, as a bound of KeyRange.
type KeyPrefix struct {
	Bucket  mink.BucketRef  `json:"bucket"`
	Key     json.RawMessage `json:"key"`
	Columns []string        `json:"columns,omitempty"`
	Limit   int64           `json:"limit,omitempty"` // ends after so many rows; 0: none
}

// SnapshotMetadata is the app_metadata of each batch of a Snapshot, KeyRange,
// KeyPrefix, Union or Lake. There is at least one batch; it may have no rows.
type SnapshotMetadata struct {
	// LogOffset is where the changelog goes on: a scan or a tail from there has every
	// change that the rows lack, and none that they have. It is the same in all batches.
	// -1 of a Lake.
	LogOffset mink.Offset   `json:"log_offset"`
	SchemaID  mink.SchemaID `json:"schema_id"` // version that the columns are of
}

// Exchange is the CMD descriptor of DoExchange: one of its members.
type Exchange struct {
	Scan   *Scan         `json:"scan,omitempty"` // a tail: the scan goes on for ever
	Lookup *LookupStream `json:"lookup,omitempty"`
}

// Bucket is the one bucket that an exchange is about; nil: it is about a table.
func (x Exchange) Bucket() *mink.BucketRef {
	switch {
	case x.Scan != nil:
		return &x.Scan.Bucket
	case x.Lookup != nil:
		return x.Lookup.Bucket
	}
	return nil
}

// LookupStream is a DoExchange of lookups. The client sends batches of the primary
// key's columns, as many ahead as it likes. Each is answered in order: the rows that
// were found, in the order of their keys, with LookupMetadata.
type LookupStream struct {
	Table string `json:"table,omitempty"` // "database.table": keys find their buckets here
	// Bucket, in place of a table, has all the keys; the partition's columns may be left out.
	Bucket  *mink.BucketRef `json:"bucket,omitempty"`
	Columns []string        `json:"columns,omitempty"` // of the rows; absent: all
}

// LookupMetadata is the app_metadata of each batch that answers lookups.
type LookupMetadata struct {
	Keys    int64   `json:"keys"`              // of the client's batch
	Missing []int32 `json:"missing,omitempty"` // places in it of the keys that have no row, ascending
	// More: further rows for the same keys come with the next batch, as when they do not
	// fit into one message. The last one has Missing.
	More bool `json:"more,omitempty"`
}

// Lookup finds rows by their keys; for many keys use a LookupStream.
type Lookup struct {
	Table string `json:"table"`
	// Keys are objects of the primary key's columns, {"id": 7}. Values are written as
	// "mink write --format json" takes them: a DECIMAL and a whole number as number or
	// in quotes, BYTES in base64, a TIMESTAMP as "2026-01-31T07:05:00".
	Keys    []json.RawMessage `json:"keys"`
	Columns []string          `json:"columns,omitempty"` // of the rows; absent: all
}

// LookupRows answers Lookup.
type LookupRows struct {
	Rows    []json.RawMessage `json:"rows"`    // one per key, in their order; null: there is none
	Missing []int             `json:"missing"` // places of the keys that have none, ascending
}

// PrefixLookup finds the rows whose key begins with a prefix. It must tell the
// bucket: the prefix has the partition's columns and the bucket keys.
type PrefixLookup struct {
	Table   string          `json:"table"`
	Prefix  json.RawMessage `json:"prefix"` // an object of the first columns of the primary key
	Columns []string        `json:"columns,omitempty"`
	Limit   int64           `json:"limit,omitempty"` // rows; 0: 1000, which is also the most
}

// PrefixRows answers PrefixLookup, in the order of the keys.
type PrefixRows struct {
	Rows []json.RawMessage `json:"rows"`
	More bool              `json:"more,omitempty"` // there are rows beyond the limit: read them with a KeyPrefix
}

// CountRequest counts the rows of a primary-key table, or of one partition of it.
type CountRequest struct {
	Table     string   `json:"table"`
	Partition []string `json:"partition,omitempty"`
	// Buckets restricts to these buckets of the table; absent: all.
	Buckets []mink.BucketRef `json:"buckets,omitempty"`
}

// Counts answers CountRequest.
type Counts struct {
	Rows    int64         `json:"rows"`
	Buckets []BucketCount `json:"buckets"`
}

// BucketCount is one bucket's number of rows.
type BucketCount struct {
	Bucket mink.BucketRef `json:"bucket"`
	Rows   int64          `json:"rows"`
	Values []string       `json:"partition,omitempty"` // partition values
}
