package row

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/mink-project/mink/sdk/mink"
)

// Encoder writes rows of Arrow columns. Not safe for concurrent use.
type Encoder struct {
	codec   *Codec
	sources []source
	rows    int
}

// source is an Arrow column, or a part of one, by its buffers: reading a value
// needs neither a type switch nor the array's own bounds.
type source struct {
	f       *field
	absent  bool    // no array: every value is null
	valid   []byte  // nil: no nulls
	bit     int     // where the first row is in valid, and in data for BOOLEAN
	data    []byte  // fixed: the values, from the first row on; variable: all bytes
	offsets []int32 // variable: from the first row on
	kids    []source
}

// Encoder makes an encoder of rows of the codec's schema version.
func (c *Codec) Encoder() *Encoder {
	return &Encoder{codec: c, sources: newSources(c.rec.fields)}
}

func newSources(fields []field) []source {
	s := make([]source, len(fields))
	for i := range fields {
		s[i] = source{f: &fields[i], kids: newSources(fields[i].kids)}
	}
	return s
}

// Bind points the encoder to Arrow columns, one for each column of the schema; nil:
// the column is null in every row. All must have the same length. They must stay
// alive until the next Bind, and their offsets must have been checked (arrowipc).
func (e *Encoder) Bind(columns []arrow.Array) error {
	if len(columns) != len(e.sources) {
		return fmt.Errorf("%w rows: %d columns, schema %d has %d", mink.ErrInvalid, len(columns), e.codec.schema.ID, len(e.sources))
	}
	e.rows = -1
	for i, arr := range columns {
		s := &e.sources[i]
		if s.absent = arr == nil; s.absent {
			continue
		}
		if !s.f.typ.Accepts(arr.DataType()) {
			return fmt.Errorf("%w rows: column %q is %s, which needs the Arrow type %s; got %s", mink.ErrInvalid, s.f.name, s.f.typ, s.f.typ.Arrow(), arr.DataType())
		}
		if e.rows >= 0 && arr.Len() != e.rows {
			return fmt.Errorf("%w rows: column %q has %d rows, others have %d", mink.ErrInvalid, s.f.name, arr.Len(), e.rows)
		}
		e.rows = arr.Len()
		s.bind(arr)
	}
	return nil
}

func (s *source) bind(arr arrow.Array) {
	data := arr.Data()
	first, n := data.Offset(), data.Len()
	s.valid, s.bit, s.data, s.offsets = nil, first, nil, nil
	if n == 0 {
		return // buffers may be absent
	}
	if arr.NullN() > 0 {
		s.valid = arr.NullBitmapBytes()
	}
	buffer := func(i int) []byte {
		if b := data.Buffers()[i]; b != nil {
			return b.Bytes()
		}
		return nil
	}
	if s.f.shape == shapeText || s.f.shape == shapeBytes || s.f.shape == shapeList || s.f.shape == shapeMap {
		s.offsets = arrow.Int32Traits.CastFromBytes(buffer(1))[first : first+n+1]
	}
	switch s.f.shape {
	case shapeBool:
		s.data = buffer(1)
	case shapeFixed, shapeBinary:
		s.data = buffer(1)[first*s.f.width:]
	case shapeText, shapeBytes:
		s.data = buffer(2)
	case shapeList:
		s.kids[0].bind(arr.(*array.List).ListValues())
	case shapeMap:
		entries := arr.(*array.Map).ListValues().(*array.Struct) // Keys and Items forget its offset
		s.kids[0].bind(entries.Field(0))
		s.kids[1].bind(entries.Field(1))
	case shapeRow:
		for i := range s.kids {
			s.kids[i].bind(arr.(*array.Struct).Field(i)) // cut to the struct's rows
		}
	}
}

func (s *source) isNull(i int) bool {
	return s.absent || s.valid != nil && !bit(s.valid, s.bit+i)
}

// Append appends one row of the bound columns.
func (e *Encoder) Append(dst []byte, row int) []byte {
	return appendRecord(append(dst, e.codec.prefix...), e.codec.rec, e.sources, row)
}

func appendRecord(dst []byte, rec *record, sources []source, row int) []byte {
	c := compose(dst, rec)
	for i := range sources {
		s := &sources[i]
		switch {
		case s.isNull(row):
			c.null(i)
		case s.f.shape.variable():
			c.begin(i)
			c.dst = s.appendVariable(c.dst, row)
			c.end()
		default:
			s.putFixed(c.fixed(i), row)
		}
	}
	return c.done()
}

// putFixed writes the value of a fixed field, which is not null.
func (s *source) putFixed(dst []byte, row int) {
	switch {
	case s.f.shape == shapeBool:
		if dst[0] = 0; bit(s.data, s.bit+row) {
			dst[0] = 1
		}
	case s.f.width == 8:
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(s.data[row*8:]))
	case s.f.width == 4:
		binary.LittleEndian.PutUint32(dst, binary.LittleEndian.Uint32(s.data[row*4:]))
	default:
		copy(dst, s.data[row*s.f.width:][:s.f.width])
	}
}

// appendVariable appends the value of a variable field, which is not null.
func (s *source) appendVariable(dst []byte, row int) []byte {
	switch s.f.shape {
	case shapeText, shapeBytes:
		return append(dst, s.data[s.offsets[row]:s.offsets[row+1]]...)
	case shapeBinary:
		return append(dst, s.data[row*s.f.width:][:s.f.width]...)
	case shapeRow:
		return appendRecord(dst, s.f.rec, s.kids, row)
	}
	first, end := int(s.offsets[row]), int(s.offsets[row+1]) // list, map
	dst = binary.AppendUvarint(dst, uint64(end-first))
	for i := range s.kids {
		dst = s.kids[i].appendVector(dst, first, end)
	}
	return dst
}

// appendVector appends the values [first, end) of a list's elements.
func (s *source) appendVector(dst []byte, first, end int) []byte {
	n := end - first
	if n == 0 {
		return dst
	}
	nulls := len(dst)
	dst = appendZeros(dst, (n+7)/8)
	null := func(i int) bool {
		if !s.isNull(first + i) {
			return false
		}
		dst[nulls+i>>3] |= 1 << (i & 7)
		return true
	}
	if !s.f.shape.variable() {
		at := len(dst)
		dst = appendZeros(dst, n*s.f.width)
		for i := range n {
			if !null(i) {
				s.putFixed(dst[at+i*s.f.width:][:s.f.width], first+i)
			}
		}
		return dst
	}
	flag := len(dst)
	dst, e := openEnds(append(dst, 0), flag, n)
	for i := range n {
		if !null(i) {
			dst = s.appendVariable(dst, first+i)
		}
		dst = e.end(dst)
	}
	return dst
}
