package union

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/sdk/mink"
)

// Rows is a run of a log: row i has offset Start+i, offsets in [Start+NumRows, End) have
// none, and the next run starts at End. Batch is released after the step that yielded it.
type Rows struct {
	Batch      arrow.RecordBatch
	Changes    []byte // mink.Change of each row; nil: appends
	Start, End mink.Offset
}

// Lake reads the rows that one bucket has in the pinned snapshot: the columns, in that
// order, of the rows for which the filter is true. nil columns are all of the target's.
// The batches are released after the step.
type Lake func(ctx context.Context, target *schema.Schema, columns []mink.FieldID, filter *predicate.Expr) iter.Seq2[arrow.RecordBatch, error]

// Tail reads [from, until) of a bucket's log in the columns of target, in which columns
// that are not of the primary key are nullable: a deleted row may have its key alone.
// The first run starts at from, the last one ends at until.
type Tail func(ctx context.Context, from, until mink.Offset, target *schema.Schema) iter.Seq2[Rows, error]

// Read is a read of one bucket. Lake and Tail may be called several times.
type Read struct {
	Descriptor *schema.Descriptor
	Target     *schema.Schema // version that the rows are given in
	Bucket     mink.BucketRef
	Columns    []mink.FieldID  // of the rows, in this order; nil: all
	Filter     *predicate.Expr // on columns of Target; nil: all rows
	Lake       Lake            // nil: nothing is in the lake
	Tail       Tail
	From       mink.Offset // where the tail begins: CheckTail
	Until      mink.Offset // and ends; not below From: else there is none
	// KeyBytes bounds the keys that are held in memory, with what holding them takes; 0:
	// DefaultKeyBytes.
	KeyBytes int64
	// Passes, when not nil, counts the passes over the lake.
	Passes func()
}

// DefaultKeyBytes is about half a million keys of 64 bytes.
const DefaultKeyBytes = 64 << 20

// Rows yields the bucket's rows: of the lake in no particular order, then of the tail in
// that of their offsets. Batches are released after the step; retain them to keep them. An
// error is the last thing that is yielded.
func (r Read) Rows(ctx context.Context) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		u, err := r.prepare(yield)
		if err == nil {
			err = u.run(ctx)
		}
		if err != nil {
			yield(nil, fmt.Errorf("union read of bucket %s: %w", r.Bucket, err))
		}
	}
}

// reading is a Read that runs. Not for concurrent use.
type reading struct {
	Read
	out   *schema.Schema // what is yielded
	tail  *schema.Schema // what is read of the tail: out, and what the filter looks at
	arrow *arrow.Schema  // of out
	match *predicate.Predicate
	yield func(arrow.RecordBatch, error) bool
	ended bool // the reader has enough
}

func (r Read) prepare(yield func(arrow.RecordBatch, error) bool) (*reading, error) {
	u := &reading{Read: r, yield: yield, out: r.Target}
	if r.Columns != nil {
		u.out = &schema.Schema{ID: r.Target.ID}
		for _, id := range r.Columns {
			i := r.Target.IndexByID(id)
			if i < 0 {
				return nil, fmt.Errorf("%w: schema %d has no field %d", mink.ErrInvalid, r.Target.ID, id)
			}
			u.out.Columns = append(u.out.Columns, r.Target.Columns[i])
		}
	}
	u.arrow = u.out.Arrow()
	u.tail = &schema.Schema{ID: u.out.ID, Columns: slices.Clone(u.out.Columns)}
	if r.Filter != nil {
		if err := addColumns(u.tail, r.Target, r.Filter.Columns()); err != nil {
			return nil, err
		}
		var err error
		if u.match, err = r.Filter.Bind(u.tail); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// addColumns adds columns by name that s lacks.
func addColumns(s, from *schema.Schema, names []string) error {
	for _, name := range names {
		c, ok := from.Column(name)
		if !ok {
			return fmt.Errorf("%w: schema %d has no column %q", mink.ErrInvalid, from.ID, name)
		}
		if s.IndexByID(c.ID) < 0 {
			s.Columns = append(s.Columns, c)
		}
	}
	return nil
}

func (u *reading) run(ctx context.Context) error {
	if len(u.Descriptor.PrimaryKey) > 0 {
		return u.keyed(ctx)
	}
	if err := u.lake(ctx, u.Columns, nil); err != nil || u.ended {
		return err
	}
	return u.readTail(ctx, func(rows Rows) ([]int32, error) { return nil, nil })
}

// lake yields the lake's rows, of which keep chooses (nil: all) and of whose columns the
// first are those of out.
func (u *reading) lake(ctx context.Context, columns []mink.FieldID, keep func(arrow.RecordBatch) ([]int32, error)) error {
	if u.Passes != nil {
		u.Passes()
	}
	if u.Lake == nil {
		return nil
	}
	for batch, err := range u.Lake(ctx, u.Target, columns, u.Filter) {
		if err != nil {
			return err
		}
		rows := batch
		rows.Retain()
		if keep != nil {
			places, err := keep(batch)
			if err == nil {
				rows.Release()
				rows, err = predicate.Keep(memory.DefaultAllocator, batch, places)
			}
			if err != nil {
				return err
			}
		}
		if u.emit(rows); u.ended {
			return nil
		}
	}
	return nil
}

// emit yields the columns of out, the first of rows, which it releases.
func (u *reading) emit(rows arrow.RecordBatch) {
	defer rows.Release()
	if rows.NumRows() == 0 {
		return
	}
	out := array.NewRecordBatch(u.arrow, rows.Columns()[:len(u.out.Columns)], rows.NumRows())
	defer out.Release()
	u.ended = !u.yield(out, nil)
}

// readTail yields rows of the tail for which the filter is true, of those that choose
// has; nil: all of them.
func (u *reading) readTail(ctx context.Context, choose func(Rows) ([]int32, error)) error {
	for rows, err := range u.tailRows(ctx, u.tail) {
		if err != nil {
			return err
		}
		places, err := choose(rows)
		if err != nil {
			return err
		}
		kept := rows.Batch
		kept.Retain()
		if places != nil {
			kept.Release()
			if kept, err = predicate.Keep(memory.DefaultAllocator, rows.Batch, places); err != nil {
				return err
			}
		}
		if u.match != nil && kept.NumRows() > 0 {
			all := kept
			kept, err = u.match.Filter(memory.DefaultAllocator, all)
			all.Release()
			if err != nil {
				return err
			}
		}
		if u.emit(kept); u.ended {
			return nil
		}
	}
	return nil
}

// tailRows reads the tail and checks that no offset is left out.
func (u *reading) tailRows(ctx context.Context, s *schema.Schema) iter.Seq2[Rows, error] {
	return func(yield func(Rows, error) bool) {
		if u.From >= u.Until {
			return
		}
		next := u.From
		for rows, err := range u.Tail(ctx, u.From, u.Until, u.nullable(s)) {
			if err == nil && (rows.Start != next || rows.End < rows.Start+mink.Offset(rows.Batch.NumRows()) || rows.Changes != nil && int64(len(rows.Changes)) != rows.Batch.NumRows()) {
				err = fmt.Errorf("%w: the log has %d rows of [%d, %d) behind offset %d", mink.ErrCorrupt, rows.Batch.NumRows(), rows.Start, rows.End, next)
			}
			if err != nil {
				yield(Rows{}, err)
				return
			}
			next = rows.End
			if !yield(rows, nil) {
				return
			}
		}
		if next != u.Until {
			yield(Rows{}, fmt.Errorf("the log was read up to offset %d, want %d: %w", next, u.Until, mink.ErrUnavailable))
		}
	}
}

// nullable is s with columns that a deleted row may lack.
func (u *reading) nullable(s *schema.Schema) *schema.Schema {
	if len(u.Descriptor.PrimaryKey) == 0 {
		return s
	}
	out := s.Clone()
	for i, c := range out.Columns {
		if !slices.Contains(u.Descriptor.PrimaryKey, c.Name) {
			out.Columns[i].Type.NotNull = false
		}
	}
	return &out
}
