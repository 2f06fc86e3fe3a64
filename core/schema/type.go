package schema

import (
	"strconv"
	"strings"

	"github.com/mink-project/mink/sdk/mink"
)

// Kind is the family of a Type.
type Kind uint8

// The kinds, in the order of the documentation. The zero Kind is no type.
const (
	Boolean Kind = iota + 1
	TinyInt
	SmallInt
	Int
	BigInt
	Float
	Double
	Decimal      // Precision 1..38, Scale 0..Precision
	Char         // Length 1..65535 characters at most
	String       // UTF-8
	Binary       // Length 1..65535 bytes exactly
	Bytes        // any number of bytes
	Date         // days since 1970-01-01
	Time         // since midnight, Precision 0..9
	Timestamp    // without zone, Precision 0..9
	TimestampLTZ // an instant, Precision 0..9
	Array        // Fields: element
	Map          // Fields: key (never null), value
	Row          // Fields: at least one
)

var kindNames = [...]string{
	Boolean: "BOOLEAN", TinyInt: "TINYINT", SmallInt: "SMALLINT", Int: "INT", BigInt: "BIGINT",
	Float: "FLOAT", Double: "DOUBLE", Decimal: "DECIMAL", Char: "CHAR", String: "STRING",
	Binary: "BINARY", Bytes: "BYTES", Date: "DATE", Time: "TIME", Timestamp: "TIMESTAMP",
	TimestampLTZ: "TIMESTAMP_LTZ", Array: "ARRAY", Map: "MAP", Row: "ROW",
}

// String is the SQL name, "INVALID" for anything that is not a kind.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "INVALID"
	}
	return kindNames[k]
}

// Limits of types. They bound what one descriptor can make a node allocate.
const (
	MaxTypeDepth   = 32        // ARRAY, MAP and ROW inside one another
	MaxTypeLength  = 64 * 1024 // bytes of a type's text
	MaxFields      = 4096      // columns and nested fields of a table
	MaxPrecision   = 38        // DECIMAL
	MaxTimeDigits  = 9         // TIME, TIMESTAMP, TIMESTAMP_LTZ
	MaxFixedLength = 65535     // CHAR(n), BINARY(n)
)

// Names of the fields inside ARRAY and MAP, as Iceberg names them.
const (
	ElementName = "element"
	KeyName     = "key"
	ValueName   = "value"
)

// Type is a column's type with its nullability. It is a value: copy it freely,
// but treat Fields as read-only once shared (Clone makes a deep copy).
//
// Only the members that belong to the Kind are set; the others are zero.
type Type struct {
	Kind      Kind
	NotNull   bool
	Precision int     // DECIMAL, TIME, TIMESTAMP, TIMESTAMP_LTZ
	Scale     int     // DECIMAL
	Length    int     // CHAR, BINARY
	Fields    []Field // ARRAY: 1, MAP: 2, ROW: n
}

// Field is a value nested in a column. ID 0: not assigned yet.
type Field struct {
	ID   mink.FieldID
	Name string
	Type Type
}

// ArrayOf is ARRAY<elem>.
func ArrayOf(elem Type) Type {
	return Type{Kind: Array, Fields: []Field{{Name: ElementName, Type: elem}}}
}

// MapOf is MAP<key, value>; a map's key is never null.
func MapOf(key, value Type) Type {
	key.NotNull = true
	return Type{Kind: Map, Fields: []Field{{Name: KeyName, Type: key}, {Name: ValueName, Type: value}}}
}

// RowOf is ROW<fields>.
func RowOf(fields ...Field) Type { return Type{Kind: Row, Fields: fields} }

// Required is the type with NOT NULL.
func (t Type) Required() Type { t.NotNull = true; return t }

// Nullable is the type without NOT NULL.
func (t Type) Nullable() Type { t.NotNull = false; return t }

// Nested reports whether the type holds other fields.
func (t Type) Nested() bool { return t.Kind == Array || t.Kind == Map || t.Kind == Row }

// Clone copies the type deeply.
func (t Type) Clone() Type {
	if t.Fields == nil {
		return t
	}
	fields := make([]Field, len(t.Fields))
	for i, f := range t.Fields {
		fields[i] = Field{ID: f.ID, Name: f.Name, Type: f.Type.Clone()}
	}
	t.Fields = fields
	return t
}

// Equal compares types with nullability and nested names, but not field ids.
func (t Type) Equal(o Type) bool { return t.NotNull == o.NotNull && t.equal(o, true) }

// SameShape compares types and nested names, but neither nullability nor field ids.
func (t Type) SameShape(o Type) bool { return t.equal(o, false) }

func (t Type) equal(o Type, nullability bool) bool {
	if t.Kind != o.Kind || t.Precision != o.Precision || t.Scale != o.Scale || t.Length != o.Length ||
		len(t.Fields) != len(o.Fields) {
		return false
	}
	for i, f := range t.Fields {
		g := o.Fields[i]
		if f.Name != g.Name || nullability && f.Type.NotNull != g.Type.NotNull || !f.Type.equal(g.Type, nullability) {
			return false
		}
	}
	return true
}

// String is the canonical text; ParseType reads it back to an Equal type.
func (t Type) String() string {
	var b strings.Builder
	t.print(&b)
	return b.String()
}

func (t Type) print(b *strings.Builder) {
	b.WriteString(t.Kind.String())
	switch t.Kind {
	case Decimal:
		b.WriteString("(" + strconv.Itoa(t.Precision) + "," + strconv.Itoa(t.Scale) + ")")
	case Char, Binary:
		b.WriteString("(" + strconv.Itoa(t.Length) + ")")
	case Time, Timestamp, TimestampLTZ:
		b.WriteString("(" + strconv.Itoa(t.Precision) + ")")
	case Array, Map, Row:
		b.WriteByte('<')
		for i, f := range t.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			if t.Kind == Row {
				b.WriteString(quoteName(f.Name) + " ")
			}
			if t.Kind == Map && i == 0 {
				f.Type.NotNull = false // always so: MAP<STRING, INT> reads better
			}
			f.Type.print(b)
		}
		b.WriteByte('>')
	}
	if t.NotNull {
		b.WriteString(" NOT NULL")
	}
}

// quoteName puts a name that is not a bare word into backticks.
func quoteName(name string) string {
	for i := 0; i < len(name); i++ {
		if !bareByte(name[i]) {
			return "`" + strings.ReplaceAll(name, "`", "``") + "`"
		}
	}
	if name == "" {
		return "``"
	}
	return name
}

func bareByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}
