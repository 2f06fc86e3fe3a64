package mergetest

import (
	"fmt"
	"math"
	"reflect"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/core/schema"
)

// Equal compares values, rows and lists of rows: NaN equals NaN, -0.0 and 0.0 differ.
func Equal(a, b any) bool { return reflect.DeepEqual(bitwise(a), bitwise(b)) }

// bitwise puts text in the place of floats, whose own equality is another.
func bitwise(v any) any {
	list := func(n int, at func(int) any) any {
		out := make([]any, n)
		for i := range out {
			out[i] = bitwise(at(i))
		}
		return out
	}
	switch v := v.(type) {
	case float32:
		return bitwise(float64(v))
	case float64:
		if math.IsNaN(v) {
			return "NaN"
		}
		return fmt.Sprintf("%x", math.Float64bits(v))
	case []byte:
		return string(v)
	case Row:
		return list(len(v), func(i int) any { return v[i] })
	case []any:
		return list(len(v), func(i int) any { return v[i] })
	case [][2]any:
		return list(len(v), func(i int) any { return v[i][:] })
	case []Row:
		return list(len(v), func(i int) any { return v[i] })
	case []Change:
		return list(len(v), func(i int) any { return []any{int64(v[i].Kind), v[i].Row} })
	}
	return v
}

// Batch is the rows as Arrow. NOT NULL columns may have nulls.
func Batch(s *schema.Schema, rows []Row) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	defer b.Release()
	for _, r := range rows {
		for i, v := range r {
			appendTo(b.Field(i), v)
		}
	}
	return b.NewRecordBatch()
}

func appendTo(b array.Builder, v any) {
	if v == nil {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(v.(bool))
	case *array.Int8Builder:
		b.Append(v.(int8))
	case *array.Int16Builder:
		b.Append(v.(int16))
	case *array.Int32Builder:
		b.Append(v.(int32))
	case *array.Int64Builder:
		b.Append(v.(int64))
	case *array.Float32Builder:
		b.Append(v.(float32))
	case *array.Float64Builder:
		b.Append(v.(float64))
	case *array.Decimal128Builder:
		b.Append(v.(decimal128.Num))
	case *array.StringBuilder:
		b.Append(v.(string))
	case *array.BinaryBuilder:
		b.Append(v.([]byte))
	case *array.FixedSizeBinaryBuilder:
		b.Append(v.([]byte))
	case *array.Date32Builder:
		b.Append(v.(arrow.Date32))
	case *array.Time32Builder:
		b.Append(v.(arrow.Time32))
	case *array.Time64Builder:
		b.Append(v.(arrow.Time64))
	case *array.TimestampBuilder:
		b.Append(v.(arrow.Timestamp))
	case *array.MapBuilder:
		b.Append(true)
		for _, e := range v.([][2]any) {
			appendTo(b.KeyBuilder(), e[0])
			appendTo(b.ItemBuilder(), e[1])
		}
	case *array.ListBuilder:
		b.Append(true)
		for _, e := range v.([]any) {
			appendTo(b.ValueBuilder(), e)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i, e := range v.([]any) {
			appendTo(b.FieldBuilder(i), e)
		}
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

// Rows are the rows of a batch of the table's columns.
func Rows(rec arrow.RecordBatch) []Row {
	rows := make([]Row, rec.NumRows())
	for i := range rows {
		for _, c := range rec.Columns() {
			rows[i] = append(rows[i], value(c, i))
		}
	}
	return rows
}

func value(arr arrow.Array, i int) any {
	if arr.IsNull(i) {
		return nil
	}
	switch a := arr.(type) {
	case *array.Boolean:
		return a.Value(i)
	case *array.Int8:
		return a.Value(i)
	case *array.Int16:
		return a.Value(i)
	case *array.Int32:
		return a.Value(i)
	case *array.Int64:
		return a.Value(i)
	case *array.Float32:
		return a.Value(i)
	case *array.Float64:
		return a.Value(i)
	case *array.Decimal128:
		return a.Value(i)
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return a.Value(i)
	case *array.FixedSizeBinary:
		return a.Value(i)
	case *array.Date32:
		return a.Value(i)
	case *array.Time32:
		return a.Value(i)
	case *array.Time64:
		return a.Value(i)
	case *array.Timestamp:
		return a.Value(i)
	case *array.Map: // before List, which it is too
		out := [][2]any{}
		start, end := a.ValueOffsets(i)
		for j := int(start); j < int(end); j++ {
			out = append(out, [2]any{value(a.Keys(), j), value(a.Items(), j)})
		}
		return out
	case *array.List:
		out := []any{}
		start, end := a.ValueOffsets(i)
		for j := int(start); j < int(end); j++ {
			out = append(out, value(a.ListValues(), j))
		}
		return out
	case *array.Struct:
		out := make([]any, a.NumField())
		for j := range out {
			out[j] = value(a.Field(j), i)
		}
		return out
	}
	panic(fmt.Sprintf("%T", arr))
}
