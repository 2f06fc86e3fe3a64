package merge

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// aggregate is a column's function and what it needs to know of the type.
type aggregate struct {
	name  string
	f     schema.AggregateFunction
	typ   schema.Type
	limit uint128 // DECIMAL: values are below it; 10^precision
}

func newAggregate(c schema.Column) aggregate {
	a := aggregate{name: c.Name, f: c.Aggregate, typ: c.Type}
	if a.f == "" {
		a.f = schema.AggregateDefault
	}
	if c.Type.Kind == schema.Decimal {
		a.limit = pow10(c.Type.Precision)
	}
	return a
}

// merge answers the fields' result: one of them, or bytes of scratch. nil is null.
func (a *aggregate) merge(old, in []byte, scratch *[16]byte) ([]byte, error) {
	switch a.f {
	case schema.AggregateLastValue:
		return in, nil
	case schema.AggregateFirstValue:
		return old, nil
	}
	if in == nil {
		return old, nil
	}
	if old == nil {
		return in, nil
	}
	takeIn := false
	switch a.f {
	case schema.AggregateSum, schema.AggregateProduct:
		return a.compute(old, in, scratch)
	case schema.AggregateMax:
		takeIn = compare(a.typ, in, old) > 0
	case schema.AggregateMin:
		takeIn = compare(a.typ, in, old) < 0
	case schema.AggregateBoolAnd:
		takeIn = old[0] == 1
	case schema.AggregateBoolOr:
		takeIn = old[0] == 0
	case schema.AggregateLastValueIgnoreNulls:
		takeIn = true
	}
	if takeIn {
		return in, nil
	}
	return old, nil
}

// compute is sum and product.
func (a *aggregate) compute(old, in []byte, scratch *[16]byte) ([]byte, error) {
	out := scratch[:len(old)]
	product := a.f == schema.AggregateProduct
	switch a.typ.Kind {
	case schema.Float:
		x, y := math.Float32frombits(binary.LittleEndian.Uint32(old)), math.Float32frombits(binary.LittleEndian.Uint32(in))
		v := x + y
		if product {
			v = x * y
		}
		binary.LittleEndian.PutUint32(out, math.Float32bits(v))
	case schema.Double:
		x, y := float64Of(old), float64Of(in)
		v := x + y
		if product {
			v = x * y
		}
		binary.LittleEndian.PutUint64(out, math.Float64bits(v))
	case schema.Decimal:
		x, y := decimalOf(old), decimalOf(in)
		v, ok := x.add(y)
		if product {
			v, ok = x.multiply(y, a.typ.Scale)
		}
		if !ok || !v.abs.less(a.limit) {
			return nil, a.overflow(x.text(a.typ.Scale), y.text(a.typ.Scale))
		}
		v.put(out)
	default:
		x, y := row.Int(old), row.Int(in)
		v, ok := addInt(x, y)
		if product {
			v, ok = multiplyInt(x, y)
		}
		if !row.PutInt(out, v) || !ok {
			return nil, a.overflow(strconv.FormatInt(x, 10), strconv.FormatInt(y, 10))
		}
	}
	return out, nil
}

func (a *aggregate) overflow(x, y string) error {
	return fmt.Errorf("%w value: column %q: the %s of %s and %s does not fit %s", mink.ErrInvalid, a.name, a.f, x, y, a.typ.Nullable())
}

func addInt(x, y int64) (int64, bool) {
	v := x + y
	return v, (x^v)&(y^v) >= 0
}

func multiplyInt(x, y int64) (int64, bool) {
	hi, lo := bits.Mul64(absInt(x), absInt(y))
	if (x < 0) != (y < 0) {
		return -int64(lo), hi == 0 && lo <= 1<<63
	}
	return int64(lo), hi == 0 && lo < 1<<63
}

func absInt(x int64) uint64 {
	if x < 0 {
		return -uint64(x)
	}
	return uint64(x)
}

func float64Of(field []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(field)) }

// newer reports whether a row with the version in takes the place of one with the
// version old.
func newer(t schema.Type, old, in []byte) bool {
	if old == nil || in == nil {
		return old == nil
	}
	return compare(t, in, old) >= 0
}

// compare orders two values, neither null, of a type that has an order.
func compare(t schema.Type, a, b []byte) int {
	switch t.Kind {
	case schema.Char, schema.String, schema.Binary, schema.Bytes:
		return bytes.Compare(a, b)
	case schema.Float:
		x, y := math.Float32frombits(binary.LittleEndian.Uint32(a)), math.Float32frombits(binary.LittleEndian.Uint32(b))
		return compareFloat(float64(x), float64(y))
	case schema.Double:
		return compareFloat(float64Of(a), float64Of(b))
	case schema.Decimal:
		if c := cmp.Compare(row.Int(a[8:]), row.Int(b[8:])); c != 0 {
			return c
		}
		return cmp.Compare(binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b))
	}
	return cmp.Compare(row.Int(a), row.Int(b))
}

// compareFloat has NaN above +Inf, where cmp.Compare has it below -Inf.
func compareFloat(a, b float64) int {
	if a != a || b != b {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}
