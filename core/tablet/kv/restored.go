package kv

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cockroachdb/pebble/v2"

	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/sdk/mink"
)

// Restored is a store that a KV snapshot was restored to, open to read: no log belongs
// to it, and it changes no more. One Scan at a time.
type Restored struct {
	store *store
	meta  meta
	set   *settings
}

// OpenRestored opens the store in dir, which nothing else has open. The table must know
// all schema versions of its rows. mink.ErrCorrupt: the files are of no use.
func (s *Shared) OpenRestored(dir string, bucket mink.BucketRef, table Table) (*Restored, error) {
	set, err := compile(table)
	if err != nil {
		return nil, fmt.Errorf("store of bucket %s: %w", bucket, err)
	}
	st := &store{dir: dir, bucket: bucket, failed: &failure{}}
	o := s.options(st)
	o.ReadOnly = true
	if st.db, err = pebble.Open(dir, o); err != nil {
		err = errors.Join(st.failed.get(), storeError(err))
		if !diskTrouble(err) && !errors.Is(err, mink.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", mink.ErrCorrupt, err)
		}
		return nil, fmt.Errorf("store of bucket %s: open %s: %w", bucket, dir, err)
	}
	m, err := st.readMeta(st.db)
	if err == nil {
		err = st.failed.get()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store of bucket %s in %s: %w", bucket, dir, err), st.db.Close())
	}
	return &Restored{st, m, set}, nil
}

// Offset is the first offset of the changelog that is not in the store.
func (r *Restored) Offset() mink.Offset { return r.meta.flushed }

// Rows is the number of rows, -1 when it is not known.
func (r *Restored) Rows() int64 { return r.meta.rows }

// Close closes it; the directory stays.
func (r *Restored) Close() error { return storeError(r.store.db.Close()) }

// Scan yields all rows in the order of their keys, brought to the target schema by field
// id, in batches of at most rowsMax rows and about bytesMax bytes. A batch is released
// after yield returns. Errors, the last pair: mink.ErrCorrupt; mink.ErrUnavailable when
// the target does not fit the table's current schema; ctx's.
func (r *Restored) Scan(ctx context.Context, target *schema.Schema, rowsMax, bytesMax int) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		err := r.scan(ctx, target, rowsMax, bytesMax, func(rec arrow.RecordBatch) bool { return yield(rec, nil) })
		if err == nil {
			err = r.store.failed.get()
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(nil, fmt.Errorf("scan of the KV snapshot of bucket %s at offset %d: %w", r.store.bucket, r.meta.flushed, err))
		}
	}
}

// errEnough: the consumer wants no more.
var errEnough = errors.New("the consumer has enough")

func (r *Restored) scan(ctx context.Context, target *schema.Schema, rowsMax, bytesMax int, yield func(arrow.RecordBatch) bool) (err error) {
	plan, err := evolve.NewPlan(r.set.current, target)
	if err != nil {
		return fmt.Errorf("rows of schema %d cannot be read as those of schema %d: %w: %w", r.set.current.ID, target.ID, mink.ErrUnavailable, err)
	}
	b, err := r.set.codec.Builder(nil)
	if err != nil {
		return err
	}
	it, err := r.store.db.NewIter(&pebble.IterOptions{LowerBound: []byte{rowPrefix}, UpperBound: []byte{rowsEnd}})
	if err != nil {
		return storeError(err)
	}
	defer func() { err = errors.Join(err, storeError(it.Close())) }()
	var scratch []byte
	for ok := it.First(); ok; ok = it.Next() {
		if b.Len() >= rowsMax || b.Len() > 0 && b.Bytes() >= bytesMax {
			if err := emitRestored(ctx, b, plan, yield); err != nil {
				return err
			}
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return storeError(err)
		}
		if scratch, err = appendRow(r.set, b, scratch, value); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return storeError(err)
	}
	if b.Len() == 0 {
		return nil
	}
	return emitRestored(ctx, b, plan, yield)
}

func emitRestored(ctx context.Context, b *row.Builder, plan *evolve.Plan, yield func(arrow.RecordBatch) bool) error {
	stored := b.NewBatch()
	defer stored.Release()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	rec, err := plan.Remap(allocator, stored)
	if err != nil {
		return err
	}
	defer rec.Release()
	if !yield(rec) {
		return errEnough
	}
	return nil
}
