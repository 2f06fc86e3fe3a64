// Package keyenc encodes keys so that comparing the bytes compares the values,
// column by column: scans of a key range and of a key prefix are byte ranges.
//
// Each column's bytes are self-delimiting given its type, so that a key is the
// plain concatenation of its columns, and the key of leading columns is a prefix
// of the whole key.
//
//	BOOLEAN                   1 byte   0, 1
//	TINYINT .. BIGINT, DATE,  1-8      big endian, sign bit flipped; width by the Arrow type
//	TIME, TIMESTAMP(_LTZ)
//	DECIMAL                   16       unscaled value, big endian, sign bit flipped
//	FLOAT, DOUBLE             4, 8     IEEE bits; negative: all flipped, else: sign bit set
//	BINARY(n)                 n        as is
//	CHAR, STRING, BYTES       n+2..    00 is written 00 FF, the end is 00 01
//
// -0.0 is written as 0.0, and every NaN as the one quiet NaN, above +Inf: values
// that compare equal are one key. Null is refused. A key column's type cannot
// change, so no version is needed inside.
package keyenc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	escape     = 0x00 // begins an escape sequence
	escapedNul = 0xff // 00 FF: a zero byte
	terminator = 0x01 // 00 01: the end; below 00 FF, so that "a" < "a\x00"
)

func appendInt8(dst []byte, v int8) []byte { return append(dst, uint8(v)^1<<7) }
func appendInt16(dst []byte, v int16) []byte {
	return binary.BigEndian.AppendUint16(dst, uint16(v)^1<<15)
}
func appendInt32(dst []byte, v int32) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(v)^1<<31)
}
func appendInt64(dst []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(v)^1<<63)
}

func appendDecimal(dst []byte, v decimal128.Num) []byte {
	dst = appendInt64(dst, v.HighBits())
	return binary.BigEndian.AppendUint64(dst, v.LowBits())
}

// CanonicalFloat32 is the one value that stands for all that equal v: +0.0 for
// -0.0, one NaN for all.
func CanonicalFloat32(v float32) float32 {
	switch {
	case v == 0:
		return 0
	case v != v:
		return math.Float32frombits(0x7fc00000)
	}
	return v
}

// CanonicalFloat64 is CanonicalFloat32 for float64.
func CanonicalFloat64(v float64) float64 {
	switch {
	case v == 0:
		return 0
	case v != v:
		return math.Float64frombits(0x7ff8000000000000)
	}
	return v
}

func appendFloat32(dst []byte, v float32) []byte {
	bits := math.Float32bits(CanonicalFloat32(v))
	if bits>>31 != 0 {
		bits = ^bits
	} else {
		bits |= 1 << 31
	}
	return binary.BigEndian.AppendUint32(dst, bits)
}

func appendFloat64(dst []byte, v float64) []byte {
	bits := math.Float64bits(CanonicalFloat64(v))
	if bits>>63 != 0 {
		bits = ^bits
	} else {
		bits |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(dst, bits)
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendEscaped[T string | []byte](dst []byte, v T) []byte {
	start := 0
	for i := 0; i < len(v); i++ {
		if v[i] == escape {
			dst = append(append(dst, v[start:i]...), escape, escapedNul)
			start = i + 1
		}
	}
	return append(append(dst, v[start:]...), escape, terminator)
}

// AppendValue appends the bytes of one value. v has the Go type that the value
// has in an Arrow array: bool, int8, int16, int32, int64, float32, float64,
// decimal128.Num, string, []byte, arrow.Date32, arrow.Time32, arrow.Time64,
// arrow.Timestamp. Another Go type, a wrong length and nil are errors.
func AppendValue(dst []byte, t schema.Type, v any) ([]byte, error) {
	switch v := v.(type) {
	case bool:
		if t.Kind == schema.Boolean {
			return appendBool(dst, v), nil
		}
	case int8:
		if t.Kind == schema.TinyInt {
			return appendInt8(dst, v), nil
		}
	case int16:
		if t.Kind == schema.SmallInt {
			return appendInt16(dst, v), nil
		}
	case int32:
		if t.Kind == schema.Int {
			return appendInt32(dst, v), nil
		}
	case int64:
		if t.Kind == schema.BigInt {
			return appendInt64(dst, v), nil
		}
	case float32:
		if t.Kind == schema.Float {
			return appendFloat32(dst, v), nil
		}
	case float64:
		if t.Kind == schema.Double {
			return appendFloat64(dst, v), nil
		}
	case decimal128.Num:
		if t.Kind == schema.Decimal {
			return appendDecimal(dst, v), nil
		}
	case string:
		if t.Kind == schema.Char || t.Kind == schema.String {
			return appendEscaped(dst, v), nil
		}
	case []byte:
		switch {
		case t.Kind == schema.Bytes:
			return appendEscaped(dst, v), nil
		case t.Kind == schema.Binary && len(v) == t.Length:
			return append(dst, v...), nil
		}
	default:
		if out, ok := appendTime(dst, t, v); ok {
			return out, nil
		}
	}
	return nil, fmt.Errorf("%w key value: a %T is not a value of %s", mink.ErrInvalid, v, t)
}

func appendTime(dst []byte, t schema.Type, v any) ([]byte, bool) {
	switch v := v.(type) {
	case arrow.Date32:
		return appendInt32(dst, int32(v)), t.Kind == schema.Date
	case arrow.Time32:
		return appendInt32(dst, int32(v)), t.Kind == schema.Time && width(t) == 4
	case arrow.Time64:
		return appendInt64(dst, int64(v)), t.Kind == schema.Time && width(t) == 8
	case arrow.Timestamp:
		return appendInt64(dst, int64(v)), t.Kind == schema.Timestamp || t.Kind == schema.TimestampLTZ
	}
	return nil, false
}

// width is the number of bytes of a type of fixed size, 0 for the others.
func width(t schema.Type) int {
	switch t.Kind {
	case schema.Boolean, schema.TinyInt:
		return 1
	case schema.SmallInt:
		return 2
	case schema.Int, schema.Float, schema.Date:
		return 4
	case schema.BigInt, schema.Double, schema.Timestamp, schema.TimestampLTZ:
		return 8
	case schema.Decimal:
		return 16
	case schema.Binary:
		return t.Length
	case schema.Time:
		if t.Precision <= 3 {
			return 4
		}
		return 8
	}
	return 0
}

func corrupt(t schema.Type, why string) error {
	return fmt.Errorf("decode key column of %s: %w: %s", t, mink.ErrCorrupt, why)
}

// DecodeValue reads one value from the front of key and returns the rest. It
// accepts exactly what AppendValue writes: anything else wraps mink.ErrCorrupt.
// A []byte is a copy.
func DecodeValue(t schema.Type, key []byte) (v any, rest []byte, err error) {
	switch t.Kind {
	case schema.Char, schema.String, schema.Bytes:
		return decodeEscaped(t, key)
	}
	w := width(t)
	if w == 0 {
		return nil, nil, fmt.Errorf("%w key column: %s has no key form", mink.ErrInvalid, t)
	}
	if len(key) < w {
		return nil, nil, corrupt(t, fmt.Sprintf("%d bytes are left, want %d", len(key), w))
	}
	if v = decodeFixed(t, key[:w]); v == nil {
		return nil, nil, corrupt(t, fmt.Sprintf("%x is not a canonical value", key[:w]))
	}
	return v, key[w:], nil
}

// decodeFixed is nil for bytes that no value has.
func decodeFixed(t schema.Type, b []byte) any {
	be := binary.BigEndian
	switch t.Kind {
	case schema.Boolean:
		if b[0] > 1 {
			return nil
		}
		return b[0] == 1
	case schema.TinyInt:
		return int8(b[0] ^ 1<<7)
	case schema.SmallInt:
		return int16(be.Uint16(b) ^ 1<<15)
	case schema.Int:
		return int32(be.Uint32(b) ^ 1<<31)
	case schema.BigInt:
		return int64(be.Uint64(b) ^ 1<<63)
	case schema.Date:
		return arrow.Date32(be.Uint32(b) ^ 1<<31)
	case schema.Time:
		if len(b) == 4 {
			return arrow.Time32(be.Uint32(b) ^ 1<<31)
		}
		return arrow.Time64(be.Uint64(b) ^ 1<<63)
	case schema.Timestamp, schema.TimestampLTZ:
		return arrow.Timestamp(be.Uint64(b) ^ 1<<63)
	case schema.Decimal:
		return decimal128.New(int64(be.Uint64(b)^1<<63), be.Uint64(b[8:]))
	case schema.Binary:
		return bytes.Clone(b)
	case schema.Float:
		bits := be.Uint32(b)
		if bits>>31 != 0 {
			bits ^= 1 << 31
		} else {
			bits = ^bits
		}
		if v := math.Float32frombits(bits); math.Float32bits(CanonicalFloat32(v)) == bits {
			return v
		}
	case schema.Double:
		bits := be.Uint64(b)
		if bits>>63 != 0 {
			bits ^= 1 << 63
		} else {
			bits = ^bits
		}
		if v := math.Float64frombits(bits); math.Float64bits(CanonicalFloat64(v)) == bits {
			return v
		}
	}
	return nil
}

func decodeEscaped(t schema.Type, key []byte) (v any, rest []byte, err error) {
	out := make([]byte, 0, min(len(key), 64))
	for {
		i := bytes.IndexByte(key, escape)
		if i < 0 || i+1 == len(key) {
			return nil, nil, corrupt(t, "it has no end")
		}
		out = append(out, key[:i]...)
		next := key[i+1]
		key = key[i+2:]
		switch next {
		case escapedNul:
			out = append(out, 0)
		case terminator:
			if t.Kind == schema.Bytes {
				return out, key, nil
			}
			if !utf8.Valid(out) {
				return nil, nil, corrupt(t, "it is not UTF-8")
			}
			return string(out), key, nil
		default:
			return nil, nil, corrupt(t, fmt.Sprintf("00 %02x is no escape sequence", next))
		}
	}
}

// PrefixEnd is the smallest key above every key that starts with prefix: the keys
// with the prefix are the range [prefix, PrefixEnd(prefix)). nil: there is none,
// the range has no end.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}
