package kafkabatch

import (
	"github.com/mink-project/mink/core/record"
)

// Record is one record in place. Its slices alias the reader's bytes; nil means
// null, an empty slice an empty value.
type Record struct {
	Delta       int32 // offset minus the batch's base offset
	Timestamp   int64 // ms
	Key, Value  []byte
	HeaderCount int
	headers     []byte

	raw     []byte // the whole record, with its length
	tail    []byte // from the key's length on
	attrs   byte
	tsDelta int64
}

// Headers starts a walk over the record's headers.
func (r *Record) Headers() Headers { return Headers{rest: r.headers, left: r.HeaderCount} }

// Headers walks the headers of one record, which Reader.Next has checked.
type Headers struct {
	rest []byte
	left int
}

// Next answers the next header; a nil value is null.
func (h *Headers) Next() (key, value []byte, ok bool) {
	if h.left == 0 {
		return nil, nil, false
	}
	h.left--
	c := cursor{b: h.rest}
	key, value = c.bytes(), c.bytes()
	h.rest = c.b
	return key, value, true
}

// Reader walks the uncompressed records of one batch without allocating. It
// checks all framing: lengths, header counts, offset deltas that rise and leave room
// for the records to come (0, 1, 2, ... unless the batch was cleaned), and that the
// records fill the bytes exactly.
type Reader struct {
	rest     []byte
	i, count int32
	next     int64 // the least offset delta that may come
	last     int64 // the batch's last offset delta
	base     int64
	fixed    int64 // the timestamp of all records when logTime
	logTime  bool
	err      *record.BatchError
}

// NewReader walks records, which are v's, uncompressed (Decoder.Records).
func NewReader(v View, records []byte) Reader {
	r := Reader{rest: records, count: v.Count(), last: int64(v.LastOffsetDelta()), base: v.BaseTimestamp(), fixed: v.MaxTimestamp(), logTime: v.LogAppendTime()}
	if r.count < 0 || int64(r.count)*minRecordLen > int64(len(records)) {
		r.err = record.Errorf(record.KindInvalidRecord, "%d records in %d bytes", r.count, len(records))
	}
	return r
}

// Next reads one record into rec; false at the end and on an error.
func (r *Reader) Next(rec *Record) bool {
	if r.err != nil {
		return false
	}
	if r.i == r.count {
		if len(r.rest) > 0 {
			r.err = record.Errorf(record.KindInvalidRecord, "%d bytes follow the %d records", len(r.rest), r.count)
		}
		return false
	}
	c := cursor{b: r.rest}
	n := c.varint32()
	if c.bad || n < 0 || int(n) > len(c.b) {
		return r.fail("its length %d passes the end", n)
	}
	rec.raw = r.rest[:len(r.rest)-len(c.b)+int(n)]
	r.rest = c.b[n:]
	c.b = c.b[:n]
	rec.attrs = c.byte()
	delta := c.varint64()
	offset := c.varint32()
	rec.tail = c.b
	rec.Key = c.bytes()
	rec.Value = c.bytes()
	headers := c.varint32()
	if c.bad || headers < 0 || int(headers) > len(c.b)/2 {
		return r.fail("key, value or header count pass its end")
	}
	rec.headers, rec.HeaderCount = c.b, int(headers)
	for range headers {
		if key := c.bytes(); key == nil {
			return r.fail("a header has no key")
		}
		c.bytes()
	}
	if c.bad || len(c.b) != 0 {
		return r.fail("its headers do not end where it does")
	}
	if at := int64(offset); at < r.next || at > r.last-int64(r.count-1-r.i) {
		return r.fail("its offset delta is %d", offset)
	}
	rec.Delta, rec.Timestamp, rec.tsDelta = offset, r.base+delta, delta
	if r.logTime {
		rec.Timestamp = r.fixed
	}
	r.i, r.next = r.i+1, int64(offset)+1
	return true
}

// Err is the first thing that is wrong, nil at a clean end.
func (r *Reader) Err() error {
	if r.err == nil {
		return nil
	}
	return r.err
}

func (r *Reader) fail(format string, args ...any) bool {
	r.err = record.RecordErrorf(record.KindInvalidRecord, int(r.i), format, args...)
	return false
}

// cursor reads Kafka's zigzag varints and length-prefixed bytes. After a read
// that does not fit, bad stays set and reads answer nothing.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) byte() byte {
	if len(c.b) == 0 {
		c.bad = true
		return 0
	}
	b := c.b[0]
	c.b = c.b[1:]
	return b
}

func (c *cursor) uvarint(maxBytes int) uint64 {
	var x uint64
	for i, b := range c.b {
		if i == maxBytes || (i == 9 && b > 1) {
			break
		}
		x |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			c.b = c.b[i+1:]
			return x
		}
	}
	c.bad, c.b = true, nil
	return 0
}

func (c *cursor) varint64() int64 {
	if b := c.b; len(b) > 0 && b[0] < 0x80 {
		c.b = b[1:]
		return int64(b[0]>>1) ^ -int64(b[0]&1)
	}
	x := c.uvarint(10)
	return int64(x>>1) ^ -int64(x&1)
}

func (c *cursor) varint32() int32 {
	b := c.b
	if len(b) > 0 && b[0] < 0x80 { // one byte: almost always
		c.b = b[1:]
		return int32(b[0]>>1) ^ -int32(b[0]&1)
	}
	if len(b) > 1 && b[1] < 0x80 {
		x := uint32(b[0]&0x7f) | uint32(b[1])<<7
		c.b = b[2:]
		return int32(x>>1) ^ -int32(x&1)
	}
	x := uint32(c.uvarint(5))
	return int32(x>>1) ^ -int32(x&1)
}

var empty = []byte{}

// bytes reads a length and that many bytes; nil for length -1 and when bad.
func (c *cursor) bytes() []byte {
	n := c.varint32()
	switch {
	case c.bad || n == -1:
		return nil
	case n < 0 || int(n) > len(c.b):
		c.bad, c.b = true, nil
		return nil
	case n == 0:
		return empty
	}
	out := c.b[:n:n]
	c.b = c.b[n:]
	return out
}
