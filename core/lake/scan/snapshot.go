package scan

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// Layout is how the rows of a table are spread over its buckets: what is needed for files
// that do not say which bucket they are of.
type Layout struct {
	Table      mink.TableID
	Descriptor *schema.Descriptor
	// Partitions yields the table's partitions with their canonical values; rows of other
	// ones belong to partition 0.
	Partitions iter.Seq2[mink.PartitionID, []string]
	// BucketOf reads the bucket off the location of a file that Mink wrote.
	BucketOf func(location string) (mink.BucketRef, bool)
}

// Snapshot is one snapshot of a lake table. Safe for concurrent use.
type Snapshot struct {
	table  *table.Table
	id     int64
	schema *iceberg.Schema // of the snapshot
	layout Layout
	fixed  map[int]bool // field ids whose type never changed
}

// Open pins a snapshot of a loaded table. A snapshot that its metadata does not have (any
// more) wraps mink.ErrNotExist.
func Open(t *table.Table, id int64, layout Layout) (*Snapshot, error) {
	snap := t.SnapshotByID(id)
	if snap == nil || id == 0 {
		return nil, fmt.Errorf("lake snapshot %d of %v %w: it was expired, plan the read anew", id, t.Identifier(), mink.ErrNotExist)
	}
	s := &Snapshot{table: t, id: id, schema: t.Schema(), layout: layout, fixed: fixedTypes(t.Metadata().Schemas())}
	if snap.SchemaID != nil {
		s.schema = t.Schemas()[*snap.SchemaID]
	}
	if s.schema == nil {
		return nil, fmt.Errorf("lake snapshot %d of %v: %w: its schema %d is not in the table's metadata", id, t.Identifier(), mink.ErrCorrupt, *snap.SchemaID)
	}
	return s, nil
}

// ID is the Iceberg snapshot's id in decimal, as sink.CommitResponse has it.
func (s *Snapshot) ID() string { return strconv.FormatInt(s.id, 10) }

// fixedTypes finds the columns that have one type in all schemas of a table: files of
// older schemas make the library fail on filters on the others.
func fixedTypes(schemas []*iceberg.Schema) map[int]bool {
	types := map[int]iceberg.Type{}
	fixed := map[int]bool{}
	for _, sc := range schemas {
		for _, f := range sc.Fields() {
			seen, ok := types[f.ID]
			fixed[f.ID] = !ok || fixed[f.ID] && seen.Equals(f.Type)
			types[f.ID] = f.Type
		}
	}
	return fixed
}

func (s *Snapshot) scan(options ...table.ScanOption) *table.Scan {
	return s.table.Scan(append(options, table.WithSnapshotID(s.id), table.WithScanPlanningMode(table.ScanPlanningLocal))...)
}

// plan lists the files of the snapshot that may have rows for the filter, with their
// deletes. What is left of the filter for each (Residual) is dropped: another one is
// evaluated when they are read.
func (s *Snapshot) plan(ctx context.Context, filter table.ScanOption) ([]table.FileScanTask, error) {
	tasks, err := s.scan(filter).PlanFiles(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	for i := range tasks {
		tasks[i].Residual = nil
		if tasks[i].File.FileFormat() != iceberg.ParquetFile {
			return nil, fmt.Errorf("file %s is %s: %w, lake tables are read from Parquet", tasks[i].File.FilePath(), tasks[i].File.FileFormat(), mink.ErrUnsupported)
		}
	}
	return tasks, nil
}
