// Package evolve brings record batches that were written under an older schema
// version to another version. Columns and nested fields are matched by field id,
// so that a rename changes nothing and a dropped and re-added name is a new
// column:
//
//	id in both        same values, cast where the type was promoted
//	id only in to     null
//	id only in from   gone
//
// What did not change is shared with the input, not copied.
package evolve

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// MaxNullBytes bounds the buffers that are made for one added column of nulls.
const MaxNullBytes = 1 << 30

// Plan remaps batches of one schema version to another. Immutable: safe for
// concurrent use.
type Plan struct {
	from, to *schema.Schema
	arrow    *arrow.Schema
	columns  []int // position in from of column i of to, -1: added
	same     bool
}

// NewPlan checks that every type of from can become its type of to. Both may be
// projections of a schema version: the same columns must then be in the batches.
func NewPlan(from, to *schema.Schema) (*Plan, error) {
	p := &Plan{from: from, to: to, arrow: to.Arrow(), columns: make([]int, len(to.Columns)), same: len(from.Columns) == len(to.Columns)}
	for i, c := range to.Columns {
		at := -1
		if c.ID != 0 { // 0: not assigned, equal to nothing
			at = from.IndexByID(c.ID)
		}
		p.columns[i] = at
		if at < 0 {
			if c.Type.NotNull {
				return nil, fmt.Errorf("%w: remap schema %d to %d: column %q is NOT NULL and absent from the older version", mink.ErrInvalid, from.ID, to.ID, c.Name)
			}
			p.same = false
			continue
		}
		if err := check(from.Columns[at].Type, c.Type, c.Name); err != nil {
			return nil, fmt.Errorf("remap schema %d to %d: %w", from.ID, to.ID, err)
		}
		p.same = p.same && at == i && unchanged(from.Columns[at].Type, c.Type)
	}
	p.same = p.same && from.Arrow().Equal(p.arrow) // names and nullability, inside too
	return p, nil
}

// Schema is the Arrow schema of the results.
func (p *Plan) Schema() *arrow.Schema { return p.arrow }

// Same reports that batches need no change: Remap would return its input.
func (p *Plan) Same() bool { return p.same }

// Remap makes the batch of the newer version. The caller releases the result and
// still owns rec. Columns of rec are taken by their position in from.
func (p *Plan) Remap(mem memory.Allocator, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	if int(rec.NumCols()) != len(p.from.Columns) {
		return nil, fmt.Errorf("%w: remap schema %d to %d: the batch has %d columns, want %d", mink.ErrInvalid, p.from.ID, p.to.ID, rec.NumCols(), len(p.from.Columns))
	}
	if p.same {
		rec.Retain()
		return rec, nil
	}
	columns := make([]arrow.Array, 0, len(p.columns))
	defer func() { // NewRecordBatch holds its own references
		for _, c := range columns {
			c.Release()
		}
	}()
	m := mapper{mem: mem}
	for i, at := range p.columns {
		c := p.to.Columns[i]
		var arr arrow.Array
		var err error
		if at < 0 {
			arr, err = m.nulls(c.Type, int(rec.NumRows()), c.Name)
		} else {
			from, col := p.from.Columns[at].Type, rec.Column(at)
			if !from.Accepts(col.DataType()) {
				return nil, fmt.Errorf("%w: remap schema %d to %d: column %q of the batch is %s, want %s", mink.ErrInvalid, p.from.ID, p.to.ID, c.Name, col.DataType(), from.Arrow())
			}
			arr, err = m.remap(col, from, c.Type, c.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("remap schema %d to %d: %w", p.from.ID, p.to.ID, err)
		}
		columns = append(columns, arr)
	}
	return array.NewRecordBatch(p.arrow, columns, rec.NumRows()), nil
}

// Remap is NewPlan and Plan.Remap for a single batch.
func Remap(mem memory.Allocator, rec arrow.RecordBatch, from, to *schema.Schema) (arrow.RecordBatch, error) {
	p, err := NewPlan(from, to)
	if err != nil {
		return nil, err
	}
	return p.Remap(mem, rec)
}

// check is schema.Promotable with fields matched by id.
func check(from, to schema.Type, path string) error {
	if from.Kind != to.Kind || !from.Nested() {
		return schema.Promotable(from, to, path)
	}
	for i, f := range to.Fields {
		inner := path + "." + f.Name
		at := FieldIn(from, to, i)
		if at < 0 {
			if f.Type.NotNull {
				return fmt.Errorf("%w column %q: it is NOT NULL and absent from the older version", mink.ErrInvalid, inner)
			}
			continue
		}
		if err := check(from.Fields[at].Type, f.Type, inner); err != nil {
			return err
		}
	}
	return nil
}

// FieldIn finds the field of from that field i of to continues, -1 when none. The
// fields of ARRAY and MAP continue each other by place.
func FieldIn(from, to schema.Type, i int) int {
	if to.Kind != schema.Row {
		return i
	}
	for at, f := range from.Fields {
		if f.ID == to.Fields[i].ID && f.ID != 0 {
			return at
		}
	}
	return -1
}

// unchanged reports that values of from are values of to as they are.
func unchanged(from, to schema.Type) bool {
	if !from.SameShape(to) {
		return false
	}
	for i := range to.Fields {
		if FieldIn(from, to, i) != i || !unchanged(from.Fields[i].Type, to.Fields[i].Type) {
			return false
		}
	}
	return true
}

// mapper makes arrays; every result is a reference of the caller's.
type mapper struct{ mem memory.Allocator }

func (m mapper) remap(arr arrow.Array, from, to schema.Type, path string) (arrow.Array, error) {
	if unchanged(from, to) {
		return retyped(arr, to.Arrow()), nil
	}
	switch {
	case from.Kind != to.Kind || !from.Nested():
		return m.cast(arr, from, to, path)
	case to.Kind == schema.Row:
		return m.row(arr.(*array.Struct), from, to, path)
	case to.Kind == schema.Array:
		list := arr.(*array.List)
		return m.list(arr, list.Offsets(), list.ListValues(), to, func(values arrow.Array) (arrow.Array, error) {
			return m.remap(values, from.Fields[0].Type, to.Fields[0].Type, path+"."+schema.ElementName)
		})
	}
	mp := arr.(*array.Map)
	entriesFrom, entriesTo := schema.RowOf(from.Fields...), schema.RowOf(to.Fields...)
	return m.list(arr, mp.Offsets(), mp.ListValues(), to, func(values arrow.Array) (arrow.Array, error) {
		return m.fields(values.(*array.Struct), entriesFrom, entriesTo, to.Arrow().(*arrow.MapType).Elem(), path, func(i int) int { return i })
	})
}

// list rebuilds a list or map around the remapped part of its values that the
// array's offsets reach.
func (m mapper) list(arr arrow.Array, offsets []int32, values arrow.Array, to schema.Type, remap func(arrow.Array) (arrow.Array, error)) (arrow.Array, error) {
	n, first := arr.Len(), arr.Data().Offset()
	start, end := int32(0), int32(0)
	if n > 0 {
		if len(offsets) < first+n+1 {
			return nil, fmt.Errorf("%w: a list of %d rows has %d offsets", mink.ErrCorrupt, n, len(offsets))
		}
		offsets = offsets[first : first+n+1] // the buffer's, of which the array may be a slice
		start, end = offsets[0], offsets[n]
		if start < 0 || end < start || int(end) > values.Len() {
			return nil, fmt.Errorf("%w: list offsets %d to %d of %d values", mink.ErrCorrupt, start, end, values.Len())
		}
	}
	part := array.NewSlice(values, int64(start), int64(end))
	defer part.Release()
	mapped, err := remap(part)
	if err != nil {
		return nil, err
	}
	defer mapped.Release()

	buf := memory.NewResizableBuffer(m.mem)
	defer buf.Release()
	buf.Resize(arrow.Int32Traits.BytesRequired(n + 1))
	out := arrow.Int32Traits.CastFromBytes(buf.Bytes())
	out[0] = 0
	for i := 1; i <= n; i++ {
		out[i] = offsets[i] - start
	}
	validity := m.validity(arr)
	defer release(validity)
	data := array.NewData(to.Arrow(), n, []*memory.Buffer{validity, buf}, []arrow.ArrayData{mapped.Data()}, arr.NullN(), 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

func (m mapper) row(arr *array.Struct, from, to schema.Type, path string) (arrow.Array, error) {
	return m.fields(arr, from, to, to.Arrow(), path, func(i int) int { return FieldIn(from, to, i) })
}

// fields rebuilds a struct; find gives the position in from of field i of to.
func (m mapper) fields(arr *array.Struct, from, to schema.Type, dt arrow.DataType, path string, find func(int) int) (arrow.Array, error) {
	children := make([]arrow.ArrayData, 0, len(to.Fields))
	defer func() {
		for _, c := range children {
			c.Release()
		}
	}()
	for i, f := range to.Fields {
		inner := path + "." + f.Name
		var child arrow.Array
		var err error
		if at := find(i); at < 0 {
			child, err = m.nulls(f.Type, arr.Len(), inner)
		} else { // Field is cut to the struct's own rows
			child, err = m.remap(arr.Field(at), from.Fields[at].Type, f.Type, inner)
		}
		if err != nil {
			return nil, err
		}
		child.Data().Retain()
		children = append(children, child.Data())
		child.Release()
	}
	validity := m.validity(arr)
	defer release(validity)
	data := array.NewData(dt, arr.Len(), []*memory.Buffer{validity}, children, arr.NullN(), 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

// validity is the array's null bitmap from bit 0 on, nil when it has no nulls.
func (m mapper) validity(arr arrow.Array) *memory.Buffer {
	if arr.NullN() == 0 || len(arr.NullBitmapBytes()) == 0 {
		return nil
	}
	buf := memory.NewResizableBuffer(m.mem)
	buf.Resize(int(bitutil.BytesForBits(int64(arr.Len()))))
	memory.Set(buf.Bytes(), 0)
	bitutil.CopyBitmap(arr.NullBitmapBytes(), arr.Data().Offset(), arr.Len(), buf.Bytes(), 0)
	return buf
}

func release(b *memory.Buffer) {
	if b != nil {
		b.Release()
	}
}

// nulls is a column of n nulls.
func (m mapper) nulls(t schema.Type, n int, path string) (arrow.Array, error) {
	if need := nullWidth(t) * int64(n); need > MaxNullBytes {
		return nil, fmt.Errorf("%w: column %q (%s): %d rows of null need %d bytes, at most %d are made at once; read fewer rows", mink.ErrTooLarge, path, t, n, need, MaxNullBytes)
	}
	return array.MakeArrayOfNull(m.mem, t.Arrow(), n), nil
}

// nullWidth is about how many bytes a null of the type takes.
func nullWidth(t schema.Type) int64 {
	if t.Kind == schema.Row {
		sum := int64(1)
		for _, f := range t.Fields {
			sum = min(sum+nullWidth(f.Type), math.MaxInt32)
		}
		return sum
	}
	if t.Kind == schema.Binary {
		return int64(t.Length) + 1
	}
	return 17
}
