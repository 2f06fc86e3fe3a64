package lake

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
)

// toIceberg makes a batch of the Arrow types that Iceberg's types have out of one
// of Mink's: TINYINT and SMALLINT widened, times and timestamps in microseconds.
// Columns are taken by position. What needs no change is shared, not copied. The
// caller releases the result.
func toIceberg(mem memory.Allocator, to *arrow.Schema, batch arrow.RecordBatch) (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, 0, to.NumFields())
	defer func() { // NewRecordBatch holds its own references
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, f := range to.Fields() {
		data, err := convert(mem, batch.Column(i).Data(), f.Type)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", f.Name, err)
		}
		columns = append(columns, array.MakeFromData(data))
		data.Release()
	}
	return array.NewRecordBatch(to, columns, batch.NumRows()), nil
}

// convert answers data that the caller releases.
func convert(mem memory.Allocator, from arrow.ArrayData, to arrow.DataType) (arrow.ArrayData, error) {
	switch to := to.(type) {
	case *arrow.Int32Type:
		switch from.DataType().ID() {
		case arrow.INT8:
			return widen[int8, int32](mem, from, to, 1)
		case arrow.INT16:
			return widen[int16, int32](mem, from, to, 1)
		}
	case *arrow.Time64Type:
		if t, ok := from.DataType().(*arrow.Time32Type); ok {
			return widen[int32, int64](mem, from, to, int64(t.Unit.Multiplier()/to.Unit.Multiplier()))
		}
	case *arrow.TimestampType:
		t, ok := from.DataType().(*arrow.TimestampType)
		if ok && t.Unit != to.Unit {
			return widen[int64, int64](mem, from, to, int64(t.Unit.Multiplier()/to.Unit.Multiplier()))
		}
	case *arrow.ListType, *arrow.MapType, *arrow.StructType:
		return convertNested(mem, from, to.(arrow.NestedType))
	}
	if from.DataType().ID() != to.ID() {
		return nil, fmt.Errorf("%w: a column of Arrow type %s, want %s", mink.ErrInvalid, from.DataType(), to)
	}
	return array.NewData(to, from.Len(), from.Buffers(), from.Children(), from.NullN(), from.Offset()), nil
}

// convertNested converts the children whole and keeps the rest.
func convertNested(mem memory.Allocator, from arrow.ArrayData, to arrow.NestedType) (arrow.ArrayData, error) {
	fields := to.Fields()
	if m, ok := to.(*arrow.MapType); ok { // its child is the struct of key and value
		fields = []arrow.Field{{Type: m.Elem()}}
	}
	children := from.Children()
	if len(children) != len(fields) {
		return nil, fmt.Errorf("%w: a column of Arrow type %s, want %s", mink.ErrInvalid, from.DataType(), to)
	}
	converted := make([]arrow.ArrayData, 0, len(children))
	defer func() {
		for _, c := range converted {
			c.Release()
		}
	}()
	for i, c := range children {
		inner, err := convert(mem, c, fields[i].Type)
		if err != nil {
			return nil, err
		}
		converted = append(converted, inner)
	}
	return array.NewData(to, from.Len(), from.Buffers(), converted, from.NullN(), from.Offset()), nil
}

// widen copies numbers into a wider type, times a factor. A number that does not
// fit is refused: a value is never cut.
func widen[F int8 | int16 | int32 | int64, T int32 | int64](mem memory.Allocator, from arrow.ArrayData, to arrow.DataType, factor int64) (arrow.ArrayData, error) {
	n := from.Len()
	if factor < 1 {
		return nil, fmt.Errorf("%w: %s does not fit %s", mink.ErrInvalid, from.DataType(), to)
	}
	values := memory.NewResizableBuffer(mem)
	defer values.Release()
	values.Resize(int(unsafe.Sizeof(T(0))) * n)
	out := arrow.GetData[T](values.Bytes())
	var validity *memory.Buffer
	if b := from.Buffers()[0]; b != nil && from.NullN() != 0 {
		validity = memory.NewResizableBuffer(mem)
		defer validity.Release()
		validity.Resize(int(bitutil.BytesForBits(int64(n))))
		bitutil.CopyBitmap(b.Bytes(), from.Offset(), n, validity.Bytes(), 0)
	}
	limit := math.MaxInt64 / factor
	if n > 0 {
		in := arrow.GetData[F](from.Buffers()[1].Bytes())[from.Offset() : from.Offset()+n]
		for i, v := range in {
			if x := int64(v); (x > limit || x < -limit) && (validity == nil || bitutil.BitIsSet(validity.Bytes(), i)) {
				return nil, fmt.Errorf("%w: row %d of the batch: %d as %s is out of the range of %s, which ends 292,277 years from 1970; write another value over it, or trim the log past it", mink.ErrInvalid, i, x, from.DataType(), to)
			}
			out[i] = T(int64(v) * factor)
		}
	}
	return array.NewData(to, n, []*memory.Buffer{validity, values}, nil, from.NullN(), 0), nil
}
