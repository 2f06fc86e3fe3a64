package client

import (
	"reflect"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/client/internal/gorow"
)

// Decode answers a batch's rows as values of T: a struct with `mink:"column"` tags,
// or for a batch of one column a single value. Columns that T does not have are
// passed over. The values hold nothing of the batch's memory.
//
//	type Order struct {
//		ID   int64      `mink:"id"`
//		Item *string    `mink:"item"`      // nullable
//		At   *time.Time `mink:"at"`
//	}
//	for b, err := range c.Scan(ctx, client.ScanRequest{Table: "shop.orders", Bucket: -1}) {
//		orders, err := client.Decode[Order](b.Record)
//	}
//
// BOOLEAN is bool; TINYINT to BIGINT any integer type that holds the value; FLOAT
// and DOUBLE are float32 and float64; DECIMAL is string or decimal128.Num; CHAR and
// STRING string; BINARY and BYTES []byte or an array; DATE, TIMESTAMP and
// TIMESTAMP_LTZ time.Time in UTC; TIME a time.Duration since midnight; ARRAY, MAP
// and ROW slices, maps and structs. A column that may be null needs a pointer, a
// sql.Null, a slice or a map: null into anything else is mink.ErrInvalid.
func Decode[T any](rec arrow.RecordBatch) ([]T, error) {
	c, err := gorow.Compile(reflect.TypeFor[T](), rec.Schema())
	if err != nil {
		return nil, err
	}
	out := make([]T, rec.NumRows())
	for i := range out {
		if err := c.Decode(rec, i, reflect.ValueOf(&out[i]).Elem()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Encode makes a batch of values of T, as Decode reads them, in the columns of the
// schema; those that T does not have are null. The caller releases it.
func Encode[T any](schema *arrow.Schema, rows []T) (arrow.RecordBatch, error) {
	c, err := gorow.Compile(reflect.TypeFor[T](), schema)
	if err != nil {
		return nil, err
	}
	return c.Encode(memory.DefaultAllocator, schema, len(rows), func(i int) reflect.Value { return reflect.ValueOf(&rows[i]).Elem() })
}
