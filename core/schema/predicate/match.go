package predicate

import (
	"bytes"
	"cmp"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/sdk/mink"
)

// Truth values, ordered so that AND is the least and OR the greatest, and NOT x is
// isTrue - x.
const (
	isFalse byte = iota
	isUnknown
	isTrue
)

// Filter answers the rows for which the filter is true, in their order; the caller
// releases the result and still owns rec. A batch with other columns than the schema's
// is an error.
func (p *Predicate) Filter(mem memory.Allocator, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	rows, err := p.Rows(rec)
	if err != nil {
		return nil, err
	}
	return Keep(mem, rec, rows)
}

// Keep answers the rows of rec with the given places, ascending; the caller releases it.
func Keep(mem memory.Allocator, rec arrow.RecordBatch, rows []int32) (arrow.RecordBatch, error) {
	n := len(rows)
	switch {
	case int64(n) == rec.NumRows():
		rec.Retain()
		return rec, nil
	case n == 0:
		return rec.NewSlice(0, 0), nil
	case int(rows[n-1]-rows[0]) == n-1:
		return rec.NewSlice(int64(rows[0]), int64(rows[n-1])+1), nil
	}
	return routing.Take(mem, rec, rows)
}

// Rows are the places of the rows for which the filter is true, ascending.
func (p *Predicate) Rows(rec arrow.RecordBatch) ([]int32, error) {
	if int(rec.NumCols()) != len(p.schema.Columns) {
		return nil, fmt.Errorf("%w filter: the batch has %d columns, want %d", mink.ErrInvalid, rec.NumCols(), len(p.schema.Columns))
	}
	for i, c := range p.schema.Columns {
		if got := rec.Column(i).DataType(); !c.Type.Accepts(got) {
			return nil, fmt.Errorf("%w filter: column %q of the batch is %s, want %s", mink.ErrInvalid, c.Name, got, c.Type.Arrow())
		}
	}
	truth := make([]byte, rec.NumRows())
	eval(p.root, rec, truth)
	rows := make([]int32, 0, len(truth))
	for i, v := range truth {
		if v == isTrue {
			rows = append(rows, int32(i))
		}
	}
	return rows, nil
}

// eval sets the truth of each row.
func eval(n Node, rec arrow.RecordBatch, out []byte) {
	switch n := n.(type) {
	case And:
		eval(n.Terms[0], rec, out)
		each(n.Terms[1:], rec, out, func(a, b byte) byte { return min(a, b) })
	case Or:
		eval(n.Terms[0], rec, out)
		each(n.Terms[1:], rec, out, func(a, b byte) byte { return max(a, b) })
	case Not:
		eval(n.Term, rec, out)
		for i, v := range out {
			out[i] = isTrue - v
		}
	case IsNull:
		arr := rec.Column(n.Column)
		for i := range out {
			out[i] = isFalse
			if arr.IsNull(i) {
				out[i] = isTrue
			}
		}
	case Compare:
		arr := rec.Column(n.Column)
		compareAll(arr, n.Value, n.Op.outcomes(), out)
		unknownNulls(arr, out)
	case In:
		arr := rec.Column(n.Column)
		inAll(arr, n.set, out)
		unknownNulls(arr, out)
	}
}

func each(terms []Node, rec arrow.RecordBatch, out []byte, join func(a, b byte) byte) {
	if len(terms) == 0 {
		return
	}
	one := make([]byte, len(out))
	for _, t := range terms {
		eval(t, rec, one)
		for i, v := range one {
			out[i] = join(out[i], v)
		}
	}
}

func unknownNulls(arr arrow.Array, out []byte) {
	if arr.NullN() == 0 {
		return
	}
	for i := range out {
		if arr.IsNull(i) {
			out[i] = isUnknown
		}
	}
}

// outcomes is the truth of an operator for a value that is less, equal, greater.
type outcomes [3]byte

func (o Op) outcomes() outcomes {
	return [...]outcomes{
		Equal: {isFalse, isTrue, isFalse}, NotEqual: {isTrue, isFalse, isTrue},
		Less: {isTrue, isFalse, isFalse}, LessEqual: {isTrue, isTrue, isFalse},
		Greater: {isFalse, isFalse, isTrue}, GreaterEqual: {isFalse, isTrue, isTrue},
	}[o]
}

func (o outcomes) of(c int) byte { return o[c+1] }

// compareAll compares every value of a column, null or not.
func compareAll(arr arrow.Array, v any, o outcomes, out []byte) {
	switch arr := arr.(type) {
	case *array.Boolean:
		want := number(v.(bool))
		for i := range out {
			out[i] = o.of(cmp.Compare(number(arr.Value(i)), want))
		}
	case *array.Int8:
		compareOrdered(arr.Int8Values(), v.(int8), o, out)
	case *array.Int16:
		compareOrdered(arr.Int16Values(), v.(int16), o, out)
	case *array.Int32:
		compareOrdered(arr.Int32Values(), v.(int32), o, out)
	case *array.Int64:
		compareOrdered(arr.Int64Values(), v.(int64), o, out)
	case *array.Float32:
		compareFloats(arr.Float32Values(), v.(float32), o, out)
	case *array.Float64:
		compareFloats(arr.Float64Values(), v.(float64), o, out)
	case *array.Date32:
		compareOrdered(arr.Date32Values(), v.(arrow.Date32), o, out)
	case *array.Time32:
		compareOrdered(arr.Time32Values(), v.(arrow.Time32), o, out)
	case *array.Time64:
		compareOrdered(arr.Time64Values(), v.(arrow.Time64), o, out)
	case *array.Timestamp:
		compareOrdered(arr.TimestampValues(), v.(arrow.Timestamp), o, out)
	case *array.Decimal128:
		want := v.(decimal128.Num)
		for i, x := range arr.Values() {
			out[i] = o.of(x.Cmp(want))
		}
	case *array.String:
		want := v.(string)
		for i := range out {
			out[i] = o.of(cmp.Compare(arr.Value(i), want))
		}
	case *array.Binary:
		want := v.([]byte)
		for i := range out {
			out[i] = o.of(bytes.Compare(arr.Value(i), want))
		}
	case *array.FixedSizeBinary:
		want := v.([]byte)
		for i := range out {
			out[i] = o.of(bytes.Compare(arr.Value(i), want))
		}
	}
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

func compareOrdered[T ~int8 | ~int16 | ~int32 | ~int64](values []T, v T, o outcomes, out []byte) {
	for i, x := range values {
		switch {
		case x < v:
			out[i] = o[0]
		case x == v:
			out[i] = o[1]
		default:
			out[i] = o[2]
		}
	}
}

// compareFloats has NaN above all else.
func compareFloats[T float32 | float64](values []T, v T, o outcomes, out []byte) {
	last := math.IsNaN(float64(v))
	for i, x := range values {
		nan := last && math.IsNaN(float64(x))
		switch {
		case x < v, last && !nan:
			out[i] = o[0]
		case x == v, nan:
			out[i] = o[1]
		default:
			out[i] = o[2]
		}
	}
}

// setOf is a map of values of one type; bytes are kept as strings, floats in their
// canonical form.
func setOf(values []any) any {
	switch values[0].(type) {
	case bool:
		return setBy(values, func(v any) bool { return v.(bool) })
	case int8:
		return setBy(values, func(v any) int64 { return int64(v.(int8)) })
	case int16:
		return setBy(values, func(v any) int64 { return int64(v.(int16)) })
	case int32:
		return setBy(values, func(v any) int64 { return int64(v.(int32)) })
	case int64:
		return setBy(values, func(v any) int64 { return v.(int64) })
	case arrow.Date32:
		return setBy(values, func(v any) int64 { return int64(v.(arrow.Date32)) })
	case arrow.Time32:
		return setBy(values, func(v any) int64 { return int64(v.(arrow.Time32)) })
	case arrow.Time64:
		return setBy(values, func(v any) int64 { return int64(v.(arrow.Time64)) })
	case arrow.Timestamp:
		return setBy(values, func(v any) int64 { return int64(v.(arrow.Timestamp)) })
	case float32:
		return setBy(values, func(v any) uint64 { return floatBits(float64(v.(float32))) })
	case float64:
		return setBy(values, func(v any) uint64 { return floatBits(v.(float64)) })
	case decimal128.Num:
		return setBy(values, func(v any) decimal128.Num { return v.(decimal128.Num) })
	case string:
		return setBy(values, func(v any) string { return v.(string) })
	}
	return setBy(values, func(v any) string { return string(v.([]byte)) })
}

func floatBits(v float64) uint64 { return math.Float64bits(keyenc.CanonicalFloat64(v)) }

func setBy[T comparable](values []any, of func(any) T) map[T]struct{} {
	set := make(map[T]struct{}, len(values))
	for _, v := range values {
		set[of(v)] = struct{}{}
	}
	return set
}

func inAll(arr arrow.Array, set any, out []byte) {
	switch arr := arr.(type) {
	case *array.Boolean:
		inBy(set, out, arr.Value)
	case *array.Int8:
		inInts(set, out, arr.Int8Values())
	case *array.Int16:
		inInts(set, out, arr.Int16Values())
	case *array.Int32:
		inInts(set, out, arr.Int32Values())
	case *array.Int64:
		inInts(set, out, arr.Int64Values())
	case *array.Date32:
		inInts(set, out, arr.Date32Values())
	case *array.Time32:
		inInts(set, out, arr.Time32Values())
	case *array.Time64:
		inInts(set, out, arr.Time64Values())
	case *array.Timestamp:
		inInts(set, out, arr.TimestampValues())
	case *array.Float32:
		inBy(set, out, func(i int) uint64 { return floatBits(float64(arr.Value(i))) })
	case *array.Float64:
		inBy(set, out, func(i int) uint64 { return floatBits(arr.Value(i)) })
	case *array.Decimal128:
		inBy(set, out, arr.Value)
	case *array.String:
		inBy(set, out, arr.Value)
	case *array.Binary:
		inBy(set, out, func(i int) string { return string(arr.Value(i)) })
	case *array.FixedSizeBinary:
		inBy(set, out, func(i int) string { return string(arr.Value(i)) })
	}
}

func inInts[T ~int8 | ~int16 | ~int32 | ~int64](set any, out []byte, values []T) {
	inBy(set, out, func(i int) int64 { return int64(values[i]) })
}

func inBy[T comparable](set any, out []byte, value func(i int) T) {
	members := set.(map[T]struct{})
	for i := range out {
		out[i] = isFalse
		if _, ok := members[value(i)]; ok {
			out[i] = isTrue
		}
	}
}
