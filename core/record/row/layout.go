package row

import (
	"encoding/binary"
	"fmt"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// format is the first byte of a row.
const format = 1

// shape is how values of a type lie in a record and in Arrow.
type shape uint8

const (
	shapeBool   shape = iota // fixed: a byte; a bit in Arrow
	shapeFixed               // fixed: width bytes, Arrow's
	shapeText                // variable: UTF-8
	shapeBytes               // variable
	shapeBinary              // variable, but always width bytes
	shapeList                // variable; kids: element
	shapeMap                 // variable; kids: key, value
	shapeRow                 // variable; kids: fields
)

func (s shape) variable() bool { return s >= shapeText }
func (s shape) nested() bool   { return s >= shapeList }

// inlineBinary is the largest BINARY(n) that lies among the fixed fields: a null
// one costs its width there, else an end.
const inlineBinary = 16

// field is a column, or a field nested in one.
type field struct {
	name  string // path, for errors
	typ   schema.Type
	shape shape
	width int // shapeBool, shapeFixed, shapeBinary: bytes
	// pos is where the field lies in its record. Fixed: the first byte, from the
	// start of the record; variable: its number among the variable ones.
	pos  int
	kids []field
	rec  *record // shapeRow
	null int64   // least bytes of Arrow that a null takes
}

// record is the layout of the fields of a row or of a ROW.
type record struct {
	fields  []field
	nullsAt int // where the null bits begin: 1 behind w, else 0
	nulls   int // bytes of the null bits
	vars    int // variable fields
	head    int // bytes before the ends: w, nulls, fixed
}

func newRecord(fields []field) *record {
	r := &record{fields: fields, nulls: (len(fields) + 7) / 8}
	for i := range fields {
		if fields[i].shape.variable() {
			fields[i].pos = r.vars
			r.vars++
		}
	}
	if r.vars > 0 {
		r.nullsAt = 1
	}
	r.head = r.nullsAt + r.nulls
	for i := range fields {
		if f := &fields[i]; !f.shape.variable() {
			f.pos = r.head
			r.head += f.width
		}
	}
	return r
}

func newField(t schema.Type, name string) (field, error) {
	f := field{name: name, typ: t, shape: shapeFixed, null: 16}
	switch t.Kind {
	case schema.Boolean:
		f.shape, f.width = shapeBool, 1
	case schema.TinyInt:
		f.width = 1
	case schema.SmallInt:
		f.width = 2
	case schema.Int, schema.Float, schema.Date:
		f.width = 4
	case schema.BigInt, schema.Double, schema.Timestamp, schema.TimestampLTZ:
		f.width = 8
	case schema.Time:
		if f.width = 8; t.Precision <= 3 {
			f.width = 4
		}
	case schema.Decimal:
		f.width = 16
	case schema.Binary:
		f.width, f.null = t.Length, int64(t.Length)
		if t.Length > inlineBinary {
			f.shape = shapeBinary
		}
	case schema.Char, schema.String:
		f.shape = shapeText
	case schema.Bytes:
		f.shape = shapeBytes
	case schema.Array:
		f.shape = shapeList
	case schema.Map:
		f.shape = shapeMap
	case schema.Row:
		f.shape = shapeRow
	default:
		return f, fmt.Errorf("%w column %q: it has no type", mink.ErrInvalid, name)
	}
	for _, k := range t.Fields {
		kid, err := newField(k.Type, name+"."+k.Name)
		if err != nil {
			return f, err
		}
		f.kids = append(f.kids, kid)
	}
	if f.shape == shapeRow {
		f.rec = newRecord(f.kids)
		f.null = 0
		for i := range f.kids {
			f.null += f.kids[i].null
		}
	}
	return f, nil
}

// Codec reads and writes the rows of one schema version. It is immutable and safe
// for concurrent use. Columns are named by their position in the schema.
type Codec struct {
	schema *schema.Schema
	prefix []byte // format, schema id
	rec    *record
}

// NewCodec compiles a schema version, whose id must be 1 or more.
func NewCodec(s *schema.Schema) (*Codec, error) {
	if s.ID < 1 {
		return nil, fmt.Errorf("%w row format: schema id %d, want 1 or more", mink.ErrInvalid, s.ID)
	}
	fields := make([]field, len(s.Columns))
	for i, c := range s.Columns {
		var err error
		if fields[i], err = newField(c.Type, c.Name); err != nil {
			return nil, err
		}
	}
	return &Codec{schema: s, prefix: binary.AppendUvarint([]byte{format}, uint64(s.ID)), rec: newRecord(fields)}, nil
}

// Schema is the version that the codec is for.
func (c *Codec) Schema() *schema.Schema { return c.schema }

// SchemaID is the schema version that a row was written under.
func SchemaID(value []byte) (mink.SchemaID, error) {
	if len(value) == 0 || value[0] != format {
		return 0, fmt.Errorf("read row: %w: %d bytes that begin with %.4x, want the format %02x", mink.ErrCorrupt, len(value), value, format)
	}
	id, n := binary.Uvarint(value[1:])
	if n <= 0 || id < 1 || id > 1<<31-1 || n > 1 && value[n] == 0 {
		return 0, fmt.Errorf("read row: %w: it has no schema id", mink.ErrCorrupt)
	}
	return mink.SchemaID(id), nil
}
