// Package evolvetest draws schema versions, and rows of them, for tests of what
// follows the evolution of a schema.
package evolvetest

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

// Put draws a value of the type and appends it.
func Put(t *rapid.T, b array.Builder, typ schema.Type) {
	if !typ.NotNull && rapid.IntRange(0, 3).Draw(t, "null") == 0 {
		b.AppendNull()
		return
	}
	small := rapid.Int32Range(-1000, 1000)
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(rapid.Bool().Draw(t, "v"))
	case *array.Int8Builder:
		b.Append(rapid.Int8().Draw(t, "v"))
	case *array.Int16Builder:
		b.Append(rapid.Int16().Draw(t, "v"))
	case *array.Int32Builder:
		b.Append(rapid.Int32().Draw(t, "v"))
	case *array.Int64Builder:
		b.Append(rapid.Int64().Draw(t, "v"))
	case *array.Float32Builder:
		b.Append(rapid.Float32Range(-9, 9).Draw(t, "v"))
	case *array.Float64Builder:
		b.Append(rapid.Float64Range(-9, 9).Draw(t, "v"))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(rapid.Int64().Draw(t, "v")))
	case *array.StringBuilder:
		b.Append(rapid.StringN(0, 3, -1).Draw(t, "v"))
	case *array.BinaryBuilder:
		b.Append(rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "v"))
	case *array.FixedSizeBinaryBuilder:
		b.Append(rapid.SliceOfN(rapid.Byte(), typ.Length, typ.Length).Draw(t, "v"))
	case *array.Date32Builder:
		b.Append(arrow.Date32(small.Draw(t, "v")))
	case *array.Time32Builder:
		b.Append(arrow.Time32(small.Draw(t, "v")))
	case *array.Time64Builder:
		b.Append(arrow.Time64(small.Draw(t, "v")))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(small.Draw(t, "v")))
	case *array.MapBuilder:
		b.Append(true)
		for range rapid.IntRange(0, 2).Draw(t, "entries") {
			Put(t, b.KeyBuilder(), typ.Fields[0].Type)
			Put(t, b.ItemBuilder(), typ.Fields[1].Type)
		}
	case *array.ListBuilder:
		b.Append(true)
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			Put(t, b.ValueBuilder(), typ.Fields[0].Type)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i, f := range typ.Fields {
			Put(t, b.FieldBuilder(i), f.Type)
		}
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

// evolution draws an older type and a newer one that it can become.
type evolution struct {
	t      *rapid.T
	nextID mink.FieldID
}

func (e *evolution) id() mink.FieldID { e.nextID++; return e.nextID }

var chains = [][]string{
	{"TINYINT", "SMALLINT", "INT", "BIGINT"}, {"FLOAT", "DOUBLE"}, {"DECIMAL(5,2)", "DECIMAL(7,2)", "DECIMAL(38,2)"}, {"CHAR(3)", "CHAR(9)", "STRING"},
	{"BINARY(2)", "BINARY(5)", "BINARY(16)", "BINARY(17)", "BINARY(30)", "BYTES"}, {"TIME(0)", "TIME(2)", "TIME(3)", "TIME(5)", "TIME(9)"}, {"TIMESTAMP(0)", "TIMESTAMP(1)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)"},
	{"TIMESTAMP_LTZ(0)", "TIMESTAMP_LTZ(6)"}, {"BOOLEAN"}, {"DATE"}, {"STRING"}, {"BYTES"},
}

func (e *evolution) types(depth int) (from, to schema.Type) {
	kind := 0
	if depth > 0 {
		kind = rapid.IntRange(0, 5).Draw(e.t, "kind")
	}
	switch kind {
	case 3:
		a, b := e.types(depth - 1)
		from, to = schema.ArrayOf(a), schema.ArrayOf(b)
		from.Fields[0].ID, to.Fields[0].ID = 90001, 90001
	case 4:
		a, b := e.types(depth - 1)
		key := schema.MustParseType("STRING NOT NULL")
		from, to = schema.MapOf(key, a), schema.MapOf(key, b)
	case 5:
		from, to = schema.RowOf(), schema.RowOf()
		for i := range rapid.IntRange(1, 3).Draw(e.t, "fields") {
			a, b := e.types(depth - 1)
			id := e.id()
			name := fmt.Sprint("f", i)
			fate := rapid.IntRange(0, 3).Draw(e.t, "fate")
			if fate != 1 || len(from.Fields) == 0 {
				from.Fields = append(from.Fields, schema.Field{ID: id, Name: name, Type: a})
			} else {
				b = b.Nullable() // added
			}
			if fate != 2 || len(to.Fields) == 0 { // else dropped
				to.Fields = append([]schema.Field{{ID: id, Name: name + "renamed"[:fate], Type: b}}, to.Fields...)
			}
		}
	default:
		chain := rapid.SampledFrom(chains).Draw(e.t, "chain")
		i := rapid.IntRange(0, len(chain)-1).Draw(e.t, "from")
		from, to = schema.MustParseType(chain[i]), schema.MustParseType(chain[rapid.IntRange(i, len(chain)-1).Draw(e.t, "to")])
	}
	from.NotNull = rapid.Bool().Draw(e.t, "not null")
	to.NotNull = from.NotNull && rapid.Bool().Draw(e.t, "still not null")
	return from, to
}

// Schemas draws a schema version, 1, and a later one, 2, that it can become:
// columns and nested fields are added, dropped, renamed, moved and promoted.
func Schemas(t *rapid.T) (from, to *schema.Schema) {
	e := &evolution{t: t}
	from, to = &schema.Schema{ID: 1}, &schema.Schema{ID: 2}
	for i := range rapid.IntRange(1, 5).Draw(e.t, "columns") {
		a, b := e.types(2)
		id := e.id()
		fate := rapid.IntRange(0, 3).Draw(e.t, "fate") // 1: added, 2: dropped, 3: renamed
		if fate != 1 {
			from.Columns = append(from.Columns, schema.Column{ID: id, Name: fmt.Sprint("c", i), Type: a})
		} else {
			b = b.Nullable()
		}
		if fate != 2 {
			c := schema.Column{ID: id, Name: fmt.Sprint("c", i, "renamed"[:fate]), Type: b}
			to.Columns = append([]schema.Column{c}, to.Columns...)
		}
	}
	return from, to
}
