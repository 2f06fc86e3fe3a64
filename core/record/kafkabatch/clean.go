package kafkabatch

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/mink-project/mink/sdk/mink"
)

// Cleaned is what Cleaner.Clean made of a batch.
type Cleaned struct {
	Batch        []byte // nil: it stays as it is. Valid until the Cleaner's next call
	Count        int32  // records that are left
	MaxTimestamp int64  // of them, ms; -1: none is left
	Tombstones   bool   // some of them are tombstones that have a time to go
	DueMs        int64  // if so: when they may go
}

// Cleaner takes records out of batches and writes what is left in the batch's own codec.
// It keeps its codecs and buffers for the next one. Not for concurrent use. A batch takes
// memory for its records twice, uncompressed, and a bit per record.
type Cleaner struct {
	decoder *Decoder
	comp    compressor
	records []byte
	out     []byte
	kept    []uint64 // a bit for each record that stays
}

// NewCleaner makes a cleaner that decodes within the limits.
func NewCleaner(l Limits) *Cleaner { return &Cleaner{decoder: NewDecoder(l)} }

// Each calls f with every record of v, or with none when one cannot be read. Errors are
// *record.BatchError.
func (c *Cleaner) Each(v View, f func(*Record)) error {
	records, err := c.read(v)
	if err != nil {
		return err
	}
	r := NewReader(v, records)
	rec := Record{} // here, or there would be one per record: f makes it escape
	for r.Next(&rec) {
		f(&rec)
	}
	return r.Err()
}

// read answers the records of v, of which each can be read.
func (c *Cleaner) read(v View) ([]byte, error) {
	records, err := c.decoder.Records(v)
	if err == nil {
		_, err = measure(v, records)
	}
	return records, err
}

// Clean leaves the records that keep wants. Tombstones among them may go at dueMs, if
// the batch does not say already when; -1: that stays open, and Cleaned.Tombstones is
// false. The batch keeps its offsets, times, producer
// and codec; without records it is a header. keep is called once with each record, in
// order, unless one of them cannot be read. Errors are *record.BatchError (it cannot
// be read), or of a codec.
func (c *Cleaner) Clean(v View, keep func(*Record) bool, dueMs int64) (Cleaned, error) {
	records, err := c.read(v)
	if err != nil {
		return Cleaned{}, err
	}
	res := Cleaned{MaxTimestamp: noTimestamp}
	c.kept = append(c.kept[:0], make([]uint64, (int(v.Count())+63)/64)...)
	r := NewReader(v, records)
	rec := Record{} // here, or there would be one per record: keep makes it escape
	for i := 0; r.Next(&rec); i++ {
		if !keep(&rec) {
			continue
		}
		c.kept[i/64] |= 1 << (i % 64)
		res.Count++
		res.MaxTimestamp = max(res.MaxTimestamp, rec.Timestamp)
		res.Tombstones = res.Tombstones || rec.Value == nil
	}
	horizon, known := v.DeleteHorizon()
	if !known {
		horizon = dueMs
		res.Tombstones = res.Tombstones && dueMs >= 0
	}
	if res.Tombstones {
		res.DueMs = horizon
	}
	switch {
	case res.Count == v.Count() && (known || !res.Tombstones):
	case res.Count == 0:
		res.Batch = EmptyBatch(v.BaseOffset(), v.LastOffsetDelta(), v.LeaderEpoch())
	default:
		err = c.write(v, records, &res, horizon, known || res.Tombstones)
	}
	return res, err
}

// write builds the new batch. Records are copied as they are, unless the horizon takes
// the place of the base timestamp that they count from.
func (c *Cleaner) write(v View, records []byte, res *Cleaned, horizon int64, marked bool) error {
	c.records = slices.Grow(c.records[:0], len(records))
	_, known := v.DeleteHorizon()
	r := NewReader(v, records)
	for i, rec := 0, (Record{}); r.Next(&rec); i++ {
		switch {
		case c.kept[i/64]>>(i%64)&1 == 0:
		case !marked || known:
			c.records = append(c.records, rec.raw...)
		default:
			ts := v.BaseTimestamp() + rec.tsDelta - horizon
			size := 1 + varintLen(ts) + varintLen(int64(rec.Delta)) + len(rec.tail)
			c.records = binary.AppendVarint(c.records, int64(size))
			c.records = append(c.records, rec.attrs)
			c.records = binary.AppendVarint(c.records, ts)
			c.records = binary.AppendVarint(c.records, int64(rec.Delta))
			c.records = append(c.records, rec.tail...)
		}
	}
	c.out = append(c.out[:0], v[:HeaderSize]...)
	b, err := c.comp.append(c.out, v.Codec(), c.records)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Codec(), err)
	}
	c.out = b
	if len(b) > math.MaxInt32 {
		return fmt.Errorf("clean kafka batch: %w: %d bytes", mink.ErrTooLarge, len(b))
	}
	be := binary.BigEndian
	be.PutUint32(b[posLength:], uint32(len(b)-lengthEnd))
	if marked {
		be.PutUint16(b[posAttrs:], v.attrs()|attrDeleteHorizon)
		be.PutUint64(b[posBaseTS:], uint64(horizon))
	}
	be.PutUint32(b[posCount:], uint32(res.Count))
	setMaxTimestamp(b, res.MaxTimestamp)
	res.Batch = b
	if cap(c.records) > keepBytes {
		c.records = nil
	}
	if cap(c.out) > keepBytes {
		c.out = nil
	}
	return nil
}

// EmptyBatch is a batch without records for lastDelta + 1 offsets from base on: what is
// left of batches of which no record is. Consumers go on behind it.
func EmptyBatch(base mink.Offset, lastDelta int32, epoch mink.LeaderEpoch) []byte {
	b, err := EncodeValues(nil, 0, nil, Encoding{Base: base, LeaderEpoch: epoch, LastOffsetDelta: lastDelta})
	if err != nil {
		panic(err) // neither records nor a length that could be wrong
	}
	return b
}
