package row

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/mink-project/mink/sdk/mink"
)

// Row is one row, opened for reading. It is a value and refers to the bytes that
// it was opened on; the zero Row is none.
type Row struct {
	rec *record
	b   []byte // the record
}

// Row opens a row of the codec's schema version. It checks that every column lies
// within the value, not what is inside of nested columns.
func (c *Codec) Row(value []byte) (Row, error) {
	if !bytes.HasPrefix(value, c.prefix) {
		id, err := SchemaID(value)
		if err == nil {
			err = fmt.Errorf("%w read row: it is of schema %d, want %d", mink.ErrInvalid, id, c.schema.ID)
		}
		return Row{}, err
	}
	r, why := c.rec.open(value[len(c.prefix):])
	if why != "" {
		return Row{}, fmt.Errorf("read row of schema %d: %w: %s", c.schema.ID, mink.ErrCorrupt, why)
	}
	return r, nil
}

// open finds out that the fields lie within b and fill it.
func (r *record) open(b []byte) (Row, string) {
	if len(b) < r.head {
		return Row{}, "it is cut short"
	}
	if r.vars == 0 {
		if len(b) > r.head {
			return Row{}, "bytes follow the last field"
		}
	} else if why := checkEnds(b[r.head:], b[0], r.vars); why != "" {
		return Row{}, why
	}
	return Row{rec: r, b: b}, ""
}

// checkEnds checks n ends of w bytes each, which the bytes follow up to the end of b.
func checkEnds(b []byte, w byte, n int) string {
	if w != 2 && w != 4 || len(b) < n*int(w) {
		return "its ends are cut short"
	}
	last := 0
	for i := range n {
		end := endAt(b, w, i)
		if end < last {
			return "its ends fall"
		}
		last = end
	}
	if last != len(b)-n*int(w) || w == 4 != (last > math.MaxUint16) {
		return "its last end is not where it ends"
	}
	return ""
}

// endAt is the i-th of the ends at b.
func endAt(b []byte, w byte, i int) int {
	if w == 2 {
		return int(binary.LittleEndian.Uint16(b[2*i:]))
	}
	return int(binary.LittleEndian.Uint32(b[4*i:]))
}

// valueAt is the i-th of the n values behind the ends at b.
func valueAt(b []byte, w byte, n, i int) []byte {
	start, base := 0, n*int(w)
	if i > 0 {
		start = endAt(b, w, i-1)
	}
	return b[base+start : base+endAt(b, w, i) : base+endAt(b, w, i)]
}

func bit(bits []byte, i int) bool { return bits[i>>3]>>(i&7)&1 != 0 }

// IsNull reports whether the column is null.
func (r Row) IsNull(column int) bool { return bit(r.b[r.rec.nullsAt:], column) }

// Field is the column's bytes (see the package's picture), nil when it is null; an
// empty one is not nil. They belong to the row's value.
func (r Row) Field(column int) []byte {
	if r.IsNull(column) {
		return nil
	}
	f := &r.rec.fields[column]
	if f.shape.variable() {
		return valueAt(r.b[r.rec.head:], r.b[0], r.rec.vars, f.pos)
	}
	return r.b[f.pos : f.pos+f.width : f.pos+f.width]
}

// Int reads a field of an integer, DATE, TIME or TIMESTAMP type of any width.
func Int(field []byte) int64 {
	switch len(field) {
	case 1:
		return int64(int8(field[0]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(field)))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(field)))
	}
	return int64(binary.LittleEndian.Uint64(field))
}

// PutInt writes v into a field of an integer type as Int reads it, and reports
// whether the field's width holds it.
func PutInt(field []byte, v int64) bool {
	switch len(field) {
	case 1:
		field[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(field, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(field, uint32(v))
	default:
		binary.LittleEndian.PutUint64(field, uint64(v))
	}
	return Int(field) == v
}

// Check looks at every byte of a row of the codec's schema version: what Check
// accepts is what an Encoder writes for some row, except that the digits of a
// DECIMAL, the characters of a CHAR and the range of a TIME are not counted.
func (c *Codec) Check(value []byte) error {
	r, err := c.Row(value)
	if err != nil {
		return err
	}
	k := newChecker()
	if !k.record(r) {
		return k.err(c)
	}
	return nil
}

// expandMax bounds the Arrow bytes that the null elements of one value can grow to:
// a null in a list takes a few bits here and the whole width of its type there.
const expandMax = 1 << 30

// checker walks what Row does not look at. It says where it stopped.
type checker struct {
	left int64
	at   *field
	why  string
}

func newChecker() checker { return checker{left: expandMax} }

func (k *checker) err(c *Codec) error {
	name := "?"
	if k.at != nil {
		name = k.at.name
	}
	if k.left < 0 {
		return fmt.Errorf("%w: read row of schema %d: column %q grows to more than %d bytes", mink.ErrTooLarge, c.schema.ID, name, int64(expandMax))
	}
	return fmt.Errorf("read row of schema %d: column %q: %w: %s", c.schema.ID, name, mink.ErrCorrupt, k.why)
}

func (k *checker) bad(f *field, why string) bool {
	k.at, k.why = f, why
	return false
}

func (k *checker) record(r Row) bool {
	n := len(r.rec.fields)
	if !padded(r.b[r.rec.nullsAt:], n) {
		return k.bad(&r.rec.fields[0], "its null bits are not padded with zeros")
	}
	for i := range n {
		f := &r.rec.fields[i]
		if !r.IsNull(i) {
			if !k.value(f, r.Field(i)) {
				return false
			}
		} else if !r.emptyNull(f) {
			return k.bad(f, "a null has a value")
		}
	}
	return true
}

// padded reports that the bits after the first n are zeros.
func padded(bits []byte, n int) bool { return n&7 == 0 || bits[n>>3]>>(n&7) == 0 }

// emptyNull reports that a null field is as nulls are.
func (r Row) emptyNull(f *field) bool {
	if f.shape.variable() {
		return len(valueAt(r.b[r.rec.head:], r.b[0], r.rec.vars, f.pos)) == 0
	}
	return zeros(r.b[f.pos : f.pos+f.width])
}

func zeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// value checks a value that is not null.
func (k *checker) value(f *field, b []byte) bool {
	switch f.shape {
	case shapeBool:
		if b[0] > 1 {
			return k.bad(f, "a BOOLEAN is neither 0 nor 1")
		}
	case shapeText:
		if !utf8.Valid(b) {
			return k.bad(f, "it is not UTF-8")
		}
	case shapeBinary:
		if len(b) != f.width {
			return k.bad(f, "a BINARY has another length")
		}
	case shapeRow:
		r, why := f.rec.open(b)
		if why != "" {
			return k.bad(f, why)
		}
		return k.record(r)
	case shapeList, shapeMap:
		n, rest, ok := count(b)
		if !ok {
			return k.bad(f, "it has no count")
		}
		for i := range f.kids {
			v, after, why := openVector(&f.kids[i], n, rest)
			if why != "" {
				return k.bad(f, why)
			}
			if !k.vector(v) {
				return false
			}
			rest = after
		}
		if len(rest) > 0 {
			return k.bad(f, "bytes follow the last element")
		}
	}
	return true
}

func (k *checker) vector(v vector) bool {
	if v.n == 0 {
		return true
	}
	if k.left -= int64(v.n) * v.f.null; k.left < 0 {
		return k.bad(v.f, "")
	}
	if !padded(v.nulls, v.n) {
		return k.bad(v.f, "its null bits are not padded with zeros")
	}
	for i := range v.n {
		if !v.isNull(i) {
			if !k.value(v.f, v.value(i)) {
				return false
			}
		} else if !zeros(v.value(i)) || v.f.shape.variable() && len(v.value(i)) > 0 {
			return k.bad(v.f, "a null has a value")
		}
	}
	return true
}

// count reads the count of a list or map.
func count(b []byte) (n int, rest []byte, ok bool) {
	v, size := binary.Uvarint(b)
	if size <= 0 || v > math.MaxInt32 || size > 1 && b[size-1] == 0 {
		return 0, nil, false
	}
	return int(v), b[size:], true
}

// vector is n values of one type.
type vector struct {
	f     *field
	n     int
	nulls []byte
	w     byte   // variable: the width of the ends
	b     []byte // fixed: the values; variable: ends and bytes
}

// openVector takes a vector from the front of b.
func openVector(f *field, n int, b []byte) (v vector, rest []byte, why string) {
	const short = "its elements are cut short"
	v = vector{f: f, n: n}
	if n == 0 {
		return v, b, ""
	}
	bits := (n + 7) / 8
	if len(b) <= bits {
		return v, nil, short
	}
	v.nulls, b = b[:bits], b[bits:]
	if !f.shape.variable() {
		if len(b)/f.width < n {
			return v, nil, short
		}
		v.b = b[:n*f.width]
		return v, b[n*f.width:], ""
	}
	v.w, b = b[0], b[1:]
	if v.w != 2 && v.w != 4 || len(b)/int(v.w) < n {
		return v, nil, short
	}
	ends := n * int(v.w)
	size := ends + endAt(b, v.w, n-1)
	if size > len(b) {
		return v, nil, short
	}
	v.b = b[:size]
	if why := checkEnds(v.b, v.w, n); why != "" {
		return v, nil, why
	}
	return v, b[size:], ""
}

func (v vector) isNull(i int) bool { return bit(v.nulls, i) }

func (v vector) value(i int) []byte {
	if v.f.shape.variable() {
		return valueAt(v.b, v.w, v.n, i)
	}
	return v.b[i*v.f.width : (i+1)*v.f.width]
}
