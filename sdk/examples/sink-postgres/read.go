package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// readRows is how many rows Read gives at once.
const readRows = 1024

// Read gives the rows of a table back, as the conformance kit wants them. Values come
// as text, so that what is compared has been through Postgres' own types.
func (s *postgres) Read(ctx context.Context, req sink.ReadRequest, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	if err := errors.Join(ctx.Err(), req.Table.Validate()); err != nil {
		return err
	}
	return readOnly(s.transact(ctx, func(tx pgx.Tx) error {
		now, err := s.lock(ctx, tx, req.Table.ID)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		columns := make([]string, now.arrow.NumFields())
		for i, f := range now.arrow.Fields() {
			columns[i] = asText(f.Type, quote(f.Name))
		}
		rows, err := tx.Query(ctx, `SELECT `+strings.Join(columns, ", ")+` FROM `+now.at.String())
		if err != nil {
			return err
		}
		defer rows.Close()
		return readAll(rows, now.arrow, yield)
	}))
}

func readAll(rows pgx.Rows, schema *arrow.Schema, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	n := 0
	flush := func() bool {
		batch := b.NewRecordBatch()
		defer batch.Release()
		n = 0
		return yield(batch, nil)
	}
	texts, into := make([]*string, schema.NumFields()), make([]any, schema.NumFields())
	for i := range texts {
		into[i] = &texts[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i, text := range texts {
			if err := appendText(b.Field(i), text); err != nil {
				return fmt.Errorf("%w: column %q: %w", sink.ErrCorrupt, schema.Field(i).Name, err)
			}
		}
		if n++; n == readRows && !flush() {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if n > 0 {
		flush()
	}
	return nil
}

// asText is the expression that reads a column as text.
func asText(t arrow.DataType, column string) string {
	switch typeOf(t) {
	case "bytea":
		return "encode(" + column + ", 'hex')"
	case "date":
		return "(" + column + " - date '1970-01-01')::text"
	case "time", "timestamp without time zone", "timestamp with time zone":
		return "(extract(epoch FROM " + column + ") * 1000000)::bigint::text"
	}
	return column + "::text"
}

func appendText(b array.Builder, text *string) error {
	if text == nil {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.StringBuilder:
		b.Append(*text)
	case *array.BinaryBuilder, *array.FixedSizeBinaryBuilder:
		data, err := hex.DecodeString(*text)
		if err != nil {
			return err
		}
		b.(interface{ Append(v []byte) }).Append(data) //nolint:forcetypeassert // both have it
	case *array.Decimal128Builder:
		t := b.Type().(*arrow.Decimal128Type) //nolint:forcetypeassert // of this builder
		v, err := decimal128.FromString(*text, t.Precision, t.Scale)
		if err != nil {
			return err
		}
		b.Append(v)
	case *array.BooleanBuilder:
		b.Append(*text == "true" || *text == "t")
	case *array.Float32Builder:
		v, err := strconv.ParseFloat(*text, 32)
		if err != nil {
			return err
		}
		b.Append(float32(v))
	case *array.Float64Builder:
		v, err := strconv.ParseFloat(*text, 64)
		if err != nil {
			return err
		}
		b.Append(v)
	case *array.ListBuilder, *array.MapBuilder, *array.StructBuilder:
		return appendJSON(b, *text)
	default:
		return appendWhole(b, *text)
	}
	return nil
}

// appendWhole appends what is a whole number in Arrow; times come as microseconds, but
// for those of nanoseconds.
func appendWhole(b array.Builder, text string) error {
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	switch b := b.(type) {
	case *array.Int8Builder:
		b.Append(int8(v)) //nolint:gosec // as it was written
	case *array.Int16Builder:
		b.Append(int16(v)) //nolint:gosec // as it was written
	case *array.Int32Builder:
		b.Append(int32(v)) //nolint:gosec // as it was written
	case *array.Int64Builder:
		b.Append(v)
	case *array.Date32Builder:
		b.Append(arrow.Date32(v)) //nolint:gosec // as it was written
	case *array.Time32Builder:
		b.Append(arrow.Time32(v / microseconds(b.Type().(*arrow.Time32Type).Unit))) //nolint:gosec,forcetypeassert // as it was written
	case *array.Time64Builder:
		b.Append(arrow.Time64(v))
	case *array.TimestampBuilder:
		if unit := b.Type().(*arrow.TimestampType).Unit; unit != arrow.Nanosecond { //nolint:forcetypeassert // of this builder
			v /= microseconds(unit)
		}
		b.Append(arrow.Timestamp(v))
	default:
		return fmt.Errorf("no value of Arrow type %s is kept", b.Type())
	}
	return nil
}

// appendJSON reads the values of nested, for the types that the kit has inside of
// others.
func appendJSON(b array.Builder, text string) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return err
	}
	return appendValue(b, v)
}

func appendValue(b array.Builder, v any) error {
	if v == nil {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.MapBuilder:
		pairs, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%v is no list of pairs", v)
		}
		b.Append(true)
		for _, p := range pairs {
			pair, ok := p.(map[string]any)
			if !ok {
				return fmt.Errorf("%v is no pair", p)
			}
			if err := errors.Join(appendValue(b.KeyBuilder(), pair["key"]), appendValue(b.ItemBuilder(), pair["value"])); err != nil {
				return err
			}
		}
	case *array.ListBuilder:
		items, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%v is no list", v)
		}
		b.Append(true)
		for _, item := range items {
			if err := appendValue(b.ValueBuilder(), item); err != nil {
				return err
			}
		}
	case *array.StructBuilder:
		row, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%v is no object", v)
		}
		b.Append(true)
		for i, f := range b.Type().(*arrow.StructType).Fields() { //nolint:forcetypeassert // of this builder
			if err := appendValue(b.FieldBuilder(i), row[f.Name]); err != nil {
				return err
			}
		}
	case *array.BinaryBuilder:
		data, err := base64.StdEncoding.DecodeString(fmt.Sprint(v))
		if err != nil {
			return err
		}
		b.Append(data)
	default:
		text := fmt.Sprint(v)
		return appendText(b, &text)
	}
	return nil
}
