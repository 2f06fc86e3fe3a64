package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// typeOf is the type of a column of Postgres. The table of docs/sinks.md is this.
func typeOf(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.BooleanType:
		return "boolean"
	case *arrow.Int8Type, *arrow.Int16Type:
		return "smallint"
	case *arrow.Int32Type:
		return "integer"
	case *arrow.Int64Type:
		return "bigint"
	case *arrow.Float32Type:
		return "real"
	case *arrow.Float64Type:
		return "double precision"
	case *arrow.Decimal128Type:
		return fmt.Sprintf("numeric(%d,%d)", t.Precision, t.Scale)
	case *arrow.StringType:
		return "text"
	case *arrow.FixedSizeBinaryType, *arrow.BinaryType:
		return "bytea"
	case *arrow.Date32Type:
		return "date"
	case *arrow.Time32Type:
		return "time"
	case *arrow.Time64Type:
		if t.Unit == arrow.Nanosecond {
			return "bigint"
		}
		return "time"
	case *arrow.TimestampType:
		switch {
		case t.Unit == arrow.Nanosecond:
			return "bigint"
		case t.TimeZone != "":
			return "timestamp with time zone"
		}
		return "timestamp without time zone"
	case *arrow.ListType, *arrow.MapType, *arrow.StructType:
		return "jsonb"
	}
	return ""
}

// checkTable refuses what the sink cannot keep exactly.
func checkTable(spec sink.TableSpec) error {
	for _, f := range spec.Schema.Arrow.Fields() {
		err := checkIdentifier(f.Name)
		switch {
		case err != nil:
		case typeOf(f.Type) == "":
			err = fmt.Errorf("no type of Postgres holds %s", f.Type)
		case slices.Contains([]string{"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}, f.Name):
			err = fmt.Errorf("the name is that of a column that Postgres has of its own")
		case fieldID(f) == "":
			err = fmt.Errorf("it has no field id")
		case slices.Contains(spec.PrimaryKey, f.Name) && (typeOf(f.Type) == "real" || typeOf(f.Type) == "double precision"):
			err = fmt.Errorf("%s in a primary key: Postgres takes 0 and -0 for one key, Mink for two", f.Type)
		}
		if err != nil {
			return fmt.Errorf("%w: table %s: column %q: %w", sink.ErrUnimplemented, spec.FullName(), f.Name, err)
		}
	}
	return nil
}

// widen is the expression that makes a column's old values those of a wider type.
func widen(from, to arrow.DataType, column string) (string, error) {
	a, b := typeOf(from), typeOf(to)
	switch {
	case b == "bigint" && a == "time" || b == "bigint" && strings.HasPrefix(a, "timestamp"): // nanoseconds
		return fmt.Sprintf("(extract(epoch FROM %s) * 1000000000)::bigint", column), nil
	case b == "bigint" && (a == "smallint" || a == "integer"),
		b == "integer" && a == "smallint", b == "double precision" && a == "real",
		strings.HasPrefix(a, "numeric") && strings.HasPrefix(b, "numeric"):
		return column + "::" + b, nil
	}
	return "", fmt.Errorf("%s cannot become %s", a, b)
}

func encodeSchema(s *arrow.Schema) []byte {
	var b bytes.Buffer
	_ = ipc.NewWriter(&b, ipc.WithSchema(s)).Close() // into memory: it cannot fail
	return b.Bytes()
}

func decodeSchema(data []byte) (*arrow.Schema, error) {
	r, err := ipc.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer r.Release()
	return r.Schema(), nil
}

// rowSource is a batch as the rows of a COPY. The old half of an update is left out: the
// new half, which follows, says what there is.
type rowSource struct {
	batch   arrow.RecordBatch
	changes []mink.Change
	columns []encoder
	seq     int64
	at      int
	values  []any
	err     error
}

func (r *rowSource) Next() bool {
	if r.err != nil {
		return false
	}
	for r.at++; r.at < len(r.changes) && r.changes[r.at] == mink.ChangeUpdateBefore; r.at++ {
	}
	return int64(r.at) < r.batch.NumRows()
}

func (r *rowSource) Values() ([]any, error) {
	change := mink.ChangeInsert
	if r.changes != nil {
		change = r.changes[r.at]
	}
	r.values = append(r.values[:0], r.seq, int16(change))
	r.seq++
	for i, encode := range r.columns {
		var v any
		if c := r.batch.Column(i); c.IsValid(r.at) {
			var err error
			if v, err = encode(r.at); err != nil {
				r.err = fmt.Errorf("%w: column %q: %w", sink.ErrInvalid, r.batch.ColumnName(i), err)
				return nil, r.err
			}
		}
		r.values = append(r.values, v)
	}
	return r.values, nil
}

func (r *rowSource) Err() error { return r.err }

// encoder makes the value of a row, which is not null, as pgx takes it.
type encoder func(row int) (any, error)

func encodersOf(b arrow.RecordBatch) ([]encoder, error) {
	out := make([]encoder, b.NumCols())
	for i, c := range b.Columns() {
		if out[i] = encoderOf(c); out[i] == nil {
			return nil, fmt.Errorf("%w: column %q: a column of Arrow type %s", sink.ErrUnimplemented, b.ColumnName(i), c.DataType())
		}
	}
	return out, nil
}

func encoderOf(c arrow.Array) encoder {
	switch c := c.(type) {
	case *array.Boolean:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.Int8:
		return func(i int) (any, error) { return int16(c.Value(i)), nil }
	case *array.Int16:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.Int32:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.Int64:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.Float32:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.Float64:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.Decimal128:
		scale := c.DataType().(*arrow.Decimal128Type).Scale //nolint:forcetypeassert // of this array
		return func(i int) (any, error) {
			return pgtype.Numeric{Int: c.Value(i).BigInt(), Exp: -scale, Valid: true}, nil
		}
	case *array.String:
		return func(i int) (any, error) { return textOf(c.Value(i)) }
	case *array.Binary:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.FixedSizeBinary:
		return func(i int) (any, error) { return c.Value(i), nil }
	case *array.Date32:
		return func(i int) (any, error) {
			if err := checkDays(int64(c.Value(i))); err != nil {
				return nil, err
			}
			return pgtype.Date{Time: time.Unix(int64(c.Value(i))*86400, 0).UTC(), Valid: true}, nil
		}
	case *array.Time32:
		unit := c.DataType().(*arrow.Time32Type).Unit //nolint:forcetypeassert // of this array
		return func(i int) (any, error) {
			return pgtype.Time{Microseconds: int64(c.Value(i)) * microseconds(unit), Valid: true}, nil
		}
	case *array.Time64:
		if c.DataType().(*arrow.Time64Type).Unit == arrow.Nanosecond { //nolint:forcetypeassert // of this array
			return func(i int) (any, error) { return int64(c.Value(i)), nil }
		}
		return func(i int) (any, error) {
			return pgtype.Time{Microseconds: int64(c.Value(i)), Valid: true}, nil
		}
	case *array.Timestamp:
		return timestampEncoder(c)
	case *array.List, *array.Map, *array.Struct:
		return func(i int) (any, error) {
			v, err := nested(c, i)
			if err != nil {
				return nil, err
			}
			return json.Marshal(v)
		}
	}
	return nil
}

func microseconds(unit arrow.TimeUnit) int64 { return int64(unit.Multiplier() / time.Microsecond) }

func timestampEncoder(c *array.Timestamp) encoder {
	t := c.DataType().(*arrow.TimestampType) //nolint:forcetypeassert // of this array
	if t.Unit == arrow.Nanosecond {
		return func(i int) (any, error) { return int64(c.Value(i)), nil }
	}
	return func(i int) (any, error) {
		at, err := timeOf(int64(c.Value(i)), t.Unit)
		if err != nil {
			return nil, err
		}
		if t.TimeZone != "" {
			return pgtype.Timestamptz{Time: at, Valid: true}, nil
		}
		return pgtype.Timestamp{Time: at, Valid: true}, nil
	}
}

// timeOf is a count of units since 1970, within what Postgres keeps.
func timeOf(v int64, unit arrow.TimeUnit) (time.Time, error) {
	per := int64(time.Second / unit.Multiplier())
	seconds, rest := v/per, v%per
	if rest < 0 {
		seconds, rest = seconds-1, rest+per
	}
	if err := checkDays(seconds / 86400); err != nil {
		return time.Time{}, err
	}
	return time.Unix(seconds, rest*int64(unit.Multiplier())).UTC(), nil
}

// Days since 1970 of the years -4712 and 294000, within which Postgres has both dates
// and timestamps.
const (
	daysMin = -2440500
	daysMax = 106660000
)

func checkDays(days int64) error {
	if days < daysMin || days > daysMax {
		return fmt.Errorf("%d days since 1970 are beyond what Postgres keeps", days)
	}
	return nil
}

func textOf(s string) (any, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, fmt.Errorf("a text with a zero byte, which Postgres cannot keep")
	}
	return s, nil
}

// nested is a value inside of a column of type jsonb. Whole numbers and decimals are
// numbers, bytes base64, times text; a MAP is a list of {"key", "value"}.
func nested(c arrow.Array, i int) (any, error) {
	if c.IsNull(i) {
		return nil, nil //nolint:nilnil // JSON's null
	}
	switch c := c.(type) {
	case *array.Map: // before List, which it embeds
		start, end := c.ValueOffsets(i)
		out := make([]any, 0, end-start)
		for j := int(start); j < int(end); j++ {
			key, err := nested(c.Keys(), j)
			if err != nil {
				return nil, err
			}
			value, err := nested(c.Items(), j)
			if err != nil {
				return nil, err
			}
			out = append(out, map[string]any{"key": key, "value": value})
		}
		return out, nil
	case *array.List:
		start, end := c.ValueOffsets(i)
		out := make([]any, 0, end-start)
		for j := int(start); j < int(end); j++ {
			v, err := nested(c.ListValues(), j)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case *array.Struct:
		out := map[string]any{}
		for j, f := range c.DataType().(*arrow.StructType).Fields() { //nolint:forcetypeassert // of this array
			v, err := nested(c.Field(j), i)
			if err != nil {
				return nil, err
			}
			out[f.Name] = v
		}
		return out, nil
	}
	return nestedLeaf(c, i)
}

func nestedLeaf(c arrow.Array, i int) (any, error) {
	switch c := c.(type) {
	case *array.Float32:
		return number(float64(c.Value(i))), nil
	case *array.Float64:
		return number(c.Value(i)), nil
	case *array.Decimal128:
		scale := c.DataType().(*arrow.Decimal128Type).Scale //nolint:forcetypeassert // of this array
		return json.Number(new(big.Rat).SetFrac(c.Value(i).BigInt(), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)).FloatString(int(scale))), nil
	case *array.String:
		return textOf(c.Value(i))
	case *array.FixedSizeBinary:
		return c.Value(i), nil
	case *array.Timestamp:
		t := c.DataType().(*arrow.TimestampType) //nolint:forcetypeassert // of this array
		at, err := timeOf(int64(c.Value(i)), t.Unit)
		if err != nil || at.Year() < 0 || at.Year() > 9999 {
			return nil, fmt.Errorf("a nested timestamp of the year %d, 0 to 9999 can be kept", at.Year())
		}
		layout := "2006-01-02T15:04:05.999999999"
		if t.TimeZone != "" {
			layout += "Z"
		}
		return at.Format(layout), nil
	case *array.Date32:
		at := time.Unix(int64(c.Value(i))*86400, 0).UTC()
		if at.Year() < 0 || at.Year() > 9999 {
			return nil, fmt.Errorf("a nested date of the year %d, 0 to 9999 can be kept", at.Year())
		}
		return at.Format(time.DateOnly), nil
	case *array.Time32:
		unit := c.DataType().(*arrow.Time32Type).Unit //nolint:forcetypeassert // of this array
		return time.Unix(0, int64(c.Value(i))*int64(unit.Multiplier())).UTC().Format("15:04:05.999999999"), nil
	case *array.Time64:
		unit := c.DataType().(*arrow.Time64Type).Unit //nolint:forcetypeassert // of this array
		return time.Unix(0, int64(c.Value(i))*int64(unit.Multiplier())).UTC().Format("15:04:05.999999999"), nil
	case *array.Boolean, *array.Int8, *array.Int16, *array.Int32, *array.Int64, *array.Binary:
		return c.GetOneForMarshal(i), nil
	}
	return nil, fmt.Errorf("a value of Arrow type %s", c.DataType())
}

// number is a JSON number, or text for what JSON, or jsonb, has no number for.
func number(f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case f == 0 && math.Signbit(f):
		return "-0"
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, 64))
}
