package record

import (
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/mink-project/mink/sdk/mink"
)

// Batch is a view of one stored batch. It aliases the bytes it was made from
// and is read only; its accessors allocate nothing. Safe for concurrent use.
// Only ParseBatch and ViewBatch make one: accessors trust its lengths.
type Batch []byte

// ParseBatch checks header, lengths and both CRCs of b, which must be exactly
// one batch. Errors wrap mink.ErrCorrupt. Bytes of unknown origin go through
// here; what the payload says is checked by its own encoding package.
func ParseBatch(b []byte) (Batch, error) {
	v, err := ViewBatch(b)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	var sum uint32
	if v.Encoding() == EncodingKafka {
		k := v.Payload()
		sum = KafkaBodySum(k)
		if got, want := crc32.Checksum(k[kafkaPosBody:], castagnoli), binary.BigEndian.Uint32(k[kafkaPosCRC:]); got != want {
			return nil, corruptf("crc of the kafka payload is %08x, stored %08x", got, want)
		}
	} else {
		sum = BodySum(v[HeaderSize:])
	}
	sum = crc32.Update(sum, castagnoli, v[coveredStart:HeaderSize])
	if want := le.Uint32(v[posCRC:]); sum != want {
		return nil, corruptf("crc is %08x, stored %08x", sum, want)
	}
	return v, nil
}

// ViewBatch is ParseBatch without the CRCs, for bytes that somebody has summed
// already (the engine sums what it reads from the store). Constant time.
func ViewBatch(b []byte) (Batch, error) {
	if len(b) < HeaderSize {
		return nil, corruptf("%d bytes are shorter than a header", len(b))
	}
	if b[posMagic] != Magic {
		return nil, corruptf("magic %d, this version reads %d", b[posMagic], Magic)
	}
	v := Batch(b)
	le := binary.LittleEndian
	if n := uint64(le.Uint32(b[posLength:])); n != uint64(len(b)-lengthEnd) {
		return nil, corruptf("length says %d bytes follow, %d do", n, len(b)-lengthEnd)
	}
	if a := v.Attributes(); a&^attrKnown != 0 || le.Uint16(b[posZero:]) != 0 {
		return nil, corruptf("unknown attribute bits %#x", uint16(a&^attrKnown))
	}
	delta, count, changes := int32(le.Uint32(b[posDelta:])), int32(le.Uint32(b[posCount:])), int32(le.Uint32(b[posChanges:]))
	switch {
	case delta < 0 || delta == maxInt31 || count < 0 || int64(count) > int64(delta)+1:
		return nil, corruptf("%d records in %d offsets", count, int64(delta)+1)
	case changes != 0 && changes != count:
		return nil, corruptf("a change vector of %d for %d records", changes, count)
	case v.BaseOffset() < 0 || v.BaseOffset() > maxOffset:
		return nil, corruptf("base offset %d", v.BaseOffset())
	}
	rest := int64(len(b)-HeaderSize) - int64(pad8(int(changes)))
	meta := int64(le.Uint32(b[posMeta:]))
	switch v.Encoding() {
	case EncodingArrow:
		if meta > 1<<30 || rest < int64(pad8(int(meta))) {
			return nil, corruptf("change vector and metadata pass the end")
		}
	case EncodingKafka:
		if meta != 0 || changes != 0 || rest < kafkaHeaderSize {
			return nil, corruptf("a kafka payload of %d bytes", rest)
		}
		k := v[HeaderSize:]
		if n := binary.BigEndian.Uint32(k[kafkaPosLength:]); int64(n) != rest-kafkaPosEpoch || k[kafkaPosMagic] != 2 {
			return nil, corruptf("kafka payload: length %d in %d bytes, magic %d", n, rest, k[kafkaPosMagic])
		}
	default:
		return nil, corruptf("unknown encoding %d", b[posEncoding])
	}
	return v, nil
}

// WithAttributes is a copy of the batch that has more attributes.
func (b Batch) WithAttributes(more Attributes) Batch {
	out := slices.Clone(b)
	binary.LittleEndian.PutUint16(out[posAttrs:], uint16(b.Attributes()|more))
	sum := uint32(0)
	if b.Encoding() == EncodingKafka {
		sum = KafkaBodySum(out.Kafka())
	} else {
		sum = BodySum(out[HeaderSize:])
	}
	Seal(out[:HeaderSize], sum)
	return out
}

// maxOffset leaves room for base offset + delta + 1.
const maxOffset = mink.Offset(1<<63 - 1 - 1<<31)

// Header decodes all fields.
func (b Batch) Header() Header {
	le := binary.LittleEndian
	return Header{
		BaseOffset:      b.BaseOffset(),
		LeaderEpoch:     b.LeaderEpoch(),
		CommitTimestamp: b.CommitTimestamp(),
		Encoding:        b.Encoding(),
		Attributes:      b.Attributes(),
		SchemaID:        b.SchemaID(),
		LastOffsetDelta: int32(le.Uint32(b[posDelta:])),
		Count:           b.Count(),
		ChangesLen:      int32(le.Uint32(b[posChanges:])),
		MaxTimestamp:    b.MaxTimestamp(),
		WriterID:        b.WriterID(),
		WriterEpoch:     int16(le.Uint16(b[posWEpoch:])),
		Sequence:        int32(le.Uint32(b[posFirstSeq:])),
		LastSequence:    int32(le.Uint32(b[posLastSeq:])),
		MetadataLen:     le.Uint32(b[posMeta:]),
	}
}

// BaseOffset is the offset of the first record.
func (b Batch) BaseOffset() mink.Offset {
	return mink.Offset(binary.LittleEndian.Uint64(b[posBase:]))
}

// LastOffset is the last offset that the batch takes.
func (b Batch) LastOffset() mink.Offset {
	return b.BaseOffset() + mink.Offset(binary.LittleEndian.Uint32(b[posDelta:]))
}

// NextOffset is the first offset after the batch.
func (b Batch) NextOffset() mink.Offset { return b.LastOffset() + 1 }

// LeaderEpoch is the epoch under which the batch was appended.
func (b Batch) LeaderEpoch() mink.LeaderEpoch {
	return mink.LeaderEpoch(binary.LittleEndian.Uint32(b[posEpoch:]))
}

// CommitTimestamp is when the batch was appended, ms.
func (b Batch) CommitTimestamp() int64 { return int64(binary.LittleEndian.Uint64(b[posCommit:])) }

// MaxTimestamp is the largest record timestamp, ms.
func (b Batch) MaxTimestamp() int64 { return int64(binary.LittleEndian.Uint64(b[posMaxTS:])) }

// Encoding is the payload's.
func (b Batch) Encoding() Encoding { return Encoding(b[posEncoding]) }

// Attributes are the flag bits.
func (b Batch) Attributes() Attributes {
	return Attributes(binary.LittleEndian.Uint16(b[posAttrs:]))
}

// SchemaID is the schema version that the records were written under.
func (b Batch) SchemaID() mink.SchemaID {
	return mink.SchemaID(binary.LittleEndian.Uint32(b[posSchema:]))
}

// Count is the number of records; 0 for a batch that only moves offsets.
func (b Batch) Count() int32 { return int32(binary.LittleEndian.Uint32(b[posCount:])) }

// WriterID is the idempotent writer, mink.NoWriter for none.
func (b Batch) WriterID() mink.WriterID {
	return mink.WriterID(binary.LittleEndian.Uint64(b[posWriter:]))
}

// Changes is the change vector, one Change per record, or nil when every
// record is an append.
func (b Batch) Changes() []byte {
	n := int(binary.LittleEndian.Uint32(b[posChanges:]))
	if n == 0 {
		return nil
	}
	return b[HeaderSize : HeaderSize+n : HeaderSize+n]
}

// Payload is what follows the change vector.
func (b Batch) Payload() []byte {
	return b[HeaderSize+pad8(int(binary.LittleEndian.Uint32(b[posChanges:]))):]
}

// Arrow splits the payload of an arrow batch into the message flatbuffer and
// the message body. Both are empty in a batch without records.
func (b Batch) Arrow() (metadata, body []byte) {
	p := b.Payload()
	n := int(binary.LittleEndian.Uint32(b[posMeta:]))
	return p[:n:n], p[pad8(n):]
}

// Kafka is the payload of a kafka batch: one v2 record batch.
func (b Batch) Kafka() []byte { return b.Payload() }
