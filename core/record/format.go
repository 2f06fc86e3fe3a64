package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/mink-project/mink/sdk/mink"
)

// HeaderSize is the size of the Mink header in bytes; a multiple of 8, so that
// Arrow buffers stay aligned.
const HeaderSize = 80

// Magic is the format version written in every header.
const Magic = 1

const (
	posBase      = 0
	posLength    = 8
	posEpoch     = 12
	posCommit    = 16
	posCRC       = 24
	posMagic     = 28
	posEncoding  = 29
	posAttrs     = 30
	posSchema    = 32
	posDelta     = 36
	posCount     = 40
	posChanges   = 44
	posMaxTS     = 48
	posWriter    = 56
	posFirstSeq  = 64
	posLastSeq   = 68
	posWEpoch    = 72
	posZero      = 74
	posMeta      = 76
	coveredStart = posMagic
	lengthEnd    = posEpoch
)

// Of a Kafka v2 batch the header's own needs: see record/kafkabatch.
const (
	kafkaHeaderSize = 61
	kafkaPosLength  = 8
	kafkaPosEpoch   = 12
	kafkaPosMagic   = 16
	kafkaPosCRC     = 17
	kafkaPosBody    = 21
)

// Encoding says how a batch's payload is written.
type Encoding uint8

// The encodings. The numbers are on disk.
const (
	EncodingArrow Encoding = 1 // one Arrow IPC record-batch message, metadata and body
	EncodingKafka Encoding = 2 // one Kafka v2 record batch, verbatim
)

// String names the encoding.
func (e Encoding) String() string {
	switch e {
	case EncodingArrow:
		return "arrow"
	case EncodingKafka:
		return "kafka"
	default:
		return fmt.Sprintf("encoding %d", uint8(e))
	}
}

// Attributes are the header's flag bits.
type Attributes uint16

// The attribute bits; the others are zero.
const (
	AttrAppendOnly      Attributes = 1 << 0 // no change vector: every record is an append
	AttrWriterStateOnly Attributes = 1 << 1 // no records: only advances (writer, sequence)
	AttrLogAppendTime   Attributes = 1 << 2 // record timestamps are the commit timestamp
	AttrTransactional   Attributes = 1 << 3 // Kafka transactional batch
	AttrControl         Attributes = 1 << 4 // Kafka control batch
	AttrUncleanable     Attributes = 1 << 5 // a cleaning left it whole: it may hold superseded records, for ever
	attrKnown                      = AttrAppendOnly | AttrWriterStateOnly | AttrLogAppendTime | AttrTransactional | AttrControl | AttrUncleanable
)

// Change is the kind of one record of a changelog.
type Change = mink.Change

// The change kinds.
const (
	ChangeAppend       = mink.ChangeAppend
	ChangeInsert       = mink.ChangeInsert
	ChangeUpdateBefore = mink.ChangeUpdateBefore
	ChangeUpdateAfter  = mink.ChangeUpdateAfter
	ChangeDelete       = mink.ChangeDelete
)

// NoSequence stands for both sequences of a batch without a writer.
const NoSequence int32 = -1

// Header is the decoded fixed part of a batch.
type Header struct {
	// Assigned by the server, outside the CRC.
	BaseOffset      mink.Offset
	LeaderEpoch     mink.LeaderEpoch
	CommitTimestamp int64 // ms

	Encoding        Encoding
	Attributes      Attributes
	SchemaID        mink.SchemaID
	LastOffsetDelta int32 // >= 0
	Count           int32 // records; 0 .. LastOffsetDelta+1
	ChangesLen      int32 // 0 or Count
	MaxTimestamp    int64 // ms
	WriterID        mink.WriterID
	WriterEpoch     int16
	Sequence        int32 // first; kafka counts records, arrow counts batches
	LastSequence    int32
	MetadataLen     uint32 // arrow: bytes of the message flatbuffer
}

// LastOffset is the offset of the batch's last slot.
func (h Header) LastOffset() mink.Offset { return h.BaseOffset + mink.Offset(h.LastOffsetDelta) }

// NextOffset is the first offset after the batch.
func (h Header) NextOffset() mink.Offset { return h.LastOffset() + 1 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// PutHeader writes h into hdr for a batch whose bytes after the header number
// bodyLen, with the CRC left zero: Seal closes it. hdr has HeaderSize bytes.
func PutHeader(hdr []byte, h *Header, bodyLen int) {
	_ = hdr[HeaderSize-1]
	le := binary.LittleEndian
	le.PutUint64(hdr[posBase:], uint64(h.BaseOffset))
	le.PutUint32(hdr[posLength:], uint32(HeaderSize-lengthEnd+bodyLen))
	le.PutUint32(hdr[posEpoch:], uint32(h.LeaderEpoch))
	le.PutUint64(hdr[posCommit:], uint64(h.CommitTimestamp))
	le.PutUint32(hdr[posCRC:], 0)
	hdr[posMagic] = Magic
	hdr[posEncoding] = byte(h.Encoding)
	le.PutUint16(hdr[posAttrs:], uint16(h.Attributes))
	le.PutUint32(hdr[posSchema:], uint32(h.SchemaID))
	le.PutUint32(hdr[posDelta:], uint32(h.LastOffsetDelta))
	le.PutUint32(hdr[posCount:], uint32(h.Count))
	le.PutUint32(hdr[posChanges:], uint32(h.ChangesLen))
	le.PutUint64(hdr[posMaxTS:], uint64(h.MaxTimestamp))
	le.PutUint64(hdr[posWriter:], uint64(h.WriterID))
	le.PutUint32(hdr[posFirstSeq:], uint32(h.Sequence))
	le.PutUint32(hdr[posLastSeq:], uint32(h.LastSequence))
	le.PutUint16(hdr[posWEpoch:], uint16(h.WriterEpoch))
	le.PutUint16(hdr[posZero:], 0)
	le.PutUint32(hdr[posMeta:], h.MetadataLen)
}

// BodySum starts the CRC: the sum of the bytes after the header, given in
// order. Of a kafka batch only Kafka's CRC field goes in: KafkaBodySum.
func BodySum(parts ...[]byte) uint32 {
	var sum uint32
	for _, p := range parts {
		sum = crc32.Update(sum, castagnoli, p)
	}
	return sum
}

// KafkaBodySum is BodySum for a kafka payload: of its 4 CRC bytes.
func KafkaBodySum(kafkaBatch []byte) uint32 {
	return crc32.Update(0, castagnoli, kafkaBatch[kafkaPosCRC:kafkaPosCRC+4])
}

// Seal closes the header over bodySum. Call it after the last change to a
// covered field.
func Seal(hdr []byte, bodySum uint32) {
	binary.LittleEndian.PutUint32(hdr[posCRC:], crc32.Update(bodySum, castagnoli, hdr[coveredStart:HeaderSize]))
}

// SetServerFields patches what the server assigns at append. kafkaBatch is the
// payload of a kafka batch (its base offset and leader epoch are patched too)
// or nil for an arrow one.
func SetServerFields(hdr, kafkaBatch []byte, base mink.Offset, commitMs int64, epoch mink.LeaderEpoch) {
	le := binary.LittleEndian
	le.PutUint64(hdr[posBase:], uint64(base))
	le.PutUint32(hdr[posEpoch:], uint32(epoch))
	le.PutUint64(hdr[posCommit:], uint64(commitMs))
	if kafkaBatch != nil {
		be := binary.BigEndian
		be.PutUint64(kafkaBatch, uint64(base))
		be.PutUint32(kafkaBatch[kafkaPosEpoch:], uint32(epoch))
	}
}

// pad8 rounds up to a multiple of 8.
func pad8(n int) int { return (n + 7) &^ 7 }

// Padding answers the zeros that follow n bytes up to a multiple of 8. The
// slice is shared and must not be written.
func Padding(n int) []byte { return zeros[:pad8(n)-n] }

var zeros [8]byte

func corruptf(format string, args ...any) error {
	return fmt.Errorf("mink batch: %w: %s", mink.ErrCorrupt, fmt.Sprintf(format, args...))
}

const maxInt31 = math.MaxInt32
