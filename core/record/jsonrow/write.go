package jsonrow

import (
	"encoding/base64"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// AppendObject writes a row as an object, its columns in the order of the fields;
// what it writes, Reader reads as the same row. The exception are times outside
// the years 0 to 9999, which have no such text: a TIMESTAMP is written as a number
// in quotes.
func AppendObject(dst []byte, fields []arrow.Field, columns []arrow.Array, row int) []byte {
	dst, _ = AppendObjectUpTo(dst, math.MaxInt, fields, columns, row)
	return dst
}

// AppendObjectUpTo is AppendObject for rows that others made: a few bits of a list
// in Arrow can be gigabytes of JSON. false: dst would get longer than most bytes;
// it then holds a part of the row and is little longer.
func AppendObjectUpTo(dst []byte, most int, fields []arrow.Field, columns []arrow.Array, row int) ([]byte, bool) {
	w := writer{most}
	dst = append(dst, '{')
	for i, c := range columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendQuoted(dst, fields[i].Name), ':')
		dst = w.value(dst, c, row)
	}
	dst = append(dst, '}')
	return dst, len(dst) <= most
}

// AppendValue writes one value.
func AppendValue(dst []byte, c arrow.Array, row int) []byte {
	return writer{math.MaxInt}.value(dst, c, row)
}

// writer stops within lists once there are more than most bytes.
type writer struct{ most int }

func (w writer) value(dst []byte, c arrow.Array, row int) []byte {
	if c.IsNull(row) {
		return append(dst, "null"...)
	}
	switch c := c.(type) {
	case *array.Boolean:
		return strconv.AppendBool(dst, c.Value(row))
	case *array.Int8:
		return strconv.AppendInt(dst, int64(c.Value(row)), 10)
	case *array.Int16:
		return strconv.AppendInt(dst, int64(c.Value(row)), 10)
	case *array.Int32:
		return strconv.AppendInt(dst, int64(c.Value(row)), 10)
	case *array.Int64:
		return strconv.AppendInt(dst, c.Value(row), 10)
	case *array.Float32:
		return quoteFloat(dst, float64(c.Value(row)), 32)
	case *array.Float64:
		return quoteFloat(dst, c.Value(row), 64)
	case *array.String:
		return AppendQuoted(dst, c.Value(row))
	case *array.Binary:
		return appendBase64(dst, c.Value(row))
	case *array.FixedSizeBinary:
		return appendBase64(dst, c.Value(row))
	case *array.Struct:
		return w.row(dst, c, row)
	case array.ListLike: // a MAP too: its elements are objects of key and value
		return w.list(dst, c, row)
	}
	return append(appendBare(append(dst, '"'), c, row), '"')
}

// appendBare writes the types that are quoted and need no escapes.
func appendBare(dst []byte, c arrow.Array, row int) []byte {
	const clock = "15:04:05.999999999"
	switch c := c.(type) {
	case *array.Decimal128:
		return appendDecimal(dst, c.Value(row), c.DataType().(*arrow.Decimal128Type).Scale)
	case *array.Date32:
		return time.Unix(int64(c.Value(row))*86400, 0).UTC().AppendFormat(dst, time.DateOnly)
	case *array.Time32:
		return c.Value(row).ToTime(c.DataType().(*arrow.Time32Type).Unit).AppendFormat(dst, clock)
	case *array.Time64:
		return c.Value(row).ToTime(c.DataType().(*arrow.Time64Type).Unit).AppendFormat(dst, clock)
	case *array.Timestamp:
		t := c.DataType().(*arrow.TimestampType)
		v := c.Value(row).ToTime(t.Unit)
		if y := v.Year(); y < 0 || y > 9999 {
			return strconv.AppendInt(dst, int64(c.Value(row)), 10)
		}
		dst = v.AppendFormat(dst, "2006-01-02T"+clock)
		if t.TimeZone != "" {
			dst = append(dst, 'Z')
		}
		return dst
	}
	quoted := AppendQuoted(nil, c.ValueStr(row)) // no column of a table
	return append(dst, quoted[1:len(quoted)-1]...)
}

func appendBase64(dst, v []byte) []byte {
	dst = base64.StdEncoding.AppendEncode(append(dst, '"'), v)
	return append(dst, '"')
}

func (w writer) row(dst []byte, c *array.Struct, row int) []byte {
	t := c.DataType().(*arrow.StructType)
	dst = append(dst, '{')
	for i := range t.NumFields() {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendQuoted(dst, t.Field(i).Name), ':')
		dst = w.value(dst, c.Field(i), row)
	}
	return append(dst, '}')
}

func (w writer) list(dst []byte, c array.ListLike, row int) []byte {
	start, end := c.ValueOffsets(row)
	dst = append(dst, '[')
	for i := start; i < end && len(dst) <= w.most; i++ {
		if i > start {
			dst = append(dst, ',')
		}
		dst = w.value(dst, c.ListValues(), int(i))
	}
	return append(dst, ']')
}

// AppendQuoted writes text as a JSON string, as encoding/json does without its
// escapes for HTML.
func AppendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && n == 1:
				dst = append(append(dst, s[from:i]...), `\ufffd`...)
				from = i + n
			case r == '\u2028' || r == '\u2029': // line ends to JavaScript
				dst = append(append(dst, s[from:i]...), `\u202`...)
				dst = append(dst, hex[r&0xf])
				from = i + n
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}
