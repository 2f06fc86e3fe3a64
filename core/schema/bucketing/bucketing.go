// Package bucketing finds the bucket of every row of a record batch. The function
// is fixed when a table is created, so that equal keys meet in one bucket for
// ever, in every language: testdata/bucket_vectors.json has values to check a
// client against.
//
//	one key column       Iceberg's bucket transform (spec, appendix B):
//	                     murmur3_32(bytes of the value) & 0x7fffffff mod buckets
//	several key columns  murmur3_32(schema/keyenc of the key) & 0x7fffffff mod buckets
//	no key               the caller sends whole batches to the buckets in turn
//
// murmur3_32 is the x86 32-bit variant with seed 0. The bytes of a value:
//
//	TINYINT..BIGINT, DATE   int64, little endian
//	BOOLEAN                 int64 0 or 1
//	TIME, TIMESTAMP(_LTZ)   microseconds as int64 (finer digits cut towards the past)
//	DECIMAL                 unscaled value, two's complement, big endian, no spare byte
//	FLOAT, DOUBLE           IEEE bits of the float64, little endian; -0.0 as 0.0, one NaN
//	CHAR, STRING            UTF-8
//	BINARY, BYTES           as is
package bucketing

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/twmb/murmur3"
)

// Bucketer maps rows to the buckets of one table. Immutable: safe for concurrent
// use.
type Bucketer struct {
	schema  *schema.Schema
	columns []schema.Column // bucket keys
	names   []string
	buckets int32
}

// New makes the bucketer of a valid descriptor. A table without bucket keys has
// none: mink.ErrInvalid.
func New(d *schema.Descriptor) (*Bucketer, error) {
	if d.BucketCount < 1 {
		return nil, fmt.Errorf("%w table %s: bucket count %d", mink.ErrInvalid, d.Name(), d.BucketCount)
	}
	want := schema.BucketIceberg
	switch len(d.BucketKeys) {
	case 0:
		return nil, fmt.Errorf("%w table %s: without bucket keys, batches go to the buckets in turn", mink.ErrInvalid, d.Name())
	case 1:
	default:
		want = schema.BucketMurmur3
	}
	if d.BucketFunction != want {
		return nil, fmt.Errorf("%w table %s: bucket function %q with %d bucket keys", mink.ErrInvalid, d.Name(), d.BucketFunction, len(d.BucketKeys))
	}
	b := &Bucketer{schema: &d.Schema, names: d.BucketKeys, buckets: d.BucketCount}
	for _, name := range d.BucketKeys {
		c, ok := d.Schema.Column(name)
		if !ok || c.Type.Nested() {
			return nil, fmt.Errorf("%w table %s: bucket key %q", mink.ErrInvalid, d.Name(), name)
		}
		b.columns = append(b.columns, c)
	}
	return b, nil
}

// Buckets sets out[row] to the bucket of every row; len(out) must be the number
// of rows. Columns are found by name. A key column that is absent, of another
// type or has nulls is an error that names it; out is then undefined.
func (b *Bucketer) Buckets(rec arrow.RecordBatch, out []int32) error {
	if int64(len(out)) != rec.NumRows() {
		return fmt.Errorf("%w bucketing: room for %d rows, the batch has %d", mink.ErrInvalid, len(out), rec.NumRows())
	}
	if len(b.columns) == 1 {
		arr, err := keyenc.KeyColumn(rec, b.columns[0])
		if err != nil {
			return err
		}
		hashColumn(arr, func(row int, hash uint32) { out[row] = b.bucket(hash) })
		return nil
	}
	enc, err := keyenc.New(b.schema, b.names)
	if err != nil {
		return err
	}
	if err := enc.Bind(rec); err != nil {
		return err
	}
	var key []byte
	for row := range out {
		key = enc.Append(key[:0], row)
		out[row] = b.bucket(murmur3.Sum32(key))
	}
	return nil
}

// Bucket is the bucket of one key, given as one value per bucket key with the Go
// types of keyenc.AppendValue.
func (b *Bucketer) Bucket(values ...any) (int32, error) {
	if len(values) != len(b.columns) {
		return 0, fmt.Errorf("%w key: %d values for %d bucket keys", mink.ErrInvalid, len(values), len(b.columns))
	}
	if len(values) == 1 {
		hash, err := HashValue(b.columns[0].Type, values[0])
		return b.bucket(hash), err
	}
	var key []byte
	var err error
	for i, v := range values {
		if key, err = keyenc.AppendValue(key, b.columns[i].Type, v); err != nil {
			return 0, fmt.Errorf("bucket key %q: %w", b.columns[i].Name, err)
		}
	}
	return b.bucket(murmur3.Sum32(key)), nil
}

func (b *Bucketer) bucket(hash uint32) int32 {
	return int32(hash&math.MaxInt32) % b.buckets
}

// HashValue is Iceberg's 32-bit hash of one value (Go types of keyenc.AppendValue).
func HashValue(t schema.Type, v any) (uint32, error) {
	if _, err := keyenc.AppendValue(nil, t, v); err != nil { // checks that v belongs to t
		return 0, err
	}
	switch v := v.(type) {
	case bool:
		return hashBool(v), nil
	case int8:
		return hashLong(int64(v)), nil
	case int16:
		return hashLong(int64(v)), nil
	case int32:
		return hashLong(int64(v)), nil
	case int64:
		return hashLong(v), nil
	case float32:
		return hashDouble(float64(v)), nil
	case float64:
		return hashDouble(v), nil
	case decimal128.Num:
		return hashDecimal(v), nil
	case string:
		return murmur3.StringSum32(v), nil
	case []byte:
		return murmur3.Sum32(v), nil
	case arrow.Date32:
		return hashLong(int64(v)), nil
	case arrow.Time32:
		return hashLong(micros(int64(v), t.Unit())), nil
	case arrow.Time64:
		return hashLong(micros(int64(v), t.Unit())), nil
	case arrow.Timestamp:
		return hashLong(micros(int64(v), t.Unit())), nil
	}
	return 0, fmt.Errorf("%w key value: %T", mink.ErrInvalid, v)
}

// hashColumn hashes every value of a column that keyenc.KeyColumn let through.
func hashColumn(arr arrow.Array, out func(row int, hash uint32)) {
	n := arr.Len()
	switch arr := arr.(type) {
	case *array.Boolean:
		for i := range n {
			out(i, hashBool(arr.Value(i)))
		}
	case *array.Int8:
		hashLongs(arr.Int8Values(), out)
	case *array.Int16:
		hashLongs(arr.Int16Values(), out)
	case *array.Int32:
		hashLongs(arr.Int32Values(), out)
	case *array.Int64:
		hashLongs(arr.Int64Values(), out)
	case *array.Date32:
		hashLongs(arr.Date32Values(), out)
	case *array.Float32:
		for i, v := range arr.Float32Values() {
			out(i, hashDouble(float64(v)))
		}
	case *array.Float64:
		for i, v := range arr.Float64Values() {
			out(i, hashDouble(v))
		}
	case *array.Decimal128:
		for i, v := range arr.Values() {
			out(i, hashDecimal(v))
		}
	case *array.String:
		for i := range n {
			out(i, murmur3.StringSum32(arr.Value(i)))
		}
	case *array.Binary:
		for i := range n {
			out(i, murmur3.Sum32(arr.Value(i)))
		}
	case *array.FixedSizeBinary:
		for i := range n {
			out(i, murmur3.Sum32(arr.Value(i)))
		}
	case *array.Time32:
		hashTimes(arr.Time32Values(), arr.DataType().(*arrow.Time32Type).Unit, out)
	case *array.Time64:
		hashTimes(arr.Time64Values(), arr.DataType().(*arrow.Time64Type).Unit, out)
	case *array.Timestamp:
		hashTimes(arr.TimestampValues(), arr.DataType().(*arrow.TimestampType).Unit, out)
	}
}

func hashLongs[T ~int8 | ~int16 | ~int32 | ~int64](values []T, out func(int, uint32)) {
	for i, v := range values {
		out(i, hashLong(int64(v)))
	}
}

func hashTimes[T ~int32 | ~int64](values []T, unit arrow.TimeUnit, out func(int, uint32)) {
	for i, v := range values {
		out(i, hashLong(micros(int64(v), unit)))
	}
}

// micros converts to microseconds; nanoseconds round towards the past, as the
// spec does. Seconds beyond 292,000 years wrap: any hash does.
func micros(v int64, unit arrow.TimeUnit) int64 {
	switch unit {
	case arrow.Second:
		return v * 1_000_000
	case arrow.Millisecond:
		return v * 1000
	case arrow.Nanosecond:
		q := v / 1000
		if v%1000 < 0 {
			q--
		}
		return q
	}
	return v
}

func hashBool(v bool) uint32 {
	if v {
		return hashLong(1)
	}
	return hashLong(0)
}

func hashLong(v int64) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(v))
	return murmur3.Sum32(b[:])
}

func hashDouble(v float64) uint32 {
	return hashLong(int64(math.Float64bits(keyenc.CanonicalFloat64(v))))
}

// hashDecimal hashes the shortest two's complement of the unscaled value.
func hashDecimal(v decimal128.Num) uint32 {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(v.HighBits()))
	binary.BigEndian.PutUint64(b[8:], v.LowBits())
	start := 0
	for start < 15 && (b[start] == 0x00 && b[start+1] < 0x80 || b[start] == 0xff && b[start+1] >= 0x80) {
		start++
	}
	return murmur3.Sum32(b[start:])
}
