package gorow

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/mink-project/mink/sdk/mink"
)

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	decimalType  = reflect.TypeFor[decimal128.Num]()
)

// Value writes and reads one column's values for one Go type.
type Value struct {
	Append func(array.Builder, reflect.Value) error
	Read   func(arrow.Array, int, reflect.Value) error
}

// isSQLNull reports whether a type is sql.Null[T] or one of sql.NullString and its
// kin: a value beside a Valid.
func isSQLNull(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.PkgPath() == "database/sql" && strings.HasPrefix(t.Name(), "Null") && t.NumField() == 2 && t.Field(1).Name == "Valid"
}

// typeText is a column's type as the table writes it, else as Arrow does.
func typeText(f arrow.Field) string {
	if text, ok := f.Metadata.GetValue(mink.MetaType); ok {
		return text
	}
	return f.Type.String()
}

// ValueOf compiles a Go type for a column, with what may be null around it. where
// names the Go value in errors.
func ValueOf(where string, t reflect.Type, f arrow.Field) (Value, error) {
	switch {
	case t.Kind() == reflect.Pointer:
		inner, err := ValueOf(where, t.Elem(), f)
		return optional(f, inner, reflect.Value.IsNil, reflect.Value.Elem,
			func(v reflect.Value) reflect.Value { v.Set(reflect.New(t.Elem())); return v.Elem() }), err
	case isSQLNull(t):
		inner, err := ValueOf(where, t.Field(0).Type, f)
		return optional(f, inner, func(v reflect.Value) bool { return !v.Field(1).Bool() }, func(v reflect.Value) reflect.Value { return v.Field(0) },
			func(v reflect.Value) reflect.Value { v.Field(1).SetBool(true); return v.Field(0) }), err
	}
	inner, ok, err := plainCodec(where, t, f)
	switch {
	case err != nil:
		return Value{}, err
	case !ok:
		return Value{}, fmt.Errorf("%w type: column %q is %s, which %s of type %s cannot hold%s", mink.ErrInvalid, f.Name, typeText(f), where, t, goHint(f.Type))
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
		isNull := func(v reflect.Value) bool { return v.IsNil() && f.Nullable } // into NOT NULL nil is empty
		same := func(v reflect.Value) reflect.Value { return v }
		return optional(f, inner, isNull, same, same), nil
	}
	return Value{Append: inner.Append, Read: func(a arrow.Array, row int, v reflect.Value) error {
		if a.IsNull(row) {
			return fmt.Errorf("null %w: %s cannot be null; use *%[2]s or sql.Null[%[2]s]", mink.ErrInvalid, t)
		}
		return inner.Read(a, row, v)
	}}, nil
}

// optional adds null: isNull tells it, get answers the value inside, set makes
// place for one.
func optional(f arrow.Field, inner Value, isNull func(reflect.Value) bool, get, set func(reflect.Value) reflect.Value) Value {
	return Value{
		Append: func(b array.Builder, v reflect.Value) error {
			if !isNull(v) {
				return inner.Append(b, get(v))
			}
			if !f.Nullable {
				return fmt.Errorf("%w value: null, and the column is NOT NULL", mink.ErrInvalid)
			}
			b.AppendNull()
			return nil
		},
		Read: func(a arrow.Array, row int, v reflect.Value) error {
			if a.IsNull(row) {
				v.SetZero()
				return nil
			}
			return inner.Read(a, row, set(v))
		},
	}
}

// goHint names the Go type to use.
func goHint(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.BooleanType:
		return "; use bool"
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type:
		return "; use " + t.Name()
	case *arrow.Float32Type:
		return "; use float32"
	case *arrow.Float64Type:
		return "; use float64"
	case *arrow.StringType:
		return "; use string"
	case *arrow.BinaryType:
		return "; use []byte"
	case *arrow.FixedSizeBinaryType:
		return fmt.Sprintf("; use []byte or [%d]byte", t.ByteWidth)
	case *arrow.Decimal128Type:
		return "; use string or decimal128.Num"
	case *arrow.Date32Type, *arrow.TimestampType:
		return "; use time.Time"
	case *arrow.Time32Type, *arrow.Time64Type:
		return "; use time.Duration"
	case *arrow.MapType:
		return "; use a map"
	case *arrow.ListType:
		return "; use a slice"
	case *arrow.StructType:
		return "; use a struct with `mink` tags"
	}
	return ""
}

// plainCodec compiles a type that has no null of its own; ok is false when it does
// not serve the column.
func plainCodec(where string, t reflect.Type, f arrow.Field) (c Value, ok bool, err error) {
	switch dt := f.Type.(type) {
	case *arrow.BooleanType:
		return Value{
			func(b array.Builder, v reflect.Value) error { b.(*array.BooleanBuilder).Append(v.Bool()); return nil },
			func(a arrow.Array, row int, v reflect.Value) error {
				v.SetBool(a.(*array.Boolean).Value(row))
				return nil
			},
		}, t.Kind() == reflect.Bool, nil
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type:
		return integerCodec, t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 && t != durationType, nil
	case *arrow.Float32Type:
		return Value{
			func(b array.Builder, v reflect.Value) error {
				b.(*array.Float32Builder).Append(float32(v.Float()))
				return nil
			},
			func(a arrow.Array, row int, v reflect.Value) error {
				v.SetFloat(float64(a.(*array.Float32).Value(row)))
				return nil
			},
		}, t.Kind() == reflect.Float32, nil
	case *arrow.Float64Type:
		return Value{
			func(b array.Builder, v reflect.Value) error {
				b.(*array.Float64Builder).Append(v.Float())
				return nil
			},
			func(a arrow.Array, row int, v reflect.Value) error {
				v.SetFloat(a.(*array.Float64).Value(row))
				return nil
			},
		}, t.Kind() == reflect.Float64, nil
	case *arrow.StringType:
		return Value{
			func(b array.Builder, v reflect.Value) error {
				b.(*array.StringBuilder).Append(v.String())
				return nil
			},
			func(a arrow.Array, row int, v reflect.Value) error {
				v.SetString(strings.Clone(a.(*array.String).Value(row)))
				return nil
			},
		}, t.Kind() == reflect.String, nil
	case *arrow.BinaryType, *arrow.FixedSizeBinaryType:
		c, ok = binaryCodec(t, dt)
		return c, ok, nil
	case *arrow.Decimal128Type:
		c, ok = decimalCodec(t, dt)
		return c, ok, nil
	case *arrow.Date32Type, *arrow.TimestampType:
		return timeCodec(dt), t == timeType, nil
	case *arrow.Time32Type, *arrow.Time64Type:
		return clockCodec(dt.(arrow.TemporalWithUnit).TimeUnit()), t == durationType, nil
	case *arrow.MapType:
		return mapCodec(where, t, dt)
	case *arrow.ListType:
		return listCodec(where, t, dt)
	case *arrow.StructType:
		return rowCodec(t, dt)
	}
	return Value{}, false, nil
}

var integerCodec = Value{
	func(b array.Builder, v reflect.Value) error {
		n, fits := int64(0), true
		if v.CanUint() {
			n, fits = int64(v.Uint()), v.Uint() <= math.MaxInt64
		} else {
			n = v.Int()
		}
		switch b := b.(type) {
		case *array.Int8Builder:
			fits = fits && int64(int8(n)) == n
			b.Append(int8(n))
		case *array.Int16Builder:
			fits = fits && int64(int16(n)) == n
			b.Append(int16(n))
		case *array.Int32Builder:
			fits = fits && int64(int32(n)) == n
			b.Append(int32(n))
		case *array.Int64Builder:
			b.Append(n)
		}
		if !fits {
			return fmt.Errorf("%w value: %v does not fit", mink.ErrInvalid, v)
		}
		return nil
	},
	func(a arrow.Array, row int, v reflect.Value) error {
		var n int64
		switch a := a.(type) {
		case *array.Int8:
			n = int64(a.Value(row))
		case *array.Int16:
			n = int64(a.Value(row))
		case *array.Int32:
			n = int64(a.Value(row))
		case *array.Int64:
			n = a.Value(row)
		}
		if v.CanUint() {
			if n < 0 || v.OverflowUint(uint64(n)) {
				return fmt.Errorf("%w value: %d does not fit into %s", mink.ErrInvalid, n, v.Type())
			}
			v.SetUint(uint64(n))
			return nil
		}
		if v.OverflowInt(n) {
			return fmt.Errorf("%w value: %d does not fit into %s", mink.ErrInvalid, n, v.Type())
		}
		v.SetInt(n)
		return nil
	},
}

func binaryCodec(t reflect.Type, dt arrow.DataType) (Value, bool) {
	width := -1
	if f, ok := dt.(*arrow.FixedSizeBinaryType); ok {
		width = f.ByteWidth
	}
	isArray := t.Kind() == reflect.Array
	if !isArray && t.Kind() != reflect.Slice || t.Elem().Kind() != reflect.Uint8 || isArray && width >= 0 && t.Len() != width {
		return Value{}, false
	}
	return Value{
		func(b array.Builder, v reflect.Value) error {
			var p []byte
			if isArray {
				p = make([]byte, v.Len())
				reflect.Copy(reflect.ValueOf(p), v)
			} else {
				p = v.Bytes()
			}
			if f, ok := b.(*array.FixedSizeBinaryBuilder); ok {
				if len(p) != width {
					return fmt.Errorf("%w value: %d bytes, want %d", mink.ErrInvalid, len(p), width)
				}
				f.Append(p)
				return nil
			}
			b.(*array.BinaryBuilder).Append(p)
			return nil
		},
		func(a arrow.Array, row int, v reflect.Value) error {
			var p []byte
			if f, ok := a.(*array.FixedSizeBinary); ok {
				p = f.Value(row)
			} else {
				p = a.(*array.Binary).Value(row)
			}
			if !isArray {
				v.SetBytes(append([]byte{}, bytes.Clone(p)...)) // empty is not nil: that is null
				return nil
			}
			if len(p) != v.Len() {
				return fmt.Errorf("%w value: %d bytes do not fill %s", mink.ErrInvalid, len(p), v.Type())
			}
			reflect.Copy(v, reflect.ValueOf(p))
			return nil
		},
	}, true
}

var plainDecimal = regexp.MustCompile(`^[+-]?[0-9]+(\.[0-9]*)?$`)

// digitsBehind counts the digits behind the point that mean something: FromString
// would round.
func digitsBehind(text string) int {
	_, fraction, _ := strings.Cut(text, ".")
	return len(strings.TrimRight(fraction, "0"))
}

func decimalCodec(t reflect.Type, dt *arrow.Decimal128Type) (Value, bool) {
	if t == decimalType {
		return Value{
			func(b array.Builder, v reflect.Value) error {
				n := v.Interface().(decimal128.Num)
				if !n.FitsInPrecision(dt.Precision) {
					return fmt.Errorf("%w value: %s has more than %d digits", mink.ErrInvalid, n.ToString(dt.Scale), dt.Precision)
				}
				b.(*array.Decimal128Builder).Append(n)
				return nil
			},
			func(a arrow.Array, row int, v reflect.Value) error {
				v.Set(reflect.ValueOf(a.(*array.Decimal128).Value(row)))
				return nil
			},
		}, true
	}
	return Value{
		func(b array.Builder, v reflect.Value) error {
			n, err := decimal128.FromString(v.String(), dt.Precision, dt.Scale)
			if err != nil || !plainDecimal.MatchString(v.String()) || digitsBehind(v.String()) > int(dt.Scale) {
				return fmt.Errorf("%w value: %.100q is no DECIMAL(%d, %d)", mink.ErrInvalid, v.String(), dt.Precision, dt.Scale)
			}
			b.(*array.Decimal128Builder).Append(n)
			return nil
		},
		func(a arrow.Array, row int, v reflect.Value) error {
			v.SetString(a.(*array.Decimal128).Value(row).ToString(dt.Scale))
			return nil
		},
	}, t.Kind() == reflect.String
}
