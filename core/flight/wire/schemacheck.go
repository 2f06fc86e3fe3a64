package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// A client's schema message is a flatbuffer, which Arrow's reader trusts: it
// makes slices of the lengths that the vectors claim and follows fields into
// their children for as long as the offsets lead. checkSchemaMessage walks the
// same tables first, with bounds:
//
//	Message{header_type(1)=Schema, header(2)}
//	Schema{fields(1): [Field], custom_metadata(2): [KeyValue]}
//	Field{name(0), type_type(2), type(3), children(5): [Field], custom_metadata(6)}
//	KeyValue{key(0), value(1)}
//	Timestamp{timezone(1)}, Union{typeIds(1): [int32]}
//
// Many tables may refer to one string, and the reader copies it for each of them:
// what it would copy is counted.
// What is left to the reader can only panic, which it recovers from.
const (
	schemaBytesMax  = 4 << 20
	schemaDepthMax  = schema.MaxTypeDepth + 2
	schemaFieldsMax = 4 * schema.MaxFields // Arrow counts the entries of maps as well
	schemaCopyMax   = 2 * schemaBytesMax   // of strings, and entryBytes for each pair of metadata
	entryBytes      = 32                   // two string headers
	typeTimestamp   = 10                   // of Field.type_type
	typeUnion       = 14
)

func checkSchemaMessage(header []byte) error {
	if len(header) > schemaBytesMax {
		return fmt.Errorf("%w: a schema message of %d bytes, at most %d are read", mink.ErrTooLarge, len(header), schemaBytesMax)
	}
	w := tables{b: header, fields: schemaFieldsMax, copies: schemaCopyMax}
	msg := w.follow(0)
	kind := w.field(msg, 1)
	if w.bad || kind == 0 || header[kind] != 1 {
		return fmt.Errorf("%w: the stream does not begin with an Arrow schema message", mink.ErrInvalid)
	}
	at := w.field(msg, 2)
	if w.bad || at == 0 { // the reader would take position 0 for the schema
		return fmt.Errorf("%w: the stream's Arrow schema message has no schema", mink.ErrInvalid)
	}
	sch := w.follow(at)
	w.vector(w.field(sch, 2), w.pair)
	w.vector(w.field(sch, 1), func(at int64) { w.walk(at, 0) })
	if w.bad {
		return fmt.Errorf("%w: the stream's Arrow schema message is damaged, or has more than %d fields, %d levels or %d bytes of names and metadata",
			mink.ErrInvalid, schema.MaxFields, schemaDepthMax, schemaCopyMax)
	}
	return nil
}

// tables walks a flatbuffer. Position 0 stands for "absent"; bad is set by
// anything outside the buffer, and makes everything absent.
type tables struct {
	b      []byte
	fields int   // that may still be visited
	copies int64 // bytes that the reader may still be made to copy
	bad    bool
}

func (w *tables) walk(field int64, depth int) {
	if w.fields--; w.fields < 0 || depth > schemaDepthMax {
		w.bad = true
	}
	if w.bad {
		return
	}
	w.text(w.field(field, 0), 1)
	if kind, typ := w.field(field, 2), w.field(field, 3); kind != 0 && typ != 0 {
		switch typ := w.follow(typ); w.b[kind] {
		case typeTimestamp:
			w.text(w.field(typ, 1), 1)
		case typeUnion:
			w.text(w.field(typ, 1), 4)
		}
	}
	w.vector(w.field(field, 6), w.pair)
	w.vector(w.field(field, 5), func(at int64) { w.walk(at, depth+1) })
}

func (w *tables) u32(at int64) int64 {
	if at < 0 || at+4 > int64(len(w.b)) {
		w.bad = true
		return 0
	}
	return int64(binary.LittleEndian.Uint32(w.b[at:]))
}

func (w *tables) u16(at int64) int64 {
	if at < 0 || at+2 > int64(len(w.b)) {
		w.bad = true
		return 0
	}
	return int64(binary.LittleEndian.Uint16(w.b[at:]))
}

// follow goes where the offset at a position leads; from 0 to the root.
func (w *tables) follow(at int64) int64 {
	if w.bad {
		return 0
	}
	to := at + w.u32(at)
	if to <= at || to >= int64(len(w.b)) {
		w.bad = true
		return 0
	}
	return to
}

// field is the position of a table's i-th field, 0 when it has none. A vtable of odd
// size is refused: Arrow's flatbuffers read an entry that only begins within it.
func (w *tables) field(table, i int64) int64 {
	if w.bad || table == 0 {
		return 0
	}
	vtable := table - int64(int32(w.u32(table)))
	size := w.u16(vtable)
	w.bad = w.bad || size < 4 || size%2 != 0
	if w.bad || 4+2*i+2 > size {
		return 0
	}
	off := w.u16(vtable + 4 + 2*i)
	if w.bad || off == 0 {
		return 0
	}
	if table+off >= int64(len(w.b)) {
		w.bad = true
		return 0
	}
	return table + off
}

// vector visits the tables of the vector that a field refers to.
func (w *tables) vector(field int64, visit func(at int64)) {
	if field == 0 {
		return
	}
	v := w.follow(field)
	n := w.u32(v)
	if w.bad || n > (int64(len(w.b))-v-4)/4 {
		w.bad = true
		return
	}
	for i := range n {
		if at := w.follow(v + 4 + 4*i); !w.bad {
			visit(at)
		}
		if w.bad {
			return
		}
	}
}

// pair is a KeyValue.
func (w *tables) pair(at int64) {
	w.spend(entryBytes)
	w.text(w.field(at, 0), 1)
	w.text(w.field(at, 1), 1)
}

// text is the string, or the vector of numbers of so many bytes each, that a field
// refers to.
func (w *tables) text(field, size int64) {
	if field == 0 {
		return
	}
	v := w.follow(field)
	n := w.u32(v) * size
	if w.bad || n > int64(len(w.b))-v-4 {
		w.bad = true
		return
	}
	w.spend(n)
}

func (w *tables) spend(n int64) {
	if w.copies -= n; w.copies < 0 {
		w.bad = true
	}
}
