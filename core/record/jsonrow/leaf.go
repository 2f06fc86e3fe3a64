package jsonrow

import (
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// leaf reads one value of a type without fields from its text into b, nil: only
// to see whether it is one.
func (r *Reader) leaf(n *node, b array.Builder, text []byte) error {
	switch t := n.typ.(type) {
	case *arrow.StringType:
		if n.chars > 0 && len(text) > n.chars && utf8.RuneCount(text) > n.chars {
			return r.in.errorf("it has %d characters, %s takes %d", utf8.RuneCount(text), n.text, n.chars)
		}
		if b != nil {
			b.(*array.StringBuilder).BinaryBuilder.Append(text)
		}
		return nil
	case *arrow.Decimal128Type:
		v, err := parseDecimal(text, t)
		if err == nil && b != nil {
			b.(*array.Decimal128Builder).Append(v)
		}
		return err
	case *arrow.BooleanType:
		v, err := strconv.ParseBool(string(text))
		if err != nil {
			return r.in.want(n)
		}
		if b != nil {
			b.(*array.BooleanBuilder).Append(v)
		}
		return nil
	case *arrow.BinaryType, *arrow.FixedSizeBinaryType:
		return r.binary(n, b, text)
	case *arrow.Float32Type, *arrow.Float64Type:
		return r.float(n, b, text)
	}
	v, ok := n.integer(text)
	if !ok {
		return r.in.want(n)
	}
	appendInteger(b, v)
	return nil
}

// integer reads the types whose values are integers below: numbers, dates, times.
func (n *node) integer(text []byte) (int64, bool) {
	switch t := n.typ.(type) {
	case *arrow.Date32Type:
		days, rest, ok := parseDate(text)
		return days, ok && len(rest) == 0
	case *arrow.Time32Type:
		return parseTime(text, t.Unit)
	case *arrow.Time64Type:
		return parseTime(text, t.Unit)
	case *arrow.TimestampType:
		return parseTimestamp(text, t)
	case arrow.FixedWidthDataType:
		return parseWhole(text, t.BitWidth())
	}
	return 0, false
}

func appendInteger(b array.Builder, v int64) {
	switch b := b.(type) {
	case *array.Int8Builder:
		b.Append(int8(v))
	case *array.Int16Builder:
		b.Append(int16(v))
	case *array.Int32Builder:
		b.Append(int32(v))
	case *array.Int64Builder:
		b.Append(v)
	case *array.Date32Builder:
		b.Append(arrow.Date32(v))
	case *array.Time32Builder:
		b.Append(arrow.Time32(v))
	case *array.Time64Builder:
		b.Append(arrow.Time64(v))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v))
	}
}

// parseWhole reads a whole number, which may be written 1e3 or 2.0.
func parseWhole(text []byte, bits int) (int64, bool) {
	if v, err := strconv.ParseInt(string(text), 10, bits); err == nil {
		return v, true
	}
	d, err := parseDecimal(text, &arrow.Decimal128Type{Precision: 19})
	if err != nil || !d.BigInt().IsInt64() {
		return 0, false
	}
	v := d.BigInt().Int64()
	return v, v>>(bits-1) == 0 || v>>(bits-1) == -1
}

func (r *Reader) float(n *node, b array.Builder, text []byte) error {
	bits := n.typ.(arrow.FixedWidthDataType).BitWidth()
	v, err := strconv.ParseFloat(string(text), bits)
	if err != nil {
		return r.in.want(n)
	}
	switch b := b.(type) {
	case *array.Float32Builder:
		b.Append(float32(v))
	case *array.Float64Builder:
		b.Append(v)
	}
	return nil
}

func (r *Reader) binary(n *node, b array.Builder, text []byte) error {
	var err error
	if r.bin, err = base64.StdEncoding.AppendDecode(r.bin[:0], text); err != nil {
		return r.in.want(n)
	}
	if t, fixed := n.typ.(*arrow.FixedSizeBinaryType); fixed && len(r.bin) != t.ByteWidth {
		return r.in.want(n)
	}
	switch b := b.(type) {
	case *array.BinaryBuilder:
		b.Append(r.bin)
	case *array.FixedSizeBinaryBuilder:
		b.Append(r.bin)
	}
	return nil
}

// parseDecimal reads a decimal exactly. Arrow's readers cut or round digits that
// the scale has no place for.
func parseDecimal(text []byte, t *arrow.Decimal128Type) (decimal128.Num, error) {
	if v, ok := shortDecimal(text, t); ok {
		return decimal128.FromI64(v), nil
	}
	return longDecimal(string(text), t)
}

var tens = func() (p [19]int64) {
	p[0] = 1
	for i := 1; i < len(p); i++ {
		p[i] = 10 * p[i-1]
	}
	return p
}()

// shortDecimal reads what is most often there: at most 18 digits with those that
// the scale adds, no exponent. Not ok: the number may still be one.
func shortDecimal(text []byte, t *arrow.Decimal128Type) (int64, bool) {
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		text = text[1:]
	}
	if len(text) == 0 || len(text) > 18 {
		return 0, false
	}
	v, point := int64(0), -1
	for i, c := range text {
		switch {
		case c-'0' <= 9:
			v = 10*v + int64(c-'0')
		case c == '.' && point < 0 && i > 0 && i < len(text)-1:
			point = i
		default:
			return 0, false
		}
	}
	add := int(t.Scale)
	if point >= 0 {
		add -= len(text) - 1 - point
	}
	most := min(int(t.Precision), 18)
	if add < 0 || add > most || v >= tens[most-add] {
		return 0, false
	}
	if v *= tens[add]; negative {
		v = -v
	}
	return v, true
}

// quoteFloat is a float as encoding/json writes it; what JSON has no number for
// goes into quotes.
func quoteFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"+Inf"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Inf"`...)
	}
	format, abs := byte('f'), math.Abs(f)
	if abs != 0 && (bits == 64 && (abs < 1e-6 || abs >= 1e21) || bits == 32 && (float32(abs) < 1e-6 || float32(abs) >= 1e21)) {
		format = 'e'
	}
	dst = strconv.AppendFloat(dst, f, format, -1, bits)
	if n := len(dst); format == 'e' && n >= 4 && dst[n-4] == 'e' && dst[n-3] == '-' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1] // e-09 is e-9
		dst = dst[:n-1]
	}
	return dst
}
