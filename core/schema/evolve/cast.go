package evolve

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// cast promotes a column of a type without fields.
func (m mapper) cast(arr arrow.Array, from, to schema.Type, path string) (arrow.Array, error) {
	dt := to.Arrow()
	if arrow.TypeEqual(arr.DataType(), dt) { // CHAR to STRING, TIMESTAMP(1) to TIMESTAMP(3)
		return retyped(arr, dt), nil
	}
	switch to.Kind {
	case schema.SmallInt, schema.Int, schema.BigInt:
		return m.integers(arr, dt), nil
	case schema.Double:
		return build(m, arr, dt, arr.(*array.Float32).Float32Values(), func(v float32) float64 { return float64(v) }), nil
	case schema.Decimal: // the same scale, hence the same unscaled values
		return retyped(arr, dt), nil
	case schema.Binary:
		return m.widen(arr.(*array.FixedSizeBinary), to)
	case schema.Bytes:
		return m.variable(arr.(*array.FixedSizeBinary), dt, path)
	case schema.Time, schema.Timestamp, schema.TimestampLTZ:
		return m.times(arr, from, to, dt, path)
	}
	return nil, fmt.Errorf("%w column %q: %s cannot become %s", mink.ErrInvalid, path, from, to)
}

func (m mapper) integers(arr arrow.Array, dt arrow.DataType) arrow.Array {
	switch a := arr.(type) {
	case *array.Int8:
		return widenInts(m, arr, dt, a.Int8Values())
	case *array.Int16:
		return widenInts(m, arr, dt, a.Int16Values())
	}
	return widenInts(m, arr, dt, arr.(*array.Int32).Int32Values())
}

func widenInts[From ~int8 | ~int16 | ~int32](m mapper, arr arrow.Array, dt arrow.DataType, values []From) arrow.Array {
	switch dt.ID() {
	case arrow.INT16:
		return build(m, arr, dt, values, func(v From) int16 { return int16(v) })
	case arrow.INT32:
		return build(m, arr, dt, values, func(v From) int32 { return int32(v) })
	}
	return build(m, arr, dt, values, func(v From) int64 { return int64(v) })
}

// number is the Go type of a fixed-width Arrow value.
type number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~float32 | ~float64
}

// build makes an array of type dt with f of each value, null or not, and the
// nulls of arr.
func build[From, To number](m mapper, arr arrow.Array, dt arrow.DataType, values []From, f func(From) To) arrow.Array {
	buf := memory.NewResizableBuffer(m.mem)
	defer buf.Release()
	buf.Resize(len(values) * dt.(arrow.FixedWidthDataType).Bytes())
	out := arrow.GetData[To](buf.Bytes())
	for i, v := range values {
		out[i] = f(v)
	}
	validity := m.validity(arr)
	defer release(validity)
	data := array.NewData(dt, len(values), []*memory.Buffer{validity, buf}, nil, arr.NullN(), 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// retyped is the same buffers under a type of the same layout: other names and
// nullability inside, another precision.
func retyped(arr arrow.Array, dt arrow.DataType) arrow.Array {
	if arrow.TypeEqual(arr.DataType(), dt) {
		arr.Retain()
		return arr
	}
	data := retypedData(arr.Data(), dt)
	defer data.Release()
	return array.MakeFromData(data)
}

func retypedData(d arrow.ArrayData, dt arrow.DataType) arrow.ArrayData {
	var children []arrow.ArrayData
	if nested, ok := dt.(arrow.NestedType); ok {
		for i, f := range nested.Fields() {
			child := retypedData(d.Children()[i], f.Type)
			defer child.Release() // NewData holds its own reference
			children = append(children, child)
		}
	}
	return array.NewData(dt, d.Len(), d.Buffers(), children, d.NullN(), d.Offset())
}

// times scales TIME and TIMESTAMP values to a finer unit.
func (m mapper) times(arr arrow.Array, from, to schema.Type, dt arrow.DataType, path string) (arrow.Array, error) {
	if from.Unit() == to.Unit() { // another name of the zone
		return retyped(arr, dt), nil
	}
	factor := int64(1)
	for u := from.Unit(); u < to.Unit(); u++ {
		factor *= 1000
	}
	switch a := arr.(type) {
	case *array.Time32:
		if dt.ID() == arrow.TIME32 { // seconds to milliseconds; garbage under a null may wrap
			return scaled(m, arr, dt, a.Time32Values(), factor, math.MaxInt32, path, func(v int64) arrow.Time32 { return arrow.Time32(v) })
		}
		return scaled(m, arr, dt, a.Time32Values(), factor, math.MaxInt64, path, func(v int64) arrow.Time64 { return arrow.Time64(v) })
	case *array.Time64:
		return scaled(m, arr, dt, a.Time64Values(), factor, math.MaxInt64, path, func(v int64) arrow.Time64 { return arrow.Time64(v) })
	}
	return scaled(m, arr, dt, arr.(*array.Timestamp).TimestampValues(), factor, math.MaxInt64, path, func(v int64) arrow.Timestamp { return arrow.Timestamp(v) })
}

// scaled multiplies by factor; a value whose product is beyond limit is an error
// unless it is null.
func scaled[From, To number](m mapper, arr arrow.Array, dt arrow.DataType, values []From, factor, limit int64, path string, convert func(int64) To) (arrow.Array, error) {
	for i, v := range values {
		if q := limit / factor; (int64(v) > q || int64(v) < -q) && arr.IsValid(i) {
			return nil, fmt.Errorf("%w: column %q: row %d: %d %s is beyond the range of %s", mink.ErrOutOfRange, path, i, int64(v), unitOf(arr), dt)
		}
	}
	return build(m, arr, dt, values, func(v From) To { return convert(int64(v) * factor) }), nil
}

func unitOf(arr arrow.Array) string {
	return arr.DataType().(arrow.TemporalWithUnit).TimeUnit().String()
}

// widen pads BINARY(n) with zero bytes at the end.
func (m mapper) widen(arr *array.FixedSizeBinary, to schema.Type) (arrow.Array, error) {
	n := arr.Len()
	if need := int64(n) * int64(to.Length); need > MaxNullBytes {
		return nil, fmt.Errorf("%w: %d rows of %s need %d bytes, at most %d are made at once; read fewer rows", mink.ErrTooLarge, n, to, need, MaxNullBytes)
	}
	buf := memory.NewResizableBuffer(m.mem)
	defer buf.Release()
	buf.Resize(n * to.Length)
	out := buf.Bytes()
	memory.Set(out, 0)
	for i := range n {
		if arr.IsValid(i) {
			copy(out[i*to.Length:], arr.Value(i))
		}
	}
	validity := m.validity(arr)
	defer release(validity)
	data := array.NewData(to.Arrow(), n, []*memory.Buffer{validity, buf}, nil, arr.NullN(), 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

// variable gives BINARY(n) offsets; nulls keep their bytes, which nobody reads.
func (m mapper) variable(arr *array.FixedSizeBinary, dt arrow.DataType, path string) (arrow.Array, error) {
	n, width := arr.Len(), arr.DataType().(*arrow.FixedSizeBinaryType).ByteWidth
	first := arr.Data().Offset()
	if int64(first+n)*int64(width) > math.MaxInt32 {
		return nil, fmt.Errorf("%w: column %q: %d rows of %d bytes; read fewer rows", mink.ErrTooLarge, path, first+n, width)
	}
	offsets := memory.NewResizableBuffer(m.mem)
	defer offsets.Release()
	offsets.Resize(arrow.Int32Traits.BytesRequired(n + 1))
	out := arrow.Int32Traits.CastFromBytes(offsets.Bytes())
	for i := range out {
		out[i] = int32((first + i) * width)
	}
	validity := m.validity(arr)
	defer release(validity)
	values := arr.Data().Buffers()[1]
	data := array.NewData(dt, n, []*memory.Buffer{validity, offsets, values}, nil, arr.NullN(), 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}
