// Package routing splits a batch of rows by the partition and the bucket that
// each row belongs to: what a table-addressed write and a client's writer do
// before they append.
package routing

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/bucketing"
	"github.com/mink-project/mink/core/schema/partition"
)

// Part is the rows of one bucket, in the order they had in the batch.
type Part struct {
	Values []string // canonical partition values, in key order; empty without partition keys
	Bucket int32
	Rows   arrow.RecordBatch // to be released
}

// Router splits batches of one table at one schema version. It is stateless and
// safe for concurrent use.
type Router struct {
	buckets   int32
	bucketer  *bucketing.Bucketer // nil: batches take turns
	partition *partition.Reader   // nil: no partition keys
}

// New makes a table's router.
func New(d *schema.Descriptor) (*Router, error) {
	r := &Router{buckets: d.BucketCount}
	var err error
	if len(d.BucketKeys) > 0 {
		if r.bucketer, err = bucketing.New(d); err != nil {
			return nil, err
		}
	}
	if len(d.PartitionKeys) > 0 {
		if r.partition, err = partition.NewReader(d); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// slot is where one row goes: an index into the partitions seen in this batch,
// and the bucket.
type slot struct{ part, bucket int32 }

// Split answers the parts in the order of their first rows. turn chooses the
// bucket of a table without bucket keys; the caller counts it up per batch.
// Release every part's Rows.
func (r *Router) Split(mem memory.Allocator, rec arrow.RecordBatch, turn uint32) ([]Part, error) {
	n := int(rec.NumRows())
	if n == 0 {
		return nil, nil
	}
	buckets := make([]int32, n)
	if r.bucketer != nil {
		if err := r.bucketer.Buckets(rec, buckets); err != nil {
			return nil, err
		}
	} else {
		b := int32(turn % uint32(r.buckets))
		for i := range buckets {
			buckets[i] = b
		}
	}
	partitions, values, err := r.partitionsOf(rec)
	if err != nil {
		return nil, err
	}
	return split(mem, rec, buckets, partitions, values)
}

// partitionsOf answers for each row the index of its partition in values; nil
// when there is only one.
func (r *Router) partitionsOf(rec arrow.RecordBatch) ([]int32, [][]string, error) {
	if r.partition == nil {
		return nil, [][]string{nil}, nil
	}
	groups, err := r.partition.Split(rec, int(rec.NumRows()))
	if err != nil {
		return nil, nil, err
	}
	at := make([]int32, rec.NumRows())
	values := make([][]string, len(groups))
	for i, g := range groups {
		values[i] = g.Values
		for _, row := range g.Rows {
			at[row] = int32(i)
		}
	}
	return at, values, nil
}

func split(mem memory.Allocator, rec arrow.RecordBatch, buckets, partitions []int32, values [][]string) ([]Part, error) {
	rows := map[slot][]int32{}
	var order []slot
	for i, b := range buckets {
		s := slot{bucket: b}
		if partitions != nil {
			s.part = partitions[i]
		}
		if _, ok := rows[s]; !ok {
			order = append(order, s)
		}
		rows[s] = append(rows[s], int32(i))
	}
	if len(order) == 1 {
		rec.Retain()
		return []Part{{Values: values[order[0].part], Bucket: order[0].bucket, Rows: rec}}, nil
	}
	parts := make([]Part, 0, len(order))
	for _, s := range order {
		taken, err := take(mem, rec, rows[s])
		if err != nil {
			for _, p := range parts {
				p.Rows.Release()
			}
			return nil, err
		}
		parts = append(parts, Part{Values: values[s.part], Bucket: s.bucket, Rows: taken})
	}
	return parts, nil
}

// take gathers rows; a run of consecutive ones is a slice, which copies nothing.
func take(mem memory.Allocator, rec arrow.RecordBatch, rows []int32) (arrow.RecordBatch, error) {
	if int(rows[len(rows)-1]-rows[0]) == len(rows)-1 {
		return rec.NewSlice(int64(rows[0]), int64(rows[len(rows)-1])+1), nil
	}
	return Take(mem, rec, rows)
}

// Take answers rows of a batch by their places, in any order, as a batch of its own;
// the caller releases it.
func Take(mem memory.Allocator, rec arrow.RecordBatch, rows []int32) (arrow.RecordBatch, error) {
	b := array.NewInt32Builder(mem)
	defer b.Release()
	b.AppendValues(rows, nil)
	indices := b.NewInt32Array()
	defer indices.Release()
	ctx := compute.WithAllocator(context.Background(), mem)
	columns := make([]arrow.Array, 0, rec.NumCols())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, c := range rec.Columns() {
		taken, err := compute.TakeArrayOpts(ctx, c, indices, compute.TakeOptions{BoundsCheck: false})
		if err != nil {
			return nil, fmt.Errorf("gather rows of column %q: %w", rec.ColumnName(i), err)
		}
		columns = append(columns, taken)
	}
	return array.NewRecordBatch(rec.Schema(), columns, int64(len(rows))), nil
}
