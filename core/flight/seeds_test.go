package flight

import "github.com/apache/arrow-go/v18/arrow"

// seedSchemas are flat, nested and annotated.
func seedSchemas() []*arrow.Schema {
	md := arrow.NewMetadata([]string{"mink.field_id"}, []string{"1"})
	return []*arrow.Schema{
		arrow.NewSchema(nil, nil),
		arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Metadata: md}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, &md),
		arrow.NewSchema([]arrow.Field{
			{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.FixedWidthTypes.Timestamp_ms})))},
			{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
		}, nil),
	}
}
