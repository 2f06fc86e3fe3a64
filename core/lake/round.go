package lake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// round is the open round of a handle. Buckets come one after the other, so that
// one bucket's files are open at a time.
type round struct {
	t      *lakeTable
	req    sink.BeginRoundRequest
	tbl    *table.Table // as it was when the round began
	rows   fileKind
	bucket *bucketRound
	done   map[mink.BucketRef]bool
	files  []iceberg.DataFile
	pinned bool // position deletes were asked for
	// replaced are the locations of the files that those of a compaction take the place of.
	replaced []string
	// lakeFiles are the data files of tbl's snapshot, once listed.
	lakeFiles []lakeFile
	listed    bool
}

// bucketRound is the bucket that is being written.
type bucketRound struct {
	ref    mink.BucketRef
	end    mink.Offset    // of what was written
	values map[int]any    // of the partition, once a row was seen
	n      int            // files that were named
	files  *parquetWriter // of a log table, or of a snapshot
	key    []byte         // the last one of a snapshot
	fold   *fold          // of a primary-key table
}

func (t *lakeTable) newRound(req sink.BeginRoundRequest, tbl *table.Table) (*round, error) {
	kind, err := newFileKind(iceberg.EntryContentData, t.cols.ice)
	if err != nil {
		return nil, err
	}
	kind.spec, kind.version = t.partitioning, tbl.Metadata().Version()
	if len(t.spec.PrimaryKey) > 0 && sortedByKey(tbl, t.cols.mink, t.spec.PrimaryKey) {
		kind.sortOrder = tbl.SortOrder().OrderID()
	}
	return &round{t: t, req: req, tbl: tbl, rows: kind, done: map[mink.BucketRef]bool{}}, nil
}

// sortedByKey says whether the table's order is the one that Mink's files have.
func sortedByKey(tbl *table.Table, s *schema.Schema, primaryKey []string) bool {
	want, err := SortOrder(s, primaryKey)
	if err != nil || want.Len() != tbl.SortOrder().Len() {
		return false
	}
	return want.Equals(tbl.SortOrder())
}

func (r *round) write(ctx context.Context, req sink.WriteRequest) error {
	if r.bucket == nil || r.bucket.ref != req.Bucket {
		if err := r.endBucket(ctx); err != nil {
			return err
		}
		if r.done[req.Bucket] {
			return fmt.Errorf("%w: bucket %s comes again after another one", sink.ErrInvalid, req.Bucket)
		}
		r.bucket = &bucketRound{ref: req.Bucket, end: req.Start}
	}
	b := r.bucket
	if req.Start != b.end {
		return fmt.Errorf("%w: bucket %s: offsets [%d, %d) after %d", sink.ErrInvalid, req.Bucket, req.Start, req.End, b.end)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if req.Batch.NumRows() > 0 {
		if err := r.add(ctx, req); err != nil {
			return fmt.Errorf("bucket %s: %w", req.Bucket, err)
		}
	}
	b.end = req.End
	return nil
}

func (r *round) add(ctx context.Context, req sink.WriteRequest) error {
	batch, err := toIceberg(r.t.sink.cfg.Allocator, r.rows.arrow, req.Batch)
	if err != nil {
		return err
	}
	defer batch.Release()
	b := r.bucket
	if b.values == nil {
		if b.values, err = partitionValues(r.t.partitioning, r.t.cols, batch, req.Bucket); err != nil {
			return err
		}
	}
	keyed := len(r.t.spec.PrimaryKey) > 0
	if keyed && b.files != nil && !req.Snapshot || b.fold != nil && req.Snapshot {
		return fmt.Errorf("%w: a snapshot is the only part of its bucket in a round", sink.ErrInvalid)
	}
	if keyed && !req.Snapshot {
		if b.fold == nil {
			if b.fold, err = newFold(r.t.sink.cfg, r.t.cols.mink, r.t.spec.PrimaryKey, r.rows.arrow); err != nil {
				return err
			}
		}
		return b.fold.add(ctx, req.Batch, batch, req.Changes)
	}
	if b.files == nil {
		b.files = r.newFiles(ctx, r.rows, dataSuffix)
	}
	b.files.ctx = ctx
	if keyed && b.files.sortOrder != 0 {
		rising, err := b.rises(r.t, req.Batch)
		if err != nil {
			return err
		}
		if !rising { // the order is not claimed of a file that does not have it
			b.files.sortOrder = 0
		}
	}
	return b.files.Write(batch)
}

// rises says whether the keys of a snapshot's rows go on in their order, as those
// of a KV snapshot do: it is written as it comes, without a sort.
func (b *bucketRound) rises(t *lakeTable, batch arrow.RecordBatch) (bool, error) {
	enc, err := keyenc.New(t.cols.mink, t.spec.PrimaryKey)
	if err == nil {
		err = enc.Bind(batch)
	}
	if err != nil {
		return false, err
	}
	var key []byte
	for i := range int(batch.NumRows()) {
		if key = enc.Append(key[:0], i); b.key != nil && bytes.Compare(key, b.key) <= 0 {
			return false, nil
		}
		b.key = append(b.key[:0], key...)
	}
	return true, nil
}

// newFiles writes files of one kind of the current bucket.
func (r *round) newFiles(ctx context.Context, kind fileKind, suffix string) *parquetWriter {
	b := r.bucket
	kind.values = b.values
	return &parquetWriter{fileKind: kind, ctx: ctx, store: r.t.store, mem: r.t.sink.cfg.Allocator, target: r.t.sink.cfg.FileBytes, name: func() (string, string) {
		key := r.t.dir + fileName(r.req.Round, b.ref, b.n, suffix)
		b.n++
		return key, r.t.sink.w.Location(key)
	}}
}

// endBucket finishes the files of the current bucket.
func (r *round) endBucket(ctx context.Context) error {
	b := r.bucket
	if b == nil {
		return nil
	}
	r.done[b.ref] = true
	if b.fold != nil {
		if err := r.writeFold(ctx, b.fold); err != nil {
			return fmt.Errorf("bucket %s: %w", b.ref, err)
		}
	}
	if b.files != nil {
		b.files.ctx = ctx
		if err := b.files.finish(); err != nil {
			return fmt.Errorf("bucket %s: %w", b.ref, err)
		}
		r.files = append(r.files, b.files.done...)
	}
	r.bucket = nil
	return nil
}

func (r *round) prepare(ctx context.Context) ([]byte, error) {
	if err := r.endBucket(ctx); err != nil {
		return nil, err
	}
	if _, err := r.t.store.Head(ctx, r.t.stagedKey(r.req.Round, "open")); err != nil {
		return nil, err
	}
	meta := r.tbl.Metadata()
	note := stagedNote{Version: stagedVersion, Table: meta.TableUUID().String(), Round: r.req.Round, Schema: meta.CurrentSchema().ID, Spec: r.t.partitioning.ID(), Format: meta.Version(), Pinned: r.pinned}
	if s := meta.CurrentSnapshot(); s != nil {
		note.Planned = s.SnapshotID
	}
	if err := r.t.writeFiles(ctx, &note, r.files, r.replaced, meta); err != nil {
		return nil, err
	}
	return json.Marshal(note)
}

// abort ends what is open; the objects that are there stay for giveUp.
func (r *round) abort() {
	if b := r.bucket; b != nil {
		if b.files != nil {
			b.files.abort()
		}
		if b.fold != nil {
			b.fold.close()
		}
	}
	r.bucket = nil
}

// partitionValues are the values of the spec's fields for the bucket, which are
// the same for all of its rows.
func partitionValues(spec iceberg.PartitionSpec, c *columns, batch arrow.RecordBatch, ref mink.BucketRef) (map[int]any, error) {
	values := map[int]any{}
	for _, f := range spec.Fields() {
		if _, ok := f.Transform.(iceberg.IdentityTransform); !ok {
			values[f.FieldID] = ref.Index
			continue
		}
		i := c.mink.IndexByID(mink.FieldID(f.SourceID()))
		if i < 0 {
			return nil, fmt.Errorf("%w: partition key with field id %d is no column", sink.ErrInvalid, f.SourceID())
		}
		v, err := partitionValue(batch.Column(i), 0)
		if err != nil {
			return nil, fmt.Errorf("partition key %q: %w", c.mink.Columns[i].Name, err)
		}
		values[f.FieldID] = v
	}
	return values, nil
}

// partitionValue is a value as the library has it in manifests.
func partitionValue(a arrow.Array, row int) (any, error) {
	if a.IsNull(row) {
		return nil, fmt.Errorf("%w: null", sink.ErrInvalid)
	}
	switch a := a.(type) {
	case *array.Boolean:
		return a.Value(row), nil
	case *array.Int32:
		return a.Value(row), nil
	case *array.Int64:
		return a.Value(row), nil
	case *array.String:
		return string(append([]byte(nil), a.Value(row)...)), nil
	case *array.Binary:
		return append([]byte{}, a.Value(row)...), nil
	case *array.FixedSizeBinary:
		return append([]byte{}, a.Value(row)...), nil
	case *array.Date32:
		return iceberg.Date(a.Value(row)), nil
	case *array.Time64:
		return iceberg.Time(a.Value(row)), nil
	case *array.Timestamp:
		if a.DataType().(*arrow.TimestampType).Unit == arrow.Nanosecond {
			return iceberg.TimestampNano(a.Value(row)), nil
		}
		return iceberg.Timestamp(a.Value(row)), nil
	}
	return nil, fmt.Errorf("%w: no partition value of Arrow type %s", sink.ErrUnimplemented, a.DataType())
}

// renameKeys gives the keys of a table the names that they have in a newer schema.
func renameKeys(spec *sink.TableSpec, old *schema.Schema, next sink.Schema) error {
	names := map[string]string{} // by field id
	for _, f := range next.Arrow.Fields() {
		id, _ := f.Metadata.GetValue(mink.MetaFieldID)
		names[id] = f.Name
	}
	for _, keys := range []*[]string{&spec.PrimaryKey, &spec.PartitionKeys, &spec.BucketKeys} {
		renamed := make([]string, 0, len(*keys))
		for _, k := range *keys {
			c, ok := old.Column(k)
			if !ok {
				return fmt.Errorf("%w: key %q is no column", sink.ErrInvalid, k)
			}
			name, ok := names[strconv.Itoa(int(c.ID))]
			if !ok {
				return fmt.Errorf("%w: key column %q cannot be dropped", sink.ErrUnimplemented, k)
			}
			renamed = append(renamed, name)
		}
		*keys = renamed
	}
	return nil
}
