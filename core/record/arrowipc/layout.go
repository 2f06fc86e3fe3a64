package arrowipc

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/mink-project/mink/sdk/mink"
)

type shape uint8

const (
	shapeBits   shape = iota // validity, bits
	shapeFixed               // validity, values of width bytes
	shapeBinary              // validity, offsets, bytes
	shapeText                // as shapeBinary, UTF-8
	shapeList                // validity, offsets; one child
	shapeStruct              // validity; children of the same length
)

func (s shape) buffers() int {
	switch s {
	case shapeBinary, shapeText:
		return 3
	case shapeStruct:
		return 1
	default:
		return 2
	}
}

// node is one field of the schema; nodes stand in the order of the message's
// field nodes (depth first), buffers in theirs.
type node struct {
	typ      arrow.DataType
	name     string // path, for errors
	shape    shape
	width    int // shapeFixed: bytes
	nullable bool
	day      int64          // TIME: values are below this; else 0
	scale    decimal128.Num // DECIMAL: absolute values are below this; else 0
	chars    int            // CHAR(n): at most n characters; else 0
	children int            // direct ones; they follow
	buf      int            // index of the first buffer
	end      int            // index of the node after the last descendant
}

// Layout is a schema compiled for this package. Immutable, safe for concurrent
// use.
type Layout struct {
	schema  *arrow.Schema
	nodes   []node
	columns []int // first node of each column
	buffers int
	time    int // column whose largest value Check reports, -1: none
}

// maxDepth bounds nesting, as Arrow's own readers do.
const maxDepth = 64

// NewLayout compiles a schema. Errors wrap mink.ErrUnsupported and name the
// column whose type Mink does not store (dictionaries, unions, views, ...).
func NewLayout(s *arrow.Schema) (*Layout, error) {
	l := &Layout{schema: s, time: -1}
	for _, f := range s.Fields() {
		l.columns = append(l.columns, len(l.nodes))
		if err := l.add(f, f.Name, 0); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// WithTimestamp answers a copy whose checks report the largest value of an
// int64-wide column (Info.MaxTimestamp).
func (l *Layout) WithTimestamp(column int) *Layout {
	c := *l
	c.time = column
	if n := l.nodes[l.columns[column]]; n.shape != shapeFixed || n.width != 8 {
		panic(fmt.Sprintf("arrowipc: column %s is not a timestamp", n.name))
	}
	return &c
}

// Schema is what the layout was compiled from.
func (l *Layout) Schema() *arrow.Schema { return l.schema }

func (l *Layout) add(f arrow.Field, path string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("column %s: %w: nested deeper than %d", path, mink.ErrUnsupported, maxDepth)
	}
	n := node{typ: f.Type, name: path, nullable: f.Nullable, buf: l.buffers}
	var children []arrow.Field
	switch t := f.Type.(type) {
	case *arrow.BooleanType:
		n.shape = shapeBits
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type, *arrow.Float32Type, *arrow.Float64Type,
		*arrow.Date32Type, *arrow.Time32Type, *arrow.Time64Type, *arrow.TimestampType, *arrow.Decimal128Type:
		n.shape, n.width = shapeFixed, t.(arrow.FixedWidthDataType).Bytes()
	case *arrow.FixedSizeBinaryType:
		if t.ByteWidth < 0 {
			return fmt.Errorf("column %s: %w: %s", path, mink.ErrUnsupported, f.Type)
		}
		n.shape, n.width = shapeFixed, t.ByteWidth
	case *arrow.BinaryType:
		n.shape = shapeBinary
	case *arrow.StringType:
		n.shape, n.chars = shapeText, charsMax(f.Metadata)
	case *arrow.ListType:
		n.shape, children = shapeList, t.Fields()
	case *arrow.MapType:
		n.shape, children = shapeList, t.Fields()
	case *arrow.StructType:
		n.shape, children = shapeStruct, t.Fields()
	default:
		return fmt.Errorf("column %s: %w: Arrow type %s", path, mink.ErrUnsupported, f.Type)
	}
	if t, ok := f.Type.(*arrow.Decimal128Type); ok && (t.Precision < 1 || t.Precision > 38) {
		return fmt.Errorf("column %s: %w: %s", path, mink.ErrUnsupported, f.Type)
	}
	n.limit()
	n.children = len(children)
	at := len(l.nodes)
	l.buffers += n.shape.buffers()
	l.nodes = append(l.nodes, n)
	for _, c := range children {
		if err := l.add(c, path+"."+c.Name, depth+1); err != nil {
			return err
		}
	}
	l.nodes[at].end = len(l.nodes)
	return nil
}

// charsMax reads n of a CHAR(n) from the table's type in the field's metadata
// (schema.MetaType); 0 for other text.
func charsMax(m arrow.Metadata) int {
	text, _ := m.GetValue("mink.type")
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

// limit sets what the values of a type that has fewer than its bytes could hold
// must stay below.
func (n *node) limit() {
	const daySeconds = 24 * 60 * 60
	switch t := n.typ.(type) {
	case *arrow.Time32Type:
		n.day = daySeconds * int64(time.Second/t.Unit.Multiplier())
	case *arrow.Time64Type:
		n.day = daySeconds * int64(time.Second/t.Unit.Multiplier())
	case *arrow.Decimal128Type:
		n.scale = decimal128.GetScaleMultiplier(int(t.Precision))
	}
}

// buffersEnd is the index after the last buffer of the column that starts at
// node i.
func (l *Layout) buffersEnd(i int) int {
	if e := l.nodes[i].end; e < len(l.nodes) {
		return l.nodes[e].buf
	}
	return l.buffers
}
