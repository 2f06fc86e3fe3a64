package keyenc

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// Encoder writes the keys of rows of Arrow record batches. Not safe for
// concurrent use.
type Encoder struct {
	columns []schema.Column
	arrays  []arrow.Array
}

// New makes an encoder of the named columns, in that order.
func New(s *schema.Schema, columns []string) (*Encoder, error) {
	e := &Encoder{arrays: make([]arrow.Array, len(columns))}
	for _, name := range columns {
		c, ok := s.Column(name)
		if !ok {
			return nil, fmt.Errorf("%w key: the table has no column %q", mink.ErrInvalid, name)
		}
		if c.Type.Nested() {
			return nil, fmt.Errorf("%w key: column %q is %s, nested types have no key form", mink.ErrInvalid, name, c.Type)
		}
		e.columns = append(e.columns, c)
	}
	return e, nil
}

// Types are the types of the key's columns, for Decode.
func (e *Encoder) Types() []schema.Type {
	types := make([]schema.Type, len(e.columns))
	for i, c := range e.columns {
		types[i] = c.Type
	}
	return types
}

// Bind points the encoder to a batch, whose columns it finds by name. A key
// column that is absent, of another type, or has nulls is an error that names it.
// The batch must stay alive (not released) until the next Bind.
func (e *Encoder) Bind(rec arrow.RecordBatch) error {
	for i, c := range e.columns {
		arr, err := KeyColumn(rec, c)
		if err != nil {
			return err
		}
		e.arrays[i] = arr
	}
	return nil
}

// KeyColumn finds a key column in a batch by name and checks that it has the
// table's type and no null.
func KeyColumn(rec arrow.RecordBatch, c schema.Column) (arrow.Array, error) {
	at := rec.Schema().FieldIndices(c.Name)
	if len(at) != 1 {
		return nil, fmt.Errorf("%w batch: key column %q occurs %d times, want once", mink.ErrInvalid, c.Name, len(at))
	}
	arr := rec.Column(at[0])
	if !c.Type.Accepts(arr.DataType()) {
		return nil, fmt.Errorf("%w batch: key column %q is %s, which needs the Arrow type %s; got %s", mink.ErrInvalid, c.Name, c.Type, c.Type.Arrow(), arr.DataType())
	}
	if arr.NullN() > 0 {
		row := 0
		for row < arr.Len()-1 && !arr.IsNull(row) {
			row++
		}
		return nil, fmt.Errorf("%w batch: row %d has null in key column %q, a key has a value in every column", mink.ErrInvalid, row, c.Name)
	}
	return arr, nil
}

// Append appends the key of one row of the bound batch.
func (e *Encoder) Append(dst []byte, row int) []byte {
	for _, arr := range e.arrays {
		switch arr := arr.(type) {
		case *array.Boolean:
			dst = appendBool(dst, arr.Value(row))
		case *array.Int8:
			dst = appendInt8(dst, arr.Value(row))
		case *array.Int16:
			dst = appendInt16(dst, arr.Value(row))
		case *array.Int32:
			dst = appendInt32(dst, arr.Value(row))
		case *array.Int64:
			dst = appendInt64(dst, arr.Value(row))
		case *array.Float32:
			dst = appendFloat32(dst, arr.Value(row))
		case *array.Float64:
			dst = appendFloat64(dst, arr.Value(row))
		case *array.Decimal128:
			dst = appendDecimal(dst, arr.Value(row))
		case *array.String:
			dst = appendEscaped(dst, arr.Value(row))
		case *array.Binary:
			dst = appendEscaped(dst, arr.Value(row))
		case *array.FixedSizeBinary:
			dst = append(dst, arr.Value(row)...)
		case *array.Date32:
			dst = appendInt32(dst, int32(arr.Value(row)))
		case *array.Time32:
			dst = appendInt32(dst, int32(arr.Value(row)))
		case *array.Time64:
			dst = appendInt64(dst, int64(arr.Value(row)))
		case *array.Timestamp:
			dst = appendInt64(dst, int64(arr.Value(row)))
		}
	}
	return dst
}

// Encode is the key of values (AppendValue) of the types, which may be the
// leading columns of a longer key.
func Encode(types []schema.Type, values []any) ([]byte, error) {
	if len(values) > len(types) {
		return nil, fmt.Errorf("%w key: %d values for %d columns", mink.ErrInvalid, len(values), len(types))
	}
	var key []byte
	var err error
	for i, v := range values {
		if key, err = AppendValue(key, types[i], v); err != nil {
			return nil, err
		}
	}
	return key, nil
}

// Decode reads a whole key; bytes that no key has wrap mink.ErrCorrupt.
func Decode(types []schema.Type, key []byte) ([]any, error) {
	values := make([]any, len(types))
	var err error
	for i, t := range types {
		if values[i], key, err = DecodeValue(t, key); err != nil {
			return nil, err
		}
	}
	if len(key) > 0 {
		return nil, fmt.Errorf("decode key: %w: %d bytes follow the last column", mink.ErrCorrupt, len(key))
	}
	return values, nil
}
