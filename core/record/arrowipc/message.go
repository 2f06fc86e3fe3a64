package arrowipc

import (
	"encoding/binary"

	"github.com/mink-project/mink/core/record"
)

// Numbers of Message.fbs.
const (
	versionV5         = 4
	headerSchema      = 1
	headerDictionary  = 2
	headerRecordBatch = 3
	codecNone         = -1
	codecLZ4          = 0
	codecZstd         = 1
	structSize        = 16 // FieldNode and Buffer: two int64 each
)

// message is a parsed record-batch message; nodes and buffers alias its bytes.
type message struct {
	rows    int64
	bodyLen int64
	nodes   []byte
	buffers []byte
	codec   int8
}

func (m *message) node(i int) (length, nulls int64)    { return pair(m.nodes, i) }
func (m *message) buffer(i int) (offset, length int64) { return pair(m.buffers, i) }

func pair(b []byte, i int) (int64, int64) {
	b = b[i*structSize : (i+1)*structSize]
	return int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:]))
}

// flat is a flatbuffer being read. A read that does not fit, or that a
// conforming verifier would refuse for its alignment, sets bad and answers zero.
type flat struct {
	b   []byte
	bad bool
}

func (f *flat) need(pos, n, align int64) bool {
	if f.bad || pos < 0 || n < 0 || pos > int64(len(f.b)) || n > int64(len(f.b))-pos || pos%align != 0 {
		f.bad = true
		return false
	}
	return true
}

func (f *flat) u8(pos int64) uint8 {
	if !f.need(pos, 1, 1) {
		return 0
	}
	return f.b[pos]
}

func (f *flat) u16(pos int64) uint16 {
	if !f.need(pos, 2, 2) {
		return 0
	}
	return binary.LittleEndian.Uint16(f.b[pos:])
}

func (f *flat) u32(pos int64) uint32 {
	if !f.need(pos, 4, 4) {
		return 0
	}
	return binary.LittleEndian.Uint32(f.b[pos:])
}

func (f *flat) i64(pos int64) int64 {
	if !f.need(pos, 8, 8) {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(f.b[pos:]))
}

// table is a flatbuffer table: its place, and the place and size of its vtable.
type table struct{ pos, vtable, size, len int64 }

func (f *flat) table(pos int64) table {
	t := table{pos: pos}
	t.vtable = pos - int64(int32(f.u32(pos)))
	t.size = int64(f.u16(t.vtable))
	t.len = int64(f.u16(t.vtable + 2))
	if t.size < 4 || t.size%2 != 0 || !f.need(t.vtable, t.size, 2) || !f.need(pos, t.len, 4) {
		f.bad = true
	}
	return t
}

// field answers where field i of n bytes is, 0: absent.
func (f *flat) field(t table, i, n int64) int64 {
	at := 4 + 2*i
	if f.bad || at+2 > t.size {
		return 0
	}
	off := int64(f.u16(t.vtable + at))
	if off == 0 {
		return 0
	}
	if off < 4 || off+n > t.len {
		f.bad = true
		return 0
	}
	return t.pos + off
}

// indirect follows the offset stored at pos.
func (f *flat) indirect(pos int64) int64 { return pos + int64(f.u32(pos)) }

// vector answers the bytes of the vector whose offset is stored at pos.
func (f *flat) vector(pos, elem, align int64) []byte {
	if pos == 0 {
		return nil
	}
	at := f.indirect(pos)
	n := int64(f.u32(at))
	if !f.need(at+4, n*elem, 1) || (n > 0 && (at+4)%align != 0) {
		f.bad = true
		return nil
	}
	return f.b[at+4 : at+4+n*elem]
}

// parseMessage reads the flatbuffer of a record-batch message.
func parseMessage(metadata []byte) (message, *record.BatchError) {
	f := &flat{b: metadata}
	t := f.table(f.indirect(0))
	version, kind := uint16(0), uint8(0)
	if p := f.field(t, 0, 2); p != 0 {
		version = f.u16(p)
	}
	if p := f.field(t, 1, 1); p != 0 {
		kind = f.u8(p)
	}
	m := message{codec: codecNone}
	if p := f.field(t, 3, 8); p != 0 {
		m.bodyLen = f.i64(p)
	}
	f.checkCustom(f.field(t, 4, 4))
	header := f.field(t, 2, 4)
	switch {
	case f.bad || header == 0:
		return m, badMessage()
	case kind == headerDictionary:
		return m, record.Errorf(record.KindUnsupported, "dictionary-encoded columns are not stored: send plain values")
	case kind != headerRecordBatch:
		return m, record.Errorf(record.KindInvalidRecord, "Arrow message of type %d where a record batch (%d) must be", kind, headerRecordBatch)
	case version != versionV5:
		return m, record.Errorf(record.KindUnsupported, "Arrow metadata version %d, V5 (%d) is stored", version, versionV5)
	}
	t = f.table(f.indirect(header))
	if p := f.field(t, 0, 8); p != 0 {
		m.rows = f.i64(p)
	}
	m.nodes = f.vector(f.field(t, 1, 4), structSize, 8)
	m.buffers = f.vector(f.field(t, 2, 4), structSize, 8)
	if p := f.field(t, 3, 4); p != 0 {
		m.codec = f.compression(p)
	}
	if v := f.vector(f.field(t, 4, 4), 8, 8); len(v) > 0 {
		return m, record.Errorf(record.KindUnsupported, "view columns are not stored")
	}
	if f.bad {
		return m, badMessage()
	}
	if m.codec != codecNone && m.codec != codecLZ4 && m.codec != codecZstd {
		return m, record.Errorf(record.KindUnsupported, "Arrow body compression %d, LZ4_FRAME (0) and ZSTD (1) are stored", m.codec)
	}
	return m, nil
}

func badMessage() *record.BatchError {
	return record.Errorf(record.KindCorrupt, "the Arrow message's flatbuffer is damaged")
}

// compression reads BodyCompression{codec, method}; -2: a method other than BUFFER.
func (f *flat) compression(pos int64) int8 {
	t := f.table(f.indirect(pos))
	codec := int8(0)
	if p := f.field(t, 0, 1); p != 0 {
		codec = int8(f.u8(p))
	}
	if p := f.field(t, 1, 1); p != 0 && f.u8(p) != 0 || codec < 0 {
		return -2
	}
	return codec
}

// checkCustom verifies custom_metadata: other readers verify it, so a damaged
// one would make the batch unreadable for them.
func (f *flat) checkCustom(pos int64) {
	v := f.vector(pos, 4, 4)
	if len(v) == 0 {
		return
	}
	at := f.indirect(pos) + 4
	for i := int64(0); i < int64(len(v)) && !f.bad; i += 4 {
		t := f.table(f.indirect(at + i))
		for j := range int64(2) {
			p := f.field(t, j, 4)
			if p == 0 {
				continue
			}
			end := f.indirect(p) + 4 + int64(len(f.vector(p, 1, 1)))
			if f.u8(end) != 0 {
				f.bad = true
			}
		}
	}
}

// appendMessage writes a record-batch message in one fixed arrangement:
//
//	 0 root -> 16 | 4 vtable of Message | 16 Message | 36 vtable of RecordBatch
//	48 RecordBatch | 72 vtable of BodyCompression | 80 BodyCompression
//	92 count, nodes | +4 count, buffers
func appendMessage(dst []byte, rows, bodyLen int64, codec int8, nodes, buffers []byte) []byte {
	const fixed = 92
	start := len(dst)
	total := fixed + 4 + len(nodes) + 8 + len(buffers)
	dst = append(dst, make([]byte, total)...)
	b := dst[start:]
	le := binary.LittleEndian
	put16 := func(pos int, vs ...uint16) {
		for i, v := range vs {
			le.PutUint16(b[pos+2*i:], v)
		}
	}
	le.PutUint32(b, 16)
	put16(4, 12, 20, 16, 18, 4, 8) // version, header_type, header, bodyLength
	le.PutUint32(b[16:], 16-4)
	le.PutUint32(b[20:], 48-20)
	le.PutUint64(b[24:], uint64(bodyLen))
	put16(32, versionV5)
	b[34] = headerRecordBatch
	compression := uint16(0)
	if codec != codecNone {
		compression = 20
	}
	put16(36, 12, 24, 8, 4, 16, compression) // length, nodes, buffers, compression
	le.PutUint32(b[48:], 48-36)
	le.PutUint32(b[52:], fixed-52)
	le.PutUint64(b[56:], uint64(rows))
	buffersAt := fixed + 4 + len(nodes) + 4
	le.PutUint32(b[64:], uint32(buffersAt-64))
	if codec != codecNone {
		le.PutUint32(b[68:], 80-68)
	}
	put16(72, 8, 6, 4, 5) // codec, method
	le.PutUint32(b[80:], 80-72)
	b[84] = byte(max(codec, 0))
	le.PutUint32(b[fixed:], uint32(len(nodes)/structSize))
	copy(b[fixed+4:], nodes)
	le.PutUint32(b[buffersAt:], uint32(len(buffers)/structSize))
	copy(b[buffersAt+4:], buffers)
	return dst
}
