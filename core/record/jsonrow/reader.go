package jsonrow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// Reader reads rows of one Mapper and keeps its scratch memory. Not for
// concurrent use.
type Reader struct {
	m      *Mapper
	in     scanner
	seen   []bool // of the open objects: which fields have occurred
	bin    []byte // decoded base64
	nested int64
}

// keepBytes is the most scratch memory that a Reader keeps between rows.
const keepBytes = 1 << 20

// NewReader makes a reader.
func (m *Mapper) NewReader() *Reader { return &Reader{m: m} }

// Check reads one object and keeps nothing of it. Append takes exactly what
// Check takes.
func (r *Reader) Check(object []byte) error { return r.top(nil, object) }

// Fits is Check for those who do not ask why: a bad object costs no more than a
// good one.
func (r *Reader) Fits(object []byte) bool {
	r.in.quiet = true
	defer func() { r.in.quiet = false }()
	return r.top(nil, object) == nil
}

// Append adds one object as a row. b has the Mapper's schema. After an error b
// holds a part of the row: it is then of no more use.
func (r *Reader) Append(b *array.RecordBuilder, object []byte) error { return r.top(b, object) }

// AppendText adds one value of a column from text that is not JSON, such as a CSV
// field; ARRAY, MAP and ROW are JSON all the same.
func (r *Reader) AppendText(b array.Builder, column int, text string) error {
	n := &r.m.root.fields[column]
	if n.fields == nil {
		return r.leaf(n, b, []byte(text))
	}
	r.reset([]byte(text))
	if err := r.value(n, b); err != nil {
		return err
	}
	return r.in.end()
}

// TypeText is a column's type as the table writes it.
func (r *Reader) TypeText(column int) string { return r.m.root.fields[column].text }

// NestedBytes is about what the elements and entries of the object that was read
// last take as Arrow, beside their text: two bytes of JSON can be a ROW of a
// thousand fields.
func (r *Reader) NestedBytes() int64 { return r.nested }

func (r *Reader) reset(b []byte) {
	r.nested = 0
	if cap(r.in.text) > keepBytes {
		r.in.text = nil
	}
	if cap(r.bin) > keepBytes {
		r.bin = nil
	}
	r.in.b, r.in.at, r.seen = b, 0, r.seen[:0]
}

func (r *Reader) top(b *array.RecordBuilder, object []byte) error {
	r.reset(object)
	defer func() { r.in.b = nil }()
	if r.in.peek() != '{' {
		if r.in.peek() == 0 && r.in.at == len(object) {
			return errors.New("want a JSON object, there is nothing")
		}
		return r.in.errorf("want a JSON object, it begins with %.20q", object[r.in.at:])
	}
	var to any
	if b != nil {
		to = b
	}
	if err := r.object(&r.m.root, to, true); err != nil {
		return err
	}
	return r.in.end()
}

// child is the builder of field i; nil when nothing is built.
func child(b any, i int) array.Builder {
	switch b := b.(type) {
	case *array.RecordBuilder:
		return b.Field(i)
	case *array.StructBuilder:
		return b.FieldBuilder(i)
	case *array.MapBuilder:
		if i == 0 {
			return b.KeyBuilder()
		}
		return b.ItemBuilder()
	}
	return nil
}

// object reads the members of an object into the fields of n.
func (r *Reader) object(n *node, b any, top bool) error {
	if r.in.peek() != '{' {
		return r.in.errorf("want a JSON object")
	}
	r.in.at++
	base := len(r.seen)
	for range n.fields {
		r.seen = append(r.seen, false)
	}
	next := 0
	for more := r.in.peek() != '}'; more; {
		name, err := r.in.name()
		if err != nil {
			return err
		}
		i := n.find(name, next)
		switch {
		case i < 0:
			return r.unknown(n, name, top)
		case r.seen[base+i]:
			return r.in.errorf("%.200q occurs twice", name)
		}
		r.seen[base+i], next = true, i+1
		if err := r.member(&n.fields[i], child(b, i), top); err != nil {
			return err
		}
		if more, err = r.in.more('}'); err != nil {
			return err
		}
	}
	r.in.at++
	for i := range n.fields {
		if r.seen[base+i] {
			continue
		}
		if f := &n.fields[i]; !f.nullable {
			return r.absent(f, top)
		}
		if c := child(b, i); c != nil {
			c.AppendNull()
		}
	}
	r.seen = r.seen[:base]
	return nil
}

func (r *Reader) unknown(n *node, name []byte, top bool) error {
	switch {
	case r.in.quiet:
		return errQuiet
	case top:
		return fmt.Errorf("the table has no column %.200q; it has %s", name, n.names())
	}
	return fmt.Errorf("there is no field %.200q; it has %s", name, n.names())
}

func (r *Reader) member(f *node, b array.Builder, top bool) error {
	r.in.peek()
	start := r.in.at
	if top && !f.nullable && bytes.HasPrefix(r.in.b[start:], []byte("null")) {
		return r.absent(f, top)
	}
	err := r.value(f, b)
	switch {
	case err == nil || r.in.quiet:
		return err
	case errors.Is(err, errSyntax) && top:
		return r.in.errorf("column %q: %w", f.name, err)
	case top:
		return r.in.errorf("column %q is %s: cannot read %.100s: %w", f.name, f.text, excerpt(r.in.b[start:]), err)
	}
	return r.in.errorf("field %q: %w", f.name, err)
}

// errNull: null where a value must be.
var errNull = errors.New("it is NOT NULL and has no value")

func (r *Reader) absent(n *node, top bool) error {
	if top {
		return r.in.errorf("column %q is NOT NULL and has no value", n.name)
	}
	return r.in.errorf("field %q: %w", n.name, errNull)
}

// excerpt is the value that b begins with, or as much of it as an error shows.
func excerpt(b []byte) []byte {
	const most = 1000
	var raw json.RawMessage
	if json.NewDecoder(bytes.NewReader(b[:min(len(b), most)])).Decode(&raw) == nil {
		return raw
	}
	return bytes.ToValidUTF8(b[:min(len(b), 100)], []byte("\uFFFD"))
}

// value reads one value of n into b.
func (r *Reader) value(n *node, b array.Builder) error {
	c := r.in.peek()
	if c == 'n' {
		if err := r.in.word("null"); err != nil {
			return err
		}
		if !n.nullable {
			return errNull
		}
		if b != nil {
			b.AppendNull()
		}
		return nil
	}
	switch n.typ.ID() {
	case arrow.STRUCT:
		return r.row(n, b)
	case arrow.LIST:
		return r.array(n, b)
	case arrow.MAP:
		return r.mapping(n, b)
	}
	switch {
	case c == '"':
		text, err := r.in.str()
		if err != nil {
			return err
		}
		return r.leaf(n, b, text)
	case c == '{' || c == '[' || n.needsQuotes():
		return r.in.want(n)
	}
	text, err := r.in.bare()
	if err != nil {
		return err
	}
	if word := text[0] == 't' || text[0] == 'f'; word != (n.typ.ID() == arrow.BOOL) {
		return r.in.want(n)
	}
	return r.leaf(n, b, text)
}

func (r *Reader) row(n *node, b array.Builder) error {
	if r.in.peek() != '{' {
		return r.in.want(n)
	}
	if b == nil {
		return r.object(n, nil, false)
	}
	b.(*array.StructBuilder).Append(true)
	return r.object(n, b, false)
}

func (r *Reader) array(n *node, b array.Builder) error {
	if r.in.peek() != '[' {
		return r.in.want(n)
	}
	r.in.at++
	var items array.Builder
	if b != nil {
		list := b.(*array.ListBuilder)
		list.Append(true)
		items = list.ValueBuilder()
	}
	at := 1
	var err error
	for more := r.in.peek() != ']'; more; at++ {
		r.nested += n.fields[0].width
		if err := r.value(&n.fields[0], items); err != nil {
			return r.in.errorf("element %d: %w", at, err)
		}
		if more, err = r.in.more(']'); err != nil {
			return err
		}
	}
	r.in.at++
	return nil
}

func (r *Reader) mapping(n *node, b array.Builder) error {
	closing := byte(']')
	switch c := r.in.peek(); {
	case c == '[':
	case c == '{' && n.fields[0].isText():
		closing = '}'
	default:
		return r.in.want(n)
	}
	r.in.at++
	var to any
	if b != nil {
		b.(*array.MapBuilder).Append(true)
		to = b
	}
	at := 1
	var err error
	width := n.fieldsWidth()
	for more := r.in.peek() != closing; more; at++ {
		r.nested += width
		if closing == ']' {
			err = r.object(n, to, false)
		} else {
			err = r.entry(n, to)
		}
		if err != nil {
			return r.in.errorf("entry %d: %w", at, err)
		}
		if more, err = r.in.more(closing); err != nil {
			return err
		}
	}
	r.in.at++
	return nil
}

// entry reads one member of an object as an entry of a map.
func (r *Reader) entry(n *node, b any) error {
	key, err := r.in.name()
	if err != nil {
		return err
	}
	if err := r.leaf(&n.fields[0], child(b, 0), key); err != nil {
		return err
	}
	return r.value(&n.fields[1], child(b, 1))
}
