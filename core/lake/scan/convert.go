package scan

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/sdk/mink"
)

// converter makes rows of Mink's table of rows of a lake table, in two steps:
//
//	narrow  the lake's wider types become Mink's: int to TINYINT and SMALLINT, microseconds
//	        to coarser units. A value that does not fit is an error, never cut.
//	evolve  columns and nested fields by id, promotions, nulls for what the lake lacks
type converter struct {
	lake   *schema.Schema // columns of the lake's rows, narrowed
	arrow  *arrow.Schema  // of lake
	narrow []bool
	plan   *evolve.Plan
	target *schema.Schema
	ctx    context.Context
}

// newConverter makes one from the lake's columns, in the order of its batches.
func newConverter(ctx context.Context, mem memory.Allocator, from []iceberg.NestedField, to *schema.Schema) (*converter, error) {
	c := &converter{lake: &schema.Schema{ID: to.ID}, target: to, narrow: make([]bool, len(from)), ctx: compute.WithAllocator(ctx, mem)}
	byID := map[mink.FieldID]schema.Type{}
	for _, col := range to.Columns {
		byID[col.ID] = col.Type
	}
	for i, f := range from {
		var wanted *schema.Type
		if t, ok := byID[mink.FieldID(f.ID)]; ok {
			wanted = &t
		}
		t, narrow, err := lakeType(f.Type, wanted, f.Name)
		if err != nil {
			return nil, err
		}
		t.NotNull, c.narrow[i] = f.Required || wanted != nil && wanted.NotNull, narrow // values are checked
		c.lake.Columns = append(c.lake.Columns, schema.Column{ID: mink.FieldID(f.ID), Name: f.Name, Type: t})
	}
	c.arrow = c.lake.Arrow()
	var err error
	c.plan, err = evolve.NewPlan(c.lake, to)
	return c, err
}

// lakeType is the Mink type of a lake column's values once they are narrowed to what the
// table's type (nil: it has no such field) needs.
func lakeType(t iceberg.Type, wanted *schema.Type, path string) (out schema.Type, narrow bool, err error) {
	kind := schema.Kind(0)
	if wanted != nil {
		kind = wanted.Kind
	}
	// times is the table's type when its unit is coarser than the lake's.
	times := func(k schema.Kind, digits int) (schema.Type, bool, error) {
		out := schema.Type{Kind: k, Precision: digits}
		if kind == k && wanted.Unit() < out.Unit() {
			return schema.Type{Kind: k, Precision: wanted.Precision}, true, nil
		}
		return out, false, nil
	}
	switch t := t.(type) {
	case iceberg.BooleanType:
		return schema.Type{Kind: schema.Boolean}, false, nil
	case iceberg.Int32Type:
		if kind == schema.TinyInt || kind == schema.SmallInt {
			return schema.Type{Kind: kind}, true, nil
		}
		return schema.Type{Kind: schema.Int}, false, nil
	case iceberg.Int64Type:
		return schema.Type{Kind: schema.BigInt}, false, nil
	case iceberg.Float32Type:
		return schema.Type{Kind: schema.Float}, false, nil
	case iceberg.Float64Type:
		return schema.Type{Kind: schema.Double}, false, nil
	case iceberg.DecimalType:
		return schema.Type{Kind: schema.Decimal, Precision: t.Precision(), Scale: t.Scale()}, false, nil
	case iceberg.StringType:
		if kind == schema.Char {
			return schema.Type{Kind: schema.Char, Length: wanted.Length}, false, nil
		}
		return schema.Type{Kind: schema.String}, false, nil
	case iceberg.FixedType:
		return schema.Type{Kind: schema.Binary, Length: t.Len()}, false, nil
	case iceberg.BinaryType:
		return schema.Type{Kind: schema.Bytes}, false, nil
	case iceberg.DateType:
		return schema.Type{Kind: schema.Date}, false, nil
	case iceberg.TimeType:
		return times(schema.Time, 6)
	case iceberg.TimestampType:
		return times(schema.Timestamp, 6)
	case iceberg.TimestampTzType:
		return times(schema.TimestampLTZ, 6)
	case iceberg.TimestampNsType:
		return times(schema.Timestamp, 9)
	case iceberg.TimestampTzNsType:
		return times(schema.TimestampLTZ, 9)
	}
	nested, ok := t.(iceberg.NestedType)
	if !ok {
		return out, false, fmt.Errorf("lake column %q: no Mink type has the Iceberg type %s: %w", path, t, mink.ErrUnsupported)
	}
	switch t.(type) {
	case *iceberg.ListType:
		out.Kind = schema.Array
	case *iceberg.MapType:
		out.Kind = schema.Map
	default:
		out.Kind = schema.Row
	}
	for i, f := range nested.Fields() {
		field, n, err := lakeType(f.Type, fieldOf(wanted, out.Kind, i, f.ID), path+"."+f.Name)
		if err != nil {
			return out, false, err
		}
		field.NotNull = f.Required
		narrow = narrow || n
		out.Fields = append(out.Fields, schema.Field{ID: mink.FieldID(f.ID), Name: f.Name, Type: field})
	}
	return out, narrow, nil
}

// fieldOf finds the field of the table's type that a lake field is.
func fieldOf(t *schema.Type, kind schema.Kind, at, id int) *schema.Type {
	if t == nil || t.Kind != kind {
		return nil
	}
	if kind != schema.Row {
		return &t.Fields[at].Type
	}
	for i := range t.Fields {
		if int(t.Fields[i].ID) == id {
			return &t.Fields[i].Type
		}
	}
	return nil
}

// convert answers rec, which it releases, as rows of the target.
func (c *converter) convert(mem memory.Allocator, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	defer rec.Release()
	columns := make([]arrow.Array, rec.NumCols())
	defer func() {
		for _, arr := range columns {
			if arr != nil {
				arr.Release()
			}
		}
	}()
	for i, arr := range rec.Columns() {
		if !c.narrow[i] {
			arr.Retain()
			columns[i] = arr
			continue
		}
		var err error
		if columns[i], err = c.narrowed(arr, c.lake.Columns[i].Type); err != nil {
			return nil, fmt.Errorf("lake column %q holds values that %s does not: %w: %w", c.lake.Columns[i].Name, c.lake.Columns[i].Type, mink.ErrCorrupt, err)
		}
	}
	lake := array.NewRecordBatch(c.arrow, columns, rec.NumRows())
	defer lake.Release()
	out, err := c.plan.Remap(mem, lake)
	if err != nil {
		return nil, err
	}
	for i, col := range c.target.Columns {
		if col.Type.NotNull && out.Column(i).NullN() > 0 {
			out.Release()
			return nil, fmt.Errorf("lake column %q has nulls, the table's is NOT NULL: %w", col.Name, mink.ErrCorrupt)
		}
	}
	return out, nil
}

// narrowed casts the leaves of an array to a type; what would lose digits is an error.
func (c *converter) narrowed(arr arrow.Array, t schema.Type) (arrow.Array, error) {
	if !t.Nested() {
		if t.Accepts(arr.DataType()) {
			arr.Retain()
			return arr, nil
		}
		return compute.CastArray(c.ctx, arr, compute.SafeCastOptions(t.Arrow()))
	}
	data := arr.Data()
	children := make([]arrow.ArrayData, 0, len(t.Fields))
	defer func() {
		for _, child := range children {
			child.Release()
		}
	}()
	fields := t.Fields
	if t.Kind == schema.Map { // its one child is the struct of keys and values
		fields = []schema.Field{{Type: schema.RowOf(t.Fields...)}}
	}
	for i, f := range fields {
		child := array.MakeFromData(data.Children()[i])
		cast, err := c.narrowed(child, f.Type)
		child.Release()
		if err != nil {
			return nil, err
		}
		cast.Data().Retain()
		children = append(children, cast.Data())
		cast.Release()
	}
	dt := t.Arrow()
	out := array.NewData(dt, data.Len(), data.Buffers(), children, data.NullN(), data.Offset())
	defer out.Release()
	return array.MakeFromData(out), nil
}
