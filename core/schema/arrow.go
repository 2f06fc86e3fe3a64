package schema

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/mink-project/mink/sdk/mink"
)

// Keys of the metadata of Arrow fields.
const (
	MetaFieldID        = mink.MetaFieldID
	MetaParquetFieldID = mink.MetaParquetFieldID
	MetaType           = mink.MetaType
	MetaComment        = mink.MetaComment
)

// Arrow is the Arrow type. Nullability belongs to the Arrow field, so it appears
// here only for nested fields.
//
//	BOOLEAN bool            FLOAT float32    CHAR, STRING utf8           TIME(0) time32[s]    TIMESTAMP(0) timestamp[s]
//	TINYINT int8            DOUBLE float64   BINARY(n)                   TIME(1-3) time32[ms] TIMESTAMP(1-3) timestamp[ms]
//	SMALLINT int16          DECIMAL(p,s)       fixed_size_binary[n]      TIME(4-6) time64[us] TIMESTAMP(4-6) timestamp[us]
//	INT int32                 decimal128     BYTES binary                TIME(7-9) time64[ns] TIMESTAMP(7-9) timestamp[ns]
//	BIGINT int64            DATE date32      ARRAY list, MAP map, ROW struct; TIMESTAMP_LTZ as TIMESTAMP with zone UTC
func (t Type) Arrow() arrow.DataType {
	switch t.Kind {
	case Boolean:
		return arrow.FixedWidthTypes.Boolean
	case TinyInt:
		return arrow.PrimitiveTypes.Int8
	case SmallInt:
		return arrow.PrimitiveTypes.Int16
	case Int:
		return arrow.PrimitiveTypes.Int32
	case BigInt:
		return arrow.PrimitiveTypes.Int64
	case Float:
		return arrow.PrimitiveTypes.Float32
	case Double:
		return arrow.PrimitiveTypes.Float64
	case Decimal:
		return &arrow.Decimal128Type{Precision: int32(t.Precision), Scale: int32(t.Scale)}
	case Char, String:
		return arrow.BinaryTypes.String
	case Binary:
		return &arrow.FixedSizeBinaryType{ByteWidth: t.Length}
	case Bytes:
		return arrow.BinaryTypes.Binary
	case Date:
		return arrow.FixedWidthTypes.Date32
	case Time:
		if u := t.Unit(); u == arrow.Second || u == arrow.Millisecond {
			return &arrow.Time32Type{Unit: u}
		}
		return &arrow.Time64Type{Unit: t.Unit()}
	case Timestamp:
		return &arrow.TimestampType{Unit: t.Unit()}
	case TimestampLTZ:
		return &arrow.TimestampType{Unit: t.Unit(), TimeZone: "UTC"}
	case Array:
		return arrow.ListOfField(t.Fields[0].arrow(""))
	case Map:
		key := t.Fields[0].arrow("")
		key.Nullable = false
		return arrow.MapOfFields(key, t.Fields[1].arrow(""))
	case Row:
		fields := make([]arrow.Field, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = f.arrow("")
		}
		return arrow.StructOf(fields...)
	}
	return arrow.Null // not reachable for a type that was parsed or validated
}

// Unit is the Arrow time unit of TIME, TIMESTAMP and TIMESTAMP_LTZ.
func (t Type) Unit() arrow.TimeUnit {
	switch {
	case t.Precision == 0:
		return arrow.Second
	case t.Precision <= 3:
		return arrow.Millisecond
	case t.Precision <= 6:
		return arrow.Microsecond
	}
	return arrow.Nanosecond
}

func (f Field) arrow(comment string) arrow.Field {
	var keys, values []string
	if f.ID != 0 {
		id := strconv.Itoa(int(f.ID))
		keys = append(keys, MetaFieldID, MetaParquetFieldID)
		values = append(values, id, id)
	}
	keys, values = append(keys, MetaType), append(values, f.Type.String())
	if comment != "" {
		keys, values = append(keys, MetaComment), append(values, comment)
	}
	return arrow.Field{Name: f.Name, Type: f.Type.Arrow(), Nullable: !f.Type.NotNull, Metadata: arrow.NewMetadata(keys, values)}
}

// Arrow is the Arrow schema, with field ids and Mink's types in the fields'
// metadata. It is built anew by every call: keep it where it is used often.
func (s *Schema) Arrow() *arrow.Schema {
	fields := make([]arrow.Field, len(s.Columns))
	for i, c := range s.Columns {
		fields[i] = Field{ID: c.ID, Name: c.Name, Type: c.Type}.arrow(c.Comment)
	}
	return arrow.NewSchema(fields, nil)
}

// FromArrow makes the columns of an Arrow schema. Types come from the metadata
// "mink.type" where it is present and agrees with the Arrow type, else from the
// Arrow type alone (timestamp[ms] becomes TIMESTAMP(3), utf8 STRING). Field ids
// come from "mink.field_id"; absent ones are 0. An Arrow type that no Mink type
// has (unsigned, float16, large_utf8, dictionary ...) is refused. The result's
// ID is 0 and it is not validated.
func FromArrow(as *arrow.Schema) (*Schema, error) {
	s := &Schema{}
	budget := MaxFields
	for _, af := range as.Fields() {
		f, err := fieldFromArrow(af, af.Name, 0, &budget)
		if err != nil {
			return nil, err
		}
		c := Column{ID: f.ID, Name: f.Name, Type: f.Type}
		c.Comment, _ = af.Metadata.GetValue(MetaComment)
		s.Columns = append(s.Columns, c)
	}
	return s, nil
}

func fieldFromArrow(af arrow.Field, path string, depth int, budget *int) (Field, error) {
	f := Field{Name: af.Name}
	if *budget--; *budget < 0 {
		return f, fmt.Errorf("%w schema: more than %d fields", mink.ErrInvalid, MaxFields)
	}
	if depth > MaxTypeDepth {
		return f, fmt.Errorf("%w column %q: nested more than %d deep", mink.ErrInvalid, path, MaxTypeDepth)
	}
	if text, ok := af.Metadata.GetValue(MetaFieldID); ok {
		id, err := strconv.ParseInt(text, 10, 32)
		if err != nil || id < 1 {
			return f, fmt.Errorf("%w column %q: metadata %s is %q, want a number from 1", mink.ErrInvalid, path, MetaFieldID, text)
		}
		f.ID = mink.FieldID(id)
	}
	t, err := typeFromArrow(af.Type, path, depth, budget)
	if err != nil {
		return f, err
	}
	t.NotNull = !af.Nullable
	if !t.Nested() { // inside nested types each field carries its own
		if text, ok := af.Metadata.GetValue(MetaType); ok {
			declared, err := ParseType(text)
			if err == nil && arrow.TypeEqual(declared.Arrow(), t.Arrow()) {
				declared.NotNull = t.NotNull
				t = declared
			}
		}
	}
	f.Type = t
	return f, nil
}

func typeFromArrow(dt arrow.DataType, path string, depth int, budget *int) (Type, error) {
	if t, ok := leafFromArrow(dt); ok {
		return t, nil
	}
	switch dt := dt.(type) {
	case *arrow.ListType:
		elem, err := fieldFromArrow(dt.ElemField(), path+"."+ElementName, depth+1, budget)
		if err != nil {
			return Type{}, err
		}
		elem.Name = ElementName
		return Type{Kind: Array, Fields: []Field{elem}}, nil
	case *arrow.MapType:
		key, err := fieldFromArrow(dt.KeyField(), path+"."+KeyName, depth+1, budget)
		if err != nil {
			return Type{}, err
		}
		value, err := fieldFromArrow(dt.ItemField(), path+"."+ValueName, depth+1, budget)
		if err != nil {
			return Type{}, err
		}
		key.Name, value.Name, key.Type.NotNull = KeyName, ValueName, true
		return Type{Kind: Map, Fields: []Field{key, value}}, nil
	case *arrow.StructType:
		t := Type{Kind: Row}
		for _, af := range dt.Fields() {
			f, err := fieldFromArrow(af, path+"."+af.Name, depth+1, budget)
			if err != nil {
				return Type{}, err
			}
			t.Fields = append(t.Fields, f)
		}
		return t, nil
	}
	return Type{}, fmt.Errorf("%w column %q: no Mink type has the Arrow type %s%s", mink.ErrInvalid, path, dt, castHint(dt))
}

func leafFromArrow(dt arrow.DataType) (Type, bool) {
	digits := func(u arrow.TimeUnit) int { return [...]int{0, 3, 6, 9}[u] }
	switch dt := dt.(type) {
	case *arrow.BooleanType:
		return Type{Kind: Boolean}, true
	case *arrow.Int8Type:
		return Type{Kind: TinyInt}, true
	case *arrow.Int16Type:
		return Type{Kind: SmallInt}, true
	case *arrow.Int32Type:
		return Type{Kind: Int}, true
	case *arrow.Int64Type:
		return Type{Kind: BigInt}, true
	case *arrow.Float32Type:
		return Type{Kind: Float}, true
	case *arrow.Float64Type:
		return Type{Kind: Double}, true
	case *arrow.Decimal128Type:
		ok := dt.Precision >= 1 && dt.Precision <= MaxPrecision && dt.Scale >= 0 && dt.Scale <= dt.Precision
		return Type{Kind: Decimal, Precision: int(dt.Precision), Scale: int(dt.Scale)}, ok
	case *arrow.StringType:
		return Type{Kind: String}, true
	case *arrow.FixedSizeBinaryType:
		return Type{Kind: Binary, Length: dt.ByteWidth}, dt.ByteWidth >= 1 && dt.ByteWidth <= MaxFixedLength
	case *arrow.BinaryType:
		return Type{Kind: Bytes}, true
	case *arrow.Date32Type:
		return Type{Kind: Date}, true
	case *arrow.Time32Type:
		return Type{Kind: Time, Precision: digits(dt.Unit)}, dt.Unit == arrow.Second || dt.Unit == arrow.Millisecond
	case *arrow.Time64Type:
		return Type{Kind: Time, Precision: digits(dt.Unit)}, dt.Unit == arrow.Microsecond || dt.Unit == arrow.Nanosecond
	case *arrow.TimestampType:
		if dt.TimeZone == "" {
			return Type{Kind: Timestamp, Precision: digits(dt.Unit)}, true
		}
		return Type{Kind: TimestampLTZ, Precision: digits(dt.Unit)}, true
	}
	return Type{}, false
}

// castHint says what to cast a column of a foreign Arrow type to.
func castHint(dt arrow.DataType) string {
	to := ""
	switch dt.ID() {
	case arrow.UINT8:
		to = "int16"
	case arrow.UINT16:
		to = "int32"
	case arrow.UINT32, arrow.UINT64:
		to = "int64"
	case arrow.FLOAT16:
		to = "float32"
	case arrow.LARGE_STRING, arrow.STRING_VIEW:
		to = "string (utf8)"
	case arrow.LARGE_BINARY, arrow.BINARY_VIEW:
		to = "binary"
	case arrow.LARGE_LIST, arrow.FIXED_SIZE_LIST, arrow.LIST_VIEW, arrow.LARGE_LIST_VIEW:
		to = "list"
	case arrow.DATE64:
		to = "date32"
	case arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL256:
		to = "decimal128"
	case arrow.DICTIONARY, arrow.RUN_END_ENCODED:
		to = "its plain value type"
	case arrow.NULL:
		to = "the type it should have"
	default:
		return ""
	}
	return "; cast it to " + to
}

// Match is how a client's Arrow columns serve a table's.
type Match struct {
	// Columns[i] is the client's position of the table's column i, -1 when the
	// client sends none and the table's column is nullable.
	Columns []int
	// Same: the client sends exactly the table's columns in the table's order, so
	// that its bytes can be stored as they are.
	Same bool
}

// MatchArrow matches a client's columns with the table's by name, in any order.
// Types must be the same; nullability, metadata, the name of list elements and
// the zone of a TIMESTAMP_LTZ do not matter. A column that the table lacks, a
// name sent twice, and an absent NOT NULL column are errors that name it.
func (s *Schema) MatchArrow(as *arrow.Schema) (Match, error) {
	m := Match{Columns: make([]int, len(s.Columns)), Same: len(as.Fields()) == len(s.Columns)}
	for i := range m.Columns {
		m.Columns[i] = -1
	}
	position := make(map[string]int, len(s.Columns))
	for i, c := range s.Columns {
		position[c.Name] = i
	}
	for at, af := range as.Fields() {
		i, ok := position[af.Name]
		if !ok {
			return Match{}, fmt.Errorf("%w batch: the table has no column %q%s", mink.ErrInvalid, af.Name, suggest(af.Name, s.names()))
		}
		if m.Columns[i] >= 0 {
			return Match{}, fmt.Errorf("%w batch: column %q occurs twice", mink.ErrInvalid, af.Name)
		}
		if path, want, got, ok := matchType(af.Name, s.Columns[i].Type, af.Type); !ok {
			return Match{}, fmt.Errorf("%w batch: column %q is %s, which needs the Arrow type %s; got %s", mink.ErrInvalid, path, want, want.Arrow(), got)
		}
		m.Columns[i] = at
		m.Same = m.Same && at == i
	}
	for i, c := range s.Columns {
		if m.Columns[i] < 0 && c.Type.NotNull {
			return Match{}, fmt.Errorf("%w batch: column %q is NOT NULL and absent", mink.ErrInvalid, c.Name)
		}
	}
	return m, nil
}

// CheckArrow is MatchArrow for batches that are stored as they came: the client
// must send exactly the table's columns in the table's order.
func (s *Schema) CheckArrow(as *arrow.Schema) error {
	m, err := s.MatchArrow(as)
	if err != nil || m.Same {
		return err
	}
	for i, at := range m.Columns {
		switch {
		case at < 0:
			return fmt.Errorf("%w batch: column %q is absent; send all columns in the table's order: %s", mink.ErrInvalid, s.Columns[i].Name, strings.Join(s.names(), ", "))
		case at != i:
			return fmt.Errorf("%w batch: column %q is number %d, want %d; send all columns in the table's order: %s",
				mink.ErrInvalid, s.Columns[i].Name, at+1, i+1, strings.Join(s.names(), ", "))
		}
	}
	return nil
}

// Accepts reports whether an Arrow column of the type dt has the table's type t,
// by the rules of MatchArrow.
func (t Type) Accepts(dt arrow.DataType) bool {
	_, _, _, ok := matchType("", t, dt)
	return ok
}

// matchType compares recursively; on a mismatch it says where.
func matchType(path string, t Type, dt arrow.DataType) (at string, want Type, got arrow.DataType, ok bool) {
	switch t.Kind {
	case Array:
		if l, isList := dt.(*arrow.ListType); isList {
			return matchType(path+"."+ElementName, t.Fields[0].Type, l.Elem())
		}
	case Map:
		if m, isMap := dt.(*arrow.MapType); isMap {
			if at, want, got, ok = matchType(path+"."+KeyName, t.Fields[0].Type, m.KeyType()); !ok {
				return at, want, got, false
			}
			return matchType(path+"."+ValueName, t.Fields[1].Type, m.ItemType())
		}
	case Row:
		st, isStruct := dt.(*arrow.StructType)
		if !isStruct || st.NumFields() != len(t.Fields) {
			break
		}
		for i, f := range t.Fields {
			if st.Field(i).Name != f.Name {
				return path, t, dt, false
			}
			if at, want, got, ok = matchType(path+"."+f.Name, f.Type, st.Field(i).Type); !ok {
				return at, want, got, false
			}
		}
		return path, t, dt, true
	case TimestampLTZ:
		ts, isTS := dt.(*arrow.TimestampType)
		return path, t, dt, isTS && ts.Unit == t.Unit() && ts.TimeZone != ""
	default:
		return path, t, dt, arrow.TypeEqual(t.Arrow(), dt)
	}
	return path, t, dt, false
}

func (s *Schema) names() []string {
	names := make([]string, len(s.Columns))
	for i, c := range s.Columns {
		names[i] = c.Name
	}
	return names
}
