package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

func TestArrowTypes(t *testing.T) {
	for text, want := range map[string]string{
		"BOOLEAN": "bool", "TINYINT": "int8", "SMALLINT": "int16", "INT": "int32", "BIGINT": "int64",
		"FLOAT": "float32", "DOUBLE": "float64", "DECIMAL(12,3)": "decimal(12, 3)",
		"CHAR(3)": "utf8", "STRING": "utf8", "BINARY(16)": "fixed_size_binary[16]", "BYTES": "binary", "DATE": "date32",
		"TIME(0)": "time32[s]", "TIME(1)": "time32[ms]", "TIME(3)": "time32[ms]", "TIME(4)": "time64[us]", "TIME(6)": "time64[us]", "TIME(7)": "time64[ns]", "TIME(9)": "time64[ns]",
		"TIMESTAMP(0)": "timestamp[s]", "TIMESTAMP(2)": "timestamp[ms]", "TIMESTAMP(6)": "timestamp[us]", "TIMESTAMP(9)": "timestamp[ns]",
		"TIMESTAMP_LTZ(0)": "timestamp[s, tz=UTC]", "TIMESTAMP_LTZ(3)": "timestamp[ms, tz=UTC]", "TIMESTAMP_LTZ(8)": "timestamp[ns, tz=UTC]",
	} {
		if got := MustParseType(text).Arrow().String(); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
	nested := MustParseType("ROW<a ARRAY<INT NOT NULL>, m MAP<STRING, DOUBLE>>").Arrow().(*arrow.StructType)
	list := nested.Field(0).Type.(*arrow.ListType)
	if list.ElemField().Nullable || list.ElemField().Name != "element" {
		t.Errorf("element field %v", list.ElemField())
	}
	m := nested.Field(1).Type.(*arrow.MapType)
	if m.KeyField().Nullable || !m.ItemField().Nullable {
		t.Errorf("map fields %v %v", m.KeyField(), m.ItemField())
	}
}

func genSchema() *rapid.Generator[Schema] {
	return rapid.Custom(func(t *rapid.T) Schema {
		var s Schema
		for _, name := range rapid.SliceOfNDistinct(genColumnName(), 1, 6, rapid.ID[string]).Draw(t, "columns") {
			s.Columns = append(s.Columns, Column{Name: name, Type: genType(2).Draw(t, "type"), Comment: rapid.SampledFrom([]string{"", "why"}).Draw(t, "comment")})
		}
		return s
	})
}

func TestArrowRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, err := (&Descriptor{Schema: genSchema().Draw(t, "schema")}).Normalize()
		if err != nil {
			t.Fatal(err)
		}
		got, err := FromArrow(d.Schema.Arrow())
		if err != nil {
			t.Fatal(err)
		}
		got.ID = d.Schema.ID
		if diff := cmp.Diff(&d.Schema, got); diff != "" {
			t.Fatal(diff)
		}
		if err := d.Schema.CheckArrow(d.Schema.Arrow()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFieldIDsInMetadata(t *testing.T) {
	d, err := (&Descriptor{Schema: Schema{Columns: []Column{
		{Name: "a", Type: MustParseType("ARRAY<ROW<x INT>>")}, {Name: "b", Type: MustParseType("INT")}}}}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	as := d.Schema.Arrow()
	list := as.Field(0).Type.(*arrow.ListType)
	row := list.Elem().(*arrow.StructType)
	for want, f := range map[string]arrow.Field{"1": as.Field(0), "2": as.Field(1), "3": list.ElemField(), "4": row.Field(0)} {
		for _, key := range []string{MetaFieldID, MetaParquetFieldID} {
			if got, _ := f.Metadata.GetValue(key); got != want {
				t.Errorf("%s of %s is %q, want %s", key, f.Name, got, want)
			}
		}
	}
}

func TestFromArrowRefusesForeignTypes(t *testing.T) {
	for _, c := range []struct {
		dt   arrow.DataType
		want string
	}{
		{arrow.PrimitiveTypes.Uint8, "cast it to int16"},
		{arrow.PrimitiveTypes.Uint64, "cast it to int64"},
		{arrow.BinaryTypes.LargeString, "cast it to string (utf8)"},
		{arrow.FixedWidthTypes.Float16, "cast it to float32"},
		{arrow.PrimitiveTypes.Date64, "cast it to date32"},
		{arrow.Null, "cast it to the type it should have"},
		{&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, "plain value type"},
		{&arrow.Decimal128Type{Precision: 5, Scale: -2}, "no Mink type"},
		{&arrow.FixedSizeBinaryType{ByteWidth: 0}, "no Mink type"},
		{&arrow.FixedSizeBinaryType{ByteWidth: 1 << 30}, "no Mink type"},
	} {
		for _, as := range []*arrow.Schema{
			arrow.NewSchema([]arrow.Field{{Name: "c", Type: c.dt}}, nil),
			arrow.NewSchema([]arrow.Field{{Name: "c", Type: arrow.ListOf(c.dt)}}, nil),
		} {
			_, err := FromArrow(as)
			if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `column "c`) {
				t.Errorf("%s: %v, want %q", as, err, c.want)
			}
		}
	}
	deep := arrow.PrimitiveTypes.Int8
	for range 50 {
		deep = arrow.ListOf(deep)
	}
	if _, err := FromArrow(arrow.NewSchema([]arrow.Field{{Name: "c", Type: deep}}, nil)); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("deep type: %v", err)
	}
	bad := arrow.NewMetadata([]string{MetaFieldID}, []string{"-3"})
	if _, err := FromArrow(arrow.NewSchema([]arrow.Field{{Name: "c", Type: arrow.PrimitiveTypes.Int8, Metadata: bad}}, nil)); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("bad field id: %v", err)
	}
}

func TestFromArrowIgnoresDisagreeingType(t *testing.T) {
	md := arrow.NewMetadata([]string{MetaType}, []string{"BIGINT"})
	s, err := FromArrow(arrow.NewSchema([]arrow.Field{{Name: "c", Type: arrow.PrimitiveTypes.Int8, Metadata: md}}, nil))
	if err != nil || s.Columns[0].Type.Kind != TinyInt {
		t.Fatalf("%v, %v", s, err)
	}
}

func field(name string, dt arrow.DataType) arrow.Field {
	return arrow.Field{Name: name, Type: dt, Nullable: true}
}

func TestMatchArrow(t *testing.T) {
	s := &Schema{Columns: []Column{
		{Name: "id", Type: MustParseType("BIGINT NOT NULL")},
		{Name: "tags", Type: MustParseType("ARRAY<ROW<k STRING, v INT>>")},
		{Name: "at", Type: MustParseType("TIMESTAMP_LTZ(3)")},
		{Name: "m", Type: MustParseType("MAP<STRING, TIME(3)>")},
	}}
	id := field("id", arrow.PrimitiveTypes.Int64)
	// pyarrow's names and any zone
	tags := field("tags", arrow.ListOfField(field("item", arrow.StructOf(field("k", arrow.BinaryTypes.String), field("v", arrow.PrimitiveTypes.Int32)))))
	at := field("at", &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "Europe/Berlin"})
	m := field("m", arrow.MapOf(arrow.BinaryTypes.String, arrow.FixedWidthTypes.Time32ms))
	for _, c := range []struct {
		name   string
		fields []arrow.Field
		want   string // "": same; "columns": matches in another order
	}{
		{"same", []arrow.Field{id, tags, at, m}, ""},
		{"order", []arrow.Field{m, id, tags, at}, "[1 2 3 0]"},
		{"absent nullable", []arrow.Field{id}, "[0 -1 -1 -1]"},
		{"absent required", []arrow.Field{tags}, `column "id" is NOT NULL and absent`},
		{"unknown", []arrow.Field{id, field("tag", arrow.PrimitiveTypes.Int8)}, `no column "tag", did you mean "tags"?`},
		{"twice", []arrow.Field{id, id}, `column "id" occurs twice`},
		{"width", []arrow.Field{field("id", arrow.PrimitiveTypes.Int32)}, `column "id" is BIGINT NOT NULL, which needs the Arrow type int64; got int32`},
		{"nested", []arrow.Field{id, field("tags", arrow.ListOf(arrow.StructOf(field("k", arrow.BinaryTypes.String), field("v", arrow.PrimitiveTypes.Int64))))}, `column "tags.element.v" is INT`},
		{"row names", []arrow.Field{id, field("tags", arrow.ListOf(arrow.StructOf(field("v", arrow.PrimitiveTypes.Int32), field("k", arrow.BinaryTypes.String))))}, `column "tags.element" is ROW<`},
		{"no zone", []arrow.Field{id, field("at", &arrow.TimestampType{Unit: arrow.Millisecond})}, `column "at" is TIMESTAMP_LTZ(3)`},
		{"unit", []arrow.Field{id, field("at", &arrow.TimestampType{Unit: arrow.Second, TimeZone: "UTC"})}, `column "at"`},
		{"map value", []arrow.Field{id, field("m", arrow.MapOf(arrow.BinaryTypes.String, arrow.FixedWidthTypes.Time32s))}, `column "m.value" is TIME(3)`},
		{"map key", []arrow.Field{id, field("m", arrow.MapOf(arrow.BinaryTypes.Binary, arrow.FixedWidthTypes.Time32ms))}, `column "m.key" is STRING`},
	} {
		as := arrow.NewSchema(c.fields, nil)
		match, err := s.MatchArrow(as)
		strict := s.CheckArrow(as)
		switch {
		case c.want == "":
			if err != nil || !match.Same || strict != nil {
				t.Errorf("%s: %v, %v, %v", c.name, match, err, strict)
			}
		case c.want[0] == '[':
			if err != nil || match.Same || fmt.Sprint(match.Columns) != c.want {
				t.Errorf("%s: %v, %v", c.name, match, err)
			}
			if !errors.Is(strict, mink.ErrInvalid) {
				t.Errorf("%s: strict: %v", c.name, strict)
			}
		default:
			if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		}
	}
}

// Case 35: no type may be read with another's width or precision: every pair of
// distinct Arrow types is told apart.
func TestTypeMatrix(t *testing.T) {
	texts := []string{"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(10,3)", "DECIMAL(11,2)",
		"STRING", "BINARY(4)", "BINARY(5)", "BYTES", "DATE", "ARRAY<INT>", "ARRAY<BIGINT>", "MAP<STRING, INT>", "ROW<a INT>", "ROW<b INT>"}
	for _, kind := range []string{"TIME", "TIMESTAMP", "TIMESTAMP_LTZ"} {
		for _, p := range []int{0, 3, 6, 9} {
			texts = append(texts, fmt.Sprintf("%s(%d)", kind, p))
		}
	}
	for _, table := range texts {
		s := &Schema{Columns: []Column{{Name: "c", Type: MustParseType(table)}}}
		for _, client := range texts {
			as := arrow.NewSchema([]arrow.Field{field("c", MustParseType(client).Arrow())}, nil)
			if err := s.CheckArrow(as); (err == nil) != (table == client) {
				t.Errorf("table %s, client %s: %v", table, client, err)
			}
		}
	}
}
