package kafkabatch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

// HeaderSize is the size of the batch header, before the records.
const HeaderSize = 61

const (
	posBase      = 0
	posLength    = 8
	posEpoch     = 12
	posMagic     = 16
	posCRC       = 17
	posAttrs     = 21
	posDelta     = 23
	posBaseTS    = 27
	posMaxTS     = 35
	posProducer  = 43
	posPEpoch    = 51
	posSequence  = 53
	posCount     = 57
	lengthEnd    = posEpoch
	minRecordLen = 7 // length, attributes, two deltas, two null lengths, no headers
)

const (
	attrCodec         = 0x07
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
	attrDeleteHorizon = 1 << 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Codec is how the records are compressed; the numbers are Kafka's.
type Codec uint8

// Kafka's codecs.
const (
	CodecNone   Codec = 0
	CodecGzip   Codec = 1
	CodecSnappy Codec = 2
	CodecLZ4    Codec = 3
	CodecZstd   Codec = 4
)

// String is the name that Kafka's compression.type uses.
func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecGzip:
		return "gzip"
	case CodecSnappy:
		return "snappy"
	case CodecLZ4:
		return "lz4"
	case CodecZstd:
		return "zstd"
	default:
		return fmt.Sprintf("codec %d", uint8(c))
	}
}

// View reads the header of one batch in place. Make one with Parse.
type View []byte

// Parse checks the framing of exactly one v2 batch: lengths, magic, a sane
// count. It does not sum the CRC and does not look at the records. Errors are
// *record.BatchError.
func Parse(b []byte) (View, error) {
	if len(b) < HeaderSize {
		// The magic byte of the old formats is at the same place: say that first.
		if len(b) > posMagic && (b[posMagic] == 0 || b[posMagic] == 1) {
			return nil, record.Errorf(record.KindUnsupportedFormat, "message format v%d, only v2 is stored", b[posMagic])
		}
		return nil, record.Errorf(record.KindCorrupt, "%d bytes are shorter than a batch header", len(b))
	}
	v := View(b)
	switch m := b[posMagic]; {
	case m < 2:
		return nil, record.Errorf(record.KindUnsupportedFormat, "message format v%d, only v2 is stored", m)
	case m > 2:
		return nil, record.Errorf(record.KindInvalidRecord, "unknown magic %d", m)
	}
	switch n := int64(int32(binary.BigEndian.Uint32(b[posLength:]))) + lengthEnd; {
	case n < HeaderSize || n > int64(len(b)):
		return nil, record.Errorf(record.KindCorrupt, "the batch says it has %d bytes, %d arrived", n, len(b))
	case n < int64(len(b)):
		return nil, record.Errorf(record.KindInvalidRecord, "%d bytes follow the batch: exactly one batch per partition is allowed", int64(len(b))-n)
	}
	return v, nil
}

// BaseOffset is the offset of the first record.
func (v View) BaseOffset() mink.Offset { return mink.Offset(binary.BigEndian.Uint64(v[posBase:])) }

// LeaderEpoch is the partition leader epoch.
func (v View) LeaderEpoch() mink.LeaderEpoch {
	return mink.LeaderEpoch(binary.BigEndian.Uint32(v[posEpoch:]))
}

// CRC is the stored checksum.
func (v View) CRC() uint32 { return binary.BigEndian.Uint32(v[posCRC:]) }

// Sum computes the checksum.
func (v View) Sum() uint32 { return crc32.Checksum(v[posAttrs:], castagnoli) }

func (v View) attrs() uint16 { return binary.BigEndian.Uint16(v[posAttrs:]) }

// Codec is how the records are compressed.
func (v View) Codec() Codec { return Codec(v.attrs() & attrCodec) }

// LogAppendTime reports that all records take MaxTimestamp as theirs.
func (v View) LogAppendTime() bool { return v.attrs()&attrLogAppendTime != 0 }

// Transactional reports the transactional bit.
func (v View) Transactional() bool { return v.attrs()&attrTransactional != 0 }

// Control reports a control batch (a transaction marker).
func (v View) Control() bool { return v.attrs()&attrControl != 0 }

// DeleteHorizon is when the batch's tombstones may go, ms, once a cleaning has met them
// (KIP-534: it takes the base timestamp's place).
func (v View) DeleteHorizon() (ms int64, ok bool) {
	if v.attrs()&attrDeleteHorizon == 0 {
		return 0, false
	}
	return v.BaseTimestamp(), true
}

// LastOffsetDelta is the offset of the last record minus the base offset, or more in a
// batch that was cleaned.
func (v View) LastOffsetDelta() int32 { return int32(binary.BigEndian.Uint32(v[posDelta:])) }

// BaseTimestamp is what the records' timestamp deltas add to, ms.
func (v View) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(v[posBaseTS:])) }

// MaxTimestamp is the largest record timestamp as the header says, ms.
func (v View) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(v[posMaxTS:])) }

// ProducerID is the idempotent producer, -1: none.
func (v View) ProducerID() mink.WriterID {
	return mink.WriterID(binary.BigEndian.Uint64(v[posProducer:]))
}

// ProducerEpoch is the producer's epoch.
func (v View) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(v[posPEpoch:])) }

// BaseSequence is the sequence of the first record, -1: none.
func (v View) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(v[posSequence:])) }

// Count is the number of records as the header says.
func (v View) Count() int32 { return int32(binary.BigEndian.Uint32(v[posCount:])) }

// Records are the bytes after the header, compressed or not.
func (v View) Records() []byte { return v[HeaderSize:] }

// SetLogAppendTime makes ms the timestamp of all records: bit 3, the max
// timestamp and the CRC change, the deltas stay.
func SetLogAppendTime(b []byte, ms int64) {
	v := View(b)
	binary.BigEndian.PutUint16(b[posAttrs:], v.attrs()|attrLogAppendTime)
	setMaxTimestamp(b, ms)
}

func setMaxTimestamp(b []byte, ms int64) {
	binary.BigEndian.PutUint64(b[posMaxTS:], uint64(ms))
	binary.BigEndian.PutUint32(b[posCRC:], View(b).Sum())
}
