package jsonrow

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Mapper is a schema compiled for reading. Immutable: safe for concurrent use.
type Mapper struct{ root node }

// node is one column or nested field. The root is a ROW of the columns.
type node struct {
	name     string
	typ      arrow.DataType
	text     string // the type as the table writes it
	nullable bool
	chars    int            // CHAR(n): at most n characters; else 0
	width    int64          // what a value takes as Arrow at least, null or not
	fields   []node         // ROW: its fields, ARRAY: element, MAP: key and value
	index    map[string]int // of the fields, by name
}

// The metadata of a column's Arrow field that has its type as the table writes it
// (schema.MetaType, which this package may not import).
const metaType = "mink.type"

// New compiles the columns of a table as schema.Schema.Arrow gives them.
func New(s *arrow.Schema) *Mapper {
	m := &Mapper{root: node{fields: make([]node, s.NumFields())}}
	for i, f := range s.Fields() {
		m.root.fields[i] = compile(f)
	}
	m.root.list()
	m.root.width = m.root.fieldsWidth()
	return m
}

// RowBytes is about what a row takes as Arrow whatever its values are, bytes: null
// and absent ones have their place too. Text, bytes and Reader.NestedBytes come on
// top.
func (m *Mapper) RowBytes() int64 { return m.root.width }

// setWidth follows the building of n.fields.
func (n *node) setWidth() {
	const validity, offset = 1, 4
	switch t := n.typ.(type) {
	case *arrow.StructType: // a null one has its fields
		n.width = validity + n.fieldsWidth()
	case arrow.FixedWidthDataType:
		n.width = validity + int64(t.BitWidth()+7)/8
	default:
		n.width = validity + offset
	}
}

func (n *node) fieldsWidth() (sum int64) {
	for i := range n.fields {
		sum += n.fields[i].width
	}
	return sum
}

func compile(f arrow.Field) node {
	n := node{name: f.Name, typ: f.Type, text: f.Type.String(), nullable: f.Nullable}
	if t, ok := f.Metadata.GetValue(metaType); ok {
		n.text = t
		n.chars = charsMax(t)
	}
	switch t := f.Type.(type) {
	case *arrow.StructType:
		for _, f := range t.Fields() {
			n.fields = append(n.fields, compile(f))
		}
		n.list()
	case *arrow.ListType:
		n.fields = []node{compile(t.ElemField())}
	case *arrow.MapType:
		n.fields = []node{compile(t.KeyField()), compile(t.ItemField())}
		n.fields[0].name, n.fields[0].nullable, n.fields[1].name = "key", false, "value"
		n.list()
	}
	n.setWidth()
	return n
}

// charsMax is n of CHAR(n), 0 for other types.
func charsMax(text string) int {
	rest, ok := strings.CutPrefix(text, "CHAR(")
	if !ok {
		return 0
	}
	digits, _, _ := strings.Cut(rest, ")")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

func (n *node) list() {
	n.index = make(map[string]int, len(n.fields))
	for i := range n.fields {
		n.index[n.fields[i].name] = i
	}
}

// find is the place of a field, -1: there is none. Members mostly stand in the
// order of the fields: next is tried first.
func (n *node) find(name []byte, next int) int {
	if next < len(n.fields) && n.fields[next].name == string(name) {
		return next
	}
	if i, ok := n.index[string(name)]; ok {
		return i
	}
	return -1
}

// names lists the fields for an error.
func (n *node) names() string {
	const most = 20
	var b strings.Builder
	for i := range n.fields {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(n.fields)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(n.fields[i].name)
	}
	return b.String()
}

// isText reports that values are text as it stands.
func (n *node) isText() bool { return n.typ.ID() == arrow.STRING }

// needsQuotes reports that a bare JSON number or boolean is no value of the type.
func (n *node) needsQuotes() bool {
	switch n.typ.ID() {
	case arrow.BOOL, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.FLOAT32, arrow.FLOAT64, arrow.DECIMAL128:
		return false
	}
	return true
}

// wanted is what a type takes.
func wanted(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.BooleanType:
		return "true or false"
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type:
		most := uint64(1) << (t.(arrow.FixedWidthDataType).BitWidth() - 1)
		return fmt.Sprintf("a whole number from -%d to %d", most, most-1)
	case *arrow.Float32Type, *arrow.Float64Type:
		return "a number"
	case *arrow.StringType:
		return "text in quotes"
	case *arrow.BinaryType:
		return "base64"
	case *arrow.FixedSizeBinaryType:
		return fmt.Sprintf("base64 of exactly %d bytes", t.ByteWidth)
	case *arrow.Date32Type:
		return "a date such as 2026-01-31"
	case *arrow.Time32Type, *arrow.Time64Type:
		return "a time such as 07:05:00, with no more digits than the type has"
	case *arrow.TimestampType:
		zone := ""
		if t.TimeZone != "" {
			zone = "Z"
		}
		return "a time such as 2026-01-31T07:05:00" + zone + ", with no more digits than the type has"
	case *arrow.MapType:
		return `a list such as [{"key": ..., "value": ...}]`
	case *arrow.ListType:
		return "a JSON list"
	case *arrow.StructType:
		return "a JSON object"
	}
	return "a value of " + t.String()
}
