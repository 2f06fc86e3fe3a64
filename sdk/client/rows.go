package client

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/sdk/mink"
)

// recordBytes is about how much memory a batch holds.
func recordBytes(rec arrow.RecordBatch) int64 {
	n := rec.NumRows()
	for _, c := range rec.Columns() {
		n += int64(c.Data().SizeInBytes())
	}
	return n
}

// project answers rec's columns under want, the table's schema: from[i] is
// rec's position of column i, -1 for one that is all null.
func project(mem memory.Allocator, rec arrow.RecordBatch, want *arrow.Schema, from []int) (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, want.NumFields())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, f := range want.Fields() {
		if from[i] < 0 {
			columns[i] = array.MakeArrayOfNull(mem, f.Type, int(rec.NumRows()))
			continue
		}
		d := retype(rec.Column(from[i]).Data(), f.Type)
		columns[i] = array.MakeFromData(d)
		d.Release()
	}
	return array.NewRecordBatch(want, columns, rec.NumRows()), nil
}

// retype answers the same buffers under a type of the same layout: names of
// nested fields and zones may differ.
func retype(d arrow.ArrayData, t arrow.DataType) arrow.ArrayData {
	var children []arrow.ArrayData
	if n, ok := t.(arrow.NestedType); ok {
		for i, f := range n.Fields() {
			children = append(children, retype(d.Children()[i], f.Type))
		}
	}
	defer func() {
		for _, c := range children {
			c.Release()
		}
	}()
	return array.NewData(t, d.Len(), d.Buffers(), children, d.NullN(), d.Offset())
}

// join puts batches of one schema together, in order.
func join(mem memory.Allocator, schema *arrow.Schema, recs []arrow.RecordBatch) (arrow.RecordBatch, error) {
	if len(recs) == 1 {
		recs[0].Retain()
		return recs[0], nil
	}
	columns := make([]arrow.Array, schema.NumFields())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	var rows int64
	for _, r := range recs {
		rows += r.NumRows()
	}
	chunk := make([]arrow.Array, len(recs))
	for i := range columns {
		for j, r := range recs {
			chunk[j] = r.Column(i)
		}
		c, err := array.Concatenate(chunk, mem)
		if err != nil {
			return nil, fmt.Errorf("join batches of column %q: %w", schema.Field(i).Name, err)
		}
		columns[i] = c
	}
	return array.NewRecordBatch(schema, columns, rows), nil
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// encodedBytes is how long a batch is as an IPC message; unlike recordBytes it
// sees how little of its buffers a slice uses.
func encodedBytes(rec arrow.RecordBatch) (int64, error) {
	p, err := ipc.GetRecordBatchPayload(rec)
	if err != nil {
		return 0, err
	}
	defer p.Release()
	meta := p.Meta()
	defer meta.Release()
	n := counter(meta.Len())
	err = p.SerializeBody(&n)
	return int64(n), err
}

// cutParts takes parts over and cuts their rows so that each piece is a message
// of at most limit bytes, or a single row.
func cutParts(parts []routing.Part, limit int64) ([]routing.Part, error) {
	out := make([]routing.Part, 0, len(parts))
	for i, p := range parts {
		var err error
		out, err = cutPart(out, p, limit)
		p.Rows.Release()
		if err != nil {
			for _, rest := range parts[i+1:] {
				rest.Rows.Release()
			}
			for _, done := range out {
				done.Rows.Release()
			}
			return nil, err
		}
	}
	return out, nil
}

func cutPart(out []routing.Part, p routing.Part, limit int64) ([]routing.Part, error) {
	n := p.Rows.NumRows()
	if n > 1 && recordBytes(p.Rows) > limit {
		size, err := encodedBytes(p.Rows)
		if err != nil {
			return out, err
		}
		if size > limit {
			for _, half := range [][2]int64{{0, n / 2}, {n / 2, n}} {
				piece := routing.Part{Values: p.Values, Bucket: p.Bucket, Rows: p.Rows.NewSlice(half[0], half[1])}
				out, err = cutPart(out, piece, limit)
				piece.Rows.Release()
				if err != nil {
					return out, err
				}
			}
			return out, nil
		}
	}
	p.Rows.Retain()
	return append(out, p), nil
}

// emptyRows is a batch without rows.
func emptyRows(s *arrow.Schema) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	return b.NewRecordBatch()
}

// sameColumns refuses what does not have the names and layouts of the columns that
// were asked for.
func sameColumns(got, want *arrow.Schema) error {
	same := got.NumFields() == want.NumFields()
	for i := 0; same && i < want.NumFields(); i++ {
		same = got.Field(i).Name == want.Field(i).Name && arrow.TypeEqual(got.Field(i).Type, want.Field(i).Type)
	}
	if !same {
		return fmt.Errorf("the node answers %s, not the columns %s that were asked for: the table was altered, open it again: %w", got, want, mink.ErrConflict)
	}
	return nil
}

// relabel answers rec under a schema of the same columns: names of nested fields and
// metadata may differ.
func relabel(rec arrow.RecordBatch, want *arrow.Schema) (arrow.RecordBatch, error) {
	from := make([]int, want.NumFields())
	for i := range from {
		from[i] = i
	}
	return project(memory.DefaultAllocator, rec, want, from)
}
