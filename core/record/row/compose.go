package row

import (
	"encoding/binary"
	"math"
)

// ends is a table of ends that is being written, at the end of a byte slice whose
// last bytes are the values so far. Ends start with 2 bytes and are moved to 4 when
// the values pass what 2 can say.
type ends struct {
	flag int // where w is
	at   int // where the table is
	n    int // its entries
	next int // entries that are written
	w    int
}

// openEnds puts a table of n ends at the end of dst; w was put at flag.
func openEnds(dst []byte, flag, n int) ([]byte, ends) {
	dst[flag] = 2
	return appendZeros(dst, 2*n), ends{flag: flag, at: len(dst), n: n, w: 2}
}

// end ends the next value, whose bytes were appended.
func (e *ends) end(dst []byte) []byte {
	size := len(dst) - e.at - e.n*e.w
	if e.w == 2 && size > math.MaxUint16 {
		dst = e.widen(dst)
	}
	if e.w == 2 {
		binary.LittleEndian.PutUint16(dst[e.at+2*e.next:], uint16(size))
	} else {
		binary.LittleEndian.PutUint32(dst[e.at+4*e.next:], uint32(size))
	}
	e.next++
	return dst
}

func (e *ends) widen(dst []byte) []byte {
	old := len(dst)
	dst = appendZeros(dst, 2*e.n)
	values := e.at + 2*e.n
	copy(dst[values+2*e.n:], dst[values:old])
	for i := e.next - 1; i >= 0; i-- {
		v := binary.LittleEndian.Uint16(dst[e.at+2*i:])
		binary.LittleEndian.PutUint32(dst[e.at+4*i:], uint32(v))
	}
	e.w, dst[e.flag] = 4, 4
	return dst
}

func appendZeros(dst []byte, n int) []byte {
	old := len(dst)
	if cap(dst)-old >= n {
		dst = dst[:old+n]
		clear(dst[old:])
		return dst
	}
	return append(dst, make([]byte, n)...)
}

// composer writes the fields of one record at the end of dst.
type composer struct {
	rec  *record
	dst  []byte
	at   int // where the record is
	ends ends
}

// compose begins a record. No field is null: each is set, or null is called for it.
func compose(dst []byte, r *record) composer {
	c := composer{rec: r, at: len(dst)}
	c.dst = appendZeros(dst, r.head)
	if r.vars > 0 {
		c.dst, c.ends = openEnds(c.dst, c.at, r.vars)
	}
	return c
}

// composeNulls begins a record in which every field is null until it is set.
func composeNulls(dst []byte, r *record) composer {
	c := compose(dst, r)
	nulls := c.dst[c.at+r.nullsAt:][:r.nulls]
	for i := range nulls {
		nulls[i] = 0xff
	}
	if rest := len(r.fields) & 7; rest != 0 {
		nulls[len(nulls)-1] = 1<<rest - 1
	}
	return c
}

// null makes the field null; a variable one is ended by what comes after it.
func (c *composer) null(i int) { c.dst[c.at+c.rec.nullsAt+i>>3] |= 1 << (i & 7) }

// valid makes the field not null again.
func (c *composer) valid(i int) { c.dst[c.at+c.rec.nullsAt+i>>3] &^= 1 << (i & 7) }

// fixed is where the bytes of a fixed field go.
func (c *composer) fixed(i int) []byte {
	f := &c.rec.fields[i]
	return c.dst[c.at+f.pos:][:f.width:f.width]
}

// begin ends the variable fields before field i as null ones; then the bytes of
// field i are appended to dst, and end ends it.
func (c *composer) begin(i int) {
	for pos := c.rec.fields[i].pos; c.ends.next < pos; {
		c.dst = c.ends.end(c.dst)
	}
}

func (c *composer) end() { c.dst = c.ends.end(c.dst) }

// done ends the record.
func (c *composer) done() []byte {
	for c.ends.next < c.ends.n {
		c.end()
	}
	return c.dst
}

// Composer writes one row from fields of other rows. It must not be copied.
type Composer struct{ c composer }

// Compose begins a row at the end of dst, in which every column is null.
func (c *Codec) Compose(dst []byte) Composer {
	return Composer{composeNulls(append(dst, c.prefix...), c.rec)}
}

// Set gives a column the bytes of a field of the same type (Row.Field); nil leaves
// it null. Columns of variable width are set in their order, each at most once.
func (w *Composer) Set(column int, field []byte) {
	if field == nil {
		return
	}
	w.c.valid(column)
	if w.c.rec.fields[column].shape.variable() {
		w.c.begin(column)
		w.c.dst = append(w.c.dst, field...)
		w.c.end()
		return
	}
	copy(w.c.fixed(column), field)
}

// Done is dst with the row appended. The Composer is used up.
func (w *Composer) Done() []byte { return w.c.done() }

// SetFixed writes the bytes of a column of fixed width of a row (one that Row would
// open) where they are, and makes it not null.
func (c *Codec) SetFixed(value []byte, column int) []byte {
	b := value[len(c.prefix):]
	f := &c.rec.fields[column]
	b[c.rec.nullsAt+column>>3] &^= 1 << (column & 7)
	return b[f.pos : f.pos+f.width : f.pos+f.width]
}
