package kafkabatch

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
)

// Encoding is what an encoded batch says besides its records.
type Encoding struct {
	Base            mink.Offset
	LeaderEpoch     mink.LeaderEpoch
	LastOffsetDelta int32 // >= rows-1; larger when trailing offsets hold nothing
	CommitMs        int64 // the timestamp of rows whose own is null, and of all under LogAppendTime
	LogAppendTime   bool
}

// Encode writes rows of the four columns (CheckSchema) as one uncompressed v2
// batch, row i at offset Base+i, appended to dst. Without rows it writes the
// empty batch that Kafka's cleaner keeps for a last offset.
func Encode(dst []byte, rows arrow.RecordBatch, e Encoding) ([]byte, error) {
	if err := CheckSchema(rows.Schema()); err != nil {
		return dst, err
	}
	n := int(rows.NumRows())
	if n-1 > int(e.LastOffsetDelta) {
		return dst, fmt.Errorf("encode kafka batch: %w: %d rows in %d offsets", mink.ErrInvalid, n, e.LastOffsetDelta+1)
	}
	enc := newEncoder(rows, e)
	start := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	base, top := int64(noTimestamp), int64(noTimestamp)
	for i := range n {
		ts := enc.timestamp(i)
		if i == 0 {
			base, top = ts, ts
		}
		top = max(top, ts)
		dst = enc.record(dst, i, ts-base)
	}
	return finish(dst, start, n, base, top, e)
}

// EncodeValues writes n records that have a value and nothing else, record i at
// offset Base+i with CommitMs as its time, as one uncompressed batch appended to
// dst. value appends the value of record i to its argument; its error ends all.
func EncodeValues(dst []byte, n int, value func(dst []byte, i int) ([]byte, error), e Encoding) ([]byte, error) {
	if n-1 > int(e.LastOffsetDelta) {
		return dst, fmt.Errorf("encode kafka batch: %w: %d rows in %d offsets", mink.ErrInvalid, n, e.LastOffsetDelta+1)
	}
	start := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	var v []byte
	var err error
	for i := range n {
		if v, err = value(v[:0], i); err != nil {
			return dst[:start], err
		}
		// attributes, timestamp delta 0, offset delta, key -1, value, header count 0
		size := 2 + varintLen(int64(i)) + 1 + varintLen(int64(len(v))) + len(v) + 1
		dst = binary.AppendVarint(dst, int64(size))
		dst = append(dst, 0, 0)
		dst = binary.AppendVarint(dst, int64(i))
		dst = binary.AppendVarint(dst, -1)
		dst = append(binary.AppendVarint(dst, int64(len(v))), v...)
		dst = append(dst, 0)
	}
	ts := e.CommitMs
	if n == 0 {
		ts = noTimestamp
	}
	return finish(dst, start, n, ts, ts, e)
}

// finish writes the header of the batch that begins at start.
func finish(dst []byte, start, n int, base, top int64, e Encoding) ([]byte, error) {
	if len(dst)-start > math.MaxInt32 {
		return dst[:start], fmt.Errorf("encode kafka batch: %w: %d bytes", mink.ErrTooLarge, len(dst)-start)
	}
	b := dst[start:]
	be := binary.BigEndian
	be.PutUint64(b[posBase:], uint64(e.Base))
	be.PutUint32(b[posLength:], uint32(len(b)-lengthEnd))
	be.PutUint32(b[posEpoch:], uint32(e.LeaderEpoch))
	b[posMagic] = 2
	be.PutUint32(b[posDelta:], uint32(e.LastOffsetDelta))
	be.PutUint64(b[posBaseTS:], uint64(base))
	be.PutUint64(b[posProducer:], math.MaxUint64) // -1: no producer
	be.PutUint16(b[posPEpoch:], math.MaxUint16)
	be.PutUint32(b[posSequence:], math.MaxUint32)
	be.PutUint32(b[posCount:], uint32(n))
	if e.LogAppendTime {
		SetLogAppendTime(b, e.CommitMs)
	} else {
		setMaxTimestamp(b, top)
	}
	return dst, nil
}

type encoder struct {
	e          Encoding
	key, value *array.Binary
	headers    *array.List
	header     *array.Struct
	hkey       *array.String
	hvalue     *array.Binary
	ts         *array.Timestamp
}

func newEncoder(rows arrow.RecordBatch, e Encoding) *encoder {
	enc := &encoder{
		e:       e,
		key:     rows.Column(ColKey).(*array.Binary),
		value:   rows.Column(ColValue).(*array.Binary),
		headers: rows.Column(ColHeaders).(*array.List),
		ts:      rows.Column(ColTimestamp).(*array.Timestamp),
	}
	enc.header = enc.headers.ListValues().(*array.Struct)
	enc.hkey = enc.header.Field(0).(*array.String)
	enc.hvalue = enc.header.Field(1).(*array.Binary)
	return enc
}

func (enc *encoder) timestamp(i int) int64 {
	if enc.ts.IsNull(i) {
		return enc.e.CommitMs
	}
	return int64(enc.ts.Value(i))
}

// record appends row i. A null header key is written as the empty string:
// Kafka has no null there. A null header entry is left out.
func (enc *encoder) record(dst []byte, i int, tsDelta int64) []byte {
	var first, last int64
	if enc.headers.IsValid(i) {
		first, last = enc.headers.ValueOffsets(i)
	}
	size := 1 + varintLen(tsDelta) + varintLen(int64(i)) + bytesLen(enc.key, i) + bytesLen(enc.value, i)
	count := int64(0)
	for h := int(first); h < int(last); h++ {
		if enc.header.IsValid(h) {
			count++
			k := len(enc.headerKey(h))
			size += varintLen(int64(k)) + k + bytesLen(enc.hvalue, h)
		}
	}
	size += varintLen(count)
	dst = binary.AppendVarint(dst, int64(size))
	dst = append(dst, 0)
	dst = binary.AppendVarint(dst, tsDelta)
	dst = binary.AppendVarint(dst, int64(i))
	dst = putBytes(dst, enc.key, i)
	dst = putBytes(dst, enc.value, i)
	dst = binary.AppendVarint(dst, count)
	for h := int(first); h < int(last); h++ {
		if enc.header.IsValid(h) {
			k := enc.headerKey(h)
			dst = binary.AppendVarint(dst, int64(len(k)))
			dst = append(dst, k...)
			dst = putBytes(dst, enc.hvalue, h)
		}
	}
	return dst
}

func (enc *encoder) headerKey(h int) string {
	if enc.hkey.IsNull(h) {
		return ""
	}
	return enc.hkey.Value(h)
}

func putBytes(dst []byte, a *array.Binary, i int) []byte {
	if a.IsNull(i) {
		return binary.AppendVarint(dst, -1)
	}
	v := a.Value(i)
	return append(binary.AppendVarint(dst, int64(len(v))), v...)
}

func bytesLen(a *array.Binary, i int) int {
	if a.IsNull(i) {
		return 1
	}
	n := a.ValueLen(i)
	return varintLen(int64(n)) + n
}

// varintLen is the size of x as a zigzag varint.
func varintLen(x int64) int {
	z := uint64(x<<1) ^ uint64(x>>63)
	return (bits.Len64(z|1) + 6) / 7
}
