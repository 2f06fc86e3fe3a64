package lake

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/sink"
)

// How deletes are written; the table option lake_deletes.
const (
	deletesEquality = "equality"
	deletesPosition = "position"
)

// deleter writes one kind of deletes of one bucket.
type deleter interface {
	delete(keys arrow.RecordBatch) error
	finish() ([]iceberg.DataFile, error)
	abort()
}

// foldOutput writes what a fold makes.
type foldOutput struct {
	rows    *parquetWriter
	deletes deleter
}

func (o foldOutput) row(rows arrow.RecordBatch) error { return o.rows.Write(rows) }

func (o foldOutput) delete(keys arrow.RecordBatch) error { return o.deletes.delete(keys) }

// writeFold writes a bucket's files.
func (r *round) writeFold(ctx context.Context, f *fold) error {
	deletes, err := r.newDeleter(ctx)
	if err != nil {
		f.close()
		return err
	}
	out := foldOutput{rows: r.newFiles(ctx, r.rows, dataSuffix), deletes: deletes}
	err = f.emit(ctx, out)
	if err == nil {
		err = out.rows.finish()
	}
	var deleteFiles []iceberg.DataFile
	if err == nil {
		deleteFiles, err = deletes.finish()
	}
	if err != nil {
		out.rows.abort()
		deletes.abort()
		return err
	}
	r.files = append(append(r.files, out.rows.done...), deleteFiles...)
	return nil
}

func (r *round) newDeleter(ctx context.Context) (deleter, error) {
	switch how := r.t.spec.Options[optionDeletes]; how {
	case deletesEquality:
		return r.newEqualityDeletes(ctx)
	case "", deletesPosition: // the default of schema.Options
		return r.newPositionDeletes(ctx)
	default:
		return nil, fmt.Errorf("%w: option %s is %q, want %s or %s", sink.ErrInvalid, optionDeletes, how, deletesEquality, deletesPosition)
	}
}

// equalityDeletes has the keys whose older rows are gone, as rows of the key
// columns.
type equalityDeletes struct{ w *parquetWriter }

func (r *round) newEqualityDeletes(ctx context.Context) (*equalityDeletes, error) {
	var key schema.Schema
	for _, name := range r.t.spec.PrimaryKey {
		key.Columns = append(key.Columns, r.t.cols.mink.Columns[r.t.cols.mink.Index(name)])
	}
	ice, err := IcebergSchema(&key, r.t.spec.PrimaryKey)
	if err != nil {
		return nil, err
	}
	kind, err := newFileKind(iceberg.EntryContentEqDeletes, ice)
	if err != nil {
		return nil, err
	}
	kind.spec, kind.version = r.rows.spec, r.rows.version
	for _, c := range key.Columns {
		kind.equality = append(kind.equality, int(c.ID))
	}
	return &equalityDeletes{r.newFiles(ctx, kind, deletesSuffix)}, nil
}

func (e *equalityDeletes) delete(keys arrow.RecordBatch) error {
	batch := array.NewRecordBatch(e.w.arrow, keys.Columns(), keys.NumRows())
	defer batch.Release()
	return e.w.Write(batch)
}

func (e *equalityDeletes) finish() ([]iceberg.DataFile, error) {
	err := e.w.finish()
	return e.w.done, err
}

func (e *equalityDeletes) abort() { e.w.abort() }
