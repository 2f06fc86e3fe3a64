package arrowipc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/mink-project/mink/core/record"
)

// DefaultMaxBytes is the most that the compressed buffers of one batch may
// expand to. There is no limit on the ratio: constant columns honestly reach
// many thousands.
const DefaultMaxBytes = 128 << 20

// Info is what Check found.
type Info struct {
	Rows         int64
	MaxTimestamp int64 // of the layout's timestamp column
	HasTimestamp bool  // there is one, and not all of its values are null
	NullTimes    bool  // some of its values are null
}

// Checker checks messages; it keeps its codecs and scratch memory for the next
// one. Not for concurrent use.
type Checker struct {
	maxBytes int
	inflate  inflater
	bitmaps  []byte // scratch for decompressed validity, kept for a whole message
	offsets  []byte // scratch for one node
	values   []byte // scratch for one node

	l    *Layout
	m    message
	body []byte
	left int // bytes that may still be decompressed
	info Info
}

// keepBytes is the most scratch memory kept from one message to the next.
const keepBytes = 4 << 20

// NewChecker makes a checker; maxBytes bounds the decompressed bytes of one
// message (DefaultMaxBytes).
func NewChecker(maxBytes int) *Checker { return &Checker{maxBytes: maxBytes} }

// Check proves that the message is a record batch of the layout that can be
// read in full: buffers inside the body and long enough, offsets monotone and
// in range, null counts true to the bitmaps, no nulls where the schema forbids
// them, text that is UTF-8; inside compressed buffers as well. It reads the
// bytes once and does not allocate per buffer or row (decompression reuses
// scratch memory). Errors are *record.BatchError and name the column.
func (c *Checker) Check(l *Layout, metadata, body []byte) (Info, error) {
	m, bad := parseMessage(metadata)
	if bad == nil {
		bad = checkCounts(l, &m, body)
	}
	if bad != nil {
		return Info{}, bad
	}
	c.l, c.m, c.body, c.left = l, m, body, c.maxBytes
	c.bitmaps, c.info = c.bitmaps[:0], Info{Rows: m.rows}
	defer c.forget()
	for _, i := range l.columns {
		if bad := c.node(i, m.rows, nil, false); bad != nil {
			return Info{}, bad
		}
	}
	return c.info, nil
}

func (c *Checker) forget() {
	c.l, c.m, c.body = nil, message{}, nil
	for _, s := range []*[]byte{&c.bitmaps, &c.offsets, &c.values} {
		if cap(*s) > keepBytes {
			*s = nil
		}
	}
}

// checkCounts compares what does not depend on the buffers' content.
func checkCounts(l *Layout, m *message, body []byte) *record.BatchError {
	switch {
	case m.bodyLen != int64(len(body)):
		return record.Errorf(record.KindCorrupt, "the Arrow message says its body has %d bytes, %d arrived", m.bodyLen, len(body))
	case m.rows < 0 || m.rows > math.MaxInt32:
		return record.Errorf(record.KindInvalidRecord, "%d rows", m.rows)
	case len(m.nodes) != len(l.nodes)*structSize || len(m.buffers) != l.buffers*structSize:
		return record.Errorf(record.KindSchema, "%d fields and %d buffers, the schema has %d and %d",
			len(m.nodes)/structSize, len(m.buffers)/structSize, len(l.nodes), l.buffers)
	}
	return nil
}

// node checks the field at node i and its children. want is the length it must
// have; parent the validity of a struct around it (nil: all valid); loose says
// that a longer field is as good (a list's child).
func (c *Checker) node(i int, want int64, parent []byte, loose bool) *record.BatchError {
	n := &c.l.nodes[i]
	length, nulls := c.m.node(i)
	switch {
	case length < want || (!loose && length != want) || length > math.MaxInt32:
		return c.bad(n, record.KindInvalidRecord, "%d values where %d must be", length, want)
	case nulls < 0 || nulls > length:
		return c.bad(n, record.KindInvalidRecord, "%d nulls of %d values", nulls, length)
	}
	validity, bad := c.validity(n, length, nulls, parent)
	if bad != nil {
		return bad
	}
	switch n.shape {
	case shapeBits, shapeFixed:
		return c.fixed(n, i, length, validity)
	case shapeBinary, shapeText:
		return c.binary(n, length, validity)
	case shapeList:
		last, bad := c.offsetsOf(n, length, math.MaxInt32)
		if bad != nil {
			return bad
		}
		return c.node(i+1, last, nil, true)
	}
	for child := i + 1; child < n.end; child = c.l.nodes[child].end {
		if bad := c.node(child, length, validity, false); bad != nil {
			return bad
		}
	}
	return nil
}

func (c *Checker) bad(n *node, kind record.Kind, format string, args ...any) *record.BatchError {
	e := record.Errorf(kind, format, args...)
	e.Why = "column " + n.name + ": " + e.Why
	return e
}

// validity checks the bitmap and answers it, nil when all are valid.
func (c *Checker) validity(n *node, length, nulls int64, parent []byte) ([]byte, *record.BatchError) {
	raw, bad := c.buffer(n, n.buf, &c.bitmaps, true)
	if bad != nil {
		return nil, bad
	}
	if len(raw) == 0 {
		if nulls != 0 {
			return nil, c.bad(n, record.KindInvalidRecord, "%d nulls without a validity bitmap", nulls)
		}
		return nil, nil
	}
	size := (length + 7) / 8
	if int64(len(raw)) < size {
		return nil, c.bad(n, record.KindInvalidRecord, "a validity bitmap of %d bytes for %d values", len(raw), length)
	}
	raw = raw[:size]
	if set := countBits(raw, length); set != length-nulls {
		return nil, c.bad(n, record.KindInvalidRecord, "%d values are null, the message says %d", length-set, nulls)
	}
	if nulls == 0 {
		return nil, nil
	}
	if !n.nullable && !nullOnlyIn(raw, parent, length) {
		return nil, c.bad(n, record.KindSchema, "%d nulls in a NOT NULL column", nulls)
	}
	return raw, nil
}

// nullOnlyIn reports that every null of v lies in a null of the struct around it.
func nullOnlyIn(v, parent []byte, length int64) bool {
	if parent == nil {
		return false
	}
	for i := range v {
		bad := ^v[i] & parent[i]
		if rest := length - int64(i)*8; rest < 8 {
			bad &= 1<<rest - 1
		}
		if bad != 0 {
			return false
		}
	}
	return true
}

func countBits(b []byte, n int64) int64 {
	count := 0
	for ; n >= 64; n, b = n-64, b[8:] {
		count += bits.OnesCount64(binary.LittleEndian.Uint64(b))
	}
	for ; n >= 8; n, b = n-8, b[1:] {
		count += bits.OnesCount8(b[0])
	}
	if n > 0 {
		count += bits.OnesCount8(b[0] & (1<<n - 1))
	}
	return int64(count)
}

func (c *Checker) fixed(n *node, i int, length int64, validity []byte) *record.BatchError {
	raw, bad := c.buffer(n, n.buf+1, &c.values, false)
	if bad != nil {
		return bad
	}
	need := length * int64(n.width)
	if n.shape == shapeBits {
		need = (length + 7) / 8
	}
	if int64(len(raw)) < need {
		return c.bad(n, record.KindInvalidRecord, "%d bytes of values where %d must be", len(raw), need)
	}
	if n.day != 0 || n.scale != (decimal128.Num{}) {
		if row, ok := n.inDomain(raw, length, validity); !ok {
			return c.bad(n, record.KindInvalidRecord, "the value in row %d is out of the range of %s", row, n.typ)
		}
	}
	if c.l.time >= 0 && c.l.columns[c.l.time] == i {
		c.info.NullTimes = validity != nil
		for row := range length {
			if isValid(validity, row) {
				v := int64(binary.LittleEndian.Uint64(raw[row*8:]))
				if !c.info.HasTimestamp || v > c.info.MaxTimestamp {
					c.info.MaxTimestamp, c.info.HasTimestamp = v, true
				}
			}
		}
	}
	return nil
}

func isValid(validity []byte, row int64) bool {
	return validity == nil || validity[row/8]>>(row%8)&1 != 0
}

// inDomain looks for a time outside the day or a decimal with too many digits:
// readers and Parquet writers refuse or garble those.
func (n *node) inDomain(raw []byte, length int64, validity []byte) (row int64, ok bool) {
	le := binary.LittleEndian
	for row := range length {
		var in bool
		switch {
		case n.scale != decimal128.Num{}:
			v := decimal128.New(int64(le.Uint64(raw[16*row+8:])), le.Uint64(raw[16*row:]))
			in = v.Abs().Less(n.scale) && v.Abs().Sign() >= 0 // the smallest has no absolute value
		case n.width == 4:
			in = int64(le.Uint32(raw[4*row:])) < n.day // unsigned: below 0 is out as well
		default:
			in = le.Uint64(raw[8*row:]) < uint64(n.day)
		}
		if !in && isValid(validity, row) {
			return row, false
		}
	}
	return 0, true
}

func (c *Checker) binary(n *node, length int64, validity []byte) *record.BatchError {
	raw, bad := c.buffer(n, n.buf+2, &c.values, false)
	if bad != nil {
		return bad
	}
	last, bad := c.offsetsOf(n, length, int64(len(raw)))
	if bad != nil || n.shape != shapeText || length == 0 {
		return bad
	}
	offsets := c.lastOffsets(n)
	text := raw[binary.LittleEndian.Uint32(offsets):last]
	if !isASCII(text) {
		if !utf8.Valid(text) {
			return c.bad(n, record.KindInvalidRecord, "text that is not UTF-8")
		}
		for k := range length {
			if o := int64(binary.LittleEndian.Uint32(offsets[4*k:])); o < last && !utf8.RuneStart(raw[o]) {
				return c.bad(n, record.KindInvalidRecord, "row %d starts inside a UTF-8 character", k)
			}
		}
	}
	if n.chars == 0 {
		return nil
	}
	for k := range length {
		v := raw[binary.LittleEndian.Uint32(offsets[4*k:]):binary.LittleEndian.Uint32(offsets[4*k+4:])]
		if len(v) > n.chars && utf8.RuneCount(v) > n.chars && isValid(validity, k) {
			return c.bad(n, record.KindInvalidRecord, "row %d has %d characters, CHAR(%d) takes no more than %d", k, utf8.RuneCount(v), n.chars, n.chars)
		}
	}
	return nil
}

// offsetsOf checks the offsets buffer of n and answers the last one.
func (c *Checker) offsetsOf(n *node, length, limit int64) (int64, *record.BatchError) {
	raw, bad := c.buffer(n, n.buf+1, &c.offsets, false)
	if bad != nil {
		return 0, bad
	}
	if length == 0 && len(raw) == 0 {
		return 0, nil // older writers leave it out
	}
	if int64(len(raw)) < 4*(length+1) {
		return 0, c.bad(n, record.KindInvalidRecord, "%d bytes of offsets for %d values", len(raw), length)
	}
	raw = raw[:4*(length+1)]
	prev := uint32(0)
	for k := 0; k < len(raw); k += 4 {
		o := binary.LittleEndian.Uint32(raw[k:])
		if o < prev || o > math.MaxInt32 {
			return 0, c.bad(n, record.KindInvalidRecord, "offset %d is %d after %d", k/4, int32(o), prev)
		}
		prev = o
	}
	if int64(prev) > limit {
		return 0, c.bad(n, record.KindInvalidRecord, "the last offset is %d, there are %d bytes", prev, limit)
	}
	return int64(prev), nil
}

// lastOffsets answers the offsets that offsetsOf(n) has just checked.
func (c *Checker) lastOffsets(n *node) []byte {
	if c.m.codec == codecNone {
		off, length := c.m.buffer(n.buf + 1)
		return c.body[off : off+length]
	}
	if raw, plain := c.uncompressed(n.buf + 1); plain {
		return raw
	}
	return c.offsets
}

func isASCII(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b)&0x8080808080808080 != 0 {
			return false
		}
	}
	for _, x := range b {
		if x >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// buffer answers buffer k, decompressed into scratch when it is compressed:
// after what scratch holds when keep, else over it.
func (c *Checker) buffer(n *node, k int, scratch *[]byte, keep bool) ([]byte, *record.BatchError) {
	raw, bad := cut(&c.m, k, c.body)
	if bad != nil {
		bad.Why = "column " + n.name + ": " + bad.Why
		return nil, bad
	}
	if c.m.codec == codecNone || len(raw) == 0 {
		return raw, nil
	}
	size, raw, bad := plainSize(raw, c.left)
	if bad != nil {
		bad.Why = "column " + n.name + ": " + bad.Why
		return nil, bad
	}
	if size < 0 {
		return raw, nil
	}
	c.left -= size
	at := 0
	if keep {
		at = len(*scratch)
	}
	if cap(*scratch) < at+size {
		// Bitmaps handed out before stay alive in the old array.
		*scratch = append(make([]byte, 0, max(at+size, 2*cap(*scratch))), (*scratch)[:at]...)
	}
	*scratch = (*scratch)[:at+size]
	dst := (*scratch)[at:]
	if err := c.inflate.into(dst, raw, c.m.codec); err != nil {
		return nil, c.bad(n, record.KindInvalidRecord, "buffer %d: %v", k, err)
	}
	return dst, nil
}

// uncompressed answers buffer k of a compressed message when it is stored plain.
func (c *Checker) uncompressed(k int) ([]byte, bool) {
	off, length := c.m.buffer(k)
	raw := c.body[off : off+length]
	if len(raw) < 8 || int64(binary.LittleEndian.Uint64(raw)) == -1 {
		return raw[min(8, len(raw)):], true
	}
	return nil, false
}

// cut answers the bytes of buffer k.
func cut(m *message, k int, body []byte) ([]byte, *record.BatchError) {
	off, length := m.buffer(k)
	if off < 0 || length < 0 || off > int64(len(body)) || length > int64(len(body))-off {
		return nil, record.Errorf(record.KindCorrupt, "buffer %d [%d, +%d) passes the body of %d bytes", k, off, length, len(body))
	}
	if off%8 != 0 {
		return nil, record.Errorf(record.KindInvalidRecord, "buffer %d starts at %d, not a multiple of 8", k, off)
	}
	return body[off : off+length : off+length], nil
}

// plainSize reads the length in front of a compressed buffer; -1: it is not
// compressed after all, and rest is the buffer.
func plainSize(raw []byte, limit int) (size int, rest []byte, bad *record.BatchError) {
	if len(raw) < 8 {
		return 0, nil, record.Errorf(record.KindInvalidRecord, "a compressed buffer of %d bytes", len(raw))
	}
	n := int64(binary.LittleEndian.Uint64(raw))
	switch {
	case n == -1:
		return -1, raw[8:], nil
	case n < 0:
		return 0, nil, record.Errorf(record.KindInvalidRecord, "a compressed buffer of length %d", n)
	case n > int64(limit):
		return 0, nil, record.Errorf(record.KindTooLarge, "the batch expands past its limit (a buffer says %d bytes)", n)
	}
	return int(n), raw[8:], nil
}

// inflater decompresses single buffers of known size.
type inflater struct {
	src  bytes.Reader
	lz4  *lz4.Reader
	zstd *zstd.Decoder
}

var errSize = errors.New("decompresses to another length than it says")

// into fills dst exactly.
func (f *inflater) into(dst, src []byte, codec int8) error {
	if codec == codecZstd {
		if f.zstd == nil {
			var err error
			// Concurrency 1 decodes in the caller; output is bounded by dst.
			f.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxWindow(DefaultMaxBytes), zstd.WithDecodeAllCapLimit(true))
			if err != nil {
				return err
			}
		}
		out, err := f.zstd.DecodeAll(src, dst[:0:len(dst)])
		if err != nil {
			return err
		}
		if len(out) != len(dst) || (len(out) > 0 && &out[0] != &dst[0]) {
			return errSize
		}
		return nil
	}
	f.src.Reset(src)
	if f.lz4 == nil {
		f.lz4 = lz4.NewReader(&f.src)
	} else {
		f.lz4.Reset(&f.src)
	}
	_, err := io.ReadFull(f.lz4, dst)
	if err == nil {
		var one [1]byte
		if n, end := f.lz4.Read(one[:]); n != 0 || !errors.Is(end, io.EOF) {
			err = errSize
		}
	}
	if err != nil {
		f.lz4 = nil
	}
	return err
}
